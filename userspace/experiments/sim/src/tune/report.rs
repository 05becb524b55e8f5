//! Results of a search, as text and JSON.

use std::collections::BTreeMap;
use std::fmt;

use dcqcn_common::params::RP_VARIANT_PAPER;
use dcqcn_params::{Assignment, Key, word};
use dcqcn_support::render::{self, Column, Table};
use serde::Serialize;

use super::Task;
use super::evaluate::{Bounds, Objective, Score, Tried};

/// A candidate or a preset, with its results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    pub is_preset: bool,
    /// Whether the row includes `--profile` and `--set`; others are for comparison only.
    pub is_as_given: bool,
    pub profile: String,
    /// Flags of `dcqcn-lab sim fabric` that simulate it.
    pub flags: String,
    /// All parameters of profiles, and those set, in base units.
    pub parameters: BTreeMap<String, u64>,
    pub searched: Score,
    /// Score with other seeds; `None`: interrupted before.
    pub checked: Option<Score>,
    /// These parameters, in file order.
    #[serde(skip)]
    pub(super) assignments: Vec<Assignment>,
    #[serde(skip)]
    class: u8,
}

impl Row {
    pub(super) fn new(tried: Tried, class: u8, checked: Option<Score>) -> Self {
        let Tried { name, is_preset, is_as_given, settings, config, score } = tried;
        let is_of_it = |key: &Key| !matches!(key, Key::Wred(tc, _) if *tc != usize::from(class));
        let is_set = |key: &Key| settings.changes.iter().any(|change| change.key == *key);
        let keys = Key::all().filter(|key| is_set(key) || (key.in_profiles() && is_of_it(key)));
        let assignments: Vec<Assignment> =
            keys.map(|key| Assignment { key, value: key.get(&config) }).collect();
        let profile = word(&settings.profile.unwrap_or_default());
        let mut flags = format!("--profile {profile}");
        // Hosts have this guard; `sim fabric` omits it in the paper's variant, unless it is set.
        let is_paper = config.scalars.rp_variant == RP_VARIANT_PAPER;
        let period = "rate_reduce_monitor_period".parse().ok().filter(|key| is_paper && !is_set(key));
        for key in settings.changes.iter().map(|change| change.key).chain(period) {
            flags += &format!(" --set {key}={}", key.text(&config));
        }
        Self {
            name,
            is_preset,
            is_as_given,
            profile,
            flags,
            parameters: assignments.iter().map(|set| (set.key.to_string(), set.value)).collect(),
            searched: score,
            checked,
            assignments,
            class,
        }
    }

    /// Sort key of rows (minimised).
    pub(super) fn rank(&self) -> f64 {
        self.score().rank()
    }

    pub(super) fn score(&self) -> &Score {
        self.checked.as_ref().unwrap_or(&self.searched)
    }

    /// Value of a parameter, or of one of the flows' class, as text.
    fn text(&self, name: &str) -> String {
        let of_class = format!("wred.{}.{name}", self.class);
        let is_named = |set: &&Assignment| [name, &of_class].contains(&set.key.to_string().as_str());
        let text = |set: &Assignment| dcqcn_common::params::Quantity(set.value, set.key.unit()).to_string();
        self.assignments.iter().find(is_named).map(text).unwrap_or_default()
    }
}

/// The best candidates and the presets.
#[derive(Clone, Debug, Serialize)]
pub struct TuneReport {
    pub objective: Objective,
    /// Limits of all simulations of the search together.
    pub searched_limits: Bounds,
    /// Limits of the second evaluation, which has other seeds; `None`: interrupted before.
    pub checked_limits: Option<Bounds>,
    pub search_seed: u64,
    pub budget: usize,
    pub simulated: usize,
    pub is_interrupted: bool,
    pub workloads: usize,
    /// Seeds of each workload in the search, and in the second evaluation.
    pub seeds: [u64; 2],
    pub rows: Vec<Row>,
}

impl TuneReport {
    /// Assembles the report; without limits of the second evaluation if interrupted.
    pub(super) fn new(
        task: &Task,
        simulated: usize,
        (searched_limits, checked_limits): (Bounds, Option<Bounds>),
        rows: Vec<Row>,
    ) -> Self {
        Self {
            objective: task.objective,
            searched_limits,
            checked_limits,
            search_seed: task.search_seed,
            budget: task.budget,
            simulated,
            is_interrupted: checked_limits.is_none(),
            workloads: 1 + task.also.len(),
            seeds: [task.seeds, task.check_seeds],
            rows,
        }
    }

