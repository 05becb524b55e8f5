//! `get` and `set`.

use std::fmt;
use std::str::FromStr;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use dcqcn_common::params::Config;
use dcqcn_params::{Group, Key, UnknownKey};
use serde::Serialize;

use super::output::Output;
use super::p4::Target;
use super::targets::{self, ChangeReport, Parameter, RequiredEdits};

/// Show the parameters in force.
#[derive(Debug, Args)]
#[command(override_usage = "dcqcn get <IFACE,...|--all|--target TARGET> [KEY]... [OPTIONS]")]
#[command(after_long_help = "\
The first word names interfaces, separated by commas; further interfaces and parameters follow. With --all every word is
a parameter. DSCPs in traffic class 0 are left out unless named.

Examples:
  dcqcn get eth0
  dcqcn get eth0 rpg_ai_rate wred.3.kmax dscp_to_tc.26
  dcqcn get eth0,eth1 --group rp
  dcqcn get --all rpg_ai_rate
  dcqcn get --target bmv2:9090 wred.3.kmax
  dcqcn get eth0 --json | jq '.parameters[] | select(.value != .default)'")]
pub(super) struct GetArgs {
    #[command(flatten)]
    what: What,
    /// Only the parameters of this group.
    #[arg(long, value_enum)]
    group: Option<Group>,
}

/// Interfaces, then parameters.
#[derive(Debug)]
struct What {
    ifaces: Vec<String>,
    keys: Vec<Key>,
    all: bool,
    target: Option<Target>,
}

#[derive(Debug, Args)]
struct Words {
    /// The interfaces and the parameters; all parameters if none is named.
    #[arg(value_name = "IFACE|KEY")]
    words: Vec<String>,
    /// Every interface attached in this network namespace.
    #[arg(long)]
    all: bool,
    /// A switch instead of interfaces: `bmv2:PORT`, the port of its Thrift server.
    #[arg(long, value_name = "TARGET")]
    target: Option<Target>,
}

impl FromArgMatches for What {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Words { words, all, target } = Words::from_arg_matches(matches)?;
        let mut what = Self { ifaces: Vec::new(), keys: Vec::new(), all, target };
        let only_keys = all || target.is_some();
        for (i, word) in words.into_iter().enumerate() {
            match Key::from_str(&word) {
                Ok(key) if only_keys || i != 0 => what.keys.push(key),
                // What is like no parameter is an interface.
                Err(UnknownKey::Name { nearest: None, .. }) if !only_keys => what.take_ifaces(&word),
                Err(error) if only_keys || i != 0 => {
                    return Err(clap::Error::raw(clap::error::ErrorKind::ValueValidation, error.to_string()));
                }
                _ => what.take_ifaces(&word),
            }
        }
        targets::one_of(&what.ifaces, all, target)?;
        Ok(what)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl What {
    fn take_ifaces(&mut self, word: &str) {
        self.ifaces.extend(word.split(',').filter(|name| !name.is_empty()).map(ToOwned::to_owned));
    }
}

impl Args for What {
    fn augment_args(command: Command) -> Command {
        Words::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Words::augment_args_for_update(command)
    }
}

impl GetArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { what: What { ifaces, keys, all, target }, group } = self;
        let configs = targets::configs(ifaces, all, target)?;
        let reports = configs.into_iter().map(|(name, config)| GetReport::new(name, &keys, group, &config));
        let reports: Vec<GetReport> = reports.collect();
        match reports.as_slice() {
            [one] => out.show(one),
            _ => out.show(&GetReports { interfaces: reports }),
        }
    }
}

#[derive(Serialize)]
struct GetReports {
    interfaces: Vec<GetReport>,
}

impl fmt::Display for GetReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        targets::each(f, self.interfaces.iter().map(|report| (report.iface.as_str(), report)))
    }
}

#[derive(Serialize)]
struct GetReport {
    iface: String,
    parameters: Vec<Parameter>,
}

