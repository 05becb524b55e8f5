//! Interfaces and the counters of their NICs.

use std::collections::{BTreeMap, BTreeSet};

use dcqcn_common::params::Config;
use dcqcn_common::stats::Stat;

use super::{Finding, Severity, Snapshot, known, reattach, time};
use crate::doctor::adapters::{self, CounterMeaning};
use crate::doctor::snapshot::{HIDING, Link, MERGING, Rdma};

/// MTU for RoCE's largest payload, 4096 bytes, and its headers.
const MTU: u32 = 4_200;

/// Interfaces with RoCE traffic: attached ones and those of RDMA devices.
pub(super) fn used(snapshot: &Snapshot) -> impl Iterator<Item = &Link> {
    snapshot.links.iter().filter(|link| {
        snapshot.attached(&link.name).is_some() || snapshot.rdma_on(&link.name).next().is_some()
    })
}

pub(super) fn down(_: &Snapshot, link: &Link) -> Option<Finding> {
    let name = &link.name;
    let finding = Finding::error("link-down", format!("{name} is down"), "administratively down");
    (!link.up).then(|| finding.fix(format!("`ip link set {name} up`")))
}

pub(super) fn mtu_small(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let what = "the MTU is too small for RoCE payloads of 4096 bytes: more packets for the same data";
    let evidence = format!("mtu {}, {MTU} are needed", link.mtu);
    let fix = format!("`{}`, at both ends and on every switch between", raise_mtu(snapshot, link));
    (link.mtu < MTU).then(|| Finding::info("mtu-small", what, evidence).fix(fix))
}

/// Commands that raise an interface's MTU. The kernel refuses one above that of the interface below, less the
/// headers of a tunnel.
fn raise_mtu(snapshot: &Snapshot, link: &Link) -> String {
    /// Over IPv6, the longer ones.
    const VXLAN_BYTES: u32 = 70;
    const MAX_LEVELS: usize = 8;
    let (mut commands, mut at, mut mtu) = (Vec::new(), link, MTU);
    for _ in 0..MAX_LEVELS {
        commands.push(format!("ip link set {} mtu {mtu}", at.name));
        mtu += if at.kind.as_deref() == Some("vxlan") { VXLAN_BYTES } else { 0 };
        let lower = snapshot.links.iter().find(|other| at.lower == Some(other.index) && other.mtu < mtu);
        let Some(lower) = lower else { break };
        at = lower;
    }
    commands.reverse();
    commands.join(" && ")
}

/// `mtu-differs`: between the two ends of a wire, the sides of an inline attachment, the ports of a bridge.
pub(super) fn mtu_differs(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let inline = snapshot.attached(&link.name).and_then(|attached| attached.inline_peer.as_deref());
    let is_related = |other: &&Link| {
        let bridged = link.master.is_some() && other.master == link.master;
        other.index != link.index
            && (link.peer == Some(other.index) || bridged || inline == Some(other.name.as_str()))
    };
    let largest = snapshot.links.iter().filter(is_related).max_by_key(|other| other.mtu);
    let other = largest.filter(|other| other.mtu > link.mtu)?;
    let what = format!("{} has a larger MTU than {}: its longest frames are lost", other.name, link.name);
    let evidence = format!("{} {}, {} {}", link.name, link.mtu, other.name, other.mtu);
    let fix = format!("`ip link set {} mtu {}`", link.name, other.mtu);
    Some(Finding::warning("mtu-differs", what, evidence).fix(fix))
}

/// Interfaces of attachments: their own, the members of a bond, the interface below; with the parameters.
fn carrying(snapshot: &Snapshot) -> impl Iterator<Item = (Config, &Link)> {
    known(snapshot).flat_map(|reading| {
        let own = snapshot.link(reading.iface);
        let of = |link: &Link| {
            own.is_some_and(|own| {
                let is_bond = own.kind.as_deref() == Some("bond");
                link.index == own.index
                    || own.lower == Some(link.index)
                    || is_bond && link.master == Some(own.index)
            })
        };
        let links: Vec<&Link> = snapshot.links.iter().filter(|link| of(link)).collect();
        links.into_iter().map(move |link| (reading.config, link))
    })
}

