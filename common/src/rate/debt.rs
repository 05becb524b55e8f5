//! Debt of a flow: the unpaid part of its last packet, paid at the current rate.
//!
//! A packet of b bits that departs at t delays the next one until the integral of the flow's rate from t reaches b.
//! That is how a token bucket in a NIC works, and how HPCC's simulators reschedule a pending gap at each change of
//! rate. At a constant rate the gap is b / rate, and this module is not needed.

/// Bits to pay, and the time up to which they have been paid.
///
/// Programs store it in a map; in registers, the verifier would track its bounds through every step.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Time up to which everything is paid; without debt, the time of the last payment.
    pub from_ns: u64,
    /// Debt in 10^-9 bit: rate times time, in bit/s and ns. A packet has less than 2^20 bytes, so this is below 2^53.
    pub nanobits: u64,
    /// 1 = the current run of increases is after `from_ns`.
    pub is_due: u64,
}

/// Rates after each event of a run of increases.
///
/// The target grows by a constant or growing step, and the rate halves its distance to the target's line.
/// After the k-th event the rate is base + k · slope + k (k − 1) / 2 · growth − off / 2^k, the last rounded
/// down.
pub(super) struct Climb {
    /// Value of that line before the first event.
    pub(super) base_bps: u64,
    /// Growth of the line per event.
    pub(super) slope_bps: u64,
    /// Increase of the growth per event.
    pub(super) growth_bps: u64,
    /// Distance of the rate below the line, before the first event.
    pub(super) gap_bps: i64,
}

impl Debt {
    pub const NONE: Self = Self { from_ns: 0, nanobits: 0, is_due: 0 };

    /// Pays at `rate_bps` until `until_ns`.
    #[inline(always)]
    pub(crate) const fn pay(&mut self, rate_bps: u64, until_ns: u64) {
        if self.nanobits == 0 || until_ns <= self.from_ns {
            return;
        }
        let time_ns = until_ns.wrapping_sub(self.from_ns);
        // Rounded up: nothing departs early.
        let Some(needed_ns) = (self.nanobits + rate_bps).wrapping_sub(1).checked_div(rate_bps) else {
            return;
        };
        if needed_ns <= time_ns {
            self.from_ns = self.from_ns.wrapping_add(needed_ns);
            self.nanobits = 0;
        } else {
            // Less than the debt.
            self.nanobits = self.nanobits.wrapping_sub(rate_bps.wrapping_mul(time_ns));
            self.from_ns = until_ns;
        }
    }

    /// Pays at `rate_bps` until a run of increases starts at `first_ns`. Events before the start of the debt form a
    /// separate run, which pays nothing.
    #[inline(always)]
    pub(super) const fn pay_until_run(&mut self, rate_bps: u64, first_ns: u64) {
        self.is_due = (first_ns > self.from_ns) as u64;
        self.pay(rate_bps, first_ns);
    }

    /// Pays at each rate after the first `events` of `climb`, each for `period_ns`. `highest_bps` is a target at least
    /// as high as all of theirs, and at most three times the last one's.
    ///
    /// If the run pays more than the debt, the debt counts as paid at its end: finding the event would take a search.
    /// It has been paid by then, so this only costs credit of a late flow.
    #[inline(always)]
    pub(super) const fn pay_climb(&mut self, climb: &Climb, events: u64, period_ns: u64, highest_bps: u64) {
        if self.nanobits == 0 || self.is_due == 0 || events == 0 {
            return;
        }
        self.from_ns = self.from_ns.wrapping_add(events.wrapping_mul(period_ns));
        let Some(budget_bps) = self.nanobits.checked_div(period_ns) else { return };
        // Each rate is at least half its target, and the targets average at least a third of the last one: 18 times the
        // sum is no less than events · highest. Beyond 32 times the budget the sum is not needed, and below it nothing
        // overflows: 2^53 · 32 = 2^58.
        let enough = match (budget_bps << 5).checked_div(highest_bps) {
            Some(most_events) => events > most_events,
            None => true,
        };
        let sum_bps = if enough { u64::MAX } else { climb.sum_bps(events) };
        self.nanobits = if sum_bps > budget_bps {
            0
        } else {
            self.nanobits.wrapping_sub(sum_bps.wrapping_mul(period_ns))
        };
    }
}

impl Climb {
    /// Sum of the rates after each of the first `n` events, where `n` times the highest target is below 2^58.
    #[inline(always)]
    const fn sum_bps(&self, n: u64) -> u64 {
        let pairs = n.wrapping_mul(n + 1) / 2;
        // (n − 1) n (n + 1) / 6: growth · that ≤ 2 · n · target, and n < 2^16 where there is growth.
        let triples = pairs.wrapping_mul(n.wrapping_sub(1)) / 3;
        n.wrapping_mul(self.base_bps)
            .wrapping_add(self.slope_bps.wrapping_mul(pairs))
            .wrapping_add(self.growth_bps.wrapping_mul(triples))
            .wrapping_sub(sum_of_halves(self.gap_bps, n) as u64)
    }
}

