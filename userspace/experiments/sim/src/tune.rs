//! `tune`: searches parameters for a fabric and its traffic by simulation.
//!
//! A candidate is a profile with random values of some parameters. The best candidates and the published presets are
//! simulated again with new seeds; the second result decides. The search is random: a tree-structured Parzen estimator
//! with the same budget found nothing better (docs/how-to/find-parameters.md).

mod evaluate;
mod report;
mod space;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use clap::Args;
use dcqcn_common::params::Config;
use dcqcn_params::{Assignment, Profile, Settings, to_toml};
use dcqcn_support::number::number;
use toml::Value;

use self::evaluate::{Evaluator, Tried};
use self::space::Space;
use crate::fabric::FabricSetup;
use crate::knobs::refuse_without_effect;
use crate::network::{Random, Scenario};
use crate::runs::Pool;
use crate::sweep::SimulationSetup as _;
use crate::{Error, SetupError};
pub use evaluate::{Bounds, Limits, Objective, Score};
pub use report::{Row, TuneReport};

/// Default time limit of a simulation: slower flows count as incomplete.
const DURATION_NS: u64 = 100_000_000;
/// Candidates per batch: enough for all cores, and few enough for a prompt Ctrl-C.
const BATCH: usize = 8;
/// Maximum draws for a valid and new candidate, before the search ends.
const MAX_DRAWS: usize = 200;
/// Offset of the second evaluation's seeds from those of the search.
const CHECK_SEED_OFFSET: u64 = 1_000;

/// Input of a search: the fabric and its traffic, whose profile and parameters are not searched, and its size.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Search")]
pub struct Task {
    #[command(flatten)]
    pub setup: FabricSetup,
    /// Further workload: flags on top of the others, as workload=incast:16,size=500KB. May be repeated.
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub also: Vec<String>,
    /// Candidates to simulate.
    #[arg(long, value_name = "N", default_value_t = 96, value_parser = number("budget", 1usize..=10_000))]
    pub budget: usize,
    /// Metric of slowdown to minimise.
    #[arg(long, value_name = "METRIC", value_enum, default_value_t = Objective::P99)]
    pub objective: Objective,
    #[command(flatten)]
    pub limits: Limits,
    /// Number of seeds per workload in the search, starting at --seed.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number("seeds", 1u64..=100))]
    pub seeds: u64,
    /// Number of seeds per workload in the second evaluation.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number("check_seeds", 1u64..=100))]
    pub check_seeds: u64,
    /// Candidates in the second evaluation.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number("keep", 1usize..=100))]
    pub keep: usize,
    /// Seed of the search.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub search_seed: u64,
}

impl Task {
    /// All workloads, without DCQCN settings, which each candidate adds.
    fn setups(&self) -> Result<Vec<FabricSetup>, Error> {
        let duration = self.setup.duration.or(Some(DURATION_NS));
        let base = FabricSetup { changes: Vec::new(), duration, ..self.setup.clone() };
        let mut setups = vec![base.clone()];
        for text in &self.also {
            let failed = |error| Error::Also { text: text.clone(), source: Box::new(error) };
            setups.push(other_workload(&base, text).map_err(failed)?);
        }
        // There is one score of many simulations, and only DCQCN is searched.
        for setup in &setups {
            let flags = [
                ("--sample", setup.sample),
                ("--base-rtt", setup.base_rtt),
                ("--target-delay", setup.target_delay),
            ];
            for (flag, given) in flags {
                if given.is_some() {
                    return Err(SetupError::OfOneRun(flag).into());
                }
            }
        }
        refuse_without_effect(setups.iter().map(FabricSetup::without_effect))?;
        // Any profile for these links will do.
        for setup in &mut setups {
            setup.profile.get_or_insert(Profile::Paper);
        }
        Ok(setups)
    }

    /// The simulations of each workload with `count` seeds, from the setup's own seed plus an offset. Seeds wrap to 0.
    fn workloads(&self, beyond: u64, count: u64) -> Result<Vec<Vec<Scenario>>, Error> {
        let of = |setup: &FabricSetup| -> Result<Vec<Scenario>, Error> {
            let first = setup.seed.unwrap_or(1).wrapping_add(beyond);
            let with =
                |number| FabricSetup { seed: Some(first.wrapping_add(number)), ..setup.clone() }.scenario();
            (0..count).map(with).collect()
        };
        let workloads: Vec<Vec<Scenario>> = self.setups()?.iter().map(of).collect::<Result<_, _>>()?;
        let mut rates = workloads.iter().flatten().map(host_rate_bps);
        let first = rates.next();
        // A topology from a file defines its own rates.
        if rates.any(|rate| Some(rate) != first) {
            return Err(SetupError::HostRates.into());
        }
        Ok(workloads)
    }
}

fn host_rate_bps(scenario: &Scenario) -> u64 {
    scenario.topology.host_rates_bps().first().copied().unwrap_or(0)
}

/// Another workload between the same hosts.
fn other_workload(base: &FabricSetup, text: &str) -> Result<FabricSetup, SetupError> {
    let other = base.with_effect(text)?;
    let is_same = (other.profile, other.control) == (base.profile, base.control) && other.changes.is_empty();
    let rules = [
        (is_same, "DCQCN is the same for all traffic", "--profile and --set"),
        (other.class == base.class, "parameters are searched for one class", "--class"),
        (other.host_link == base.host_link, "all hosts' links must have one rate", "--host-link"),
    ];
    match rules.into_iter().find(|(is_kept, ..)| !is_kept) {
        Some((_, problem, flags)) => Err(SetupError::NotAlso { problem, flags }),
        None => Ok(other),
    }
}

