//! A small deterministic random sequence for replay and simulation; production uses the kernel's generator.

/// Next state of a xorshift64 generator (Marsaglia, "Xorshift RNGs", 2003); `state` is not 0.
#[inline(always)]
pub const fn next(state: u64) -> u64 {
    let mut x = state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^ (x << 17)
}

/// The random number a state stands for: its upper, better half.
#[inline(always)]
pub const fn value(state: u64) -> u32 {
    (state >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state after 1, computed with the paper's three 64-bit shifts: 13, 7, 17.
    #[test]
    fn sequence_matches_the_paper() {
        let mut state = 1;
        for (expected, number) in [
            (1_082_269_761, 0),
            (1_152_992_998_833_853_505, 268_452_102),
            (11_177_516_664_432_764_457, 2_602_468_399),
        ] {
            state = next(state);
            assert_eq!((state, value(state)), (expected, number));
        }
    }
}
