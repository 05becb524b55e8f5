//! Who holds packets back until their departure time.
//!
//! `fq` takes the time from the packet. Where the kernel has no fq, HTB has one class per QP, chosen by the packet's
//! priority; the classes and their rates are kept by [`htb`].

pub mod htb;

use std::fmt;

use dcqcn_common::params::{Config, PACER_FQ, Quantity, Unit};
use dcqcn_netlink::tc::{Handle, HtbClass, Qdisc, QdiscSpec, kernel_has_qdisc};
use dcqcn_netlink::{self as net, Link, Netlink};
use dcqcn_params::PacerChoice;

use crate::Error;

/// Major number of the HTB pacer's qdisc.
pub(crate) const HTB_MAJOR: u16 = 0xdc00;
/// The port as a whole: no flow leaves faster than the line.
const PORT: Handle = Handle::new(HTB_MAJOR, 0xffff);
/// What has no class of its own: flows never cut, and everything that is not RoCE.
const REST: Handle = Handle::new(HTB_MAJOR, 1);

/// Where this pacer's own fq and mq are to be told from others'.
const FQ: Handle = Handle::new(0xdc01, 0);
const MQ: Handle = Handle::new(0xdc02, 0);
/// fq's own default horizon; the programs stay below it.
const FQ_HORIZON_NS: u64 = 10_000_000_000;

/// The pacer for `choice`, and why.
///
/// # Errors
/// The kernel lacks what was requested.
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
            pacer(PacerChoice::Htb, "pacer htb, as requested: `dcqcn run` must keep its classes")
        }
        PacerChoice::Auto if kernel_has_qdisc("fq")? => {
            pacer(PacerChoice::Fq, "pacer fq: departure times are kept by the qdisc itself")
        }
        PacerChoice::Auto if kernel_has_qdisc("htb")? => pacer(
            PacerChoice::Htb,
            "pacer htb: this kernel has no fq; start `dcqcn run` on the interface, it keeps a class per QP",
        ),
        PacerChoice::Auto => pacer(
            PacerChoice::None,
            "pacer none: this kernel has neither fq nor htb, rates are computed but not enforced",
        ),
    }
}

/// Limits of an fq that paces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FqLimits {
    /// Packets it holds.
    pub limit: u32,
    /// Packets each flow holds.
    pub flow_limit: u32,
    /// Bits of a packet's hash by which those without a TCP socket are distinguished.
    pub orphan_mask: u32,
    /// Base-2 logarithm of the hash buckets its flows are found in.
    pub buckets_log: u32,
}

impl FqLimits {
    /// Packets soft-RoCE has under way for a queue pair at most (`RXE_INFLIGHT_SKBS_PER_QP_HIGH`).
    const PER_QP: u32 = 64;
    /// With fq's default of 100 the ACKs and READ responses of soft-RoCE are dropped, for which it has no back-pressure.
    const PER_FLOW: u32 = 20_000;
    /// fq's own defaults, that is its least: packets, and hash buckets as a power of two.
    const LEAST: u32 = 40_000;
    const LEAST_LOG: u32 = 10;
    /// The most buckets it takes, and the most flows that are of use: powers of two.
    const MOST_BUCKETS_LOG: u32 = 18;
    const MOST_FLOWS_LOG: u32 = 20;

    /// What a table of so many flows needs. Packets of queue pairs that share a flow of fq wait for each other's departures, so all 32
    /// bits of their hash count: of 16, seven hundred queue pairs would share three or four. There are buckets for as many flows as the
    /// table has, and room for all that those may have under way.
    #[must_use]
    pub const fn of(flows: u32) -> Self {
        let most = 1 << Self::MOST_FLOWS_LOG;
        let flows_log = if flows >= most { Self::MOST_FLOWS_LOG } else { flows.next_power_of_two().ilog2() };
        let flows_log = if flows_log < Self::LEAST_LOG { Self::LEAST_LOG } else { flows_log };
        let limit = Self::PER_QP << flows_log;
        Self {
            limit: if limit < Self::LEAST { Self::LEAST } else { limit },
            flow_limit: Self::PER_FLOW,
            orphan_mask: u32::MAX,
            buckets_log: if flows_log > Self::MOST_BUCKETS_LOG { Self::MOST_BUCKETS_LOG } else { flows_log },
        }
    }
}

/// As tc-fq(8) takes them.
impl fmt::Display for FqLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, flow_limit, orphan_mask, buckets_log } = self;
        let buckets = 1_u32 << buckets_log;
        write!(f, "limit {limit} flow_limit {flow_limit} buckets {buckets} orphan_mask {orphan_mask}")
    }
}

/// Where the pacer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// There is one, which stays as it is.
    Kept(String),
    /// In the place of what is at the root, or below a shaper, which goes on shaping.
    At(Handle),
    /// An fq for each transmit queue, below an `mq`: the one that is there, or one of ours in the place of the kernel's default.
    Queues {
        /// The `mq`'s handle.
        mq: Handle,
        /// It is to be made.
        make: bool,
    },
}

