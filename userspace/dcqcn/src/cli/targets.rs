//! Which interfaces a command is about, what it sets, and what it says afterwards; shared by all that change parameters.

use std::fmt;
use std::str::FromStr;

use anyhow::bail;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use dcqcn_common::params::{Config, Quantity};
use dcqcn_control::audit;
use dcqcn_params::{Assignment, Key, SetError, differing};
use dcqcn_plane::attach::{self, Change, Info, Refused};
use dcqcn_support::render::Table;
use serde::Serialize;

use super::p4::Target;

/// The interfaces to work on.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct Ifaces {
    /// The interfaces, separated by commas or spaces.
    #[arg(value_name = "IFACE", value_delimiter = ',')]
    ifaces: Vec<String>,
    /// Every interface attached in this network namespace.
    #[arg(long)]
    all: bool,
}

impl Ifaces {
    pub(super) fn names(self) -> anyhow::Result<Vec<String>> {
        names(self.ifaces, self.all)
    }
}

/// The names without repetition, or those of all that is attached.
pub(super) fn names(ifaces: Vec<String>, all: bool) -> anyhow::Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    if all {
        names.extend(attach::list_alive()?.into_iter().map(|info| info.iface));
        if names.is_empty() {
            bail!("nothing is attached in this network namespace; `dcqcn attach IFACE` attaches");
        }
        return Ok(names);
    }
    for iface in ifaces {
        if !names.contains(&iface) {
            names.push(iface);
        }
    }
    Ok(names)
}

/// The names and parameters of what a command is about: interfaces, or a switch.
pub(super) fn configs(
    ifaces: Vec<String>,
    all: bool,
    target: Option<Target>,
) -> anyhow::Result<Vec<(String, Config)>> {
    if let Some(target) = target {
        return Ok(vec![target.config()?]);
    }
    let of = |iface: String| {
        let config = attach::open(&iface)?.maps.params()?.config;
        Ok((iface, config))
    };
    names(ifaces, all)?.into_iter().map(of).collect()
}

/// Interfaces, then assignments: `eth0,eth1 rpg_ai_rate=20mbit`.
#[derive(Debug)]
pub(super) struct Edits {
    /// The interfaces named.
    pub(super) ifaces: Vec<String>,
    /// All interfaces.
    pub(super) all: bool,
    /// A switch instead of interfaces.
    pub(super) target: Option<Target>,
    /// What to set.
    pub(super) changes: Vec<Assignment>,
}

impl Edits {
    /// The interfaces.
    pub(super) fn names(&self) -> anyhow::Result<Vec<String>> {
        names(self.ifaces.clone(), self.all)
    }

    /// Names and present parameters.
    pub(super) fn configs(&self) -> anyhow::Result<Vec<(String, Config)>> {
        configs(self.ifaces.clone(), self.all, self.target)
    }
}

#[derive(Debug, Args)]
struct EditWords {
    /// The interfaces, separated by commas or spaces, and what to set.
    #[arg(value_name = "IFACE|KEY=VALUE")]
    words: Vec<Word>,
    /// Every interface attached in this network namespace.
    #[arg(long)]
    all: bool,
    /// A switch instead of interfaces: `bmv2:PORT`, the port of its Thrift server.
    #[arg(long, value_name = "TARGET")]
    target: Option<Target>,
}

#[derive(Clone, Debug)]
enum Word {
    Ifaces(Vec<String>),
    Change(Assignment),
}

impl FromStr for Word {
    type Err = SetError;

    fn from_str(text: &str) -> Result<Self, SetError> {
        if text.contains('=') {
            return Ok(Self::Change(text.parse()?));
        }
        Ok(Self::Ifaces(text.split(',').filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect()))
    }
}