/// `interrupts-delayed`: longer than the timers of the protocol.
pub(super) fn interrupts_delayed(snapshot: &Snapshot) -> Vec<Finding> {
    let delayed = carrying(snapshot).filter_map(|(config, link)| {
        let delay_ns = u64::from(link.rx_delay_us?) * 1_000;
        let (cnps_ns, increase_ns) =
            (config.scalars.min_time_between_cnps_ns, config.scalars.rpg_time_reset_ns);
        let (severity, what) = if delay_ns > increase_ns.max(cnps_ns) {
            (Severity::Warning, "rates rise again before a delayed CNP cuts them")
        } else if delay_ns > cnps_ns {
            (Severity::Info, "marks and CNPs wait longer than the time between CNPs")
        } else {
            return None;
        };
        let evidence = format!(
            "rx-usecs of {}: {}; min_time_between_cnps = {}, rpg_time_reset = {}",
            link.name,
            time(delay_ns),
            time(cnps_ns),
            time(increase_ns)
        );
        let fix = format!("`ethtool -C {} adaptive-rx off rx-usecs 10`", link.name);
        Some(Finding::new("interrupts-delayed", severity, what, evidence).on(&link.name).fix(fix))
    });
    delayed.collect()
}

/// `udp-merged`, `packets-bypass`: features that change which packets the programs receive.
pub(super) fn features(snapshot: &Snapshot) -> Vec<Finding> {
    const UDP_MERGED: &str = "received RoCE packets can be merged: they are paced as a whole, and of a list only the \
                              first is marked";
    const BYPASS: &str =
        "the NIC may forward packets past the programs: they are not counted, marked or paced";
    let mut findings = Vec::new();
    for (_, link) in carrying(snapshot) {
        for (names, id, what) in [(MERGING, "udp-merged", UDP_MERGED), (HIDING, "packets-bypass", BYPASS)] {
            let on = link.features.iter().map(String::as_str).filter(|name| names.contains(name));
            let on: Vec<&str> = on.collect();
            if on.is_empty() {
                continue;
            }
            let evidence = format!("`ethtool -k {}`: {} on", link.name, on.join(", "));
            let fix = format!("`ethtool -K {} {} off`", link.name, on.join(" off "));
            let severity = if on.contains(&"rx-gro-list") { Severity::Warning } else { Severity::Info };
            findings.push(Finding::new(id, severity, what, evidence).on(&link.name).fix(fix));
        }
    }
    findings
}

/// `xdp-queues`: of inline attachments, whose packets a driver transmits from a queue of the CPU that received them.
pub(super) fn xdp_queues(snapshot: &Snapshot) -> Vec<Finding> {
    let inline = snapshot.attachments.iter().filter(|attached| attached.xdp_mode.starts_with("driver"));
    let ports = inline.filter_map(|attached| {
        let iface = &attached.iface;
        Some([(iface, iface), (iface, attached.inline_peer.as_ref()?)])
    });
    let missing = |(iface, port): (&String, &String)| missing_queues(snapshot, snapshot.link(port)?, iface);
    ports.flatten().filter_map(missing).collect()
}

/// For a port of the inline attachment to `iface`.
fn missing_queues(snapshot: &Snapshot, link: &Link, iface: &str) -> Option<Finding> {
    const ID: &str = "xdp-queues";
    let ([active, most], name) = (link.queue_pairs?, &link.name);
    let finding = match link.driver.as_deref()? {
        // Adds one for each possible CPU, or none if not all are free (`virtnet_xdp_set`). They count as
        // active pairs, but the stack has only their receive queues.
        "virtio_net" => {
            let ([rx, tx], cpus) = (link.queues?, snapshot.host.cpu_ids?);
            if rx != tx {
                return None;
            }
            let what = "CPUs share transmit queues for redirected packets, behind a lock";
            let evidence = format!(
                "`ethtool -l {name}`: {active} of {most} active, none for XDP (/sys/class/net/{name}/queues: {rx} rx, \
                 {tx} tx); {cpus} CPUs are possible"
            );
            let fix = if most > cpus {
                let active = most - cpus;
                // The driver rejects changes while it has a program.
                format!("`dcqcn detach {iface}`, `ethtool -L {name} combined {active}`, then attach again")
            } else {
                format!("give the virtual NIC {} pairs of queues", active.saturating_add(cpus))
            };
            Finding::info(ID, what, evidence).fix(fix)
        }
        // Have one for each pair, selected by the CPU's number (`i40e_xdp_xmit`, `mlx5e_xdp_xmit`).
        "i40e" | "mlx5_core" => {
            let last = *snapshot.host.numa_nodes.values().flatten().max()?;
            if last < active {
                return None;
            }
            let what = "redirected packets of CPUs without a transmit queue are dropped";
            let evidence =
                format!("`ethtool -l {name}`: {active} of {most} active; the last online CPU is {last}");
            let fix = if most > last {
                format!("`ethtool -L {name} combined {}`", last + 1)
            } else {
                format!("{} with `--xdp-mode skb`", reattach(iface))
            };
            Finding::warning(ID, what, evidence).fix(fix)
        }
        _ => return None,
    };
    Some(finding.on(name))
}

