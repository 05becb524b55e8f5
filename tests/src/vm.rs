//! Scenarios with real soft-RoCE, run in the guest of `cargo xtask vm`.
//!
//! They change the kernel they run on (policy routing, RDMA devices, sysctls), so they run nowhere else.

pub mod command;
pub mod counts;
pub mod fio;
pub mod lab;
pub mod load;
pub mod nvme;
pub mod peer;
pub mod perftest;
pub mod report;
pub mod scenarios;
pub mod sysfs;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use self::report::Report;
pub use self::scenarios::SCENARIOS;

/// Something to prove on real traffic.
#[derive(Serialize)]
pub struct Scenario {
    /// Its name on the command line and in docs/measured/soft-roce.md.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Longest it may take, emulated, on a busy machine.
    pub limit_s: u64,
    /// One of those that every change must pass.
    pub is_ci: bool,
    /// It is for a guest that boots with systemd, and for the package.
    pub with_systemd: bool,
    /// It is for two guests with a NIC each; it runs in the first.
    pub two_guests: bool,
    /// Measures, and writes down what it found.
    #[serde(skip)]
    pub run: fn(&mut Report) -> Result<()>,
}

/// Runs a scenario, writes what it found to `result`, and says the verdict as the last line.
///
/// # Errors
/// This is no guest, there is no such scenario, or `result` cannot be written.
pub fn run(name: &str, result: &Path) -> Result<()> {
    let kernel = fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?;
    ensure!(
        kernel.split_whitespace().any(|word| word == "dcqcn.guest=1"),
        "scenarios rewire the kernel they run on: run them with `cargo xtask vm {name}`"
    );
    if peer::parameter(&kernel, "port") == Some("2") {
        return peer::serve();
    }
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
    let scenario = scenario.with_context(|| format!("no scenario `{name}`"))?;
    let mut report = Report::new(name)?;
    if let Err(error) = (scenario.run)(&mut report) {
        report.check("ran to its end", format!("{error:#}"), "no error", false);
    }
    fs::write(result, serde_json::to_vec_pretty(&report)?)
        .with_context(|| format!("cannot write {}", result.display()))?;
    // Told apart by xtask from everything else on the console.
    println!("dcqcn-vm: {}", if report.passed() { "PASS" } else { "FAIL" });
    Ok(())
}
