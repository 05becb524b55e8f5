//! Paced QPs: throughput measured by perftest.

use super::super::perftest::goodputs_bps;
use crate::vm::prelude::*;

const SENDER: u8 = 1;
const RECEIVER: u8 = 2;
const SECONDS: u32 = 8;
/// Time a flow may catch up on: an emulated machine's softirqs are some milliseconds late.
const CREDIT: &str = "5ms";
/// Rates of each QP, and number of QPs.
const LIMITS: [(u32, u16); 4] = [(10, 1), (40, 1), (80, 1), (20, 2)];
const TOLERANCE: f64 = 0.05;
/// Attempts if a measured rate is too low: an emulated machine that is not scheduled loses more time than the credit
/// covers. Too high a rate fails immediately.
const ATTEMPTS: u32 = 3;

/// The default, with which a late machine loses rate: measured for comparison, without a bound.
const DEFAULT_CREDIT: &str = "100us";

pub(super) fn run(report: &mut Report) -> Result<()> {
    let lab = Lab::new(RECEIVER, &Options::default())?;
    lab.on_host(SENDER, "attach {} --set link_rate=1gbit")?;
    for (asked_mbps, qps) in LIMITS {
        let mut attempt = 1;
        let (shares, retries) = loop {
            let (shares, retries) = measure_shares(&lab, report, asked_mbps, qps, CREDIT)?;
            if attempt == ATTEMPTS || shares.iter().all(|share| *share >= 1.0 - TOLERANCE) {
                break (shares, retries);
            }
            attempt += 1;
        };
        let name = format!("{qps} QP at {asked_mbps} Mbit/s");
        for share in shares {
            report.at_least(&format!("{name}: wire rate, relative to the requested"), share, 1.0 - TOLERANCE);
            report.at_most(&format!("{name}: wire rate, relative to the requested"), share, 1.0 + TOLERANCE);
        }
        report.equals(&format!("{name}: retries"), retries, 0);
    }
    measure_shares(&lab, report, 80, 1, DEFAULT_CREDIT)?;
    let counters = lab.on_host(SENDER, "counters {}")?;
    let beyond = count(&counters, "rp_horizon_drop")? + count(&counters, "rp_horizon_pass")?;
    report.equals("packets beyond the pacing horizon", beyond, 0);
    Ok(())
}

/// Paces QPs at a rate; returns each one's share of it on the wire, and the retries.
fn measure_shares(
    lab: &Lab,
    report: &mut Report,
    asked_mbps: u32,
    qps: u16,
    credit: &str,
) -> Result<(Vec<f64>, u64)> {
    // A flow without a cut has the maximum rate.
    lab.on_host(SENDER, &format!("set {{}} rpg_max_rate={asked_mbps}mbit pacing_credit={credit}"))?;
    let retries = lab.hw_counter(SENDER, "completer_retry_err")?;
    let flows: Vec<Flow> =
        (0..qps).map(|qp| Flow::new(Tool::Write, SENDER, RECEIVER, 18_200 + qp, SECONDS)).collect();
    let goodputs = goodputs_bps(&perftest::run(lab, &flows)?)?;
    let retries = lab.hw_counter(SENDER, "completer_retry_err")? - retries;
    let efficiency = flows.first().context("a flow")?.efficiency(&lab.options);
    let wire_mbps: Vec<f64> = goodputs.iter().map(|bps| bps / efficiency / 1e6).collect();
    let shares: Vec<f64> = wire_mbps.iter().map(|mbps| mbps / f64::from(asked_mbps)).collect();
    for (mbps, share) in wire_mbps.iter().zip(&shares) {
        report.record([
            ("requested, Mbit/s", asked_mbps.to_string()),
            ("QPs", qps.to_string()),
            ("credit", credit.to_owned()),
            ("on the wire, Mbit/s", format!("{mbps:.2}")),
            ("of the requested", format!("{:.1} %", 100.0 * share)),
            ("retries", retries.to_string()),
        ]);
    }
    Ok((shares, retries))
}
