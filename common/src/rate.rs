//! Reaction point: the DCQCN rate machine of one QP.
//!
//! This is the paper's variant (DCQCN, SIGCOMM'15 §3.1 and §5): a CNP cuts at once with the old alpha. The machine is
//! lazy: a rate only matters when a packet is sent, so [`RateMachine::advance`] catches up on all that fell due.
//!
//! Integers only. Rates are below 2^40 bit/s (800 Gb/s); alpha is a fraction of 2^31. Averages round up, so that a
//! rate reaches its target after at most 40 halvings of the difference instead of staying one below it.
//!
//! Gaps cost no loops: a run of increase events has a closed form in integers, the same to the last bit as one step per
//! event.

use crate::params::Config;

/// Alpha = 1.
pub const ALPHA_ONE: u32 = 1 << 31;
/// Most steps one call of [`RateMachine::advance`] or [`RateMachine::on_send`] takes, whatever the gap.
///
/// A run of equal events has at most three phases, each done at once in closed form: fast recovery, additive and growing
/// hyper increase, or, when the other counter is past F already, additive, growing and constant hyper increase. Reaching
/// the line rate takes one step more, and what follows it another.
pub const MAX_STEPS: u32 = 5;
/// Powers of the alpha decay kept: after 2^16 periods alpha is 0 for every gain (1023/1024 ^ 65536 = e^-64).
pub const DECAYS: usize = 16;

/// The machine's parameters as the data plane reads them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpParams {
    /// Rate of a new flow and cap of every flow; 0 = not known, the machine does not run.
    pub line_rate_bps: u64,
    /// Floor of every cut.
    pub min_rate_bps: u64,
    /// Additive increase R_AI.
    pub ai_rate_bps: u64,
    /// Hyper increase R_HAI.
    pub hai_rate_bps: u64,
    /// Increase timer T; 0 = off.
    pub time_reset_ns: u64,
    /// Byte counter B; 0 = off.
    pub byte_reset_bytes: u64,
    /// Alpha timer tau'.
    pub alpha_period_ns: u64,
    /// Shortest time between two cuts.
    pub cut_interval_ns: u64,
    /// F.
    pub threshold: u32,
    /// A cut takes rate · alpha >> this, alpha in 2^-31: 31 + (rpg_gd − 10).
    pub cut_shift: u32,
    /// Lowest percentage of the rate a cut leaves.
    pub min_dec_percent: u32,
    /// g in 2^-31.
    pub gain_q31: u32,
    /// Alpha of a new flow in 2^-31.
    pub initial_alpha_q31: u32,
    /// Explicit padding.
    pub _pad: u32,
    /// (1 − g)^(2^k) in 2^-31.
    pub decay_q31: [u32; DECAYS],
}

impl RpParams {
    /// What `config` (valid) means for the machine.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let s = &config.scalars;
        let mut decay_q31 = [0; DECAYS];
        let mut power = (s.dce_tcp_g as u32) << 21;
        for slot in &mut decay_q31 {
            *slot = power;
            power = mul_q31(power, power);
        }
        let line_rate_bps = config.line_rate_bps();
        Self {
            line_rate_bps,
            min_rate_bps: s.rpg_min_rate_bps.min(line_rate_bps),
            ai_rate_bps: s.rpg_ai_rate_bps,
            hai_rate_bps: s.rpg_hai_rate_bps,
            time_reset_ns: s.rpg_time_reset_ns,
            byte_reset_bytes: s.rpg_byte_reset_bytes,
            alpha_period_ns: s.dce_tcp_rtt_ns,
            cut_interval_ns: s.rate_reduce_monitor_period_ns,
            threshold: s.rpg_threshold as u32,
            cut_shift: 31 + (s.rpg_gd as u32).saturating_sub(10),
            min_dec_percent: s.rpg_min_dec_fac as u32,
            gain_q31: (1024 - s.dce_tcp_g as u32) << 21,
            initial_alpha_q31: (s.initial_alpha_value as u32) << 21,
            _pad: 0,
            decay_q31,
        }
    }
}

