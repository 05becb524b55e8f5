//! Increase events, any number at a time.
//!
//! Idle gaps need no loops: a run of increase events has a closed form in integers, bit-exact to one step per event.

use super::debt::{Climb, Debt};
use super::{RateMachine, RpParams};
use crate::verifier::forget;

/// Maximum steps of a run of increase events, however long.
///
/// A run has at most three phases, each computed in closed form: fast recovery, additive and growing hyper increase;
/// or, if the other counter is already past F, additive, growing and constant hyper increase. Reaching the line rate
/// takes one more step, and the events after it another.
pub(crate) const MAX_STEPS: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Timer,
    Bytes,
}

/// A run of increase events whose target grows by `step`, then `step + growth`, and so on.
struct Phase {
    step_bps: u64,
    growth_bps: u64,
    /// First step of hyper increase as a multiple of R_HAI; 0 in other stages.
    factor: u64,
    events: u64,
}

/// The last stage of a phase that never ends.
const UNLIMITED: u64 = u64::MAX >> 1;

impl RateMachine {
    /// Phase of the next event of `source`, of at most `left` events.
    #[inline(always)]
    fn phase(&self, p: &RpParams, source: Source, left: u64) -> Phase {
        let threshold = p.threshold as u64;
        let (own, other, other_is_on) = match source {
            Source::Timer => (self.time_stage, self.byte_stage, p.byte_reset_bytes != 0),
            Source::Bytes => (self.byte_stage, self.time_stage, p.time_reset_ns != 0),
        };
        let (stage, other) = (own as u64 + p.count_first as u64, other as u64);
        let run = |step_bps, growth_bps, factor, last_stage: u64| Phase {
            step_bps,
            growth_bps,
            factor,
            events: left.min(last_stage.wrapping_sub(stage).wrapping_add(1)),
        };
        // `other_is_on == false` excludes that counter from min and max.
        let fast = stage < threshold && (!other_is_on || other < threshold);
        let hyper = stage > threshold && (!other_is_on || other > threshold);
        if fast {
            run(0, 0, 0, threshold - 1)
        } else if !hyper {
            // Additive until this counter passes F if the other is already past it; otherwise forever.
            let last =
                if stage <= threshold && (!other_is_on || other > threshold) { threshold } else { UNLIMITED };
            run(p.ai_rate_bps, 0, 0, last)
        } else if p.max_hyper == 1 {
            run(p.hai_rate_bps, 0, 1, UNLIMITED)
        } else if other_is_on && stage > other {
            let factor = (other - threshold).min(p.max_hyper as u64);
            run(p.hai_rate_bps.wrapping_mul(factor), 0, factor, UNLIMITED)
        } else {
            let last = if other_is_on { other } else { UNLIMITED };
            let factor = (stage - threshold).min(p.max_hyper as u64);
            run(p.hai_rate_bps.wrapping_mul(factor), p.hai_rate_bps, factor, last)
        }
    }

    /// Processes as many of `left` consecutive events (not 0) of one counter as share a closed form, and returns how
    /// many. Events of the timer pay `debt` at the rates up to the last of them.
    #[inline(always)]
    pub(super) fn increase(&mut self, p: &RpParams, source: Source, left: u64, debt: &mut Debt) -> u64 {
        let taken = self.leap(p, &self.phase(p, source, left), left, debt);
        let stages = taken.min(u32::MAX as u64) as u32;
        match source {
            Source::Timer => self.time_stage = self.time_stage.saturating_add(stages),
            Source::Bytes => self.byte_stage = self.byte_stage.saturating_add(stages),
        }
        taken
    }