fn is_pause(name: &str) -> bool {
    adapters::means(name, CounterMeaning::Pause)
}

fn is_link_pause(name: &str) -> bool {
    adapters::means(name, CounterMeaning::LinkPause)
}

fn is_any_pause(name: &str) -> bool {
    is_pause(name) || is_link_pause(name)
}

/// `counters-not-read`: an adapter without counters may hide problems.
pub(super) fn counters_not_read(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let driver = link.driver.as_deref().filter(|_| link.kind.is_none())?;
    let hardware: Vec<_> =
        snapshot.rdma_on(&link.name).filter(|device| device.hardware == Some(true)).collect();
    if adapters::PARAVIRTUAL.contains(&driver) && hardware.is_empty() {
        return None;
    }
    let is_cnp = |name: &String| {
        [CounterMeaning::CnpSent, CounterMeaning::CnpHandled]
            .into_iter()
            .any(|meaning| adapters::means(name, meaning))
    };
    let counts_cnps = hardware.is_empty() || hardware.iter().any(|device| device.after.keys().any(is_cnp));
    let counts_pauses = link.counts(is_pause) || adapters::knows_pauses(driver) && link.counts(is_link_pause);
    let missing = match (counts_pauses, counts_cnps) {
        (true, true) => return None,
        (false, true) => "pauses",
        (true, false) => "CNPs",
        (false, false) => "pauses and CNPs",
    };
    let known = if adapters::knows_pauses(driver) || adapters::of_driver(driver).is_some() {
        "the driver does not report them here"
    } else {
        "not read for this driver"
    };
    let what = format!("{missing} of {driver} are not counted, so problems may go unnoticed");
    let evidence = format!("`ethtool -S {}` and hw_counters: {known}", link.name);
    let fix = "read the adapter's own tool, and the counters of the switch at the other end";
    Some(Finding::info("counters-not-read", what, evidence).fix(fix))
}

fn listed(counters: &BTreeMap<String, u64>) -> String {
    counters.iter().map(|(name, grown)| format!("{name} +{grown}")).collect::<Vec<_>>().join(", ")
}

/// CE marks of an interface between the two readings: seen or made by the programs, or counted by its adapter.
fn marks(snapshot: &Snapshot, iface: &str) -> u64 {
    let ours = snapshot.attached(iface).and_then(|attached| {
        let seen = attached.seen(snapshot).filter(|seen| seen.is_between_readings)?;
        Some(seen.all(Stat::CpEcnMarked) + seen.all(Stat::NpEcnMarked))
    });
    let adapters = snapshot.rdma_on(iface).map(|device| device.grown(CounterMeaning::EcnMarked).0);
    let of_link =
        snapshot.link(iface).map(|link| link.grown(|name| adapters::means(name, CounterMeaning::EcnMarked)));
    let of_link = of_link.into_iter().flat_map(|counters| counters.into_values());
    adapters.chain(of_link).fold(ours.unwrap_or(0), u64::saturating_add)
}

/// Whether an interface had RoCE between the two readings, by the programs or the counters of its adapter.
fn has_roce(snapshot: &Snapshot, iface: &str) -> bool {
    use CounterMeaning::{CnpHandled, CnpIgnored, CnpSent, Packets};
    let seen = snapshot.attached(iface).and_then(|attached| attached.seen(snapshot));
    let counted = |device: &Rdma| {
        [Packets, CnpSent, CnpHandled, CnpIgnored].into_iter().any(|meaning| device.grown(meaning).0 != 0)
    };
    seen.is_some_and(|seen| seen.is_between_readings)
        || marks(snapshot, iface) != 0
        || snapshot.rdma_on(iface).any(counted)
}

