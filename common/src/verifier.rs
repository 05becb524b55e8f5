//! Shapes for the kernel's BPF verifier. Take one away and the code means the same, but is refused by some kernel, or costs
//! more instructions than a kernel goes through.
//!
//! The verifier follows every path with all it knows of each number, constants and bounds included, and follows a path again
//! for whatever differs. What is hidden from it, or read back from memory, is the same to it on all paths. The same holds of the
//! compiler, which knows ranges that some verifiers lose sight of.
//!
//! Three more shapes are where they are used: what is asked of a packet's kind is a comparison of whole numbers
//! ([`crate::wire::bth::Class`]); a flow that is not at home is looked for, and one that another CPU has is waited for, by functions
//! of their own ([`crate::flow::enter`]).

use core::hint::black_box;

/// The same value, of which the compiler knows nothing any more: it is computed now, and not again for each use.
#[inline(always)]
pub(crate) fn opaque<T>(value: T) -> T {
    black_box(value)
}

/// Has everything that is known of a value in a map forgotten: it is read back when it is needed.
#[inline(always)]
pub(crate) fn forget<T>(value: &mut T) {
    black_box(value);
}

/// Zero, without the compiler's knowing it: zeros in a row it would clear by a call of memset, byte by byte.
#[inline(always)]
pub(crate) fn zero() -> u64 {
    black_box(0)
}

/// A value in a map, read from there though it is known: the verifier would follow each way it can have come about.
#[inline(always)]
pub(crate) fn reread<T: Copy>(value: &T) -> T {
    // SAFETY: a plain field behind a reference; volatile only keeps the compiler from taking the short cut.
    unsafe { (&raw const *value).read_volatile() }
}
