//! Soft-RoCE in a network namespace, as of a container, behind a veth or netkit pair to the NIC's bridge.

use super::super::hosts::Topology;
use super::incast::attached;
use super::note;
use crate::vm::prelude::*;

const VETH: Topology = Topology {
    script: "ip address flush dev eth0
        ip link add low0 type veth peer name pod0
        pod_above eth0",
    rdma: "pod0",
    iface: "pod0",
    network: "10.9.12",
    netns: Some("pod"),
    ..PLAIN
};

/// The guest's iproute2 makes netkit pairs without Ethernet frames only.
const NETKIT: Topology = Topology {
    script: "ip address flush dev eth0
        vm-guest netkit low0 pod0
        pod_above eth0",
    network: "10.9.13",
    ..VETH
};
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    namespace(hosts, report, "veth", VETH)?;
    hosts.build(PLAIN)?;
    match hosts.both("vm-guest netkit low0 pod0; ip link delete low0") {
        Ok(()) => {
            without_ethernet(hosts, report)?;
            namespace(hosts, report, "netkit", NETKIT)?;
        }
        Err(error) => report.skip("pods, netkit", &format!("a kernel does not support it: {error:#}")),
    }
    hosts.build(PLAIN)
}

/// RoCE by `dcqcn` in the namespace, then on the NIC, which forwards.
fn namespace(hosts: &mut Hosts, report: &mut Report, kind: &str, topology: Topology) -> Result<()> {
    hosts.build(topology)?;
    for guest in GUESTS {
        let sockets = hosts.sh(guest, "ip netns exec pod ss -Huln 'sport = :4791'")?;
        if sockets.trim().is_empty() {
            let reason = format!("guest {guest}'s soft-RoCE receives in the first network namespace only");
            report.skip(&format!("pods, {kind}"), &reason);
            return Ok(());
        }
    }
    attached(hosts, report, "pods", &format!("{kind}, dcqcn in the namespace"))?;
    if rping(hosts, report, kind, topology, "off")? {
        hosts.attach_both()?;
        let is_done = rping(hosts, report, kind, topology, "dcqcn")?;
        report.equals(&format!("pods, {kind}: rping with dcqcn"), is_done, true);
        hosts.detach_both()?;
    } else {
        report.skip(&format!("pods, {kind}, rping"), "it does not work without dcqcn either");
    }
    hosts.build(Topology { iface: "eth0", ..topology })?;
    attached(hosts, report, "pods", &format!("{kind}, dcqcn on the NIC")).map(drop)
}

/// rping in the namespaces, which validates what it receives; returns whether it succeeded.
fn rping(hosts: &mut Hosts, report: &mut Report, kind: &str, topology: Topology, what: &str) -> Result<bool> {
    let line =
        format!("timeout 40 ip netns exec pod rping -a {}.{RECEIVER} -S 4096 -C 20 -V", topology.network);
    hosts.start(RECEIVER, &format!("{line} -s"))?;
    // It prints nothing when it listens.
    thread::sleep(Duration::from_secs(2));
    let started = Instant::now();
    let client = hosts.start(SENDER, &format!("{line} -c"))?;
    let (is_done, printed) = hosts.finish(&client, PATIENCE)?;
    hosts.sh(RECEIVER, "pkill -9 -x rping || true")?;
    let end = if is_done { format!("{:.1} s", started.elapsed().as_secs_f64()) } else { "failed".to_owned() };
    note(report, "pods", format!("{kind}, rping, {what}: {end}"));
    if !is_done {
        println!("{printed}");
    }
    Ok(is_done)
}

/// A netkit in mode `l3`, the kernel's default, is refused.
fn without_ethernet(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    const ATTACH: &str = "ip link add low0 type netkit
        ip link set low0 up
        ! dcqcn attach low0 --set link_rate=1gbit 2>&1";
    let refused = hosts.sh(SENDER, ATTACH)?;
    report.contains("pods, netkit in mode l3: attach", &refused, "without Ethernet frames");
    hosts.sh(SENDER, "ip link delete low0").map(drop)
}
