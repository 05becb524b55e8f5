//! Options for differences to the defaults; shared by all commands that start from a configuration.

use std::path::PathBuf;

use crate::file::read_text;
use anyhow::Context;
use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_params::{self as params, Assignment, Profile, Settings};

/// Sources of parameters, in ascending precedence: the profile, the file, single settings.
#[derive(Debug, Default, Args)]
pub struct SettingsArgs {
    /// Read settings from this TOML file (`dcqcn config example` prints one).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Profile to start from.
    #[arg(long, value_enum)]
    profile: Option<Profile>,
    /// Set a parameter; overrides profile and file. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", add = ArgValueCompleter::new(crate::cli::key_value))]
    changes: Vec<Assignment>,
}

impl SettingsArgs {
    /// The file, and the settings that take precedence over it.
    pub fn split(self) -> (Option<PathBuf>, Settings) {
        let Self { config, profile, changes } = self;
        (config, Settings { profile, changes, ..Settings::default() })
    }

    /// Reads the file's settings for all interfaces and overlays the options.
    pub fn read(self) -> anyhow::Result<Settings> {
        let (path, options) = self.split();
        let Some(path) = path else { return Ok(options) };
        let text = read_text(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(params::parse(&path.display().to_string(), &text)?.then(options))
    }
}
