//! Output of `dcqcn-fleet history`: all versions with their outcomes.

use dcqcn_support::render::Table;

use crate::prelude::*;
use crate::record::Version;
use crate::store::Store;

/// All versions, oldest first.
#[derive(Serialize)]
pub(crate) struct History {
    pub(crate) versions: Vec<Row>,
}

#[derive(Serialize)]
pub(crate) struct Row {
    version: u64,
    at: String,
    by: String,
    why: String,
    rollback_of: Option<u64>,
    /// `null` while the rollout is in progress.
    is_done: Option<bool>,
    outcome: String,
}

impl History {
    pub(crate) async fn read(store: &mut Store) -> Result<Self> {
        let (versions, mut outcomes) = (store.versions().await?, store.outcomes().await?);
        let row = |Version { version, by, at, why, rollback_of, .. }| {
            let outcome = outcomes.remove(&version);
            let is_done = outcome.as_ref().map(|outcome| outcome.is_done);
            let outcome = outcome.map_or_else(|| "in progress".into(), |outcome| outcome.reason);
            Row { version, at, by, why, rollback_of, is_done, outcome }
        };
        Ok(Self { versions: versions.into_iter().map(row).collect() })
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.versions.is_empty() {
            return writeln!(f, "no version yet; `dcqcn-fleet apply FILE` creates one");
        }
        let mut table = Table::new(&[">VERSION", "TIME", "AUTHOR", "REASON", "RESULT", "DETAILS"]);
        for Row { version, at, by, why, rollback_of, is_done, outcome } in &self.versions {
            let why = match rollback_of {
                Some(of) if why.is_empty() => format!("version {of} again"),
                Some(of) => format!("version {of} again: {why}"),
                None => why.clone(),
            };
            let ended = match is_done {
                Some(true) => "done",
                Some(false) => "rolled back",
                None => "-",
            };
            let [by, why, outcome] = [by, &why, outcome].map(|text| printable(text));
            table.row([version.to_string(), at.clone(), by, why, ended.into(), outcome]);
        }
        write!(f, "{table}")
    }
}
