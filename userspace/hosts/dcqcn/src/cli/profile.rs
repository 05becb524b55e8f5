//! `config profile`: named sets of parameters.

use std::fmt;

use anyhow::anyhow;
use clap::{Args, Subcommand, ValueEnum};
use dcqcn_common::params::{Config, Quantity, Unit};
use dcqcn_params::quantity::parse_rate_bps;
use dcqcn_params::{Key, Profile, ProfileError, word};
use dcqcn_support::render::Table;
use serde::Serialize;

use dcqcn_support::cli::Output;
use dcqcn_telemetry::Parameter;

/// List and show named sets of parameters; `set --profile` applies one.
#[derive(Debug, Subcommand)]
#[command(after_long_help = "\
Examples:
  dcqcn config profile list
  dcqcn config profile show lab --link-rate 200mbit
  dcqcn set eth0 --profile nvidia")]
pub(super) enum ProfileCommand {
    /// List the profiles.
    #[command(after_long_help = "Examples:\n  dcqcn config profile list")]
    List,
    Show(ShowArgs),
}

impl ProfileCommand {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        match self {
            Self::List => Ok(out.show(&ListReport::new())?),
            Self::Show(args) => args.run(out),
        }
    }
}

#[derive(Serialize)]
struct ListReport {
    profiles: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    about: String,
}

impl ListReport {
    fn new() -> Self {
        let listed = |profile: &Profile| Listed {
            name: word(profile),
            about: profile
                .to_possible_value()
                .and_then(|value| value.get_help().map(ToString::to_string))
                .unwrap_or_default(),
        };
        Self { profiles: Profile::value_variants().iter().map(listed).collect() }
    }
}

impl fmt::Display for ListReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["PROFILE", "ABOUT"]);
        for Listed { name, about } in &self.profiles {
            table.row([name.clone(), about.clone()]);
        }
        write!(f, "{table}")
    }
}

/// Show what a profile sets.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Marking curves are the same in every traffic class and shown for class 0.

Examples:
  dcqcn config profile show nvidia
  dcqcn config profile show lab --link-rate 200mbit")]
pub(super) struct ShowArgs {
    /// Profile name.
    #[arg(value_enum)]
    name: Profile,
    /// Link rate, on which `lab` and `hpcc` depend.
    #[arg(long, value_name = "RATE", value_parser = parse_rate_bps)]
    link_rate: Option<u64>,
}

impl ShowArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let config = config_of(self.name, self.link_rate)?;
        Ok(out.show(&ShowReport::new(self.name, self.link_rate, &config))?)
    }
}

/// The parameters of a profile.
///
/// # Errors
/// The profile needs a link rate, which the error requests as an option.
pub(super) fn config_of(profile: Profile, link_rate: Option<u64>) -> anyhow::Result<Config> {
    profile.config(link_rate).map_err(|error| match error {
        ProfileError::NoRate(name) => {
            // A rate valid for the profile.
            let rate = if profile == Profile::Lab { "1gbit" } else { "25gbit" };
            anyhow!("profile `{name}` depends on the link's rate: specify it, as in `--link-rate {rate}`")
        }
        error => error.into(),
    })
}

#[derive(Serialize)]
struct ShowReport {
    profile: String,
    link_rate_bps: Option<u64>,
    parameters: Vec<Parameter>,
}

impl ShowReport {
    fn new(profile: Profile, link_rate_bps: Option<u64>, config: &Config) -> Self {
        let shown = |key: &Key| key.in_profiles() && !matches!(key, Key::Wred(1.., _));
        let parameters = Key::all().filter(shown).map(|key| Parameter::new(key, config)).collect();
        Self { profile: word(&profile), link_rate_bps, parameters }
    }
}

impl fmt::Display for ShowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "profile {}", self.profile)?;
        if let Some(bps) = self.link_rate_bps {
            write!(f, " on a link of {}", Quantity(bps, Unit::BitsPerSecond))?;
        }
        write!(f, "\n{}", Parameter::table(&self.parameters))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_listed_with_description() {
        let text = ListReport::new().to_string();
        assert!(text.contains("\nnvidia   NVIDIA's firmware: its machine"), "{text}");
        assert!(ListReport::new().profiles.iter().all(|profile| !profile.about.is_empty()));
    }

    #[test]
    fn show_lists_non_defaults() {
        let config = Profile::Lab.config(Some(200_000_000)).unwrap();
        let text = ShowReport::new(Profile::Lab, Some(200_000_000), &config).to_string();
        assert!(text.starts_with("profile lab on a link of 200mbit\nPARAMETER "), "{text}");
        assert!(text.contains("wred.0.pmax") && !text.contains("wred.1") && !text.contains("link_rate"));
    }
}
