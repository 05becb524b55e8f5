//! `tune`: searches parameters for a fabric and its traffic by simulation.
//!
//! A candidate is a profile with random values of some parameters. The best candidates and the published presets are
//! simulated again with new seeds; the second result decides. The search is random: a tree-structured Parzen estimator
//! with the same budget found nothing better (docs/how-to/find-parameters.md).

mod evaluate;
mod report;
mod run;
mod space;
mod task;

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use dcqcn_params::{Assignment, Profile, Settings, to_toml};
use toml::Value;

use crate::fabric::FabricSetup;
pub use evaluate::{Bounds, Limits, Objective, Score};
pub use report::{Row, TuneReport};
pub use run::tune;
pub use task::Task;

/// Hosts and interfaces of a fleet that it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetTarget {
    pub group: String,
    /// Labels of its hosts; none: all hosts.
    pub labels: Vec<(String, String)>,
    /// Name or pattern of the interfaces.
    pub interface: String,
}

impl TuneReport {
    /// The best candidate or preset with the given settings, as `fleet.toml`. It contains every simulated parameter, so
    /// that the result does not depend on a host's own file.
    ///
    /// # Errors
    /// There is none, or it exceeds a limit.
    pub fn fragment(&self, target: &FleetTarget) -> Result<String> {
        let row = self.best().context("nothing was simulated")?;
        let broken = self.broken(row);
        ensure!(
            broken.is_empty(),
            "the best result, `{}`, exceeds a limit: {}; increase --budget, --max-queue, --max-pauses, --max-drops or \
             --duration",
            row.name,
            broken.join("; ")
        );
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
    let profiles: Vec<Profile> = Profile::value_variants()
        .iter()
        .copied()
        .filter(|profile| *profile != Profile::Auto && profile.config(Some(host_rate_bps)).is_ok())
        .collect();
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
        let with = |profile| Settings {
            profile: Some(profile),
            changes: setup.changes.clone(),
            ..Settings::default()
        };
        // Given settings may be valid with searched values, but with no profile.
        let settings =
            usual.into_iter().map(with).find(|settings| settings.config(Some(host_rate_bps)).is_ok());
        presets.extend(settings.map(|settings| Preset {
            name: "as given".to_owned(),
            settings,
            is_as_given: true,
        }));
    }
    presets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::setup;

    #[test]
    fn presets_valid_and_include_given_settings() {
        let names = |line: &str, bps: u64| {
            let setup = setup(line);
            let presets = presets(&setup, bps);
            assert!(presets.iter().all(|preset| preset.settings.config(Some(bps)).is_ok()), "{presets:?}");
            let is_given = setup.profile.is_some() || !setup.changes.is_empty();
            assert!(
                presets.iter().all(|preset| preset.is_as_given == (!is_given || preset.name == "as given"))
            );
            presets.into_iter().map(|preset| preset.name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names("", 100_000_000_000), "paper nvidia hpcc irdma sonic");
        assert_eq!(
            names("--profile hpcc --class 4", 1_000_000_000_000 / 40),
            "paper nvidia hpcc irdma sonic as given"
        );
        assert_eq!(names("", 1_000_000_000), "paper nvidia irdma lab sonic");
        assert_eq!(names("--set rpg_ai_rate=5mbit", 1_000_000_000), "paper nvidia irdma lab sonic as given");
        // No profile has a valid Kmax for it.
        assert_eq!(names("--set wred.3.kmin=900MB", 1_000_000_000), "paper nvidia irdma lab sonic");
    }
}
