//! Objective: many simulations reduced to one number.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use dcqcn_common::params::Config;
use serde::Serialize;

use super::space::Settings;
use crate::Run;
use crate::network::{Fct, Outcome, Scenario};
use crate::runs::Pool;

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
    /// The metric.
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
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Geometric mean, over workloads and seeds, of the objective; infinite if a simulation completed no flow.
    pub slowdown: f64,
    /// Objective of each workload.
    pub by_workload: Vec<f64>,
    /// Deepest queue of a port in any simulation, B.
    pub queue_bytes: u64,
    /// Pauses in all simulations.
    pub pauses: u64,
    /// Packets dropped in all simulations.
    pub drops: u64,
    /// Incomplete flows, in all simulations.
    pub unfinished: u64,
    /// Total relative excess over limits: 0 if all hold, 1 for twice a limit.
    pub excess: f64,
    /// Fraction of incomplete flows.
    #[serde(skip)]
    pub(super) left: f64,
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

    /// Scores `workloads`, each with its simulations.
    pub(super) fn new(workloads: &[Vec<Outcome>], objective: Objective) -> Self {
        let mut score = Self {
            slowdown: 1.0,
            by_workload: Vec::new(),
            queue_bytes: 0,
            pauses: 0,
            drops: 0,
            unfinished: 0,
            excess: 0.0,
            left: 0.0,
        };
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

/// Simulations of every configuration: each workload with several seeds.
pub(super) struct Evaluator<'p> {
    pool: &'p Pool,
    workloads: Vec<Vec<Scenario>>,
    objective: Objective,
}

impl<'p> Evaluator<'p> {
    /// Sets up workloads, each with at least one simulation.
    ///
    /// # Errors
    /// A workload has no simulation.
    pub(super) fn new(pool: &'p Pool, workloads: Vec<Vec<Scenario>>, objective: Objective) -> Result<Self> {
        let is_simulated = !workloads.is_empty() && workloads.iter().all(|seeds| !seeds.is_empty());
        ensure!(is_simulated, "no simulations; set --seeds and --check-seeds to at least 1");
        Ok(Self { pool, workloads, objective })
    }

    /// Simulations per configuration.
    pub(super) fn simulations(&self) -> u64 {
        self.workloads.iter().map(|seeds| seeds.len() as u64).sum()
    }

    /// Scores all configurations; `None` if interrupted.
    ///
    /// # Errors
    /// A configuration cannot be simulated.
    pub(super) fn scores(&self, configs: &[Config], message: &str) -> Result<Option<Vec<Score>>> {
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
    use crate::tune::Bounds;

    fn outcome(line: &str) -> Outcome {
        let scenario = setup(line).scenario().unwrap();
        scenario.run(1, &mut |_| ControlFlow::Continue(())).unwrap()
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
}
