//! Published parameter sets, for comparison with candidates.

use clap::ValueEnum as _;
use dcqcn_params::{Assignment, Profile};

use super::space::Settings;
use crate::fabric::FabricSetup;

/// SONiC's thresholds for lossless queues (`WRED_PROFILE` of its default QoS configuration).
const SONIC: [(&str, &str); 3] = [("kmin", "1MiB"), ("kmax", "2MiB"), ("pmax", "5%")];

/// A reference for candidates.
#[derive(Clone, Debug)]
pub(super) struct Preset {
    /// Name.
    pub(super) name: String,
    /// Configuration.
    pub(super) settings: Settings,
    /// Whether the preset includes the given settings.
    pub(super) is_as_given: bool,
}

/// Every profile for links of `host_rate_bps`, SONiC's thresholds with NVIDIA's machine, and the settings of `setup`,
/// if it has any parameters (the others do not have them then).
pub(super) fn presets(setup: &FabricSetup, host_rate_bps: u64) -> Vec<Preset> {
    let is_as_given = setup.profile.is_none() && setup.changes.is_empty();
    let profiles: Vec<Profile> = Profile::value_variants()
        .iter()
        .copied()
        .filter(|profile| *profile != Profile::Auto && profile.config(Some(host_rate_bps)).is_ok())
        .collect();
    let of = |profile: &Profile| Preset {
        name: dcqcn_params::word(profile),
        settings: Settings { profile: *profile, changes: Vec::new() },
        is_as_given,
    };
    let mut presets: Vec<Preset> = profiles.iter().map(of).collect();
    let sonic = SONIC.map(|(name, text)| Assignment::new(&format!("wred.{}.{name}", setup.class()), text));
    if let Ok(changes) = sonic.into_iter().collect::<Result<Vec<_>, _>>() {
        let settings = Settings { profile: Profile::Nvidia, changes };
        presets.push(Preset { name: "sonic".to_owned(), settings, is_as_given });
    }
    if !is_as_given {
        // The simulator's own profile first, if none was given.
        let usual = match setup.profile {
            Some(profile) => vec![profile],
            None => [Profile::Hpcc].into_iter().chain(profiles).collect(),
        };
        let with = |profile| Settings { profile, changes: setup.changes.clone() };
        // Given settings may be valid with searched values, but with no profile.
        let settings =
            usual.into_iter().map(with).find(|settings| settings.config(setup, host_rate_bps).is_ok());
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
            assert!(presets.iter().all(|preset| preset.settings.config(&setup, bps).is_ok()), "{presets:?}");
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
