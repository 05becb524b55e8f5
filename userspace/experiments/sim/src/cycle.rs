//! An alternative fixed point: one flow from one CNP to the next, without the fluid model's averaging.
//!
//! The fluid model multiplies means: the mean cut and the mean rate of increases. They are correlated, however: after a
//! cut the first increase comes a fixed time T later and recovers half of it, the next half of the rest, and long gaps
//! between CNPs gain more than short ones lose. Event by event, with random marks:
//!
//! - The time from one CNP to the next is X = τ + the time to the next mark, which is exponential with mean 1/(pR): the
//!   NP sends no CNPs for τ.
//! - It contains n = ⌊X/T⌋ increases: F-1 of fast recovery, then k = n-F+1 of additive increase. They leave R α/2 ·
//!   2^-n of the cut, and add R_AI (k - 1 + 2^-k).
//! - α is 1 / (1 + E⌊X/τ'⌋): it rises by g(1-α) with each CNP and falls by gα with each τ' without.
//! - At the fixed point both balance: R α/2 · E\[2^-n\] = R_AI · E\[k - 1 + 2^-k\].
//!
//! p is assumed constant, and the byte counter is omitted: at these rates it is far slower than the timer.

use dcqcn_common::params::Config;

use dcqcn_params::fluid::{Bottleneck, FixedPoint, bisect, seconds};

/// Parameters of one flow.
#[derive(Clone, Copy, Debug)]
struct Cycle {
    /// R = C/N, bit/s, and packets per second.
    rate_bps: f64,
    packet_rate: f64,
    ai_bps: f64,
    /// tau, tau' and T, s.
    cnp_interval: f64,
    alpha_period: f64,
    increase_period: f64,
    threshold: u64,
}

/// Sums over the events of a cycle end where their probability is below this.
const NEGLIGIBLE: f64 = 1e-12;
/// Upper limit of the sums: marks that rare are below any p*.
const MAX_EVENTS: u64 = 1_000_000;

impl Cycle {
    /// The probability that at least `count` periods fit between two CNPs.
    fn at_least(&self, count: u64, period: f64, mark_gap: f64) -> f64 {
        let beyond = count as f64 * period - self.cnp_interval;
        if beyond <= 0.0 { 1.0 } else { (-beyond / mark_gap).exp() }
    }

    /// E of `value(n)`, n being the whole periods between two CNPs, from the steps that `value` makes.
    fn mean(&self, period: f64, mark_gap: f64, value: impl Fn(u64) -> f64) -> f64 {
        let mut mean = value(0);
        for count in 1..MAX_EVENTS {
            let likely = self.at_least(count, period, mark_gap);
            mean += likely * (value(count) - value(count - 1));
            if likely < NEGLIGIBLE {
                break;
            }
        }
        mean
    }

    /// Decrease of the rate per cycle minus its increase, bit/s; grows with `p`.
    fn loss_bps(&self, p: f64) -> f64 {
        let mark_gap = 1.0 / (p * self.packet_rate);
        let halvings = |n: u64| (-(n as f64)).exp2();
        let alpha = 1.0 / (1.0 + self.mean(self.alpha_period, mark_gap, |n| n as f64));
        let left = self.mean(self.increase_period, mark_gap, halvings);
        let steps = self.mean(self.increase_period, mark_gap, |n| {
            let additive = (n + 1).saturating_sub(self.threshold.max(1));
            additive as f64 - 1.0 + halvings(additive)
        });
        self.rate_bps * alpha / 2.0 * left - self.ai_bps * steps
    }
}

