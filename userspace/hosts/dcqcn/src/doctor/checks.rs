//! The checks: pure functions of a snapshot.

mod attached;
mod host;
mod links;
mod pacer;
mod pauses;
mod points;
mod rdma;
#[cfg(test)]
pub(super) mod tests;
mod thresholds;
mod traffic;

use dcqcn_common::params::{Config, Quantity, Unit};

use super::snapshot::{Attached, Link, Observed, Snapshot};
use super::{Finding, Severity};
use thresholds::MarkingClass;

/// A check, by what it examines.
enum Check {
    /// The whole snapshot.
    Host(fn(&Snapshot) -> Vec<Finding>),
    /// An attachment.
    One(fn(&Reading<'_>) -> Option<Finding>),
    /// An attachment, with any number of findings.
    Many(fn(&Reading<'_>) -> Vec<Finding>),
    /// A class that marks packets.
    Class(fn(&MarkingClass<'_>) -> Option<Finding>),
}

use Check::{Class, Host, Many, One};

const ALL: &[Check] = &[
    Host(attached::attached),
    Host(attached::alive),
    Host(attached::programs),
    Host(attached::earlier_programs),
    Host(attached::interpreted),
    Host(attached::generic_xdp),
    One(traffic::roce_seen),
    One(traffic::unparsed_headers),
    Host(traffic::in_tunnel),
    One(traffic::other_transport),
    Many(traffic::not_ect),
    One(traffic::sent_as_ce),
    One(traffic::dscp_without_class),
    Host(traffic::dscp_by_direction),
    One(traffic::cnp_class),
    One(traffic::cnp_dscp),
    Many(traffic::class_not_marked),
    Many(points::switched_off),
    One(points::marks_unanswered),
    One(points::cnps_failed),
    One(points::cnps_lost),
    One(points::cnps_hinted),
    One(points::cnps_unpaired),
    One(points::cnps_invalid),
    One(points::cnps_without_cut),
    Host(points::port_unanswered),
    One(pacer::none),
    One(pacer::replaced),
    One(pacer::queues_replaced),
    One(pacer::fq_limits),
    One(pacer::fq_orphans),
    One(pacer::fq_horizon),
    One(pacer::fq_drops),
    One(pacer::fq_waits),
    One(pacer::without_daemon),
    One(pacer::horizon),
    One(pacer::tables),
    Many(pacer::lost),
    Many(thresholds::rates),
    One(thresholds::shaper),
    Class(thresholds::frames),
    Class(thresholds::bandwidth_delay),
    Class(thresholds::far_apart),
    Class(thresholds::fixed_point),
    Class(thresholds::oscillation),
    Many(thresholds::timers),
    Host(links::down),
    Host(links::mtu_small),
    Host(links::mtu_differs),
    Host(links::interrupts_delayed),
    Host(links::features),
    Host(links::pause_before_marks),
    Host(links::priority_discards),
    Host(links::counters_not_read),
    One(pauses::without_watchdog),
    One(pauses::without_effect),
    Host(rdma::without_role),
    Host(rdma::elsewhere),
    Host(rdma::bypass),
    Host(rdma::traffic_class),
    Host(rdma::timeouts),
    Host(rdma::adapter_notification),
    Host(rdma::adapter_reaction),
    Host(host::softnet),
    Host(host::kernel),
    Host(host::programs),
    Host(host::pacers),
    Host(host::jit),
    Host(host::idle_states),
    Host(host::interrupts),
    Host(host::unread),
];

/// All findings of the checks, in their order.
pub(super) fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let readings: Vec<Reading<'_>> = known(snapshot).collect();
    let of = |check: &Check, reading: &Reading<'_>| -> Vec<Finding> {
        let findings = match check {
            Host(_) => Vec::new(),
            One(check) => check(reading).into_iter().collect(),
            Many(check) => check(reading),
            Class(check) => MarkingClass::all(reading).filter_map(|class| check(&class)).collect(),
        };
        findings.into_iter().map(|finding| finding.on(reading.iface)).collect()
    };
    let all = ALL.iter().flat_map(|check| match check {
        Host(check) => check(snapshot),
        _ => readings.iter().flat_map(|reading| of(check, reading)).collect(),
    });
    all.collect()
}

/// An attachment with its parameters and counters.
struct Reading<'a> {
    snapshot: &'a Snapshot,
    attached: &'a Attached,
    iface: &'a str,
    config: Config,
    seen: Observed,
}

/// Attachments whose parameters and counters could be read.
fn known(snapshot: &Snapshot) -> impl Iterator<Item = Reading<'_>> {
    snapshot.attachments.iter().filter(|attached| attached.alive).filter_map(|attached| {
        let (config, seen) = (attached.config()?, attached.seen(snapshot)?);
        Some(Reading { snapshot, attached, iface: &attached.iface, config, seen })
    })
}

impl<'a> Reading<'a> {
    fn link(&self) -> Option<&'a Link> {
        self.snapshot.link(self.iface)
    }

    /// Classes selected by some DSCP, other than the default class (that of DSCP 0).
    fn chosen_classes(&self) -> Vec<usize> {
        let rest = self.class_of(0);
        let mut classes: Vec<usize> = self.config.dscp_to_tc.iter().map(|tc| usize::from(*tc)).collect();
        classes.sort_unstable();
        classes.dedup();
        classes.retain(|tc| *tc != rest);
        classes
    }

    fn class_of(&self, dscp: usize) -> usize {
        self.config.dscp_to_tc.get(dscp).copied().map_or(0, usize::from)
    }

    fn cnp_class(&self) -> usize {
        self.class_of(self.config.scalars.cnp_dscp as usize)
    }

    /// Classes that mark and had packets; if none had, classes selected by DSCP.
    fn marking_classes(&self) -> Vec<usize> {
        let marks = |tc: &usize| self.config.wred.get(*tc).is_some_and(|wred| wred.ecn != 0);
        let used: Vec<usize> = (0..self.config.wred.len())
            .filter(marks)
            .filter(|tc| self.seen.class(*tc).packets != 0)
            .collect();
        let chosen = || self.chosen_classes().into_iter().filter(marks).filter(|tc| *tc != self.cnp_class());
        if used.is_empty() { chosen().collect() } else { used }
    }

    /// Traffic class octet for RoCE data: a DSCP with its own class, and ECT(0).
    fn roce_tos(&self) -> u8 {
        const USUAL: usize = 26;
        let chosen = |dscp: &usize| {
            let tc = self.class_of(*dscp);
            tc != self.class_of(0) && tc != self.cnp_class()
        };
        let dscp = Some(USUAL).filter(&chosen).or_else(|| (0..self.config.dscp_to_tc.len()).find(chosen));
        (dscp.unwrap_or(USUAL) as u8) << 2 | 0b10
    }
}

/// How to make the devices on `iface`, if known, send RoCE with traffic class `tos`.
fn set_tos(snapshot: &Snapshot, iface: &str, tos: u8) -> String {
    let entry = |device: &str| {
        let dir = format!("/sys/kernel/config/rdma_cm/{device}");
        format!("`mkdir -p {dir} && echo {tos} > {dir}/ports/1/default_roce_tos`")
    };
    let devices: Vec<String> = snapshot.rdma_on(iface).map(|device| entry(&device.name)).collect();
    let cm =
        if devices.is_empty() { format!("on the sender {}", entry("DEVICE")) } else { devices.join(", ") };
    let soft = snapshot.rdma_on(iface).any(|device| device.hardware == Some(false));
    let here = if soft && known(snapshot).any(|known| known.iface == iface) {
        format!("; or `dcqcn set {iface} ect_enable=on roce_dscp={}`, for all packets of soft-RoCE", tos >> 2)
    } else {
        String::new()
    };
    format!(
        "{cm} for new connections of rdma_cm; others set traffic class {tos} themselves (perftest: `--tclass={tos}`){here}"
    )
}

fn rate(bps: u64) -> String {
    Quantity(bps, Unit::BitsPerSecond).to_string()
}

fn size(bytes: u64) -> String {
    Quantity(bytes, Unit::Bytes).to_string()
}

fn time(ns: u64) -> String {
    Quantity(ns, Unit::Nanoseconds).to_string()
}

fn ppm(ppm: u64) -> String {
    Quantity(ppm, Unit::PartsPerMillion).to_string()
}

/// Transmission time of `bytes` at `rate_bps`, ns.
fn transmission_ns(bytes: u64, rate_bps: u64) -> u64 {
    let ns = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate_bps.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}
