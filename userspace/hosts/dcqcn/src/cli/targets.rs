//! Interfaces and assignments on the command line of commands that change parameters.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use clap_complete::ArgValueCompleter;
use dcqcn_common::params::Config;
use dcqcn_loader::attach::{self, Change, ChangeError, Info};
use dcqcn_netlink::{Link, Netlink};
use dcqcn_params::{Assignment, Profile, SetError};
use dcqcn_support::causes::one_line;
use dcqcn_support::cli::Output;
use dcqcn_telemetry::audit::{self, ChangeMode};
use glob::Pattern;
use serde::Serialize;

/// The names, and the attached interfaces that match a pattern, without duplicates; or all attached interfaces.
pub(super) fn names(words: Vec<String>, all: bool) -> anyhow::Result<Vec<String>> {
    let attached = || Ok(attach::list_alive()?.into_iter().map(|info| info.iface).collect());
    if !all {
        return select(words, attached);
    }
    let names: Vec<String> = attached()?;
    ensure!(
        !names.is_empty(),
        "no interface is attached in this network namespace; run `dcqcn attach IFACE`"
    );
    Ok(names)
}

/// The interfaces to detach: like [`names`], with incomplete attachments.
pub(super) fn detachable(words: Vec<String>) -> anyhow::Result<Vec<String>> {
    select(words, || Ok(attach::labels()?))
}

fn select(
    words: Vec<String>,
    attached: impl FnOnce() -> anyhow::Result<Vec<String>>,
) -> anyhow::Result<Vec<String>> {
    let attached = if words.iter().any(|word| is_pattern(word)) { attached()? } else { Vec::new() };
    let mut chosen: Vec<String> = Vec::new();
    for word in words {
        let names = if is_pattern(&word) {
            let pattern = pattern(&word)?;
            attached.iter().filter(|iface| pattern.matches(iface)).cloned().collect()
        } else {
            vec![resolve_altname(word.clone())]
        };
        ensure!(
            !names.is_empty(),
            "the pattern {word} matches no attached interface; `dcqcn status` lists them"
        );
        chosen.extend(names.into_iter().filter(|name| !chosen.contains(name)).collect::<Vec<_>>());
    }
    Ok(chosen)
}

/// Resolves an altname (`ip link property add dev IFACE altname NAME`) to the interface's name; an unknown name is
/// returned unchanged, and rejected later.
pub(super) fn resolve_altname(iface: String) -> String {
    let link = Netlink::connect().and_then(|netlink| netlink.link(&iface));
    link.map_or(iface, |link| link.name)
}

/// Whether an interface of this network namespace has this name or altname.
pub(super) fn is_interface(word: &str) -> bool {
    Netlink::connect().is_ok_and(|netlink| netlink.link(word).is_ok())
}

pub(super) fn is_pattern(word: &str) -> bool {
    word.contains(['*', '?', '['])
}

fn pattern(word: &str) -> anyhow::Result<Pattern> {
    Pattern::new(word)
        .with_context(|| format!("cannot read the pattern {word}; write, for example, 'eth*' or 'eth[0-3]'"))
}

