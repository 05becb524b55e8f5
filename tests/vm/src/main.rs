//! Real soft-RoCE on stock Debian kernels: a guest under QEMU that runs `dcqcn` and perftest.
//!
//! All programs are Debian packages in `target/vm`: one tree that is the guest's root and contains QEMU, and a
//! directory per kernel. A scenario gets a fresh guest, and passes only if the guest reports so.

mod bottleneck;
mod guest;
mod kernel;
mod machine;
mod matrix;
mod network;
mod prelude;
mod report;
mod requests;
mod scenario;
mod tree;

use std::process::ExitCode;

use clap::Parser;

use self::guest::{END, Guest, PREPARE, SHELL};
use self::scenario::{Outcome, Scenario};
use crate::prelude::*;

/// Run real soft-RoCE traffic on stock Debian kernels in a virtual machine. Needs root.
#[derive(Parser)]
#[command(name = "cargo xtask vm", bin_name = "cargo xtask vm", args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Scenarios [default: all].
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Kernels to run them on; kernels other than 6.1 are skipped, with a message, if the archive lacks them.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "6.1")]
    kernel: Vec<Series>,
    /// Architecture of the guest; aarch64 is emulated, and runs scenarios of one guest without systemd.
    #[arg(long, value_enum, default_value = "x86_64")]
    arch: Arch,
    /// NICs for scenarios with two guests; each scenario runs once per NIC.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "virtio-net")]
    nic: Vec<Nic>,
    /// Kernel of the second guest; the first one's by default.
    #[arg(long, value_enum)]
    peer_kernel: Option<Series>,
    /// Write current and earlier results to docs/measured/soft-roce.md.
    #[arg(long)]
    report: bool,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List the scenarios.
    List,
    /// Write earlier results to docs/measured/soft-roce.md, without running a scenario.
    Report,
    /// Run situations of two guests with NICs and a bottleneck between them, in a pairwise matrix of NICs,
    /// kernels and situations.
    Matrix(matrix::Args),
    /// Open a shell in the guest, with `dcqcn` and perftest; `exit` ends it, Ctrl-A X stops QEMU.
    Shell {
        /// Kernel to boot.
        #[arg(long, value_enum, default_value = "6.1")]
        kernel: Series,
    },
    /// Get the parts of guests for `test`.
    #[command(hide = true)]
    Download,
    /// Run the scenarios that every change must pass, with the output of a test program.
    #[command(hide = true)]
    Test {
        /// Arguments for test programs: parts of names.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        harness: Vec<String>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Finished {
    scenario: String,
    series: Series,
    seconds: f64,
    outcome: Option<Outcome>,
    verdict: Result<(), String>,
    /// Commit, command and date; empty in results from before they were recorded.
    #[serde(default)]
    made: String,
}

impl Finished {
    /// Failed checks; if empty, the reason for not passing.
    fn failures(&self) -> String {
        let checks = self.outcome.as_ref().map_or(&[][..], |outcome| &outcome.checks);
        let failed: Vec<String> = checks
            .iter()
            .filter(|check| !check.ok)
            .map(|check| format!("{}: {}, wanted {}", check.what, check.measured, check.wanted))
            .collect();
        if failed.is_empty() { self.verdict.clone().err().unwrap_or_default() } else { failed.join("; ") }
    }

    fn verdict(&self) -> String {
        let checks = self.outcome.as_ref().map_or(&[][..], |outcome| &outcome.checks);
        let passed = checks.iter().filter(|check| check.ok).count();
        let failed = if self.verdict.is_ok() { "" } else { "**failed**, " };
        format!("{failed}{passed} of {}, {:.0} s", checks.len(), self.seconds)
    }
}

fn main() -> ExitCode {
    xtask::exit(Workspace::locate().and_then(|workspace| run(&workspace, &Args::parse())))
}

fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    match &args.verb {
        Some(Verb::Download) => {
            download(workspace);
            Ok(())
        }
        Some(Verb::Test { harness }) => test(workspace, harness),
        Some(Verb::Report) => report::write(workspace, stored_runs(&cache(workspace))?),
        Some(Verb::List) => list(workspace),
        Some(Verb::Shell { kernel }) => {
            ensure_root()?;
            shell(workspace, *kernel)
        }
        Some(Verb::Matrix(args)) => {
            ensure_root()?;
            matrix::run(workspace, args)
        }
        None => {
            ensure_root()?;
            run_scenarios(workspace, args)
        }
    }
}

fn list(workspace: &Workspace) -> Result<()> {
    for scenario in scenario::all(&scenario::build_driver(workspace)?, Arch::X86_64)? {
        let ci = if scenario.is_ci { " (CI)" } else { "" };
        println!("{:12} {}{ci}", scenario.name, scenario.about);
    }
    Ok(())
}

fn ensure_root() -> Result<()> {
    ensure!(run::is_root(), "sharing the guest's file system needs root; run `cargo xtask vm` as root");
    Ok(())
}

