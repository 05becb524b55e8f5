//! A set of the RP table as programs on several CPUs share it.
//!
//! Each flow has a lock of its own, in the cache line that each of its packets changes anyway: who only adds a packet to a flow
//! touches nobody else's. The set's lock is for putting a flow in; under it nobody else does, and the place is taken under the
//! lock of the flow that is in it. Who looks for a flow looks without a lock. The lock's word says how often its place has changed
//! hands, so who then takes the lock of that very word has the flow that was seen.

use core::ops::{Deref, DerefMut};

use super::lock::{HELD, Refused, TRIES, free, take, take_as_seen};
use super::set::{WAY_BITS, home_way, tag};
use super::{Cnps, FlowId, RpCold, RpHot, RpSet, wait};
use crate::id::hash;
use crate::layout::WAYS;
use crate::rate::{Debt, RpParams};
use crate::verifier::opaque;

/// A set to which others may be writing.
#[derive(Clone, Copy)]
pub struct Shared(*mut RpSet);

/// What is seen of a flow without its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPeek {
    /// When the last packet of each [`Stream`](crate::wire::bth::Stream) leaves.
    pub last_ns: [u64; 2],
    /// When its last packet will have left.
    pub next_ns: u64,
    /// Whether it was ever cut.
    pub active: bool,
}

/// A flow that was seen in a place: what its lock's word was, with nobody holding it.
#[derive(Clone, Copy)]
pub(crate) struct LockWord(u32);

/// A flow that is its holder's until this is dropped.
pub(crate) struct FlowGuard {
    flow: *mut RpHot,
    cold: *mut RpCold,
    seen: LockWord,
}

impl FlowGuard {
    /// As [`RpHot::on_cnp`].
    #[inline(always)]
    pub(crate) fn on_cnp(&mut self, rp: &RpParams, now_ns: u64, debt: &mut Debt) -> bool {
        // SAFETY: as in `deref`.
        let cnps = unsafe { &mut (*self.cold).cnps };
        RpHot::on_cnp(self, cnps, rp, now_ns, debt)
    }
}

impl Deref for FlowGuard {
    type Target = RpHot;

    #[inline(always)]
    fn deref(&self) -> &RpHot {
        // SAFETY: the set is there, as promised to `Shared::new`, and the flow's lock is held.
        unsafe { &*self.flow }
    }
}

impl DerefMut for FlowGuard {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut RpHot {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.flow }
    }
}

impl Drop for FlowGuard {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: as in `deref`.
        unsafe { free(&raw mut (*self.flow).lock, self.seen.0) }
    }
}

/// Why a flow was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// Another CPU has it, and did not give it back.
    Contended,
    /// The place is another flow's.
    Evicted,
}

