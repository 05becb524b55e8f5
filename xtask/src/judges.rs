//! The figures of docs/measured/judges.md: `dcqcn-lab sim fabric` beside what other simulators said of the same flows.
//!
//! What others said is kept in files beside this one, with where it is from. Only our side is run here. A table tells by how
//! much the two differ, and the command fails where that is more than the page says it may be, where a flow of either side is not
//! complete, or where the two sides had not the same flows at the same times.

mod data;
mod flows;
mod hpcc;
mod htsim;
mod irn;
mod matrix;
mod nscc;

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::lab::{self, Lab};
use crate::run::header;
use crate::{page, workspace::Workspace};

const PAGE: &str = "docs/measured/judges.md";

/// Options of `cargo xtask judges`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    lab: lab::Args,
    /// Only the comparisons whose place on the page begins so.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

/// A table, and what in it is out of bounds.
struct Judged {
    table: String,
    outside: Vec<String>,
}

type Judge = fn(&Lab) -> Result<Judged>;

const JUDGES: &[(&str, Judge)] = &[
    ("incast", htsim::incast),
    ("pfc", htsim::pfc),
    ("permutation", htsim::permutation),
    ("nscc-incast", nscc::incast),
    ("nscc-trimming", nscc::trimming),
    ("nscc-permutation", nscc::permutation),
    ("hpcc", hpcc::slowdown),
    ("irn", irn::comparison),
];

/// Runs every comparison and rewrites the page's tables.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let files = workspace.root().join("target/judges");
    matrix::write_all(&files)?;
    hpcc::write_all(&files)?;
    irn::write_all(&files)?;
    let lab = Lab::new(workspace, args.lab.binary.clone())?.within(&files);
    let path = workspace.root().join(PAGE);
    let mut text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let started = Instant::now();
    let mut outside = Vec::new();
    let asked = |name: &str| args.only.as_ref().is_none_or(|only| name.starts_with(only.as_str()));
    let names = || JUDGES.iter().map(|(name, _)| *name);
    ensure!(
        names().any(asked),
        "no comparison's name begins with `{}`: there are {}",
        args.only.as_deref().unwrap_or_default(),
        names().collect::<Vec<_>>().join(", ")
    );
    for (number, (name, judge)) in JUDGES.iter().enumerate().filter(|(_, (name, _))| asked(name)) {
        header(format_args!("{name} ({} of {})", number + 1, JUDGES.len()));
        let judged = judge(&lab).with_context(|| format!("comparison `{name}`"))?;
        eprintln!("{}", judged.table);
        text = page::replace(PAGE, &text, name, &judged.table)?;
        outside.extend(judged.outside.iter().map(|what| format!("{name}: {what}")));
    }
    // The line is for the whole page.
    if args.only.is_none() {
        text = page::replace(PAGE, &text, page::MADE, &page::made(workspace, "cargo xtask judges")?)?;
    }
    if !args.lab.dry_run {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    header(format_args!("{PAGE}: {} s", started.elapsed().as_secs()));
    ensure!(outside.is_empty(), "out of bounds: {}", outside.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_place_for_every_table() {
        page::with_places(PAGE, JUDGES.iter().map(|(name, _)| *name).chain([page::MADE]));
    }
}
