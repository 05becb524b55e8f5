//! Measurements of docs/measured/performance.md.

use std::path::PathBuf;

use anyhow::Result;
use fs_err as fs;

use crate::{
    build,
    page::{self, Measured},
    peer,
    run::{header, require_root, stream},
    toolchain,
    workspace::Workspace,
};

const PAGE: &str = "performance";

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fewer rounds and cases: a smoke test.
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Compare with the JSON of an earlier run, ratio by ratio; apparent regressions are measured again. Exit code 1
    /// for a regression, or if a comparison is inconclusive.
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
    /// Write tables and plot to docs/measured/performance.md.
    #[arg(long, conflicts_with = "quick")]
    report: bool,
    /// Options for the program that measures, after `--`; `-- --help` lists them.
    #[arg(last = true)]
    more: Vec<String>,
}

/// Builds everything for release, measures, and writes the page if requested.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    require_root("bench")?;
    build::release(workspace, &[build::COMMAND])?;
    toolchain::require_runtime_tools()?;
    peer::ensure(workspace);
    let pages = workspace.host_target().join("bench");
    fs::create_dir_all(&pages)?;

    header("bench");
    let mut command = workspace.cargo("run");
    command
        .args(["--quiet", "--release", "--package", "dcqcn-tests", "--bin", "dcqcn-bench", "--"])
        .env("DCQCN_BIN", workspace.binary());
    for (flag, wanted) in [("--quick", args.quick), ("--json", args.json)] {
        if wanted {
            command.arg(flag);
        }
    }
    if let Some(old) = &args.compare {
        command.arg("--compare").arg(old);
    }
    if args.report {
        command.arg("--pages").arg(&pages);
    }
    stream(command.args(&args.more))?;
    if !args.report {
        return Ok(());
    }
    let mut measured = Measured::new(PAGE);
    measured.add(page::ORIGIN, &page::origin(workspace, "cargo xtask bench --report")?);
    for name in SECTIONS {
        let file = pages.join(format!("{name}.md"));
        let table = fs::read_to_string(&file)?;
        measured.add(name, &table);
    }
    measured.write(workspace)?;
    let (from, to) = (pages.join(PLOT), workspace.root().join("docs/measured").join(PLOT));
    fs::copy(&from, &to)?;
    Ok(())
}

/// The tables.
const SECTIONS: [&str; 10] =
    ["machine", "targets", "packets", "growth", "cpus", "programs", "links", "tcp", "live", "control"];
/// The plot of the page, next to it.
const PLOT: &str = "performance-qps.svg";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_markers_of_sections_only() {
        let text = page::ensure_tables_are(PAGE, &[&SECTIONS[..], &[page::ORIGIN]].concat()).unwrap();
        assert!(text.contains(PLOT));
    }
}
