//! Interfaces and the counters of their NICs.

use std::collections::BTreeMap;

use dcqcn_common::params::Config;
use dcqcn_common::stats::Stat;

use super::{Finding, Snapshot, known, time};
use crate::doctor::adapters::{self, CounterMeaning};
use crate::doctor::snapshot::{HIDING, Link, MERGING};

/// MTU for RoCE's largest payload, 4096 bytes, and its headers.
const MTU: u32 = 4_200;

/// Interfaces with RoCE traffic: attached ones and those of RDMA devices.
fn used(snapshot: &Snapshot) -> impl Iterator<Item = &Link> {
    snapshot.links.iter().filter(|link| {
        snapshot.attached(&link.name).is_some() || snapshot.rdma_on(&link.name).next().is_some()
    })
}

/// `link-down`.
pub(super) fn down(snapshot: &Snapshot) -> Vec<Finding> {
    let down = used(snapshot).filter(|link| !link.up);
    down.map(|link| {
        Finding::error("link-down", format!("{} is down", link.name), "administratively down")
            .on(&link.name)
            .fix(format!("`ip link set {} up`", link.name))
    })
    .collect()
}

/// `mtu-small`.
pub(super) fn mtu_small(snapshot: &Snapshot) -> Vec<Finding> {
    let small = used(snapshot).filter(|link| link.mtu < MTU);
    small
        .map(|link| {
            let what = "the MTU is too small for RoCE payloads of 4096 bytes: more packets for the same data";
            Finding::info("mtu-small", what, format!("mtu {}, {MTU} are needed", link.mtu))
                .on(&link.name)
                .fix(format!("`{}`, at both ends and on every switch between", raise_mtu(snapshot, link)))
        })
        .collect()
}

/// Commands that raise an interface's MTU. The kernel refuses one above that of the interface below, less the headers of
/// a tunnel.
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
pub(super) fn mtu_differs(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for link in used(snapshot) {
        let inline = snapshot.attached(&link.name).and_then(|attached| attached.inline_peer.as_deref());
        let related = snapshot.links.iter().filter(|other| {
            let bridged = link.master.is_some() && other.master == link.master;
            other.index != link.index
                && (link.peer == Some(other.index) || bridged || inline == Some(other.name.as_str()))
        });
        for other in related.filter(|other| other.mtu > link.mtu) {
            let what =
                format!("{} has a larger MTU than {}: its longest frames are lost", other.name, link.name);
            findings.push(
                Finding::warning(
                    "mtu-differs",
                    what,
                    format!("{} {}, {} {}", link.name, link.mtu, other.name, other.mtu),
                )
                .on(&link.name)
                .fix(format!("`ip link set {} mtu {}`", link.name, other.mtu)),
            );
        }
    }
    findings
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
        let scalars = &config.scalars;
        let (cnps_ns, increase_ns) = (scalars.min_time_between_cnps_ns, scalars.rpg_time_reset_ns);
        let evidence = format!(
            "rx-usecs of {}: {}; min_time_between_cnps {}, rpg_time_reset {}",
            link.name,
            time(delay_ns),
            time(cnps_ns),
            time(increase_ns)
        );
        let finding = if delay_ns > increase_ns.max(cnps_ns) {
            Finding::warning(
                "interrupts-delayed",
                "rates rise again before a delayed CNP cuts them",
                evidence,
            )
        } else if delay_ns > cnps_ns {
            Finding::info(
                "interrupts-delayed",
                "marks and CNPs wait longer than the time between CNPs",
                evidence,
            )
        } else {
            return None;
        };
        Some(finding.on(&link.name).fix(format!("`ethtool -C {} adaptive-rx off rx-usecs 10`", link.name)))
    });
    delayed.collect()
}

/// `udp-merged`, `packets-bypass`: features that change which packets the programs receive.
pub(super) fn features(snapshot: &Snapshot) -> Vec<Finding> {
    let on = |link: &Link, names: &[&str]| -> Vec<String> {
        link.features.iter().filter(|name| names.contains(&name.as_str())).cloned().collect()
    };
    let mut findings = Vec::new();
    for (_, link) in carrying(snapshot) {
        for (names, id, what) in [
            (
                MERGING,
                "udp-merged",
                "received RoCE packets can be merged: they are paced as a whole, and of a list only the first is marked",
            ),
            (
                HIDING,
                "packets-bypass",
                "the NIC may forward packets past the programs: they are not counted, marked or paced",
            ),
        ] {
            let on = on(link, names);
            if on.is_empty() {
                continue;
            }
            let evidence = format!("`ethtool -k {}`: {} on", link.name, on.join(", "));
            let fix = format!("`ethtool -K {} {} off`", link.name, on.join(" off "));
            let is_list = on.iter().any(|name| name == "rx-gro-list");
            let finding = if is_list { Finding::warning } else { Finding::info };
            findings.push(finding(id, what, evidence).on(&link.name).fix(fix));
        }
    }
    findings
}

