//! `config`: configuration files and profiles.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgGroup, Args, Subcommand};
use clap_complete::ArgValueCompleter;
use dcqcn_common::params::Quantity;
use dcqcn_daemon::daemon::config::{self, Config, Control, parse_complete};
use dcqcn_loader::attach::{self, Info, Request};
use dcqcn_netlink::Netlink;
use dcqcn_params::quantity::parse_rate_bps;
use dcqcn_params::{self as params, FileErrors, Key, Profile, Settings};
use dcqcn_support::cli::Output;
use dcqcn_support::file::read_text;
use dcqcn_support::render::Table;
use dcqcn_telemetry::audit::ChangeMode;
use dcqcn_telemetry::{ChangeReport, Parameter};
use serde::Serialize;

use super::confirm::{self, Changed, Waiter};
use super::diff::{DiffArgs, ShowArgs};
use super::profile::{self, ProfileCommand};
use super::targets;

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
            Self::Schema => Ok(out.document(&params::schema())?),
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
        let config = profile::config_of(self.profile, self.link_rate)?;
        if out.is_json() {
            let parameters: Vec<_> = Key::all().map(|key| Parameter::new(key, &config)).collect();
            Ok(out.json(&serde_json::json!({ "parameters": parameters }))?)
        } else {
            Ok(out.text(&params::example(&config))?)
        }
    }
}

/// Check a configuration file, and print its settings.
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
        let mut config = ConfigFile::parse(&self.file, parse_complete)?.config;
        let seen = Netlink::connect().and_then(|netlink| config.read_links(&netlink, &netlink.links()?));
        if let Err(error) = &seen {
            tracing::warn!(%error, "file not compared with this host's interfaces");
        }
        Ok(out.show(&CheckReport::new(self.file.display().to_string(), &config, seen.is_ok()))?)
    }
}

#[derive(Serialize)]
struct CheckReport {
    file: String,
    settings: Vec<Setting>,
    interfaces: Vec<InterfaceReport>,
    metrics: Option<SocketAddr>,
    /// Group of the control socket, if this host does not have it.
    absent_group: Option<String>,
}

#[derive(Serialize)]
struct InterfaceReport {
    /// Selector, as in the file.
    name: String,
    /// Matching interfaces of this host; `None` if they cannot be read.
    matches: Option<Vec<String>>,
    /// Earlier entry that matches all interfaces of this one, which never applies.
    shadowed_by: Option<String>,
    settings: Vec<Setting>,
}

#[derive(Clone, Serialize)]
struct Setting {
    key: String,
    value: String,
    default: String,
}

impl CheckReport {
    fn new(file: String, config: &Config, has_seen: bool) -> Self {
        let matches = |selector: &config::Selector| -> Vec<String> {
            config.matching(selector).into_iter().map(str::to_owned).collect()
        };
        let shadowed: Vec<_> = config.shadowed().collect();
        let shadowed_by = |selector: &config::Selector| {
            let found = shadowed.iter().find(|(entry, _)| std::ptr::eq(*entry, selector));
            found.map(|(_, earlier)| earlier.to_string())
        };
        let interface = |interface: &config::Interface| InterfaceReport {
            name: interface.selector.to_string(),
            matches: has_seen.then(|| matches(&interface.selector)),
            shadowed_by: shadowed_by(&interface.selector),
            settings: rows(&interface.settings),
        };
        Self {
            file,
            settings: rows(&config.common),
            interfaces: config.interfaces.iter().map(interface).collect(),
            metrics: config.metrics.map(|metrics| metrics.listen),
            absent_group: config.control.as_ref().and_then(Control::absent_group).map(str::to_owned),
        }
    }
}

