//! The demonstration: DCQCN off and on, side by side.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{
    build,
    run::{self, header, stream},
    toolchain,
    workspace::Workspace,
};

/// Options of `cargo xtask demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// More options for `dcqcn-lab incast`, after `--`.
    #[arg(last = true)]
    lab: Vec<String>,
}

/// Builds, runs the lab and says where the plots are.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    ensure!(
        run::is_root(),
        "the demo makes network namespaces and loads eBPF programs, which needs root; run `cargo xtask demo` as root"
    );
    build::release(workspace, &[build::LAB])?;
    toolchain::require_runtime_tools()?;

    let plots = workspace.host_target().join("demo");
    fs::create_dir_all(&plots).with_context(|| format!("cannot create {}", plots.display()))?;
    header("dcqcn-lab incast: 4 senders into 200 Mb/s, without and with DCQCN");
    stream(
        Command::new(workspace.lab())
            .args(["incast", "--senders", "4", "--link", "200mbit", "--duration", "10s"])
            .args(["--control", "both", "--plot"])
            .arg(&plots)
            .args(&args.lab),
    )?;
    header(format_args!("plots in {}", workspace.shown(&plots)));
    Ok(())
}
