//! Congestion point: random early marking by queue depth.
//!
//! DCQCN (SIGCOMM'15) §3.1: p = 0 for q ≤ Kmin, rising linearly to Pmax at Kmax, 1 for q > Kmax.

use crate::params::WredConfig;

/// WRED thresholds of one class with the precomputed slope.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wred {
    /// Depth up to which no packet is marked.
    pub kmin_bytes: u64,
    /// Depth above which every packet is marked.
    pub kmax_bytes: u64,
    /// Marking probability per byte above Kmin, in 2^-48: Pmax · 2^48 / (Kmax − Kmin).
    pub slope_q48: u64,
    /// 1 = this class is marked.
    pub enabled: u64,
}

impl Wred {
    /// Computes the slope; `config` is valid.
    pub const fn new(config: &WredConfig) -> Self {
        let span_bytes = config.kmax_bytes.saturating_sub(config.kmin_bytes);
        // pmax_ppm ≤ 10^6 < 2^20, so the product stays below 2^60 with 40 fractional bits; 8 more follow by the shift
        // of a quotient. A span below 2^8 bytes is finer than any packet: the lost bits do not matter.
        let p_q40 = config.pmax_ppm * (1 << 40) / 1_000_000;
        let slope_q48 = match (p_q40 << 8).checked_div(span_bytes) {
            Some(slope_q48) => slope_q48,
            None => 0,
        };
        Self { kmin_bytes: config.kmin_bytes, kmax_bytes: config.kmax_bytes, slope_q48, enabled: config.ecn }
    }

    pub(crate) const OFF: Self = Self { kmin_bytes: 0, kmax_bytes: 0, slope_q48: 0, enabled: 0 };

    /// The decision, if the depth determines it without a random number.
    #[inline(always)]
    pub const fn certain(&self, depth_bytes: u64) -> Option<bool> {
        if self.enabled == 0 || depth_bytes <= self.kmin_bytes {
            Some(false)
        } else if depth_bytes > self.kmax_bytes {
            Some(true)
        } else {
            None
        }
    }

    /// Whether to mark a packet between Kmin and Kmax; `random` is uniform over all of `u32`.
    #[inline(always)]
    pub const fn draw(&self, depth_bytes: u64, random: u32) -> bool {
        // (q − Kmin) · slope ≤ Pmax · 2^48 ≤ 2^48: no overflow.
        let p_q32 = depth_bytes.wrapping_sub(self.kmin_bytes).wrapping_mul(self.slope_q48) >> 16;
        (random as u64) < p_q32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wred(kmin_bytes: u64, kmax_bytes: u64, pmax_ppm: u64) -> Wred {
        Wred::new(&WredConfig { kmin_bytes, kmax_bytes, pmax_ppm, ..WredConfig::DEFAULT })
    }

    fn mark(w: &Wred, depth: u64, random: u32) -> bool {
        w.certain(depth).unwrap_or_else(|| w.draw(depth, random))
    }

    #[test]
    fn random_below_probability_marks() {
        let w = Wred { kmin_bytes: 100, kmax_bytes: 1_000, slope_q48: 1 << 16, enabled: 1 };
        // 10 bytes above Kmin: 10 of 2^32.
        assert_eq!([0, 9, 10, u32::MAX].map(|random| w.draw(110, random)), [true, true, false, false]);
    }

    #[test]
    fn thresholds_inclusive_as_in_paper() {
        let w = wred(5_000, 200_000, 10_000);
        assert!(!mark(&w, 5_000, 0), "q = Kmin is not marked");
        assert!(!mark(&w, 200_000, u32::MAX), "q = Kmax is marked with Pmax only");
        assert!(mark(&w, 200_001, u32::MAX), "q > Kmax is always marked");
    }

    #[test]
    fn step_when_kmin_is_kmax() {
        let w = wred(30_000, 30_000, 1_000_000);
        assert_eq!((mark(&w, 30_000, 0), mark(&w, 30_001, u32::MAX)), (false, true));
    }

    #[test]
    fn class_without_ecn_never_marks() {
        let w = Wred::new(&WredConfig { ecn: 0, ..WredConfig::DEFAULT });
        assert!(!mark(&w, u64::MAX, 0));
    }

    proptest! {
        #[test]
        fn probability_is_linear_between_thresholds(
            kmin in 0u64..1_000_000_000, span in 1u64..1_000_000_000, pmax in 0u64..=1_000_000, at in 0.0f64..=1.0,
        ) {
            let kmax = (kmin + span).min(1_000_000_000);
            prop_assume!(kmax > kmin);
            let w = wred(kmin, kmax, pmax);
            let q = (kmin + ((kmax - kmin) as f64 * at) as u64).clamp(kmin + 1, kmax);
            let p = (q - kmin) as f64 / (kmax - kmin) as f64 * pmax as f64 / 1e6;
            // Two draws, on each side of the probability.
            let at = |p: f64| (p.clamp(0.0, 1.0) * 4_294_967_295.0) as u32;
            if p > 2e-5 {
                prop_assert!(mark(&w, q, at(p - 1e-5)));
            }
            if p < 1.0 - 2e-5 {
                prop_assert!(!mark(&w, q, at(p + 1e-5)));
            }
        }
    }
}
