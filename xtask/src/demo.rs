//! The demonstration: DCQCN off and on, compared.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{
    build,
    page::{self, Measured},
    run::{self, capture, header, stream},
    toolchain,
    workspace::Workspace,
};

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

/// Builds, runs the lab and prints the location of the plots.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    ensure!(
        run::is_root(),
        "creating network namespaces and loading eBPF programs needs root; run `cargo xtask demo` as root"
    );
    build::release(workspace, &[build::LAB])?;
    toolchain::require_runtime_tools()?;

    let plots = workspace.host_target().join("demo");
    fs::create_dir_all(&plots).with_context(|| format!("cannot create {}", plots.display()))?;
    header("dcqcn-lab incast: 4 senders into 200 Mb/s, without and with DCQCN");
    let mut command = Command::new(workspace.lab());
    command
        .args(["incast", "--senders", "4", "--link", "200mbit", "--duration", "10s"])
        .args(["--control", "both", "--plot"])
        .arg(&plots)
        .args(&args.lab);
    if args.report {
        report(workspace, &capture(&mut command)?, &plots)?;
    } else {
        stream(&mut command)?;
    }
    header(format_args!("plots in {}", workspace.shown(&plots)));
    Ok(())
}

const PAGE: &str = "demo";
const PICTURE: &str = "incast.png";
/// The table.
const TABLE: &str = "demo";

fn report(workspace: &Workspace, printed: &str, plots: &Path) -> Result<()> {
    print!("{printed}");
    let (table, _) = printed.split_once("\nplots are in ").context("the lab printed no table")?;
    let origin = page::origin(workspace, "cargo xtask demo --report")?;
    let mut measured = Measured::new(PAGE);
    measured.add(TABLE, &format!("{origin}\n```text\n{}\n```\n", table.trim_end()));
    measured.write(workspace)?;
    let (from, to) = (plots.join(PICTURE), workspace.root().join("docs/measured").join(PICTURE));
    fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_markers_for_table_and_picture() {
        assert!(page::assert_places_are(PAGE, &[TABLE]).contains(PICTURE));
    }
}
