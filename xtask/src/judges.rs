//! The tables of docs/measured/judges.md: `dcqcn-lab sim fabric` compared with other simulators on equal flows.
//!
//! Results of the others are stored in files next to this one, with their source. Only our side is run here. A table
//! shows the differences. The command fails if a difference exceeds the page's bound, if a flow of either side is
//! incomplete, or if the two sides had different flows.

mod data;
mod flows;
mod hpcc;
mod htsim;
mod irn;
mod matrix;
mod nscc;

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::lab::{self, Lab};
use crate::page::{self, Measured};
use crate::run::header;
use crate::workspace::Workspace;

const PAGE: &str = "judges";

/// Options of `cargo xtask judges`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    lab: lab::Args,
    /// Run only comparisons whose name starts with this.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

/// A table, and its results out of bounds.
struct Judged {
    table: String,
    outside: Vec<String>,
}

type Comparison = fn(&Lab) -> Result<Judged>;

const JUDGES: &[(&str, Comparison)] = &[
    ("incast", htsim::incast),
    ("pfc", htsim::pfc),
    ("permutation", htsim::permutation),
    ("nscc-incast", nscc::incast),
    ("nscc-trimming", nscc::trimming),
    ("nscc-permutation", nscc::permutation),
    ("hpcc", hpcc::slowdown),
    ("irn", irn::comparison),
];

/// Runs every comparison and writes the tables.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let files = workspace.root().join("target/judges");
    matrix::write_all(&files)?;
    hpcc::write_all(&files)?;
    irn::write_all(&files)?;
    let lab = Lab::new(workspace, args.lab.binary.clone())?.within(&files);
    let mut measured = Measured::new(PAGE);
    let started = Instant::now();
    let mut outside = Vec::new();
    let asked = |name: &str| args.only.as_ref().is_none_or(|only| name.starts_with(only.as_str()));
    let names = || JUDGES.iter().map(|(name, _)| *name);
    ensure!(
        names().any(asked),
        "no comparison has a name that starts with `{}`; comparisons are {}",
        args.only.as_deref().unwrap_or_default(),
        names().collect::<Vec<_>>().join(", ")
    );
    for (number, (name, judge)) in JUDGES.iter().enumerate().filter(|(_, (name, _))| asked(name)) {
        header(format_args!("{name} ({} of {})", number + 1, JUDGES.len()));
        let judged = judge(&lab).with_context(|| format!("comparison `{name}`"))?;
        eprintln!("{}", judged.table);
        measured.add(name, &judged.table);
        outside.extend(judged.outside.iter().map(|what| format!("{name}: {what}")));
    }
    // The line is for the whole page.
    if args.only.is_none() {
        measured.add(page::ORIGIN, &page::origin(workspace, "cargo xtask judges")?);
    }
    if !args.lab.dry_run {
        measured.write(workspace)?;
    }
    header(format_args!("{} s", started.elapsed().as_secs()));
    ensure!(outside.is_empty(), "out of bounds: {}", outside.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_markers_of_judges_only() {
        let names: Vec<&str> = JUDGES.iter().map(|(name, _)| *name).chain([page::ORIGIN]).collect();
        page::assert_places_are(PAGE, &names);
    }
}