/// The rate machine of one QP.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateMachine {
    /// Current rate R_C.
    pub rate_bps: u64,
    /// Target rate R_T.
    pub target_bps: u64,
    /// When alpha had the value stored, that is at the last CNP.
    pub alpha_epoch_ns: u64,
    /// When the increase timer expires next.
    pub next_increase_ns: u64,
    /// Bytes sent since the byte counter's last event.
    pub bytes: u64,
    /// Alpha at `alpha_epoch_ns`, in 2^-31; [`RateMachine::alpha_q31`] gives the present one.
    pub alpha_at_epoch_q31: u32,
    /// Events of the increase timer since the last CNP (T); stays at its end.
    pub time_stage: u32,
    /// Events of the byte counter since the last CNP (BC); stays at its end.
    pub byte_stage: u32,
    /// 0 until the first CNP: timers and byte counter are idle.
    pub active: u32,
}

/// Which counter an increase event counts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Timer,
    Bytes,
}

/// A run of increase events whose target grows by `step`, then `step + growth`, and so on.
struct Phase {
    step_bps: u64,
    growth_bps: u64,
    /// How often R_HAI the step is, where it grows.
    factor: u64,
    events: u64,
}

impl RateMachine {
    /// A flow that starts: line rate, alpha at its initial value, timers and byte counter idle.
    #[inline(always)]
    #[must_use]
    pub const fn new(p: &RpParams) -> Self {
        Self {
            rate_bps: p.line_rate_bps,
            target_bps: p.line_rate_bps,
            alpha_epoch_ns: 0,
            next_increase_ns: 0,
            bytes: 0,
            alpha_at_epoch_q31: p.initial_alpha_q31,
            time_stage: 0,
            byte_stage: 0,
            active: 0,
        }
    }

    /// Catches up on every timer expiry up to and including `now_ns`, in at most [`MAX_STEPS`] steps.
    #[inline(always)]
    pub fn advance(&mut self, p: &RpParams, now_ns: u64) {
        if self.active == 0 {
            self.rate_bps = p.line_rate_bps;
            self.target_bps = p.line_rate_bps;
            return;
        }
        // The line rate may have been lowered since.
        self.rate_bps = self.rate_bps.min(p.line_rate_bps);
        self.target_bps = self.target_bps.min(p.line_rate_bps);
        if p.time_reset_ns == 0 {
            // Off: it starts anew when it is turned on.
            self.next_increase_ns = now_ns;
            return;
        }
        // The period may have been shortened since.
        self.next_increase_ns = self.next_increase_ns.min(now_ns.saturating_add(p.time_reset_ns));
        if now_ns < self.next_increase_ns {
            return;
        }
        let events = (now_ns - self.next_increase_ns) / p.time_reset_ns + 1;
        self.next_increase_ns = self.next_increase_ns.wrapping_add(events.wrapping_mul(p.time_reset_ns));
        self.increase(p, Source::Timer, events);
    }

    /// Counts a packet of `bytes` (below 2^32); the machine has been advanced to the time of sending.
    #[inline(always)]
    pub fn on_send(&mut self, p: &RpParams, bytes: u64) {
        if self.active == 0 || p.byte_reset_bytes == 0 {
            return;
        }
        self.bytes += bytes;
        if self.bytes >= p.byte_reset_bytes {
            let events = self.bytes / p.byte_reset_bytes;
            self.bytes -= events.wrapping_mul(p.byte_reset_bytes);
            self.increase(p, Source::Bytes, events);
        }
    }

    /// A CNP at `now_ns`: cut with the old alpha, then raise alpha; stages and byte counter start anew, both timers
    /// restart. The machine has been advanced to `now_ns`.
    #[inline(always)]
    pub fn on_cnp(&mut self, p: &RpParams, now_ns: u64) {
        let alpha_q31 = self.alpha_q31(p, now_ns);
        self.target_bps = self.rate_bps;
        self.rate_bps = self.cut(p, alpha_q31);
        self.alpha_at_epoch_q31 = mul_q31(alpha_q31, p.decay_q31[0]) + p.gain_q31;
        self.alpha_epoch_ns = now_ns;
        self.next_increase_ns = now_ns.wrapping_add(p.time_reset_ns);
        self.bytes = 0;
        self.time_stage = 0;
        self.byte_stage = 0;
        self.active = 1;
    }