/// Searches parameters on `threads` cores, by default all, with progress on stderr. Ctrl-C ends the search early.
///
/// # Errors
/// The fabric cannot be simulated, nothing was finished, or the system has no file descriptor or thread left.
pub fn tune(task: &Task, threads: Option<u16>) -> Result<TuneReport, Error> {
    let searched = task.workloads(0, task.seeds)?;
    let checked = task.workloads(CHECK_SEED_OFFSET, task.check_seeds)?;
    let base = searched.iter().flatten().next().ok_or(Error::NoSimulations)?;
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
    let scores = first.scores(&configs, "presets")?.ok_or(Error::Interrupted)?;
    if let Some((left, name)) = unfinished(&scores, &presets) {
        return Err(Error::Incomplete { name: name.to_owned(), left, duration_ns });
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
fn ensure_one_is_valid(space: &Space, task: &Task, rate_bps: u64) -> Result<(), Error> {
    let mut random = Random::new(task.search_seed);
    let mut last = Ok(());
    for _ in 0..MAX_DRAWS {
        match space.draw(&mut random).config(Some(rate_bps)) {
            Ok(_) => return Ok(()),
            Err(error) => last = Err(error),
        }
    }
    last.map_err(Error::NoCandidate)
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
    fn search(&self, evaluator: &Evaluator<'_>, limits: &Bounds) -> Result<Vec<Tried>, Error> {
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

/// Hosts and interfaces of a fleet that it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetTarget {
    pub group: String,
    /// Labels of its hosts; none: all hosts.
    pub labels: Vec<(String, String)>,
    pub interface: String,
}

impl TuneReport {
    /// The best candidate or preset with the given settings, as `fleet.toml`. It contains every simulated parameter, so
    /// that the result does not depend on a host's own file.
    ///
    /// # Errors
    /// There is none, or it exceeds a limit.
    pub fn fragment(&self, target: &FleetTarget) -> Result<String, Error> {
        let row = self.best().ok_or(Error::Nothing)?;
        let broken = self.broken(row);
        if !broken.is_empty() {
            return Err(Error::Limits { name: row.name.clone(), limits: broken.join("; ") });
        }
        let mut text = format!("# {}.\n# {}\n", self.verdict(), summary(row));
        // Writing into a `String` cannot fail.
        let _ = write_group(&mut text, target);
        let changes = row.assignments.clone();
        let settings = Settings { changes, ..Settings::default() };
        for line in to_toml(&settings).lines() {
            match line.strip_prefix('[') {
                Some(table) => text += &format!("[group.interface.{table}"),
                None => text += line,
            }
            text.push('\n');
        }
        Ok(text)
    }
}

fn summary(row: &Row) -> String {
    let slowdown = row.score().slowdown;
    let seeds =
        if row.checked.is_none() { ", with the seeds of the search only, as it was interrupted" } else { "" };
    format!(
        "{}: slowdown {slowdown:.2} in the simulated fabric{seeds}. The rollout's gate evaluates it on the real one.",
        row.name
    )
}

fn write_group(text: &mut String, target: &FleetTarget) -> std::fmt::Result {
    let quoted = |text: &str| Value::String(text.to_owned()).to_string();
    writeln!(text, "[[group]]\nname = {}", quoted(&target.group))?;
    if !target.labels.is_empty() {
        let labels: Vec<String> =
            target.labels.iter().map(|(key, value)| format!("{} = {}", quoted(key), quoted(value))).collect();
        writeln!(text, "labels = {{ {} }}", labels.join(", "))?;
    }
    write!(text, "[[group.interface]]\nname = {}", quoted(&target.interface))
}

/// SONiC's thresholds for lossless queues (`WRED_PROFILE` of its default QoS configuration).
const SONIC: [(&str, &str); 3] = [("kmin", "1MiB"), ("kmax", "2MiB"), ("pmax", "5%")];

/// A reference for candidates.
#[derive(Clone, Debug)]
struct Preset {
    name: String,
    settings: Settings,
    is_as_given: bool,
}

/// Every profile for links of `host_rate_bps`, SONiC's thresholds with NVIDIA's machine, and the settings of `setup`,
/// if it has any parameters (the others do not have them then).
fn presets(setup: &FabricSetup, host_rate_bps: u64) -> Vec<Preset> {
    let is_as_given = setup.profile.is_none() && setup.changes.is_empty();
    let profiles = space::profiles(host_rate_bps);
    let of = |profile: &Profile| Preset {
        name: dcqcn_params::word(profile),
        settings: Settings { profile: Some(*profile), ..Settings::default() },
        is_as_given,
    };
    let mut presets: Vec<Preset> = profiles.iter().map(of).collect();
    let sonic = SONIC.map(|(name, text)| Assignment::new(&format!("wred.{}.{name}", setup.class()), text));
    if let Ok(changes) = sonic.into_iter().collect::<Result<Vec<_>, _>>() {
        let settings = Settings { profile: Some(Profile::Nvidia), changes, ..Settings::default() };
        presets.push(Preset { name: "sonic".to_owned(), settings, is_as_given });
    }
    if !is_as_given {
        // The simulator's own profile first, if none was given.
        let usual = match setup.profile {
            Some(profile) => vec![profile],
            None => [Profile::Hpcc].into_iter().chain(profiles).collect(),
        };
        let changes = || setup.changes.clone();
        let with = |profile| Settings { profile: Some(profile), changes: changes(), ..Settings::default() };
        // Given settings may be valid with searched values, but with no profile.
        let settings =
            usual.into_iter().map(with).find(|settings| settings.config(Some(host_rate_bps)).is_ok());
        let name = "as given".to_owned();
        presets.extend(settings.map(|settings| Preset { name, settings, is_as_given: true }));
    }
    presets
}
