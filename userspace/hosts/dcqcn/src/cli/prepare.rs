//! `prepare` installs fq before attaching; `gc` removes unused state.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_loader::attach::{self, Freed};
use dcqcn_support::cli::Output;
use serde::Serialize;

use super::targets::resolve_altname;

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
        out.show(&PrepareReport { iface, done, drop_in })
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
        out.show(&GcReport { freed: attach::gc(|_| true)? })
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
