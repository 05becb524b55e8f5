//! Changes under traffic: `dcqcn` itself, MTU, CPUs, carrier, paused guests.

use super::super::lab;
use super::Measured;
use super::incast::{measure, restored};
use crate::vm::prelude::*;

fn during(
    hosts: &mut Hosts,
    report: &mut Report,
    (name, what): (&str, &str),
    (tool, seconds): (Tool, u32),
    action: impl FnOnce(&mut Hosts) -> Result<()>,
) -> Result<Measured> {
    let before = hosts.counts()?;
    let traffic = hosts.traffic(&hosts.flows(tool, 2, seconds))?;
    thread::sleep(Duration::from_secs(3));
    action(hosts)?;
    let outcomes = hosts.outcomes(&traffic)?;
    let measured = Measured::new(&outcomes, hosts.counts()?.since(before));
    measured.row(report, name, what);
    Ok(measured)
}

/// WRITE, READ and SEND through attaching and detaching, which `fq` installed before makes possible on every kernel.
pub(super) fn attaching(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    let before = hosts.state()?;
    for (tool, what) in [(Tool::Write, "write"), (Tool::Read, "read"), (Tool::Send, "send")] {
        let measured = during(hosts, report, ("attaching", what), (tool, 30), |hosts| {
            hosts.attach_both()?;
            thread::sleep(Duration::from_secs(3));
            hosts.detach_both()
        })?;
        report.equals(&format!("attaching, {what}: QPs that broke"), measured.broken, 0);
    }
    restored(hosts, report, "attaching", &before)
}

/// MTUs of 1,500, 4,200 and 9,000 bytes, and a change under traffic.
pub(super) fn mtu(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    hosts.attach_both()?;
    for mtu in ["4200", "9000"] {
        if hosts.both(&format!("ip link set eth0 mtu {mtu}")).is_err() {
            report.skip(&format!("mtu, {mtu} bytes"), "the driver rejects it");
            continue;
        }
        // Some drivers take the link down for it.
        thread::sleep(Duration::from_secs(3));
        let measured = measure(hosts, Tool::Write, 12)?;
        measured.row(report, "mtu", &format!("{mtu} bytes"));
        measured.check(report, &format!("mtu, {mtu} bytes"), BOTTLENECK_BPS);
    }
    hosts.both("ip link set eth0 mtu 1500")?;
    thread::sleep(Duration::from_secs(3));
    during(hosts, report, ("mtu", "changed under traffic"), (Tool::Write, 16), |hosts| {
        hosts.both("ip link set eth0 mtu 4200")?;
        thread::sleep(Duration::from_secs(4));
        hosts.both("ip link set eth0 mtu 1500")
    })?;
    // Drivers that take the link down end QPs on Linux 6.12 and later; new ones must work.
    let measured = measure(hosts, Tool::Write, 12)?;
    measured.row(report, "mtu", "after the change");
    measured.check(report, "mtu, after the change", BOTTLENECK_BPS);
    hosts.detach_both()
}

/// The second CPU of each guest goes offline and comes back.
pub(super) fn cpu(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    const ONLINE: &str = "/sys/devices/system/cpu/cpu1/online";
    if GUESTS.iter().any(|guest| hosts.sh(*guest, &format!("test -w {ONLINE}")).is_err()) {
        report.skip("cpu", "CPU 1 cannot be taken offline");
        return Ok(());
    }
    hosts.build(PLAIN)?;
    hosts.attach_both()?;
    let measured = during(hosts, report, ("cpu", "offline and online"), (Tool::Write, 24), |hosts| {
        hosts.both(&format!("echo 0 > {ONLINE}"))?;
        thread::sleep(Duration::from_secs(4));
        hosts.both(&format!("echo 1 > {ONLINE}"))
    })?;
    measured.check(report, "cpu", BOTTLENECK_BPS);
    hosts.detach_both()
}

/// The carrier of the sender's NIC is lost for 2 s; then the interface is taken down and up.
pub(super) fn link(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    hosts.attach_both()?;
    let measured = during(hosts, report, ("link", "carrier lost for 2 s"), (Tool::Write, 24), |hosts| {
        hosts.host(&format!("carrier {SENDER} 2"))
    })?;
    // A packet that its own host drops ends a QP on Linux 6.12 and later.
    if !lab::dies_on_local_drop()? {
        report.equals("link, carrier: QPs that broke", measured.broken, 0);
    }
    hosts.both("ip link set eth0 down; sleep 1; ip link set eth0 up")?;
    let measured = reachable(hosts, report, "link", "down and up")?;
    measured.check(report, "link, down and up", BOTTLENECK_BPS);
    complete(hosts, report, "link")?;
    hosts.detach_both()
}

/// New QPs after the interface was unusable.
fn reachable(hosts: &mut Hosts, report: &mut Report, name: &str, what: &str) -> Result<Measured> {
    hosts.sh(SENDER, "until busybox ping -c 1 -W 2 10.9.0.$M >/dev/null; do sleep 0.5; done")?;
    let measured = measure(hosts, Tool::Write, 12)?;
    measured.row(report, name, what);
    Ok(measured)
}

fn complete(hosts: &mut Hosts, report: &mut Report, name: &str) -> Result<()> {
    for guest in GUESTS {
        let status = hosts.sh(guest, "dcqcn --json status eth0 | tr -d ' \\n'")?;
        let is_complete = status.contains("\"problems\":[]");
        report.equals(&format!("{name}: attachment of guest {guest}"), is_complete, true);
    }
    Ok(())
}

/// The receiver is paused for 5 s: with its clock, then without it, so that it jumps.
pub(super) fn paused(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(PLAIN)?;
    hosts.attach_both()?;
    for (request, what) in [
        (format!("stop {RECEIVER} 5"), "receiver paused for 5 s"),
        (format!("freeze {RECEIVER} 5"), "receiver frozen for 5 s, its clock jumps"),
    ] {
        let measured =
            during(hosts, report, ("paused", what), (Tool::Write, 36), |hosts| hosts.host(&request))?;
        measured.check(report, &format!("paused, {what}"), BOTTLENECK_BPS / 2.0);
    }
    complete(hosts, report, "paused")?;
    hosts.detach_both()
}
