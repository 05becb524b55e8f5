//! `get` shows active parameters; `set` changes them while traffic is running.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::ensure;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use clap_complete::ArgValueCompleter;
use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Config, PfcConfig, QUEUES_NONE, QueueConfig, Spec, WredConfig};
use dcqcn_params::{Group, Key, UnknownKey};
use dcqcn_support::cli::Output;
use dcqcn_support::number::number;
use dcqcn_telemetry::audit::ChangeMode;
use dcqcn_telemetry::{ChangeReport, Parameter, each};
use serde::Serialize;

use super::confirm::{self, Changed, Waiter};
use super::targets::{self, Edits};

/// Show active parameters.
#[derive(Debug, Args)]
#[command(override_usage = "dcqcn get <IFACE,...|--all> [KEY]... [OPTIONS]")]
#[command(after_long_help = "\
The first word names interfaces, separated by commas; further interfaces and parameters follow. With --all every word is
a parameter. DSCPs in traffic class 0 are omitted unless named.

Groups:
  wred  the congestion point: WRED marking, classes and queues
  np    the notification point: CNPs
  rp    the reaction point: the rate machine and the pacer
  link  the interface: link, ECT and DSCP of its own packets, PFC, event log

Examples:
  dcqcn get eth0
  dcqcn get eth0 rpg_ai_rate wred.3.kmax dscp_to_tc.26
  # the marking of one class: meaning, range, default
  dcqcn get eth1 --group wred --tc 3 --explain
  dcqcn get eth0,eth1 --group rp
  dcqcn get --all rpg_ai_rate
  dcqcn get eth0 --json | jq '.parameters[] | select(.value != .default)'")]
pub(super) struct GetArgs {
    #[command(flatten)]
    what: Selection,
    /// Only parameters of this group.
    #[arg(long, value_enum)]
    group: Option<Group>,
    /// Only parameters of this traffic class.
    #[arg(long, value_name = "TC", value_parser = number("tc", 0..=CLASSES as u8 - 1))]
    tc: Option<u8>,
    /// Explain each: meaning, range, and effect of a larger value.
    #[arg(long)]
    explain: bool,
}

/// Interfaces, then parameters.
#[derive(Debug)]
struct Selection {
    ifaces: Vec<String>,
    keys: Vec<Key>,
    all: bool,
}

#[derive(Debug, Args)]
struct Words {
    /// Interfaces or patterns (eth*), then parameters [default: all parameters].
    #[arg(value_name = "IFACE|KEY", add = ArgValueCompleter::new(dcqcn_support::cli::iface_or_key))]
    words: Vec<String>,
    /// Every interface attached in this network namespace.
    #[arg(long)]
    all: bool,
}

impl FromArgMatches for Selection {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Words { words, all } = Words::from_arg_matches(matches)?;
        let mut what = Self { ifaces: Vec::new(), keys: Vec::new(), all };
        for (i, word) in words.into_iter().enumerate() {
            match Key::from_str(&word) {
                Ok(key) if all || i != 0 => what.keys.push(key),
                // A word that resembles no parameter is an interface.
                Err(error @ UnknownKey::Name { .. }) if !all && error.nearest().is_none() => {
                    what.take_ifaces(&word);
                }
                Err(error) if all || i != 0 => {
                    return Err(clap::Error::raw(clap::error::ErrorKind::ValueValidation, error.to_string()));
                }
                _ => what.take_ifaces(&word),
            }
        }
        targets::one_of(&what.ifaces, all)?;
        Ok(what)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Selection {
    fn take_ifaces(&mut self, word: &str) {
        self.ifaces.extend(word.split(',').filter(|name| !name.is_empty()).map(ToOwned::to_owned));
    }
}

impl Args for Selection {
    fn augment_args(command: Command) -> Command {
        Words::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Words::augment_args_for_update(command)
    }
}

impl GetArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { what: Selection { ifaces, keys, all }, group, tc, explain } = self;
        if let Some(key) = ifaces.first().filter(|word| Key::from_str(word).is_ok()) {
            ensure!(
                targets::is_interface(key),
                "{key} is a parameter: specify an interface before it, as in `dcqcn get eth0 {key}`"
            );
        }
        let tc = tc.map(usize::from);
        let report = |(iface, config): (String, Config)| {
            let shown = selected_keys(&keys, group, tc, &config);
            let parameters = shown.into_iter().map(|key| Parameter::new(key, &config)).collect();
            GetReport { iface, parameters, explain }
        };
        let (configs, failed) = targets::configs(ifaces, all)?;
        let interfaces: Vec<GetReport> = configs.into_iter().map(report).collect();
        ensure!(
            interfaces.is_empty() || interfaces.iter().any(|report| !report.parameters.is_empty()),
            "no parameter matches all of --group, --tc and the names; omit one of them"
        );
        if let ([one], true) = (interfaces.as_slice(), failed.is_empty()) {
            return Ok(out.show(one)?);
        }
        let is_partially_done = !interfaces.is_empty();
        targets::show(out, &GetReports { interfaces }, failed, is_partially_done)
    }
}

