//! Code shapes for the kernel's BPF verifier. Without them the code has the same meaning, but some kernel rejects it or
//! exceeds its instruction limit.
//!
//! The verifier follows every path with all it has derived about each number, constants and bounds included, and
//! explores a path again for any difference. Values that are hidden from it, or read back from memory, are equal on all
//! paths. Hiding also keeps the compiler from using ranges that some verifiers lose.
//!
//! Three more shapes are at their point of use. Queries of an opcode's class are comparisons of whole numbers
//! ([`crate::wire::bth::Class`]). The search for a flow outside its primary way, and the wait for a locked flow, are
//! subprograms ([`crate::flow::enter`], `dcqcn_lock_wait`).

use core::hint::black_box;

/// Hides the value from the compiler, which computes it here instead of again at each use.
#[inline(always)]
pub(crate) fn opaque<T>(value: T) -> T {
    black_box(value)
}

/// Forces the compiler to reload a value in a map when it is needed.
#[inline(always)]
pub(crate) fn forget<T>(value: &mut T) {
    black_box(value);
}

/// Zero, hidden from the compiler, which would clear consecutive zeros with a bytewise call of memset.
#[inline(always)]
pub(crate) fn zero() -> u64 {
    black_box(0)
}

/// Reads a value back from its map, so that the verifier does not track its origins.
#[inline(always)]
pub(crate) fn reread<T: Copy>(value: &T) -> T {
    // SAFETY: a plain field behind a reference; volatile only prevents the compiler from reusing the known value.
    unsafe { (&raw const *value).read_volatile() }
}
