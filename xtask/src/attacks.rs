//! Costs and effects of hostile packets.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::page::{self, Measured};
use crate::run::{self, capture, header, stream};
use crate::workspace::Workspace;
use crate::{build, toolchain};

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
    ensure!(
        run::is_root(),
        "creating network namespaces and loading eBPF programs needs root; run `cargo xtask attacks` as root"
    );
    build::release(workspace, &[ATTACKS])?;
    toolchain::require_runtime_tools()?;
    header("attacks");
    let mut command = Command::new(workspace.binary_of("release", ATTACKS.0));
    command.args(&args.more);
    if !args.report {
        return stream(&mut command);
    }
    let table = capture(&mut command)?;
    print!("{table}");
    let origin = page::origin(workspace, "cargo xtask attacks --report")?;
    let mut measured = Measured::new("attacks");
    measured.add("attacks", &format!("{origin}\n```text\n{table}```\n"));
    measured.write(workspace)
}
