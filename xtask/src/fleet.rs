//! What may break in a fleet, in the middle of rollouts.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::build;
use crate::page::{self, Measured};
use crate::run::{self, header, not_started, stream};
use crate::tools::{self, Want};
use crate::workspace::Workspace;

/// Options of `cargo xtask fleet`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Hosts, each with an agent that is a process.
    #[arg(long, default_value_t = 100)]
    hosts: usize,
    /// Measure so many hosts instead, whose agents are all in one process and have no data plane.
    #[arg(long, conflicts_with = "hosts")]
    scale: Option<usize>,
    /// Write the table into docs/measured/fleet.md.
    #[arg(long)]
    report: bool,
    /// More options for the program that does it, after `--`; `-- --help` shows them.
    #[arg(last = true)]
    more: Vec<String>,
}

const FAULTS: build::Binary = ("dcqcn-fleet-faults", "dcqcn-tests");
const PAGE: &str = "fleet";

/// Builds the commands and breaks things.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    build::release(workspace, &[build::FLEET, FAULTS])?;
    let path = run::path_with(&tools::for_tests(workspace, Want::Etcd))?;
    header("faults in a fleet");
    let (option, hosts, place) = match args.scale {
        Some(hosts) => ("--scale", hosts.to_string(), "scale"),
        None => ("--hosts", args.hosts.to_string(), "faults"),
    };
    let mut command = Command::new(workspace.built("release", FAULTS.0));
    command.env("PATH", path).env("DCQCN_FLEET_BIN", workspace.built("release", build::FLEET.0));
    command.args([option, &hosts]).args(&args.more);
    if !args.report {
        return stream(&mut command);
    }
    let made = page::made(workspace, &format!("cargo xtask fleet {option} {hosts} --report"))?;
    // Its progress goes to the terminal.
    let output = command.stderr(Stdio::inherit()).output().with_context(|| not_started(&command))?;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{table}");
    ensure!(output.status.success(), "not all faults ended as they should; nothing was written");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut measured = Measured::new(PAGE);
    measured.add(place, &format!("{made}{hosts} hosts, {cpus} CPUs.\n\n```text\n{table}```\n"));
    measured.write(workspace)
}
