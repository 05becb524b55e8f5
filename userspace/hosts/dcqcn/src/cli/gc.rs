//! `gc`: removes unused state.

use std::fmt;

use clap::Args;
use dcqcn_loader::attach::{self, Freed};
use dcqcn_support::cli::Output;
use serde::Serialize;

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
        out.show(&GcReport { freed: attach::gc()? })
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
