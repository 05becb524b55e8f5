//! Search space: a profile, and values that replace some of its parameters.

use clap::ValueEnum;
use dcqcn_params::{Assignment, Key, Profile, Settings, UnknownKey};

use crate::fabric::FabricSetup;
use crate::network::Random;

/// The link for which the ranges below are given; they scale with the link.
const REFERENCE_BPS: f64 = 25e9;
/// If given settings leave nothing of a range, it starts this many times below them.
const BELOW: f64 = 100.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DimensionKind {
    Plain,
    /// Multiple of another parameter, which precedes it.
    Times(Key),
    /// Distance below 1024: the gain g in 1/1024.
    Gain,
}

/// A searched value: from `low` to `high`, uniform in its logarithm.
#[derive(Clone, Copy, Debug)]
struct Dimension {
    key: Key,
    what: DimensionKind,
    low: f64,
    high: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Space {
    profiles: Vec<Profile>,
    dimensions: Vec<Dimension>,
    /// The user's settings: equal in all candidates.
    fixed: Vec<Assignment>,
}

/// The profiles for links of `host_rate_bps`.
pub(super) fn profiles(host_rate_bps: u64) -> Vec<Profile> {
    let all = Profile::value_variants().iter().copied();
    all.filter(|profile| *profile != Profile::Auto && profile.config(Some(host_rate_bps)).is_ok()).collect()
}

impl Space {
    /// The space for the class and the links of `setup`. Its profile and settings are not searched.
    pub(super) fn new(setup: &FabricSetup, host_rate_bps: u64) -> Result<Self, UnknownKey> {
        let profiles: Vec<Profile> = match setup.profile {
            Some(profile) => vec![profile],
            None => profiles(host_rate_bps),
        };
        let (class, k) = (setup.class(), host_rate_bps as f64 / REFERENCE_BPS);
        let key = |name: &str| name.parse::<Key>();
        let wred = |name: &str| key(&format!("wred.{class}.{name}"));
        let (kmin, ai_rate) = (wred("kmin")?, key("rpg_ai_rate")?);
        let table = [
            (kmin, DimensionKind::Plain, 2e3 * k, 400e3 * k),
            (wred("kmax")?, DimensionKind::Times(kmin), 1.1, 40.0),
            (wred("pmax")?, DimensionKind::Plain, 5e3, 1e6),
            (ai_rate, DimensionKind::Plain, 1e6 * k, 250e6 * k),
            (key("rpg_hai_rate")?, DimensionKind::Times(ai_rate), 1.0, 30.0),
            (key("rpg_time_reset")?, DimensionKind::Plain, 10e3, 1e6),
            (key("dce_tcp_g")?, DimensionKind::Gain, 1.0, 128.0),
            (key("min_time_between_cnps")?, DimensionKind::Plain, 1e3, 100e3),
        ];
        let fixed = setup.changes.clone();
        let mut dimensions = Vec::new();
        for (key, what, low, high) in table {
            // Keep Kmin at most a given Kmax, and R_AI at most a given R_HAI.
            let is_its =
                |(_, other, ..): &&(Key, DimensionKind, f64, f64)| *other == DimensionKind::Times(key);
            let multiple = table.iter().find(is_its).and_then(|(key, ..)| value_of(&fixed, *key));
            let high = multiple.map_or(high, |most| high.min(most.max(1.0)));
            let low = if low < high { low } else { high / BELOW };
            if value_of(&fixed, key).is_none() {
                dimensions.push(Dimension { key, what, low, high });
            }
        }
        Ok(Self { profiles, dimensions, fixed })
    }

    pub(super) fn draw(&self, random: &mut Random) -> Settings {
        let profile = random.up_to(self.profiles.len().saturating_sub(1) as u64) as usize;
        let numbers: Vec<f64> = self.dimensions.iter().map(|_| random.unit()).collect();
        self.settings(profile, &numbers)
    }

