//! The event log: a shared ring that every program writes and any number of readers may read.
//!
//! Entries are numbered, and the newest overwrites the oldest. Readers consume nothing, so the log works with none or
//! many, and each detects what it missed by the numbers. A kind that occurs more often than the parameter `event_rate`
//! allows is rate-limited, so that it does not evict other kinds; omitted events are counted.

#[cfg(target_arch = "bpf")]
use core::intrinsics::{AtomicOrdering, atomic_xadd, atomic_xchg};
#[cfg(not(target_arch = "bpf"))]
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::flow::QpId;
use crate::limit::Limit;

pub const SLOTS: usize = 1_024;

const SECOND_NS: u64 = 1_000_000_000;

#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A QP pair was learned: the other end of `id`. Values: its QPN, and the [`crate::layout::PairSource`].
    FlowPaired = 0,
    /// A CNP was accepted for the flow `id`. Values: the rate and the target rate after it, in bit/s.
    RateCut = 1,
    /// A packet of the flow `id` was dropped beyond the pacing horizon. Values: its bytes (layer 2), 0.
    HorizonDrop = 2,
    /// The flow `id` evicted another one from its full set. Values: how long that flow had been idle, in ns, and the
    /// [`Table`].
    TableFull = 3,
    /// One of the port's queues overflowed. Values: its number, and packets dropped since the last poll.
    QueueDrop = 4,
    /// A pause storm began. Values: the priority, and 1 if paused packets are dropped.
    PfcStorm = 5,
    /// A pause storm ended. Values: the priority, 0.
    PfcRestored = 6,
    /// A probe was delivered for the flow `id`. Values: the PSN that it names, and the silence before it, in ns.
    TailLossProbe = 7,
}

impl EventKind {
    pub const ALL: [Self; 8] = [
        Self::FlowPaired,
        Self::RateCut,
        Self::HorizonDrop,
        Self::TableFull,
        Self::QueueDrop,
        Self::PfcStorm,
        Self::PfcRestored,
        Self::TailLossProbe,
    ];
}

/// The flow table that was full.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Rp = 0,
    Np = 1,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time, CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Events of this kind omitted before this one, modulo 2^32.
    pub left_out: u32,
    pub kind: u32,
    pub id: QpId,
    pub values: [u64; 2],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Number of the entry in it, from 1; 0 = empty. Written last.
    pub number: u64,
    pub event: Event,
}

/// State of the rate limit of a kind.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    pub left_out: u64,
    /// Theoretical arrival time of the next entry, the state of its [`Limit`].
    pub arrival_ns: u64,
}

/// Array size for kinds: two whole cache lines, so that the entries start on a cache line.
const TALLIES: usize = 8;
const _: () = assert!(EventKind::ALL.len() <= TALLIES);

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLog {
    /// Number of the newest entry, complete or not.
    pub newest: u64,
    /// Padding: readers poll `newest`, which therefore has its own cache line.
    pub _line: [u64; 7],
    /// Rate limits by [`EventKind`].
    pub tallies: [Tally; TALLIES],
    /// Entry `n` is in slot `n` modulo [`SLOTS`].
    pub slots: [Slot; SLOTS],
}

impl EventLog {
    pub const EMPTY: Self = Self {
        newest: 0,
        _line: [0; 7],
        tallies: [Tally { left_out: 0, arrival_ns: 0 }; TALLIES],
        slots: [Slot {
            number: 0,
            event: Event { at_ns: 0, left_out: 0, id: QpId::NONE, kind: 0, values: [0; 2] },
        }; SLOTS],
    };
}

/// Adds one to memory that other CPUs change too; returns the previous value.
///
/// In BPF this and [`swap`] are full barriers (on arm64 an instruction with acquire and release, or a loop with `dmb
/// ish`), as [`record`] requires. A result that is used would be miscompiled with Relaxed (LLVM #210280).
///
/// # Safety
/// `at` is valid, and all other writes to it are atomic.
#[inline(always)]
unsafe fn increment(at: *mut u64) -> u64 {
    // SAFETY: required of the caller.
    #[cfg(target_arch = "bpf")]
    let before = unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::AcqRel }>(at, 1) };
    // SAFETY: as above.
    #[cfg(not(target_arch = "bpf"))]
    let before = unsafe { AtomicU64::from_ptr(at) }.fetch_add(1, Ordering::AcqRel);
    // The slot is written after the claim, which `AcqRel` alone does not order.
    #[cfg(not(target_arch = "bpf"))]
    fence(Ordering::Release);
    before
}