impl Placement {
    /// Where something is replaced, and kind and handle of what is put there.
    #[must_use]
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

/// Where the pacer goes on this interface, so that what somebody configured there goes on working.
///
/// # Errors
/// It cannot; the error says what can be done.
pub(crate) fn place(netlink: &Netlink, link: &Link, pacer: PacerChoice) -> Result<Placement, Error> {
    let qdiscs = netlink.qdiscs(link.index)?;
    let Some(root) = qdiscs.iter().find(|qdisc| qdisc.parent == Handle::ROOT) else {
        return Ok(Placement::At(Handle::ROOT));
    };
    let configured = root.handle != Handle::UNSPEC;
    let is_fq_at = |parent: Handle| {
        qdiscs
            .iter()
            .any(|qdisc| qdisc.parent == parent && qdisc.kind == "fq" && qdisc.handle != Handle::UNSPEC)
    };
    let kept = |what: &str| Ok(Placement::Kept(format!("{what} is kept, with its own limits")));
    let is_fq = pacer == PacerChoice::Fq;
    match root.kind.as_str() {
        "tbf" => {
            // tc-tbf(8) has one class.
            let below = Handle::new(root.handle.major(), 1);
            if is_fq && is_fq_at(below) { kept("the fq below the tbf") } else { Ok(Placement::At(below)) }
        }
        "fq" if is_fq && configured => kept("the fq that is there"),
        "mq" if is_fq => {
            let queues = queues(netlink, link.index, &qdiscs)?;
            if configured && queues.into_iter().all(is_fq_at) {
                return kept("the fq of each queue");
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
                return kept("the fq below each class of the htb");
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

/// Puts the pacer where it goes; what is there has been saved.
///
/// # Errors
/// The kernel refuses.
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
            put(netlink, ifindex, *parent, FQ, &fq(flows))?;
        }
        Placement::Queues { mq, make } => {
            if *make {
                netlink.replace_root(ifindex, *mq, &QdiscSpec::Mq)?;
            }
            let qdiscs = netlink.qdiscs(ifindex)?;
            for queue in queues(netlink, ifindex, &qdiscs)? {
                let is_ready = |qdisc: &Qdisc| {
                    qdisc.parent == queue && qdisc.kind == "fq" && qdisc.handle != Handle::UNSPEC
                };
                if !qdiscs.iter().any(is_ready) {
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
            put(netlink, ifindex, *parent, root, &htb)?;
            for class in port_classes(line_bps, frame) {
                netlink.replace_htb_class(ifindex, &class)?;
            }
            notes.push(format!("htb {root} holds the port to {}", Quantity(line_bps, Unit::BitsPerSecond)));
        }
    }
    Ok(())
}

/// The classes of an mq whose queues are in use. A driver may have made thousands more, and the kernel lists no qdisc below those.
fn queues(netlink: &Netlink, ifindex: u32, qdiscs: &[Qdisc]) -> net::Result<Vec<Handle>> {
    let classes = netlink.classes(ifindex)?.into_iter().map(|class| class.handle);
    Ok(classes.filter(|class| qdiscs.iter().any(|qdisc| qdisc.parent == *class)).collect())
}

fn put(netlink: &Netlink, ifindex: u32, parent: Handle, handle: Handle, spec: &QdiscSpec) -> net::Result<()> {
    if parent == Handle::ROOT {
        netlink.replace_root(ifindex, handle, spec)
    } else {
        netlink.replace_qdisc(ifindex, parent, handle, spec)
    }
}

fn fq(flows: u32) -> QdiscSpec {
    let FqLimits { limit, flow_limit, orphan_mask, buckets_log } = FqLimits::of(flows);
    QdiscSpec::Fq {
        limit,
        flow_limit,
        orphan_mask,
        buckets_log,
        horizon_ns: FQ_HORIZON_NS,
        horizon_drop: true,
    }
}

/// The frames of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Frame {
    /// The interface's MTU.
    mtu_bytes: u32,
    /// What the wire adds to each (`wire_overhead`).
    overhead_bytes: u16,
}

impl Frame {
    /// With the overhead that the parameters specify.
    fn of(config: &Config) -> Self {
        let overhead_bytes = u16::try_from(config.scalars.wire_overhead_bytes).unwrap_or(u16::MAX);
        Self { mtu_bytes: 0, overhead_bytes }
    }
}

/// The rate of the port: the link's. `rpg_max_rate` is a flow's, and holds the port only where the link's is not known.
fn port_rate_bps(config: &Config) -> u64 {
    match config.scalars.link_rate_bps {
        0 => config.line_rate_bps(),
        link_bps => link_bps,
    }
}

/// The classes every port has, for a line of this rate: the port as a whole, and what has no class of its own.
fn port_classes(line_bps: u64, frame: Frame) -> [HtbClass; 2] {
    let root = Handle::new(HTB_MAJOR, 0);
    let port = class(PORT, line_bps, frame);
    // All of its rate is guaranteed.
    let port = HtbClass { parent: root, rate_bps: line_bps, burst_bytes: port.cburst_bytes, ..port };
    // First in line: what a flow sent before its first cut leaves before what it sends after, but for the first packets of a new
    // class (`htb/waiting.rs`).
    let rest = HtbClass { priority: 0, ..class(REST, line_bps, frame) };
    [port, rest]
}

/// A class below [`PORT`] that sends at `rate_bps` and no faster.
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
