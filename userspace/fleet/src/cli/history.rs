//! `history`: lists the versions.

use anyhow::Result;
use clap::Args;
use dcqcn_support::cli::Output;

use crate::history::History;
use crate::store::Store;

/// List all versions with author, time, reason and outcome.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet history
  dcqcn-fleet history --json")]
pub(super) struct HistoryArgs {}

impl HistoryArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        out.show(&History::read(&mut store).await?)
    }
}