    pub fn best(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.is_as_given)
    }

    /// The limits that a row exceeds, as text; empty: none.
    pub(super) fn broken(&self, row: &Row) -> Vec<String> {
        match (&row.checked, self.checked_limits) {
            (Some(score), Some(limits)) => limits.broken(score),
            _ => self.searched_limits.broken(&row.searched),
        }
    }

    /// A sentence that compares the best candidate with the best preset.
    pub fn verdict(&self) -> String {
        let of = |is_preset: bool| self.rows.iter().find(|row| row.is_preset == is_preset);
        let (Some(candidate), Some(preset)) = (of(false), of(true)) else {
            return "no candidate was simulated".to_owned();
        };
        let limits = |row: &Row| if row.score().excess > 0.0 { " (which exceeds a limit)" } else { "" };
        let other = if preset.is_as_given { "" } else { " (which lacks --profile and --set)" };
        let theirs = format!("{}{}{other}", preset.name, limits(preset));
        if candidate.rank() < preset.rank() {
            let compared = percent_change(candidate.score().slowdown, preset.score().slowdown);
            format!("{}{} has {compared} the best preset, {theirs}", candidate.name, limits(candidate))
        } else {
            format!("no candidate is better than the preset {theirs}")
        }
    }
}

fn percent_change(ours: f64, theirs: f64) -> String {
    let more = (ours / theirs - 1.0) * 100.0;
    if !more.is_finite() || theirs.is_infinite() {
        return "a better rank than".to_owned();
    }
    match more.round() {
        0.0 => "the slowdown of".to_owned(),
        more if more < 0.0 => format!("{:.0} % less slowdown than", -more),
        more => format!("{more:.0} % more slowdown than"),
    }
}

impl fmt::Display for TuneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let two = |slowdown: f64| format!("{slowdown:.2}");
        let mark = |row: &&Row| if row.score().excess > 0.0 { " !" } else { "" };
        let columns: &[Column<'_, &Row>] = &[
            ("", &|row| format!("{}{}", row.name, mark(row))),
            (">SLOWDOWN", &|row| row.checked.as_ref().map_or("-".to_owned(), |score| two(score.slowdown))),
            (">SEARCHED", &|row| two(row.searched.slowdown)),
            (">QUEUE", &|row| render::bytes(row.score().queue_bytes)),
            (">PAUSES", &|row| row.score().pauses.to_string()),
            (">DROPS", &|row| row.score().drops.to_string()),
            (">LEFT", &|row| row.score().unfinished.to_string()),
            ("PROFILE", &|row| row.profile.clone()),
            (">KMIN", &|row| row.text("kmin")),
            (">KMAX", &|row| row.text("kmax")),
            (">PMAX", &|row| row.text("pmax")),
            (">AI RATE", &|row| row.text("rpg_ai_rate")),
            (">HAI RATE", &|row| row.text("rpg_hai_rate")),
            (">TIME RESET", &|row| row.text("rpg_time_reset")),
            (">TCP G", &|row| row.text("dce_tcp_g")),
            (">CNP TIME", &|row| row.text("min_time_between_cnps")),
        ];
        let table = Table::of(&self.rows, columns);
        writeln!(f, "{table}")?;
        let [searched, checked] = self.seeds;
        write!(
            f,
            "{} of {} candidates; workloads: {}, seeds of each: {searched}",
            self.simulated, self.budget, self.workloads
        )?;
        let limits = &self.searched_limits;
        match &self.checked_limits {
            Some(again) => writeln!(
                f,
                "; the best of them and the presets simulated again with {checked} other seeds\n\
                 limits (total of all simulations): {limits}; of the second evaluation: {again}"
            )?,
            None => writeln!(f, "\nlimits (total of all simulations): {limits}")?,
        }
        let others: Vec<&str> =
            self.rows.iter().filter(|row| !row.is_as_given).map(|row| row.name.as_str()).collect();
        if !others.is_empty() {
            writeln!(f, "for comparison only, without --profile and --set: {}", others.join(", "))?;
        }
        writeln!(f, "{}", self.verdict())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_worded_by_sign() {
        for (ours, theirs, expected) in [
            (1.0, 2.0, "50 % less slowdown than"),
            (3.0, 2.0, "50 % more slowdown than"),
            (2.001, 2.0, "the slowdown of"),
            (1.0, f64::INFINITY, "a better rank than"),
            (f64::INFINITY, f64::INFINITY, "a better rank than"),
        ] {
            assert_eq!(percent_change(ours, theirs), expected);
        }
    }
}
