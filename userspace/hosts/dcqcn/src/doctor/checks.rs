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

use super::snapshot::{Attached, Observed, Snapshot};
use super::{Finding, Severity};

type Check = fn(&Snapshot) -> Vec<Finding>;

pub(super) const ALL: &[Check] = &[
    attached::attached,
    attached::alive,
    attached::programs,
    attached::earlier_programs,
    attached::interpreted,
    attached::generic_xdp,
    traffic::roce_seen,
    traffic::unparsed_headers,
    traffic::in_tunnel,
    traffic::other_transport,
    traffic::not_ect,
    traffic::sent_as_ce,
    traffic::dscp_without_class,
    traffic::dscp_by_direction,
    traffic::cnp_class,
    traffic::cnp_dscp,
    traffic::class_not_marked,
    points::switched_off,
    points::marks_unanswered,
    points::cnps_failed,
    points::cnps_lost,
    points::cnps_hinted,
    points::cnps_unpaired,
    points::cnps_invalid,
    points::cnps_without_cut,
    points::port_unanswered,
    pacer::none,
    pacer::replaced,
    pacer::queues_replaced,
    pacer::fq_limits,
    pacer::fq_orphans,
    pacer::fq_horizon,
    pacer::fq_drops,
    pacer::fq_waits,
    pacer::without_daemon,
    pacer::horizon,
    pacer::tables,
    pacer::lost,
    thresholds::rates,
    thresholds::shaper,
    thresholds::frames,
    thresholds::bandwidth_delay,
    thresholds::far_apart,
    thresholds::fixed_point,
    thresholds::oscillation,
    thresholds::timers,
    links::down,
    links::mtu_small,
    links::mtu_differs,
    links::interrupts_delayed,
    links::features,
    links::pause_before_marks,
    links::priority_discards,
    links::counters_not_read,
    pauses::without_watchdog,
    pauses::without_effect,
    rdma::without_role,
    rdma::elsewhere,
    rdma::bypass,
    rdma::traffic_class,
    rdma::timeouts,
    rdma::adapter_notification,
    rdma::adapter_reaction,
    host::softnet,
    host::kernel,
    host::programs,
    host::pacers,
    host::jit,
    host::idle_states,
    host::interrupts,
    host::unread,
];

/// An attachment with its parameters and counters.
struct Reading<'a> {
    attached: &'a Attached,
    iface: &'a str,
    config: Config,
    seen: Observed,
}

/// Attachments whose parameters and counters could be read.
fn known(snapshot: &Snapshot) -> impl Iterator<Item = Reading<'_>> {
    snapshot.attachments.iter().filter(|attached| attached.alive).filter_map(|attached| {
        let (config, seen) = (attached.config()?, attached.seen(snapshot)?);
        Some(Reading { attached, iface: &attached.iface, config, seen })
    })
}

impl Reading<'_> {
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
