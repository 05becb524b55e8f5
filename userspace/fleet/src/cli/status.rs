//! `status`: the rollout and the hosts.

use anyhow::Result;
use clap::Args;
use dcqcn_support::cli::Output;

use crate::status::Status;
use crate::store::Store;

/// Show the rollout under way or the last one, and every host: what it is to have, what it has, and how it does.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet status
  dcqcn-fleet status --json | jq '.hosts[] | select(.is_there | not) | .host'")]
pub(super) struct StatusArgs {}

impl StatusArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        out.show(&Status::new(store.snapshot().await?))
    }
}
