//! One guest without `dcqcn`, or with one that answers marks in another way.

use super::Measured;
use super::incast::measure;
use crate::vm::prelude::*;

/// Only one side runs `dcqcn`: nothing is cut, and nothing breaks.
pub(super) fn alone(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    let mut measured = Vec::new();
    for (guest, what) in [(SENDER, "sender only"), (RECEIVER, "receiver only")] {
        hosts.attach(guest, LINK)?;
        let one = measure(hosts, Tool::Write, 12)?;
        one.row(report, "alone", what);
        report.equals(&format!("alone, {what}: QPs that broke"), one.broken, 0);
        let share = one.goodput_bps / BOTTLENECK_BPS;
        report.at_least(&format!("alone, {what}: goodput, of the bottleneck"), share, 0.3);
        hosts.sh(guest, "dcqcn detach eth0")?;
        measured.push(one.counts);
    }
    report.equals("alone, sender only: CNPs handled, as none is sent", measured[0].handled, 0);
    report.at_least("alone, receiver only: CNPs sent", measured[1].sent as f64, 1.0);
    Ok(())
}

/// The receiver answers as firmware does: at most one CNP in 4 us, to the sender's QPN instead of with a
/// hint. The sender's daemon finds the flow by the kernel's QPs. Then the receiver names wrong QPNs.
pub(super) fn firmware(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    hosts.attach(SENDER, LINK)?;
    hosts.start(SENDER, "dcqcn run eth0")?;
    hosts.attach(RECEIVER, "--profile nvidia --set link_rate=40mbit")?;
    let right = answered(hosts, report, "firmware's answers", 0)?;
    right.check(report, "firmware, right QPNs", BOTTLENECK_BPS);
    let wrong = answered(hosts, report, "wrong QPNs", 0x1000)?;
    report.equals("firmware, wrong QPNs: QPs that broke", wrong.broken, 0);
    report.at_least("firmware, wrong QPNs: CNPs without a flow", wrong.counts.unknown as f64, 1.0);
    hosts.sh(SENDER, "pkill -x dcqcn; until ! pgrep -x dcqcn >/dev/null; do sleep 0.2; done")?;
    hosts.detach_both()
}

/// Traffic of two QPs whose sender's QPNs, plus an offset, the receiver knows.
fn answered(hosts: &mut Hosts, report: &mut Report, what: &str, offset: u32) -> Result<Measured> {
    let traffic = hosts.traffic(&hosts.flows(Tool::Write, 2, 20))?;
    thread::sleep(Duration::from_secs(2));
    for client in traffic.clients() {
        let printed = hosts.printed(client)?;
        let (sender, receiver) =
            perftest::qpns(&printed).with_context(|| format!("no QPNs in: {printed}"))?;
        let pair = format!("10.9.0.{RECEIVER} {receiver:#x} {:#x}", sender + offset);
        hosts.sh(RECEIVER, &format!("dcqcn flows pair add eth0 {pair}"))?;
    }
    let before = hosts.counts()?;
    let outcomes = hosts.outcomes(&traffic)?;
    let measured = Measured::new(&outcomes, hosts.counts()?.since(before));
    measured.row(report, "firmware", what);
    Ok(measured)
}