impl FromArgMatches for Edits {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let EditWords { words, all, target } = EditWords::from_arg_matches(matches)?;
        let mut edits = Self { ifaces: Vec::new(), all, target, changes: Vec::new() };
        for word in words {
            match word {
                Word::Ifaces(names) => edits.ifaces.extend(names),
                Word::Change(change) => edits.changes.push(change),
            }
        }
        one_of(&edits.ifaces, all, target)?;
        Ok(edits)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Edits {
    fn augment_args(command: Command) -> Command {
        EditWords::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        EditWords::augment_args_for_update(command)
    }
}

/// Checks that interfaces are named in just one of the ways there are.
pub(super) fn one_of(ifaces: &[String], all: bool, target: Option<Target>) -> Result<(), clap::Error> {
    match [!ifaces.is_empty(), all, target.is_some()].into_iter().filter(|said| *said).count() {
        0 => Err(missing("<IFACE|--all>")),
        1 => Ok(()),
        _ => {
            let text = "name interfaces, or give --all, or --target: one of them";
            Err(clap::Error::raw(ErrorKind::ArgumentConflict, text))
        }
    }
}

/// What clap says of an argument that is missing.
pub(super) fn missing(what: &str) -> clap::Error {
    let text = format!("the following required arguments were not provided:\n  {what}");
    clap::Error::raw(ErrorKind::MissingRequiredArgument, text)
}

/// Interfaces with at least one assignment.
#[derive(Debug)]
pub(super) struct RequiredEdits(pub(super) Edits);

impl FromArgMatches for RequiredEdits {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let edits = Edits::from_arg_matches(matches)?;
        if edits.changes.is_empty() { Err(missing("<KEY=VALUE>")) } else { Ok(Self(edits)) }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for RequiredEdits {
    fn augment_args(command: Command) -> Command {
        EditWords::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        EditWords::augment_args_for_update(command)
    }
}

/// Changes parameters of all the interfaces or of none, and enters it in the audit log.
pub(super) fn change(
    ifaces: &[String],
    dry_run: bool,
    edit: impl FnMut(&Info, &mut Config) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Change>> {
    audit::change(ifaces, dry_run, edit).map_err(|Refused { iface, error }: Refused<anyhow::Error>| {
        let not_there = matches!(error.downcast_ref(), Some(attach::Error::NotAttached { .. }));
        if not_there && ifaces.len() == 1 {
            return error;
        }
        error.context(format!("nothing was changed: refused for {iface}"))
    })
}

/// What a command changed.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum ChangeReport {
    /// On the one interface it was about.
    One(IfaceChanges),
    /// On several.
    Several {
        /// Each of them.
        interfaces: Vec<IfaceChanges>,
    },
}

#[derive(Serialize)]
pub(super) struct IfaceChanges {
    iface: String,
    changes: Vec<KeyChange>,
}

#[derive(Serialize)]
struct KeyChange {
    key: String,
    /// In the base unit, as the new value.
    old: u64,
    new: u64,
    unit: &'static str,
    old_text: String,
    new_text: String,
}

impl ChangeReport {
    /// The keys named, changed or not.
    pub(super) fn of_keys(changes: &[Change], keys: &[Key]) -> Self {
        Self::new(changes.iter().map(|change| IfaceChanges::new(change, keys.iter().copied())).collect())
    }

    /// Every parameter that changed.
    pub(super) fn of_differences(changes: &[Change]) -> Self {
        let of_iface = |change: &Change| IfaceChanges::new(change, differing(&change.old, &change.new));
        Self::new(changes.iter().map(of_iface).collect())
    }

