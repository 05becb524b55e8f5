//! Pacers, which delay packets until their departure time.
//!
//! `fq` reads the departure time from the packet. On kernels without fq, HTB has one class per QP, selected
//! by the packet's priority; [`htb`] maintains the classes and their rates.

pub mod htb;

use std::fmt;

use dcqcn_common::params::{Config, PACER_FQ, Quantity, Unit};
use dcqcn_netlink::tc::{Handle, HtbClass, Qdisc, QdiscSpec, kernel_has_qdisc};
use dcqcn_netlink::{self as net, Link, Netlink};
use dcqcn_params::PacerChoice;

use crate::Error;

/// Major number of the HTB pacer's qdisc.
pub(crate) const HTB_MAJOR: u16 = 0xdc00;
/// Class of the whole port, limited to the line rate.
pub const PORT: Handle = Handle::new(HTB_MAJOR, 0xffff);
/// Class of all other traffic: flows never cut, and packets that are not RoCE.
const REST: Handle = Handle::new(HTB_MAJOR, 1);

/// Handles that distinguish our fq and mq from others.
const FQ: Handle = Handle::new(0xdc01, 0);
const MQ: Handle = Handle::new(0xdc02, 0);
/// Default horizon of fq; the programs stay below it.
const FQ_HORIZON_NS: u64 = 10_000_000_000;

/// Selects the pacer for `choice`; returns the reason as text.
pub(crate) fn choose(choice: PacerChoice, rp_enable: bool) -> Result<(PacerChoice, String), Error> {
    let pacer = |pacer, why: &str| Ok((pacer, why.to_owned()));
    match choice {
        PacerChoice::None => {
            pacer(PacerChoice::None, "pacer none, as requested: rates are computed, not enforced")
        }
        _ if !rp_enable => pacer(PacerChoice::None, "pacer none: nothing is paced without rp_enable"),
        PacerChoice::Fq if !kernel_has_qdisc("fq")? => Err(Error::Pacer { qdisc: "fq" }),
        PacerChoice::Htb if !kernel_has_qdisc("htb")? => Err(Error::Pacer { qdisc: "htb" }),
        PacerChoice::Fq => pacer(PacerChoice::Fq, "pacer fq, as requested"),
        PacerChoice::Htb => {
            pacer(PacerChoice::Htb, "pacer htb, as requested: `dcqcn run` must maintain its classes")
        }
        PacerChoice::Auto if kernel_has_qdisc("fq")? => {
            pacer(PacerChoice::Fq, "pacer fq: the qdisc enforces departure times")
        }
        PacerChoice::Auto if kernel_has_qdisc("htb")? => pacer(
            PacerChoice::Htb,
            "pacer htb: this kernel has no fq; start `dcqcn run` on the interface to maintain a class per QP",
        ),
        PacerChoice::Auto => pacer(
            PacerChoice::None,
            "pacer none: this kernel has neither fq nor htb, rates are computed but not enforced",
        ),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FqLimits {
    /// Maximum packets in the qdisc.
    pub limit: u32,
    /// Maximum packets per flow.
    pub flow_limit: u32,
    /// Mask of the packet hash, which identifies flows of packets without a TCP socket.
    pub orphan_mask: u32,
    /// Base-2 logarithm of the number of hash buckets.
    pub buckets_log: u32,
}

impl FqLimits {
    /// Maximum packets in flight per soft-RoCE QP (`RXE_INFLIGHT_SKBS_PER_QP_HIGH`).
    const MAX_PER_QP: u32 = 64;
    /// fq's default of 100 would drop ACKs and READ responses of soft-RoCE, which have no back-pressure.
    const PER_FLOW: u32 = 20_000;
    /// Minimum packets, and minimum hash buckets as a power of two: fq's defaults.
    const MIN_PACKETS: u32 = 40_000;
    const MIN_BUCKETS_LOG: u32 = 10;
    /// Maximum buckets that fq accepts, and maximum flows that are useful: powers of two.
    const MAX_BUCKETS_LOG: u32 = 18;
    const MAX_FLOWS_LOG: u32 = 20;

    /// Limits for a table of `flows` flows.
    ///
    /// There is a hash bucket for each flow, and room for all packets they may have in flight.
    ///
    /// QPs in the same fq flow wait for each other's departures, so all 32 bits of the hash are used. With
    /// 16 bits, three or four of seven hundred QPs would share one.
    pub const fn of(flows: u32) -> Self {
        let most = 1 << Self::MAX_FLOWS_LOG;
        let flows_log = if flows >= most { Self::MAX_FLOWS_LOG } else { flows.next_power_of_two().ilog2() };
        let flows_log = if flows_log < Self::MIN_BUCKETS_LOG { Self::MIN_BUCKETS_LOG } else { flows_log };
        let limit = Self::MAX_PER_QP << flows_log;
        Self {
            limit: if limit < Self::MIN_PACKETS { Self::MIN_PACKETS } else { limit },
            flow_limit: Self::PER_FLOW,
            orphan_mask: u32::MAX,
            buckets_log: if flows_log > Self::MAX_BUCKETS_LOG { Self::MAX_BUCKETS_LOG } else { flows_log },
        }
    }
}

/// Syntax of tc-fq(8).
impl fmt::Display for FqLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, flow_limit, orphan_mask, buckets_log } = self;
        let buckets = 1_u32 << buckets_log;
        write!(f, "limit {limit} flow_limit {flow_limit} buckets {buckets} orphan_mask {orphan_mask}")
    }
}