fn rows(settings: &Settings) -> Vec<Setting> {
    let option = |(key, value): (&str, String)| {
        let entry = params::ENTRIES.iter().find(|entry| entry.key == key);
        let default = entry.map_or("none".into(), |entry| (entry.default)().trim_matches('"').to_owned());
        Setting { key: key.to_owned(), value, default }
    };
    let changes = settings.changes.iter().map(|change| Setting {
        key: change.key.to_string(),
        value: Quantity(change.value, change.key.unit()).to_string(),
        default: Quantity(change.key.default(), change.key.unit()).to_string(),
    });
    settings.options().map(option).chain(changes).collect()
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, settings, interfaces, metrics, absent_group } = self;
        writeln!(f, "{file} is valid")?;
        let mut table = Table::new(&["INTERFACE", "SETTING", ">VALUE", ">DEFAULT"]);
        let any = interfaces.is_empty().then_some(("any", settings));
        let each = interfaces.iter().map(|interface| (interface.name.as_str(), &interface.settings));
        for (name, settings) in any.into_iter().chain(each) {
            if settings.is_empty() {
                table.row([name.into(), "all at their defaults".into(), String::new(), String::new()]);
            }
            for Setting { key, value, default } in settings {
                table.row([name.into(), key.clone(), value.clone(), default.clone()]);
            }
        }
        write!(f, "{table}")?;
        if interfaces.is_empty() {
            let run = if settings.is_empty() { "manages no interface" } else { "rejects it" };
            writeln!(
                f,
                "no [[interface]]: `dcqcn attach` applies the file to any interface; `dcqcn run` {run}"
            )?;
        }
        for InterfaceReport { name, matches, shadowed_by, .. } in interfaces {
            if let Some(earlier) = shadowed_by {
                writeln!(
                    f,
                    "{name} never applies: the earlier entry {earlier} matches all its interfaces; move it up"
                )?;
            } else if matches.as_ref().is_some_and(Vec::is_empty) {
                writeln!(f, "{name} matches no interface of this host")?;
            }
        }
        if let Some(group) = absent_group {
            writeln!(f, "[control] group {group} does not exist on this host: only root may use the socket")?;
        }
        metrics.map_or(Ok(()), |address| writeln!(f, "metrics on {address}"))
    }
}

pub(super) struct ConfigFile {
    name: String,
    pub(super) config: Config,
}

impl ConfigFile {
    /// Reads the file, and the properties of this host's interfaces if it selects interfaces.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let mut file = Self::parse(path, config::parse)?;
        if !file.config.interfaces.is_empty() {
            let netlink = Netlink::connect()?;
            file.config.read_links(&netlink, &netlink.links()?)?;
        }
        Ok(file)
    }

    /// As [`ConfigFile::read`], without this host's interfaces.
    pub(super) fn parse(
        path: &Path,
        parse: fn(&str, &str) -> Result<Config, FileErrors>,
    ) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let text = read_text(path).with_context(|| format!("cannot read {name}"))?;
        let config = parse(&name, &text)?;
        Ok(Self { name, config })
    }

    pub(super) fn settings(&self, iface: &str) -> anyhow::Result<Settings> {
        let name = &self.name;
        self.config.settings(iface).with_context(|| {
            format!("no [[interface]] in {name} matches {iface}; add one with name = \"{iface}\"")
        })
    }
}

/// Apply a configuration file to attached interfaces, atomically.
///
/// Parameters absent from the file get the defaults of a new attachment.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true))]
#[command(override_usage = "dcqcn config apply <FILE> <IFACE...|--all> [--dry-run] [--confirm TIME]")]
#[command(after_long_help = "\
A file without [[interface]] applies to each interface named. Role, pacer and table sizes are fixed when attaching: a file
with other values is rejected.

Examples:
  dcqcn config apply /etc/dcqcn.toml eth0 --dry-run
  dcqcn config apply /etc/dcqcn.toml eth0 eth1 --confirm 60s
  dcqcn confirm")]
pub(super) struct ApplyArgs {
    /// Configuration file.
    file: PathBuf,
    /// Attached interfaces.
    #[arg(value_name = "IFACE", group = "target", add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Every interface attached in this network namespace; with a file that selects interfaces, only those that match.
    #[arg(long, group = "target")]
    all: bool,
    /// Show the changes without applying them.
    #[arg(long, conflicts_with = "confirm")]
    dry_run: bool,
    /// Revert the change after this time (1s to 24h) unless `dcqcn confirm` follows.
    #[arg(long, value_name = "TIME", value_parser = confirm::within)]
    confirm: Option<Duration>,
}