fn is_pause(name: &str) -> bool {
    adapters::means(name, CounterMeaning::Pause)
}

fn is_discard(name: &str) -> bool {
    adapters::means(name, CounterMeaning::Discard)
}

/// `counters-not-read`: an adapter without counters may hide problems.
pub(super) fn counters_not_read(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for link in used(snapshot) {
        let Some(driver) = link.driver.as_deref() else { continue };
        let hardware: Vec<_> =
            snapshot.rdma_on(&link.name).filter(|device| device.hardware == Some(true)).collect();
        if link.kind.is_some() || adapters::is_paravirtual(driver) && hardware.is_empty() {
            continue;
        }
        let is_cnp = |name: &str| {
            [CounterMeaning::CnpSent, CounterMeaning::CnpHandled]
                .into_iter()
                .any(|meaning| adapters::means(name, meaning))
        };
        let mut missing = Vec::new();
        if !link.counts(is_pause) {
            missing.push("pauses");
        }
        if !hardware.is_empty() && !hardware.iter().any(|device| device.after.keys().any(|name| is_cnp(name)))
        {
            missing.push("CNPs");
        }
        if missing.is_empty() {
            continue;
        }
        let known = match adapters::of_driver(driver) {
            Some(_) => "the driver does not report them here",
            None => "not read for this driver",
        };
        let what =
            format!("{} of {driver} are not counted, so problems may go unnoticed", missing.join(" and "));
        let evidence = format!("`ethtool -S {}` and hw_counters: {known}", link.name);
        findings.push(
            Finding::info("counters-not-read", what, evidence)
                .on(&link.name)
                .fix("read the adapter's own tool, and the counters of the switch at the other end"),
        );
    }
    findings
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

/// PFC frames that the programs on an interface saw between the two readings.
fn own_pauses(snapshot: &Snapshot, iface: &str) -> BTreeMap<String, u64> {
    let seen = snapshot
        .attached(iface)
        .and_then(|attached| attached.seen(snapshot))
        .filter(|seen| seen.is_between_readings);
    let counted = seen.into_iter().flat_map(|seen| seen.counts.ingress.into_iter().chain(seen.counts.egress));
    counted.filter(|(name, frames)| is_pause(name) && *frames != 0).collect()
}

/// `pause-before-marks`: ECN should act before PFC.
pub(super) fn pause_before_marks(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Interfaces without RoCE pause for other reasons.
    for link in used(snapshot) {
        // The NIC consumes the frames it acts on; other frames may be counted by both.
        let [driver, own] = [link.grown(is_pause), own_pauses(snapshot, &link.name)];
        let [driver_sum, own_sum] =
            [&driver, &own].map(|of| of.values().copied().fold(0, u64::saturating_add));
        let (pauses, pause) = if own_sum > driver_sum { (own, own_sum) } else { (driver, driver_sum) };
        let marks = marks(snapshot, &link.name);
        if pause <= marks {
            continue;
        }
        let iface = &link.name;
        let what = "PFC pauses more often than ECN marks: marking starts too late";
        let evidence = format!("{} and {marks} CE marks in {}", listed(&pauses), snapshot.window());
        let fix = if snapshot.attached(iface).is_some() {
            format!(
                "lower the thresholds of the congestion point, as in `dcqcn set {iface} wred.3.kmin=50KB wred.3.kmax=200KB`"
            )
        } else {
            "lower Kmin and Kmax on the switch (SONiC: `ecnconfig -p PROFILE -gmin 150000 -gmax 1500000`)"
                .to_owned()
        };
        findings.push(Finding::warning("pause-before-marks", what, evidence).on(iface).fix(fix));
    }
    findings
}

/// `priority-discards`.
pub(super) fn priority_discards(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for link in used(snapshot) {
        let discards = link.grown(is_discard);
        if discards.is_empty() {
            continue;
        }
        let what = "the NIC discards packets: go-back-N retransmits many of them";
        let evidence = format!("{} in {}", listed(&discards), snapshot.window());
        findings.push(Finding::error("priority-discards", what, evidence).on(&link.name).fix(format!(
            "lower Kmin and Kmax at the congestion point; enable PFC for that priority (`mlnx_qos -i {} --pfc 0,0,0,1,0,0,0,0`) \
             for the remaining excess",
            link.name
        )));
    }
    findings
}