    /// Processes as many events of `phase` as share a closed form, and returns how many: at least one.
    ///
    /// One event is R_T += step, R_C = (R_C + R_T + 1) / 2. With d = R_T − R_C that is d ← (d + step) / 2, rounded
    /// down. With e = d − (step − 2 growth), the distance from the line that d approaches, it is e ← e / 2, rounded
    /// down. So n events shift e right by n, exactly.
    #[inline(always)]
    fn leap(&mut self, p: &RpParams, phase: &Phase, left: u64, debt: &mut Debt) -> u64 {
        let Phase { step_bps, growth_bps, factor, events } = *phase;
        let room_bps = p.line_rate_bps.saturating_sub(self.target_bps);
        let lag_bps = self.target_bps.wrapping_sub(self.rate_bps) as i64;
        // At the cap all events are alike.
        let is_at_cap = room_bps == 0;
        if is_at_cap && lag_bps == 0 {
            return left;
        }
        debt.pay_until_run(self.rate_bps, self.next_increase_ns);
        forget(debt);
        let below_cap = match (2 * room_bps).checked_div(growth_bps) {
            Some(twice_room) => growing_events(twice_room, factor),
            // In fast recovery the target does not change, so it stays below the cap.
            None => room_bps.checked_div(step_bps).unwrap_or(events),
        };
        let (taken, step_bps, growth_bps) =
            if is_at_cap { (left, 0, 0) } else { (events.min(below_cap), step_bps, growth_bps) };
        if taken == 0 {
            // The cap cuts this step short.
            self.target_bps = p.line_rate_bps;
            self.rate_bps = (self.rate_bps + self.target_bps).wrapping_add(1) / 2;
            return 1;
        }
        // Growing: taken < 2^16 and factor < 2^23 where there is room (see `growing_events`), so every product here
        // stays below 2^63; otherwise the products are at most the room, or 0.
        let growth_taken_bps = growth_bps.wrapping_mul(taken);
        let climb_bps =
            taken.wrapping_mul(step_bps) + growth_taken_bps.wrapping_mul(taken.wrapping_sub(1)) / 2;
        let tends_to_bps = step_bps.wrapping_sub(growth_bps.wrapping_mul(2)) as i64;
        let gap_bps = lag_bps.wrapping_sub(tends_to_bps);
        let lag_bps = tends_to_bps.wrapping_add(growth_taken_bps as i64).wrapping_add(halved(gap_bps, taken));
        let climb = Climb {
            base_bps: self.target_bps.wrapping_sub(tends_to_bps as u64),
            slope_bps: step_bps.wrapping_sub(growth_bps),
            growth_bps,
            gap_bps,
        };
        self.target_bps += climb_bps;
        self.rate_bps = self.target_bps.wrapping_sub(lag_bps as u64);
        // The last of these rates may last longer than a period.
        debt.pay_climb(&climb, taken.wrapping_sub(1), p.time_reset_ns, self.target_bps);
        taken
    }
}

/// Largest factor of R_HAI: even with steps of 1 kbit/s, 2^23 of them exceed any line rate, and 2^40 · 2^23 fits.
pub(crate) const MAX_HYPER: u32 = 1 << 23;

/// `value` halved `times` times, rounded down each time.
#[inline(always)]
const fn halved(value: i64, times: u64) -> i64 {
    value >> if times > 63 { 63 } else { times }
}

/// Largest n with factor + (factor + 1) + … (n terms) ≤ `twice_room` / 2, that is n² + (2 factor − 1) n ≤ `twice_room`.
///
/// `twice_room` < 2^41 / 1000 (R_HAI is at least 1 kbit/s) and `factor` ≤ 2^23, so the argument of the root is below
/// 2^49 and n < 2^16.
#[inline(always)]
const fn growing_events(twice_room: u64, factor: u64) -> u64 {
    let linear = (2 * factor).wrapping_sub(1);
    (square_root(linear.wrapping_mul(linear) + 4 * twice_room).wrapping_sub(linear)) / 2
}

