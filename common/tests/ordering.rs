//! The lock-free algorithms shared by programs and user space, in every order that the C11 memory model
//! permits.
//!
//! That covers arm64. loom explores the orders; it has its own atomics, so each test restates an algorithm, as
//! short as its orderings allow, and names the code. Data are relaxed atomics: each may be stale on its own.

use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release};

use dcqcn_common::vqueue::{Drain, Share};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::thread;

const HELD: u32 = 1;

/// A flow and its lock: `common/src/flow/lock.rs`.
struct Flow {
    lock: AtomicU32,
    fingerprint: AtomicU64,
    /// A second field, equal to the fingerprint whenever the lock is free.
    data: AtomicU64,
}

impl Flow {
    fn new() -> Self {
        Self { lock: AtomicU32::new(0), fingerprint: AtomicU64::new(1), data: AtomicU64::new(1) }
    }

    fn acquire(&self, seen: u32) -> bool {
        self.lock.compare_exchange(seen, seen | HELD, Acquire, Relaxed).is_ok()
    }

    fn release(&self, word: u32) {
        self.lock.store(word, Release);
    }

    /// A full barrier, as the exchange of BPF: no store inside becomes visible before it.
    fn acquire_in_kernel(&self, seen: u32) -> bool {
        let is_acquired = self.lock.compare_exchange(seen, seen | HELD, AcqRel, Acquire).is_ok();
        fence(Release);
        is_acquired
    }

    fn store(&self, value: u64) {
        self.fingerprint.store(value, Relaxed);
        self.data.store(value, Relaxed);
    }

    /// The data before the lock, as a reordered copy has them.
    fn copy(&self) -> (u64, u64, u32) {
        let data = (self.data.load(Relaxed), self.fingerprint.load(Relaxed));
        (data.0, data.1, self.lock.load(Relaxed))
    }
}

/// `Shared::find_at` and `lock_flow` against `put`, which reuses the slot. `expire` is the same with another
/// fingerprint.
#[test]
fn locked_flow_is_the_flow_looked_up() {
    loom::model(|| {
        let flow = Arc::new(Flow::new());
        let other = flow.clone();
        let put = thread::spawn(move || {
            if other.acquire(0) {
                // The next generation early, which on x86 makes a lookup wait.
                other.lock.store(2 | HELD, Relaxed);
                other.store(2);
                other.release(2);
            }
        });
        // The fingerprint before the word: the order that the code does not have, but the hardware may.
        let is_here = flow.fingerprint.load(Relaxed) == 1;
        let seen = flow.lock.load(Relaxed) & !HELD;
        if is_here && flow.acquire(seen) {
            let is_ours = flow.fingerprint.load(Relaxed) == 1;
            assert_eq!(is_ours, flow.data.load(Relaxed) == 1);
            assert_eq!(is_ours, seen == 0);
            flow.release(seen);
        }
        put.join().unwrap();
    });
}

/// Two CPUs that each change a flow, or a set of the NP table (`ebpf/src/lock.rs`), under its lock lose no change.
#[test]
fn lock_loses_no_change() {
    loom::model(|| {
        let flow = Arc::new(Flow::new());
        let add = |flow: &Flow| {
            let is_acquired = flow.acquire(0);
            if is_acquired {
                flow.store(flow.data.load(Relaxed) + 1);
                flow.release(0);
            }
            u64::from(is_acquired)
        };
        let other = flow.clone();
        let added = thread::spawn(move || add(&other));
        let sum = 1 + add(&flow) + added.join().unwrap();
        assert_eq!((flow.data.load(Relaxed), flow.fingerprint.load(Relaxed)), (sum, sum));
    });
}

/// Consistent reads by user space (`EQUAL_READS` in the loader) of a flow that a program changes twice.
fn equal_reads(reads: usize) {
    loom::model(move || {
        let flow = Arc::new(Flow::new());
        let other = flow.clone();
        let program = thread::spawn(move || {
            if other.acquire_in_kernel(0) {
                other.store(2);
                other.release(0);
            }
        });
        let first = flow.copy();
        let equal = (0..reads).all(|_| {
            fence(Acquire);
            let read = flow.copy();
            read == first && read.2 & HELD == 0
        });
        assert!(!equal || first.0 == first.1, "torn: {first:?}");
        program.join().expect("no panic");
    });
}

#[test]
fn two_equal_reads_are_consistent() {
    equal_reads(2);
}

/// Why a CPU that reorders loads needs the third read.
#[test]
#[should_panic(expected = "torn")]
fn one_equal_read_may_be_torn() {
    equal_reads(1);
}

