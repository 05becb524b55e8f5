//! Sweeps: settings with several values each, and the simulations of all their combinations.

use dcqcn_params::Assignment;

use super::knobs::{Requirement, refuse_without_effect};
use super::presets::{Setting, refuse_unread};
use super::runs::{Run, run_all};
use crate::network::Simulation;
use crate::{Error, SetupError};

pub trait SimulationSetup: Clone {
    type Simulation: Simulation;

    /// Applies one more setting.
    ///
    /// # Errors
    /// The setting is unknown or has no effect, or the text is not a value of it.
    fn apply(&mut self, setting: &Setting) -> Result<(), SetupError>;

    fn changes(&self) -> &[Assignment];

    /// Settings and parameters without effect, each with its missing requirement.
    fn without_effect(&self) -> Vec<Requirement>;

    /// The simulation that they describe.
    ///
    /// # Errors
    /// Settings are inconsistent, a file cannot be read, or a value is out of range.
    fn simulation(&self) -> Result<Self::Simulation, Error>;
}

pub struct SweptRun<S: SimulationSetup> {
    /// Settings that differ between the runs.
    pub settings: Vec<Setting>,
    pub setup: S,
    pub simulation: S::Simulation,
    pub run: Run<<S::Simulation as Simulation>::Outcome>,
}

/// Simulates `base` with every combination of the axes' values, on several threads. Runs without result are omitted.
///
/// # Errors
/// A setting is invalid, has no effect in all runs, or is out of range; or all runs fail.
pub fn sweep<S: SimulationSetup>(
    base: &S,
    axes: &[Axis],
    threads: Option<u16>,
) -> Result<Vec<SweptRun<S>>, Error> {
    let combinations = combinations(axes)?;
    let with = |settings: &Vec<Setting>| {
        let mut setup = base.clone();
        settings.iter().try_for_each(|setting| setup.apply(setting))?;
        Ok(setup)
    };
    let setups: Vec<S> = combinations.iter().map(with).collect::<Result<_, SetupError>>()?;
    refuse_unread(setups.iter().flat_map(S::changes))?;
    refuse_without_effect(setups.iter().map(S::without_effect))?;
    let simulations: Vec<S::Simulation> = setups.iter().map(S::simulation).collect::<Result<_, Error>>()?;
    let runs = run_all(&simulations, threads)?;
    let inputs = combinations.into_iter().zip(setups).zip(simulations);
    let completed = inputs.zip(runs).filter_map(|(((settings, setup), simulation), run)| {
        Some(SweptRun { settings, setup, simulation, run: run? })
    });
    Ok(completed.collect())
}

pub(crate) const MAX_RUNS: usize = 10_000;

/// A setting and its values, as in `kmax=200KB,400KB,1MB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The setting with each value, in order.
    pub settings: Vec<Setting>,
}

impl std::str::FromStr for Axis {
    type Err = SetupError;

    fn from_str(text: &str) -> Result<Self, SetupError> {
        Self::parse(text, "kmax=200KB,400KB,1MB", ',', |Setting { key, text }| {
            Setting::new(key, text).map(|_| ())
        })
    }
}

impl Axis {
    /// Reads `KEY=VALUE,VALUE,...`, as in `example`.
    pub(crate) fn parse(
        text: &str,
        example: &'static str,
        separator: char,
        check: impl FnMut(&Setting) -> Result<(), SetupError>,
    ) -> Result<Self, SetupError> {
        let is_given = |(key, values): &(&str, &str)| !key.trim().is_empty() && !values.trim().is_empty();
        let (key, values) = text
            .split_once('=')
            .filter(is_given)
            .ok_or_else(|| SetupError::NoValues { text: text.to_owned(), example })?;
        let setting = |text: &str| Setting { key: key.trim().to_owned(), text: text.trim().to_owned() };
        let settings: Vec<Setting> = values.split(separator).map(setting).collect();
        settings.iter().try_for_each(check)?;
        Ok(Self { settings })
    }
}

pub fn number_of_runs(axes: &[Axis]) -> usize {
    axes.iter().map(|axis| axis.settings.len()).product()
}

/// All combinations of the axes' values; the last axis changes fastest. Without axes, a single empty one.
fn combinations(axes: &[Axis]) -> Result<Vec<Vec<Setting>>, SetupError> {
    let key = |axis: &Axis| axis.settings.first().map(|setting| setting.key.clone()).unwrap_or_default();
    for (index, axis) in axes.iter().enumerate() {
        let name = key(axis);
        if axes.iter().take(index).any(|before| key(before) == name) {
            return Err(SetupError::SweptTwice(name));
        }
    }
    let mut combinations = vec![Vec::new()];
    for axis in axes {
        let count = combinations.len() * axis.settings.len();
        if count > MAX_RUNS {
            return Err(SetupError::Combinations(count));
        }
        let longer = |before: &Vec<Setting>| {
            let before = before.clone();
            axis.settings.iter().map(move |setting| before.iter().cloned().chain([setting.clone()]).collect())
        };
        combinations = combinations.iter().flat_map(longer).collect();
    }
    Ok(combinations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_sweep_axis_changes_fastest() {
        let axes: Vec<Axis> =
            ["flows=2,4", "kmax=200KB, 1MB"].iter().map(|text| text.parse().unwrap()).collect();
        let all: Vec<String> = combinations(&axes)
            .unwrap()
            .iter()
            .map(|settings| settings.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(all, ["flows=2 kmax=200KB", "flows=2 kmax=1MB", "flows=4 kmax=200KB", "flows=4 kmax=1MB"]);
        assert_eq!(combinations(&[]), Ok(vec![Vec::new()]));
    }

    #[test]
    fn invalid_axes_rejected() {
        for (text, expected) in [
            ("kmax", "is not KEY=VALUE,VALUE"),
            ("kmax=", "is not KEY=VALUE,VALUE"),
            ("flows=2,none", "flows = `none`"),
            ("flws=2", "did you mean `flows`?"),
        ] {
            let refused = text.parse::<Axis>().unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
        let axis: Axis = "seed=1,2".parse().unwrap();
        assert!(combinations(&[axis.clone(), axis]).unwrap_err().to_string().contains("swept twice"));
        let many: Axis = format!("seed={}", vec!["1"; 101].join(",")).parse().unwrap();
        let other: Axis = format!("flows={}", vec!["1"; 101].join(",")).parse().unwrap();
        assert!(combinations(&[many, other]).unwrap_err().to_string().contains("the maximum is 10000"));
    }
}
