//! The lock of a set of flows.
//!
//! Two instructions of the program itself, where `bpf_spin_lock` takes two calls, turns interrupts off and on again, and
//! keeps the programs from calling anything in between. What it does not need: no program interrupts another of the
//! same table on a CPU, because all of them run with bottom halves off.

use core::hint::black_box;
use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use dcqcn_common::flow::{Entry, Set};

/// How often a set that another CPU holds is asked for: that is some microseconds, and it is held for some tens of
/// nanoseconds.
const TRIES: u32 = 256;

/// Runs `f` on a set that nobody else uses meanwhile; `None` if there is no such set, or it was not to be had.
#[inline(always)]
pub fn locked<T: Entry, R>(set: Option<*mut Set<T>>, f: impl FnOnce(&mut Set<T>) -> R) -> Option<R> {
    let set = set?;
    // SAFETY: a map value; its first field is the lock.
    let lock = unsafe { &raw mut (*set).lock };
    for _ in 0..TRIES {
        // SAFETY: as above. Other CPUs change it under us: every access is atomic.
        let (_, taken) = unsafe {
            atomic_cxchg::<u32, { AtomicOrdering::AcqRel }, { AtomicOrdering::Acquire }>(lock, 0, 1)
        };
        if taken {
            // SAFETY: a map value that is ours while the lock is held.
            let result = f(unsafe { &mut *set });
            release(lock, set);
            return Some(result);
        }
    }
    None
}

/// Everything written to `set` is there before the lock is free.
#[inline(always)]
fn release<T: Entry>(lock: *mut u32, set: *mut Set<T>) {
    // The compiler must have written it all.
    black_box(set);
    if cfg!(bpf_target_arch = "x86_64") {
        // SAFETY: a map value, and ours. x86 does not let a store overtake another.
        unsafe { lock.write_volatile(0) };
    } else {
        // SAFETY: as above.
        unsafe { core::intrinsics::atomic_xchg::<u32, { AtomicOrdering::AcqRel }>(lock, 0) };
    }
}
