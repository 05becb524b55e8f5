//! The lock of a flow, or of a set of them: a word in the map.
//!
//! Two instructions of the program itself, where `bpf_spin_lock` takes two calls, turns interrupts off and on again, and
//! keeps the programs from calling anything in between. What it does not need: no program interrupts another of the
//! same table on a CPU, because all of them run with bottom halves off.

/// How often a lock that another CPU holds is requested: that is some microseconds, and it is held for some tens of
/// nanoseconds.
pub const TRIES: u32 = 256;

/// Of a lock's word: a program holds it. The other bits are the holder's to change; in the lock of a set they are 0.
pub(super) const HELD: u32 = 1;

/// Why a lock was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another CPU holds it each time it is requested.
    FlowGuard,
    /// Its word is another one by now.
    Changed,
}

/// Takes the lock in this word, which nobody holds in `seen`. A CPU that waits only reads: an exchange that fails takes the cache
/// line from the holder all the same.
///
/// # Errors
/// Another CPU holds it, or its word is not `seen` any more.
///
/// # Safety
/// `word` is a lock's: all who use it use the functions of this module.
#[inline(always)]
pub unsafe fn take_as_seen(word: *mut u32, seen: u32, tries: u32) -> Result<(), Refused> {
    for attempt in 0..tries {
        if attempt != 0 {
            // SAFETY: the caller's promise.
            let found = unsafe { word.read_volatile() };
            if found == seen | HELD {
                continue;
            }
            if found != seen {
                return Err(Refused::Changed);
            }
        }
        // SAFETY: the caller's promise.
        let found = unsafe { exchange(word, seen, seen | HELD) };
        if found == seen {
            return Ok(());
        }
        if found != seen | HELD {
            return Err(Refused::Changed);
        }
    }
    Err(Refused::FlowGuard)
}

/// Takes the lock in this word; `None` if another CPU holds it each time it is requested, else the word to [`free`] it with.
///
/// # Safety
/// As for [`take_as_seen`].
#[inline(always)]
pub(super) unsafe fn take(word: *mut u32, tries: u32) -> Option<u32> {
    for _ in 0..tries {
        // SAFETY: the caller's promise.
        let seen = unsafe { word.read_volatile() } & !HELD;
        // SAFETY: the caller's promise.
        if unsafe { exchange(word, seen, seen | HELD) } == seen {
            return Some(seen);
        }
    }
    None
}

/// Makes `new` of `old`; returns what was there.
#[cfg(target_arch = "bpf")]
#[inline(always)]
unsafe fn exchange(word: *mut u32, old: u32, new: u32) -> u32 {
    use core::intrinsics::{AtomicOrdering, atomic_cxchg};
    // SAFETY: the caller's promise. Other CPUs change it under us: every access is atomic.
    unsafe { atomic_cxchg::<u32, { AtomicOrdering::AcqRel }, { AtomicOrdering::Acquire }>(word, old, new).0 }
}

/// Frees the lock after all that was written, and leaves `value`, which is even, as its word.
///
/// # Safety
/// As for [`take_as_seen`], and it was taken.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub unsafe fn free(word: *mut u32, value: u32) {
    if cfg!(bpf_target_arch = "x86_64") {
        // By hand, so that the compiler has written it all before. x86 does not let a store overtake another.
        //
        // SAFETY: the caller's promise.
        unsafe {
            core::arch::asm!(
                "*(u32 *)({word} + 0) = {value}",
                word = in(reg) word,
                value = in(reg) u64::from(value),
                options(nostack, preserves_flags),
            );
        }
    } else {
        // SAFETY: as above.
        unsafe {
            core::intrinsics::atomic_xchg::<u32, { core::intrinsics::AtomicOrdering::AcqRel }>(word, value)
        };
    }
}

/// As in a program.
#[cfg(not(target_arch = "bpf"))]
unsafe fn exchange(word: *mut u32, old: u32, new: u32) -> u32 {
    use core::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: the caller's promise; the word is aligned.
    let word = unsafe { AtomicU32::from_ptr(word) };
    word.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed).unwrap_or_else(|found| found)
}

/// As in a program.
///
/// # Safety
/// As for [`take_as_seen`], and it was taken.
#[cfg(not(target_arch = "bpf"))]
pub unsafe fn free(word: *mut u32, value: u32) {
    use core::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: the caller's promise; the word is aligned.
    unsafe { AtomicU32::from_ptr(word) }.store(value, Ordering::Release);
}
