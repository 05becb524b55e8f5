//! A set of the RP table as programs on several CPUs share it.
//!
//! Each flow has a lock of its own, in the cache line that each of its packets changes anyway: who only adds a packet to a flow
//! touches nobody else's. The set's lock is for putting a flow in; under it nobody else does, and the place is taken under the
//! lock of the flow that is in it. Who looks for a flow looks without a lock, and makes sure under the flow's.

use super::lock::{TRIES, free, take};
use super::set::{WAY_BITS, home_way, tag};
use super::{Entry, FlowId, RpFlow, RpSet};
use crate::layout::WAYS;
use crate::rate::RpParams;
use crate::verifier::opaque;

/// A set to which others may be writing.
#[derive(Clone, Copy)]
pub struct Shared(*mut RpSet);

/// What is seen of a flow without its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// When the last packet of each [`Stream`](crate::wire::bth::Stream) leaves.
    pub last_ns: [u64; 2],
    /// When its last packet will have left.
    pub next_ns: u64,
    /// Whether it was ever cut.
    pub active: bool,
}

/// Why a flow was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// Another CPU has it, and did not give it back.
    Busy,
    /// The place is another flow's.
    Other,
}

/// Where a flow has its place, and how it came to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// The place, below [`WAYS`].
    pub way: usize,
    /// If it is new: when the flow that was in its place had sent last; 0 = the place was empty.
    pub silent_since_ns: Option<u64>,
}