/// The fixed point, for the same inputs as [`fluid::fixed_point`](dcqcn_params::fluid::fixed_point).
///
/// `None` where that function returns `None`, and without an increase timer.
pub(crate) fn fixed_point(bottleneck: &Bottleneck<'_>) -> Option<FixedPoint> {
    let wred = bottleneck.marking()?;
    let &Bottleneck { config: Config { scalars, .. }, link_bps, flows, packet_bytes, .. } = bottleneck;
    if scalars.rpg_time_reset_ns == 0 {
        return None;
    }
    let rate_bps = link_bps as f64 / flows as f64;
    let cycle = Cycle {
        rate_bps,
        packet_rate: rate_bps / (packet_bytes * 8) as f64,
        ai_bps: scalars.rpg_ai_rate_bps as f64,
        cnp_interval: seconds(scalars.min_time_between_cnps_ns),
        alpha_period: seconds(scalars.dce_tcp_rtt_ns),
        increase_period: seconds(scalars.rpg_time_reset_ns),
        threshold: scalars.rpg_threshold,
    };
    // By bisection between a mark in a million packets and every packet; the limits count as results.
    let marking_probability = bisect(1e-6, 1.0, |low, high| (low * high).sqrt(), |p| cycle.loss_bps(p) < 0.0);
    Some(FixedPoint::new(wred, marking_probability))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bottleneck(config: &Config, flows: u64) -> Bottleneck<'_> {
        Bottleneck { config, tc: 3, link_bps: 40_000_000_000, flows, packet_bytes: 1_000 }
    }

    /// Compares the fixed point with millions of random cycles, which yield the same balance.
    #[test]
    fn fixed_point_matches_random_cycles() {
        let cycle = Cycle {
            rate_bps: 10e9,
            packet_rate: 1.25e6,
            ai_bps: 40e6,
            cnp_interval: 50e-6,
            alpha_period: 55e-6,
            increase_period: 55e-6,
            threshold: 5,
        };
        let p = 0.002534;
        let mark_gap = 1.0 / (p * cycle.packet_rate);
        let mut random = 1u64;
        let (mut rate, mut decays, cycles) = (0.0, 0u64, 400_000);
        // A cut of 1 and additive steps of 1; `loss_bps` weighs their means.
        let mut gained = 0.0;
        for _ in 0..cycles {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = ((random >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            let gap = cycle.cnp_interval - mark_gap * uniform.ln();
            let events = (gap / cycle.increase_period) as u64;
            decays += (gap / cycle.alpha_period) as u64;
            let (mut current, mut target) = (-1.0f64, 0.0f64);
            let (mut with_ai, mut ai_target) = (0.0f64, 0.0f64);
            for event in 1..=events {
                current = f64::midpoint(current, target);
                if event >= cycle.threshold {
                    ai_target += 1.0;
                }
                with_ai = f64::midpoint(with_ai, ai_target);
                target = 0.0;
            }
            rate += current;
            gained += with_ai;
        }
        let cycles = f64::from(cycles);
        let alpha = 1.0 / (1.0 + decays as f64 / cycles);
        let drawn = -cycle.rate_bps * alpha / 2.0 * rate / cycles - cycle.ai_bps * gained / cycles;
        let counted = cycle.loss_bps(p);
        let scale = cycle.ai_bps * gained / cycles;
        assert!((drawn - counted).abs() < 0.02 * scale, "{drawn}, {counted}, {scale}");
        assert!(counted.abs() < 0.02 * scale, "{counted}, {scale}");
    }

    #[test]
    fn marks_exceed_fluid_model_by_a_third() {
        for flows in [2, 4, 8, 10] {
            let of = |model: fn(&Bottleneck<'_>) -> Option<FixedPoint>| {
                model(&bottleneck(&Config::DEFAULT, flows)).unwrap().marking_probability
            };
            let ratio = of(fixed_point) / of(dcqcn_params::fluid::fixed_point);
            assert!((1.30..1.40).contains(&ratio), "{flows}: {ratio}");
        }
    }

    #[test]
    fn fixed_point_requires_timer() {
        let mut config = Config::DEFAULT;
        config.scalars.rpg_time_reset_ns = 0;
        assert_eq!(fixed_point(&bottleneck(&config, 2)), None);
    }
}
