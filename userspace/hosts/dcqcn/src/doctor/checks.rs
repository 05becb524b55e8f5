//! The checks: pure functions of a snapshot.

mod attached;
mod host;
mod links;
mod pacer;
mod points;
mod rdma;
#[cfg(test)]
pub(super) mod tests;
mod thresholds;
mod traffic;

use dcqcn_common::params::{Config, Quantity, Unit};
use dcqcn_params::Key;

use super::snapshot::{Attached, Link, Observed, Rdma, Snapshot};
use super::{Finding, Severity};
use thresholds::MarkingClass;

/// A check, by what it examines. Findings of all but the first two are those of an interface.
enum Check {
    Host(fn(&Snapshot) -> Option<Finding>),
    /// The host, with any number of findings.
    Hosts(fn(&Snapshot) -> Vec<Finding>),
    Attachment(fn(&Snapshot, &Attached) -> Option<Finding>),
    /// An interface with RoCE traffic.
    Interface(fn(&Snapshot, &Link) -> Option<Finding>),
    /// An RDMA device and one of its interfaces.
    Device(fn(&Snapshot, &Rdma, &str) -> Option<Finding>),
    /// Parameters and counters of an attachment.
    Read(fn(&Reading<'_>) -> Option<Finding>),
    /// Those of an attachment with the congestion point enabled.
    Marking(fn(&Reading<'_>) -> Option<Finding>),
    /// Those, and a traffic class.
    Class(fn(&Reading<'_>, usize) -> Option<Finding>),
    /// The marking curve of a class.
    Curve(fn(&MarkingClass<'_>) -> Option<Finding>),
}

use Check::{Attachment, Class, Curve, Device, Host, Hosts, Interface, Marking, Read};

const ALL: &[Check] = &[
    Host(attached::attached),
    Attachment(attached::programs),
    Attachment(attached::earlier_programs),
    Attachment(attached::interpreted),
    Attachment(attached::generic_xdp),
    Read(traffic::roce_seen),
    Read(traffic::unparsed_headers),
    Interface(traffic::in_tunnel),
    Interface(traffic::in_ipsec),
    Read(traffic::other_transport),
    Class(traffic::not_ect),
    Read(traffic::sent_as_ce),
    Marking(traffic::dscp_without_class),
    Hosts(traffic::dscp_by_direction),
    Marking(traffic::cnp_class),
    Marking(traffic::cnp_dscp),
    Class(traffic::class_not_marked),
    Read(points::np_off),
    Read(points::rp_off),
    Read(points::marks_unanswered),
    Read(points::cnps_failed),
    Read(points::cnps_lost),
    Read(points::cnps_hinted),
    Read(points::cnps_unpaired),
    Read(points::cnps_invalid),
    Read(points::cnps_without_cut),
    Hosts(points::port_unanswered),
    Read(pacer::none),
    Read(pacer::replaced),
    Read(pacer::queues_replaced),
    Read(pacer::fq_limits),
    Read(pacer::fq_orphans),
    Read(pacer::fq_horizon),
    Read(pacer::drops),
    Read(pacer::fq_waits),
    Read(pacer::without_daemon),
    Read(pacer::horizon),
    Read(pacer::tables),
    Read(pacer::cuts_lost),
    Read(pacer::write_failed),
    Marking(thresholds::rate_unknown),
    Read(thresholds::rate_above_link),
    Marking(thresholds::shaper),
    Curve(thresholds::frames),
    Curve(thresholds::bandwidth_delay),
    Curve(thresholds::far_apart),
    Curve(thresholds::fixed_point),
    Curve(thresholds::oscillation),
    Read(thresholds::alpha_timer),
    Read(thresholds::min_rate),
    Interface(links::down),
    Interface(links::mtu_small),
    Interface(links::mtu_differs),
    Hosts(links::interrupts_delayed),
    Hosts(links::features),
    Hosts(links::xdp_queues),
    Interface(links::pause_before_marks),
    Interface(links::priority_discards),
    Interface(links::counters_not_read),
    Read(pacer::pauses_without_watchdog),
    Read(pacer::pauses_without_effect),
    Read(pacer::pauses_after_drops),
    Device(rdma::without_role),
    Hosts(rdma::elsewhere),
    Device(rdma::bypass),
    Device(rdma::traffic_class),
    Device(rdma::timeouts),
    Host(rdma::nvme_registers),
    Device(rdma::adapter_notification),
    Device(rdma::adapter_reaction),
    Host(host::softnet),
    Host(host::kernel),
    Hosts(host::programs),
    Host(host::pacers),
    Host(host::jit),
    Host(host::idle_states),
    Interface(host::remote_interrupts),
    Interface(host::one_cpu),
    Hosts(host::unread),
];

pub(super) fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let readings: Vec<Reading<'_>> = known(snapshot).collect();
    let marking = || readings.iter().filter(|reading| reading.config.scalars.cp_enable != 0);
    let on = |iface: &str, finding: Option<Finding>| Some(finding?.on(iface));
    let mut findings = Vec::new();
    for check in ALL {
        match check {
            Host(check) => findings.extend(check(snapshot)),
            Hosts(check) => findings.extend(check(snapshot)),
            Attachment(check) => findings
                .extend(snapshot.attachments.iter().filter_map(|of| on(&of.iface, check(snapshot, of)))),
            Interface(check) => findings
                .extend(links::used(snapshot).filter_map(|link| on(&link.name, check(snapshot, link)))),
            Device(check) => findings.extend(snapshot.rdma.iter().flat_map(|device| {
                let ifaces = device.ifaces.iter();
                ifaces.filter_map(move |iface| on(iface, check(snapshot, device, iface)))
            })),
            Read(check) => {
                findings.extend(readings.iter().filter_map(|reading| on(reading.iface, check(reading))));
            }
            Marking(check) => {
                findings.extend(marking().filter_map(|reading| on(reading.iface, check(reading))));
            }
            Class(check) => findings.extend(marking().flat_map(|reading| {
                let classes = 0..reading.config.wred.len();
                classes.filter_map(move |tc| on(reading.iface, check(reading, tc)))
            })),
            Curve(check) => findings.extend(marking().flat_map(|reading| {
                MarkingClass::all(reading).filter_map(move |class| on(reading.iface, check(&class)))
            })),
        }
    }
    findings
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

    /// Parameters, as `key = value`.
    fn params<S: AsRef<str>>(&self, keys: &[S]) -> String {
        let param = |key: &S| {
            let value = key.as_ref().parse::<Key>().map(|key| key.text(&self.config));
            format!("{} = {}", key.as_ref(), value.unwrap_or_else(|error| error.to_string()))
        };
        keys.iter().map(param).collect::<Vec<_>>().join(", ")
    }

    fn set(&self, changes: &str) -> String {
        format!("`dcqcn set {} {changes}`", self.iface)
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
        let used = (0..self.config.wred.len()).filter(marks).filter(|tc| self.seen.class(*tc).packets != 0);
        let used: Vec<usize> = used.collect();
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
    let entry = |device: &str, port: u32| {
        let dir = format!("/sys/kernel/config/rdma_cm/{device}");
        format!("`mkdir -p {dir} && echo {tos} > {dir}/ports/{port}/default_roce_tos`")
    };
    let devices: Vec<String> =
        snapshot.rdma_on(iface).map(|device| entry(&device.name, device.port)).collect();
    let cm =
        if devices.is_empty() { format!("on the sender {}", entry("DEVICE", 1)) } else { devices.join(", ") };
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

/// The start of a fix by other options of `attach`.
fn reattach(iface: &str) -> String {
    format!("`dcqcn detach {iface}`, then attach again")
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
