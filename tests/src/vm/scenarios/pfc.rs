//! PFC frames of a neighbour, with the kernel's fq.

use anyhow::Result;

use super::super::command::sh;
use super::super::report::Report;
use crate::pauses::{PAUSE, run as pause};

pub(super) fn run(report: &mut Report) -> Result<()> {
    sh("modprobe sch_fq")?;
    let held = pause("pfc")?;
    report.columns(&["packet", "arrives after"]);
    let ms = |time: std::time::Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    let paused = format!("in the queue that is paused for {}", ms(PAUSE));
    report.row([paused, ms(held.held)]);
    report.row(["in another queue".to_owned(), ms(held.other)]);
    report.row(["in that queue after XON".to_owned(), ms(held.after_xon)]);
    let wrong = held.wrong();
    report.check(
        "a pause holds its queue, and only until it is over",
        wrong.join(", "),
        "",
        wrong.is_empty(),
    );
    Ok(())
}
