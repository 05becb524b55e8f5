//! Interfaces above the NIC: tags, bonds, team, macvlan, tunnel, VRF, bridge.
//!
//! soft-RoCE does not run on VLAN interfaces, so a bridge `top0` above them has the RDMA device.

use super::super::hosts::Topology;
use super::Measured;
use super::incast::{attached, measure, over, restored};
use crate::vm::prelude::*;

pub(super) const VLAN: Topology = Topology {
    script: "modprobe 8021q
        ip address flush dev eth0
        ip link add link eth0 name low0 type vlan id 5
        bridge_above low0",
    rdma: "top0",
    network: "10.9.5",
    ..PLAIN
};

const QINQ: Topology = Topology {
    script: "modprobe 8021q
        ip address flush dev eth0
        ip link add link eth0 name mid0 type vlan protocol 802.1ad id 8
        ip link set mid0 up
        ip link add link mid0 name low0 type vlan id 5
        bridge_above low0",
    rdma: "top0",
    network: "10.9.6",
    ..PLAIN
};

pub(super) const BOND: Topology = Topology {
    script: "modprobe bonding max_bonds=0
        ip address flush dev eth0
        ip link add top0 type bond mode active-backup miimon 100 num_grat_arp 3
        for port in eth0 eth1; do ip link set $port down; ip link set $port master top0; done
        ip link set top0 up
        until ip link set top0 type bond active_slave eth0 2>/dev/null; do sleep 0.2; done
        tc qdisc replace dev top0 root fq limit 40000 flow_limit 20000",
    rdma: "top0",
    iface: "top0",
    network: "10.9.7",
    ..PLAIN
};

/// virtio-net reports no speed until one is set, and a port without a speed cannot join.
const LACP: Topology = Topology {
    script: "modprobe bonding max_bonds=0
        ip address flush dev eth0
        ip link add top0 type bond mode 802.3ad miimon 100 lacp_rate fast xmit_hash_policy layer3+4
        for port in eth0 eth1; do
            ip link set $port down
            case $(readlink /sys/class/net/$port/device/driver) in
                */virtio_net) ethtool -s $port speed 1000 duplex full;;
            esac
            ip link set $port master top0
        done
        ip link set top0 up
        until [ $(cat /sys/class/net/top0/bonding/ad_num_ports) = 2 ]; do sleep 0.2; done
        tc qdisc replace dev top0 root fq limit 40000 flow_limit 20000",
    rdma: "top0",
    iface: "top0",
    network: "10.9.15",
    ..PLAIN
};

const TEAM: Topology = Topology {
    script: "modprobe -a team team_mode_activebackup
        ip address flush dev eth0
        for port in eth0 eth1; do ip link set $port down; done
        mkdir -p /run/teamd
        teamd -d -t top0 -c '{\"runner\": {\"name\": \"activebackup\"}, \"link_watch\": {\"name\": \"ethtool\"},
            \"ports\": {\"eth0\": {\"prio\": 100}, \"eth1\": {}}}'
        ip link set top0 up
        until [ $(teamnl top0 getoption activeport) = $(cat /sys/class/net/eth0/ifindex) ]; do sleep 0.2; done
        tc qdisc replace dev top0 root fq limit 40000 flow_limit 20000",
    rdma: "top0",
    iface: "top0",
    network: "10.9.14",
    ..PLAIN
};

const MACVLAN: Topology = Topology {
    script: "modprobe macvlan
        ip address flush dev eth0
        ip link add link eth0 name top0 type macvlan mode bridge
        ip link set top0 up",
    rdma: "top0",
    network: "10.9.8",
    ..PLAIN
};

const VXLAN: Topology = Topology {
    script: "modprobe vxlan
        ip link add top0 type vxlan id 42 local 10.9.0.$N remote 10.9.0.$M dev eth0 dstport 4789
        ip link set top0 up
        tc qdisc replace dev top0 root fq limit 40000 flow_limit 20000",
    rdma: "top0",
    iface: "top0",
    network: "10.9.9",
    ..PLAIN
};

