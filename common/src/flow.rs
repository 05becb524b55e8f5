//! Flow identity and the flow tables.
//!
//! A data packet names the receiver's queue pair and nothing else; so that is what a flow is called everywhere: address
//! and number of the QP that receives its data. The reaction point keeps rate and pacing under it, the notification
//! point its CNP interval.
//!
//! The tables are set-associative, as a cache is: a hash picks a set of eight, within which the least recently used
//! goes first. One lookup in an array, one lock, no allocation, and the same result in every engine. (The kernel's LRU
//! hash cannot hold a `bpf_spin_lock`, and whom it evicts depends on the CPU.)

use crate::layout::{NpFlow, RpFlow, Set, WAYS};
use crate::pacing::Pacer;
use crate::rate::{RateMachine, RpParams};

/// A queue pair: an IPv6 or IPv4-mapped address and a 24-bit number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpId {
    /// Address, in the byte order of the wire.
    pub addr: [u32; 4],
    /// Queue pair number.
    pub qpn: u32,
}

impl QpId {
    /// No queue pair: what a CNP limit for the whole port is kept under.
    pub const NONE: Self = Self { addr: [0; 4], qpn: 0 };

    /// Hash over all of it: multiply and fold, 32 bits at a time.
    #[inline(always)]
    #[must_use]
    pub const fn hash(&self, seed: u32) -> u32 {
        let [a, b, c, d] = self.addr;
        let mut h = seed ^ 0x9e37_79b9;
        h = fold(h, a);
        h = fold(h, b);
        h = fold(h, c);
        h = fold(h, d);
        h = fold(h, self.qpn);
        h ^= h >> 15;
        h = h.wrapping_mul(0x2c1b_3c6d);
        h ^ (h >> 13)
    }
}

#[inline(always)]
const fn fold(h: u32, word: u32) -> u32 {
    let k = word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    (h ^ k).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
}

/// A flow's entry in a set.
pub trait Entry: Copy {
    /// Whom it belongs to.
    fn id(&self) -> QpId;
    /// When it was used last; 0 = the place is empty.
    fn last_seen_ns(&self) -> u64;
}

/// What looking for a flow in its set found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The flow was not there: what is in its place is another's, or nothing.
    pub missing: bool,
    /// It was not there and another flow is in its place.
    pub evicts: bool,
}

impl<T: Entry> Set<T> {
    /// Selects the place of `id`, whose hash is `hash`: its own, or else an empty one, or the least recently used.
    #[inline(always)]
    pub fn find(&mut self, id: &QpId, hash: u32) -> Place {
        let tag = tag(hash);
        let mut victim = 0;
        let mut oldest_ns = u64::MAX;
        for (way, (entry, &entry_tag)) in self.ways.iter().zip(&self.tags).enumerate() {
            if entry_tag == tag && entry.id() == *id {
                self.selected = way as u32;
                return Place { missing: false, evicts: false };
            }
            if entry.last_seen_ns() < oldest_ns {
                oldest_ns = entry.last_seen_ns();
                victim = way as u32;
            }
        }
        self.selected = victim;
        Place { missing: true, evicts: oldest_ns != 0 }
    }

    /// The way selected last, below [`WAYS`].
    ///
    /// The number takes a detour through the map, because the verifier knows every constant of every path: it would
    /// follow all that is done with a flow eight times over, once for each way.
    #[inline(always)]
    #[must_use]
    pub fn selected_way(&self) -> usize {
        // SAFETY: a plain field of `self`; volatile only keeps the compiler from taking the short cut.
        (unsafe { (&raw const self.selected).read_volatile() }) as usize % WAYS
    }

    /// Puts a new flow in the place selected.
    #[inline(always)]
    pub fn insert(&mut self, hash: u32, entry: T) {
        let way = self.selected_way();
        self.tags[way] = tag(hash);
        self.ways[way] = entry;
    }
}

/// The tag a hash leaves in a set; 0 is an empty place.
#[inline(always)]
#[must_use]
pub const fn tag(hash: u32) -> u32 {
    hash | 1
}

/// The set a hash belongs to.
#[inline(always)]
#[must_use]
pub const fn set_index(hash: u32, mask: u32) -> u32 {
    (hash >> 1) & mask
}

impl RpFlow {
    /// A flow whose first packet leaves.
    #[inline(always)]
    #[must_use]
    pub const fn new(id: QpId, p: &RpParams) -> Self {
        Self {
            id,
            _pad: 0,
            last_seen_ns: 0,
            machine: RateMachine::new(p),
            pacer: Pacer::NEW,
            packets: 0,
            bytes: 0,
            last_cnp_ns: 0,
            cnp_handled: 0,
            cnp_ignored: 0,
        }
    }
}

impl NpFlow {
    /// A flow whose first CE mark arrives.
    #[inline(always)]
    #[must_use]
    pub const fn new(id: QpId) -> Self {
        Self { id, _pad: 0, last_seen_ns: 0, last_cnp_ns: 0, ecn_marked_packets: 0, cnp_sent: 0 }
    }

    /// Counts a CE-marked packet at `now_ns` and says whether it is answered: no CNP within the last `interval_ns`
    /// (DCQCN §3.1).
    #[inline(always)]
    pub fn on_ecn_marked(&mut self, now_ns: u64, interval_ns: u64) -> bool {
        self.last_seen_ns = now_ns;
        self.ecn_marked_packets += 1;
        if self.cnp_sent != 0 && now_ns.saturating_sub(self.last_cnp_ns) < interval_ns {
            return false;
        }
        self.last_cnp_ns = now_ns;
        self.cnp_sent += 1;
        true
    }
}

impl Entry for RpFlow {
    #[inline(always)]
    fn id(&self) -> QpId {
        self.id
    }
    #[inline(always)]
    fn last_seen_ns(&self) -> u64 {
        self.last_seen_ns
    }
}

impl Entry for NpFlow {
    #[inline(always)]
    fn id(&self) -> QpId {
        self.id
    }
    #[inline(always)]
    fn last_seen_ns(&self) -> u64 {
        self.last_seen_ns
    }
}