    /// Alpha at `now_ns`, in 2^-31: (1 − g)^n times its last value after n whole periods without a CNP.
    #[inline(always)]
    #[must_use]
    pub fn alpha_q31(&self, p: &RpParams, now_ns: u64) -> u32 {
        if self.active == 0 || p.alpha_period_ns == 0 {
            return self.alpha_at_epoch_q31;
        }
        let periods = now_ns.saturating_sub(self.alpha_epoch_ns) / p.alpha_period_ns;
        if periods >> DECAYS != 0 {
            return 0;
        }
        let mut alpha = self.alpha_at_epoch_q31;
        for (bit, &decay) in p.decay_q31.iter().enumerate() {
            if (periods >> bit) & 1 == 1 {
                alpha = mul_q31(alpha, decay);
            }
        }
        alpha
    }

    #[inline(always)]
    fn cut(&self, p: &RpParams, alpha_q31: u32) -> u64 {
        let rate = self.rate_bps;
        // rate < 2^40 and alpha ≤ 2^31 need 71 bits: the rate's upper 8 bits go separately. 2^8 · 2^31 << 1 and
        // 2^32 · 2^31 >> 31 both fit.
        let high = (rate >> 32).wrapping_mul(alpha_q31 as u64) << 1;
        let low = (rate & 0xffff_ffff).wrapping_mul(alpha_q31 as u64) >> 31;
        let reduction = (high + low) >> p.cut_shift.wrapping_sub(31);
        // rate · 100 < 2^47.
        let kept = rate.wrapping_mul(p.min_dec_percent as u64) / 100;
        rate.wrapping_sub(reduction).max(kept).max(p.min_rate_bps)
    }

    /// The phase that the next event of `source` is in, of at most `left` events.
    #[inline(always)]
    fn phase(&self, p: &RpParams, source: Source, left: u64) -> Phase {
        let threshold = p.threshold as u64;
        let (own, other, other_is_on) = match source {
            Source::Timer => (self.time_stage, self.byte_stage, p.byte_reset_bytes != 0),
            Source::Bytes => (self.byte_stage, self.time_stage, p.time_reset_ns != 0),
        };
        let (stage, other) = (own as u64 + 1, other as u64);
        let run = |step_bps, growth_bps, factor, last_stage: u64| Phase {
            step_bps,
            growth_bps,
            factor,
            events: left.min(last_stage.wrapping_sub(stage).wrapping_add(1)),
        };
        // `other_is_on == false` leaves that counter out of min and max.
        let fast = stage < threshold && (!other_is_on || other < threshold);
        let hyper = stage > threshold && (!other_is_on || other > threshold);
        if fast {
            run(0, 0, 0, threshold - 1)
        } else if !hyper {
            // Additive until this counter passes F, if the other is already past it; else for good.
            let last =
                if stage <= threshold && (!other_is_on || other > threshold) { threshold } else { u64::MAX };
            run(p.ai_rate_bps, 0, 0, last)
        } else if other_is_on && stage > other {
            let factor = (other - threshold).min(MAX_HYPER);
            run(p.hai_rate_bps.wrapping_mul(factor), 0, factor, u64::MAX)
        } else {
            let last = if other_is_on { other } else { u64::MAX };
            let factor = (stage - threshold).min(MAX_HYPER);
            run(p.hai_rate_bps.wrapping_mul(factor), p.hai_rate_bps, factor, last)
        }
    }

    /// `events` increase events of one counter in a row.
    #[inline(always)]
    fn increase(&mut self, p: &RpParams, source: Source, events: u64) {
        let mut left = events;
        for _ in 0..MAX_STEPS {
            if left == 0 {
                return;
            }
            let taken = self.leap(p, &self.phase(p, source, left), left);
            self.count(source, taken);
            left -= taken;
            // The verifier follows what it knows of these numbers, bounds included, along every path of every step; read
            // back from the map they are all alike to it.
            core::hint::black_box(&mut *self);
        }
    }

