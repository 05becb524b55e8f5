//! Sizes of the maps, and the entries of the simple ones; shared by the programs, the daemon and the reference
//! engine.
//!
//! Plain C structures without implicit padding, here and in [`crate::flow`], [`crate::events`] and [`crate::params`].
//! Changing one requires a new [`LAYOUT_VERSION`].

use crate::id::FlowId;
use crate::rate::Debt;
use crate::stats::Stat;

pub const LAYOUT_VERSION: u32 = 32;
/// Traffic classes, and queues.
pub const CLASSES: usize = 8;
pub const DSCPS: usize = 64;
/// Flows per set of a flow table.
pub const WAYS: usize = 8;
pub const DEFAULT_FLOWS: u32 = 65_536;
pub const MAX_FLOWS: u32 = 1 << 20;
/// Slots of the parameter map: the active one, one for the next change, and previous ones that a program may still be
/// reading.
pub const PARAMS_SLOTS: u32 = 16;
/// Virtual queues: [`CLASSES`] for each of the two ports of an inline attachment.
pub const QUEUES: u32 = 16;

/// Connections between REQ and RTU that are tracked; the least recently used is evicted.
pub const CONNECTIONS: u32 = 4_096;
/// Interfaces of a namespace that pass CNPs to each other. A packet can run at most 33 programs after the first
/// (`MAX_TAIL_CALL_CNT`, include/linux/bpf.h).
pub const SIBLINGS: u32 = 32;

/// The other end of a QP, and the source of that information.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The other end's QPN.
    pub qpn: u32,
    /// A [`PairSource`].
    pub source: u32,
    /// The other end's address; zeros = unknown.
    pub addr: [u32; 4],
}

impl Pair {
    /// A pair without the other end's address.
    pub const fn new(qpn: u32, source: PairSource) -> Self {
        Self { qpn, source: source as u32, addr: [0; 4] }
    }

    /// Whether user space entered it, in which case it matches every VLAN.
    pub const fn is_entered(&self) -> bool {
        self.source <= PairSource::Rdma as u32
    }
}

/// Index of a timestamp shared by all CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(u32);

impl Time {
    /// Last time that a mark became pending at the notification point; 0 = never.
    pub const NP_PENDING: Self = Self(0);
    /// State of the CNP rate limit, as in [`Limit`](crate::limit::Limit).
    pub const CNPS: Self = Self(1);
    /// State of the rate limit for learned pairs, as in [`Limit`](crate::limit::Limit).
    pub const PAIRS: Self = Self(2);
    /// State of the rate limit for PFC frames, as in [`Limit`](crate::limit::Limit).
    pub const PAUSES: Self = Self(3);
    /// Priorities in a pause storm, with the time of that report: a [`Storms`](crate::pfc::Storms).
    pub const STORMS: Self = Self(20);
    /// State of the rate limit for trimmed packets, as in [`Limit`](crate::limit::Limit).
    pub const TRIMS: Self = Self(21);
    /// Until when the NP answers ECT packets because this host is congested; see [`crate::host_congestion`].
    pub const HOST_CONGESTED_UNTIL: Self = Self(22);
    /// Until when the NP makes no clone, because the egress program did not see the last one.
    pub(crate) const CLONES_UNSEEN_UNTIL: Self = Self(23);

    /// End of the neighbour's pause of a priority, below [`CLASSES`]: 4 to 11.
    #[inline(always)]
    pub const fn paused_until(priority: usize) -> Self {
        Self(4 + priority as u32)
    }

    /// Total pause time of a priority, below [`CLASSES`], up to that end: 12 to 19.
    #[inline(always)]
    pub const fn paused_for(priority: usize) -> Self {
        Self(12 + priority as u32)
    }

    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

const _: () = assert!(Time::paused_until(CLASSES).0 == Time::paused_for(0).0);
const _: () = assert!(Time::paused_for(CLASSES).0 == Time::STORMS.0);

/// Number of [`Time`]s.
pub const TIMES: usize = 24;

/// Source of a pair, the most trusted first; on contradiction the more trusted one takes precedence.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PairSource {
    /// Entered by the operator.
    Static = 1,
    /// RDMA netlink: state of the kernel's own QP.
    Rdma = 2,
    /// Connection management messages.
    Cm = 3,
    /// A UD packet, which names both ends.
    Datagram = 4,
}

impl PairSource {
    /// All sources, the most trusted first.
    pub const ALL: [Self; 4] = [Self::Static, Self::Rdma, Self::Cm, Self::Datagram];

    /// Name in commands and JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Rdma => "rdma",
            Self::Cm => "cm",
            Self::Datagram => "datagram",
        }
    }
}