impl Shared {
    /// A set that others may change by this structure's functions only.
    ///
    /// # Safety
    /// `set` points to one for as long as this is used.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn new(set: *mut RpSet) -> Self {
        Self(set)
    }

    /// The set.
    #[inline(always)]
    pub(super) const fn pointer(self) -> *mut RpSet {
        self.0
    }

    #[inline(always)]
    fn flow(self, way: usize) -> *mut RpFlow {
        // SAFETY: the set is there, as promised to `new`, and has this place.
        unsafe { &raw mut (*self.0).ways[way % WAYS] }
    }

    /// Has the first cache line of the flow at home fetched, to be written to, while the caller does something else.
    ///
    /// A load would not do: reading the clock, which comes next, waits for loads.
    #[inline(always)]
    pub(crate) fn fetch_home(self, hash: u32) {
        // SAFETY: as in `flow`. The highest byte of the lock's word is 0, whoever holds it: nothing changes.
        unsafe {
            let lock = &raw mut (*self.flow(home_way(hash))).lock;
            lock.cast::<u8>().add(HIGHEST_BYTE).write_volatile(0);
        }
    }

    /// Whether the flow is at home, as it is seen without a lock.
    #[inline(always)]
    #[must_use]
    pub(crate) fn is_at_home(self, id: &FlowId, hash: u32) -> bool {
        // SAFETY: as in `flow`; who is there is asked again under its lock.
        unsafe { (*self.flow(home_way(hash))).id == *id }
    }

    /// Where the flow is; [`WAYS`] = nowhere. The verifier knows which on every path, and would follow all that is done with the
    /// flow once for each.
    #[inline(always)]
    #[must_use]
    pub(crate) fn way_of(self, id: &FlowId, hash: u32) -> usize {
        let mut found = WAYS;
        for way in 0..WAYS {
            // SAFETY: as in `flow`; who is there is asked again under its lock.
            let (seen, other) =
                unsafe { ((&raw const (*self.0).tags[way]).read_volatile(), (*self.flow(way)).id) };
            if seen == tag(hash) && other == *id {
                found = way;
                break;
            }
        }
        found
    }

    /// An empty place, that at home if it is, or the one that is out of use for the longest, if one is at `now_ns`. Under the set's
    /// lock.
    #[inline(always)]
    fn victim(self, hash: u32, now_ns: u64) -> Option<usize> {
        let home = home_way(hash);
        // Time and place in one number, so that the verifier does not follow each way by itself: 2^61 ns are 73 years.
        let mut oldest = u64::MAX;
        for way in 0..WAYS {
            // SAFETY: as in `flow`; a flow that is used meanwhile is one that is not taken.
            let in_use_until_ns = unsafe { (*self.flow(way)).in_use_until_ns() };
            // Of empty ways, the one at home is the first.
            oldest = oldest.min(in_use_until_ns << WAY_BITS | (way ^ home) as u64);
            // One after the other: side by side they would fill the stack.
            oldest = opaque(oldest);
        }
        (oldest >> WAY_BITS <= now_ns).then_some((oldest % WAYS as u64) as usize ^ home)
    }

    /// Puts a flow in this place, if the one in it is still out of use at `now_ns`. Returns when that had sent last; 0 = the place
    /// was empty. Under the set's lock.
    #[inline(always)]
    fn put(self, way: usize, id: &FlowId, hash: u32, rp: &RpParams, now_ns: u64) -> Result<u64, Missed> {
        let flow = self.flow(way);
        // SAFETY: as in `flow`; the flow is ours while its lock is held.
        unsafe {
            if !take(&raw mut (*flow).lock, TRIES) {
                return Err(Missed::Busy);
            }
            let is_free = (*flow).in_use_until_ns() <= now_ns;
            let last_seen_ns = (*flow).last_seen_ns();
            if is_free {
                *flow = RpFlow { lock: (*flow).lock, ..RpFlow::new(*id, rp) };
                (&raw mut (*self.0).tags[way % WAYS]).write_volatile(tag(hash));
            }
            free(&raw mut (*flow).lock);
            if is_free { Ok(last_seen_ns) } else { Err(Missed::Other) }
        }
    }

    /// The place of a flow: its own, or one that is out of use at `now_ns`, which it then has; 0 = its own only.
    ///
    /// # Errors
    /// It is nowhere and gets no place, or another CPU is at it.
    #[inline(always)]
    pub(super) fn find_or_put(
        self,
        id: &FlowId,
        hash: u32,
        rp: &RpParams,
        now_ns: u64,
    ) -> Result<Entered, Missed> {
        let way = self.way_of(id, hash);
        if way != WAYS {
            return Ok(Entered { way, silent_since_ns: None });
        }
        if now_ns == 0 {
            return Err(Missed::Other);
        }
        // SAFETY: as in `flow`.
        unsafe {
            let lock = &raw mut (*self.0).lock;
            if !take(lock, TRIES) {
                return Err(Missed::Busy);
            }
            // Another CPU may have been faster.
            let way = self.way_of(id, hash);
            let entered = if way != WAYS {
                Ok(Entered { way, silent_since_ns: None })
            } else if let Some(way) = self.victim(hash, now_ns) {
                self.put(way, id, hash, rp, now_ns)
                    .map(|silent_since_ns| Entered { way, silent_since_ns: Some(silent_since_ns) })
            } else {
                Err(Missed::Other)
            };
            free(lock);
            entered
        }
    }

    /// Runs `f` on the flow `id` in this place, which is the caller's meanwhile.
    ///
    /// # Errors
    /// The place is another's, or another CPU has it.
    #[inline(always)]
    pub fn update<R>(self, way: usize, id: &FlowId, f: impl FnOnce(&mut RpFlow) -> R) -> Result<R, Missed> {
        let flow = self.flow(way);
        // SAFETY: as in `flow`; the flow is ours while its lock is held.
        unsafe {
            if !take(&raw mut (*flow).lock, TRIES) {
                return Err(Missed::Busy);
            }
            let result = if (*flow).id == *id { Ok(f(&mut *flow)) } else { Err(Missed::Other) };
            free(&raw mut (*flow).lock);
            result
        }
    }

    /// The flow in this place, as it is seen without its lock.
    #[inline(always)]
    #[must_use]
    pub(crate) fn glance(self, way: usize) -> Glance {
        let flow = self.flow(way).cast_const();
        // SAFETY: as in `flow`. Each field is read at once; what they are together does not matter.
        unsafe {
            Glance {
                last_ns: (&raw const (*flow).last_ns).read_volatile(),
                next_ns: (&raw const (*flow).pacer.next_ns).read_volatile(),
                active: (&raw const (*flow).machine.active).read_volatile() != 0,
            }
        }
    }

    /// Empties the places of flows that were in use last before `before_ns`, and returns how many.
    #[inline(always)]
    pub fn expire(self, before_ns: u64) -> u32 {
        let mut expired = 0;
        for way in 0..WAYS {
            let flow = self.flow(way);
            // SAFETY: as in `flow`; the flow is ours while its lock is held.
            unsafe {
                // Whoever is being used now is not idle.
                if !take(&raw mut (*flow).lock, 1) {
                    continue;
                }
                if (*flow).last_seen_ns() != 0 && (*flow).in_use_until_ns() < before_ns {
                    (*flow).clear();
                    (&raw mut (*self.0).tags[way]).write_volatile(0);
                    expired += 1;
                }
                free(&raw mut (*flow).lock);
            }
        }
        expired
    }
}

/// Of a word's bytes.
const HIGHEST_BYTE: usize = if cfg!(target_endian = "little") { 3 } else { 0 };
