//! Costs and effects of hostile packets.

use std::process::Command;

use anyhow::Result;

use crate::run::{header, output_of, require_root};
use crate::workspace::Workspace;
use crate::{build, page, toolchain};

/// Options of `cargo xtask attacks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the table to target/measured/attacks.md.
    #[arg(long)]
    report: bool,
    /// Options for the program that runs the attacks, after `--`; `-- --help` lists them.
    #[arg(last = true)]
    more: Vec<String>,
}

const ATTACKS: build::Binary = ("dcqcn-attacks", "dcqcn-tests");

/// Builds the command and runs the attacks.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    require_root("attacks")?;
    build::release(workspace, &[ATTACKS])?;
    toolchain::require_runtime_tools()?;
    header("attacks");
    let table = output_of(Command::new(workspace.binary_of("release", ATTACKS.0)).args(&args.more))?;
    if !args.report {
        return Ok(());
    }
    let origin = page::origin(workspace, "cargo xtask attacks --report")?;
    page::write_text(workspace, "attacks", "attacks", &origin, &table)
}
