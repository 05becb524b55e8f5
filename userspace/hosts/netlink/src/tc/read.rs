//! Qdiscs, classes and their statistics, as reported by the kernel.

use serde::{Deserialize, Serialize};

use super::Handle;
use super::TICK_NS;
use super::spec::{
    TCA_FQ_FLOW_PLIMIT, TCA_FQ_HORIZON, TCA_FQ_ORPHAN_MASK, TCA_FQ_PLIMIT, TCA_HTB_CEIL64, TCA_HTB_PARMS,
    TCA_HTB_RATE64,
};
use crate::wire::{attribute, string, u32_at, u64_at};

/// Bytes of `struct tcmsg`.
pub(super) const TCMSG_LEN: usize = 20;
pub(super) const TCA_KIND: u16 = 1;
pub(super) const TCA_OPTIONS: u16 = 2;
pub(super) const TCA_STAB: u16 = 8;
const TCA_INGRESS_BLOCK: u16 = 13;
const TCA_EGRESS_BLOCK: u16 = 14;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_STATS_PKT64: u16 = 8;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Qdisc {
    /// Kind: `noqueue`, `fq_codel`, `htb`, ...
    pub kind: String,
    /// Handle; [`Handle::UNSPEC`] for a default of the kernel.
    pub handle: Handle,
    /// [`Handle::ROOT`], the class it queues for, or `ffff:fff1` for ingress.
    pub parent: Handle,
    /// The value of `TCA_OPTIONS`, with which the kernel would create an equal one.
    pub options: Vec<u8>,
    /// Whether the qdisc adjusts packet sizes by a size table (`TCA_STAB`).
    pub has_size_table: bool,
    /// Index of a block of filters that a clsact shares with other interfaces (`ingress_block`, `egress_block`).
    pub shared_block: Option<u32>,
    pub stats: Stats,
}

impl Qdisc {
    /// Limits of an fq; `None` for other kinds.
    pub fn fq(&self) -> Option<Fq> {
        if self.kind != "fq" {
            return None;
        }
        let value = |kind| u32_at(attribute(&self.options, kind)?, 0);
        Some(Fq {
            limit: value(TCA_FQ_PLIMIT)?,
            flow_limit: value(TCA_FQ_FLOW_PLIMIT)?,
            orphan_mask: value(TCA_FQ_ORPHAN_MASK),
            horizon_ns: value(TCA_FQ_HORIZON).map(|us| u64::from(us) * 1_000),
        })
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fq {
    /// Maximum packets in total.
    pub limit: u32,
    /// Maximum packets per flow.
    pub flow_limit: u32,
    /// Bits of a packet's hash that distinguish flows without a TCP socket; `None` if the kernel does not report it.
    pub orphan_mask: Option<u32>,
    /// Maximum delay of a departure, in nanoseconds; `None` for kernels without a horizon.
    pub horizon_ns: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    pub kind: String,
    pub handle: Handle,
    /// The class above it, or [`Handle::ROOT`].
    pub parent: Handle,
    /// Guaranteed rate of an HTB class, in bits per second.
    pub rate_bps: Option<u64>,
    /// Highest rate of an HTB class, in bits per second.
    pub ceil_bps: Option<u64>,
    /// Burst of an HTB class, as time at its rate, in nanoseconds.
    pub burst_ns: Option<u64>,
    pub stats: Stats,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes sent, link-layer headers included.
    pub bytes: u64,
    pub packets: u64,
    pub drops: u32,
    /// Times a packet had to wait for tokens.
    pub overlimits: u32,
    pub backlog_bytes: u32,
    pub backlog_packets: u32,
}

/// Kind of shaper that limits an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shaper {
    /// A token bucket at the root.
    Tbf,
    /// The only top class of an HTB at the root.
    Htb { class: Handle },
}

/// A token bucket that limits an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shaping {
    pub shaper: Shaper,
    /// Rate in bits per second.
    pub rate_bps: u64,
    /// Burst, as time at that rate, in nanoseconds. If the queue is not served for longer, the rate of the remaining
    /// time is lost.
    pub burst_ns: u64,
    /// Bytes that its queue holds; `None` if a qdisc below the shaper limits it.
    pub limit_bytes: Option<u32>,
}

impl Shaping {
    /// Minimum burst: a tick of the scheduler at `CONFIG_HZ=250`, by which softirqs of a busy CPU are late. (tc-tbf(8)
    /// recommends a tick's worth of the rate.)
    pub const MIN_BURST_NS: u64 = 4_000_000;
}

impl std::fmt::Display for Shaper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tbf => f.write_str("tbf"),
            Self::Htb { class } => write!(f, "htb class {class}"),
        }
    }
}

