//! What is searched: a profile, and the numbers that replace some of its.

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use dcqcn_common::params::Config;
use dcqcn_params::{Assignment, Key, Profile};

use crate::fabric::FabricSetup;

/// A profile, and what is set on top of it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The profile.
    pub profile: Profile,
    /// What is set.
    pub changes: Vec<Assignment>,
}

/// The link whose numbers the ranges below are; they grow with the link.
const REFERENCE_BPS: f64 = 25e9;
/// What a dimension is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A parameter.
    Plain,
    /// How many times the dimension before it.
    Times,
    /// How far it is below 1024: the gain g in 1/1024.
    Gain,
}

/// One number that is looked for: from `low` to `high`, evenly by the logarithm.
#[derive(Clone, Copy, Debug)]
struct Dimension {
    key: Key,
    what: What,
    low: f64,
    high: f64,
}

/// Everything that is looked for.
#[derive(Clone, Debug)]
pub(super) struct Space {
    profiles: Vec<Profile>,
    dimensions: Vec<Dimension>,
    /// What the user set: it is the same in all candidates.
    fixed: Vec<Assignment>,
}

impl Space {
    /// For the class and the links of `setup`. Its profile and what it sets are no matter of searching.
    ///
    /// # Errors
    /// No profile is for such links.
    pub(super) fn new(setup: &FabricSetup, host_rate_bps: u64) -> Result<Self> {
        let profiles: Vec<Profile> = match setup.profile {
            Some(profile) => vec![profile],
            None => Profile::value_variants()
                .iter()
                .copied()
                .filter(|profile| profile.config(Some(host_rate_bps)).is_ok())
                .collect(),
        };
        let (class, k) = (setup.class(), host_rate_bps as f64 / REFERENCE_BPS);
        let wred = |name: &str| format!("wred.{class}.{name}");
        let (kmin, kmax, pmax) = (wred("kmin"), wred("kmax"), wred("pmax"));
        let table = [
            (kmin.as_str(), What::Plain, 2e3 * k, 400e3 * k),
            (&kmax, What::Times, 1.1, 40.0),
            (&pmax, What::Plain, 5e3, 1e6),
            ("rpg_ai_rate", What::Plain, 1e6 * k, 250e6 * k),
            ("rpg_hai_rate", What::Times, 1.0, 30.0),
            ("rpg_time_reset", What::Plain, 10e3, 1e6),
            ("dce_tcp_g", What::Gain, 1.0, 128.0),
            ("min_time_between_cnps", What::Plain, 1e3, 100e3),
        ];
        let fixed = setup.changes.clone();
        let mut dimensions = Vec::new();
        for (name, what, low, high) in table {
            let key: Key = name.parse().context("a parameter that is searched has another name now")?;
            if !fixed.iter().any(|change| change.key == key) {
                dimensions.push(Dimension { key, what, low, high });
            }
        }
        Ok(Self { profiles, dimensions, fixed })
    }

    /// How many profiles there are to choose from.
    pub(super) fn profiles(&self) -> usize {
        self.profiles.len()
    }

    /// How many numbers are looked for.
    pub(super) fn numbers(&self) -> usize {
        self.dimensions.len()
    }

    /// The settings of a point: the place of its profile, and each number from 0 to 1. Two digits of each count, so that people can
    /// read them.
    pub(super) fn settings(&self, profile: usize, numbers: &[f64]) -> Settings {
        let profile = self.profiles.get(profile).or(self.profiles.first()).copied().unwrap_or_default();
        let mut changes = self.fixed.clone();
        let mut before = None;
        for (dimension, number) in self.dimensions.iter().zip(numbers) {
            let Dimension { key, what, low, high } = *dimension;
            let drawn = low * (high / low).powf(number.clamp(0.0, 1.0));
            let value = match (what, before) {
                (What::Gain, _) => 1_024.0 - drawn.round(),
                (What::Times, Some(before)) => two_digits(before * drawn),
                // What it is a multiple of was set by the user: the same as if it were 1 at the least.
                (What::Times, None) => two_digits(self.base(key, profile) * drawn),
                (What::Plain, _) => two_digits(drawn),
            };
            before = (what == What::Plain).then_some(value);
            let (least, most) = key.range().into_inner();
            changes.push(Assignment { key, value: (value as u64).clamp(least, most) });
        }
        Settings { profile, changes }
    }

    /// What a multiple is of, if the user set it: Kmin for Kmax, R_AI for R_HAI.
    fn base(&self, key: Key, profile: Profile) -> f64 {
        let name = key.to_string().replace("kmax", "kmin").replace("rpg_hai_rate", "rpg_ai_rate");
        let said = self.fixed.iter().rev().find(|change| change.key.to_string() == name);
        let default =
            || name.parse::<Key>().map_or(1, |key| key.get(&profile.config(None).unwrap_or(Config::DEFAULT)));
        said.map_or_else(default, |change| change.value).max(1) as f64
    }
}

/// Rounded to two digits.
fn two_digits(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let scale = 10f64.powf(value.log10().floor() - 1.0);
    ((value / scale).round() * scale).round()
}

impl Settings {
    /// The whole configuration on hosts' links of `host_rate_bps`.
    ///
    /// # Errors
    /// The values contradict each other.
    pub(super) fn config(&self, setup: &FabricSetup, host_rate_bps: u64) -> Result<Config> {
        let Self { profile, changes } = self.clone();
        FabricSetup { profile: Some(profile), changes, ..setup.clone() }.config(host_rate_bps)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fabric::setup;

    const RATE: u64 = 100_000_000_000;

    proptest! {
        #[test]
        fn every_point_is_a_configuration(
            profile in 0usize..8, numbers in proptest::collection::vec(-0.1f64..1.1, 8), rate in 1u64..=400,
        ) {
            let (setup, rate) = (FabricSetup::default(), rate * 1_000_000_000);
            let space = Space::new(&setup, rate).unwrap();
            let settings = space.settings(profile, &numbers);
            prop_assert!(settings.config(&setup, rate).is_ok(), "{settings:?}");
        }
    }

    #[test]
    fn what_is_set_is_the_same_in_all_and_not_searched() {
        let setup = setup("--profile nvidia --set wred.3.kmin=77KB");
        let space = Space::new(&setup, RATE).unwrap();
        assert_eq!((space.profiles(), space.numbers()), (1, 7));
        let low = space.settings(0, &[0.0; 7]).config(&setup, RATE).unwrap();
        assert_eq!(
            (low.wred[3].kmin_bytes, low.wred[3].kmax_bytes, low.wred[3].pmax_ppm),
            (77_000, 85_000, 5_000)
        );
        assert_eq!((low.scalars.dce_tcp_g, low.scalars.rpg_time_reset_ns), (1_023, 10_000));
        let high = space.settings(0, &[1.0; 7]).config(&setup, RATE).unwrap();
        assert_eq!(
            (high.scalars.rpg_ai_rate_bps, high.scalars.rpg_hai_rate_bps),
            (1_000_000_000, 30_000_000_000)
        );
    }

    #[test]
    fn numbers_have_two_digits() {
        assert_eq!([0.4, 123_456.0, 9_960.0, 7.0].map(two_digits), [0.0, 120_000.0, 10_000.0, 7.0]);
    }
}
