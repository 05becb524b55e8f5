//! DCQCN's fluid model over time: stability of its fixed point.
//!
//! The delay differential equations of Zhu et al., "ECN or Delay", CoNEXT'16, section 3, for N equal flows: with a, b,
//! c, d, e as in [`fluid`](super), p and R (packets per second) delayed by one loop delay,
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

use dcqcn_common::params::WredConfig;
use serde::Serialize;

use super::{Bottleneck, Model};

/// Depth of the model's queue in its steady state or oscillation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SteadyState {
    /// Mean over time.
    pub mean_bytes: f64,
    /// Standard deviation.
    pub deviation_bytes: f64,
}

/// Simulated time; only the second half is evaluated.
const DURATION: f64 = 0.3;
/// Step: a quarter of the shortest loop delay of interest, a fiftieth of the timers.
const STEP: f64 = 1e-6;
/// Above this, the logarithm of 1-p diverges, and all packets are marked anyway.
const ALL: f64 = 0.999_999;

/// Runs the model with the marks of `wred` (in packets of `packet_bytes`) and a loop delay of `loop_delay_ns`.
fn integrate(
    model: &Model,
    gain: f64,
    wred: &WredConfig,
    packet_bytes: u64,
    loop_delay_ns: u64,
) -> SteadyState {
    let packet = packet_bytes as f64;
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
    SteadyState { mean_bytes: mean * packet, deviation_bytes: variance.sqrt() * packet }
}

/// g, from the parameter in 1/1024.
fn gain(dce_tcp_g: u64) -> f64 {
    1.0 - dce_tcp_g as f64 / 1_024.0
}

/// Steady state of the bottleneck with a control loop delay of `loop_delay_ns`: the fixed point, or an oscillation
/// around it.
///
/// `None` as for [`fixed_point`](super::fixed_point).
pub fn steady_state(bottleneck: &Bottleneck<'_>, loop_delay_ns: u64) -> Option<SteadyState> {
    let (model, wred) = Model::new(bottleneck)?;
    let gain = gain(bottleneck.config.scalars.dce_tcp_g);
    Some(integrate(&model, gain, wred, bottleneck.packet_bytes, loop_delay_ns))
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::Config;

    use super::*;

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
    fn kmax_jump_unsettles_many_flows() {
        assert!(variation(64, 85_000, 200_000, 10_000) > 1.0);
        assert!(variation(10, 4_000, 200_000, 10_000) < 0.01);
    }
}
