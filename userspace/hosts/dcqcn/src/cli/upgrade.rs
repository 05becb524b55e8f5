//! `prepare` installs fq before attaching; `upgrade` replaces programs attached by another version; `gc` removes unused
//! state.

use std::fmt;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::{ArgGroup, Args};
use clap_complete::ArgValueCompleter;
use dcqcn_loader::attach::{self, Freed, Part};
use dcqcn_support::cli::Output;
use serde::Serialize;

use super::targets::{self, resolve_altname};

/// Replace attached programs by those of this dcqcn, without losing a packet or a rate.
///
/// Maps are retained, and with them parameters, rates, pairs and counters. Refused if the other version has a different
/// map layout: then nothing is changed, and the dcqcn that attached them remains responsible. `dcqcn run` does this
/// when it starts.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true))]
#[command(after_long_help = "\
Examples:
  dcqcn upgrade eth0
  # after a new version was installed
  dcqcn upgrade --all
  # check without replacing anything
  dcqcn upgrade --all --dry-run")]
pub(super) struct UpgradeArgs {
    /// Attached interface.
    #[arg(group = "target", add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: Option<String>,
    /// Every interface of this network namespace.
    #[arg(long, group = "target")]
    all: bool,
    /// Show the programs that would be replaced, and fail if none can be.
    #[arg(long)]
    dry_run: bool,
}

impl UpgradeArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let ifaces = match self.iface {
            Some(iface) => vec![resolve_altname(iface)],
            None => attach::list()?.into_iter().map(|info| info.iface).collect(),
        };
        let mut report = UpgradeReport { dry_run: self.dry_run, upgraded: Vec::new() };
        let mut failed = Vec::new();
        for iface in ifaces {
            let replaced = if self.dry_run { would_replace(&iface) } else { attach::upgrade(&iface) };
            match replaced.and_then(|replaced| Ok((replaced, problems(&iface)?))) {
                Ok((replaced, problems)) => {
                    if !problems.is_empty() {
                        let problems = problems.join("; ");
                        let next = "`dcqcn attach` with the same options starts again";
                        let error = anyhow!("{iface} lacks some of its programs: {problems}; {next}");
                        failed.push(error);
                    }
                    report.upgraded.push(Upgraded { iface, replaced, problems });
                }
                Err(error) => {
                    failed.push(anyhow::Error::from(error).context(format!("cannot upgrade {iface}")));
                }
            }
        }
        let is_done = |upgraded: &Upgraded| upgraded.problems.is_empty() || !upgraded.replaced.is_empty();
        let is_partially_done = report.upgraded.iter().any(is_done);
        targets::show(out, &report, failed, is_partially_done)
    }
}

/// Programs that are missing.
fn problems(iface: &str) -> Result<Vec<String>, attach::Error> {
    let info = attach::open(iface)?.info;
    let parts = attach::verify(&info)?;
    Ok(parts.iter().filter(|part| info.programs.contains(&part.name)).filter_map(Part::complaint).collect())
}

fn would_replace(iface: &str) -> Result<Vec<String>, attach::Error> {
    if !attach::is_upgradable(iface)? {
        return Ok(Vec::new());
    }
    Ok(attach::open(iface)?.info.programs)
}

#[derive(Serialize)]
struct UpgradeReport {
    /// Nothing was replaced yet.
    dry_run: bool,
    upgraded: Vec<Upgraded>,
}

#[derive(Serialize)]
struct Upgraded {
    iface: String,
    /// Replaced programs; empty if they were this dcqcn's already.
    replaced: Vec<String>,
    /// Programs that are missing.
    problems: Vec<String>,
}

impl fmt::Display for UpgradeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.upgraded.is_empty() {
            writeln!(f, "no interface is attached in this network namespace")?;
        }
        for Upgraded { iface, replaced, problems } in &self.upgraded {
            match replaced.join(", ") {
                none if none.is_empty() && !problems.is_empty() => {}
                none if none.is_empty() => writeln!(f, "{iface} has the programs of this dcqcn already")?,
                programs if self.dry_run => writeln!(f, "{iface}: {programs} would be replaced in place")?,
                programs => writeln!(f, "{iface}: {programs} replaced in place")?,
            }
        }
        Ok(())
    }
}

/// Install fq on an interface before RDMA traffic starts, so that attaching never interrupts QPs.
///
/// From Linux 6.12 on, replacing a qdisc kills soft-RoCE QPs. `attach` and `detach` leave an existing fq in place.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn prepare eth0
  # also at every boot, if systemd-networkd manages eth0
  dcqcn prepare eth0 --networkd")]
pub(super) struct PrepareArgs {
    /// Interface.
    #[arg(add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    iface: String,
    /// Write a drop-in for systemd-networkd, which installs fq at boot.
    #[arg(long)]
    networkd: bool,
    /// Replace the qdisc even if that kills active soft-RoCE QPs (Linux 6.12 and later).
    #[arg(long)]
    interrupt: bool,
}

impl PrepareArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { iface, networkd, interrupt } = self;
        let iface = resolve_altname(iface);
        let drop_in = if networkd { Some(attach::write_networkd(&iface)?) } else { None };
        let done = attach::prepare(&iface, interrupt)?;
        Ok(out.show(&PrepareReport { iface, done, drop_in })?)
    }
}

#[derive(Serialize)]
struct PrepareReport {
    iface: String,
    done: String,
    /// The drop-in written for systemd-networkd; `null` if not requested.
    drop_in: Option<PathBuf>,
}

impl fmt::Display for PrepareReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iface, done, drop_in } = self;
        writeln!(f, "{iface}: {done}")?;
        drop_in.iter().try_for_each(|path| writeln!(f, "  at boot: {}", path.display()))
    }
}

/// Remove state of deleted network namespaces and interfaces, and undo interrupted attachments.
///
/// `dcqcn attach` and `dcqcn run` do this when they start.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn gc")]
pub(super) struct GcArgs {}

impl GcArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        // Changes not confirmed in time were reverted before, as by every command.
        Ok(out.show(&GcReport { freed: attach::gc(|_| true)? })?)
    }
}

#[derive(Serialize)]
struct GcReport {
    freed: Vec<Freed>,
}

impl fmt::Display for GcReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.freed.is_empty() {
            writeln!(f, "nothing to free")?;
        }
        for Freed { iface, netns_cookie, why, done, problem } in &self.freed {
            writeln!(f, "{iface} (network namespace {netns_cookie}): {why}")?;
            done.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
            problem.iter().try_for_each(|problem| writeln!(f, "  {problem}"))?;
        }
        Ok(())
    }
}
