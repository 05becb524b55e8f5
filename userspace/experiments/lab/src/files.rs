//! Files with results.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context as _, anyhow};
use dcqcn_support::cli::Output;
use dcqcn_support::file::Replacement;
use serde::Serialize;

use crate::WrongUsage;
use crate::trace::is_stdio;

/// The error of a run that Ctrl-C ended.
pub(crate) const INTERRUPTED: &str = "interrupted before the run completed; its results so far are discarded";

/// Logs each different warning.
pub(crate) fn warn_once(warnings: impl Iterator<Item = String>) {
    warnings.collect::<BTreeSet<_>>().iter().for_each(|text| tracing::warn!("{text}"));
}

/// Rejects `--csv -` with `--json`.
pub(crate) fn refuse_two_outputs(out: &Output<'_>, csv: Option<&Path>) -> Result<(), WrongUsage> {
    if out.is_json() && csv.is_some_and(is_stdio) {
        return Err(anyhow!("--json and --csv - both need standard output; omit one").into());
    }
    Ok(())
}

/// Prints `report`; on standard error if `csv` is standard output.
pub(crate) fn show<T: Serialize + Display>(
    out: &mut Output<'_>,
    report: &T,
    csv: Option<&Path>,
) -> anyhow::Result<()> {
    if csv.is_some_and(is_stdio) {
        // Standard error may be closed.
        let _ = write!(io::stderr(), "{report}");
        return Ok(());
    }
    out.show(report)
}

/// Replaces the file at `path` by what `write` produces.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut file = Replacement::create(path).with_context(failed)?;
    write(&mut file).with_context(failed)?;
    file.finish().with_context(failed)
}