/// Position of the pacer in the qdisc tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// A suitable pacer exists and is kept.
    Kept(String),
    /// Replaces the root qdisc, or is placed below a shaper, which is kept.
    At(Handle),
    /// An fq per transmit queue below an `mq`: the existing one, or one that replaces the kernel's default.
    Queues { mq: Handle, make: bool },
}

impl Placement {
    /// Parent of the replaced qdisc, and kind and handle of the new one.
    pub(crate) fn replaces(&self, pacer: PacerChoice) -> Option<(Handle, &'static str, Handle)> {
        match self {
            Self::Kept(_) => None,
            Self::At(parent) if pacer == PacerChoice::Htb => {
                Some((*parent, "htb", Handle::new(HTB_MAJOR, 0)))
            }
            Self::At(parent) => Some((*parent, "fq", FQ)),
            Self::Queues { mq, .. } => Some((Handle::ROOT, "mq", *mq)),
        }
    }
}

/// Selects the pacer's position on this interface, so that the user's qdiscs are preserved.
///
/// # Errors
/// No position preserves it; the error names alternatives.
pub(crate) fn choose_placement(
    netlink: &Netlink,
    link: &Link,
    pacer: PacerChoice,
) -> Result<Placement, Error> {
    let qdiscs = netlink.qdiscs(link.index)?;
    let Some(root) = qdiscs.iter().find(|qdisc| qdisc.parent == Handle::ROOT) else {
        return Ok(Placement::At(Handle::ROOT));
    };
    let configured = root.handle != Handle::UNSPEC;
    let is_fq_at = |parent| has_fq(&qdiscs, parent);
    let unchanged = |what: &str| Ok(Placement::Kept(format!("{what} is kept, with its own limits")));
    let is_fq = pacer == PacerChoice::Fq;
    match root.kind.as_str() {
        "tbf" => {
            // tc-tbf(8) has one class.
            let below = Handle::new(root.handle.major(), 1);
            if is_fq && is_fq_at(below) {
                unchanged("the fq below the tbf")
            } else {
                Ok(Placement::At(below))
            }
        }
        "fq" if is_fq && configured => unchanged("the existing fq"),
        "mq" if is_fq => {
            let queues = queues(netlink, link.index, &qdiscs)?;
            if configured && queues.into_iter().all(is_fq_at) {
                return unchanged("the fq of each queue");
            }
            Ok(Placement::Queues { mq: if configured { root.handle } else { MQ }, make: !configured })
        }
        "htb" if is_fq => {
            let classes = netlink.classes(link.index)?;
            let is_leaf = |handle: Handle| classes.iter().all(|class| class.parent != handle);
            let mut leaves =
                classes.iter().map(|class| class.handle).filter(|handle| is_leaf(*handle)).peekable();
            let first = leaves.peek().copied();
            if first.is_some() && leaves.all(is_fq_at) {
                return unchanged("the fq below each class of the htb");
            }
            let class = first.unwrap_or(Handle::new(root.handle.major(), 1));
            Err(Error::Shaper {
                iface: link.name.clone(),
                kind: root.kind.clone(),
                handle: root.handle,
                class,
            })
        }
        _ => Ok(Placement::At(Handle::ROOT)),
    }
}

/// Installs the pacer; the replaced qdisc was saved before.
pub(crate) fn install(
    netlink: &Netlink,
    ifindex: u32,
    placement: &Placement,
    config: &Config,
    flows: u32,
    notes: &mut Vec<String>,
) -> net::Result<()> {
    match placement {
        Placement::Kept(note) => notes.push(note.clone()),
        Placement::At(parent) if config.scalars.pacer == PACER_FQ => {
            install_qdisc(netlink, ifindex, *parent, FQ, &fq(flows))?;
        }
        Placement::Queues { mq, make } => {
            if *make {
                netlink.replace_root(ifindex, *mq, &QdiscSpec::Mq)?;
            }
            let qdiscs = netlink.qdiscs(ifindex)?;
            for queue in queues(netlink, ifindex, &qdiscs)? {
                if !has_fq(&qdiscs, queue) {
                    netlink.replace_qdisc(ifindex, queue, Handle::UNSPEC, &fq(flows))?;
                }
            }
            notes.push(format!("an fq for each transmit queue, below mq {mq}"));
        }
        Placement::At(parent) => {
            let line_bps = port_rate_bps(config);
            let frame = Frame { mtu_bytes: netlink.link_by_index(ifindex)?.mtu, ..Frame::of(config) };
            let htb = QdiscSpec::Htb { default_minor: REST.minor(), direct_qlen: 1_000 };
            let root = Handle::new(HTB_MAJOR, 0);
            install_qdisc(netlink, ifindex, *parent, root, &htb)?;
            for class in port_classes(line_bps, frame) {
                netlink.replace_htb_class(ifindex, &class)?;
            }
            notes.push(format!("htb {root} limits the port to {}", Quantity(line_bps, Unit::BitsPerSecond)));
        }
    }
    Ok(())
}

