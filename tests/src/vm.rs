//! Scenarios with real soft-RoCE, run in the guest of `cargo xtask vm`.
//!
//! They change the kernel they run on (policy routing, RDMA devices, sysctls), so they run nowhere else.

pub mod capture;
pub mod command;
pub mod counts;
pub mod fio;
pub mod hosts;
pub mod lab;
pub mod nvme;
pub mod operations;
pub mod peer;
pub mod perftest;
pub mod prelude;
pub mod report;
pub mod scenarios;
pub mod situations;
pub mod sysfs;

use self::report::Report;
pub use self::scenarios::SCENARIOS;
use crate::prelude::*;

/// A scenario with real traffic.
#[derive(Serialize)]
pub struct Scenario {
    /// Name on the command line and in docs/measured/soft-roce.md.
    pub name: &'static str,
    pub about: &'static str,
    /// Time limit, emulated, on a busy machine.
    pub limit_s: u64,
    /// Whether every change must pass it.
    pub is_ci: bool,
    /// Whether the scenario needs a guest with systemd, and the package.
    pub with_systemd: bool,
    /// Whether the scenario needs two guests with a NIC each; it runs in the first.
    pub two_guests: bool,
    /// Measures, and records the results.
    #[serde(skip)]
    pub run: fn(&mut Report) -> Result<()>,
}

impl Scenario {
    /// A scenario for one guest without systemd, by request.
    const fn new(
        name: &'static str,
        about: &'static str,
        limit_s: u64,
        run: fn(&mut Report) -> Result<()>,
    ) -> Self {
        Self { name, about, limit_s, is_ci: false, with_systemd: false, two_guests: false, run }
    }
}

/// Runs a scenario, writes its results to `result`, and prints the verdict as the last line.
pub fn run(name: &str, result: &Path) -> Result<()> {
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
    let scenario = scenario.with_context(|| format!("no scenario `{name}`"))?;
    in_guest(name, result, scenario.run)
}

/// Runs situations of two guests, as [`run`]; the results are written after each of them.
pub fn run_between(result: &Path, names: &[&str]) -> Result<()> {
    in_guest("between", result, |report| situations::run(report, names, &|report| report.write(result)))
}

fn in_guest(name: &str, result: &Path, run: impl FnOnce(&mut Report) -> Result<()>) -> Result<()> {
    let kernel = fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?;
    let is_guest = kernel.split_whitespace().any(|word| word == "dcqcn.guest=1");
    ensure!(is_guest, "scenarios rewire the kernel they run on: run them with `cargo xtask vm {name}`");
    match peer::parameter(&kernel, "port").map(str::parse::<u8>) {
        None | Some(Ok(1)) => {}
        Some(guest) => return peer::serve(guest.context("dcqcn.port")?),
    }
    let mut report = Report::new(name)?;
    if let Err(error) = run(&mut report) {
        report.check("ran to its end", format!("{error:#}"), "no error", false);
    }
    report.write(result)?;
    // Recognised by xtask among the console output.
    println!("dcqcn-vm: {}", if report.passed() { "PASS" } else { "FAIL" });
    Ok(())
}
