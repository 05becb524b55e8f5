//! The search: presets, candidates, and the best of both again with other seeds.

use anyhow::{Context as _, Result, bail};
use dcqcn_common::params::Config;
use dcqcn_params::Settings;
use dcqcn_support::render;

use super::evaluate::{Bounds, Evaluator, Score, Tried};
use super::report::{Row, TuneReport};
use super::space::Space;
use super::task::{Task, host_rate_bps};
use super::{Preset, presets};
use crate::network::Random;
use crate::network::Scenario;
use crate::runs::Pool;

/// Candidates per batch: enough for all cores, and few enough for a prompt Ctrl-C.
const BATCH: usize = 8;
/// Maximum draws for a valid and new candidate, before the search ends.
const MAX_DRAWS: usize = 200;
/// Offset of the second evaluation's seeds from those of the search.
const CHECK_SEED_OFFSET: u64 = 1_000;

/// Searches parameters on `threads` cores, by default all, with progress on stderr. Ctrl-C ends the search early.
///
/// # Errors
/// The fabric cannot be simulated, nothing was finished, or the system has no file descriptor or thread left.
pub fn tune(task: &Task, threads: Option<u16>) -> Result<TuneReport> {
    let searched = task.workloads(0, task.seeds)?;
    let checked = task.workloads(CHECK_SEED_OFFSET, task.check_seeds)?;
    let base = searched.iter().flatten().next().context("no simulations; set --seeds to at least 1")?;
    let (setup, rate_bps) = (&task.setup, host_rate_bps(base));
    let space = Space::new(setup, rate_bps)?;
    ensure_one_is_valid(&space, task, rate_bps)?;
    let presets = presets(setup, rate_bps);
    let flows = |workloads: &[Vec<Scenario>]| -> u64 {
        workloads.iter().flatten().map(|scenario| scenario.workload.flows().len() as u64).sum()
    };
    let runs = [presets.len() + task.budget, presets.len() + task.keep.min(task.budget)];
    let pool = Pool::new(runs[0] as u64 * flows(&searched) + runs[1] as u64 * flows(&checked), threads)?;
    let duration_ns = base.duration_ns;
    let first = Evaluator::new(&pool, searched, task.objective)?;
    let second = Evaluator::new(&pool, checked, task.objective)?;

    let configs: Vec<Config> =
        presets.iter().map(|preset| preset.settings.config(Some(rate_bps))).collect::<Result<_, _>>()?;
    let scores =
        first.scores(&configs, "presets")?.context("interrupted before the presets were simulated")?;
    if let Some((left, name)) = unfinished(&scores, &presets) {
        bail!(
            "no preset completes all flows in the simulated time (`{name}` leaves {left}); increase --duration (now {}) or \
             use finite traffic",
            render::ns(duration_ns)
        );
    }
    let limits = task.limits.of(first.simulations(), &scores);
    let mut tried: Vec<Tried> = Vec::new();
    for ((preset, config), score) in presets.into_iter().zip(configs).zip(scores) {
        let (Preset { name, settings, is_as_given }, score) = (preset, score.under(&limits));
        tried.push(Tried { name, is_preset: true, is_as_given, settings, config, score });
    }

    let presets_count = tried.len();
    let candidates = Candidates { task, space, rate_bps };
    let found = candidates.search(&first, &limits)?;
    let simulated = found.len();
    tried.extend(best(found, task.keep));

    let configs: Vec<Config> = tried.iter().map(|tried| tried.config).collect();
    // None after Ctrl-C.
    let again = second.scores(&configs, "second evaluation")?;
    // Other seeds cause other pauses: recompute the limits from the presets.
    let of_presets = |scores: &Vec<Score>| {
        task.limits.of(second.simulations(), scores.get(..presets_count).unwrap_or_default())
    };
    let checked_limits = again.as_ref().map(of_presets);
    let mut again = again.map(Vec::into_iter);
    let mut rows: Vec<Row> = tried
        .into_iter()
        .map(|tried| {
            let checked = again.as_mut().and_then(Iterator::next);
            let checked = checked.zip(checked_limits).map(|(score, limits)| score.under(&limits));
            Row::new(tried, setup.class(), checked)
        })
        .collect();
    rows.sort_by(|a, b| a.rank().total_cmp(&b.rank()));
    Ok(TuneReport::new(task, simulated, (limits, checked_limits), rows))
}

/// Rejects settings that are invalid with all candidates, before any simulation.
fn ensure_one_is_valid(space: &Space, task: &Task, rate_bps: u64) -> Result<()> {
    let mut random = Random::new(task.search_seed);
    let mut last = Ok(());
    for _ in 0..MAX_DRAWS {
        match space.draw(&mut random).config(Some(rate_bps)) {
            Ok(_) => return Ok(()),
            Err(error) => last = Err(error),
        }
    }
    last.context("no candidate is valid with the given --profile and --set")
}

/// The lowest number of incomplete flows among the presets, if all have some.
fn unfinished<'p>(scores: &[Score], presets: &'p [Preset]) -> Option<(u64, &'p str)> {
    let left = scores.iter().zip(presets).map(|(score, preset)| (score.unfinished, preset.name.as_str()));
    left.min().filter(|(left, _)| *left > 0)
}

fn best(mut found: Vec<Tried>, keep: usize) -> Vec<Tried> {
    found.sort_by(|a, b| a.score.rank().total_cmp(&b.score.rank()));
    found.truncate(keep);
    found
}

struct Candidates<'t> {
    task: &'t Task,
    space: Space,
    rate_bps: u64,
}

impl Candidates<'_> {
    /// Simulates candidates up to the budget; fewer after Ctrl-C, or if no more are found.
    fn search(&self, evaluator: &Evaluator<'_>, limits: &Bounds) -> Result<Vec<Tried>> {
        let Task { budget, search_seed, .. } = *self.task;
        let mut random = Random::new(search_seed);
        let mut found: Vec<Tried> = Vec::new();
        while found.len() < budget {
            let mut batch: Vec<(Settings, Config)> = Vec::new();
            for _ in found.len()..budget.min(found.len() + BATCH) {
                let is_new = |settings: &Settings| {
                    found.iter().all(|tried| tried.settings != *settings)
                        && batch.iter().all(|(other, _)| other != settings)
                };
                batch.extend(self.next(&mut random, is_new));
            }
            let configs: Vec<Config> = batch.iter().map(|(_, config)| *config).collect();
            let least = found.iter().map(|tried| tried.score.rank()).fold(f64::INFINITY, f64::min);
            let message = format!("{} of {budget} candidates, best {least:.2}", found.len());
            let Some(scores) = evaluator.scores(&configs, &message)?.filter(|scores| !scores.is_empty())
            else {
                break;
            };
            for ((settings, config), score) in batch.into_iter().zip(scores) {
                let (name, score) = (format!("candidate {}", found.len() + 1), score.under(limits));
                found.push(Tried { name, is_preset: false, is_as_given: true, settings, config, score });
            }
        }
        Ok(found)
    }

    /// A valid candidate that was not drawn before; `None` after too many draws.
    fn next(&self, random: &mut Random, is_new: impl Fn(&Settings) -> bool) -> Option<(Settings, Config)> {
        (0..MAX_DRAWS).find_map(|_| {
            let settings = self.space.draw(random);
            let config = settings.config(Some(self.rate_bps)).ok()?;
            is_new(&settings).then_some((settings, config))
        })
    }
}

#[cfg(test)]
mod tests;
