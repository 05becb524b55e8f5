//! A set of the RP table as shared by programs on several CPUs.
//!
//! Each flow has its own lock, on a cache line that its packets dirty anyway, so accounting never contends across
//! flows. The set's lock serialises insertion, which replaces a flow under that flow's lock. Lookup is lockless: the
//! lock word carries a generation, so a compare-and-exchange on the observed word fails if the slot was reused.
//!
//! Memory ordering: locking has acquire and [`release`] release semantics, so the lock orders a flow's fields. Reads
//! without it (tags, fingerprints, lock words, [`FlowPeek`]) need no order, because [`Shared::lock_flow`] compares the
//! fingerprint again under the lock.

use core::ops::{Deref, DerefMut};

use super::entry::CUT_FLOW_KEEPS_PLACE_NS;
use super::lock::{HELD, LockError, TRIES, acquire, acquire_if_unchanged, release};
use super::set::{WAY_BITS, home_way, tag};
use super::{Cnps, FlowId, RpCold, RpHot, RpSet};
use crate::id::hash;
use crate::layout::WAYS;
use crate::rate::{Debt, RateMachine, RpParams};
use crate::verifier::opaque;
use crate::wire::bth::Stream;

/// A set that other CPUs may be changing.
#[derive(Clone, Copy)]
pub struct Shared(*mut RpSet);

/// Fields of a flow read without its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPeek {
    /// Departure time of the last packet of each [`Stream`].
    pub last_ns: [u64; 2],
    /// End of its last packet's transmission.
    pub next_ns: u64,
    /// Whether the flow was ever cut.
    pub active: bool,
}

impl FlowPeek {
    /// Whether earlier packets may wait for their departures at `now_ns`.
    #[inline(always)]
    const fn has_queued(&self, now_ns: u64) -> bool {
        let [requests_ns, responses_ns] = self.last_ns;
        self.next_ns > now_ns || requests_ns > now_ns || responses_ns > now_ns
    }

    /// Until when the slot is in use: while packets are queued, and longer if the flow was cut; 0 = empty slot.
    #[inline(always)]
    pub(super) fn in_use_until_ns(&self) -> u64 {
        let [requests_ns, responses_ns] = self.last_ns;
        let last_seen_ns = requests_ns.max(responses_ns);
        let is_used = (last_seen_ns != 0) as u64;
        let grace_ns = (self.active as u64).wrapping_mul(CUT_FLOW_KEEPS_PLACE_NS);
        last_seen_ns.max(self.next_ns).wrapping_add(grace_ns).wrapping_mul(is_used)
    }
}

/// Adds to a word that other CPUs change too; concurrent additions may be lost.
///
/// # Safety
/// `word` is valid for reads and writes.
#[inline(always)]
unsafe fn add(word: *mut u64, n: u64) {
    // SAFETY: required of the caller.
    unsafe { word.write_volatile(word.read_volatile().wrapping_add(n)) }
}

/// The unlocked word of a flow's lock, as observed by a lookup.
#[derive(Clone, Copy)]
pub(crate) struct LockWord(u32);

/// Exclusive access to a flow; dropping it releases the lock.
pub(crate) struct FlowGuard {
    flow: *mut RpHot,
    cold: *mut RpCold,
    seen: LockWord,
}

impl FlowGuard {
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
        // SAFETY: `Shared::new` requires a live set, and the guard holds the flow's lock.
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
        unsafe { release(&raw mut (*self.flow).lock, self.seen.0) }
    }
}

/// Reason for not changing a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// Another CPU held the lock at every attempt.
    Contended,
    /// The slot holds another flow.
    Evicted,
}

/// Slot of a flow, and how it was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The way, below [`WAYS`].
    pub way: usize,
    /// For an inserted flow: when the evicted flow had last sent; 0 = the slot was empty.
    pub silent_since_ns: Option<u64>,
}

impl Shared {
    /// Wraps a set that other CPUs change through this type only.
    ///
    /// # Safety
    /// `set` points to a set that outlives the returned value.
    #[inline(always)]
    pub const unsafe fn new(set: *mut RpSet) -> Self {
        Self(set)
    }

