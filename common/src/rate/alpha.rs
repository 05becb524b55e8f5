//! Alpha, the congestion estimate: closed forms for any number of periods.

use super::params::{COARSE_STEPS, CoarseDecay, DECAYS, RpParams};

/// Bits between a coarse alpha and 2^-31.
pub const COARSE_SHIFT: u32 = 21;
/// Largest coarse alpha, in 1/1024.
pub const COARSE_MAX: u32 = 1023;
/// Largest coarse alpha in 2^-31.
pub(crate) const COARSE_MAX_Q31: u32 = COARSE_MAX << COARSE_SHIFT;

/// (`g_1024ths` / 1024)^(2^k) in 2^-31.
pub(crate) fn decay_powers(g_1024ths: u32) -> [u32; DECAYS] {
    let mut power = g_1024ths << COARSE_SHIFT;
    let mut powers = [0; DECAYS];
    for slot in &mut powers {
        *slot = power;
        power = mul_q31(power, power);
    }
    powers
}

/// alpha ← `g_1024ths` · alpha / 1024, rounded down and applied 2^k times, for every alpha from 0 to 1023.
pub(crate) fn coarse_steps(g_1024ths: u32) -> CoarseDecay {
    let mut steps = [[0; 1024]; COARSE_STEPS];
    let mut step = [0; 1024];
    for (alpha, next) in (0..).zip(&mut step) {
        *next = (g_1024ths * alpha / 1024) as u16;
    }
    for table in &mut steps {
        *table = step;
        step = table.map(|alpha| table.get(usize::from(alpha)).copied().unwrap_or(0));
    }
    CoarseDecay(steps)
}

/// `alpha_q31` after `periods` without a CNP: multiplied by (1 − g)^periods.
#[inline(always)]
pub(super) fn decayed(p: &RpParams, alpha_q31: u32, periods: u64) -> u32 {
    if p.alpha_is_coarse != 0 {
        return coarse_decayed(p, alpha_q31, periods);
    }
    if periods >> DECAYS != 0 {
        return 0;
    }
    let mut alpha = alpha_q31;
    for (bit, &decay) in p.decay_q31.iter().enumerate() {
        if (periods >> bit) & 1 == 1 {
            alpha = mul_q31(alpha, decay);
        }
    }
    alpha
}

#[inline(always)]
fn coarse_decayed(p: &RpParams, alpha_q31: u32, periods: u64) -> u32 {
    if periods >> COARSE_STEPS != 0 {
        return 0;
    }
    // A fine alpha of 1, from before a change of the parameter, is one more than the largest coarse one.
    let mut alpha = (alpha_q31 >> COARSE_SHIFT).min(COARSE_MAX);
    for (bit, step) in p.coarse_decay.0.iter().enumerate() {
        if (periods >> bit) & 1 == 1 {
            alpha = step[alpha as usize % 1024] as u32;
        }
    }
    alpha << COARSE_SHIFT
}

/// `alpha_q31` after a period with a CNP: (1 − g) alpha + g.
#[inline(always)]
pub(super) fn raised(p: &RpParams, alpha_q31: u32) -> u32 {
    (decayed(p, alpha_q31, 1) + p.gain_q31).min(p.max_alpha_q31)
}

/// Product of two fractions of 2^31, rounded.
#[inline(always)]
const fn mul_q31(a: u32, b: u32) -> u32 {
    // Both at most 2^31: 2^62 + 2^30 fits.
    (((a as u64).wrapping_mul(b as u64) + (1 << 30)) >> 31) as u32
}

#[cfg(test)]
mod tests {
    use super::super::ALPHA_ONE;
    use super::*;
    use crate::params::{COARSE_ALPHA_BITS, Config};

    fn coarse(dce_tcp_g: u64) -> RpParams {
        RpParams::new(&Config::with_scalars(|s| (s.dce_tcp_g, s.alpha_bits) = (dce_tcp_g, COARSE_ALPHA_BITS)))
    }

    #[test]
    fn coarse_alpha_equals_single_steps() {
        for g in [1, 2, 255, 512, 960, 1_000, 1_019, 1_020, 1_023] {
            let p = coarse(g);
            for start in 0..1_024u64 {
                let mut alpha = start;
                for periods in 0..1_100 {
                    let closed = decayed(&p, (start as u32) << COARSE_SHIFT, periods);
                    assert_eq!(u64::from(closed), alpha << COARSE_SHIFT, "g {g}, {start} after {periods}");
                    alpha = g * alpha / 1_024;
                    if alpha == 0 && periods > 1_024 {
                        break;
                    }
                }
                assert_eq!(alpha, 0);
            }
        }
    }

    #[test]
    fn fine_alpha_one_becomes_largest_coarse() {
        let p = coarse(1_020);
        assert_eq!(decayed(&p, ALPHA_ONE, 1), (1_020 * 1_023 / 1_024) << COARSE_SHIFT);
        assert_eq!(raised(&p, ALPHA_ONE), COARSE_MAX_Q31);
    }

    #[test]
    fn coarse_alpha_saturates_at_1023() {
        let p = coarse(1_019);
        let mut alpha = 512 << COARSE_SHIFT;
        let mut expected = 512;
        for _ in 0..2_000 {
            alpha = raised(&p, alpha);
            expected = (1_019 * expected / 1_024 + 5).min(1_023);
            assert_eq!(alpha >> COARSE_SHIFT, expected);
        }
        // Rounded up, 5/1024 of it is 5 from 820 on: there it stops.
        assert_eq!(expected, 820);
        assert_eq!(raised(&p, p.initial_alpha_q31), COARSE_MAX_Q31);
    }
}
