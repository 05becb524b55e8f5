//! Objective: many simulations reduced to one number, and limits that must hold.

use std::fmt;

use clap::{Args, ValueEnum};
use dcqcn_common::params::Config;
use dcqcn_params::Settings;
use dcqcn_params::quantity::parse_bytes;
use dcqcn_support::render;
use serde::Serialize;

use crate::network::{Fct, Outcome, Scenario};
use crate::runs::Pool;
use crate::{Error, Run};

/// Metric of completion times to minimise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// 99th percentile of slowdown.
    #[default]
    P99,
    /// 95th percentile of slowdown.
    P95,
    /// Median slowdown.
    P50,
    /// Mean slowdown.
    Mean,
}

impl Objective {
    const fn of(self, fct: &Fct) -> f64 {
        match self {
            Self::P99 => fct.slowdown_p99,
            Self::P95 => fct.slowdown_p95,
            Self::P50 => fct.slowdown_p50,
            Self::Mean => fct.slowdown_mean,
        }
    }
}

/// Results of all simulations of one configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Geometric mean, over workloads and seeds, of the objective; infinite if a simulation completed no flow.
    pub slowdown: f64,
    pub by_workload: Vec<f64>,
    /// Deepest queue of a port in any simulation, B.
    pub queue_bytes: u64,
    pub pauses: u64,
    /// Packets dropped in all simulations.
    pub drops: u64,
    /// Flows that were not complete at the end, started or not, in all simulations.
    pub unfinished: u64,
    /// Total relative excess over limits: 0 if all hold, 1 for twice a limit.
    pub excess: f64,
    /// The same, as a fraction.
    #[serde(skip)]
    left: f64,
}

/// A candidate, or a preset.
pub(super) struct Tried {
    pub(super) name: String,
    pub(super) is_preset: bool,
    pub(super) is_as_given: bool,
    pub(super) settings: Settings,
    pub(super) config: Config,
    pub(super) score: Score,
}

/// Larger than any slowdown: candidates that exceed a limit rank behind all others.
const BEHIND: f64 = 1e6;

impl Score {
    /// Sort key of candidates (minimised).
    pub fn rank(&self) -> f64 {
        if self.excess > 0.0 { BEHIND * (1.0 + self.excess) } else { self.slowdown.min(BEHIND) }
    }

    pub(super) fn new(workloads: &[Vec<Outcome>], objective: Objective) -> Self {
        let mut score = Self::default();
        let mut flows = 0;
        let mut logs = Vec::new();
        for outcomes in workloads {
            let log =
                |outcome: &Outcome| outcome.fct.as_ref().map_or(f64::INFINITY, |fct| objective.of(fct)).ln();
            let of_workload: Vec<f64> = outcomes.iter().map(log).collect();
            score.by_workload.push(mean(&of_workload).exp());
            logs.extend(of_workload);
            for outcome in outcomes {
                let sum = |metric: fn(&crate::network::ClassOutcome) -> u64| {
                    outcome.classes.iter().map(metric).sum::<u64>()
                };
                let deepest = outcome.classes.iter().map(|class| class.max_queue_bytes).max();
                score.queue_bytes = score.queue_bytes.max(deepest.unwrap_or(0));
                score.pauses += sum(|class| class.pauses);
                score.drops += sum(|class| class.dropped_packets);
                let sent = || outcome.flows.iter().filter(|flow| flow.src != flow.dst);
                score.unfinished += sent().filter(|flow| flow.fct_ns.is_none()).count() as u64;
                flows += sent().count();
            }
        }
        score.slowdown = mean(&logs).exp();
        score.left = score.unfinished as f64 / flows.max(1) as f64;
        score.excess = score.left;
        score
    }
}

/// Geometric mean of one value or more.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

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
    pub pauses: Option<u64>,
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

/// Simulations of every configuration: each workload with several seeds.
pub(super) struct Evaluator<'p> {
    pool: &'p Pool,
    workloads: Vec<Vec<Scenario>>,
    objective: Objective,
}

impl<'p> Evaluator<'p> {
    /// Sets up workloads, each with at least one simulation.
    pub(super) fn new(
        pool: &'p Pool,
        workloads: Vec<Vec<Scenario>>,
        objective: Objective,
    ) -> Result<Self, Error> {
        if workloads.is_empty() || workloads.iter().any(Vec::is_empty) {
            return Err(Error::NoSimulations);
        }
        Ok(Self { pool, workloads, objective })
    }