/// Stores a value in memory that other CPUs change too.
///
/// # Safety
/// As for [`increment`].
#[inline(always)]
unsafe fn swap(at: *mut u64, value: u64) {
    // SAFETY: required of the caller.
    #[cfg(target_arch = "bpf")]
    unsafe {
        atomic_xchg::<u64, { AtomicOrdering::AcqRel }>(at, value);
    }
    // SAFETY: as above.
    #[cfg(not(target_arch = "bpf"))]
    unsafe {
        AtomicU64::from_ptr(at).swap(value, Ordering::AcqRel);
    }
}

/// Rate limit of a kind: one entry per `interval_ns`, with a burst of one second's worth.
#[inline(always)]
const fn limit(interval_ns: u64) -> Limit {
    Limit { gap_ns: interval_ns, burst_ns: SECOND_NS.saturating_sub(interval_ns) }
}

/// Adds `event` unless its kind exceeds one per `interval_ns` (not 0). Returns `false` if it is omitted. Fills in the
/// number of events omitted before it.
///
/// # Safety
/// `log` is valid for reads and writes; only this function writes to it.
#[inline(always)]
pub unsafe fn record(log: *mut EventLog, interval_ns: u64, event: Event) -> bool {
    let kind = event.kind as usize % EventKind::ALL.len();
    // SAFETY: required of the caller; the remainders keep the indices inside the log. Two CPUs that race for the
    // limit's state may both be admitted, which adds one entry.
    unsafe {
        let tally = &raw mut (*log).tallies[kind];
        let (left_out, arrival_ns) = (&raw mut (*tally).left_out, &raw mut (*tally).arrival_ns);
        let Some(next_ns) = limit(interval_ns).admit(arrival_ns.read_volatile(), event.at_ns) else {
            increment(left_out);
            return false;
        };
        arrival_ns.write_volatile(next_ns);
        let left_out = left_out.read_volatile() as u32;
        let number = increment(&raw mut (*log).newest) + 1;
        let slot = &raw mut (*log).slots[number as usize % SLOTS];
        // Between two full barriers: a reader that sees any of it sees `newest`, one that sees `number` sees all of it.
        (&raw mut (*slot).event).write(Event { left_out, ..event });
        swap(&raw mut (*slot).number, number);
    }
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    Event(Event),
    /// Not written yet, or being written.
    NotYet,
    /// Overwritten by a newer entry.
    Gone,
}

/// Number of the newest entry; 0 = none.
///
/// # Safety
/// `log` is valid, and only [`record`] writes to it.
#[cfg(not(target_arch = "bpf"))]
pub unsafe fn newest(log: *mut EventLog) -> u64 {
    // SAFETY: required of the caller.
    unsafe { AtomicU64::from_ptr(&raw mut (*log).newest) }.load(Ordering::Acquire)
}

/// Reads entry `number`, from 1.
///
/// # Safety
/// As [`newest`].
#[cfg(not(target_arch = "bpf"))]
pub unsafe fn read_entry(log: *mut EventLog, number: u64) -> EntryState {
    // SAFETY: required of the caller.
    let is_over = move || unsafe { newest(log) } >= number.saturating_add(SLOTS as u64);
    // SAFETY: required of the caller; the remainder keeps the slot inside the log.
    let slot = unsafe { &raw mut (*log).slots[number as usize % SLOTS] };
    // SAFETY: required of the caller.
    let there = unsafe { AtomicU64::from_ptr(&raw mut (*slot).number) }.load(Ordering::Acquire);
    if there < number {
        // Never wait for an entry whose slot has already been claimed for a newer one.
        return if is_over() { EntryState::Gone } else { EntryState::NotYet };
    }
    // SAFETY: required of the caller. Plain integers: a torn read is discarded below.
    let event = unsafe { (&raw const (*slot).event).read_volatile() };
    // A writer claims its number before it writes to the slot: if this read saw the next entry, `newest` is
    // seen as well.
    fence(Ordering::Acquire);
    if there > number || is_over() { EntryState::Gone } else { EntryState::Event(event) }
}