const VRF: Topology = Topology {
    script: "modprobe vrf
        echo 1 > /proc/sys/net/ipv4/udp_l3mdev_accept
        ip link add top0 type vrf table 100
        ip link set top0 up
        ip link set eth0 master top0
        ip address flush dev eth0",
    network: "10.9.10",
    ..PLAIN
};

pub(super) const BRIDGE: Topology = Topology {
    script: "ip address flush dev eth0; bridge_above eth0",
    rdma: "top0",
    network: "10.9.11",
    ..PLAIN
};

/// Waits until both links of [`LACP`] carry traffic.
const AGGREGATED: &str = "until [ $(cat /sys/class/net/top0/bonding/ad_num_ports) = 2 ]; do sleep 0.2; done";

/// Some drivers take the link down for it.
const TAG_IN_KERNEL: &str = "ethtool -K eth0 txvlan off rxvlan off
until [ $(cat /sys/class/net/eth0/carrier) = 1 ]; do sleep 0.2; done";

/// Tags by the NIC, then by the kernel.
pub(super) fn vlan(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    over(hosts, report, "vlan", VLAN)?;
    if hosts.both(TAG_IN_KERNEL).is_ok() {
        attached(hosts, report, "vlan", "dcqcn, tags by the kernel")?;
    } else {
        report.skip("vlan, tags by the kernel", "the NIC's offload is fixed");
    }
    Ok(())
}

pub(super) fn qinq(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    over(hosts, report, "qinq", QINQ)
}

pub(super) fn team(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    over(hosts, report, "team", TEAM)?;
    hosts.build(PLAIN)
}

pub(super) fn macvlan(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    over(hosts, report, "macvlan", MACVLAN)
}

/// soft-RoCE looks for its device by the interface that received the packet, and in a VRF that is the VRF.
///
/// See `rxe_udp_encap_recv` of drivers/infiniband/sw/rxe/rxe_net.c. On its port, the device receives nothing,
/// without `dcqcn` either. With the device on the VRF itself no packet arrived on 6.1.
pub(super) fn vrf(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(VRF)?;
    let off = measure(hosts, Tool::Write, 6)?;
    off.row(report, "vrf", "off");
    if off.goodput_bps < BOTTLENECK_BPS / 100.0 {
        report.skip("vrf", "soft-RoCE does not work in a VRF on this kernel, without dcqcn either");
        return Ok(());
    }
    attached(hosts, report, "vrf", "dcqcn").map(drop)
}

pub(super) fn bridge(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    over(hosts, report, "bridge", BRIDGE)
}

/// The tunnel hides RoCE from the bottleneck, so the sender marks at its own interface: 18 Mbit/s, 16 of payload.
pub(super) fn vxlan(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    const MARK: &str = "--set cp_enable=true --set wred.3.drain_rate=18mbit --set wred.3.kmin=10KB";
    hosts.build(VXLAN)?;
    let before = hosts.state()?;
    hosts.attach(SENDER, &format!("{LINK} {MARK}"))?;
    hosts.attach(RECEIVER, LINK)?;
    let measured = measure(hosts, Tool::Write, 16)?;
    measured.row(report, "vxlan", "dcqcn");
    measured.check(report, "vxlan", 16e6);
    hosts.detach_both()?;
    restored(hosts, report, "vxlan", &before)
}

/// The active NIC changes under traffic, on the sender and then on the receiver.
///
/// At a failover the kernel removes and restores the bond's GIDs, and soft-RoCE's QPs cannot send afterwards
/// (`Failed allocating skb`), without `dcqcn` either: that is the reference, and new QPs must work.
pub(super) fn bond(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.build(BOND)?;
    let before = hosts.state()?;
    let (off, off_lost) = failover(hosts, "eth1")?;
    off.row(report, "bond", &format!("off, failover, {off_lost} QPs stopped"));
    hosts.attach_both()?;
    let (on, on_lost) = failover(hosts, "eth0")?;
    on.row(report, "bond", &format!("dcqcn, failover, {on_lost} QPs stopped"));
    report.at_most("bond, failover: QPs that stopped, as without dcqcn", on_lost as f64, off_lost as f64);
    for port in ["eth0", "eth1"] {
        hosts.both(&format!("ip link set top0 type bond active_slave {port}"))?;
        let measured = measure(hosts, Tool::Write, 12)?;
        measured.row(report, "bond", &format!("dcqcn, by {port}"));
        measured.check(report, &format!("bond, by {port}"), BOTTLENECK_BPS);
    }
    hosts.both("ip link set top0 type bond active_slave eth0")?;
    hosts.detach_both()?;
    restored(hosts, report, "bond", &before)?;
    hosts.build(PLAIN)
}

