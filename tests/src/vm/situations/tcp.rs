//! TCP in the direction without bottleneck: its throughput with `dcqcn` relative to without, and alongside RoCE.

use super::super::command::received_bps;
use super::incast::restored;
use super::{Measured, note};
use crate::vm::prelude::*;

/// Two of each: detached, attached, attached, detached, so that a trend of the machine's load cancels.
const CYCLES: usize = 2;
const SECONDS: u32 = 3;
/// Lowest ratio: a few short rounds on a busy machine.
const MIN_RATIO: f64 = 0.8;

pub(super) fn ratio(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    hosts.sh(RECEIVER, "iperf3 -s -D")?;
    let before = hosts.state()?;
    let (mut detached, mut attached) = (Vec::new(), Vec::new());
    for _ in 0..CYCLES {
        detached.push(throughput_bps(hosts)?);
        hosts.attach_both()?;
        attached.push(throughput_bps(hosts)?);
        attached.push(throughput_bps(hosts)?);
        hosts.detach_both()?;
        detached.push(throughput_bps(hosts)?);
    }
    restored(hosts, report, "tcp", &before)?;
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64 / 1e6;
    let (detached, attached) = (mean(&detached), mean(&attached));
    let ratio = attached / detached;
    let text = format!("attached {attached:.0}, detached {detached:.0} Mbit/s, ratio {ratio:.2}");
    note(report, "tcp", text);
    report.at_least("tcp: ratio of throughput with dcqcn to without", ratio, MIN_RATIO);
    Ok(())
}

/// TCP and RoCE before, during and after attaching.
pub(super) fn alongside(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    hosts.sh(RECEIVER, "iperf3 -s -D")?;
    let state = hosts.state()?;
    let alone = throughput_bps(hosts)?;
    for (what, is_attached) in [("before", false), ("attached", true), ("detached", false)] {
        if is_attached {
            hosts.attach_both()?;
        }
        let before = hosts.counts()?;
        let traffic = hosts.traffic(&hosts.flows(Tool::Write, 2, 14))?;
        thread::sleep(Duration::from_secs(2));
        let tcp = throughput_bps(hosts)?;
        let outcomes = hosts.outcomes(&traffic)?;
        let measured = Measured::new(&outcomes, hosts.counts()?.since(before));
        let text = format!("{what}, TCP {:.0} Mbit/s, alone {:.0}", tcp / 1e6, alone / 1e6);
        measured.row(report, "alongside", &text);
        report.equals(&format!("alongside, {what}: QPs that broke"), measured.broken, 0);
        if is_attached {
            measured.check(report, "alongside", BOTTLENECK_BPS);
            hosts.detach_both()?;
        }
    }
    restored(hosts, report, "alongside", &state)
}

/// TCP's throughput from the second to the first guest, at its receiver.
fn throughput_bps(hosts: &mut Hosts) -> Result<f64> {
    received_bps(&hosts.sh(SENDER, &format!("iperf3 -c 10.9.0.{RECEIVER} -t {SECONDS} -J -R"))?)
}
