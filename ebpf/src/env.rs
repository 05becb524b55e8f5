//! Environment shared by the XDP and TC hooks: parameters, counters, tables, time and randomness.

use core::intrinsics::{AtomicOrdering, atomic_cxchg};
use core::ptr::NonNull;

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_ktime_get_coarse_ns, bpf_ktime_get_ns};
use dcqcn_common::events::{self, Event, Table};
use dcqcn_common::flow::{FlowId, NpPeek, NpSet, QpId, Shared};
use dcqcn_common::hooks;
use dcqcn_common::layout::{Backlog, CLASSES, ClassCounters, Counters, Cut, Mode, Pair, PauseCounters, Time};
use dcqcn_common::params::Params;
use dcqcn_common::rate::Debt;
use dcqcn_common::recovery::{Requester, SharedRequester};
use dcqcn_common::rng;
use dcqcn_common::stats::Stat;
use dcqcn_common::vqueue::{Enqueued, Share};

use crate::lock::locked;
use crate::maps::{
    BACKLOG, CM, COUNTERS, CUTS, ENTRY, EVENTS, HANDED, INGRESS_BYTES, LEARNED, NAKS_IN_READS, NP, PAIRS,
    PAIRS_NS, PARAMS, QUEUE, REQUESTERS, REQUESTS, RP, SHARES, STALE_ACKS, TIMES_NS, active_slot,
    classifies_all, mode, test,
};
use crate::trace::PacketTrace;

/// The learned pairs are shared by all attachments, and so is the limit of learning.
#[inline(always)]
fn time_slot(which: Time) -> Option<*mut u64> {
    if which == Time::PAIRS { PAIRS_NS.get_ptr_mut(0) } else { TIMES_NS.get_ptr_mut(which.index() as u32) }
}

/// Removes the flows of set `index` of `table` that were last used before `before_ns`; returns how many.
///
/// Expired flows are counted on the hook that counts the table's new flows.
#[inline(always)]
pub fn expire(table: u32, index: u32, before_ns: u64) -> u32 {
    let (expired, hook, stat) = if table == Table::Rp as u32 {
        // Empty without pacing: the verifier skips the code below.
        if mode() == Mode::Marking as u32 {
            return 0;
        }
        // SAFETY: a map value.
        let expired = RP.get_ptr_mut(index).map(|set| unsafe { Shared::new(set) }.expire(before_ns));
        (expired, Hook::Egress, Stat::RpFlowExpired)
    } else {
        let expired = locked(
            NP.get_ptr_mut(index),
            #[inline(always)]
            |set| set.expire(before_ns),
        );
        (expired, Hook::Ingress, Stat::NpFlowExpired)
    };
    let expired = expired.unwrap_or(0);
    count(hook, stat, expired);
    expired
}

/// Adds to a counter outside a hook's run.
#[inline(always)]
pub fn count(hook: Hook, stat: Stat, n: u32) {
    if let Some(counters) = COUNTERS.get_ptr_mut(hook as u32) {
        // SAFETY: this CPU's slot of a per-CPU map; the hook that may interrupt leaves this counter alone.
        unsafe { (*counters).stat[stat as usize] += u64::from(n) };
    }
}

/// Slots of [`COUNTERS`].
#[derive(Clone, Copy)]
pub enum Hook {
    Xdp = 0,
    Ingress = 1,
    Egress = 2,
}

/// One packet's view of the maps.
pub struct Env {
    counters: NonNull<Counters>,
    now_ns: u64,
    /// Index in [`SIBLINGS`](crate::maps::SIBLINGS) of the next program to try for a CNP.
    pub next_sibling: u32,
    pub trace: PacketTrace,
}

impl Env {
    /// `None` never happens; the verifier requires the check.
    #[inline(always)]
    pub fn new(hook: Hook) -> Option<Self> {
        let counters = NonNull::new(COUNTERS.get_ptr_mut(hook as u32)?)?;
        Some(Self { counters, now_ns: 0, next_sibling: 0, trace: PacketTrace::discarded()? })
    }

