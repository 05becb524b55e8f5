//! Files with results.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use dcqcn_sim::sweep::{Axis, number_of_runs};
use dcqcn_support::cli::Output;
use dcqcn_support::file::Replacement;
use serde::Serialize;

use crate::WrongUsage;
use crate::trace::is_stdio;

/// The error of a run that Ctrl-C ended.
pub(crate) const INTERRUPTED: &str = "interrupted before the run completed; its results so far are discarded";

/// Rejects the file of `flag`, which is for one run, with a sweep.
pub(crate) fn refuse_in_sweep(file: Option<&Path>, flag: &str, axes: &[Axis]) -> Result<(), WrongUsage> {
    if file.is_none() || axes.is_empty() {
        return Ok(());
    }
    let runs = number_of_runs(axes);
    Err(anyhow!(
        "{flag} is for one run and this sweep has {runs}: omit {flag} or --sweep (`stability`: specify --flows and \
         --loop-delay)"
    )
    .into())
}

/// Fails if a sweep of these axes has completed fewer runs.
pub(crate) fn ensure_complete(completed: usize, axes: &[Axis]) -> anyhow::Result<()> {
    let runs = number_of_runs(axes);
    ensure!(completed == runs, "incomplete: {completed} of {runs} runs completed");
    Ok(())
}

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
    Ok(out.show(report)?)
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
