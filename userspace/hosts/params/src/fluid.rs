//! Fixed point of DCQCN's fluid model: the queue at which a bottleneck settles, without a simulation.
//!
//! Zhu et al., "ECN or Delay: Lessons Learnt from Analysis of DCQCN and TIMELY", CoNEXT'16, section 3. At the
//! fixed point each of N flows has R = C/N, and the marking probability p solves
//!
//! ```text
//! a² α / ((b + d)(c + e)) = τ² R_AI C / N
//! a = 1 - (1-p)^(τR)             α = 1 - (1-p)^(τ'R)
//! b = p / ((1-p)^(-B) - 1)       c = b (1-p)^(FB)
//! d = p / ((1-p)^(-TR) - 1)      e = d (1-p)^(FTR)
//! ```
//!
//! with rates in packets per second and B in packets. A disabled counter or timer drops its two terms. The queue
//! follows from p by the marking curve. The model covers the `paper` machine and infinite flows only.
//!
//! Its stability follows from the delay differential equations of the same section, with p and R (packets per second)
//! delayed by one loop delay,
//!
//! ```text
//! dq/dt  = N R_C - C, not below q = 0
//! dα/dt  = g/τ' (1 - (1-p)^(τ'R) - α)
//! dR_T/dt = -(R_T - R_C) a/τ + R_AI R (c + e)
//! dR_C/dt = -R_C α/(2τ) a + (R_T - R_C)/2 R (b + d)
//! ```
//!
//! solved by Euler's method. It starts near the fixed point, 5 % too fast, and marks as WRED does, with the jump to 1
//! above Kmax, which the paper's linear stability analysis around the fixed point omits.

use std::collections::VecDeque;

use dcqcn_common::params::{Config, RP_VARIANT_PAPER, WredConfig};
use serde::Serialize;

/// Bulk flows that share a link.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck<'c> {
    /// Parameters of the flows and of the link.
    pub config: &'c Config,
    pub tc: usize,
    pub link_bps: u64,
    pub flows: u64,
    /// Size of a packet on the wire.
    pub packet_bytes: u64,
}

impl<'c> Bottleneck<'c> {
    /// WRED of the class.
    ///
    /// `None` if the model does not apply: not the `paper` machine, no marking, no flow, no link.
    pub fn marking(&self) -> Option<&'c WredConfig> {
        let (scalars, wred) = (&self.config.scalars, self.config.wred.get(self.tc)?);
        let positive = [
            self.link_bps,
            self.flows,
            self.packet_bytes,
            wred.pmax_ppm,
            scalars.min_time_between_cnps_ns,
            scalars.dce_tcp_rtt_ns,
        ];
        let applies = scalars.rp_variant == RP_VARIANT_PAPER && wred.ecn != 0 && !positive.contains(&0);
        applies.then_some(wred)
    }
}

pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Root of a monotonic function: the point where `is_below` changes to false, to the precision of `f64`.
///
/// `middle` is the mean used to halve the interval: arithmetic, or geometric for values that span orders of magnitude.
pub fn bisect(
    mut low: f64,
    mut high: f64,
    middle: impl Fn(f64, f64) -> f64,
    is_below: impl Fn(f64) -> bool,
) -> f64 {
    // A double has 53 bits, and the root at most a dozen leading zeros.
    for _ in 0..100 {
        let between = middle(low, high);
        if is_below(between) { low = between } else { high = between }
    }
    low
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FixedPoint {
    /// The probability p* that a packet is marked, 0 to 1.
    pub marking_probability: f64,
    /// The queue q* at which WRED marks with p*; Kmax if `beyond_pmax`.
    pub queue_bytes: f64,
    /// p* is above Pmax, so the linear part of the marking curve has no such point: the queue oscillates around Kmax.
    pub beyond_pmax: bool,
}

impl FixedPoint {
    /// The queue at which `wred` marks with `marking_probability`.
    pub fn new(wred: &WredConfig, marking_probability: f64) -> Self {
        let pmax = wred.pmax_ppm as f64 / 1e6;
        let (kmin, kmax) = (wred.kmin_bytes as f64, wred.kmax_bytes as f64);
        let beyond_pmax = marking_probability > pmax;
        let queue_bytes = if beyond_pmax { kmax } else { kmin + marking_probability / pmax * (kmax - kmin) };
        Self { marking_probability, queue_bytes, beyond_pmax }
    }
}

/// Parameters of a bottleneck in the model's units.
#[derive(Clone, Copy, Debug)]
struct Model {
    /// N.
    flows: f64,
    /// C/N, packets per second.
    rate: f64,
    /// R_AI, packets per second.
    ai_rate: f64,
    /// tau, tau' and T, s; T is 0 if the timer is off.
    cnp_interval: f64,
    alpha_period: f64,
    increase_period: f64,
    /// B, packets; 0 if the counter is off.
    byte_counter: f64,
    /// F.
    threshold: f64,
}

/// The model's terms for one marking probability and rate.
#[derive(Clone, Copy, Debug)]
struct Terms {
    /// a: the fraction of CNP intervals with a CNP.
    cnp: f64,
    /// Limit of alpha.
    alpha: f64,
    /// b + d: increases per packet.
    increases: f64,
    /// c + e: increases beyond fast recovery.
    additive: f64,
}

impl Model {
    /// `None` if the model does not apply: see [`fixed_point`].
    fn new<'c>(bottleneck: &Bottleneck<'c>) -> Option<(Self, &'c WredConfig)> {
        let wred = bottleneck.marking()?;
        let &Bottleneck { config: Config { scalars, .. }, link_bps, flows, packet_bytes, .. } = bottleneck;
        if scalars.rpg_time_reset_ns == 0 && scalars.rpg_byte_reset_bytes == 0 {
            return None;
        }
        let packets = |bps: u64| bps as f64 / (packet_bytes * 8) as f64;
        let model = Self {
            flows: flows as f64,
            rate: packets(link_bps) / flows as f64,
            ai_rate: packets(scalars.rpg_ai_rate_bps),
            cnp_interval: seconds(scalars.min_time_between_cnps_ns),
            alpha_period: seconds(scalars.dce_tcp_rtt_ns),
            increase_period: seconds(scalars.rpg_time_reset_ns),
            byte_counter: scalars.rpg_byte_reset_bytes as f64 / packet_bytes as f64,
            threshold: scalars.rpg_threshold as f64,
        };
        Some((model, wred))
    }

    /// The terms at marking probability `p`, 0 to less than 1, and `rate`, packets per second.
    fn terms(&self, p: f64, rate: f64) -> Terms {
        // (1-p)^x - 1 and (1-p)^x, without losing the digits of a small p.
        let log = (-p).ln_1p();
        let power_minus_one = |x: f64| (x * log).exp_m1();
        let power = |x: f64| (x * log).exp();
        // Frequency, per packet, of `x` packets without a mark, and of F such runs in a row.
        let runs = |x: f64| {
            if x == 0.0 {
                return (0.0, 0.0);
            }
            let once = if p == 0.0 { 1.0 / x } else { p * power(x) / -power_minus_one(x) };
            (once, once * power(self.threshold * x))
        };
        let (b, c) = runs(self.byte_counter);
        let (d, e) = runs(self.increase_period * rate);
        let [cnp, alpha] = [self.cnp_interval, self.alpha_period].map(|time| -power_minus_one(time * rate));
        Terms { cnp, alpha, increases: b + d, additive: c + e }
    }

    /// Left side of the equation minus the right one, both multiplied by (b + d)(c + e); grows with `p`.
    fn surplus(&self, p: f64) -> f64 {
        let Terms { cnp, alpha, increases, additive } = self.terms(p, self.rate);
        let right = self.cnp_interval * self.cnp_interval * self.ai_rate * self.rate;
        cnp * cnp * alpha - right * increases * additive
    }

    /// p*, by bisection: `surplus` rises from below 0 at p = 0 to a² alpha = 1 at p = 1.
    fn marking_probability(&self) -> f64 {
        bisect(0.0, 1.0, f64::midpoint, |p| self.surplus(p) < 0.0)
    }
}