/// The interfaces to attach: those named, and all unattached ones whose name or an altname matches a pattern
/// or that, with `all_rdma`, have an RDMA device.
pub(super) fn attachable(words: &[String], all_rdma: bool) -> anyhow::Result<Vec<String>> {
    let netlink = Netlink::connect()?;
    let devices = if all_rdma { netlink.rdma_devices()? } else { Vec::new() };
    let attached: Vec<u32> = attach::list()?.into_iter().map(|info| info.ifindex).collect();
    let links: Vec<_> = netlink.links()?.into_iter().filter(Link::is_ethernet).collect();
    if let Some(word) = words.iter().find(|word| word.contains('=') && netlink.link(word).is_err()) {
        bail!("cannot attach {word}: it is not an interface; use `--set {word}`");
    }
    let patterns = words.iter().filter(|word| is_pattern(word)).map(|word| pattern(word));
    let patterns = patterns.collect::<anyhow::Result<Vec<_>>>()?;
    let matches = |pattern: &Pattern, link: &Link| {
        pattern.matches(&link.name) || link.altnames.iter().any(|name| pattern.matches(name))
    };
    for pattern in &patterns {
        ensure!(
            links.iter().any(|link| matches(pattern, link)),
            "cannot attach {pattern}: it matches no Ethernet interface; `ip link` lists those that exist"
        );
    }
    let mut chosen: Vec<String> = Vec::new();
    for name in words.iter().filter(|word| !is_pattern(word)).cloned().map(resolve_altname) {
        if !chosen.contains(&name) {
            chosen.push(name);
        }
    }
    for link in links.into_iter().filter(|link| !attached.contains(&link.index)) {
        let is_selected = patterns.iter().any(|pattern| matches(pattern, &link))
            || devices.iter().any(|device| device.is_on(link.index));
        if is_selected && !chosen.contains(&link.name) {
            chosen.push(link.name);
        }
    }
    ensure!(
        !chosen.is_empty(),
        "cannot attach: no unattached interface {}; `dcqcn status` lists attached ones",
        if all_rdma { "has an RDMA device" } else { "matches" }
    );
    Ok(chosen)
}

/// Parameters of interfaces, by name.
type Configs = Vec<(String, Config)>;

/// Names and parameters of interfaces, and the errors of those that cannot be read.
pub(super) fn configs(ifaces: Vec<String>, all: bool) -> anyhow::Result<(Configs, Vec<anyhow::Error>)> {
    let (mut read, mut failed) = (Vec::new(), Vec::new());
    for iface in names(ifaces, all)? {
        match attach::open(&iface).and_then(|attachment| Ok(attachment.maps.params()?.config)) {
            Ok(config) => read.push((iface, config)),
            Err(error) => failed.push(error.into()),
        }
    }
    Ok((read, failed))
}

/// Interfaces, then assignments: `eth0,eth1 rpg_ai_rate=20mbit`; or a profile instead of them or before them.
#[derive(Debug)]
pub(super) struct Edits {
    pub(super) ifaces: Vec<String>,
    pub(super) all: bool,
    /// Profile to start from instead of the active parameters.
    pub(super) profile: Option<Profile>,
    pub(super) changes: Vec<Assignment>,
}

