//! `status`: shows the rollout and the hosts.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dcqcn_support::cli::Output;

use crate::status::Status;
use crate::store::{Mirror, Store};

/// Show the current or last rollout, and all hosts with their ordered version, active version and health.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet status
  dcqcn-fleet status --watch
  dcqcn-fleet status --json | jq '.hosts[] | select(.is_there | not) | .host'")]
pub(super) struct StatusArgs {
    /// Print changes every two seconds until the current rollout has ended.
    #[arg(long)]
    watch: bool,
}

/// Time between two updates.
const TICK: Duration = Duration::from_secs(2);

impl StatusArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        if !self.watch {
            return out.show(&Status::new(&store.snapshot().await?));
        }
        let mut mirror = Mirror::new(store);
        let mut shown = String::new();
        loop {
            let status = Status::new(&*mirror.next(TICK).await?);
            let text = serde_json::to_string(&status)?;
            if text != shown {
                out.line(&status)?;
                out.finish()?;
                shown = text;
            }
            if status.rollout.as_ref().is_none_or(|rollout| rollout.is_over) {
                return Ok(());
            }
        }
    }
}