#[derive(Serialize)]
struct GetReports {
    interfaces: Vec<GetReport>,
}

impl fmt::Display for GetReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each(f, self.interfaces.iter().map(|report| (report.iface.as_str(), report)))
    }
}

#[derive(Serialize)]
struct GetReport {
    iface: String,
    parameters: Vec<Parameter>,
    #[serde(skip)]
    explain: bool,
}

/// The parameters to show: those named, or all that differ from the defaults or matter.
fn selected_keys(keys: &[Key], group: Option<Group>, tc: Option<usize>, config: &Config) -> Vec<Key> {
    let differs_from_default = |key: &Key| match key {
        Key::DscpToTc(_) => key.get(config) != 0,
        Key::Pfc(..) => key.get(config) != key.default(),
        Key::Queue(..) => config.scalars.queues != QUEUES_NONE || key.get(config) != key.default(),
        Key::Scalar(_) | Key::Wred(..) | Key::TcToQueue(_) => true,
    };
    let of_class = |key: &Key| match (key, tc) {
        (_, None) => true,
        (Key::Wred(of, _) | Key::TcToQueue(of), Some(tc)) => *of == tc,
        (Key::DscpToTc(_), Some(tc)) => key.get(config) == tc as u64,
        (Key::Queue(of, _), Some(tc)) => {
            config.tc_to_queue.get(tc).is_some_and(|queue| usize::from(*queue) == *of)
        }
        (Key::Pfc(of, _), Some(tc)) => config.pfc.get(*of).is_some_and(|pfc| {
            config.tc_to_queue.get(tc).is_some_and(|queue| u64::from(*queue) == pfc.queue)
        }),
        (Key::Scalar(_), Some(_)) => false,
    };
    let mut shown: Vec<Key> = if keys.is_empty() {
        Key::all().filter(|key| of_class(key) && (tc.is_some() || differs_from_default(key))).collect()
    } else {
        keys.iter().copied().filter(of_class).collect()
    };
    shown.retain(|key| group.is_none_or(|group| key.group() == group));
    if keys.is_empty() {
        // All classes' Kmin, then all classes' Kmax, so that each explanation appears once.
        shown.sort_by_key(|key| match key {
            Key::Scalar(_) => (0, None),
            Key::Wred(_, spec) => (1, position(WredConfig::SPECS, spec)),
            Key::Queue(_, spec) => (2, position(QueueConfig::SPECS, spec)),
            Key::Pfc(_, spec) => (3, position(PfcConfig::SPECS, spec)),
            Key::DscpToTc(_) => (4, None),
            Key::TcToQueue(_) => (5, None),
        });
    }
    shown
}

fn position<T>(table: &[Spec<T>], spec: &Spec<T>) -> Option<usize> {
    table.iter().position(|other| other.key == spec.key)
}

impl fmt::Display for GetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.explain {
            return Parameter::explain(&self.parameters, f);
        }
        write!(f, "{}", Parameter::table(&self.parameters))
    }
}

/// Change parameters of running traffic, atomically.
///
/// Every packet sees either the old parameters or the new ones. If a value is rejected for any interface, none is
/// changed on any.
#[derive(Debug, Args)]
#[command(override_usage = "dcqcn set <IFACE,...|--all> [KEY=VALUE]... [--profile PROFILE] [--confirm TIME]")]
#[command(after_long_help = "\
A profile replaces the rate machine, the time between CNPs and the marking curves (Kmin, Kmax, Pmax). Link, role, classes,
buffers and pacer of the interface stay. Profiles `lab` and `hpcc` depend on link_rate, which the same command may set.
Changes are recorded in the audit log (`dcqcn log`).

Examples:
  dcqcn set eth0 rpg_ai_rate=20mbit rpg_time_reset=300us
  dcqcn set eth1 wred.3.kmin=100KB wred.3.kmax=400KB wred.3.pmax=20%
  dcqcn set eth0,eth1 dscp_to_tc.24=3 tc_to_queue.3=3
  dcqcn set 'eth*' min_time_between_cnps=50us
  # reverted after a minute, unless `dcqcn confirm` follows
  dcqcn set eth0 --confirm 60s rpg_max_rate=1gbit
  # a profile, and one parameter on top of it
  dcqcn set eth0 --profile nvidia rpg_ai_rate=20mbit")]
pub(super) struct SetArgs {
    #[command(flatten)]
    edits: Edits,
    /// Revert the change after this time (1s to 24h) unless `dcqcn confirm` follows.
    #[arg(long, value_name = "TIME", value_parser = confirm::within)]
    confirm: Option<Duration>,
}

