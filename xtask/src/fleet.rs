//! Fault injection in a fleet during rollouts.

use std::process::Command;

use anyhow::Result;

use crate::apt::{self, Requirement};
use crate::run::{self, header, output_of};
use crate::workspace::Workspace;
use crate::{build, page};

/// Options of `cargo xtask fleet`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of hosts, each with an agent process.
    #[arg(long, default_value_t = 100)]
    hosts: usize,
    /// Measure fleets of these sizes instead, with all agents in one process, and 10,000 records without agents.
    #[arg(
        long,
        value_name = "HOSTS",
        value_delimiter = ',',
        num_args = 0..=1,
        default_missing_value = SIZES,
        conflicts_with = "hosts"
    )]
    scale: Vec<usize>,
    /// Also inject faults that take minutes.
    #[arg(long, conflicts_with = "scale")]
    long: bool,
    /// Simulate 1,000 good and 1,000 bad rollouts instead, and count false alarms and misses of the gate.
    #[arg(long, conflicts_with_all = ["hosts", "scale"])]
    gate: bool,
    /// Write the table to docs/measured/fleet.md.
    #[arg(long)]
    report: bool,
    /// Options for the program that injects the faults, after `--`; `-- --help` lists them.
    #[arg(last = true)]
    more: Vec<String>,
}

const FAULTS: build::Binary = ("dcqcn-fleet-faults", "dcqcn-tests");
const GATE_SEED: &str = "20000000";
/// Sizes of measured fleets.
const SIZES: &str = "100,500,1500,3000";
/// Number of hosts with records but without agents.
const RECORDS: &str = "10000";

/// Builds the commands and injects the faults.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if args.gate {
        return gate(workspace, args.report);
    }
    build::release(workspace, &[build::FLEET, FAULTS])?;
    let path = run::path_with(&apt::for_tests(workspace, Requirement::Etcd))?;
    let program = |words: &[&str]| {
        let mut command = Command::new(workspace.binary_of("release", FAULTS.0));
        command.env("PATH", &path).env("DCQCN_FLEET_BIN", workspace.binary_of("release", build::FLEET.0));
        command.args(words).args(&args.more);
        command
    };
    let hosts = args.hosts.to_string();
    let sizes = args.scale.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (table, commands, options, machine) = if sizes.is_empty() {
        let words: &[&str] = if args.long { &["--long", "--hosts", &hosts] } else { &["--hosts", &hosts] };
        ("faults", vec![program(words)], words.join(" "), format!("{hosts} hosts, {cpus} CPUs"))
    } else {
        let commands = vec![program(&["--scale", &sizes]), program(&["--records", RECORDS])];
        ("scale", commands, format!("--scale {sizes}"), format!("{cpus} CPUs"))
    };
    header("faults and size of a fleet");
    let origin = page::origin(workspace, &format!("cargo xtask fleet {options} --report"))?;
    let tables =
        commands.into_iter().map(|mut command| output_of(&mut command)).collect::<Result<Vec<_>>>()?;
    if !args.report {
        return Ok(());
    }
    page::write_text(workspace, "fleet", table, &format!("{origin}{machine}.\n"), &tables.join("\n"))
}

/// Simulates rollouts.
fn gate(workspace: &Workspace, is_report: bool) -> Result<()> {
    header("simulated rollouts");
    let origin = page::origin(workspace, "cargo xtask fleet --gate --report")?;
    let mut command = workspace.cargo("test");
    // Seeds other than those of the test, with which the gate was tuned.
    command.env("DCQCN_GATE_ROLLOUTS", "1000").env("DCQCN_GATE_SEED", GATE_SEED);
    command.args(["--release", "-p", "dcqcn-fleet", "--lib", "simulation::", "--", "--nocapture"]);
    let is_row =
        |line: &&str| ["ROLLOUTS", "good", "bad: ", "all bursty: "].iter().any(|word| line.starts_with(word));
    let table: Vec<String> = output_of(&mut command)?.lines().filter(is_row).map(str::to_owned).collect();
    if !is_report {
        return Ok(());
    }
    page::write_text(workspace, "fleet-gate", "gate", &origin, &table.join("\n"))
}
