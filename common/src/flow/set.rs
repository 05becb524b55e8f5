//! A set of a flow table: eight ways, their tags, and the choice of a victim.

use crate::layout::WAYS;
use crate::verifier::{opaque, reread};

pub trait Entry: Copy {
    type Id: Copy + PartialEq;

    fn id(&self) -> Self::Id;
    /// Time of last use; 0 = empty slot. The smallest value is evicted first.
    fn last_seen_ns(&self) -> u64;
    fn clear(&mut self);
}

/// Implements [`Entry`] for structures with the fields `id` and `last_seen_ns`.
#[macro_export]
macro_rules! entries {
    ($($ty:ty: $id:ty),+) => { $(
        impl $crate::flow::Entry for $ty {
            type Id = $id;

            #[inline(always)]
            fn id(&self) -> $id {
                self.id
            }
            #[inline(always)]
            fn last_seen_ns(&self) -> u64 {
                self.last_seen_ns
            }
            #[inline(always)]
            fn clear(&mut self) {
                self.last_seen_ns = 0;
            }
        }
    )+ };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The way, below [`WAYS`].
    pub way: usize,
    /// The flow is absent: the slot is empty or holds another flow.
    pub missing: bool,
}

/// One set of a flow table: eight flows under one lock.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<T: Entry> {
    /// Lock: 1 while a program holds it. It guards all fields below; `tags` are also read without it.
    pub lock: u32,
    /// Result of the last lookup; see [`Set::selection`].
    pub selected: u32,
    /// Tag of each way's hash, so that a miss reads one cache line; 0 = empty.
    pub tags: [u32; WAYS],
    /// Padding: the flows start on a cache line.
    pub _line: [u32; 6],
    pub ways: [T; WAYS],
}

pub(super) const WAY_BITS: u32 = WAYS.trailing_zeros();
/// Bits of [`Set::selected`] above the way.
const MISSING: u32 = 1 << 8;

impl<T: Entry> Set<T> {
    /// Selects the slot of `id`, whose hash is `hash`: its own, else an empty one, else the least recently used.
    #[inline(always)]
    pub fn find(&mut self, id: &T::Id, hash: u32) -> Selection {
        let home = home_way(hash);
        // Most flows are in their primary way, which a processor reads speculatively before it has the tags.
        self.selected = if self.tags[home] == tag(hash) && self.ways[home].id() == *id {
            home as u32
        } else {
            match self.way_of(id, hash) {
                Some(way) => way as u32,
                None => self.victim(home),
            }
        };
        self.selection()
    }

    #[inline(always)]
    fn way_of(&self, id: &T::Id, hash: u32) -> Option<usize> {
        let tag = tag(hash);
        // The tags share a cache line with the lock, so a lookup touches no other flow.
        for (way, (entry, &entry_tag)) in self.ways.iter().zip(&self.tags).enumerate() {
            if entry_tag == tag && entry.id() == *id {
                return Some(way);
            }
        }
        None
    }

    /// An empty way, or the least recently used one, encoded as in `selected`.
    #[inline(always)]
    fn victim(&self, home: usize) -> u32 {
        // Time and way in one number, so that the verifier does not follow each way separately: 2^61 ns are 73 years.
        let mut oldest = u64::MAX;
        for (way, entry) in self.ways.iter().enumerate() {
            // Of the empty ways, prefer the primary one.
            oldest = oldest.min(entry.last_seen_ns() << WAY_BITS | (way ^ home) as u64);
            // Sequential: evaluated in parallel they would fill the stack.
            oldest = opaque(oldest);
        }
        ((oldest % WAYS as u64) as usize ^ home) as u32 | MISSING
    }

    /// The slot that the last lookup selected.
    ///
    /// Stored in the map, because the verifier tracks constants on every path: it would explore all processing of a
    /// flow once for each way, and again for hits, misses and evictions.
    #[inline(always)]
    pub fn selection(&self) -> Selection {
        let selected = reread(&self.selected);
        Selection { way: selected as usize % WAYS, missing: selected & MISSING != 0 }
    }

    /// Time of last use of the flow in the selected slot; 0 = empty.
    #[inline(always)]
    pub(crate) fn victim_last_seen_ns(&self) -> u64 {
        self.ways[self.selection().way].last_seen_ns()
    }

    /// Removes flows last in use before `before_ns`, and returns their number.
    #[inline(always)]
    pub fn expire(&mut self, before_ns: u64) -> u32 {
        let mut expired = 0;
        for (entry, tag) in self.ways.iter_mut().zip(&mut self.tags) {
            if entry.last_seen_ns() != 0 && entry.last_seen_ns() < before_ns {
                entry.clear();
                *tag = 0;
                expired += 1;
            }
        }
        expired
    }

    /// Whether the set is unlocked.
    pub fn is_at_rest(&self) -> bool {
        self.lock == 0
    }

    /// Stores a new flow in the selected slot.
    #[inline(always)]
    pub fn insert(&mut self, hash: u32, entry: T) {
        let way = self.selection().way;
        self.tags[way] = tag(hash);
        self.ways[way] = entry;
    }
}

/// Tag of a hash, not 0 (an empty slot).
#[inline(always)]
pub const fn tag(hash: u32) -> u32 {
    hash | 1
}

/// Primary way of a hash: its highest bits, which do not select the set.
#[inline(always)]
pub(crate) const fn home_way(hash: u32) -> usize {
    (hash >> (u32::BITS - WAY_BITS)) as usize
}
