//! READ: the responder is the sender, and is not limited by a send queue.

use super::super::perftest::goodputs_bps;
use super::incast::{self, BOTTLENECK_BPS};
use crate::vm::prelude::*;

/// Requests the data.
const READER: u8 = 3;
/// Has the data.
const RESPONDERS: [u8; 2] = [1, 2];
const SECONDS: u32 = 26;
const MARGIN_S: u32 = 9;
/// READs in flight per QP. All requested responses leave immediately; they must fit the port's queue
/// before the first CNP.
const DEPTH: u32 = 4;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(READER, &Options::default())?;
    incast::shape(&lab)?;
    incast::attach(&lab)?;
    let flows: Vec<Flow> = RESPONDERS
        .into_iter()
        .map(|responder| {
            let flow = Flow::new(Tool::Read, READER, responder, 18_300 + u16::from(responder), SECONDS);
            Flow { depth: DEPTH, margin_s: MARGIN_S, ..flow }
        })
        .collect();
    let sequence = lab.hw_counter(READER, "rcvd_seq_err")?;
    let goodputs = goodputs_bps(&perftest::run(&lab, &flows)?)?;
    let sequence = lab.hw_counter(READER, "rcvd_seq_err")? - sequence;
    let possible_bps = BOTTLENECK_BPS * flows.first().context("flows")?.efficiency(&lab.options);
    let total_bps: f64 = goodputs.iter().sum();
    report.columns("responder | goodput, Mbit/s | CNPs handled | dropped by its fq");
    for (responder, goodput_bps) in RESPONDERS.into_iter().zip(&goodputs) {
        let handled = count(&lab.on_host(responder, "counters {}")?, "rp_cnp_handled")?;
        let drops = lab.host_stats(responder)?.drops;
        report.row([
            format!("host {responder}"),
            format!("{:.2}", goodput_bps / 1e6),
            handled.to_string(),
            drops.to_string(),
        ]);
        report.at_least(&format!("host {responder}: CNPs handled"), handled as f64, 1.0);
        report.equals(&format!("host {responder}: READ responses and ACKs dropped by fq"), drops, 0);
    }
    report.at_least("goodput, of the possible", total_bps / possible_bps, 0.9);
    report.at_least("Jain's index", perftest::jain(&goodputs), 0.9);
    report.equals("sequence errors at the reader", sequence, 0);
    Ok(())
}
