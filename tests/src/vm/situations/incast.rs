//! Two QPs into the bottleneck, without and with `dcqcn`.

use super::super::hosts::Topology;
use super::Measured;
use crate::vm::prelude::*;

/// Seconds of traffic without `dcqcn`, and with it: rates settle in 3 s.
const OFF_S: u32 = 8;
const ON_S: u32 = 16;
const QPS: u16 = 2;
const SETTLE: Duration = Duration::from_secs(4);
/// Minimum share of the bottleneck's rate, of which headers leave 0.945.
const MIN_SHARE: f64 = 0.7;

pub(super) fn run(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    let off = measure(hosts, Tool::Write, OFF_S)?;
    off.row(report, "incast", "off");
    let on = attached(hosts, report, "incast", "dcqcn")?;
    // Slow guests do not fill the queue.
    let most = off.counts.retries.max(2) as f64;
    report.at_most("incast: retries, as without dcqcn", on.counts.retries as f64, most);
    report.equals("incast: packets out of sequence, once settled", on.lost_settled, 0);
    report.at_least("incast: Jain's index", on.jain, 0.9);
    let share = on.goodput_bps / BOTTLENECK_BPS;
    report.at_least("incast: goodput, of the bottleneck, both guests attached", share, MIN_SHARE);
    Ok(())
}

/// Builds a topology, and measures with `dcqcn` attached in both guests.
pub(super) fn over(hosts: &mut Hosts, report: &mut Report, name: &str, topology: Topology) -> Result<()> {
    hosts.build(topology)?;
    attached(hosts, report, name, "dcqcn").map(drop)
}

/// Measures with `dcqcn` attached in both guests; afterwards the interfaces must be as before.
pub(super) fn attached(hosts: &mut Hosts, report: &mut Report, name: &str, what: &str) -> Result<Measured> {
    let before = hosts.state()?;
    hosts.attach_both()?;
    let measured = measure(hosts, Tool::Write, ON_S)?;
    measured.row(report, name, what);
    measured.check(report, name, BOTTLENECK_BPS);
    hosts.detach_both()?;
    restored(hosts, report, name, &before)?;
    Ok(measured)
}

pub(super) fn restored(hosts: &mut Hosts, report: &mut Report, name: &str, before: &[String]) -> Result<()> {
    unchanged(report, name, before, &hosts.state()?);
    Ok(())
}

/// Compares the states of interfaces.
pub(super) fn unchanged(report: &mut Report, name: &str, before: &[String], now: &[String]) {
    let changed: Vec<String> = before
        .iter()
        .zip(now)
        .flat_map(|(before, now)| before.lines().zip(now.lines()))
        .filter(|(before, now)| before != now)
        .map(|(before, now)| format!("{} -> {}", before.trim(), now.trim()))
        .collect();
    let measured = if changed.is_empty() { "unchanged".to_owned() } else { changed.join("; ") };
    let what = format!("{name}: offloads and qdiscs after detach");
    report.check(&what, measured, "unchanged", before == now);
}

pub(super) fn measure(hosts: &mut Hosts, tool: Tool, seconds: u32) -> Result<Measured> {
    let flows = hosts.flows(tool, QPS, seconds);
    let before = hosts.counts()?;
    let traffic = hosts.traffic(&flows)?;
    thread::sleep(SETTLE);
    let settled = hosts.counts()?;
    let outcomes = hosts.outcomes(&traffic)?;
    let end = hosts.counts()?;
    let measured = Measured::new(&outcomes, end.since(before));
    Ok(Measured { lost_settled: end.since(settled).out_of_sequence, ..measured })
}
