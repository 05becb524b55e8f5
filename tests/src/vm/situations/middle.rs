//! A third guest between both, which forwards, and where `dcqcn` marks as a switch.

use super::super::hosts::Topology;
use super::incast::{measure, unchanged};
use crate::vm::prelude::*;

/// Seconds of traffic without `dcqcn`, and with it.
const OFF_S: u32 = 8;
const ON_S: u32 = 16;
/// Rate of the third guest's port, `$RATE` in its scripts.
///
/// Below the machine's port, which its packets pass next, and low enough for three emulated guests on two CPUs.
const RATE_BPS: u32 = 10_000_000;
/// Minimum share of marks that arrive: the port's queue may drop marked packets.
const MIN_MARKS: f64 = 0.9;

const RESET: &str = "
for iface in eth0 eth1; do
    dcqcn detach $iface --interrupt >/dev/null 2>&1 || true
    tc qdisc delete dev $iface root 2>/dev/null || true
    ip address flush dev $iface
    ip link set $iface up
done";
/// As the machine's port (`tests/vm/src/bottleneck.rs`).
const ATTACH: &str = "dcqcn attach eth1 --role switch --profile lab --set wred.3.kmin=10KB";
const STATE: &str =
    "for iface in eth0 eth1; do ethtool -k $iface; ip link show $iface; tc -d qdisc show dev $iface; done";

/// Each guest is alone with the router in a subnet of two addresses.
const ROUTED: Topology = Topology {
    script: "ip address flush dev eth0
        ip address add 10.9.20.$N/31 dev eth0
        ip route add 10.9.20.0/30 via 10.9.20.$((3 * N - 3))",
    network: "10.9.20",
    prefix_len: 31,
    ..PLAIN
};
const ROUTER: &str = "
ip address add 10.9.20.0/31 dev eth0
ip address add 10.9.20.3/31 dev eth1
echo 1 > /proc/sys/net/ipv4/ip_forward
modprobe sch_tbf
tc qdisc replace dev eth1 root handle 1: tbf rate $RATE burst 64000 limit 102400";

pub(super) fn router(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    between(hosts, report, "router", |hosts, report| forwarded(hosts, report, "router", ROUTER, ROUTED))
}

/// Open vSwitch removes other root qdiscs from its ports. Its queue has the burst of the router's shaper, in bits.
const OVS: &str = "
modprobe sch_htb
mkdir -p /run/openvswitch
ovsdb-tool create /run/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server /run/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock --pidfile --detach
ovs-vsctl --no-wait init
ovs-vswitchd --pidfile --detach
ovs-vsctl --timeout=60 add-br ovs0 -- add-port ovs0 eth0 -- add-port ovs0 eth1 -- set port eth1 qos=@port \
    -- --id=@port create qos type=linux-htb other-config:max-rate=$RATE queues:0=@queue \
    -- --id=@queue create queue other-config:min-rate=$RATE other-config:max-rate=$RATE \
        other-config:burst=512000";

/// A bridge of Open vSwitch with the NICs as system ports.
pub(super) fn ovs(hosts: &mut Hosts, report: &mut Report) -> Result<()> {
    between(hosts, report, "ovs", |hosts, report| {
        if hosts.sh(MIDDLE, "command -v ovs-vswitchd && modprobe openvswitch").is_err() {
            report.skip("ovs", "the third guest lacks Open vSwitch or its kernel module");
            return Ok(());
        }
        forwarded(hosts, report, "ovs", OVS, PLAIN)
    })
}

/// Connects both guests by the third one for a situation. In the meantime, the machine does not mark.
fn between(
    hosts: &mut Hosts,
    report: &mut Report,
    name: &str,
    run: impl FnOnce(&mut Hosts, &mut Report) -> Result<()>,
) -> Result<()> {
    if let Err(error) = hosts.host("links middle") {
        report.skip(name, &format!("{error:#}"));
        return Ok(());
    }
    hosts.host("marking off")?;
    let result = hosts.connect_middle().and_then(|()| run(hosts, report));
    hosts.host("marking on")?;
    hosts.host("links shared")?;
    result?;
    hosts.build(PLAIN)
}

/// Two QPs through the third guest, without `dcqcn`, and with it in all three.
fn forwarded(
    hosts: &mut Hosts,
    report: &mut Report,
    name: &str,
    script: &str,
    topology: Topology,
) -> Result<()> {
    hosts.sh(MIDDLE, &format!("RATE={RATE_BPS}{RESET}{script}"))?;
    hosts.build(topology)?;
    let off = measure(hosts, Tool::Write, OFF_S)?;
    off.row(report, name, "off");
    let before = states(hosts)?;
    hosts.sh(MIDDLE, ATTACH)?;
    hosts.attach_both()?;
    let on = measure(hosts, Tool::Write, ON_S)?;
    let counters: Value = serde_json::from_str(&hosts.sh(MIDDLE, "dcqcn --json counters eth1")?)?;
    let marked = count(&counters, "cp_ecn_marked_packets")?;
    on.row(report, name, &format!("dcqcn, {marked} packets marked in the third guest"));
    on.check(report, name, f64::from(RATE_BPS));
    let received = on.counts.marked as f64 / marked.max(1) as f64;
    report.at_least(&format!("{name}: marks received, of those of the third guest"), received, MIN_MARKS);
    hosts.detach_both()?;
    hosts.sh(MIDDLE, "dcqcn detach eth1")?;
    unchanged(report, name, &before, &states(hosts)?);
    Ok(())
}

/// State of the interfaces of all three guests.
fn states(hosts: &mut Hosts) -> Result<Vec<String>> {
    let mut states = hosts.state()?;
    states.push(hosts.sh(MIDDLE, STATE)?);
    Ok(states)
}
