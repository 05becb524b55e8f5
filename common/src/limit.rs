//! Rate limit of actions that a remote host can trigger: a rate and a burst.

/// A rate limit: the generic cell rate algorithm (ITU-T I.371), whose state is one timestamp.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Time per action; 0 = unlimited.
    pub gap_ns: u64,
    /// Burst, as time ahead of the clock.
    pub burst_ns: u64,
}

impl Limit {
    /// A limit of `per_second` with a burst of `burst`; 0 a second = unlimited.
    pub const fn new(per_second: u64, burst: u64) -> Self {
        if per_second == 0 {
            return Self { gap_ns: 0, burst_ns: 0 };
        }
        let gap_ns = 1_000_000_000_u64.div_ceil(per_second);
        Self { gap_ns, burst_ns: gap_ns.saturating_mul(burst.saturating_sub(1)) }
    }

    /// Returns the new state if one more action is allowed at `now_ns`; `used_up_to_ns` is the current state.
    #[inline(always)]
    pub(crate) const fn admit(&self, used_up_to_ns: u64, now_ns: u64) -> Option<u64> {
        let from_ns = if used_up_to_ns > now_ns { used_up_to_ns } else { now_ns };
        if from_ns - now_ns > self.burst_ns { None } else { Some(from_ns.wrapping_add(self.gap_ns)) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any interval admits at most the burst plus the rate, and a source within the rate is never limited.
        #[test]
        fn limiter_bounds_burst_and_rate(
            per_second in 1u64..2_000_000_000, burst in 1u64..100,
            gaps_ns in proptest::collection::vec(0u64..2_000_000, 1..300),
        ) {
            let limit = Limit::new(per_second, burst);
            let (mut now_ns, mut state) = (1_000u64, 0);
            let mut admitted = std::vec::Vec::new();
            for gap_ns in gaps_ns {
                now_ns += gap_ns;
                let before = state;
                if let Some(next) = limit.admit(state, now_ns) {
                    state = next;
                    admitted.push(now_ns);
                }
                prop_assert!(before > now_ns || admitted.last() == Some(&now_ns), "nothing was used up");
            }
            for (at, first_ns) in admitted.iter().enumerate() {
                let (count, stretch_ns) = ((admitted.len() - at) as u64, now_ns - first_ns);
                let allowed = u128::from(stretch_ns) * u128::from(per_second) / 1_000_000_000;
                prop_assert!(u128::from(count) <= u128::from(burst) + allowed + 1, "{} in {} ns", count, stretch_ns);
            }
        }
    }

    #[test]
    fn limiter_passes_full_burst_only() {
        let limit = Limit::new(1_000, 4);
        let mut state = 0;
        let mut admitted = 0;
        while let Some(next) = limit.admit(state, 5) {
            (state, admitted) = (next, admitted + 1);
        }
        assert_eq!(admitted, 4);
        assert!(limit.admit(state, 5 + 1_000_000).is_some());
    }

    #[test]
    fn unlimited_limiter_passes_all() {
        let limit = Limit::new(0, 0);
        assert_eq!(limit.admit(limit.admit(0, 7).unwrap(), 7), Some(7));
    }
}
