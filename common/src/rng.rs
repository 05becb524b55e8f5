//! A small deterministic random sequence for replay and simulation; production uses the kernel's.

/// Next state of a xorshift64 generator (Marsaglia, "Xorshift RNGs", 2003); `state` is not 0.
#[inline(always)]
#[must_use]
pub const fn next(state: u64) -> u64 {
    let mut x = state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^ (x << 17)
}

/// The random number a state stands for: its upper, better half.
#[inline(always)]
#[must_use]
pub const fn value(state: u64) -> u32 {
    (state >> 32) as u32
}