    /// Takes as many events of `phase` as have one closed form, and returns how many: at least one.
    ///
    /// One event is R_T += step, R_C = (R_C + R_T + 1) / 2. With d = R_T − R_C that is d ← (d + step) / 2, rounded down;
    /// and with e = d − (step − 2 growth), which follows the line that d tends to, e ← e / 2, rounded down. So after n
    /// events e has been shifted right by n, exactly.
    #[inline(always)]
    fn leap(&mut self, p: &RpParams, phase: &Phase, left: u64) -> u64 {
        let Phase { step_bps, growth_bps, factor, events } = *phase;
        let room_bps = p.line_rate_bps.saturating_sub(self.target_bps);
        let lag_bps = self.target_bps.wrapping_sub(self.rate_bps) as i64;
        if room_bps == 0 {
            // At the cap all events are alike.
            self.rate_bps = self.target_bps.wrapping_sub(halved(lag_bps, left) as u64);
            return left;
        }
        let below_cap = match (2 * room_bps).checked_div(growth_bps) {
            Some(twice_room) => growing_events(twice_room, factor),
            // In fast recovery the target stays, and so below the cap.
            None => room_bps.checked_div(step_bps).unwrap_or(events),
        };
        let taken = events.min(below_cap);
        if taken == 0 {
            // The cap cuts this step short.
            self.target_bps = p.line_rate_bps;
            self.rate_bps = (self.rate_bps + self.target_bps).wrapping_add(1) / 2;
            return 1;
        }
        // Growing: taken < 2^16 and factor < 2^23 where there is room (see `growing_events`), so every product here stays
        // below 2^63; else the products are at most the room or 0.
        let growth_taken_bps = growth_bps.wrapping_mul(taken);
        let climb_bps =
            taken.wrapping_mul(step_bps) + growth_taken_bps.wrapping_mul(taken.wrapping_sub(1)) / 2;
        let tends_to_bps = step_bps.wrapping_sub(growth_bps.wrapping_mul(2)) as i64;
        let off_bps = halved(lag_bps.wrapping_sub(tends_to_bps), taken);
        let lag_bps = tends_to_bps.wrapping_add(growth_taken_bps as i64).wrapping_add(off_bps);
        self.target_bps += climb_bps;
        self.rate_bps = self.target_bps.wrapping_sub(lag_bps as u64);
        taken
    }

    #[inline(always)]
    fn count(&mut self, source: Source, events: u64) {
        let events = events.min(u32::MAX as u64) as u32;
        match source {
            Source::Timer => self.time_stage = self.time_stage.saturating_add(events),
            Source::Bytes => self.byte_stage = self.byte_stage.saturating_add(events),
        }
    }
}

/// Largest factor of R_HAI: 2^23 steps of even 1 kb/s are far beyond any line rate, and 2^40 · 2^23 fits.
const MAX_HYPER: u64 = 1 << 23;

/// `value` halved `times` times, rounded down each time.
#[inline(always)]
const fn halved(value: i64, times: u64) -> i64 {
    value >> if times > 63 { 63 } else { times }
}

/// Largest n with factor + (factor + 1) + … (n terms) ≤ `twice_room` / 2, that is n² + (2 factor − 1) n ≤ `twice_room`.
///
/// `twice_room` < 2^41 / 1000 (R_HAI is at least 1 kb/s) and `factor` ≤ 2^23, so the root's argument is below 2^49 and
/// n < 2^16.
#[inline(always)]
const fn growing_events(twice_room: u64, factor: u64) -> u64 {
    let linear = (2 * factor).wrapping_sub(1);
    (square_root(linear.wrapping_mul(linear) + 4 * twice_room).wrapping_sub(linear)) / 2
}

/// Integer square root, rounded down, by Newton's method: the verifier would follow both ways of every bit of the usual
/// one, here it sees straight code.
#[inline(always)]
const fn square_root(n: u64) -> u64 {
    // From above: within a factor of two of the root. The relative error is squared, and halved, by each step: 1, 1/4,
    // 1/40, 3·10^-4, 5·10^-8, 10^-15.
    let mut root = 1u64 << ((65 - n.leading_zeros()) / 2);
    let mut step = 0;
    while step < 6 {
        let Some(quotient) = n.checked_div(root) else {
            return 0;
        };
        root = (root + quotient) / 2;
        step += 1;
    }
    // Rounding may leave it one above.
    if root.wrapping_mul(root) > n { root.wrapping_sub(1) } else { root }
}