/// value / 2 + value / 4 + … (n terms), each rounded down.
///
/// For a non-negative value the infinite sum is the value minus the number of its one bits (Legendre's formula for 2).
/// So n terms are that minus the same of the value halved n times. A negative value v has the terms −1 − (−1 − v) /
/// 2^k.
#[inline(always)]
const fn sum_of_halves(value: i64, n: u64) -> i64 {
    let sign = value >> 63;
    let magnitude = (value ^ sign) as u64;
    let rest = magnitude >> if n > 63 { 63 } else { n };
    let sum = magnitude
        .wrapping_sub(magnitude.count_ones() as u64)
        .wrapping_sub(rest)
        .wrapping_add(rest.count_ones() as u64) as i64;
    // −sum − n where the value is negative.
    (sum ^ sign).wrapping_sub(sign).wrapping_add(sign.wrapping_mul(n as i64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FLAT: Climb = Climb { base_bps: 1_000, slope_bps: 0, growth_bps: 0, gap_bps: 0 };

    #[test]
    fn climb_pays_sum_of_event_rates() {
        let owes = |nanobits, is_due| Debt { from_ns: 100, nanobits, is_due };
        let paid = |mut debt: Debt, climb: &Climb, events| {
            debt.pay_climb(climb, events, 10, climb.base_bps);
            (debt.from_ns, debt.nanobits)
        };
        assert_eq!(paid(owes(50_000, 1), &FLAT, 2), (120, 30_000));
        // A remainder below a period's worth of one bit a second stays; overpayment is not returned.
        assert_eq!(paid(owes(20_005, 1), &FLAT, 2), (120, 5));
        assert_eq!(paid(owes(19_999, 1), &FLAT, 2), (120, 0));
        for (debt, events) in [(owes(0, 1), 2), (owes(50_000, 0), 2), (owes(50_000, 1), 0)] {
            assert_eq!(paid(debt, &FLAT, events), (100, debt.nanobits));
        }
        // Twice as many as fit 64 bits.
        let fast = Climb { base_bps: 1 << 38, ..FLAT };
        assert_eq!(paid(owes(50_000, 1), &fast, 1 << 26).1, 0);
    }

    #[test]
    fn run_due_if_it_starts_after_paid_time() {
        for (first_ns, is_due, nanobits) in [(99, 0, 50_000), (100, 0, 50_000), (101, 1, 49_000)] {
            let mut debt = Debt { from_ns: 100, nanobits: 50_000, is_due: 7 };
            debt.pay_until_run(1_000, first_ns);
            assert_eq!((debt.is_due, debt.nanobits, debt.from_ns), (is_due, nanobits, first_ns.max(100)));
        }
    }

    proptest! {
        #[test]
        fn climb_sum_equals_single_events(
            base_bps in 0u64..1 << 40, slope_bps in 0u64..1 << 30, growth_bps in 0u64..1 << 30,
            gap_bps in -(1i64 << 41)..1 << 41, n in 0u64..200,
        ) {
            let climb = Climb { base_bps, slope_bps, growth_bps, gap_bps };
            let after = |k: u64| (base_bps + k * slope_bps + k * (k - 1) / 2 * growth_bps) as i64 - (gap_bps >> k.min(63));
            let sum: i64 = (1..=n).map(after).sum();
            prop_assert_eq!(climb.sum_bps(n), sum as u64);
        }

        #[test]
        fn sum_of_halves_equals_single_halves(value in -(1i64 << 41)..1 << 41, n in 0u64..100) {
            let mut sum = 0;
            let mut half = value;
            for _ in 0..n {
                half >>= 1;
                sum += half;
            }
            prop_assert_eq!(sum_of_halves(value, n), sum);
        }

        #[test]
        fn constant_rate_debt_is_exact_to_the_ns(
            rate_bps in 100_000u64..=800_000_000_000, bits in 1u64..1 << 23, times in proptest::collection::vec(1u64..1_000_000, 1..20),
        ) {
            let mut debt = Debt { from_ns: 1_000, nanobits: bits * 1_000_000_000, is_due: 0 };
            let mut now_ns = 1_000;
            for time_ns in times {
                now_ns += time_ns;
                debt.pay(rate_bps, now_ns);
            }
            let needed_ns = (bits * 1_000_000_000).div_ceil(rate_bps);
            if debt.nanobits == 0 {
                // A remainder below a nanosecond's worth is rounded up at the end of the payment.
                prop_assert_eq!(debt.from_ns, 1_000 + needed_ns);
            } else {
                prop_assert!(now_ns < 1_000 + needed_ns);
                prop_assert_eq!(debt.nanobits, bits * 1_000_000_000 - rate_bps * (now_ns - 1_000));
            }
        }
    }
}
