//! `config`: configuration files and profiles.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use dcqcn_common::params::Quantity;
use dcqcn_daemon::daemon;
use dcqcn_netlink::Netlink;
use dcqcn_params::quantity::parse_rate_bps;
use dcqcn_params::{self as params, Profile, Settings, word};
use dcqcn_support::file::read_text;
use dcqcn_support::render::Table;
use serde::Serialize;

use super::apply::ApplyArgs;
use super::diff::{DiffArgs, ShowArgs};
use super::profile::ProfileCommand;
use dcqcn_support::cli::Output;

/// Configuration files and profiles: write the active configuration; compare, check, apply and describe files.
#[derive(Debug, Subcommand)]
#[command(after_long_help = "\
Examples:
  dcqcn config show eth0 --out /etc/dcqcn.toml
  dcqcn config diff eth0 --config /etc/dcqcn.toml
  dcqcn config example > /etc/dcqcn.toml
  dcqcn config check /etc/dcqcn.toml
  dcqcn config apply /etc/dcqcn.toml eth0 --confirm 60s
  dcqcn config profile list
  dcqcn config schema > dcqcn.schema.json")]
pub(super) enum ConfigCommand {
    Show(ShowArgs),
    Diff(DiffArgs),
    Example(ExampleArgs),
    Check(CheckArgs),
    Apply(ApplyArgs),
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// Print the JSON schema of the file, for editors.
    #[command(after_long_help = "Examples:\n  dcqcn config schema > dcqcn.schema.json")]
    Schema,
}

impl ConfigCommand {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        match self {
            Self::Show(args) => args.run(out),
            Self::Diff(args) => args.run(out),
            Self::Example(args) => args.run(out),
            Self::Check(args) => args.run(out),
            Self::Apply(args) => args.run(out),
            Self::Profile(command) => command.run(out),
            Self::Schema => out.document(&params::schema()),
        }
    }
}

/// Print a complete configuration file: every setting with its meaning, range and default.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn config example
  # the values of a profile
  dcqcn config example --profile lab --link-rate 200mbit")]
pub(super) struct ExampleArgs {
    /// Use the values of this profile.
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Link rate, on which some profiles depend.
    #[arg(long, value_name = "RATE", value_parser = parse_rate_bps)]
    link_rate: Option<u64>,
}

impl ExampleArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let config = self.profile.config(self.link_rate)?;
        if out.is_json() {
            out.json(&serde_json::json!({ "parameters": params::example_json(&config) }))
        } else {
            out.text(&params::example(&config))
        }
    }
}

/// Check a configuration file, of `attach` or of `run`, and print its settings.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Errors are listed with their lines. Rates are compared with the link's when attaching.

Examples:
  # exit code 1 on any error
  dcqcn config check /etc/dcqcn.toml")]
pub(super) struct CheckArgs {
    /// Configuration file.
    file: PathBuf,
}

impl CheckArgs {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let file = self.file.display().to_string();
        let text = read_text(&self.file).with_context(|| format!("cannot read {file}"))?;
        if daemon::config::is_daemon_file(&text) {
            let mut config = daemon::config::parse(&file, &text)?;
            let seen = Netlink::connect().and_then(|netlink| config.see(&netlink, &netlink.links()?));
            if let Err(error) = &seen {
                tracing::warn!(%error, "file not compared with this host's interfaces");
            }
            return out.show(&DaemonReport::new(file, &config, seen.is_ok()));
        }
        let settings = params::parse(&file, &text)?;
        // `lab` needs a rate, which `attach` may determine; any valid rate will do here.
        settings
            .config(Some(Profile::MAX_LAB_RATE_BPS))
            .map_err(|error| anyhow::anyhow!("{file}: {error}"))?;
        out.show(&CheckReport::new(file, &settings))
    }
}

/// Settings in a file of `dcqcn run`.
#[derive(Serialize)]
struct DaemonReport {
    file: String,
    interfaces: Vec<InterfaceReport>,
    metrics: Option<SocketAddr>,
}

#[derive(Serialize)]
struct InterfaceReport {
    /// Selector, as in the file.
    name: String,
    /// Matching interfaces of this host; `None` if they cannot be read.
    matches: Option<Vec<String>>,
    settings: Vec<Setting>,
}

impl InterfaceReport {
    fn matches_nothing(&self) -> bool {
        self.matches.as_ref().is_some_and(Vec::is_empty)
    }
}

impl DaemonReport {
    fn new(file: String, config: &daemon::config::Config, has_seen: bool) -> Self {
        let matches = |selector: &daemon::config::Selector| -> Vec<String> {
            config.matching(selector).into_iter().map(str::to_owned).collect()
        };
        let interface = |interface: &daemon::config::Interface| {
            let settings = interface.settings.clone();
            InterfaceReport {
                name: interface.selector.to_string(),
                matches: has_seen.then(|| matches(&interface.selector)),
                settings: CheckReport::new(String::new(), &settings).settings,
            }
        };
        Self {
            file,
            interfaces: config.interfaces.iter().map(interface).collect(),
            metrics: config.metrics.map(|metrics| metrics.listen),
        }
    }
}