    #[inline(always)]
    pub(super) const fn pointer(self) -> *mut RpSet {
        self.0
    }

    #[inline(always)]
    fn flow(self, way: usize) -> *mut RpHot {
        // SAFETY: `new` requires a live set, and `way` is below `WAYS`.
        unsafe { &raw mut (*self.0).hot[way % WAYS] }
    }

    #[inline(always)]
    fn cold(self, way: usize) -> *mut RpCold {
        // SAFETY: as in `flow`.
        unsafe { &raw mut (*self.0).cold[way % WAYS] }
    }

    /// Prefetches, for writing, the first cache line of the flow in the primary way.
    ///
    /// A load would not do: the clock is read next, which waits for loads.
    #[inline(always)]
    pub(crate) fn fetch_home(self, hash: u32) {
        // SAFETY: as in `flow`. The highest byte of the lock's word is always 0: nothing changes. Ordering: none. A
        // concurrent exchange of the word succeeds or is repeated, and stores the same byte.
        unsafe {
            let lock = &raw mut (*self.flow(home_way(hash))).lock;
            lock.cast::<u8>().add(HIGHEST_BYTE).write_volatile(0);
        }
    }

    /// Lockless check that the flow with this fingerprint is in this way.
    #[inline(always)]
    pub(crate) fn find_at(self, way: usize, fingerprint: u64) -> Option<LockWord> {
        let flow = self.flow(way);
        // SAFETY: as in `flow`. If the two loads are reordered, or the slot is reused between them, `lock_flow` fails.
        unsafe {
            let seen = (&raw const (*flow).lock).read_volatile() & !HELD;
            ((&raw const (*flow).fingerprint).read_volatile() == fingerprint).then_some(LockWord(seen))
        }
    }

    /// Locks the flow that [`find_at`](Self::find_at) found in this way.
    ///
    /// # Errors
    /// The slot was reused, or another CPU holds the lock.
    #[inline(always)]
    pub(crate) fn lock_flow(
        self,
        way: usize,
        fingerprint: u64,
        seen: LockWord,
    ) -> Result<FlowGuard, LookupError> {
        let flow = self.flow(way);
        // SAFETY: as in `flow`; the flow is ours while we hold its lock.
        unsafe {
            match acquire_if_unchanged(&raw mut (*flow).lock, seen.0) {
                Ok(()) => {}
                Err(LockError::Contended) => return Err(LookupError::Contended),
                Err(LockError::Changed) => return Err(LookupError::Evicted),
            }
            let guard = FlowGuard { flow, cold: self.cold(way), seen };
            // The word may already have been the next owner's while the fingerprint was still the last one's.
            if guard.fingerprint == fingerprint { Ok(guard) } else { Err(LookupError::Evicted) }
        }
    }

    /// Passes a packet of the flow in this way without lock and departure time.
    ///
    /// Returns false, having changed nothing, if the flow is not there, earlier packets may still wait, or
    /// the rate machine limits it. `now_ns` may lag behind the clock.
    ///
    /// `data` is what the packet is charged with: packets and bytes. A packet without data is never limited.
    ///
    /// The rate does not increase here: the next CNP first applies the increases that are due. If two CPUs
    /// send packets of one QP at once, one of them may not be counted; if the slot is reused at that instant,
    /// the new flow may be charged with the packet.
    #[inline(always)]
    #[must_use]
    pub(crate) fn pass_unpaced(
        self,
        way: usize,
        fingerprint: u64,
        rp: &RpParams,
        now_ns: u64,
        data: Option<(Stream, u64, u64)>,
    ) -> bool {
        if self.fingerprint(way) != fingerprint {
            return false;
        }
        let (flow, peek) = (self.flow(way), self.peek(way));
        if peek.has_queued(now_ns) {
            return false;
        }
        let Some((stream, packets, bytes)) = data else { return true };
        // SAFETY: as in `flow`. Other CPUs may change the flow: each field is read and written atomically,
        // and what is written is valid in any state of it. Ordering: none. No rate is written, so a cut on
        // another CPU is not undone; the bytes counted before it may survive it, so that the byte counter
        // expires early once.
        unsafe {
            let machine = &raw mut (*flow).machine;
            let mut seen = RateMachine { active: peek.active.into(), ..RateMachine::new(rp) };
            if peek.active {
                seen.rate_bps = (&raw const (*machine).rate_bps).read_volatile();
                seen.target_bps = (&raw const (*machine).target_bps).read_volatile();
                seen.pending = (&raw const (*machine).pending).read_volatile();
                if !seen.is_at_line_rate(rp) {
                    return false;
                }
            }
            seen.bytes = (&raw const (*machine).bytes).read_volatile();
            if let Some(bytes) = seen.bytes_at_line_rate(rp, bytes) {
                (&raw mut (*machine).bytes).write_volatile(bytes);
            }
            (&raw mut (*flow).last_ns[stream as usize]).write_volatile(now_ns);
            add(&raw mut (*flow).packets, packets);
            add(&raw mut (*flow).bytes, bytes);
        }
        true
    }