fn run_scenarios(workspace: &Workspace, args: &Args) -> Result<()> {
    let all_series: BTreeSet<Series> = args.kernel.iter().copied().collect();
    let (guest, scenarios) = Guest::prepare(workspace, args.arch, all_series.first().copied(), || {
        let driver = match args.arch {
            Arch::X86_64 => scenario::build_driver(workspace)?,
            Arch::Aarch64 => scenario::cross_driver(workspace, args.arch)?,
        };
        let mut scenarios = scenario::choose(scenario::all(&driver, args.arch)?, &args.scenarios)?;
        if args.arch != Arch::X86_64 {
            scenarios.retain(|scenario| !scenario.with_systemd && !scenario.two_guests);
        }
        if scenarios.iter().any(|scenario| scenario.with_systemd) {
            guest::build_fleet(workspace)?;
        }
        Ok((driver, scenarios))
    })?;
    let (mut finished, mut left_out) = (Vec::new(), Vec::new());
    for series in all_series {
        let booted = match guest.boot(series) {
            Ok(booted) => booted,
            Err(error) if !series.is_required() => {
                left_out.push(format!("SKIPPED kernel {series}: {error:#}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        let peer = args.peer_kernel.map(|series| guest.boot(series)).transpose()?;
        for scenario in &scenarios {
            if !scenario.two_guests {
                finished.push(booted.run(scenario)?);
                continue;
            }
            for nic in &args.nic {
                finished.push(booted.run_two(scenario, *nic, peer.as_ref().unwrap_or(&booted))?);
            }
        }
    }
    for run in &finished {
        println!("{:8} {:12} {}", run.series.to_string(), run.scenario, run.verdict());
    }
    left_out.iter().for_each(|line| println!("{line}"));
    if args.report {
        report::write(workspace, stored_runs(&guest.cache)?)?;
    }
    let failed = finished.iter().filter(|run| run.verdict.is_err()).count();
    ensure!(failed == 0, "{failed} of {} scenarios failed", finished.len());
    ensure!(!finished.is_empty(), "no scenario ran: none of the requested kernels is available");
    Ok(())
}

/// Runs the scenarios and situations that every change must pass, on the kernel that is always available. If a guest is
/// impossible, they are ignored, with the reason. Prints results like a test program, for `cargo xtask test`.
fn test(workspace: &Workspace, harness: &[String]) -> Result<()> {
    let driver = scenario::build_driver(workspace)?;
    let test = |name: &str| format!("vm::{name}");
    let scenarios: Vec<Scenario> =
        scenario::all(&driver, Arch::X86_64)?.into_iter().filter(|scenario| scenario.is_ci).collect();
    let names = scenarios.iter().map(|scenario| scenario.name.as_str()).chain([matrix::QUICK]);
    let names: Vec<&str> = names.filter(|name| is_selected(&test(name), harness)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let skip = |reason: &str| {
        let reason = reason.replace('\n', " ");
        names.iter().for_each(|name| println!("test {} ... ignored, {reason}", test(name)));
    };
    if !run::is_root() {
        skip("needs root");
        return Ok(());
    }
    let guest = Guest::prepare(workspace, Arch::X86_64, Some(Series::V6_1), || Ok((driver, ())));
    match guest.as_ref().map(|(guest, _)| guest.boot(Series::V6_1)) {
        Ok(Ok(booted)) => {
            let run = |name: &str| match scenarios.iter().find(|scenario| scenario.name == name) {
                Some(scenario) => booted.run(scenario),
                None => matrix::quick(&booted),
            };
            let mut failed = Vec::new();
            for name in &names {
                let first = run(name)?;
                let passed = first.verdict.is_ok() || {
                    // Bounds are rates, which a guest under software emulation misses if other processes use the CPUs.
                    header(format_args!("{name} failed; a second and last time, as the machine may be busy"));
                    let passed = run(name)?.verdict.is_ok();
                    if passed {
                        println!("RETRIED {}: {}", test(name), first.failures());
                    }
                    passed
                };
                if !passed {
                    failed.push(test(name));
                }
            }
            println!("failures:");
            failed.iter().for_each(|name| println!("    {name}"));
            let passed = names.len() - failed.len();
            println!("test result: done. {passed} passed; {} failed", failed.len());
            ensure!(failed.is_empty(), "scenarios failed");
        }
        Ok(Err(error)) => skip(&format!("{error:#}")),
        Err(error) => skip(&format!("{error:#}")),
    }
    Ok(())
}

/// Gets what guests of [`test()`] need, if this machine can run them; [`test()`] reports errors.
fn download(workspace: &Workspace) {
    if run::is_root() {
        drop(guest::Parts::ensure(workspace, Arch::X86_64, Some(Series::V6_1)));
    }
}

/// Whether a harness's arguments select a test: all, if no part of a name is given.
fn is_selected(test: &str, harness: &[String]) -> bool {
    let mut parts = harness.iter().filter(|argument| !argument.starts_with('-')).peekable();
    parts.peek().is_none() || parts.any(|part| test.contains(part.as_str()))
}

fn shell(workspace: &Workspace, series: Series) -> Result<()> {
    let driver = || Ok((scenario::build_driver(workspace)?, ()));
    let (guest, ()) = Guest::prepare(workspace, Arch::X86_64, Some(series), driver)?;
    let booted = guest.boot(series)?;
    machine::write_start(&guest.share, &format!("{PREPARE}{SHELL}{END}"))?;
    booted.machine().converse()
}

fn cache(workspace: &Workspace) -> PathBuf {
    workspace.host_target().join("vm")
}

/// The last run of every scenario on every kernel.
fn stored_runs(cache: &Path) -> Result<Vec<Finished>> {
    let results = cache.join(RESULTS);
    let mut all = Vec::new();
    for entry in fs::read_dir(&results).with_context(|| format!("no results: {}", results.display()))? {
        let path = entry?.path();
        let bytes = fs::read(&path)?;
        all.push(serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?);
    }
    Ok(all)
}

/// Below [`cache`]: a file for every scenario and kernel.
const RESULTS: &str = "results";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_selected_by_part_of_name() {
        let arguments = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert!(is_selected("vm::incast", &[]) && is_selected("vm::incast", &arguments(&["--exact"])));
        assert!(is_selected("vm::incast", &arguments(&["net", "inca"])));
        assert!(!is_selected("vm::incast", &arguments(&["wred"])));
    }
}