/// A CPU that inserts a flow under the set's lock finds the flow that another has inserted: `Shared::find_or_put`.
#[test]
fn flow_is_inserted_once() {
    loom::model(|| {
        let set = Arc::new(Flow::new());
        let insert = |set: &Flow| {
            let is_new = set.acquire(0) && {
                let is_new = set.fingerprint.load(Relaxed) != 2;
                if is_new {
                    set.store(2);
                }
                set.release(0);
                is_new
            };
            u32::from(is_new)
        };
        let other = set.clone();
        let inserted = thread::spawn(move || insert(&other));
        let sum = insert(&set) + inserted.join().unwrap();
        assert_eq!(sum, 1);
    });
}

/// The virtual queue (`queue` in `ebpf/src/env.rs`): one relaxed exchange per batch loses no byte, because
/// the word is all that CPUs share.
#[test]
fn queue_loses_no_byte() {
    const PACKETS: u64 = 2;
    const BYTES: u64 = 1_000;
    const NOW_NS: u64 = 1_000_000;
    // A byte takes a nanosecond. Batches of less than a packet, and of one.
    for batch_bytes in [0, 1_500] {
        let exact = Drain::new(8_000_000_000);
        let drain = Drain { batch_ticks: (batch_bytes * exact.ticks_per_byte_q16) >> 16, ..exact };
        loom::model(move || {
            let shared = Arc::new(AtomicU64::new(0));
            let send = move |shared: &AtomicU64| {
                (0..PACKETS).fold(Share::NONE, |own, _| {
                    let seen = shared.load(Relaxed);
                    let next = drain.enqueue(seen, own, NOW_NS, BYTES);
                    let is_published = next.empty_at != seen
                        && shared.compare_exchange(seen, next.empty_at, Relaxed, Relaxed).is_ok();
                    if is_published { next.share.after_publishing() } else { next.share }
                })
            };
            let other = shared.clone();
            let sent = thread::spawn(move || send(&other));
            let shares = [send(&shared), sent.join().unwrap()];
            let empty_at = shares.iter().fold(shared.load(Relaxed), |at, share| share.published(at));
            assert_eq!(drain.depth_bytes(empty_at, NOW_NS), 2 * PACKETS * BYTES);
        });
    }
}

/// `Maps::set_params` and a program: the index orders the loads (an address dependency, hence `Acquire` here).
#[test]
fn active_parameters_are_complete() {
    loom::model(|| {
        let parameters = Arc::new([AtomicU64::new(1), AtomicU64::new(0)]);
        let active = Arc::new(AtomicU32::new(0));
        let (slots, index) = (parameters.clone(), active.clone());
        let change = thread::spawn(move || {
            slots[1].store(2, Relaxed);
            fence(Release);
            index.store(1, Relaxed);
        });
        let slot = active.load(Acquire);
        assert_eq!(parameters[slot as usize].load(Relaxed), u64::from(slot) + 1);
        change.join().unwrap();
    });
}

/// Slots of the ring in the model.
const SLOTS: u64 = 2;

/// The event log: `common/src/events.rs`. Both words of an entry are its number.
struct Log {
    newest: AtomicU64,
    slots: [(AtomicU64, [AtomicU64; 2]); SLOTS as usize],
}

impl Log {
    fn record(&self, claim: Ordering) {
        let number = self.newest.fetch_add(1, AcqRel) + 1;
        fence(claim);
        let (there, words) = &self.slots[(number % SLOTS) as usize];
        words.iter().for_each(|word| word.store(number, Relaxed));
        there.swap(number, AcqRel);
    }

    fn read(&self, number: u64) -> Option<[u64; 2]> {
        let (there, words) = &self.slots[(number % SLOTS) as usize];
        if there.load(Acquire) != number {
            return None;
        }
        let event = [words[0].load(Relaxed), words[1].load(Relaxed)];
        fence(Acquire);
        (self.newest.load(Acquire) < number + SLOTS).then_some(event)
    }
}

/// A reader of the first entry while a program overwrites it.
fn overwritten(claim: Ordering) {
    loom::model(move || {
        let entry = || (AtomicU64::new(0), [AtomicU64::new(0), AtomicU64::new(0)]);
        let log = Arc::new(Log { newest: AtomicU64::new(0), slots: [entry(), entry()] });
        log.record(claim);
        let other = log.clone();
        let program = thread::spawn(move || (0..SLOTS).for_each(|_| other.record(claim)));
        assert!(log.read(1).is_none_or(|event| event == [1, 1]), "torn");
        program.join().expect("no panic");
    });
}

#[test]
fn overwritten_event_is_not_read() {
    overwritten(Release);
}

/// Why a claim must be a full barrier.
#[test]
#[should_panic(expected = "torn")]
fn weak_claim_tears_an_event() {
    // Orders nothing that the exchange before it does not.
    overwritten(Acquire);
}
