//! A set of a flow table: who is in which of its eight places.

use crate::layout::WAYS;
use crate::verifier::{opaque, reread};

/// A flow's entry in a set.
pub trait Entry: Copy {
    /// What it is known by.
    type Id: Copy + PartialEq;

    /// Whom it belongs to.
    fn id(&self) -> Self::Id;
    /// When it was used last; 0 = the place is empty.
    fn last_seen_ns(&self) -> u64;
    /// Until when it is in use; 0 = the place is empty. Who is in use the longest keeps its place.
    #[inline(always)]
    fn in_use_until_ns(&self) -> u64 {
        self.last_seen_ns()
    }
    /// Leaves its place empty.
    fn clear(&mut self);
}

/// Makes entries of structures that have `id` and `last_seen_ns` as fields.
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

/// What looking for a flow in its set found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its place, below [`WAYS`].
    pub way: usize,
    /// The flow was not there: what is in its place is another's, or nothing.
    pub missing: bool,
    /// It was not there and another flow is in its place.
    pub evicts: bool,
}

/// One set of a flow table: eight flows under one lock.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<T: Entry> {
    /// 1 while a program holds it. It guards everything below.
    pub lock: u32,
    /// The place used last; see [`Set::place`].
    pub selected: u32,
    /// Tag of each way's hash, so that a miss looks at one cache line; 0 = empty.
    pub tags: [u32; WAYS],
    /// The flows begin at a cache line.
    pub _line: [u32; 6],
    /// The flows.
    pub ways: [T; WAYS],
}

/// Bits of the number of a way.
pub(super) const WAY_BITS: u32 = WAYS.trailing_zeros();
/// Bits of [`Set::selected`] above the way.
const MISSING: u32 = 1 << 8;
const EVICTS: u32 = 1 << 9;

impl<T: Entry> Set<T> {
    /// Selects the place of `id`, whose hash is `hash`: its own, or else an empty one, or the least recently used.
    #[inline(always)]
    pub fn find(&mut self, id: &T::Id, hash: u32) -> Place {
        let home = home_way(hash);
        // Most flows are at home, and there a processor looks before it knows the tags.
        self.selected = if self.tags[home] == tag(hash) && self.ways[home].id() == *id {
            home as u32
        } else {
            match self.way_of(id, hash) {
                Some(way) => way as u32,
                None => self.victim(home),
            }
        };
        self.place()
    }

    #[inline(always)]
    fn way_of(&self, id: &T::Id, hash: u32) -> Option<usize> {
        let tag = tag(hash);
        // The tags share a cache line with the lock: who is there is found without a look at anybody else's.
        for (way, (entry, &entry_tag)) in self.ways.iter().zip(&self.tags).enumerate() {
            if entry_tag == tag && entry.id() == *id {
                return Some(way);
            }
        }
        None
    }

    /// An empty place, or the least recently used, as `selected` has it.
    #[inline(always)]
    fn victim(&self, home: usize) -> u32 {
        // Time and place in one number, so that the verifier does not follow each way by itself: 2^61 ns are 73 years.
        let mut oldest = u64::MAX;
        for (way, entry) in self.ways.iter().enumerate() {
            // Of empty ways, the one at home is the first.
            oldest = oldest.min(entry.in_use_until_ns() << WAY_BITS | (way ^ home) as u64);
            // One after the other: side by side they would fill the stack.
            oldest = opaque(oldest);
        }
        let evicts = if oldest >> WAY_BITS == 0 { MISSING } else { MISSING | EVICTS };
        ((oldest % WAYS as u64) as usize ^ home) as u32 | evicts
    }

    /// The place selected last.
    ///
    /// It takes a detour through the map, because the verifier knows every constant of every path: it would follow all
    /// that is done with a flow once for each way, and again for flows that were there, were not, or push one out.
    #[inline(always)]
    #[must_use]
    pub fn place(&self) -> Place {
        let selected = reread(&self.selected);
        Place {
            way: selected as usize % WAYS,
            missing: selected & MISSING != 0,
            evicts: selected & EVICTS != 0,
        }
    }

    /// When the flow in the place selected was used last; 0 = the place is empty.
    #[inline(always)]
    #[must_use]
    pub(crate) fn victim_last_seen_ns(&self) -> u64 {
        self.ways[self.place().way].last_seen_ns()
    }

    /// Empties the places of flows that were in use last before `before_ns`, and returns how many.
    #[inline(always)]
    pub fn expire(&mut self, before_ns: u64) -> u32 {
        let mut expired = 0;
        for (entry, tag) in self.ways.iter_mut().zip(&mut self.tags) {
            if entry.last_seen_ns() != 0 && entry.in_use_until_ns() < before_ns {
                entry.clear();
                *tag = 0;
                expired += 1;
            }
        }
        expired
    }

    /// Whether no program is changing anything in it.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.lock == 0
    }

    /// Puts a new flow in the place selected.
    #[inline(always)]
    pub fn insert(&mut self, hash: u32, entry: T) {
        let way = self.place().way;
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

/// The way of its set in which a flow of this hash is put if it is empty: by the highest bits, which choose no set.
#[inline(always)]
#[must_use]
pub(crate) const fn home_way(hash: u32) -> usize {
    (hash >> (u32::BITS - WAY_BITS)) as usize
}
