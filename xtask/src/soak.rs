//! Faults in a random order, with traffic, for as long as asked.

use anyhow::{Result, ensure};

use crate::{
    build,
    run::{self, header, stream},
    toolchain,
    workspace::Workspace,
};

/// Options of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long.
    #[arg(long = "for", value_name = "TIME", default_value = "5m")]
    length: String,
    /// Begin the random order with this number, which an earlier run has printed.
    #[arg(long)]
    seed: Option<u64>,
    /// More options for the program that does it, after `--`; `-- --help` shows them.
    #[arg(last = true)]
    more: Vec<String>,
}

const SOAK: build::Binary = ("dcqcn-soak", "dcqcn-tests");

/// Builds the command and makes the faults.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    ensure!(
        run::is_root(),
        "this makes network namespaces and loads programs, which needs root; run `cargo xtask soak` as root"
    );
    build::release(workspace, &[build::COMMAND, SOAK])?;
    toolchain::require_runtime_tools()?;
    header("soak");
    let mut command = std::process::Command::new(workspace.built("release", SOAK.0));
    command.env("DCQCN_BIN", workspace.binary()).args(["--for", &args.length]);
    if let Some(seed) = args.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    stream(command.args(&args.more))
}
