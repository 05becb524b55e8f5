//! The kernel's own markers as peers: the same incast and hosts, with another marker.

use super::super::command::sh_in;
use super::incast::{BRIEF, attach_hosts, attach_port, measure, shape};
use crate::vm::prelude::*;

const RECEIVER: u8 = 3;
/// Markers behind the shaper of the port: RED with the thresholds and the probability of `dcqcn`'s port; fq_codel, which
/// marks packets queued longer than a threshold, with its own control disabled.
const PEERS: [(&str, &str); 2] = [
    (
        "red ecn",
        "red limit 200000 min 10000 max 200000 avpkt 1100 burst 80 probability 0.5 bandwidth 20mbit ecn",
    ),
    ("fq_codel ce_threshold", "fq_codel limit 1000 target 500ms interval 2s ce_threshold 20ms ecn"),
];

pub(super) fn run(report: &mut Report) -> Result<()> {
    sh("modprobe -a sch_red sch_fq_codel")?;
    let lab = Lab::new(RECEIVER, &Options::default())?;
    attach_hosts(&lab)?;
    for (number, (name, qdisc)) in PEERS.into_iter().enumerate() {
        lab.shape(RECEIVER, "20mbit")?;
        sh_in(
            &lab.switch,
            &format!("tc qdisc replace dev p{RECEIVER} parent 1:1 handle {}: {qdisc}", 10 + number),
        )?;
        let measured = measure(&lab, Tool::Write, BRIEF)?;
        measured.row(report, name);
        measured.check_works(report, name);
    }
    shape(&lab)?;
    attach_port(&lab)?;
    let measured = measure(&lab, Tool::Write, BRIEF)?;
    measured.row(report, "dcqcn");
    measured.check_works(report, "dcqcn");
    Ok(())
}
