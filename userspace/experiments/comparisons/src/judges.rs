//! The tables of docs/measured/judges.md: `dcqcn-lab sim fabric` compared with other simulators on equal flows.
//!
//! Results of the others are stored in files next to this one, with their source. Only our side is run here. A table
//! shows the differences. The command fails if a difference exceeds the page's bound, if a flow of either side is
//! incomplete, or if the two sides had different flows.

mod flows;
mod hpcc;
mod htsim;
mod irn;
mod matrix;
mod nscc;

use anyhow::Result;

use crate::lab::{Args, Page, Table};
use xtask::workspace::Workspace;

const PAGE: &str = "judges";

const TABLES: &[Table<'_>] = &[
    ("incast", &htsim::incast),
    ("pfc", &htsim::pfc),
    ("permutation", &htsim::permutation),
    ("nscc-incast", &nscc::incast),
    ("nscc-trimming", &nscc::trimming),
    ("nscc-permutation", &nscc::permutation),
    ("hpcc", &hpcc::slowdown),
    ("irn", &irn::comparison),
];

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let files = matrix::files().into_iter().chain(hpcc::files()).chain([irn::sizes()]).collect();
    Page { name: PAGE, files, tables: TABLES, pictures: &[] }.write(workspace, args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::page;

    #[test]
    fn page_has_markers_of_judges_only() {
        let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).chain([page::ORIGIN]).collect();
        page::ensure_tables_are(PAGE, &names).unwrap();
    }
}
