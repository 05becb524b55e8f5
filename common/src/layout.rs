//! Sizes of the maps, and the entries of those that need nothing else; shared by the programs, the controller and the
//! reference engine.
//!
//! Plain C structures without implicit padding, here and in [`crate::flow`], [`crate::events`] and [`crate::params`]. A change of
//! one is a new [`LAYOUT_VERSION`].

use crate::id::FlowId;
use crate::rate::Debt;
use crate::stats::Stat;

/// Version of all structures in the maps.
pub const LAYOUT_VERSION: u32 = 19;
/// Traffic classes, and queues.
pub const CLASSES: usize = 8;
/// DSCP code points.
pub const DSCPS: usize = 64;
/// Flows per set.
pub const WAYS: usize = 8;
/// Flows a table holds by default.
pub const DEFAULT_FLOWS: u32 = 65_536;
/// Largest table: a million flows.
pub const MAX_FLOWS: u32 = 1 << 20;
/// Slots of the parameter map: one in use, one for the next change, and some that were used before and that a program may
/// still be reading.
pub const PARAMS_SLOTS: u32 = 16;
/// Virtual queues: [`CLASSES`] for each of the two ports of an inline attachment.
pub const QUEUES: u32 = 16;

/// Ends of connections between REQ and RTU that are kept in mind; the least recently used go first.
pub const CONNECTIONS: u32 = 4_096;
/// Interfaces of a namespace whose hooks hand CNPs on to each other. One packet runs 33 programs after the first at most
/// (`MAX_TAIL_CALL_CNT`, include/linux/bpf.h).
pub const SIBLINGS: u32 = 32;

/// Who is at the other end of a QP, and how that is known.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The other end's QPN.
    pub qpn: u32,
    /// A [`PairSource`].
    pub source: u32,
    /// The other end's address; zeros where nobody said.
    pub addr: [u32; 4],
}

impl Pair {
    /// A pair whose other end's address nobody said.
    #[must_use]
    pub const fn new(qpn: u32, source: PairSource) -> Self {
        Self { qpn, source: source as u32, addr: [0; 4] }
    }

    /// Whether the controller entered it: it is of every VLAN then.
    #[must_use]
    pub const fn is_entered(&self) -> bool {
        self.source <= PairSource::Rdma as u32
    }
}

/// A time that all CPUs share.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// When a mark last became pending at the notification point; 0 = none is, for all that is known.
    NpPending = 0,
    /// Up to when CNPs are used up, as [`Limit`](crate::limit::Limit) has it.
    Cnps = 1,
    /// Up to when pairs to learn are used up, as [`Limit`](crate::limit::Limit) has it.
    Pairs = 2,
    /// Up to when PFC frames are used up, as [`Limit`](crate::limit::Limit) has it.
    Pauses = 3,
    /// Up to when the neighbour has paused priority 0.
    PausedUntil0 = 4,
    /// The same of priority 1.
    PausedUntil1 = 5,
    /// The same of priority 2.
    PausedUntil2 = 6,
    /// The same of priority 3.
    PausedUntil3 = 7,
    /// The same of priority 4.
    PausedUntil4 = 8,
    /// The same of priority 5.
    PausedUntil5 = 9,
    /// The same of priority 6.
    PausedUntil6 = 10,
    /// The same of priority 7.
    PausedUntil7 = 11,
    /// How long priority 0 will have been paused by then.
    PausedFor0 = 12,
    /// The same of priority 1.
    PausedFor1 = 13,
    /// The same of priority 2.
    PausedFor2 = 14,
    /// The same of priority 3.
    PausedFor3 = 15,
    /// The same of priority 4.
    PausedFor4 = 16,
    /// The same of priority 5.
    PausedFor5 = 17,
    /// The same of priority 6.
    PausedFor6 = 18,
    /// The same of priority 7.
    PausedFor7 = 19,
    /// Which priorities are in a storm of pauses, and when that was said: a [`Storms`](crate::pfc::Storms).
    Storms = 20,
}

impl Time {
    /// Up to when the neighbour has paused each priority.
    pub(crate) const PAUSED_UNTIL: [Self; CLASSES] = [
        Self::PausedUntil0,
        Self::PausedUntil1,
        Self::PausedUntil2,
        Self::PausedUntil3,
        Self::PausedUntil4,
        Self::PausedUntil5,
        Self::PausedUntil6,
        Self::PausedUntil7,
    ];
    /// How long each priority will have been paused by then.
    pub(crate) const PAUSED_FOR: [Self; CLASSES] = [
        Self::PausedFor0,
        Self::PausedFor1,
        Self::PausedFor2,
        Self::PausedFor3,
        Self::PausedFor4,
        Self::PausedFor5,
        Self::PausedFor6,
        Self::PausedFor7,
    ];
}

/// How many of them there are.
pub const TIMES: u32 = 21;

/// How a pair came to be known, the most trusted first: of two that contradict each other it counts.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PairSource {
    /// Entered by the operator.
    Static = 1,
    /// RDMA netlink: what the kernel's own QP says.
    Rdma = 2,
    /// The messages that set up the connection.
    Cm = 3,
    /// A UD packet names both ends.
    Datagram = 4,
}