#[derive(Debug, Args)]
struct EditArgs {
    /// Interfaces or patterns (eth*), separated by commas or spaces, then assignments.
    #[arg(value_name = "IFACE|KEY=VALUE", add = ArgValueCompleter::new(dcqcn_support::cli::iface_or_key_value))]
    words: Vec<Word>,
    /// Every interface attached in this network namespace.
    #[arg(long)]
    all: bool,
    /// Apply the parameters of this profile first.
    #[arg(long, value_enum)]
    profile: Option<Profile>,
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
        let EditArgs { words, all, profile } = EditArgs::from_arg_matches(matches)?;
        let mut edits = Self { ifaces: Vec::new(), all, profile, changes: Vec::new() };
        for word in words {
            match word {
                Word::Ifaces(names) => edits.ifaces.extend(names),
                Word::Change(change) => {
                    if edits.changes.iter().any(|other| other.key == change.key) {
                        let text = format!("{} is specified twice", change.key);
                        return Err(clap::Error::raw(ErrorKind::ArgumentConflict, text));
                    }
                    edits.changes.push(change);
                }
            }
        }
        one_of(&edits.ifaces, all)?;
        if edits.changes.is_empty() && profile.is_none() {
            return Err(missing("<KEY=VALUE|--profile PROFILE>"));
        }
        Ok(edits)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Edits {
    fn augment_args(command: Command) -> Command {
        EditArgs::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        EditArgs::augment_args_for_update(command)
    }
}

/// Checks that interfaces are specified in exactly one way.
pub(super) fn one_of(ifaces: &[String], all: bool) -> Result<(), clap::Error> {
    match (ifaces.is_empty(), all) {
        (true, false) => Err(missing("<IFACE|--all>")),
        (false, true) => {
            let text = "specify either interfaces or --all";
            Err(clap::Error::raw(ErrorKind::ArgumentConflict, text))
        }
        _ => Ok(()),
    }
}

/// clap's error for a missing argument.
pub(super) fn missing(what: &str) -> clap::Error {
    let text = format!("the following required arguments were not provided:\n  {what}");
    clap::Error::raw(ErrorKind::MissingRequiredArgument, text)
}

/// Changes the parameters of all interfaces or of none, and records it in the audit log.
pub(super) fn change(
    ifaces: &[String],
    change_mode: ChangeMode,
    edit: impl FnMut(&Info, &mut Config) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Change>> {
    audit::change(ifaces, change_mode, edit).map_err(
        |ChangeError { iface, error }: ChangeError<anyhow::Error>| {
            let is_not_attached = matches!(error.downcast_ref(), Some(attach::Error::NotAttached { .. }));
            if is_not_attached && ifaces.len() == 1 {
                return error;
            }
            error.context(format!("nothing was changed: rejected for {iface}"))
        },
    )
}

/// Errors of several interfaces, or of one while others succeeded.
#[derive(Debug, thiserror::Error)]
#[error("{}", errors.iter().map(|error| one_line(error.as_ref())).collect::<Vec<_>>().join("\n"))]
pub(super) struct SeveralFailed {
    pub(super) errors: Vec<anyhow::Error>,
    /// Whether other interfaces succeeded.
    pub(super) is_partially_done: bool,
}

/// Shows the report of a command on several interfaces unless all failed, and returns the errors.
pub(super) fn show<T: Serialize + fmt::Display>(
    out: &mut Output<'_>,
    report: &T,
    errors: Vec<anyhow::Error>,
    is_partially_done: bool,
) -> anyhow::Result<()> {
    if errors.is_empty() || is_partially_done {
        out.show(report)?;
    }
    result(errors, is_partially_done)
}

/// The result of a command on several interfaces, with one error per line.
pub(super) fn result(mut errors: Vec<anyhow::Error>, is_partially_done: bool) -> anyhow::Result<()> {
    match errors.pop() {
        None => Ok(()),
        Some(error) if errors.is_empty() && !is_partially_done => Err(error),
        Some(error) => {
            errors.push(error);
            Err(SeveralFailed { errors, is_partially_done }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn patterns_select_attached_interfaces_once() {
        let select = |words: &str| {
            let words = words.split(' ').map(str::to_owned).collect();
            select(words, || Ok(["eth0", "eth1", "ib0"].map(str::to_owned).to_vec()))
        };
        assert_eq!(select("b a b").unwrap(), ["b", "a"]);
        assert_eq!(select("eth1 eth* x").unwrap(), ["eth1", "eth0", "x"]);
        let refused = select("eth0 wl*").unwrap_err().to_string();
        assert!(refused.starts_with("the pattern wl* matches no attached interface"), "{refused}");
        let refused = select("eth[0 eth1").unwrap_err().to_string();
        assert!(refused.starts_with("cannot read the pattern eth[0; write"), "{refused}");
    }

    #[test]
    fn several_errors_are_all_reported() {
        assert!(result(Vec::new(), true).is_ok());
        let one = result(vec![anyhow!("eth0: no")], false).unwrap_err();
        assert!(!one.is::<SeveralFailed>());
        let both = result(vec![anyhow!("eth0: no"), anyhow!("eth1: no")], false).unwrap_err();
        assert_eq!(both.to_string(), "eth0: no\neth1: no");
        let repeated = anyhow!("no such file").context("cannot read x: no such file");
        let once = result(vec![repeated], true).unwrap_err();
        assert_eq!(once.to_string(), "cannot read x: no such file");
    }
}