impl GetReport {
    fn new(iface: String, keys: &[Key], group: Option<Group>, config: &Config) -> Self {
        let keys: Vec<Key> = if keys.is_empty() {
            let shown = |key: &Key| !matches!(key, Key::DscpToTc(_)) || key.get(config) != 0;
            Key::all().filter(shown).collect()
        } else {
            keys.to_vec()
        };
        let keys = keys.into_iter().filter(|key| group.is_none_or(|group| key.group() == group));
        Self { iface, parameters: keys.map(|key| Parameter::new(key, config)).collect() }
    }
}

impl fmt::Display for GetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Parameter::table(&self.parameters))
    }
}

/// Change parameters of running traffic, all at once or not at all.
#[derive(Debug, Args)]
#[command(override_usage = "dcqcn set <IFACE,...|--all|--target TARGET> <KEY=VALUE>... [OPTIONS]")]
#[command(after_long_help = "\
Every packet sees either the old parameters or the new ones. If any value is refused for any of the interfaces, none is
changed on any. What was changed is entered in the audit log (`dcqcn audit`).

Examples:
  dcqcn set eth0 rpg_ai_rate=20mbit rpg_time_reset=300us
  dcqcn set eth1 wred.3.kmin=100KB wred.3.kmax=400KB wred.3.pmax=20%
  dcqcn set eth0,eth1 dscp_to_tc.24=3 tc_to_queue.3=3
  dcqcn set --all min_time_between_cnps=50us
  dcqcn set --target bmv2:9090 wred.3.kmax=60KB")]
pub(super) struct SetArgs {
    #[command(flatten)]
    edits: RequiredEdits,
}

impl SetArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let RequiredEdits(edits) = self.edits;
        set(out, &edits)
    }
}

/// Carries out assignments and shows them.
pub(super) fn set(out: &mut Output<'_>, edits: &targets::Edits) -> anyhow::Result<()> {
    if let Some(target) = edits.target {
        return target.set(out, edits);
    }
    let keys: Vec<Key> = edits.changes.iter().map(|change| change.key).collect();
    let changes = targets::change(&edits.names()?, false, |_, config| {
        Ok(edits.changes.iter().try_for_each(|change| change.apply(config))?)
    })?;
    out.show(&ChangeReport::of_keys(&changes, &keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn get_shows_what_differs_from_the_default() {
        let mut config = Config::DEFAULT;
        config.scalars.rpg_ai_rate_bps = 1_000_000;
        let keys = ["rpg_ai_rate".parse().unwrap(), "cnp_limit".parse().unwrap()];
        let report = GetReport::new("eth0".into(), &keys, None, &config);
        let text = "PARAMETER    VALUE  DEFAULT\nrpg_ai_rate  1mbit   40mbit\ncnp_limit       qp\n";
        assert_eq!(report.to_string(), text);
        let all = GetReport::new("eth0".into(), &[], None, &config).parameters;
        assert!(all.iter().any(|p| p.key == "dscp_to_tc.26") && !all.iter().any(|p| p.key == "dscp_to_tc.0"));
        let np = GetReport::new("eth0".into(), &[], Some(Group::Np), &config).parameters;
        assert!(np.iter().any(|p| p.key == "cnp_dscp") && !np.iter().any(|p| p.key == "rpg_gd"));
    }

    #[test]
    fn words_are_interfaces_or_parameters() {
        let read = |line: &str| {
            let command = What::augment_args(Command::new("get"));
            let matches = command.try_get_matches_from(line.split(' '))?;
            What::from_arg_matches(&matches)
        };
        let what = read("get eth0,eth1 br-lan rpg_gd wred.3.kmin").unwrap();
        assert_eq!(
            (what.ifaces, what.keys.len()),
            (["eth0", "eth1", "br-lan"].map(String::from).to_vec(), 2)
        );
        assert_eq!(read("get pacer").unwrap().ifaces, ["pacer"]);
        assert_eq!(read("get --all pacer").unwrap().keys.len(), 1);
        for (line, says) in [
            ("get eth0 rpg_ai_rat", "did you mean `rpg_ai_rate`?"),
            ("get eth0 wred.9.kmin", "wred is numbered 0 to 7"),
            ("get --all eth0", "unknown parameter `eth0`"),
            ("get", "<IFACE|--all>"),
        ] {
            let refused = read(line).unwrap_err();
            assert!(refused.to_string().contains(says) && refused.exit_code() == 2, "{refused}");
        }
    }
}