impl SetArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Edits { ifaces, all, profile, changes } = self.edits;
        let change_mode = self.confirm.map_or(ChangeMode::Lasting, ChangeMode::Confirm);
        let _waiter = Waiter::start(change_mode)?;
        let keys: Vec<Key> = changes.iter().map(|change| change.key).collect();
        let changed = targets::change(&targets::names(ifaces, all)?, change_mode, |_, config| {
            let assign = |config: &mut Config| changes.iter().try_for_each(|change| change.apply(config));
            if let Some(profile) = profile {
                // It depends on `link_rate`, which may be among the changes.
                assign(config)?;
                profile.apply_to(config)?;
            }
            Ok(assign(config)?)
        })?;
        let report = match profile {
            Some(_) => ChangeReport::of_differences(&changed),
            None => ChangeReport::of_keys(&changed, &keys),
        };
        Ok(out.show(&Changed::new(report, &changed, change_mode))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(keys: &[&str], group: Option<Group>, tc: Option<usize>, explain: bool) -> GetReport {
        let mut config = Config::DEFAULT;
        config.scalars.rpg_ai_rate_bps = 1_000_000;
        let keys: Vec<Key> = keys.iter().map(|key| key.parse().unwrap()).collect();
        let parameters = selected_keys(&keys, group, tc, &config).into_iter();
        let parameters = parameters.map(|key| Parameter::new(key, &config)).collect();
        GetReport { iface: "eth0".into(), parameters, explain }
    }

    fn keys(report: &GetReport) -> Vec<&str> {
        report.parameters.iter().map(|parameter| parameter.key.as_str()).collect()
    }

    #[test]
    fn get_shows_non_defaults() {
        let selected = report(&["rpg_ai_rate", "cnp_limit"], None, None, false);
        let text = "PARAMETER    VALUE  DEFAULT\nrpg_ai_rate  1mbit   40mbit\ncnp_limit       qp\n";
        assert_eq!(selected.to_string(), text);
        let all = report(&[], None, None, false);
        assert!(keys(&all).contains(&"dscp_to_tc.26") && !keys(&all).contains(&"dscp_to_tc.0"));
        let np = report(&[], Some(Group::Np), None, false);
        assert!(keys(&np).contains(&"cnp_dscp") && !keys(&np).contains(&"rpg_gd"));
    }

    #[test]
    fn explain_shows_unit_range_default() {
        let text = report(&[], Some(Group::Rp), None, true).to_string();
        let ai = "\nrpg_ai_rate = 1mbit\n  Step of additive increase (paper: R_AI, 40 Mbit/s).\n  Allowed: 1kbit to 800gbit. Default: \
                  40mbit. Unit: a rate, as in `40mbit`, `2.5gbit` or `100g`.\n  Larger: Faster growth, deeper queue, less stable.\n";
        assert!(text.contains(ai), "{text}");
        assert!(!text.contains("kmin") && !text.contains("cnp_dscp"));
    }

    #[test]
    fn classes_explained_together_or_singly() {
        let text = report(&[], Some(Group::Wred), None, true).to_string();
        assert!(text.contains("wred.6.kmin = 5KB\nwred.7.kmin = 5KB\n  Queue depth up to which"), "{text}");
        assert!(
            text.contains("dscp_to_tc.26 = 3\ndscp_to_tc.48 = 6\n  Traffic class of this DSCP.\n"),
            "{text}"
        );
        let one = report(&[], Some(Group::Wred), Some(3), true);
        assert_eq!(keys(&one).first(), Some(&"wred.3.kmin"));
        assert_eq!(keys(&one)[keys(&one).len() - 2..], ["dscp_to_tc.26", "tc_to_queue.3"]);
    }

    #[test]
    fn rows_of_each_table_grouped_by_name() {
        let mut config = Config::DEFAULT;
        for change in ["pfc.3.rx=on", "pfc.3.xoff=60KB", "pfc.4.rx=on", "pfc.4.xoff=70KB"] {
            change.parse::<dcqcn_params::Assignment>().unwrap().apply(&mut config).unwrap();
        }
        let shown = selected_keys(&[], None, None, &config).into_iter();
        let pfc: Vec<Key> = shown.filter(|key| matches!(key, Key::Pfc(..))).collect();
        let expected = ["pfc.3.rx", "pfc.4.rx", "pfc.3.xoff", "pfc.4.xoff"];
        assert_eq!(pfc, expected.map(|key| key.parse().unwrap()));
    }

    #[test]
    fn arguments_are_interfaces_or_parameters() {
        let read = |line: &str| {
            let command = Selection::augment_args(Command::new("get"));
            let matches = command.try_get_matches_from(line.split(' '))?;
            Selection::from_arg_matches(&matches)
        };
        let what = read("get eth0,eth1 br-lan rpg_gd wred.3.kmin").unwrap();
        assert_eq!(
            (what.ifaces, what.keys.len()),
            (["eth0", "eth1", "br-lan"].map(String::from).to_vec(), 2)
        );
        assert_eq!(read("get pacer").unwrap().ifaces, ["pacer"]);
        assert_eq!(read("get --all pacer").unwrap().keys.len(), 1);
        for (line, expected) in [
            ("get eth0 rpg_ai_rat", "did you mean `rpg_ai_rate`?"),
            ("get eth0 wred.9.kmin", "wred is numbered 0 to 7"),
            ("get --all eth0", "unknown parameter `eth0`"),
            ("get", "<IFACE|--all>"),
        ] {
            let refused = read(line).unwrap_err();
            assert!(refused.to_string().contains(expected) && refused.exit_code() == 2, "{refused}");
        }
    }
}