/// The fixed point of a bottleneck.
///
/// `None` if the model does not apply: not the `paper` machine, no marking, neither increase timer nor byte counter, no
/// flow, no link.
pub fn fixed_point(bottleneck: &Bottleneck<'_>) -> Option<FixedPoint> {
    let (model, wred) = Model::new(bottleneck)?;
    Some(FixedPoint::new(wred, model.marking_probability()))
}

/// Depth of the model's queue in its steady state or oscillation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SteadyState {
    pub mean_bytes: f64,
    pub deviation_bytes: f64,
}

/// Simulated time; only the second half is evaluated.
const DURATION: f64 = 0.3;
/// Step: a quarter of the shortest loop delay of interest, a fiftieth of the timers.
const STEP: f64 = 1e-6;
/// Longest loop delay, a tenth of the simulated time: with a longer one the model has not settled at its end.
const MAX_LOOP_DELAY_NS: u64 = 30_000_000;
/// Above this, the logarithm of 1-p diverges, and all packets are marked anyway.
const ALL: f64 = 0.999_999;

/// Steady state of the bottleneck with a control loop delay of `loop_delay_ns`: the fixed point, or an oscillation
/// around it.
///
/// `None` as for [`fixed_point`], or if the loop delay is too long for the simulated time.
pub fn steady_state(bottleneck: &Bottleneck<'_>, loop_delay_ns: u64) -> Option<SteadyState> {
    if loop_delay_ns > MAX_LOOP_DELAY_NS {
        return None;
    }
    let (model, wred) = Model::new(bottleneck)?;
    // g, from the parameter in 1/1024.
    let gain = 1.0 - bottleneck.config.scalars.dce_tcp_g as f64 / 1_024.0;
    let packet = bottleneck.packet_bytes as f64;
    let (kmin, kmax) = (wred.kmin_bytes as f64 / packet, wred.kmax_bytes as f64 / packet);
    let pmax = wred.pmax_ppm as f64 / 1e6;
    let marks = |queue: f64| match queue {
        queue if queue <= kmin => 0.0,
        queue if queue <= kmax => (queue - kmin) / (kmax - kmin) * pmax,
        _ => 1.0,
    };
    let flows = model.flows;
    let link = model.rate * flows;
    let lag = (loop_delay_ns as f64 / 1e9 / STEP).round() as usize;
    let (mut current, mut target, mut alpha, mut queue) = (1.05 * model.rate, 1.05 * model.rate, 0.2, kmin);
    let mut past: VecDeque<(f64, f64)> = vec![(0.0, current); lag + 1].into();
    let steps = (DURATION / STEP) as usize;
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for step in 0..steps {
        past.push_back((marks(queue), current));
        let (p, rate) = past.pop_front().unwrap_or((0.0, current));
        let terms = model.terms(p.min(ALL), rate);
        let gap = target - current;
        let cut_rate = terms.cnp / model.cnp_interval;
        target += STEP * (model.ai_rate * rate * terms.additive - gap * cut_rate);
        current += STEP * (gap / 2.0 * rate * terms.increases - current * alpha / 2.0 * cut_rate);
        alpha += STEP * gain / model.alpha_period * (terms.alpha - alpha);
        target = target.min(link);
        current = current.clamp(link * 1e-4, link);
        queue = (queue + STEP * (flows * current - link)).max(0.0);
        if step >= steps / 2 {
            count += 1.0;
            sum += queue;
            squares += queue * queue;
        }
    }
    let mean = sum / count;
    let variance = (squares / count - mean * mean).max(0.0);
    Some(SteadyState { mean_bytes: mean * packet, deviation_bytes: variance.sqrt() * packet })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KB: u64 = 1_000;
    const MBIT: u64 = 1_000_000;
    const GBIT: u64 = 1_000_000_000;
    const FLOWS: [u64; 7] = [2, 4, 8, 10, 16, 32, 64];

    fn paper(kmin_bytes: u64, kmax_bytes: u64, pmax_ppm: u64) -> Config {
        let mut config = Config::DEFAULT;
        let wred = &mut config.wred[3];
        (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (kmin_bytes, kmax_bytes, pmax_ppm);
        config
    }

    fn of(config: &Config) -> Bottleneck<'_> {
        Bottleneck { config, tc: 3, link_bps: GBIT, flows: 2, packet_bytes: KB }
    }

    fn at(config: &Config, link_bps: u64, flows: u64) -> FixedPoint {
        fixed_point(&Bottleneck { link_bps, flows, ..of(config) }).unwrap()
    }

    /// `expected` is rounded to `digits` decimals, sometimes from a rounded value (403.4987, 403.5, 404).
    fn check(expected: &[f64], digits: i32, what: &str, value: impl Fn(u64) -> f64) {
        for (&expected, flows) in expected.iter().zip(FLOWS) {
            let value = value(flows);
            let is_close = (value - expected).abs() <= 0.51 * 10f64.powi(-digits);
            assert!(is_close, "{what}, {flows} flows: {value}, expected {expected}");
        }
    }

    /// Published values of another solver for the same equation: p* in percent, q* in KB.
    #[test]
    fn probabilities_match_known_values() {
        let config = paper(5 * KB, 200 * KB, 10_000);
        let percent = |config: Config, link| move |n| at(&config, link, n).marking_probability * 100.0;
        check(&[0.078], 3, "40G", percent(config, 40 * GBIT));
        let later = percent(config, 40 * GBIT);
        for (flows, expected, digits) in
            [(4, 0.19, 2), (8, 0.46, 2), (10, 0.60, 2), (16, 1.09, 2), (32, 2.6, 1), (64, 5.9, 1)]
        {
            let half = 0.5 * 10f64.powi(-digits);
            assert!((later(flows) - expected).abs() <= half, "{flows}: {}", later(flows));
        }
        check(&[7.7, 16.7, 33.4], 1, "1G", percent(config, GBIT));
        for (flows, expected) in [(2, 0.46), (4, 1.09), (8, 2.56)] {
            let p = percent(config, 10 * GBIT)(flows);
            assert!((p - expected).abs() <= 0.005, "10G, {flows}: {p}");
        }
    }

    #[test]
    fn queues_match_known_values() {
        let kb = |config: Config, link| move |n| at(&config, link, n).queue_bytes / 1e3;
        let paper_40g = paper(5 * KB, 200 * KB, 10_000);
        check(&[20.2, 41.8, 93.8, 122.6], 1, "40G", kb(paper_40g, 40 * GBIT));
        check(&[93.8], 1, "10G", kb(paper_40g, 10 * GBIT));
        let hpcc_25g = paper(100 * KB, 400 * KB, 200_000);
        check(&[102.0, 105.0, 112.0, 116.0, 129.0, 168.0, 253.0], 0, "25G", kb(hpcc_25g, 25 * GBIT));
        let hpcc_100g = paper(400 * KB, 1_600 * KB, 200_000);
        check(&[401.0, 404.0, 409.0, 411.0, 421.0, 449.0, 517.0], 0, "100G", kb(hpcc_100g, 100 * GBIT));
        let sonic = paper(1_048_576, 2_097_152, 50_000);
        let sonic_kb = [1054.0, 1061.0, 1078.0, 1088.0, 1121.0, 1221.0, 1457.0];
        check(&sonic_kb, 0, "SONiC", kb(sonic, 100 * GBIT));
    }

    #[test]
    fn above_pmax_the_queue_is_at_kmax() {
        let config = paper(5 * KB, 200 * KB, 10_000);
        for (link, flows, beyond) in [
            (40, 10, false),
            (40, 16, true),
            (40, 32, true),
            (40, 64, true),
            (10, 2, false),
            (10, 4, true),
            (1, 2, true),
        ] {
            let point = at(&config, link * GBIT, flows);
            assert_eq!(point.beyond_pmax, beyond, "{link}G, {flows} flows");
            assert_eq!(point.queue_bytes == 200e3, beyond, "{link}G, {flows} flows");
        }
    }

    #[test]
    fn time_dilation_keeps_the_fixed_point() {
        let fast = paper(5 * KB, 200 * KB, 10_000);
        let mut slow = fast;
        let s = &mut slow.scalars;
        s.rpg_ai_rate_bps = MBIT;
        for time in [&mut s.min_time_between_cnps_ns, &mut s.dce_tcp_rtt_ns, &mut s.rpg_time_reset_ns] {
            *time *= 40;
        }
        for flows in FLOWS {
            let (fast, slow) = (at(&fast, 40 * GBIT, flows), at(&slow, GBIT, flows));
            assert!((fast.marking_probability / slow.marking_probability - 1.0).abs() < 1e-9, "{flows}");
        }
    }

    #[test]
    fn one_counter_may_be_off_but_not_both() {
        let mut config = paper(5 * KB, 200 * KB, 10_000);
        let both = at(&config, 40 * GBIT, 2).marking_probability;
        config.scalars.rpg_byte_reset_bytes = 0;
        let timer = at(&config, 40 * GBIT, 2).marking_probability;
        assert!(timer < both && timer > 0.9 * both, "{timer}, {both}");
        config.scalars.rpg_time_reset_ns = 0;
        let neither = Bottleneck { link_bps: 40 * GBIT, ..of(&config) };
        assert_eq!(fixed_point(&neither), None);
        config.scalars.rpg_byte_reset_bytes = 10_000_000;
        let bytes = at(&config, 40 * GBIT, 2).marking_probability;
        assert!(bytes > 0.0 && bytes < timer, "{bytes}");
    }

    #[test]
    fn no_fixed_point_where_model_fails() {
        let config = paper(5 * KB, 200 * KB, 10_000);
        let of = of(&config);
        assert!(fixed_point(&of).is_some());
        for without in [
            Bottleneck { tc: 8, ..of },
            Bottleneck { link_bps: 0, ..of },
            Bottleneck { flows: 0, ..of },
            Bottleneck { packet_bytes: 0, ..of },
        ] {
            assert_eq!(fixed_point(&without), None);
        }
        let mut firmware = config;
        firmware.scalars.rp_variant = 1;
        let mut unmarked = config;
        unmarked.wred[3].ecn = 0;
        for config in [firmware, unmarked] {
            assert_eq!(fixed_point(&Bottleneck { config: &config, ..of }), None);
        }
    }

    /// Deviation over mean.
    fn variation(flows: u64, loop_delay_ns: u64, kmax_bytes: u64, pmax_ppm: u64) -> f64 {
        let mut config = Config::DEFAULT;
        (config.wred[3].kmax_bytes, config.wred[3].pmax_ppm) = (kmax_bytes, pmax_ppm);
        let bottleneck =
            Bottleneck { config: &config, tc: 3, link_bps: 40_000_000_000, flows, packet_bytes: 1_000 };
        let SteadyState { mean_bytes, deviation_bytes } = steady_state(&bottleneck, loop_delay_ns).unwrap();
        deviation_bytes / mean_bytes
    }

    /// The paper's figures: with 85 us 10 flows oscillate, 2 and 64 do not; with 4 us none do. Its analysis uses the
    /// slope of the marking curve without its end.
    #[test]
    fn endless_ramp_stability_not_monotonic() {
        let ramp = |flows, delay| variation(flows, delay, 19_505_000, 1_000_000);
        for flows in [2, 10, 64] {
            assert!(ramp(flows, 4_000) < 0.01, "{flows}");
        }
        assert!(ramp(2, 85_000) < 0.1);
        assert!(ramp(10, 85_000) > 0.5);
        assert!(ramp(64, 85_000) < 0.01);
    }

    #[test]
    fn loop_beyond_simulated_time_has_no_state() {
        let config = paper(5 * KB, 200 * KB, 10_000);
        assert!(steady_state(&of(&config), 30_000_000).is_some());
        for loop_delay_ns in [30_000_001, u64::MAX] {
            assert_eq!(steady_state(&of(&config), loop_delay_ns), None);
        }
    }

    #[test]
    fn kmax_jump_unsettles_many_flows() {
        assert!(variation(64, 85_000, 200_000, 10_000) > 1.0);
        assert!(variation(10, 4_000, 200_000, 10_000) < 0.01);
    }
}