    fn new(mut interfaces: Vec<IfaceChanges>) -> Self {
        if interfaces.len() == 1
            && let Some(one) = interfaces.pop()
        {
            return Self::One(one);
        }
        Self::Several { interfaces }
    }
}

impl IfaceChanges {
    fn new(Change { iface, old, new }: &Change, keys: impl Iterator<Item = Key>) -> Self {
        let change = |key: Key| KeyChange {
            key: key.to_string(),
            old: key.get(old),
            new: key.get(new),
            unit: key.unit_name(),
            old_text: key.text(old),
            new_text: key.text(new),
        };
        Self { iface: iface.clone(), changes: keys.map(change).collect() }
    }
}

impl fmt::Display for IfaceChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.changes.is_empty() {
            writeln!(f, "no parameter changes")?;
        }
        for KeyChange { key, old_text, new_text, .. } in &self.changes {
            writeln!(f, "{key}: {old_text} -> {new_text}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ChangeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(one) => write!(f, "{one}"),
            Self::Several { interfaces } => each(f, interfaces.iter().map(|one| (one.iface.as_str(), one))),
        }
    }
}

/// A parameter and its value.
#[derive(Serialize)]
pub(super) struct Parameter {
    pub(super) key: String,
    /// In the base unit.
    value: u64,
    unit: &'static str,
    /// As people write it.
    text: String,
    default: u64,
    default_text: String,
}

impl Parameter {
    pub(super) fn new(key: Key, config: &Config) -> Self {
        Self {
            key: key.to_string(),
            value: key.get(config),
            unit: key.unit_name(),
            text: key.text(config),
            default: key.default(),
            default_text: key.text(&Config::DEFAULT),
        }
    }

    /// One row for each; the default stands where it is another.
    pub(super) fn table(parameters: &[Self]) -> Table {
        let mut table = Table::new(&["PARAMETER", ">VALUE", ">DEFAULT"]);
        for Self { key, value, text, default, default_text, .. } in parameters {
            let default = if value == default { String::new() } else { default_text.clone() };
            table.row([key.clone(), text.clone(), default]);
        }
        table
    }
}

/// A setting that was read, for JSON.
#[derive(Serialize)]
pub(super) struct Source {
    /// Where it was read.
    from: String,
    key: String,
    value: String,
}

impl Source {
    pub(super) fn new(from: String, Assignment { key, value }: Assignment) -> Self {
        Self { from, key: key.to_string(), value: Quantity(value, key.unit()).to_string() }
    }
}

/// One report below the other, each under the name of its interface.
pub(super) fn each<'a, T: fmt::Display + 'a>(
    f: &mut fmt::Formatter<'_>,
    reports: impl Iterator<Item = (&'a str, &'a T)>,
) -> fmt::Result {
    for (i, (iface, report)) in reports.enumerate() {
        let newline = if i == 0 { "" } else { "\n" };
        write!(f, "{newline}{iface}:\n{report}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(iface: &str, changes: &[&str]) -> (Change, Vec<Key>) {
        let changes: Vec<Assignment> = changes.iter().map(|text| text.parse().unwrap()).collect();
        let mut new = Config::DEFAULT;
        changes.iter().for_each(|change| change.apply(&mut new).unwrap());
        let keys = changes.iter().map(|change| change.key).collect();
        (Change { iface: iface.into(), old: Config::DEFAULT, new }, keys)
    }

    #[test]
    fn a_change_of_one_interface_is_told_without_its_name() {
        let (change, keys) = change("eth0", &["wred.3.kmin=100KB", "np_enable=off", "rpg_gd=11"]);
        let report = ChangeReport::of_keys(std::slice::from_ref(&change), &keys);
        let text = "wred.3.kmin: 5KB -> 100KB\nnp_enable: true -> false\nrpg_gd: 11 -> 11\n";
        assert_eq!(report.to_string(), text);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["changes"][0]["new"], 100_000);
        assert_eq!(json["changes"][0]["unit"], "bytes");
        let text = "np_enable: true -> false\nwred.3.kmin: 5KB -> 100KB\n";
        assert_eq!(ChangeReport::of_differences(&[change]).to_string(), text);
    }

    #[test]
    fn several_interfaces_are_told_apart() {
        let changes = [change("eth0", &["rpg_gd=12"]).0, change("eth1", &[]).0];
        let report = ChangeReport::of_differences(&changes);
        assert_eq!(report.to_string(), "eth0:\nrpg_gd: 11 -> 12\n\neth1:\nno parameter changes\n");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["interfaces"][1]["iface"], "eth1");
    }

    #[test]
    fn interfaces_are_named_once() {
        let named = ["b", "a", "b"].map(String::from).to_vec();
        assert_eq!(names(named, false).unwrap(), ["b", "a"]);
    }
}
