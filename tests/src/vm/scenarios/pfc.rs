//! PFC frames of a neighbour, with the kernel's fq.

use crate::pauses::{DETECTION, PAUSE, RESTORATION, run as pause, storm};
use crate::vm::prelude::*;

pub(super) fn run(report: &mut Report) -> Result<()> {
    sh("modprobe sch_fq")?;
    let observed = pause("pfc")?;
    let watched = storm("watchdog", |host| host.run(|| Background::start("dcqcn run a0"))?)?;
    report.columns("what | after");
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    let paused = format!("a packet in the queue that is paused for {} arrives", ms(PAUSE));
    report.row([paused, ms(observed.waited)]);
    report.row(["a packet in another queue arrives".to_owned(), ms(observed.other)]);
    report.row(["one in that queue after XON arrives".to_owned(), ms(observed.after_xon)]);
    let in_ms = |time: Duration| format!("{:.0} ms", time.as_secs_f64() * 1e3);
    let detection = format!("a storm is detected, pfc_wd_detection_time {}", in_ms(DETECTION));
    report.row([detection, ms(watched.detection)]);
    let restoration = format!("the storm has ended, pfc_wd_restoration_time {}", in_ms(RESTORATION));
    report.row([restoration, ms(watched.restoration)]);
    let wrong = watched.wrong();
    report.check("a storm is detected, delays no packet and ends", wrong.join(", "), "", wrong.is_empty());
    let wrong = observed.wrong();
    report.check("a pause delays its queue until it expires", wrong.join(", "), "", wrong.is_empty());
    Ok(())
}