/// The sender's first link fails under traffic: its partner notices after LACP's timeout of 3 s.
pub(super) fn lacp(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    hosts.host("links paired")?;
    let result = aggregated(hosts, report);
    hosts.host("links shared")?;
    result?;
    hosts.build(PLAIN)
}

fn aggregated(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    let fail = |hosts: &mut Hosts| hosts.host(&format!("carrier {SENDER} 5"));
    hosts.build(LACP)?;
    let before = hosts.state()?;
    let off = over_both(hosts, report, ("off, link lost for 5 s", 28), fail)?;
    hosts.both(AGGREGATED)?;
    hosts.attach_both()?;
    let on = over_both(hosts, report, ("dcqcn", 16), |_| Ok(()))?;
    // The flows may share a link.
    on.check(report, "lacp", BOTTLENECK_BPS);
    let failed = over_both(hosts, report, ("dcqcn, link lost for 5 s", 28), fail)?;
    let what = "lacp, link lost: QPs that broke, as without dcqcn";
    report.at_most(what, failed.broken as f64, off.broken as f64);
    hosts.both(AGGREGATED)?;
    hosts.detach_both()?;
    restored(hosts, report, "lacp", &before)
}

/// Traffic of four QPs over the links of [`LACP`], and an action during it.
fn over_both(
    hosts: &mut Hosts,
    report: &mut Report,
    (what, seconds): (&str, u32),
    action: impl FnOnce(&mut Hosts) -> Result<()>,
) -> Result<Measured> {
    let (before, sent) = (hosts.counts()?, sent_bytes(hosts)?);
    let traffic = hosts.traffic(&hosts.flows(Tool::Write, 4, seconds))?;
    thread::sleep(Duration::from_secs(4));
    action(hosts)?;
    let outcomes = hosts.outcomes(&traffic)?;
    let measured = Measured::new(&outcomes, hosts.counts()?.since(before));
    let now = sent_bytes(hosts)?;
    let [first, second] = [now[0] - sent[0], now[1] - sent[1]];
    let share = 100.0 * second as f64 / ((first + second) as f64).max(1.0);
    measured.row(report, "lacp", &format!("{what}, {share:.0} % by eth1"));
    Ok(measured)
}

/// Bytes sent by each port of the sender's bond.
fn sent_bytes(hosts: &mut Hosts) -> Result<[u64; 2]> {
    let text = hosts.sh(SENDER, "cd /sys/class/net; cat eth[01]/statistics/tx_bytes")?;
    let mut lines = text.lines();
    let mut next = || lines.next().and_then(|line| line.parse::<u64>().ok()).context("a counter");
    Ok([next()?, next()?])
}

/// Traffic during which both guests change to another NIC, and the number of QPs that ended or stopped.
fn failover(hosts: &mut Hosts, to: &str) -> Result<(Measured, usize)> {
    let counts = hosts.counts()?;
    let traffic = hosts.traffic(&hosts.flows(Tool::Write, 2, 20))?;
    for guest in [SENDER, RECEIVER] {
        thread::sleep(Duration::from_secs(4));
        hosts.sh(guest, &format!("ip link set top0 type bond active_slave {to}"))?;
    }
    let outcomes = hosts.outcomes(&traffic)?;
    let lost = outcomes.iter().filter(|outcome| outcome.goodput_bps.unwrap_or(0.0) == 0.0).count();
    Ok((Measured::new(&outcomes, hosts.counts()?.since(counts)), lost))
}
