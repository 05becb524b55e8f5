//! What others publish, to hold candidates against.

use clap::ValueEnum as _;
use dcqcn_params::{Assignment, Profile};

use super::space::Settings;
use crate::fabric::FabricSetup;

/// SONiC's thresholds for lossless queues (`WRED_PROFILE` of its default QoS configuration).
const SONIC: [(&str, &str); 3] = [("kmin", "1MiB"), ("kmax", "2MiB"), ("pmax", "5%")];

/// Every profile that is for links of `host_rate_bps`, SONiC's thresholds with NVIDIA's machine, and what `setup` asks for, if it says
/// anything of parameters.
pub(super) fn presets(setup: &FabricSetup, host_rate_bps: u64) -> Vec<(String, Settings)> {
    let mut presets: Vec<(String, Settings)> = Profile::value_variants()
        .iter()
        .filter(|profile| profile.config(Some(host_rate_bps)).is_ok())
        .map(|profile| (dcqcn_params::word(profile), Settings { profile: *profile, changes: Vec::new() }))
        .collect();
    let sonic = SONIC.map(|(name, text)| Assignment::new(&format!("wred.{}.{name}", setup.class()), text));
    if let Ok(changes) = sonic.into_iter().collect::<Result<Vec<_>, _>>() {
        presets.push(("sonic".to_owned(), Settings { profile: Profile::Nvidia, changes }));
    }
    if setup.profile.is_some() || !setup.changes.is_empty() {
        let settings =
            Settings { profile: setup.profile.unwrap_or(Profile::Hpcc), changes: setup.changes.clone() };
        presets.push(("as given".to_owned(), settings));
    }
    presets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::setup;

    #[test]
    fn presets_are_valid_on_their_links_and_say_what_was_given() {
        let names = |line: &str, bps: u64| {
            let setup = setup(line);
            let presets = presets(&setup, bps);
            assert!(presets.iter().all(|(_, settings)| settings.config(&setup, bps).is_ok()), "{presets:?}");
            presets.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names("", 100_000_000_000), "paper nvidia hpcc irdma sonic");
        assert_eq!(
            names("--profile hpcc --class 4", 1_000_000_000_000 / 40),
            "paper nvidia hpcc irdma sonic as given"
        );
        assert_eq!(names("", 1_000_000_000), "paper nvidia irdma lab sonic");
    }
}
