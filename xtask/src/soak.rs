//! Random faults under traffic, for the requested time.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::run::{self, header, output_of, require_root};
use crate::workspace::Workspace;
use crate::{build, page, toolchain};

/// Options of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Duration.
    #[arg(long = "for", value_name = "TIME", default_value = "5m")]
    length: String,
    /// Seed of the random order, as printed by an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Write the table of the last run to docs/measured/reliability.md, without another run.
    #[arg(long)]
    report: bool,
    /// Options for the program that runs the faults, after `--`; `-- --help` lists them.
    #[arg(last = true)]
    more: Vec<String>,
}

const SOAK: build::Binary = ("dcqcn-soak", "dcqcn-tests");
/// First line of the table.
const HEADING: &str = "FAULT ";

/// Builds the command and runs the faults.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if args.report {
        return report(workspace);
    }
    require_root("soak")?;
    build::release(workspace, &[build::COMMAND, SOAK])?;
    toolchain::require_runtime_tools()?;
    let mut options = format!("--for {}", args.length);
    if let Some(seed) = args.seed {
        options += &format!(" --seed {seed}");
    }
    let origin = page::origin(workspace, &format!("cargo xtask soak {options}"))?;
    header("soak");
    // The program exits in an orderly way, and reverts its changes.
    let mut command = run::with_parent_death_signal("TERM", workspace.binary_of("release", SOAK.0));
    command.env("DCQCN_BIN", workspace.binary()).args(options.split(' ')).args(&args.more);
    drop(fs::remove_file(log(workspace)));
    let table = output_of(&mut command).context("some faults did harm")?;
    // Other load on the machine qualifies the times.
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').nth(2).unwrap_or("?");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let load = format!("load of the last 15 minutes {load}, {cpus} CPUs\n");
    Ok(fs::write(log(workspace), origin + &table + &load)?)
}

/// Output of the last run.
fn log(workspace: &Workspace) -> PathBuf {
    workspace.host_target().join("soak.log")
}

fn report(workspace: &Workspace) -> Result<()> {
    let log = fs::read_to_string(log(workspace)).context("there is no stored run")?;
    let origin = log.lines().next().unwrap_or_default();
    let table: Vec<&str> = log.lines().skip_while(|line| !line.starts_with(HEADING)).collect();
    ensure!(!table.is_empty(), "the last run did not complete");
    page::write_text(workspace, "reliability", "soak", &format!("{origin}\n"), &table.join("\n"))
}
