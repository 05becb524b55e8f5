//! The lock of a flow, or of a set of flows: a word in the map.
//!
//! It takes two instructions, where `bpf_spin_lock` takes two calls, disables interrupts, and forbids calls inside the
//! critical section. Disabling interrupts is unnecessary: programs of one table never interrupt each other on a CPU,
//! because all of them run with bottom halves off (the program that removes idle flows only since Linux 6.3, commit
//! af2d0d09eabe; before, a softirq may interrupt it while it holds the lock of an idle flow).

/// Attempts to take a contended lock: some microseconds in total, while a critical section lasts some tens of
/// nanoseconds.
pub(super) const TRIES: u32 = 256;

/// Lock bit of the word. The other bits are the holder's to change; in the lock of a set they are 0.
pub(super) const HELD: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// Another CPU held it at every attempt.
    Contended,
    /// The word is no longer the one that was seen: the slot was reused.
    Changed,
}

/// Acquires the lock whose unlocked word was `seen`; waits for a CPU that holds it.
///
/// # Errors
/// Another CPU holds it, or its word is no longer `seen`.
///
/// # Safety
/// `word` is a lock that only the functions of this module change.
#[inline(always)]
pub unsafe fn acquire_if_unchanged(word: *mut u32, seen: u32) -> Result<(), LockError> {
    // Nearly always uncontended.
    //
    // SAFETY: required of the caller.
    if unsafe { exchange(word, seen, seen | HELD) } == seen {
        return Ok(());
    }
    match dcqcn_lock_wait(word, seen.into()) {
        ACQUIRED => Ok(()),
        CHANGED => Err(LockError::Changed),
        _ => Err(LockError::Contended),
    }
}

/// Results of [`dcqcn_lock_wait`].
const ACQUIRED: u64 = 0;
const CONTENDED: u64 = 1;
const CHANGED: u64 = 2;

/// Waits for a lock, as a BPF subprogram.
///
/// The verifier walks every iteration of the loop, and does it once here instead of for each path that leads
/// to a lock. A waiting CPU only reads, because a failed exchange would also take the cache line from the
/// holder.
#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_lock_wait(word: *mut u32, seen: u64) -> u64 {
    if word.is_null() {
        return CONTENDED;
    }
    let seen = seen as u32;
    let mut tries = TRIES;
    while tries != 0 {
        // SAFETY: called above with a lock.
        let found = unsafe { exchange(word, seen, seen | HELD) };
        if found == seen {
            return ACQUIRED;
        }
        if found != seen | HELD {
            return CHANGED;
        }
        // A loop of its own: Linux 6.1 rejects a loop that is entered in its middle and closed without a branch.
        loop {
            tries -= 1;
            // SAFETY: as above. Ordering: none, as the exchange decides.
            let found = unsafe { word.read_volatile() };
            if found == seen || tries == 0 {
                break;
            }
            if found != seen | HELD {
                return CHANGED;
            }
        }
    }
    CONTENDED
}

/// Acquires the lock: `None` if another CPU held it at every attempt, else the word to [`release`] it with.
///
/// # Safety
/// As for [`acquire_if_unchanged`].
#[inline(always)]
pub(super) unsafe fn acquire(word: *mut u32, tries: u32) -> Option<u32> {
    for _ in 0..tries {
        // SAFETY: required of the caller. Ordering: none, as the exchange compares it.
        let seen = unsafe { word.read_volatile() } & !HELD;
        // SAFETY: required of the caller.
        if unsafe { exchange(word, seen, seen | HELD) } == seen {
            return Some(seen);
        }
    }
    None
}

/// Compare-and-exchange of `old` with `new`; returns the previous value.
#[cfg(target_arch = "bpf")]
#[inline(always)]
unsafe fn exchange(word: *mut u32, old: u32, new: u32) -> u32 {
    use core::intrinsics::{AtomicOrdering, atomic_cxchg};
    // SAFETY: required of the caller. Other CPUs change it concurrently: every access is atomic. Ordering: if
    // it succeeds, a full barrier in every JIT compiler (arm64: `casal`, or a loop with `dmb ish`), which
    // `EQUAL_READS` relies on.
    unsafe { atomic_cxchg::<u32, { AtomicOrdering::AcqRel }, { AtomicOrdering::Acquire }>(word, old, new).0 }
}

/// Releases the lock after all preceding writes, and stores `value`, which is even, in its word.
///
/// # Safety
/// As for [`acquire_if_unchanged`]; the caller holds the lock.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub unsafe fn release(word: *mut u32, value: u32) {
    if cfg!(bpf_target_arch = "x86_64") {
        // Assembly, so that the compiler completes all writes first. x86 lets a store overtake neither a
        // store nor a load.
        //
        // SAFETY: required of the caller.
        unsafe {
            core::arch::asm!(
                "*(u32 *)({word} + 0) = {value}",
                word = in(reg) word,
                value = in(reg) u64::from(value),
                options(nostack, preserves_flags),
            );
        }
    } else {
        // Linux 6.1 has no store-release for BPF: an exchange, which the JIT makes a full barrier.
        //
        // SAFETY: as above.
        unsafe {
            core::intrinsics::atomic_xchg::<u32, { core::intrinsics::AtomicOrdering::AcqRel }>(word, value)
        };
    }
}

/// The counterpart of the BPF version.
#[cfg(not(target_arch = "bpf"))]
unsafe fn exchange(word: *mut u32, old: u32, new: u32) -> u32 {
    use core::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: required of the caller; the word is aligned.
    let word = unsafe { AtomicU32::from_ptr(word) };
    word.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed).unwrap_or_else(|found| found)
}

/// The counterpart of the BPF version.
///
/// # Safety
/// As for [`acquire_if_unchanged`]; the caller holds the lock.
#[cfg(not(target_arch = "bpf"))]
pub unsafe fn release(word: *mut u32, value: u32) {
    use core::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: required of the caller; the word is aligned.
    unsafe { AtomicU32::from_ptr(word) }.store(value, Ordering::Release);
}
