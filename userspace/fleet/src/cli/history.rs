//! `history`: the versions.

use std::fmt;

use anyhow::Result;
use clap::Args;
use dcqcn_cli::Output;
use dcqcn_support::render::{Table, printable};
use serde::Serialize;

use crate::record::Version;
use crate::store::Store;

/// List the versions: who made them, when and why, and how their rollouts ended.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet history
  dcqcn-fleet history --json")]
pub(super) struct HistoryArgs {}

#[derive(Serialize)]
struct History {
    versions: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    version: u64,
    at: String,
    by: String,
    why: String,
    rollback_of: Option<u64>,
    /// `null` while its rollout is under way.
    is_done: Option<bool>,
    outcome: String,
}

impl HistoryArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        let (versions, mut outcomes) = (store.versions().await?, store.outcomes().await?);
        let row = |Version { version, by, at, why, rollback_of, .. }| {
            let outcome = outcomes.remove(&version);
            let is_done = outcome.as_ref().map(|outcome| outcome.is_done);
            let outcome = outcome.map_or_else(|| "under way".into(), |outcome| outcome.reason);
            Row { version, at, by, why, rollback_of, is_done, outcome }
        };
        out.show(&History { versions: versions.into_iter().map(row).collect() })
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.versions.is_empty() {
            return writeln!(f, "there is no version yet: `dcqcn-fleet apply FILE` makes one");
        }
        let mut table = Table::new(&[">VERSION", "WHEN", "WHO", "WHY", "ENDED", "HOW"]);
        for Row { version, at, by, why, rollback_of, is_done, outcome } in &self.versions {
            let why = match rollback_of {
                Some(of) if why.is_empty() => format!("version {of} again"),
                Some(of) => format!("version {of} again: {why}"),
                None => why.clone(),
            };
            let ended = match is_done {
                Some(true) => "done",
                Some(false) => "taken back",
                None => "-",
            };
            let [by, why, outcome] = [by, &why, outcome].map(|text| printable(text));
            table.row([version.to_string(), at.clone(), by, why, ended.into(), outcome]);
        }
        write!(f, "{table}")
    }
}