/// PFC frames that the programs on an interface saw between the two readings.
fn own_pauses(snapshot: &Snapshot, iface: &str) -> BTreeMap<String, u64> {
    let seen = snapshot.attached(iface).and_then(|attached| attached.seen(snapshot));
    let seen = seen.filter(|seen| seen.is_between_readings);
    let counted = seen.into_iter().flat_map(|seen| seen.counts.ingress.into_iter().chain(seen.counts.egress));
    counted.filter(|(name, frames)| is_pause(name) && *frames != 0).collect()
}

/// `pause-before-marks`: ECN should act before PFC. Interfaces without RoCE pause for other reasons.
pub(super) fn pause_before_marks(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let iface = &link.name;
    // The NIC consumes the frames it acts on; other frames may be counted by both.
    let [driver, own] = [link.grown(is_any_pause), own_pauses(snapshot, iface)].map(|counters| {
        // A frame counts for each priority that it names, and in totals.
        let most = |direction: &str| {
            counters.iter().filter(|(name, _)| name.contains(direction)).map(|(_, grown)| *grown).max()
        };
        (most("rx").unwrap_or(0).saturating_add(most("tx").unwrap_or(0)), counters)
    });
    let (pauses, counters) = if own.0 > driver.0 { own } else { driver };
    let marks = marks(snapshot, iface);
    // Any traffic causes pauses of the link, but only RoCE is marked.
    let is_of_roce = counters.keys().any(|name| is_pause(name)) || has_roce(snapshot, iface);
    if pauses <= marks || !is_of_roce {
        return None;
    }
    let what = "the link is paused more often than packets are marked: marking starts too late";
    let evidence = format!("{} and {marks} CE marks in {}", listed(&counters), snapshot.window());
    let mut fix = if snapshot.attached(iface).is_some() {
        format!(
            "lower the thresholds of the congestion point, as in `dcqcn set {iface} wred.3.kmin=50KB wred.3.kmax=200KB`"
        )
    } else {
        "lower Kmin and Kmax on the switch (SONiC: `ecnconfig -p PROFILE -gmin 150000 -gmax 1500000`)"
            .to_owned()
    };
    if counters.keys().any(|name| is_link_pause(name)) {
        fix += &format!(
            "; if RoCE is in priority 3, pause only that, first at both ends: `dcb pfc set dev {iface} prio-pfc 3:on`, \
             then `ethtool -A {iface} rx off tx off`"
        );
    }
    Some(Finding::warning("pause-before-marks", what, evidence).fix(fix))
}

pub(super) fn priority_discards(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let discards = link.grown(|name| adapters::means(name, CounterMeaning::Discard));
    let what = "the NIC discards packets: go-back-N retransmits many of them";
    let evidence = format!("{} in {}", listed(&discards), snapshot.window());
    // Other names have the number of a queue.
    let priorities: Option<BTreeSet<&str>> =
        discards.keys().map(|name| name.split_once("_prio")?.1.get(..1)).collect();
    let mut fix = "lower Kmin and Kmax at the congestion point; ".to_owned();
    // Ordinary traffic has priority 0.
    fix += &match priorities.map(|mut priorities| (priorities.remove("0"), priorities)) {
        Some((true, others)) if others.is_empty() => {
            "send RoCE in its own priority instead of 0, which PFC would pause for all other traffic"
                .to_owned()
        }
        Some((_, others)) => {
            let on = others.iter().map(|priority| format!("{priority}:on")).collect::<Vec<_>>().join(" ");
            format!("enable PFC (`dcb pfc set dev {} prio-pfc {on}`) for the remaining excess", link.name)
        }
        None => format!(
            "enable PFC for RoCE's priority, other than 0 (`dcb pfc set dev {} prio-pfc PRIO:on`), for the remaining \
             excess",
            link.name
        ),
    };
    (!discards.is_empty()).then(|| Finding::error("priority-discards", what, evidence).fix(fix))
}