/// Integer square root, rounded down, by Newton's method: straight-line code, while the verifier would explore both
/// branches of every bit of the usual algorithm.
#[inline(always)]
const fn square_root(n: u64) -> u64 {
    // From above: within a factor of two of the root. Each step squares and halves the relative error: 1, 1/4, 1/40,
    // 3·10^-4, 5·10^-8, 10^-15.
    let mut root = 1u64 << ((65 - n.leading_zeros()) / 2);
    let mut step = 0;
    while step < 6 {
        let Some(quotient) = n.checked_div(root) else { return 0 };
        root = (root + quotient) / 2;
        step += 1;
    }
    // Rounding may leave it one above.
    if root.wrapping_mul(root) > n { root.wrapping_sub(1) } else { root }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Config, MAX_RATE_BPS};
    use proptest::prelude::*;

    /// Highest stage that distinguishes states: a flow reaches the line rate before it.
    const FAR: u32 = 1 << 22;

    /// `events` increase events of one counter, in at most [`MAX_STEPS`] steps.
    fn run(m: &mut RateMachine, p: &RpParams, source: Source, events: u64) {
        let (mut left, mut none) = (events, Debt::NONE);
        for _ in 0..MAX_STEPS {
            if left != 0 {
                left -= m.increase(p, source, left, &mut none);
            }
        }
        assert_eq!(left, 0, "{m:?} {p:?}");
    }

    fn params(line_rate_bps: u64, threshold: u64) -> RpParams {
        RpParams::new(&Config::with_scalars(|s| {
            (s.link_rate_bps, s.rpg_threshold) = (line_rate_bps, threshold);
        }))
    }

    /// Integers of every magnitude up to `high`.
    fn any_size(low: u64, high: u64) -> impl Strategy<Value = u64> {
        (low..=high, 0u32..64).prop_map(move |(value, shift)| (value >> shift).max(low))
    }

    prop_compose! {
        /// Parameters that an increase event reads; with `other_is_on == false` only `source`'s counter runs.
        fn any_params(source: Source)(
            line_rate_bps in any_size(100_000, MAX_RATE_BPS), threshold in 0u64..=31,
            ai_rate_bps in any_size(1_000, MAX_RATE_BPS), hai_rate_bps in any_size(1_000, MAX_RATE_BPS),
            other_is_on: bool, is_firmware: bool,
        ) -> RpParams {
            let mut p = RpParams { ai_rate_bps, hai_rate_bps, ..params(line_rate_bps, threshold) };
            if is_firmware {
                (p.count_first, p.max_hyper) = (0, 1);
            }
            match source {
                Source::Timer if !other_is_on => p.byte_reset_bytes = 0,
                Source::Bytes if !other_is_on => p.time_reset_ns = 0,
                Source::Timer | Source::Bytes => {}
            }
            p
        }
    }

    fn any_source() -> impl Strategy<Value = Source> {
        prop_oneof![Just(Source::Timer), Just(Source::Bytes)]
    }

    prop_compose! {
        fn any_stage()(near in 0u32..70, far in 0..FAR, is_far in prop::bool::weighted(0.2)) -> u32 {
            if is_far { far } else { near }
        }
    }

    prop_compose! {
        /// A state below the line rate, the current rate on either side of the target.
        fn any_machine(p: RpParams)(
            room_bps in any_size(0, p.line_rate_bps), rate_bps in any_size(0, p.line_rate_bps),
            above: bool, time_stage in any_stage(), byte_stage in any_stage(),
        ) -> RateMachine {
            let target_bps = p.line_rate_bps - room_bps;
            let rate_bps = if above { rate_bps } else { rate_bps.min(target_bps) };
            RateMachine { rate_bps, target_bps, time_stage, byte_stage, active: 1, ..RateMachine::new(&p) }
        }
    }

    fn any_run() -> impl Strategy<Value = (RpParams, Source, RateMachine)> {
        any_source()
            .prop_flat_map(|source| (any_params(source), Just(source)))
            .prop_flat_map(|(p, source)| (Just(p), Just(source), any_machine(p)))
    }

    /// One increase event, as the paper and the firmware's parameters define it.
    fn naive_event(m: &mut RateMachine, p: &RpParams, source: Source) {
        let is_paper = p.count_first == 1;
        let mut counted = *m;
        match source {
            Source::Timer => counted.time_stage = m.time_stage.saturating_add(1),
            Source::Bytes => counted.byte_stage = m.byte_stage.saturating_add(1),
        }
        if is_paper {
            *m = counted;
        }
        let time = (p.time_reset_ns != 0).then_some(m.time_stage);
        let bytes = (p.byte_reset_bytes != 0).then_some(m.byte_stage);
        let running = || [time, bytes].into_iter().flatten();
        let (least, most) = (running().min().unwrap(), running().max().unwrap());
        let step_bps = if most < p.threshold {
            0
        } else if least > p.threshold {
            let factor = if is_paper { (least - p.threshold).min(MAX_HYPER) } else { 1 };
            u128::from(factor) * u128::from(p.hai_rate_bps)
        } else {
            u128::from(p.ai_rate_bps)
        };
        let target_bps = (u128::from(m.target_bps) + step_bps).min(u128::from(p.line_rate_bps));
        m.target_bps = target_bps as u64;
        m.rate_bps = (u128::from(m.rate_bps) + target_bps).div_ceil(2) as u64;
        (m.time_stage, m.byte_stage) = (counted.time_stage, counted.byte_stage);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn run_equals_single_events_bit_exact(
            (p, source, start) in any_run(), events in any_size(1, 100_000),
        ) {
            let (mut whole, mut single) = (start, start);
            run(&mut whole, &p, source, events);
            for _ in 0..events {
                naive_event(&mut single, &p, source);
            }
            prop_assert_eq!(whole, single, "{:?}", start);
        }

        #[test]
        fn run_bounded_by_allowed_steps(
            (p, source, start) in any_run(), first in any_size(0, 1 << 54), then in any_size(0, 1 << 54),
        ) {
            let (mut whole, mut parts) = (start, start);
            run(&mut whole, &p, source, first + then);
            run(&mut parts, &p, source, first);
            run(&mut parts, &p, source, then);
            let stage = |m: &RateMachine| match source {
                Source::Timer => m.time_stage,
                Source::Bytes => m.byte_stage,
            };
            let counted = (u64::from(stage(&start)) + first + then).min(u64::from(u32::MAX)) as u32;
            prop_assert_eq!(stage(&whole), counted);
            // Hyper increase has a maximum factor, which runs that start before and after it see differently.
            if first < u64::from(FAR) || [whole, parts].iter().all(|m| m.target_bps == p.line_rate_bps) {
                prop_assert_eq!(whole, parts);
            }
        }

        #[test]
        fn square_roots_are_exact(n in any_size(0, 1 << 50), root in 0u64..1 << 25) {
            let exact = |n: u64| {
                let root = square_root(n);
                root * root <= n && n < (root + 1) * (root + 1)
            };
            prop_assert!(exact(n), "{}", n);
            // Values next to a square, where an error of one shows.
            let square = root * root;
            prop_assert!(exact(square) && exact(square.saturating_sub(1)) && exact(square + 2 * root), "{}", square);
        }

        #[test]
        fn growing_events_use_all_headroom(
            twice_room in any_size(0, 2 * MAX_RATE_BPS / 1_000), factor in any_size(1, u64::from(MAX_HYPER)),
        ) {
            let twice_sum = |n: u64| n * n + (2 * factor - 1) * n;
            let n = growing_events(twice_room, factor);
            prop_assert!(twice_sum(n) <= twice_room && twice_room < twice_sum(n + 1), "{}", n);
            prop_assert!(n < 1 << 16);
        }
    }

    /// Every combination of range limits, impossible stages included: the first event is exact, and any number of
    /// further events keep the rate within its bounds. (Arithmetic overflow panics in a test.)
    #[test]
    fn range_limits_fit() {
        let rates = [100_000, 1_000_000, 40_000_000_000, MAX_RATE_BPS];
        let steps = [1_000, 40_000_000, MAX_RATE_BPS];
        let stages = [0, 30, 31, 32, FAR, MAX_HYPER, u32::MAX - 1, u32::MAX];
        let combinations = rates.into_iter().flat_map(|line| {
            steps.into_iter().flat_map(move |ai| {
                steps.into_iter().flat_map(move |hai| [0, 31].map(|threshold| (line, ai, hai, threshold)))
            })
        });
        for (line, ai_rate_bps, hai_rate_bps, threshold) in combinations {
            let paper = RpParams { ai_rate_bps, hai_rate_bps, ..params(line, threshold) };
            let firmware = RpParams { count_first: 0, max_hyper: 1, ..paper };
            for p in [paper, firmware] {
                for (time_stage, byte_stage) in stages.into_iter().flat_map(|t| stages.map(|b| (t, b))) {
                    for (rate_bps, target_bps) in
                        [(0, 0), (0, line), (line / 2, line - 1), (line, 0), (line, line)]
                    {
                        let new = RateMachine { active: 1, ..RateMachine::new(&p) };
                        let start = RateMachine { rate_bps, target_bps, time_stage, byte_stage, ..new };
                        for source in [Source::Timer, Source::Bytes] {
                            let (mut one, mut naive) = (start, start);
                            run(&mut one, &p, source, 1);
                            naive_event(&mut naive, &p, source);
                            assert_eq!(one, naive, "{start:?} {p:?}");
                            for events in [2, 31, 1 << 16, 1 << 32, u64::MAX / 1_000] {
                                let mut m = start;
                                run(&mut m, &p, source, events);
                                let rates_bps = rate_bps.min(target_bps)..=rate_bps.max(m.target_bps);
                                assert!((target_bps..=line).contains(&m.target_bps), "{start:?} {m:?}");
                                assert!(rates_bps.contains(&m.rate_bps), "{start:?} {m:?}");
                            }
                        }
                    }
                }
            }
        }
    }
}