impl fmt::Display for DaemonReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} is valid, a file of `dcqcn run`", self.file)?;
        let mut table = Table::new(&["INTERFACE", "SETTING", ">VALUE", ">DEFAULT"]);
        for InterfaceReport { name, settings, .. } in &self.interfaces {
            if settings.is_empty() {
                table.row([name.clone(), "all at their defaults".into(), String::new(), String::new()]);
            }
            for Setting { key, value, default } in settings {
                table.row([name.clone(), key.clone(), value.clone(), default.clone()]);
            }
        }
        if self.interfaces.is_empty() {
            writeln!(f, "it has no interface")?;
        } else {
            write!(f, "{table}")?;
        }
        for InterfaceReport { name, .. } in self.interfaces.iter().filter(|one| one.matches_nothing()) {
            writeln!(f, "{name} matches no interface of this host")?;
        }
        self.metrics.map_or(Ok(()), |address| writeln!(f, "metrics on {address}"))
    }
}

/// Hint for a file that both commands accept: `run` rejects these settings at the top level.
const ATTACH_FILE_NOTE: &str = ", a file of `dcqcn attach` (`dcqcn run` expects it below [[interface]])";

#[derive(Serialize)]
struct CheckReport {
    file: String,
    settings: Vec<Setting>,
}

/// A setting in the file.
#[derive(Serialize)]
struct Setting {
    key: String,
    value: String,
    default: String,
}

impl CheckReport {
    fn new(file: String, settings: &Settings) -> Self {
        let Settings { role, profile, inline, pacer, queues, xdp_mode, flows, log_packets: _, changes } =
            settings;
        let tops = [
            role.map(|role| word(&role)),
            profile.map(|profile| word(&profile)),
            pacer.map(|pacer| word(&pacer)),
            queues.map(|queues| word(&queues)),
            xdp_mode.map(|mode| word(&mode)),
            flows.map(|flows| flows.to_string()),
        ];
        let tops = params::ENTRIES.iter().zip(tops).filter_map(|(entry, value)| {
            let default = (entry.default)().trim_matches('"').to_owned();
            Some(Setting { key: entry.key.to_owned(), value: value?, default })
        });
        let inline = inline.iter().map(|peer| Setting {
            key: "inline".into(),
            value: peer.clone(),
            default: "none".into(),
        });
        let changes = changes.iter().map(|change| Setting {
            key: change.key.to_string(),
            value: Quantity(change.value, change.key.unit()).to_string(),
            default: Quantity(change.key.default(), change.key.unit()).to_string(),
        });
        Self { file, settings: inline.chain(tops).chain(changes).collect() }
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, settings } = self;
        if settings.is_empty() {
            writeln!(f, "{file} is valid{ATTACH_FILE_NOTE}; all settings have their default")?;
        } else {
            writeln!(f, "{file} is valid{ATTACH_FILE_NOTE}; it sets:")?;
            let mut table = Table::new(&["SETTING", ">VALUE", ">DEFAULT"]);
            for Setting { key, value, default } in settings {
                table.row([key.clone(), value.clone(), default.clone()]);
            }
            write!(f, "{table}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_file_shown_per_interface() {
        let text = "[[interface]]\nname = 'eth*'\nrole = 'switch'\n[[interface]]\nname = 'ib0'\n\
                    [metrics]\nlisten = '127.0.0.1:9310'\n";
        let expected = "\
x is valid, a file of `dcqcn run`
INTERFACE  SETTING                 VALUE  DEFAULT
eth*       role                   switch     host
ib0        all at their defaults
eth* matches no interface of this host
ib0 matches no interface of this host
metrics on 127.0.0.1:9310
";
        let report = |text| {
            DaemonReport::new("x".into(), &daemon::config::parse("x", text).unwrap(), true).to_string()
        };
        assert_eq!(report(text), expected);
        assert_eq!(report("[log]\n"), "x is valid, a file of `dcqcn run`\nit has no interface\n");
    }

    #[test]
    fn check_prints_findings() {
        let settings = params::parse("x", "role = 'switch'\n[wred.3]\nkmin = '100KB'\n").unwrap();
        let text = "\
x is valid, a file of `dcqcn attach` (`dcqcn run` expects it below [[interface]]); it sets:
SETTING       VALUE  DEFAULT
role         switch     host
wred.3.kmin   100KB      5KB
";
        assert_eq!(CheckReport::new("x".into(), &settings).to_string(), text);
        let nothing = CheckReport::new("x".into(), &Settings::default());
        let printed = nothing.to_string();
        assert!(
            printed.starts_with("x is valid, ") && printed.ends_with("; all settings have their default\n"),
            "{printed}"
        );
    }
}