    /// This CPU's counters.
    #[inline(always)]
    fn counters(&mut self) -> &mut Counters {
        // SAFETY: this CPU's slot of a per-CPU map; hooks of one kind do not interrupt each other on a CPU.
        // Ordering: user space reads each aligned word whole, and needs no order between counters.
        unsafe { self.counters.as_mut() }
    }
}

impl hooks::Env<'static> for Env {
    #[inline(always)]
    fn params(&self) -> Option<&'static Params> {
        PARAMS.get(active_slot())
    }

    #[inline(always)]
    fn classifies_all(&self) -> bool {
        classifies_all()
    }

    /// Constant after loading, so the verifier skips the code of pacing, most of its work.
    #[inline(always)]
    fn paces(&self) -> bool {
        mode() != Mode::Marking as u32
    }

    /// Constant after loading, except under test, where the parameters decide.
    #[inline(always)]
    fn is_inline(&self, p: &Params) -> bool {
        mode() == Mode::Inline as u32 || p.port.ifindex[1] != 0
    }

    #[inline(always)]
    fn now_ns(&mut self) -> u64 {
        if self.now_ns == 0 {
            self.now_ns = match test() {
                // SAFETY: a map value, live as long as the program runs.
                Some(test) => unsafe { (*test).now_ns },
                // SAFETY: takes no arguments.
                None => unsafe { bpf_ktime_get_ns() },
            };
        }
        self.now_ns
    }

    #[inline(always)]
    fn coarse_ns(&mut self) -> u64 {
        if self.now_ns != 0 || test().is_some() {
            return self.now_ns();
        }
        // SAFETY: takes no arguments.
        unsafe { bpf_ktime_get_coarse_ns() }
    }

    #[inline(always)]
    fn random_u32(&mut self) -> u32 {
        match test() {
            Some(test) => {
                // SAFETY: a map value; programs under test run one at a time.
                unsafe {
                    (*test).random = rng::next((*test).random);
                    rng::value((*test).random)
                }
            }
            // SAFETY: takes no arguments.
            None => unsafe { bpf_get_prandom_u32() },
        }
    }

    /// Passes `value` through a map, because the verifier does not track values read from there.
    #[inline(always)]
    fn opaque(&mut self, value: u32) -> u32 {
        let opaque_slot = &raw mut self.counters().opaque_slot;
        // SAFETY: a field of a live reference.
        unsafe {
            opaque_slot.write_volatile(value.into());
            opaque_slot.read_volatile() as u32
        }
    }

    #[inline(always)]
    fn opaque_flow(&mut self, id: FlowId) -> FlowId {
        let scratch = &raw mut self.counters().lookup_key;
        // SAFETY: a field of a live reference.
        unsafe {
            scratch.write_volatile(id);
            scratch.read_volatile()
        }
    }

    #[inline(always)]
    fn count(&mut self, stat: Stat) {
        self.trace.count_stat(stat, 1);
        self.counters().stat[stat as usize] += 1;
    }

    #[inline(always)]
    fn count_many(&mut self, stat: Stat, n: u64) {
        self.trace.count_stat(stat, n);
        self.counters().stat[stat as usize] += n;
    }

    /// This CPU's counters of class `tc`.
    #[inline(always)]
    fn class(&mut self, tc: usize) -> &mut ClassCounters {
        &mut self.counters().class[tc % CLASSES]
    }

    #[inline(always)]
    fn pauses(&mut self) -> &mut PauseCounters {
        &mut self.counters().pause
    }

    #[inline(always)]
    fn queue(&mut self, index: u32, update: impl Fn(u64, Share) -> Enqueued) -> Option<u64> {
        let (queue, own) = (QUEUE.get_ptr_mut(index)?, SHARES.get_ptr_mut(index)?);
        // SAFETY: a map value. Other CPUs change `empty_at` concurrently: every access is atomic.
        let empty_at = unsafe { &raw mut (*queue).empty_at };
        // SAFETY: as above.
        let seen = unsafe { empty_at.read_volatile() };
        // SAFETY: this CPU's value of a per-CPU map; programs run with bottom halves off, so none interrupts
        // another here.
        let next = update(seen, unsafe { *own });
        // Tried once: if another CPU wins, the batch is published with the next packet.
        //
        // SAFETY: as above. Ordering: the word is the whole state shared with other CPUs, so none is needed;
        // the result is used, so Relaxed would be miscompiled (LLVM #210280).
        let is_published = next.empty_at != seen
            && unsafe {
                atomic_cxchg::<u64, { AtomicOrdering::AcqRel }, { AtomicOrdering::Acquire }>(
                    empty_at,
                    seen,
                    next.empty_at,
                )
            }
            .1;
        // SAFETY: as above.
        unsafe { *own = if is_published { next.share.after_publishing() } else { next.share } };
        Some(next.depth_bytes)
    }

    #[inline(always)]
    fn count_ingress(&mut self, ingress_ifindex: u32, queue: usize, bytes: u64) {
        if let Some(received) =
            INGRESS_BYTES.get_ptr_mut(ingress_ifindex).or_else(|| INGRESS_BYTES.get_ptr_mut(0))
        {
            // SAFETY: this CPU's value of a per-CPU map; its memory is type-stable, and programs run with
            // bottom halves off. If the entry is removed concurrently it may already belong to another
            // port, which then counts one packet too many. Ordering: as for the counters.
            unsafe { (*received)[queue % CLASSES] += bytes };
        }
    }

    #[inline(always)]
    fn backlog(&self, index: u32) -> Option<Backlog> {
        // Ordering: none. Bytes and time may be of two successive readings, which is within the age that is accepted.
        BACKLOG.get(index).copied()
    }

    #[inline(always)]
    fn time(&self, which: Time) -> u64 {
        // SAFETY: a map value. Other CPUs write it concurrently: the read returns one of their values.
        // Ordering: each time is used alone. Two CPUs that read a limiter before either writes it may both be
        // admitted.
        time_slot(which).map_or(0, |at_ns| unsafe { at_ns.read_volatile() })
    }

    #[inline(always)]
    fn set_time(&mut self, which: Time, at_ns: u64) {
        if let Some(time) = time_slot(which) {
            // SAFETY: as above.
            unsafe { time.write_volatile(at_ns) };
        }
    }

    #[inline(always)]
    fn announced_qpn(&self, id: &QpId) -> Option<u32> {
        // SAFETY: only a number is copied out.
        unsafe { CM.get(id) }.copied()
    }

    #[inline(always)]
    fn is_from_sibling(&mut self) -> bool {
        if let Some(next_slot) = HANDED.get_ptr_mut(0) {
            // SAFETY: this CPU's slot, used only by the TC ingress programs, one at a time.
            self.next_sibling = unsafe { core::mem::take(&mut *next_slot) };
        }
        self.next_sibling != 0
    }

    #[inline(always)]
    fn set_announced_qpn(&mut self, id: &QpId, qpn: u32) {
        // On failure the connection stays unknown, as if it had not been seen.
        let _ = CM.insert(id, qpn, 0);
    }

    #[inline(always)]
    fn pair(&self, id: &QpId) -> Option<Pair> {
        let entry = ENTRY.get_ptr_mut(0)?;
        // SAFETY: this CPU's value of a per-CPU map, not used by another program that interrupts this one.
        // Only integers are copied out of the tables. A concurrent replacement may yield another valid
        // pair, or a mix of two; the next packet corrects that.
        unsafe {
            // Pairs configured by the daemon apply to every VLAN.
            (*entry).0 = QpId { vlan: 0, ..*id };
            let key = &(*entry).0;
            let entered = PAIRS.get(key).copied();
            if entered.is_some() {
                return entered;
            }
            (*entry).0.vlan = id.vlan;
            let key = &(*entry).0;
            LEARNED.get(key).copied()
        }
    }

    #[inline(always)]
    fn learn_pair(&mut self, id: &QpId, pair: Pair) {
        let Some(entry) = ENTRY.get_ptr_mut(0) else { return };
        // SAFETY: as in `pair`. On failure the pair stays unknown, and the next packet retries.
        unsafe {
            *entry = (*id, pair);
            let (key, value) = &*entry;
            let _ = LEARNED.insert(key, value, 0);
        }
    }

    #[inline(always)]
    fn forget_pair(&mut self, id: &QpId) {
        let Some(entry) = ENTRY.get_ptr_mut(0) else { return };
        // SAFETY: as in `pair`. It does not matter if the entry was already removed.
        unsafe {
            (*entry).0 = *id;
            let key = &(*entry).0;
            let _ = LEARNED.remove(key);
        }
    }

    #[inline(always)]
    fn requester<R>(&mut self, enters: bool, f: impl FnOnce(SharedRequester<'_>) -> R) -> Option<R> {
        let id = &raw const self.counters().lookup_key;
        // SAFETY: this CPU's key, which no interrupting program of this hook changes.
        let id = unsafe { &*id };
        let mut found = REQUESTERS.get_ptr_mut(id);
        if found.is_none() && enters {
            // If another CPU enters it first, that entry is used.
            let new = &NEW_REQUESTER;
            let _ = REQUESTERS.insert(id, new, u64::from(BPF_NOEXIST));
            found = REQUESTERS.get_ptr_mut(id);
        }
        // SAFETY: a map value, whose memory stays that of an entry as long as the program runs. `dcqcn run` removes
        // requesters that are idle or no longer followed, whose memory another one may then use.
        found.and_then(|requester| unsafe { SharedRequester::at(requester) }).map(f)
    }

    #[inline(always)]
    fn drops_stale_acks(&self) -> bool {
        STALE_ACKS.load() != 0
    }

    #[inline(always)]
    fn takes_naks_in_reads(&self) -> bool {
        NAKS_IN_READS.load() != 0
    }

    #[inline(always)]
    fn announce_requester(&mut self) -> bool {
        let id = &raw const self.counters().lookup_key;
        // SAFETY: as in `requester`. A program under test has no daemon.
        test().is_some() || REQUESTS.output::<FlowId>(unsafe { &*id }, 0).is_ok()
    }

    #[inline(always)]
    fn announce(&mut self, cut: Cut) {
        // A program under test has no daemon.
        if test().is_none() && CUTS.output::<Cut>(&cut, 0).is_err() {
            self.count(Stat::CutLost);
        }
    }

    #[inline(always)]
    fn record(&mut self, interval_ns: u64, event: Event) {
        let Some(log) = EVENTS.get_ptr_mut(0) else { return };
        // SAFETY: a map value; the daemon accesses it only through the same function.
        if !unsafe { events::record(log, interval_ns, event) } {
            self.count(Stat::EventLost);
        }
    }

    #[inline(always)]
    fn rp_set(&mut self, index: u32) -> Option<Shared> {
        // SAFETY: a map value.
        RP.get_ptr_mut(index).map(|set| unsafe { Shared::new(set) })
    }

    #[inline(always)]
    fn debt(&mut self) -> &mut Debt {
        &mut self.counters().debt
    }

    #[inline(always)]
    fn lookup_key(&mut self) -> &mut FlowId {
        &mut self.counters().lookup_key
    }

    #[inline(always)]
    fn np_peek(&self, index: u32, hash: u32, now_ns: u64, interval_ns: u64) -> NpPeek {
        match NP.get_ptr(index) {
            // SAFETY: a map value. Other CPUs change it concurrently: the result is a hint.
            Some(set) => unsafe { NpSet::peek(set, hash, now_ns, interval_ns) },
            None => NpPeek::Absent,
        }
    }

    #[inline(always)]
    fn np_set<R>(&mut self, index: u32, f: impl FnOnce(&mut NpSet) -> R) -> Option<R> {
        let result = locked(NP.get_ptr_mut(index), f);
        if result.is_none() {
            self.count(Stat::TableBusy);
        }
        result
    }
}

/// A requester of which nothing is known.
static NEW_REQUESTER: Requester = Requester::NEW;