/// Product of two fractions of 2^31, rounded.
#[inline(always)]
const fn mul_q31(a: u32, b: u32) -> u32 {
    // Both at most 2^31: 2^62 + 2^30 fits.
    (((a as u64).wrapping_mul(b as u64) + (1 << 30)) >> 31) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::MAX_RATE_BPS;
    use proptest::prelude::*;

    /// Highest number of hyper increase events that still tells states apart: no flow gets there below the line rate.
    const FAR: u32 = 1 << 22;

    fn params(line_rate_bps: u64, threshold: u64) -> RpParams {
        let mut config = Config::DEFAULT;
        config.scalars.link_rate_bps = line_rate_bps;
        config.scalars.rpg_threshold = threshold;
        RpParams::new(&config)
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
            other_is_on: bool,
        ) -> RpParams {
            let mut p = RpParams { ai_rate_bps, hai_rate_bps, ..params(line_rate_bps, threshold) };
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

    /// One increase event, as the paper tells it.
    fn naive_event(m: &mut RateMachine, p: &RpParams, source: Source) {
        match source {
            Source::Timer => m.time_stage = m.time_stage.saturating_add(1),
            Source::Bytes => m.byte_stage = m.byte_stage.saturating_add(1),
        }
        let time = (p.time_reset_ns != 0).then_some(m.time_stage);
        let bytes = (p.byte_reset_bytes != 0).then_some(m.byte_stage);
        let running = || [time, bytes].into_iter().flatten();
        let (least, most) = (running().min().unwrap(), running().max().unwrap());
        let step_bps = if most < p.threshold {
            0
        } else if least > p.threshold {
            u128::from(least - p.threshold).min(u128::from(MAX_HYPER)) * u128::from(p.hai_rate_bps)
        } else {
            u128::from(p.ai_rate_bps)
        };
        let target_bps = (u128::from(m.target_bps) + step_bps).min(u128::from(p.line_rate_bps));
        m.target_bps = target_bps as u64;
        m.rate_bps = (u128::from(m.rate_bps) + target_bps).div_ceil(2) as u64;
    }

    #[test]
    fn a_timer_changed_live_counts_from_the_change() {
        let slow = RpParams { time_reset_ns: 10_000_000_000, ..params(MAX_RATE_BPS, 5) };
        let fast = RpParams { time_reset_ns: 1_000_000, ..slow };
        let off = RpParams { time_reset_ns: 0, ..slow };
        let mut machine = RateMachine::new(&slow);
        machine.on_cnp(&slow, 1_000);
        machine.advance(&fast, 2_000_000);
        machine.advance(&fast, 3_000_000);
        assert_eq!(machine.time_stage, 1, "one short period after the change, not after the old long one");
        machine.advance(&off, 3_600_000_000_000);
        machine.advance(&fast, 3_600_000_000_001);
        assert_eq!(machine.time_stage, 2, "an hour without a timer is no event");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn a_run_is_its_single_events_to_the_last_bit(
            (p, source, start) in any_run(), events in any_size(1, 100_000),
        ) {
            let (mut run, mut single) = (start, start);
            run.increase(&p, source, events);
            for _ in 0..events {
                naive_event(&mut single, &p, source);
            }
            prop_assert_eq!(run, single, "{:?}", start);
        }

        /// Stages count every event, so that equal stages say that no event was left over after [`MAX_STEPS`].
        #[test]
        fn a_run_of_any_length_is_done_in_the_steps_allowed(
            (p, source, start) in any_run(), first in any_size(0, 1 << 54), then in any_size(0, 1 << 54),
        ) {
            let (mut whole, mut parts) = (start, start);
            whole.increase(&p, source, first + then);
            parts.increase(&p, source, first);
            parts.increase(&p, source, then);
            let stage = |m: &RateMachine| match source {
                Source::Timer => m.time_stage,
                Source::Bytes => m.byte_stage,
            };
            let counted = (u64::from(stage(&start)) + first + then).min(u64::from(u32::MAX)) as u32;
            prop_assert_eq!(stage(&whole), counted);
            // The factor of hyper increase has an end, which runs that begin before and after it see differently.
            if first < u64::from(FAR) || [whole, parts].iter().all(|m| m.target_bps == p.line_rate_bps) {
                prop_assert_eq!(whole, parts);
            }
        }

        #[test]
        fn a_cut_is_exact(
            rate in 0u64..1 << 40, min in 0u64..1 << 40, alpha in 0u32..=ALPHA_ONE,
            gd in 10u32..=15, percent in 1u32..=100,
        ) {
            let mut p = params(MAX_RATE_BPS, 5);
            (p.cut_shift, p.min_dec_percent, p.min_rate_bps) = (31 + gd - 10, percent, min);
            let m = RateMachine { rate_bps: rate, ..RateMachine::new(&p) };
            let wide = u128::from(rate);
            let expected = (wide - ((wide * u128::from(alpha)) >> p.cut_shift))
                .max(wide * u128::from(percent) / 100)
                .max(u128::from(min));
            prop_assert_eq!(u128::from(m.cut(&p, alpha)), expected);
        }

        #[test]
        fn square_roots_are_exact(n in any_size(0, 1 << 50), root in 0u64..1 << 25) {
            let exact = |n: u64| {
                let root = square_root(n);
                root * root <= n && n < (root + 1) * (root + 1)
            };
            prop_assert!(exact(n), "{}", n);
            // Where a root that is one off would show.
            let square = root * root;
            prop_assert!(exact(square) && exact(square.saturating_sub(1)) && exact(square + 2 * root), "{}", square);
        }

        #[test]
        fn growing_steps_fill_the_room_and_no_more(
            twice_room in any_size(0, 2 * MAX_RATE_BPS / 1_000), factor in any_size(1, MAX_HYPER),
        ) {
            let twice_sum = |n: u64| n * n + (2 * factor - 1) * n;
            let n = growing_events(twice_room, factor);
            prop_assert!(twice_sum(n) <= twice_room && twice_room < twice_sum(n + 1), "{}", n);
            prop_assert!(n < 1 << 16);
        }
    }

    /// Every combination of the ends of all ranges, stages beyond any real one included: the first event is right, and
    /// however many follow, the rate stays within its bounds. (Arithmetic not proved to fit would panic in a test.)
    #[test]
    fn the_ends_of_all_ranges_fit() {
        let rates = [100_000, 1_000_000, 40_000_000_000, MAX_RATE_BPS];
        let steps = [1_000, 40_000_000, MAX_RATE_BPS];
        let stages = [0, 30, 31, 32, FAR, MAX_HYPER as u32, u32::MAX - 1, u32::MAX];
        let combinations = rates.into_iter().flat_map(|line| {
            steps.into_iter().flat_map(move |ai| {
                steps.into_iter().flat_map(move |hai| [0, 31].map(|threshold| (line, ai, hai, threshold)))
            })
        });
        for (line, ai_rate_bps, hai_rate_bps, threshold) in combinations {
            let p = RpParams { ai_rate_bps, hai_rate_bps, ..params(line, threshold) };
            for (time_stage, byte_stage) in stages.into_iter().flat_map(|t| stages.map(|b| (t, b))) {
                for (rate_bps, target_bps) in
                    [(0, 0), (0, line), (line / 2, line - 1), (line, 0), (line, line)]
                {
                    let start = RateMachine {
                        rate_bps,
                        target_bps,
                        time_stage,
                        byte_stage,
                        active: 1,
                        ..RateMachine::new(&p)
                    };
                    for source in [Source::Timer, Source::Bytes] {
                        let (mut one, mut naive) = (start, start);
                        one.increase(&p, source, 1);
                        naive_event(&mut naive, &p, source);
                        assert_eq!(one, naive, "{start:?} {p:?}");
                        for events in [2, 31, 1 << 16, 1 << 32, u64::MAX / 1_000] {
                            let mut m = start;
                            m.increase(&p, source, events);
                            assert!(m.target_bps >= target_bps && m.target_bps <= line, "{start:?} {m:?}");
                            assert!(m.rate_bps <= rate_bps.max(m.target_bps), "{start:?} {m:?}");
                            assert!(m.rate_bps >= rate_bps.min(target_bps), "{start:?} {m:?}");
                        }
                    }
                }
            }
        }
    }
}