impl PairSource {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Static, Self::Rdma, Self::Cm, Self::Datagram];

    /// Its name.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Rdma => "rdma",
            Self::Cm => "cm",
            Self::Datagram => "datagram",
        }
    }
}

/// Which slot of the parameters is in use.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    /// Its number, below [`PARAMS_SLOTS`].
    pub slot: u32,
    /// 1 = by the parameters in that slot, packets that are not RoCE have a class too. Elsewhere those do not look at parameters.
    pub sorts_all: u32,
    /// When each slot was left, CLOCK_MONOTONIC; 0 = never. The controller's own.
    pub left_ns: [u64; PARAMS_SLOTS as usize],
}

/// One virtual queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// When it would be empty, in the ticks of [`crate::vqueue`].
    pub empty_at: u64,
    /// A cache line to itself: two CPUs write two queues without disturbing each other.
    pub _line: [u64; 7],
}

/// What really waits for one traffic class to leave, as the controller read it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes.
    pub bytes: u64,
    /// When it was read; 0 = never.
    pub read_at_ns: u64,
}

/// What has come into each queue of a port by one ingress port, bytes, on one CPU.
pub type IngressBytes = [u64; CLASSES];
/// Ingress ports that are distinguished; what comes by others, and what this host makes, counts for port 0.
pub const INGRESS_PORTS: u32 = 256;

/// How long a [`Backlog`] is believed: a hundred of the controller's readings.
pub const BACKLOG_AGE_NS: u64 = 100_000_000;

/// Counters of one traffic class.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounters {
    /// RoCEv2 packets.
    pub packets: u64,
    /// Their bytes, layer 2.
    pub bytes: u64,
    /// Of them, packets able to be marked (ECT or CE).
    pub ect_packets: u64,
    /// Packets marked CE here.
    pub ecn_marked_packets: u64,
}

/// Counters of PFC, by priority.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseCounters {
    /// Frames that name it: at XDP those received, at egress those sent.
    pub frames: [u64; CLASSES],
    /// Packets that came while it was paused, and are held by that.
    pub held: [u64; CLASSES],
}

/// Counters of one hook on one CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// A hook's own, while it looks at a packet.
    pub detour: u64,
    /// The same: what is known of a flow only while it catches up.
    pub debt: Debt,
    /// The same: whom a place is looked for.
    pub wanted: FlowId,
    /// By [`Stat`].
    pub stat: [u64; Stat::COUNT],
    /// By traffic class.
    pub class: [ClassCounters; CLASSES],
    /// PFC by priority.
    pub pause: PauseCounters,
}

impl Counters {
    /// All zero.
    pub const ZERO: Self = Self {
        detour: 0,
        debt: Debt::NONE,
        wanted: FlowId::NONE,
        stat: [0; Stat::COUNT],
        class: [ClassCounters { packets: 0, bytes: 0, ect_packets: 0, ecn_marked_packets: 0 }; CLASSES],
        pause: PauseCounters { frames: [0; CLASSES], held: [0; CLASSES] },
    };
}

/// What the reaction point tells the HTB pacer: a CNP has cut the rate of a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Its set in the RP table.
    pub set: u32,
    /// Its way in the set.
    pub way: u32,
}

/// Bytes of the ring that carries [`Cut`]s: a power of two, and of pages.
pub const CUTS_BYTES: u32 = 1 << 16;

/// What an object is loaded for, once and for all.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// An interface with a host or a router behind it.
    Host = 0,
    /// One of two interfaces in line.
    Inline = 1,
    /// Tests: clock and random source are those of [`Test`], and the parameters say whether it is in line.
    Test = 2,
}

/// Clock and randomness of a program under test, and what it would have done to the outside.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// The time.
    pub now_ns: u64,
    /// State of the random sequence ([`crate::rng`]).
    pub random: u64,
    /// Length a TC program gives its packet before it looks at it: a test run takes no socket buffer longer than a page
    /// or without a whole IP header. 0 afterwards = it could not.
    pub frame_len: u32,
    /// The mark under which the packet would have been cloned to the own device; 0 = it was not.
    pub clone_mark: u32,
    /// The interface a packet would have been sent from; 0 = none.
    pub redirect_ifindex: u32,
    /// 1 = the packet would have been sent there to the neighbour the routes say.
    pub redirect_neigh: u32,
    /// What `skb->hash` would have become; 0 = it was left unchanged.
    pub flow_hash: u32,
    /// Explicit padding.
    pub _pad: u32,
}

const _: () = assert!(size_of::<Queue>() == 64 && size_of::<Pair>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_sizes_match_the_kernel() {
        assert_eq!((MAX_FLOWS, CUTS_BYTES), (1_048_576, 65_536));
        assert!(CUTS_BYTES.is_power_of_two() && CUTS_BYTES.is_multiple_of(4_096));
    }

    #[test]
    fn pair_sources_named_most_trusted_first() {
        assert_eq!(PairSource::ALL.map(PairSource::label), ["static", "rdma", "cm", "datagram"]);
        assert!(PairSource::ALL.is_sorted());
    }
}