impl ApplyArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { file, ifaces, all, dry_run, confirm } = self;
        let parsed = ConfigFile::read(&file)?;
        let mut ifaces = targets::names(ifaces, all)?;
        if all {
            ifaces.retain(|iface| parsed.config.settings(iface).is_some());
            anyhow::ensure!(
                !ifaces.is_empty(),
                "{} does not name any attached interface; `dcqcn status` lists these",
                file.display()
            );
        }
        let request = |info: &Info| {
            let settings = parsed.settings(&info.iface)?;
            // A file for any interface does not name the peer.
            let peer = info.inline_peer.clone().filter(|_| parsed.config.interfaces.is_empty());
            let attached = Settings { inline: peer, ..Settings::default() };
            anyhow::Ok(Request { iface: info.iface.clone(), settings: attached.then(settings) })
        };
        let change_mode = confirm.map_or(ChangeMode::unconfirmed(dry_run), ChangeMode::Confirm);
        let _waiter = Waiter::start(change_mode)?;
        let changes = targets::change(&ifaces, change_mode, |info, config| {
            *config = attach::revise(&request(info)?, info, config)?;
            Ok(())
        })?;
        Ok(out.show(&Changed::new(ChangeReport::of_differences(&changes), &changes, change_mode))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> String {
        CheckReport::new("x".into(), &config::parse("x", text).unwrap(), true).to_string()
    }

    #[test]
    fn check_shows_settings_per_interface() {
        let text = "[wred.3]\nkmin = '50KB'\nkmax = '200KB'\n\
                    [[interface]]\nname = 'eth*'\nrole = 'switch'\n[interface.wred.3]\nkmin = '100KB'\n\
                    [metrics]\nlisten = '127.0.0.1:9310'\n";
        let expected = "\
x is valid
INTERFACE  SETTING       VALUE  DEFAULT
eth*       role         switch     host
eth*       wred.3.kmax   200KB    200KB
eth*       wred.3.kmin   100KB      5KB
eth* matches no interface of this host
metrics on 127.0.0.1:9310
";
        assert_eq!(report(text), expected);
    }

    #[test]
    fn check_names_entries_that_never_apply() {
        let entry = |name: &str| format!("[[interface]]\nname = '{name}'\n");
        let shown = report(&["eth0", "eth*", "eth1", "eth0", "ens*"].map(entry).concat());
        for (name, earlier) in [("eth1", "eth*"), ("eth0", "eth0")] {
            let line = format!(
                "\n{name} never applies: the earlier entry {earlier} matches all its interfaces; move it up\n"
            );
            assert!(shown.contains(&line), "{shown}");
        }
        assert_eq!(shown.matches("never applies").count(), 2, "{shown}");
    }

    #[test]
    fn check_names_absent_group() {
        let shown = report("[control]\ngroup = 'no-such-group'\n");
        let line =
            "[control] group no-such-group does not exist on this host: only root may use the socket\n";
        assert!(shown.ends_with(line), "{shown}");
        assert!(!report("[control]\ngroup = 'root'\n").contains("does not exist"));
    }

    #[test]
    fn check_shows_file_for_any_interface() {
        let expected = "\
x is valid
INTERFACE  SETTING      VALUE  DEFAULT
any        wred.3.kmin  100KB      5KB
no [[interface]]: `dcqcn attach` applies the file to any interface; `dcqcn run` rejects it
";
        assert_eq!(report("[wred.3]\nkmin = '100KB'\n"), expected);
        let empty = report("[log]\n");
        assert!(empty.contains("any        all at their defaults"), "{empty}");
        assert!(empty.ends_with("`dcqcn run` manages no interface\n"), "{empty}");
    }
}
