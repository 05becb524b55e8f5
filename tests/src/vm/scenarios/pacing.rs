//! QPs held to a rate: what perftest gets of it.

use anyhow::{Context as _, Result};

use super::super::lab::{Lab, Options, count};
use super::super::perftest::{self, Flow, Tool, goodputs_bps};
use super::super::report::Report;

const SENDER: u8 = 1;
const RECEIVER: u8 = 2;
const SECONDS: u32 = 8;
/// Time a flow may catch up on: an emulated machine's softirqs are some milliseconds late.
const CREDIT: &str = "5ms";
/// Asked of each QP, and how many of them.
const HELD: [(u32, u16); 4] = [(10, 1), (40, 1), (80, 1), (20, 2)];
/// How far from the asked rate the wire may be.
const TOLERANCE: f64 = 0.05;

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(RECEIVER, &Options::default())?;
    // A flow that is never cut has the link's rate.
    lab.on_host(
        SENDER,
        &format!("attach {{}} --set link_rate=1gbit --set rpg_max_rate=10mbit --set pacing_credit={CREDIT}"),
    )?;
    report.columns(&["asked, Mbit/s", "QPs", "on the wire, Mbit/s", "of the asked", "retries"]);
    for (asked_mbps, qps) in HELD {
        lab.on_host(SENDER, &format!("set {{}} rpg_max_rate={asked_mbps}mbit"))?;
        let retries = lab.hw_counter(SENDER, "completer_retry_err")?;
        let flows: Vec<Flow> =
            (0..qps).map(|qp| Flow::new(Tool::Write, SENDER, RECEIVER, 18_200 + qp, SECONDS)).collect();
        let goodputs = goodputs_bps(&perftest::run(&lab, &flows)?)?;
        let retries = lab.hw_counter(SENDER, "completer_retry_err")? - retries;
        let efficiency = flows.first().context("a flow")?.efficiency(&lab.options);
        for goodput_bps in goodputs {
            let wire_mbps = goodput_bps / efficiency / 1e6;
            let share = wire_mbps / f64::from(asked_mbps);
            report.row([
                asked_mbps.to_string(),
                qps.to_string(),
                format!("{wire_mbps:.2}"),
                format!("{:.1} %", 100.0 * share),
                retries.to_string(),
            ]);
            let what = format!("{qps} QP at {asked_mbps} Mbit/s: wire rate, of the asked");
            report.at_least(&what, share, 1.0 - TOLERANCE);
            report.at_most(&what, share, 1.0 + TOLERANCE);
        }
        report.equals(&format!("{qps} QP at {asked_mbps} Mbit/s: retries"), retries, 0);
    }
    let counters = lab.on_host(SENDER, "counters {}")?;
    report.equals("packets beyond the pacing horizon", count(&counters, "rp_horizon_drop")?, 0);
    Ok(())
}