const _: () = assert!(size_of::<Slot>() == 64 && core::mem::offset_of!(EventLog, slots) == 192);

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::vec::Vec;
    use std::{thread, vec};

    use super::*;

    fn event(kind: EventKind, at_ns: u64, value: u64) -> Event {
        let id = QpId { addr: [value as u32; 4], qpn: value as u32, vlan: 0 };
        Event { at_ns, left_out: 0, id, kind: kind as u32, values: [value; 2] }
    }

    fn find(log: &mut EventLog, number: u64) -> EntryState {
        // SAFETY: the test owns the log.
        unsafe { read_entry(log, number) }
    }

    fn enter(log: &mut EventLog, interval_ns: u64, event: Event) -> bool {
        // SAFETY: the test owns the log.
        unsafe { record(log, interval_ns, event) }
    }

    #[test]
    fn flood_evicts_only_its_own_kind() {
        let mut log = Box::new(EventLog::EMPTY);
        let flood =
            (0..10_000).filter(|n| enter(&mut log, 10_000_000, event(EventKind::RateCut, 5, *n))).count();
        assert_eq!(flood, 100);
        assert!(enter(&mut log, 10_000_000, event(EventKind::TableFull, 6, 7)));
        assert_eq!(log.tallies.map(|tally| tally.left_out), [0, 9_900, 0, 0, 0, 0, 0, 0]);
        assert_eq!(find(&mut log, 101), EntryState::Event(event(EventKind::TableFull, 6, 7)));
        assert!(enter(&mut log, 10_000_000, event(EventKind::RateCut, SECOND_NS, 8)));
        let EntryState::Event(next) = find(&mut log, 102) else { panic!("no entry") };
        assert_eq!((next.left_out, next.values), (9_900, [8; 2]));
    }

    #[test]
    fn log_keeps_newest_entries() {
        let mut log = Box::new(EventLog::EMPTY);
        let slots = SLOTS as u64;
        assert_eq!(find(&mut log, 1), EntryState::NotYet);
        for n in 1..=slots + 10 {
            assert!(enter(&mut log, 1, event(EventKind::FlowPaired, n * SECOND_NS, n)));
        }
        assert_eq!(log.newest, slots + 10);
        for n in 1..=slots + 11 {
            let expected = match n {
                n if n <= 10 => EntryState::Gone,
                n if n <= slots + 10 => EntryState::Event(event(EventKind::FlowPaired, n * SECOND_NS, n)),
                _ => EntryState::NotYet,
            };
            assert_eq!(find(&mut log, n), expected, "{n}");
        }
    }

    #[test]
    fn unfinished_entry_dropped_on_slot_reuse() {
        let mut log = Box::new(EventLog::EMPTY);
        log.newest = 1;
        assert_eq!(find(&mut log, 1), EntryState::NotYet);
        log.newest = 1 + SLOTS as u64;
        assert_eq!(find(&mut log, 1), EntryState::Gone);
    }

    /// With concurrent writers, a reader sees complete entries, in order.
    #[test]
    fn reader_never_sees_partial_entry() {
        const EACH: u64 = 100_000;
        struct Raw(*mut EventLog);
        // SAFETY: only `record` and `read_entry` access it, and they support concurrent use.
        unsafe impl Sync for Raw {}
        let raw = Raw(Box::into_raw(Box::new(EventLog::EMPTY)));
        let raw = &raw;
        let read = thread::scope(|scope| {
            for writer in 0..2 {
                scope.spawn(move || {
                    for n in 0..EACH {
                        let value = writer * EACH + n + 1;
                        // SAFETY: the log outlives the scope.
                        let entered = unsafe { record(raw.0, 1, event(EventKind::RateCut, 1, value)) };
                        assert!(entered, "an interval of 1 ns admits all");
                    }
                });
            }
            let reader = scope.spawn(move || {
                let (mut read, mut lost) = (vec![], 0);
                for number in 1..=2 * EACH {
                    loop {
                        // SAFETY: the log outlives the scope.
                        match unsafe { read_entry(raw.0, number) } {
                            EntryState::Event(event) => read.push(event),
                            EntryState::Gone => lost += 1,
                            EntryState::NotYet => {
                                thread::yield_now();
                                continue;
                            }
                        }
                        break;
                    }
                }
                assert_eq!(read.len() as u64 + lost, 2 * EACH);
                read
            });
            reader.join()
        });
        // SAFETY: the threads have exited.
        drop(unsafe { Box::from_raw(raw.0) });
        let read: Vec<Event> = read.unwrap_or_else(|_| panic!("the reader panicked"));
        assert!(!read.is_empty());
        for entry in &read {
            let value = entry.values[0];
            assert_eq!(*entry, event(EventKind::RateCut, 1, value));
        }
        for writer in 0..2 {
            let own = read.iter().map(|e| e.values[0]).filter(|value| (value - 1) / EACH == writer);
            assert!(own.collect::<Vec<_>>().is_sorted());
        }
    }
}