/// The active slot of the parameter map.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    /// Slot number, below [`PARAMS_SLOTS`].
    pub slot: u32,
    /// 1 = those parameters classify non-RoCE packets too. If 0, such packets do not read the parameters.
    pub classifies_all: u32,
    /// When each slot became inactive, CLOCK_MONOTONIC; 0 = never. Used by the daemon only.
    pub left_ns: [u64; PARAMS_SLOTS as usize],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// When the queue will be empty, in the ticks of [`crate::vqueue`].
    pub empty_at: u64,
    /// Padding to a cache line: CPUs that write different queues do not contend.
    pub _line: [u64; 7],
}

/// Backlog of the real qdisc for one traffic class, as last read by the daemon. A program that reads one
/// field before an update and the other after it uses a depth one polling interval old.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    pub bytes: u64,
    /// Time of the reading; 0 = never.
    pub read_at_ns: u64,
}

/// Bytes that entered each queue of a port from one ingress port, on one CPU.
pub type IngressBytes = [u64; CLASSES];
/// Tracked ingress ports; traffic from further ones, and from this host, counts for port 0.
pub const INGRESS_PORTS: u32 = 256;

/// Validity of a [`Backlog`]: a hundred polling intervals.
pub const BACKLOG_AGE_NS: u64 = 100_000_000;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounters {
    pub packets: u64,
    /// Bytes of RoCEv2 packets, layer 2.
    pub bytes: u64,
    /// ECN-capable RoCEv2 packets (ECT or CE).
    pub ect_packets: u64,
    pub ecn_marked_packets: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseCounters {
    /// PFC frames that name the priority: received ones at TC ingress (inline: XDP), sent ones at egress.
    pub frames: [u64; CLASSES],
    /// Packets delayed because the priority was paused.
    pub held: [u64; CLASSES],
}

/// Counters of one hook on one CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Scratch space of the hook for the current packet.
    pub opaque_slot: u64,
    /// Scratch space for the debt computation.
    pub debt: Debt,
    /// Scratch space for the flow identity of a lookup.
    pub lookup_key: FlowId,
    pub stat: [u64; Stat::COUNT],
    pub class: [ClassCounters; CLASSES],
    pub pause: PauseCounters,
}

impl Counters {
    pub const ZERO: Self = Self {
        opaque_slot: 0,
        debt: Debt::NONE,
        lookup_key: FlowId::NONE,
        stat: [0; Stat::COUNT],
        class: [ClassCounters { packets: 0, bytes: 0, ect_packets: 0, ecn_marked_packets: 0 }; CLASSES],
        pause: PauseCounters { frames: [0; CLASSES], held: [0; CLASSES] },
    };
}

impl Default for Counters {
    fn default() -> Self {
        Self::ZERO
    }
}

/// Notification from the reaction point to the HTB pacer: a CNP has cut the rate of a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub set: u32,
    pub way: u32,
}

/// Bytes of the ring buffer for [`Cut`]s: a power of two and a multiple of the page size.
pub const CUTS_BYTES: u32 = 1 << 16;

/// Bytes of the ring buffer for announced requesters, as [`CUTS_BYTES`].
pub const REQUESTS_BYTES: u32 = 1 << 14;

/// Purpose of a loaded object, fixed at load time.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// An interface in front of a host or router.
    Host = 0,
    /// One of two interfaces of an inline attachment.
    Inline = 1,
    /// An interface without the ingress program: it paces no flow.
    Marking = 3,
    /// Tests: clock and random source come from [`Test`], and the parameters select host or inline.
    Test = 2,
}

/// Clock and randomness of a program under test, and its recorded side effects.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    pub now_ns: u64,
    /// State of the random sequence ([`crate::rng`]).
    pub random: u64,
    /// Frame length that a TC program sets first: test runs reject socket buffers longer than a page or without a whole
    /// IP header. 0 afterwards = it failed.
    pub frame_len: u32,
    /// `skb->mark` of the clone that would have been sent to this device; 0 = no clone.
    pub clone_mark: u32,
    /// Interface that XDP would have redirected the packet to; 0 = none.
    pub redirect_ifindex: u32,
    /// New value of `skb->hash`; 0 = unchanged.
    pub flow_hash: u32,
}

const _: () = assert!(size_of::<Queue>() == 64 && size_of::<Pair>() == 24);
const _: () = assert!(CUTS_BYTES.is_power_of_two() && CUTS_BYTES.is_multiple_of(4_096));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pair_sources_listed_most_trusted_first() {
        assert_eq!(PairSource::ALL.map(PairSource::label), ["static", "rdma", "cm", "datagram"]);
        assert!(PairSource::ALL.is_sorted());
    }
}