/// Classes of an mq with active queues.
///
/// A driver may have created thousands more, below which the kernel lists no qdisc.
fn queues(netlink: &Netlink, ifindex: u32, qdiscs: &[Qdisc]) -> net::Result<Vec<Handle>> {
    let classes = netlink.classes(ifindex)?.into_iter().map(|class| class.handle);
    Ok(classes.filter(|class| qdiscs.iter().any(|qdisc| qdisc.parent == *class)).collect())
}

fn has_fq(qdiscs: &[Qdisc], parent: Handle) -> bool {
    qdiscs.iter().any(|qdisc| qdisc.parent == parent && qdisc.kind == "fq" && qdisc.handle != Handle::UNSPEC)
}

pub(crate) fn install_qdisc(
    netlink: &Netlink,
    ifindex: u32,
    parent: Handle,
    handle: Handle,
    spec: &QdiscSpec,
) -> net::Result<()> {
    if parent == Handle::ROOT {
        netlink.replace_root(ifindex, handle, spec)
    } else {
        netlink.replace_qdisc(ifindex, parent, handle, spec)
    }
}

fn fq(flows: u32) -> QdiscSpec {
    let FqLimits { limit, flow_limit, orphan_mask, buckets_log } = FqLimits::of(flows);
    let (horizon_ns, horizon_drop) = (FQ_HORIZON_NS, true);
    QdiscSpec::Fq { limit, flow_limit, orphan_mask, buckets_log, horizon_ns, horizon_drop }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Frame {
    mtu_bytes: u32,
    /// Overhead per frame on the wire (`wire_overhead`).
    overhead_bytes: u16,
}

impl Frame {
    /// Frame with the parameters' overhead, and MTU 0.
    fn of(config: &Config) -> Self {
        let overhead_bytes = u16::try_from(config.scalars.wire_overhead_bytes).unwrap_or(u16::MAX);
        Self { mtu_bytes: 0, overhead_bytes }
    }
}

/// Rate of the port: the link rate.
///
/// `rpg_max_rate` limits flows, and the port only if the link rate is unknown.
fn port_rate_bps(config: &Config) -> u64 {
    match config.scalars.link_rate_bps {
        0 => config.line_rate_bps(),
        link_bps => link_bps,
    }
}

/// Fixed classes of a port: the whole port, and traffic without its own class.
fn port_classes(line_bps: u64, frame: Frame) -> [HtbClass; 2] {
    let port = class(PORT, line_bps, frame).of_port(Handle::new(HTB_MAJOR, 0));
    // Highest priority: packets sent before a flow's first cut leave before later ones, except for the
    // first packets of a new class (see [`htb`]).
    let rest = HtbClass { priority: 0, ..class(REST, line_bps, frame) };
    [port, rest]
}

/// A class below [`PORT`] limited to `rate_bps`.
fn class(handle: Handle, rate_bps: u64, frame: Frame) -> HtbClass {
    HtbClass {
        priority: 1,
        overhead_bytes: frame.overhead_bytes,
        ..HtbClass::sharing(PORT, handle, rate_bps, frame.mtu_bytes.saturating_add(22))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rpg_max_rate_bounds_flow_not_port() {
        let mut config = Config::DEFAULT;
        (config.scalars.link_rate_bps, config.scalars.rpg_max_rate_bps) = (10_000_000_000, 1_000_000_000);
        assert_eq!((port_rate_bps(&config), config.line_rate_bps()), (10_000_000_000, 1_000_000_000));
        config.scalars.link_rate_bps = 0;
        assert_eq!(port_rate_bps(&config), 1_000_000_000);
    }

    #[test]
    fn htb_classes_charge_the_wire_overhead() {
        let mut config = Config::DEFAULT;
        config.scalars.wire_overhead_bytes = 24;
        let frame = Frame { mtu_bytes: 1_500, ..Frame::of(&config) };
        let all = port_classes(1_000_000_000, frame).into_iter().chain([class(FQ, 1_000_000, frame)]);
        assert_eq!(all.map(|class| class.overhead_bytes).collect::<Vec<_>>(), [24; 3]);
    }

    #[test]
    fn fq_sized_for_table_and_in_flight() {
        for (flows, buckets_log, limit) in [
            (8, 10, 65_536),
            (1_024, 10, 65_536),
            (1_025, 11, 131_072),
            (65_536, 16, 4_194_304),
            (1 << 20, 18, 1 << 26),
            (u32::MAX, 18, 1 << 26),
        ] {
            let expected = FqLimits { limit, flow_limit: 20_000, orphan_mask: u32::MAX, buckets_log };
            assert_eq!(FqLimits::of(flows), expected, "{flows} flows");
        }
        let text = "limit 65536 flow_limit 20000 buckets 1024 orphan_mask 4294967295";
        assert_eq!(FqLimits::of(1).to_string(), text);
    }
}
