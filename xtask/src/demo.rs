//! The demonstration: DCQCN off and on, compared.

use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::run::{header, output_of, require_root};
use crate::workspace::Workspace;
use crate::{build, page, toolchain};

/// Options of `cargo xtask demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write table and picture to docs/measured/demo.md.
    #[arg(long)]
    report: bool,
    /// More options for `dcqcn-lab incast`, after `--`.
    #[arg(last = true)]
    lab: Vec<String>,
}

const PAGE: &str = "demo";
const PICTURE: &str = "incast.png";
const TABLE: &str = "demo";

/// Builds, runs the lab and prints the location of the plots.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    require_root("demo")?;
    build::release(workspace, &[build::LAB])?;
    toolchain::require_runtime_tools()?;

    let plots = workspace.host_target().join("demo");
    fs::create_dir_all(&plots)?;
    header("dcqcn-lab incast: 4 senders into 200 Mbit/s, without and with DCQCN");
    let mut command = Command::new(workspace.lab());
    command.args(["incast", "--senders", "4", "--link", "200mbit", "--duration", "10s"]);
    let text = output_of(command.args(["--control", "both", "--plot"]).arg(&plots).args(&args.lab))?;
    header(format_args!("plots in {}", workspace.relative(&plots)));
    if !args.report {
        return Ok(());
    }
    let (table, _) = text.split_once("\nplots are in ").context("the lab printed no table")?;
    let origin = page::origin(workspace, "cargo xtask demo --report")?;
    page::write_text(workspace, PAGE, TABLE, &origin, table)?;
    fs::copy(plots.join(PICTURE), workspace.root().join("docs/measured").join(PICTURE))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_markers_for_table_and_picture() {
        assert!(page::ensure_tables_are(PAGE, &[TABLE]).unwrap().contains(PICTURE));
    }
}
