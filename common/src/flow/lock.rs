//! The lock of a flow, or of a set of them: a word in the map.
//!
//! Two instructions of the program itself, where `bpf_spin_lock` takes two calls, turns interrupts off and on again, and
//! keeps the programs from calling anything in between. What it does not need: no program interrupts another of the
//! same table on a CPU, because all of them run with bottom halves off.

/// How often a lock that another CPU holds is asked for: that is some microseconds, and it is held for some tens of
/// nanoseconds.
pub const TRIES: u32 = 256;

/// Takes the lock in this word; false if another CPU holds it each time it is asked for.
///
/// # Safety
/// `word` is a lock's: all who use it use this and [`free`].
#[inline(always)]
pub unsafe fn take(word: *mut u32, tries: u32) -> bool {
    for _ in 0..tries {
        // SAFETY: the caller's promise.
        if unsafe { exchange(word) } {
            return true;
        }
    }
    false
}

/// Makes 1 of 0; false if it is not 0.
#[cfg(target_arch = "bpf")]
#[inline(always)]
unsafe fn exchange(word: *mut u32) -> bool {
    use core::intrinsics::{AtomicOrdering, atomic_cxchg};
    // SAFETY: the caller's promise. Other CPUs change it under us: every access is atomic.
    unsafe { atomic_cxchg::<u32, { AtomicOrdering::AcqRel }, { AtomicOrdering::Acquire }>(word, 0, 1).1 }
}

/// Frees the lock after all that was written.
///
/// # Safety
/// As for [`take`], and it was taken.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub unsafe fn free(word: *mut u32) {
    // The compiler must have written it all.
    let word = core::hint::black_box(word);
    if cfg!(bpf_target_arch = "x86_64") {
        // SAFETY: the caller's promise. x86 does not let a store overtake another.
        unsafe { word.write_volatile(0) };
    } else {
        // SAFETY: as above.
        unsafe {
            core::intrinsics::atomic_xchg::<u32, { core::intrinsics::AtomicOrdering::AcqRel }>(word, 0)
        };
    }
}

/// As in a program.
#[cfg(not(target_arch = "bpf"))]
unsafe fn exchange(word: *mut u32) -> bool {
    use core::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: the caller's promise; the word is aligned.
    unsafe { AtomicU32::from_ptr(word) }.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Frees the lock after all that was written.
///
/// # Safety
/// As for [`take`], and it was taken.
#[cfg(not(target_arch = "bpf"))]
pub unsafe fn free(word: *mut u32) {
    use core::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: the caller's promise; the word is aligned.
    unsafe { AtomicU32::from_ptr(word) }.store(0, Ordering::Release);
}
