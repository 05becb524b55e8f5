//! `diff`: differences between two versions.

use std::fmt;

use anyhow::Result;
use clap::Args;
use dcqcn_support::cli::Output;
use dcqcn_support::render::Table;
use serde::Serialize;

use crate::file::differences;
use crate::store::Store;

/// Show the settings that differ between two versions.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dcqcn-fleet diff 6 7
  dcqcn-fleet diff 0 7")]
pub(super) struct DiffArgs {
    /// Old version; 0 means no fleet.
    old: u64,
    /// New version.
    new: u64,
}

#[derive(Serialize)]
struct Report {
    old: u64,
    new: u64,
    changes: Vec<Change>,
}

#[derive(Serialize)]
struct Change {
    setting: String,
    old: String,
    new: String,
}

impl DiffArgs {
    pub(super) async fn run(self, mut store: Store, out: &mut Output<'_>) -> Result<()> {
        let (old, new) = (store.version(self.old).await?, store.version(self.new).await?);
        let changes = differences(&old.groups, &new.groups).into_iter();
        let changes = changes.map(|(setting, old, new)| Change { setting, old, new }).collect();
        out.show(&Report { old: self.old, new: self.new, changes })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.changes.is_empty() {
            return writeln!(f, "versions {} and {} have the same settings", self.old, self.new);
        }
        let (old, new) = (format!(">{}", self.old), format!(">{}", self.new));
        let mut table = Table::new(&["SETTING", &old, &new]);
        for Change { setting, old, new } in &self.changes {
            table.row([setting.clone(), old.clone(), new.clone()]);
        }
        write!(f, "{table}")
    }
}