    pub(super) fn simulations(&self) -> u64 {
        self.workloads.iter().map(|seeds| seeds.len() as u64).sum()
    }

    /// Scores all configurations; `None` if interrupted.
    pub(super) fn scores(&self, configs: &[Config], message: &str) -> Result<Option<Vec<Score>>, Error> {
        let each = || self.workloads.iter().flatten();
        let with = |config: &Config| {
            let config = *config;
            each().map(move |scenario| Scenario { config, ..scenario.clone() })
        };
        let scenarios: Vec<Scenario> = configs.iter().flat_map(with).collect();
        let runs = self.pool.run(&scenarios, &|_, _| message.to_owned())?;
        let Some(runs) = runs.into_iter().collect::<Option<Vec<Run<Outcome>>>>() else { return Ok(None) };
        let mut outcomes = runs.into_iter().map(|run| run.outcome);
        let score = |_: &Config| {
            let workloads: Vec<Vec<Outcome>> =
                self.workloads.iter().map(|seeds| outcomes.by_ref().take(seeds.len()).collect()).collect();
            Score::new(&workloads, self.objective)
        };
        Ok(Some(configs.iter().map(score).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::fabric::setup;
    use crate::network::Simulation as _;

    fn outcome(line: &str) -> Outcome {
        let scenario = setup(line).scenario().unwrap();
        scenario.run(1, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    fn score() -> Score {
        let outcome = outcome("--topology leaf-spine:1x0x3 --workload incast:2 --size 20KB");
        Score::new(&[vec![outcome]], Objective::P99)
    }

    #[test]
    fn score_is_mean_and_limits_precede() {
        let incast = |degree: u32| {
            outcome(&format!("--topology leaf-spine:1x0x8 --workload incast:{degree} --size 200KB"))
        };
        let workloads = [vec![incast(2)], vec![incast(7)]];
        let score = |bounds| Score::new(&workloads, Objective::P99).under(&bounds);
        let free = score(Bounds::default());
        let p99 = |outcomes: &[Outcome]| outcomes[0].fct.as_ref().unwrap().slowdown_p99;
        let each = [p99(&workloads[0]), p99(&workloads[1])];
        assert!((free.slowdown - (each[0] * each[1]).sqrt()).abs() < 1e-9, "{free:?}, {each:?}");
        assert!((free.by_workload[1] - each[1]).abs() < 1e-9 && free.excess == 0.0 && free.unfinished == 0);
        assert_eq!(free.rank(), free.slowdown);
        let bounds = Bounds { queue_bytes: Some(free.queue_bytes / 2), ..Bounds::default() };
        let broken = score(bounds);
        assert!((broken.excess - 1.0).abs() < 0.01 && broken.rank() > 1e6, "{broken:?}");
    }

    #[test]
    fn score_without_simulations_is_error() {
        let pool = Pool::new(0, Some(1)).unwrap();
        for workloads in [vec![], vec![vec![]]] {
            assert!(Evaluator::new(&pool, workloads, Objective::P99).is_err());
        }
    }

    #[test]
    fn unfinished_ranks_last() {
        let cut = outcome("--topology leaf-spine:1x0x4 --workload incast:3 --size 1MB --duration 10us");
        let score = Score::new(&[vec![cut]], Objective::Mean).under(&Bounds::default());
        assert_eq!(score.unfinished, 3);
        assert_eq!(Bounds::default().broken(&score), ["incomplete flows 3, limit 0"]);
        assert!(score.excess == 1.0 && score.rank() > 1e6 && score.rank().is_finite(), "{score:?}");
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
            let (pauses, drops) = (7 * simulations, 3 * simulations);
            let score = Score { pauses, drops, queue_bytes: 1_000_000, ..one.clone() };
            let bounds = limits.of(simulations, &[]);
            assert!(bounds.excess(&score) == 0.0 && bounds.broken(&score).is_empty());
            let more = Score { pauses: score.pauses + 1, drops: score.drops + 1, ..score };
            assert_eq!(bounds.broken(&more).len(), 2);
        }
        assert_eq!(limits.of(2, &[]).to_string(), "deepest queue 1.00 MB, pauses 14, drops 6");
        assert_eq!(Bounds::default().to_string(), "none");
    }
}