    /// The settings of a point: the index of its profile, and each value from 0 to 1 in two digits.
    fn settings(&self, profile: usize, numbers: &[f64]) -> Settings {
        let profile = self.profiles.get(profile).or(self.profiles.first()).copied().unwrap_or_default();
        let mut changes = self.fixed.clone();
        for (dimension, number) in self.dimensions.iter().zip(numbers) {
            let Dimension { key, what, low, high } = *dimension;
            let drawn = low * (high / low).powf(number.clamp(0.0, 1.0));
            let value = match what {
                DimensionKind::Gain => 1_024.0 - drawn.round(),
                DimensionKind::Plain => two_digits(drawn).min(high),
                DimensionKind::Times(base) => {
                    let base = value_of(&changes, base).unwrap_or(base.default() as f64);
                    two_digits(base * drawn).max(base)
                }
            };
            let (least, most) = key.range().into_inner();
            changes.push(Assignment { key, value: (value as u64).clamp(least, most) });
        }
        Settings { profile: Some(profile), changes, ..Settings::default() }
    }
}

fn value_of(changes: &[Assignment], key: Key) -> Option<f64> {
    changes.iter().rev().find(|change| change.key == key).map(|change| change.value as f64)
}

fn two_digits(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let scale = 10f64.powf(value.log10().floor() - 1.0);
    ((value / scale).round() * scale).round()
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::Config;
    use proptest::prelude::*;

    use super::*;
    use crate::fabric::setup;

    const RATE: u64 = 100_000_000_000;

    proptest! {
        #[test]
        fn candidates_are_valid_configs(
            profile in 0usize..8, numbers in proptest::collection::vec(-0.1f64..1.1, 8), rate in 1u64..=400,
        ) {
            let (setup, rate) = (FabricSetup::default(), rate * 1_000_000_000);
            let space = Space::new(&setup, rate).unwrap();
            let settings = space.settings(profile, &numbers);
            prop_assert!(settings.config(Some(rate)).is_ok(), "{settings:?}");
        }
    }

    /// The values of a point for a class and links, with given settings.
    fn draw_config(flags: &str, numbers: &[f64], rate: u64) -> Config {
        let setup = setup(flags);
        let space = Space::new(&setup, rate).unwrap();
        space.settings(0, numbers).config(Some(rate)).unwrap()
    }

    proptest! {
        #[test]
        fn multiples_respect_set_base_or_multiple(
            numbers in proptest::collection::vec(0.0f64..=1.0, 8), set in 1_000u64..=400_000_000_000,
        ) {
            let (_, most) = "rpg_hai_rate".parse::<Key>().unwrap().range().into_inner();
            let s = draw_config(&format!("--set rpg_ai_rate={set}bit"), &numbers, RATE).scalars;
            prop_assert!(s.rpg_ai_rate_bps == set && s.rpg_hai_rate_bps >= set, "{s:?}");
            prop_assert!(s.rpg_hai_rate_bps <= (set * 32).min(most), "{s:?}");
            let s = draw_config(&format!("--set rpg_hai_rate={set}bit"), &numbers, RATE).scalars;
            prop_assert!(s.rpg_hai_rate_bps == set && s.rpg_ai_rate_bps <= set, "{s:?}");
            let bytes = set % 1_000_000_000;
            let wred = draw_config(&format!("--set wred.3.kmin={bytes}B"), &numbers, RATE).wred[3];
            prop_assert!(wred.kmin_bytes == bytes && wred.kmax_bytes >= bytes, "{wred:?}");
            let wred = draw_config(&format!("--set wred.3.kmax={bytes}B"), &numbers, RATE).wred[3];
            prop_assert!(wred.kmax_bytes == bytes && wred.kmin_bytes <= bytes, "{wred:?}");
        }
    }

    #[test]
    fn set_parameters_are_not_searched() {
        let setup = setup("--profile nvidia --set wred.3.kmin=77KB");
        let space = Space::new(&setup, RATE).unwrap();
        assert_eq!((space.profiles.len(), space.dimensions.len()), (1, 7));
        let low = space.settings(0, &[0.0; 7]).config(Some(RATE)).unwrap();
        let wred = low.wred[3];
        assert_eq!((wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm), (77_000, 85_000, 5_000));
        assert_eq!((low.scalars.dce_tcp_g, low.scalars.rpg_time_reset_ns), (1_023, 10_000));
        let high = space.settings(0, &[1.0; 7]).config(Some(RATE)).unwrap().scalars;
        assert_eq!((high.rpg_ai_rate_bps, high.rpg_hai_rate_bps), (1_000_000_000, 30_000_000_000));
    }

    #[test]
    fn draw_same_seed_same_candidate() {
        let space = Space::new(&FabricSetup::default(), RATE).unwrap();
        let drawn = |seed| space.draw(&mut Random::new(seed));
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
    }

    #[test]
    fn numbers_have_two_digits() {
        assert_eq!([0.4, 123_456.0, 9_960.0, 7.0].map(two_digits), [0.0, 120_000.0, 10_000.0, 7.0]);
    }
}