pub(super) fn qdisc(body: &[u8]) -> Option<Qdisc> {
    let attributes = body.get(TCMSG_LEN..)?;
    let block = |kind| u32_at(attribute(attributes, kind)?, 0);
    Some(Qdisc {
        kind: string(attribute(attributes, TCA_KIND)?),
        handle: Handle(u32_at(body, 8)?),
        parent: Handle(u32_at(body, 12)?),
        options: attribute(attributes, TCA_OPTIONS).unwrap_or_default().to_vec(),
        has_size_table: attribute(attributes, TCA_STAB).is_some(),
        shared_block: block(TCA_INGRESS_BLOCK).or_else(|| block(TCA_EGRESS_BLOCK)),
        stats: stats(attributes),
    })
}

pub(super) fn class(body: &[u8]) -> Option<Class> {
    let attributes = body.get(TCMSG_LEN..)?;
    let kind = string(attribute(attributes, TCA_KIND)?);
    let options = attribute(attributes, TCA_OPTIONS).filter(|_| kind == "htb").unwrap_or_default();
    Some(Class {
        handle: Handle(u32_at(body, 8)?),
        parent: Handle(u32_at(body, 12)?),
        rate_bps: rate_bps(options, TCA_HTB_PARMS, 0, TCA_HTB_RATE64),
        ceil_bps: rate_bps(options, TCA_HTB_PARMS, 12, TCA_HTB_CEIL64),
        burst_ns: burst_ns(options, TCA_HTB_PARMS, HTB_BUFFER),
        stats: stats(attributes),
        kind,
    })
}

/// The rate, in bits per second, of the ratespec at byte `at` of the attribute `parameters`, or of the attribute `wide`
/// if present.
pub(super) fn rate_bps(options: &[u8], parameters: u16, at: usize, wide: u16) -> Option<u64> {
    let rate = || u32_at(attribute(options, parameters)?, at + 8).map(u64::from);
    attribute(options, wide)
        .and_then(|value| u64_at(value, 0))
        .or_else(rate)
        .map(|bytes| bytes.saturating_mul(8))
}

/// Offset of `limit` in `struct tc_tbf_qopt`, after two ratespecs.
pub(super) const TBF_LIMIT: usize = 24;
/// Offset of `buffer` in `struct tc_tbf_qopt` (after two ratespecs and the limit) and in `struct tc_htb_opt` (after two
/// ratespecs), include/uapi/linux/pkt_sched.h.
pub(super) const TBF_BUFFER: usize = 28;
const HTB_BUFFER: usize = 24;

/// Size of a bucket, which the kernel reports as time at the bucket's rate, in ticks.
pub(super) fn burst_ns(options: &[u8], parameters: u16, at: usize) -> Option<u64> {
    let ticks = u32_at(attribute(options, parameters)?, at)?;
    Some(u64::from(ticks) * TICK_NS)
}

pub(super) fn stats(attributes: &[u8]) -> Stats {
    let nested = attribute(attributes, TCA_STATS2).unwrap_or_default();
    let basic = attribute(nested, TCA_STATS_BASIC).unwrap_or_default();
    let queue = attribute(nested, TCA_STATS_QUEUE).unwrap_or_default();
    // struct gnet_stats_queue: qlen, backlog, drops, requeues, overlimits
    let queue = |at| u32_at(queue, at).unwrap_or(0);
    // The 32-bit count of struct gnet_stats_basic wraps; kernels since 5.5 add all 64 bits if needed.
    let packets = attribute(nested, TCA_STATS_PKT64)
        .and_then(|value| u64_at(value, 0))
        .or_else(|| u32_at(basic, 8).map(u64::from));
    Stats {
        bytes: u64_at(basic, 0).unwrap_or(0),
        packets: packets.unwrap_or(0),
        backlog_packets: queue(0),
        backlog_bytes: queue(4),
        drops: queue(8),
        overlimits: queue(16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fq_limits_parsed() {
        let mut options = Vec::new();
        for (kind, value) in [(1_u16, 40_000_u32), (2, 100), (14, 10_000_000), (10, 1_023)] {
            options.extend(8_u16.to_ne_bytes());
            options.extend(kind.to_ne_bytes());
            options.extend(value.to_ne_bytes());
        }
        let of = |kind: &str, options: &[u8]| {
            Qdisc { kind: kind.to_owned(), options: options.to_vec(), ..Qdisc::default() }.fq()
        };
        let limits =
            |horizon_ns, orphan_mask| Some(Fq { limit: 40_000, flow_limit: 100, orphan_mask, horizon_ns });
        assert_eq!(of("fq", &options), limits(Some(10_000_000_000), Some(1_023)));
        assert_eq!(of("fq", &options[..16]), limits(None, None));
        assert_eq!(of("fq_codel", &options), None);
        for len in 0..16 {
            assert_eq!(of("fq", &options[..len]), None, "{len} bytes");
        }
    }
}
