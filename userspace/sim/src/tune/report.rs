//! What was found, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use dcqcn_common::params::Config;
use dcqcn_params::{Assignment, Key, word};
use dcqcn_support::render::{self, Table};
use serde::Serialize;

use super::judge::{Limits, Objective, Score};
use super::search::Method;
use super::space::Settings;
use super::task::Task;

/// A candidate or a preset, and what came out of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What it is called.
    pub name: String,
    /// Whether others publish it.
    pub is_preset: bool,
    /// The profile that it starts from.
    pub profile: String,
    /// The flags of `dcqcn-lab sim fabric` that have it simulated.
    pub flags: String,
    /// Every parameter that profiles are about, in its base unit.
    pub parameters: BTreeMap<String, u64>,
    /// With the seeds of the search.
    pub searched: Score,
    /// With other seeds; `None`: it was interrupted before.
    pub checked: Option<Score>,
    /// The same parameters, in the order of the file.
    #[serde(skip)]
    pub(super) assignments: Vec<Assignment>,
}

impl Row {
    /// Puts figures together.
    pub(super) fn new(
        name: String,
        is_preset: bool,
        settings: &Settings,
        config: &Config,
        class: u8,
        (searched, checked): (Score, Option<Score>),
    ) -> Self {
        let is_of_it = |key: &Key| match key {
            Key::Wred(tc, _) => *tc == usize::from(class),
            _ => true,
        };
        let keys = Key::all().filter(|key| key.in_profiles() && is_of_it(key));
        let assignments: Vec<Assignment> =
            keys.map(|key| Assignment { key, value: key.get(config) }).collect();
        let mut flags = format!("--profile {}", word(&settings.profile));
        for Assignment { key, .. } in &settings.changes {
            flags += &format!(" --set {key}={}", key.text(config));
        }
        Self {
            name,
            is_preset,
            profile: word(&settings.profile),
            flags,
            parameters: assignments.iter().map(|set| (set.key.to_string(), set.value)).collect(),
            searched,
            checked,
            assignments,
        }
    }

    /// What orders rows: less is better.
    pub(super) fn rank(&self) -> f64 {
        self.checked.as_ref().unwrap_or(&self.searched).rank()
    }

    /// The value of a parameter whose name ends so, as people write it.
    fn text(&self, end: &str) -> String {
        let is_it = |set: &&Assignment| set.key.to_string().ends_with(end);
        let text = |set: &Assignment| dcqcn_common::params::Quantity(set.value, set.key.unit()).to_string();
        self.assignments.iter().find(is_it).map(text).unwrap_or_default()
    }
}

/// The best candidates, with the presets beside them.
#[derive(Clone, Debug, Serialize)]
pub struct TuneReport {
    /// What is small in good ones.
    pub objective: Objective,
    /// What must hold.
    pub limits: Limits,
    /// How candidates were found.
    pub method: Method,
    /// Where the search's random numbers began.
    pub search_seed: u64,
    /// Candidates that were asked for.
    pub budget: usize,
    /// Candidates that were simulated.
    pub simulated: usize,
    /// Whether it ended before its time.
    pub is_interrupted: bool,
    /// Workloads.
    pub workloads: usize,
    /// Seeds of each while searching, and of the second look.
    pub seeds: [u64; 2],
    /// The best first.
    pub rows: Vec<Row>,
}

impl TuneReport {
    pub(super) fn new(task: &Task, simulated: usize, is_interrupted: bool, rows: Vec<Row>) -> Self {
        Self {
            objective: task.objective,
            limits: task.limits,
            method: task.method,
            search_seed: task.search_seed,
            budget: task.budget,
            simulated,
            is_interrupted,
            workloads: 1 + task.also.len(),
            seeds: [task.seeds, task.check_seeds],
            rows,
        }
    }

    /// What is to be said of the best candidate and the best preset, in a sentence.
    #[must_use]
    pub fn verdict(&self) -> String {
        let of = |is_preset: bool| self.rows.iter().find(|row| row.is_preset == is_preset);
        let (Some(candidate), Some(preset)) = (of(false), of(true)) else {
            return "no candidate was simulated".to_owned();
        };
        let score = |row: &Row| row.checked.as_ref().unwrap_or(&row.searched).clone();
        let (ours, theirs) = (score(candidate), score(preset));
        let limits = |score: &Score| if score.excess > 0.0 { ", which breaks a limit" } else { "" };
        if candidate.rank() < preset.rank() {
            let less = (1.0 - ours.slowdown / theirs.slowdown) * 100.0;
            format!(
                "{}{} has {less:.0} % less slowdown than the best preset, {}{}",
                candidate.name,
                limits(&ours),
                preset.name,
                limits(&theirs)
            )
        } else {
            format!("no candidate is better than the preset {}{}", preset.name, limits(&theirs))
        }
    }
}

impl fmt::Display for TuneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&[
            "",
            ">SLOWDOWN",
            ">SEARCHED",
            ">QUEUE",
            ">PAUSES",
            ">DROPS",
            ">LEFT",
            "PROFILE",
            ">KMIN",
            ">KMAX",
            ">PMAX",
            ">AI RATE",
            ">HAI RATE",
            ">TIME RESET",
            ">TCP G",
            ">CNP TIME",
        ]);
        for row in &self.rows {
            let score = row.checked.as_ref().unwrap_or(&row.searched);
            let checked =
                row.checked.as_ref().map_or_else(|| "-".to_owned(), |_| format!("{:.2}", score.slowdown));
            let mark = if score.excess > 0.0 { " !" } else { "" };
            let mut cells = vec![
                format!("{}{mark}", row.name),
                checked,
                format!("{:.2}", row.searched.slowdown),
                render::bytes(score.queue_bytes),
                score.pauses.to_string(),
                score.drops.to_string(),
                score.unfinished.to_string(),
                row.profile.clone(),
            ];
            let ends = [
                "kmin",
                "kmax",
                "pmax",
                "rpg_ai_rate",
                "rpg_hai_rate",
                "rpg_time_reset",
                "dce_tcp_g",
                "min_time_between_cnps",
            ];
            cells.extend(ends.map(|end| row.text(end)));
            table.row(cells);
        }
        writeln!(f, "{table}")?;
        let method = match self.method {
            Method::Tpe => "",
            Method::Random => " drawn by chance",
        };
        writeln!(
            f,
            "{} of {} candidates{method}; workloads: {}, seeds of each: {}; the best of them and the presets again with {} others\n{}",
            self.simulated,
            self.budget,
            self.workloads,
            self.seeds[0],
            self.seeds[1],
            self.verdict()
        )
    }
}
