//! Faults in a fleet during rollouts.

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
    /// Number of hosts, each with an agent process.
    #[arg(long, default_value_t = 100)]
    hosts: usize,
    /// Measure this many hosts instead, whose agents share one process and have no data plane.
    #[arg(long, conflicts_with = "hosts")]
    scale: Option<usize>,
    /// Simulate 1,000 good and 1,000 bad rollouts instead, and count false alarms and misses of the gate.
    #[arg(long, conflicts_with_all = ["hosts", "scale"])]
    gate: bool,
    /// Write the table to docs/measured/fleet.md.
    #[arg(long)]
    report: bool,
    /// Options for the program that runs the faults, after `--`; `-- --help` lists them.
    #[arg(last = true)]
    more: Vec<String>,
}

const FAULTS: build::Binary = ("dcqcn-fleet-faults", "dcqcn-tests");
const GATE_SEED: &str = "20000000";
const PAGE: &str = "fleet";

/// Builds the commands and runs the faults.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if args.gate {
        return gate(workspace, args.report);
    }
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

/// Simulates rollouts.
fn gate(workspace: &Workspace, is_report: bool) -> Result<()> {
    header("simulated rollouts");
    let mut command = Command::new("cargo");
    // Seeds other than those of the test that tuned the gate.
    command.current_dir(workspace.root());
    command.env("DCQCN_GATE_ROLLOUTS", "1000").env("DCQCN_GATE_SEED", GATE_SEED);
    command.args(["test", "--release", "-p", "dcqcn-fleet", "--lib", "simulation::", "--", "--nocapture"]);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| not_started(&command))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_row =
        |line: &&str| ["ROLLOUTS", "good", "bad: ", "all bursty: "].iter().any(|word| line.starts_with(word));
    let table: String = text.lines().filter(is_row).map(|line| format!("{line}\n")).collect();
    print!("{table}");
    ensure!(output.status.success(), "the gate misses its bounds: {text}");
    if !is_report {
        return Ok(());
    }
    let made = page::made(workspace, "cargo xtask fleet --gate --report")?;
    let mut measured = Measured::new(PAGE);
    measured.add("gate", &format!("{made}\n```text\n{table}```\n"));
    measured.write(workspace)
}