/// Where a flow has its place, and how it came to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
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
    fn flow(self, way: usize) -> *mut RpHot {
        // SAFETY: the set is there, as promised to `new`, and has this place.
        unsafe { &raw mut (*self.0).hot[way % WAYS] }
    }

    #[inline(always)]
    fn cold(self, way: usize) -> *mut RpCold {
        // SAFETY: as in `flow`.
        unsafe { &raw mut (*self.0).cold[way % WAYS] }
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

    /// The flow in this place, if it is the one of that fingerprint as it is seen without its lock.
    #[inline(always)]
    #[must_use]
    pub(crate) fn look(self, way: usize, fingerprint: u64) -> Option<LockWord> {
        let flow = self.flow(way);
        // SAFETY: as in `flow`. The word first: a fingerprint that came after it has another word.
        unsafe {
            let seen = (&raw const (*flow).lock).read_volatile() & !HELD;
            ((&raw const (*flow).fingerprint).read_volatile() == fingerprint).then_some(LockWord(seen))
        }
    }

    /// Takes the flow that was seen in this place for the caller.
    ///
    /// # Errors
    /// The place is another's by now, or another CPU has it.
    #[inline(always)]
    pub(crate) fn hold(self, way: usize, fingerprint: u64, seen: LockWord) -> Result<FlowGuard, LookupError> {
        let flow = self.flow(way);
        // SAFETY: as in `flow`; the flow is ours while its lock is held.
        unsafe {
            match wait::take(flow, seen.0) {
                Ok(()) => {}
                Err(Refused::FlowGuard) => return Err(LookupError::Contended),
                Err(Refused::Changed) => return Err(LookupError::Evicted),
            }
            let held = FlowGuard { flow, cold: self.cold(way), seen };
            // The word may have been that of the next owner already, and the fingerprint still that of the last.
            if held.fingerprint == fingerprint { Ok(held) } else { Err(LookupError::Evicted) }
        }
    }

    /// Where the flow is; [`WAYS`] = nowhere. The verifier knows which on every path, and would follow all that is done with the
    /// flow once for each.
    #[inline(always)]
    #[must_use]
    pub(crate) fn way_of(self, fingerprint: u64) -> usize {
        let (tag, mut found) = (tag(hash(fingerprint)), WAYS);
        for way in 0..WAYS {
            // SAFETY: as in `flow`; who is there is asked again under its lock.
            let is_here = unsafe {
                (&raw const (*self.0).tags[way]).read_volatile() == tag
                    && (&raw const (*self.flow(way)).fingerprint).read_volatile() == fingerprint
            };
            if is_here {
                found = way;
                break;
            }
        }
        found
    }

    /// The only flow that is called `id` but for its VLANs; [`WAYS`] = there is none, or more than one.
    #[inline(always)]
    #[must_use]
    pub(super) fn way_in_any_vlan(self, id: &FlowId) -> usize {
        let (mut found, mut flows) = (WAYS, 0);
        for way in 0..WAYS {
            // SAFETY: as in `flow`; who is there is asked again under its lock.
            let (of, is_there) =
                unsafe { ((&raw const (*self.cold(way)).id).read_volatile(), self.fingerprint(way) != 0) };
            let is_called_so = of.src == id.src
                && of.receiver.addr == id.receiver.addr
                && of.receiver.qpn == id.receiver.qpn;
            if is_there && is_called_so {
                (found, flows) = (way, flows + 1);
            }
        }
        if flows == 1 { found } else { WAYS }
    }

    /// The fingerprint of the flow in this place, as it is seen without its lock; 0 = the place is empty.
    #[inline(always)]
    #[must_use]
    pub(crate) fn fingerprint(self, way: usize) -> u64 {
        // SAFETY: as in `flow`.
        unsafe { (&raw const (*self.flow(way)).fingerprint).read_volatile() }
    }

    /// An empty place, that at home if it is, or the one that is out of use for the longest, if one is at `now_ns`. Under the set's
    /// lock.
    #[inline(always)]
    fn victim(self, home: usize, now_ns: u64) -> Option<usize> {
        // Time and place in one number, so that the verifier does not follow each way by itself: 2^61 ns are 73 years.
        let mut oldest = u64::MAX;
        for way in 0..WAYS {
            // SAFETY: as in `flow`; a flow that is used in the meantime is one that is not taken.
            let in_use_until_ns = unsafe { (*self.flow(way)).in_use_until_ns() };
            // Of empty ways, the one at home is the first.
            oldest = oldest.min(in_use_until_ns << WAY_BITS | (way ^ home) as u64);
            // One after the other: side by side they would fill the stack.
            oldest = opaque(oldest);
        }
        // Linux 6.1 knows no bounds of what `^` gives: hidden, so that it is made a place's number again where it is used.
        (oldest >> WAY_BITS <= now_ns).then_some(opaque((oldest % WAYS as u64) as usize ^ home))
    }

    /// Puts a flow in this place, if the one in it is still out of use at `now_ns`. Returns when that had sent last; 0 = the place
    /// was empty. Under the set's lock.
    #[inline(always)]
    fn put(
        self,
        way: usize,
        id: &FlowId,
        fingerprint: u64,
        rp: &RpParams,
        now_ns: u64,
    ) -> Result<u64, LookupError> {
        let flow = self.flow(way);
        // SAFETY: as in `flow`; the flow is ours while its lock is held.
        unsafe {
            let Some(word) = take(&raw mut (*flow).lock, TRIES) else {
                return Err(LookupError::Contended);
            };
            if (*flow).in_use_until_ns() > now_ns {
                free(&raw mut (*flow).lock, word);
                return Err(LookupError::Evicted);
            }
            let (last_seen_ns, word) = ((*flow).last_seen_ns(), other_hands(word));
            // The word before the fingerprint: who is looked for here in the meantime waits, and then looks again whose place it is.
            (&raw mut (*flow).lock).write_volatile(word | HELD);
            *flow = RpHot { lock: word | HELD, ..RpHot::new(fingerprint, rp) };
            let cold = self.cold(way);
            ((*cold).id, (*cold).cnps) = (*id, Cnps::NONE);
            (&raw mut (*self.0).tags[way % WAYS]).write_volatile(tag(hash(fingerprint)));
            free(&raw mut (*flow).lock, word);
            Ok(last_seen_ns)
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
        fingerprint: u64,
        rp: &RpParams,
        now_ns: u64,
    ) -> Result<Slot, LookupError> {
        let way = self.way_of(fingerprint);
        if way != WAYS {
            return Ok(Slot { way, silent_since_ns: None });
        }
        if now_ns == 0 {
            return Err(LookupError::Evicted);
        }
        // SAFETY: as in `flow`.
        unsafe {
            let lock = &raw mut (*self.0).lock;
            if take_as_seen(lock, 0, TRIES) != Ok(()) {
                return Err(LookupError::Contended);
            }
            // Another CPU may have been faster.
            let way = self.way_of(fingerprint);
            let entered = if way != WAYS {
                Ok(Slot { way, silent_since_ns: None })
            } else if let Some(way) = self.victim(home_way(hash(fingerprint)), now_ns) {
                self.put(way, id, fingerprint, rp, now_ns)
                    .map(|silent_since_ns| Slot { way, silent_since_ns: Some(silent_since_ns) })
            } else {
                Err(LookupError::Evicted)
            };
            free(lock, 0);
            entered
        }
    }

    /// The flow in this place, as it is seen without its lock.
    #[inline(always)]
    #[must_use]
    pub(crate) fn glance(self, way: usize) -> FlowPeek {
        let flow = self.flow(way).cast_const();
        // SAFETY: as in `flow`. Each field is read at once; what they are together does not matter.
        unsafe {
            FlowPeek {
                last_ns: (&raw const (*flow).last_ns).read_volatile(),
                next_ns: (&raw const (*flow).next_ns).read_volatile(),
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
                let Some(mut word) = take(&raw mut (*flow).lock, 1) else {
                    continue;
                };
                if (*flow).last_seen_ns() != 0 && (*flow).in_use_until_ns() < before_ns {
                    // Who looks for it looks at no tag.
                    ((*flow).fingerprint, (*flow).last_ns) = (0, [0; 2]);
                    (&raw mut (*self.0).tags[way]).write_volatile(0);
                    word = other_hands(word);
                    expired += 1;
                }
                free(&raw mut (*flow).lock, word);
            }
        }
        expired
    }
}

/// A lock's word after its place has changed hands. The highest byte stays 0; see [`Shared::fetch_home`].
const fn other_hands(word: u32) -> u32 {
    word.wrapping_add(HELD << 1) & 0xff_ffff
}

/// Of a word's bytes.
const HIGHEST_BYTE: usize = if cfg!(target_endian = "little") { 3 } else { 0 };

impl RpHot {
    /// Whether a program is changing it.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.lock & HELD != 0
    }
}