    /// The way of the flow; [`WAYS`] = absent. The verifier knows the result on every path, and would explore all
    /// processing of the flow once for each.
    #[inline(always)]
    pub(crate) fn way_of(self, fingerprint: u64) -> usize {
        let (tag, mut found) = (tag(hash(fingerprint)), WAYS);
        for way in 0..WAYS {
            // SAFETY: as in `flow`; the fingerprint is checked again under the flow's lock.
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

    /// The way of the only flow that equals `id` apart from its VLANs; [`WAYS`] = none, or several.
    #[inline(always)]
    pub(super) fn way_in_any_vlan(self, id: &FlowId) -> usize {
        let (mut found, mut flows) = (WAYS, 0);
        for way in 0..WAYS {
            // SAFETY: as in `flow`. Ordering: none. A name that is copied while the slot is reused may be of
            // neither flow; the caller locks the slot only with the fingerprint of the name it searches for.
            let (of, is_there) =
                unsafe { ((&raw const (*self.cold(way)).id).read_volatile(), self.fingerprint(way) != 0) };
            let has_same_name = of.src == id.src
                && of.receiver.addr == id.receiver.addr
                && of.receiver.qpn == id.receiver.qpn;
            if is_there && has_same_name {
                (found, flows) = (way, flows + 1);
            }
        }
        if flows == 1 { found } else { WAYS }
    }

    /// VLAN of the flow in this way, read without its lock.
    #[inline(always)]
    pub(crate) fn vlan(self, way: usize) -> u32 {
        // SAFETY: as in `flow`.
        unsafe { (&raw const (*self.cold(way)).id.receiver.vlan).read_volatile() }
    }

    /// Fingerprint of the flow in this way, read without its lock; 0 = empty.
    #[inline(always)]
    fn fingerprint(self, way: usize) -> u64 {
        // SAFETY: as in `flow`.
        unsafe { (&raw const (*self.flow(way)).fingerprint).read_volatile() }
    }

    /// An empty way, the primary one if possible, else the one idle for longest, if any is idle at `now_ns`. The caller
    /// holds the set's lock.
    #[inline(always)]
    fn victim(self, home: usize, now_ns: u64) -> Option<usize> {
        // Time and way in one number, so that the verifier does not follow each way separately: 2^61 ns are 73 years.
        let mut oldest = u64::MAX;
        for way in 0..WAYS {
            // A flow used in the meantime is not evicted: `put` checks again, under its lock.
            let in_use_until_ns = self.peek(way).in_use_until_ns();
            // Of the empty ways, prefer the primary one.
            oldest = oldest.min(in_use_until_ns << WAY_BITS | (way ^ home) as u64);
            // Sequential: evaluated in parallel they would fill the stack.
            oldest = opaque(oldest);
        }
        // Linux 6.1 tracks no bounds through `^`: hidden, so that the mask is applied again where the way is used.
        (oldest >> WAY_BITS <= now_ns).then_some(opaque((oldest % WAYS as u64) as usize ^ home))
    }

    /// Stores a flow in this way if the flow in it is still idle at `now_ns`. Returns when that had last sent; 0 = the
    /// slot was empty. The caller holds the set's lock.
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
        // SAFETY: as in `flow`; the flow is ours while we hold its lock.
        unsafe {
            let Some(word) = acquire(&raw mut (*flow).lock, TRIES) else {
                return Err(LookupError::Contended);
            };
            if self.peek(way).in_use_until_ns() > now_ns {
                release(&raw mut (*flow).lock, word);
                return Err(LookupError::Evicted);
            }
            let (last_seen_ns, word) = ((*flow).last_seen_ns(), next_generation(word));
            // The word before the fingerprint, on x86: a concurrent lookup waits here and not in a failing exchange.
            (&raw mut (*flow).lock).write_volatile(word | HELD);
            // The time before the flow's first packet sets one: a slot without is empty, and free to other CPUs.
            *flow = RpHot { lock: word | HELD, last_ns: [now_ns, 0], ..RpHot::new(fingerprint, rp) };
            let cold = self.cold(way);
            ((*cold).id, (*cold).cnps) = (*id, Cnps::NONE);
            (&raw mut (*self.0).tags[way % WAYS]).write_volatile(tag(hash(fingerprint)));
            release(&raw mut (*flow).lock, word);
            Ok(last_seen_ns)
        }
    }

    /// Finds the slot of a flow, or claims one that is idle at `now_ns`; `now_ns` = 0 searches only.
    ///
    /// # Errors
    /// The flow is absent and no way is idle, or another CPU holds the lock.
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
            if acquire_if_unchanged(lock, 0) != Ok(()) {
                return Err(LookupError::Contended);
            }
            // Another CPU may have inserted it first.
            let way = self.way_of(fingerprint);
            let entered = if way != WAYS {
                Ok(Slot { way, silent_since_ns: None })
            } else if let Some(way) = self.victim(home_way(hash(fingerprint)), now_ns) {
                self.put(way, id, fingerprint, rp, now_ns)
                    .map(|silent_since_ns| Slot { way, silent_since_ns: Some(silent_since_ns) })
            } else {
                Err(LookupError::Evicted)
            };
            release(lock, 0);
            entered
        }
    }

    /// The flow in this way, read without its lock.
    #[inline(always)]
    pub(crate) fn peek(self, way: usize) -> FlowPeek {
        let flow = self.flow(way).cast_const();
        // SAFETY: as in `flow`. Each field is read atomically; they need not be consistent with each other.
        unsafe {
            FlowPeek {
                last_ns: (&raw const (*flow).last_ns).read_volatile(),
                next_ns: (&raw const (*flow).next_ns).read_volatile(),
                active: (&raw const (*flow).machine.active).read_volatile() != 0,
            }
        }
    }

    /// Removes flows last in use before `before_ns`, and returns their number.
    #[inline(always)]
    pub fn expire(self, before_ns: u64) -> u32 {
        let mut expired = 0;
        for way in 0..WAYS {
            let flow = self.flow(way);
            // First without the lock: before Linux 6.3 this program can be interrupted while it holds one.
            let [requests_ns, responses_ns] = self.peek(way).last_ns;
            if self.fingerprint(way) == 0 || requests_ns.max(responses_ns) >= before_ns {
                continue;
            }
            // SAFETY: as in `flow`; the flow is ours while we hold its lock.
            unsafe {
                // A locked flow is in use, hence not idle.
                let Some(mut word) = acquire(&raw mut (*flow).lock, 1) else { continue };
                let in_use_until_ns = self.peek(way).in_use_until_ns();
                if in_use_until_ns != 0 && in_use_until_ns < before_ns {
                    // A lookup that still finds the tag compares the fingerprint too.
                    ((*flow).fingerprint, (*flow).last_ns) = (0, [0; 2]);
                    (&raw mut (*self.0).tags[way]).write_volatile(0);
                    word = next_generation(word);
                    expired += 1;
                }
                release(&raw mut (*flow).lock, word);
            }
        }
        expired
    }
}

/// A lock's word with the next generation. The highest byte stays 0; see [`Shared::fetch_home`].
const fn next_generation(word: u32) -> u32 {
    word.wrapping_add(HELD << 1) & 0xff_ffff
}

const HIGHEST_BYTE: usize = if cfg!(target_endian = "little") { 3 } else { 0 };

impl RpHot {
    /// Whether a program is changing it.
    pub const fn is_held(&self) -> bool {
        self.lock & HELD != 0
    }
}
