//! Limits that must hold.

use std::fmt;

use clap::Args;
use dcqcn_params::quantity::parse_bytes;
use dcqcn_support::render;
use serde::Serialize;

use super::evaluate::Score;

/// Limits per simulation; `None`: none, and for pauses a tenth above the preset with fewest.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Search")]
pub struct Limits {
    /// Limit of the deepest queue of a port; candidates beyond it rank behind all others.
    #[arg(long = "max-queue", value_name = "SIZE", value_parser = parse_bytes)]
    pub queue_bytes: Option<u64>,
    /// Limit of pauses by switches, per simulation on average [default: a tenth more than the preset with fewest].
    #[arg(long = "max-pauses", value_name = "N")]
    pub pauses: Option<u64>,
    /// Limit of dropped packets, per simulation on average.
    #[arg(long = "max-drops", value_name = "N")]
    pub drops: Option<u64>,
}

impl Limits {
    /// The limits for several simulations together. Unless pauses are limited, they may exceed the lowest of `presets`
    /// by at most a tenth: otherwise flows restrained only by pauses would often have the least slowdown.
    pub(super) fn of(self, simulations: u64, presets: &[Score]) -> Bounds {
        let fewest = presets.iter().map(|score| score.pauses).min();
        let all = |limit: u64| limit.saturating_mul(simulations);
        Bounds {
            queue_bytes: self.queue_bytes,
            pauses: self.pauses.map(all).or(fewest.map(|fewest| fewest + fewest / 10)),
            drops: self.drops.map(all),
        }
    }
}

/// Limits of all simulations of one configuration together; `None`: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bounds {
    /// Deepest queue of a port, B.
    pub queue_bytes: Option<u64>,
    /// Number of pauses sent by switches.
    pub pauses: Option<u64>,
    /// Packets dropped.
    pub drops: Option<u64>,
}

/// A limited metric: name, unit, value and limit.
type LimitedMetric = (&'static str, fn(u64) -> String, u64, Option<u64>);

impl Bounds {
    fn each(self, score: &Score) -> [LimitedMetric; 3] {
        [
            ("deepest queue", render::bytes, score.queue_bytes, self.queue_bytes),
            ("pauses", |pauses| pauses.to_string(), score.pauses, self.pauses),
            ("drops", |drops| drops.to_string(), score.drops, self.drops),
        ]
    }

    /// Total relative excess over the limits.
    pub(super) fn excess(self, score: &Score) -> f64 {
        let beyond = |(_, _, value, limit): LimitedMetric| {
            limit.map_or(0.0, |limit| value.saturating_sub(limit) as f64 / limit.max(1) as f64)
        };
        self.each(score).map(beyond).iter().sum()
    }

    /// The limits that `score` exceeds, as text.
    pub(super) fn broken(self, score: &Score) -> Vec<String> {
        let beyond = |(name, text, value, limit): LimitedMetric| {
            let limit = limit.filter(|limit| value > *limit)?;
            let more = match limit {
                0 => String::new(),
                _ => format!(" ({:.0} % more)", (value as f64 / limit as f64 - 1.0) * 100.0),
            };
            Some(format!("{name} {}, limit {}{more}", text(value), text(limit)))
        };
        let mut broken: Vec<String> = self.each(score).into_iter().filter_map(beyond).collect();
        if score.unfinished > 0 {
            broken.push(format!("incomplete flows {}, limit 0", score.unfinished));
        }
        broken
    }
}

impl Score {
    /// This score under `bounds`.
    pub(super) fn under(self, bounds: &Bounds) -> Self {
        let excess = self.left + bounds.excess(&self);
        Self { excess, ..self }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue_bytes, pauses, drops } = self;
        let parts = [
            queue_bytes.map(|bytes| format!("deepest queue {}", render::bytes(bytes))),
            pauses.map(|pauses| format!("pauses {pauses}")),
            drops.map(|drops| format!("drops {drops}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::fabric::setup;
    use crate::network::Simulation as _;
    use crate::tune::Objective;

    fn score() -> Score {
        let line = "--topology leaf-spine:1x0x3 --workload incast:2 --size 20KB";
        let scenario = setup(line).scenario().unwrap();
        let outcome = scenario.run(1, &mut |_| ControlFlow::Continue(())).unwrap();
        Score::new(&[vec![outcome]], Objective::P99)
    }

    #[test]
    fn default_pause_limit_from_best_preset() {
        let one = score();
        let with = |pauses| Score { pauses, ..one.clone() };
        let bounds = Limits::default().of(4, &[with(50), with(40)]);
        assert_eq!(bounds, Bounds { pauses: Some(44), ..Bounds::default() });
        assert_eq!([44, 45, 88].map(|pauses| with(pauses).under(&bounds).excess), [0.0, 1.0 / 44.0, 1.0]);
        assert_eq!(bounds.broken(&with(66)), ["pauses 66, limit 44 (50 % more)"]);
        assert!(bounds.broken(&with(44)).is_empty());
        let given = Limits { pauses: Some(0), ..Limits::default() }.of(4, &[with(50)]);
        assert_eq!([0, 1].map(|pauses| with(pauses).under(&given).excess), [0.0, 1.0]);
        assert_eq!(given.broken(&with(1)), ["pauses 1, limit 0"]);
    }

    /// The second evaluation has other seeds, and more of them: limits must scale accordingly.
    #[test]
    fn limits_scale_with_simulations() {
        let one = score();
        let limits = Limits { queue_bytes: Some(1_000_000), pauses: Some(7), drops: Some(3) };
        for simulations in [2, 3, 40] {
            let score = Score {
                pauses: 7 * simulations,
                drops: 3 * simulations,
                queue_bytes: 1_000_000,
                ..one.clone()
            };
            let bounds = limits.of(simulations, &[]);
            assert!(bounds.excess(&score) == 0.0 && bounds.broken(&score).is_empty());
            let more = Score { pauses: score.pauses + 1, drops: score.drops + 1, ..score };
            assert_eq!(bounds.broken(&more).len(), 2);
        }
        assert_eq!(limits.of(2, &[]).to_string(), "deepest queue 1.00 MB, pauses 14, drops 6");
        assert_eq!(Bounds::default().to_string(), "none");
    }
}
