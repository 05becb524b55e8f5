//! Delay of the CNP at the end of a window, by its trigger.

use super::*;

const COMMON: &str =
    "--profile paper --set wred.3.kmin=100KB --set wred.3.kmax=400KB --set wred.3.pmax=20% --duration 200ms";
const WORKLOADS: [(&str, &str); 4] = [
    ("8 senders, 20 MB", "--topology leaf-spine:1x0x129 --workload incast:8 --size 20MB"),
    ("32 senders, 5 MB", "--topology leaf-spine:1x0x129 --workload incast:32 --size 5MB"),
    ("128 senders, 2 MB", "--topology leaf-spine:1x0x129 --workload incast:128 --size 2MB"),
    (
        "random, 200 KB, 70 % load",
        "--topology leaf-spine:4x4x16 --workload random --size 200KB --load 70% --until 5ms",
    ),
];
const SENT_BY: [(&str, &str); 3] =
    [("timer", "a timer"), ("flow", "the flow's next packet"), ("port", "the port's next packet")];

pub(super) fn lateness(lab: &Lab) -> Result<String> {
    let mut rows = Vec::new();
    for (name, workload) in WORKLOADS {
        for (value, by) in SENT_BY {
            let run = lab.json(&format!("fabric {workload} {COMMON} --window-end {value}"))?;
            ensure!(number(&run, "/unfinished_flows")? == 0.0, "{name}, {by}: not all flows are complete");
            let end = |figure: &str| number(&run, &format!("/transport/window_end/{figure}"));
            let us = |figure: &str| end(figure).map(|ns| format!("{:.1}", ns / 1e3));
            rows.push(vec![
                name.to_owned(),
                by.to_owned(),
                format!("{:.0}", number(&run, "/transport/cnps_sent")?),
                format!("{:.0}", end("cnps")?),
                us("late_p50_ns")?,
                us("late_p99_ns")?,
                us("late_max_ns")?,
                format!("{:.0}", end("unanswered")?),
                kb(number(&run, "/ports/0/max_queue_bytes")?),
                format!("{:.2}", number(&run, "/fct/mean_ns")? / 1e6),
                format!("{:.2}", number(&run, "/fct/max_ns")? / 1e6),
            ]);
        }
    }
    let heading = [
        "flows",
        "sent by",
        "CNPs",
        "at a window's end",
        "late p50, us",
        "**p99**",
        "max",
        "never answered",
        "queue, KB",
        "mean FCT, ms",
        "last, ms",
    ];
    let [(_, first), ..] = WORKLOADS;
    Ok(table(&[&format!("fabric {first} {COMMON} --window-end flow")], &heading, &rows))
}
