//! Entry point of the repository, `cargo xtask`.
//!
//! Every verb sets up its requirements, so each may be the first command on a new machine.

pub mod apt;
pub mod build;
mod check;
pub mod dist;
mod docs;
mod fuzz;
mod measure;
pub mod mirror;
mod p4;
mod packages;
pub mod page;
pub mod run;
mod test;
mod toolchain;
pub mod workspace;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Set up, build, check, test and demonstrate dcqcn.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Find or install the requirements of the eBPF build and the tests. Run by the other verbs too.
    Setup,
    /// Build the eBPF object and the commands, for release.
    Build,
    /// Check formatting, prose, clippy with warnings denied (eBPF crate included) and rustdoc.
    Check,
    /// Build this machine's Debian packages, into target/packages.
    Deb,
    /// Build this machine's OCI image, for Kubernetes and others, into target/packages. Needs root.
    Image,
    /// Build all files of a release for x86_64 and aarch64, into target/packages. Needs root.
    Dist,
    /// Run every test; those that need the kernel need root.
    Test(test::Args),
    /// Four senders into a 200 Mbit/s port, with and without DCQCN, in network namespaces. Needs root.
    Demo(measure::DemoArgs),
    /// Measure nanoseconds per packet, packets per second and the control plane. Needs root.
    Bench(measure::BenchArgs),
    /// Inject every tested fault in random order, under traffic, for the requested time. Needs root.
    Soak(measure::SoakArgs),
    /// Attack a running host, and measure costs and effects. Needs root.
    Attacks(measure::AttacksArgs),
    /// Inject faults into a fleet of hosts with etcd, during rollouts.
    Fleet(measure::FleetArgs),
    /// Fuzz parsers of untrusted bytes, coverage-guided, for the requested time.
    Fuzz(fuzz::Args),
    /// Compare the simulator with analysis and published results; writes target/measured/fidelity.md.
    #[command(disable_help_flag = true)]
    Fidelity(Forwarded),
    /// Simulate storage, collectives and TCP with and without DCQCN; writes target/measured/enough.md.
    #[command(disable_help_flag = true)]
    Enough(Forwarded),
    /// Compare the simulated fabric with other simulators, and write docs/measured/judges.md.
    #[command(disable_help_flag = true)]
    Judges(Forwarded),
    /// Compare UEC's NSCC with DCQCN in the simulated fabric; writes target/measured/nscc.md.
    #[command(disable_help_flag = true)]
    Nscc(Forwarded),
    /// Write the reference pages and pictures generated from the code.
    Docs,
    /// Write the constants of the P4 program and compile it, if p4c is installed.
    P4(p4::Args),
    /// Run real soft-RoCE traffic on stock Debian kernels in a virtual machine. Needs root.
    #[command(disable_help_flag = true)]
    Vm(Forwarded),
}

/// Arguments of another program.
#[derive(clap::Args)]
struct Forwarded {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Forwarded {
    /// Replaces this process by the program of `package`, with `first` before the arguments.
    fn exec(&self, workspace: &Workspace, package: &str, first: &[&str]) -> Result<()> {
        Err(build::tool(workspace, package)?.args(first).args(&self.arguments).exec().into())
    }
}

/// Runs the verb of the command line.
pub fn main() -> ExitCode {
    exit(dispatch(Cli::parse().verb))
}

/// The exit code for a result, whose error is printed.
pub fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(verb: Verb) -> Result<()> {
    let workspace = Workspace::locate()?;
    match verb {
        Verb::Setup => {
            toolchain::setup(&workspace)?;
            if let Err(error) = apt::require(&[("mmdebstrap", "mmdebstrap")]) {
                eprintln!("   `cargo xtask vm` cannot run here: {error:#}");
            }
            // Already reported; all other verbs run without it.
            packages::left_out(&workspace);
            toolchain::require_runtime_tools()
        }
        Verb::Build => build::with(&workspace, &[]),
        Verb::Check => check::run(&workspace),
        Verb::Deb => dist::deb(&workspace),
        Verb::Image => dist::host_image(&workspace),
        Verb::Dist => dist::run(&workspace),
        Verb::Test(args) => test::run(&workspace, &args),
        Verb::Demo(args) => measure::demo(&workspace, &args),
        Verb::Bench(args) => measure::bench(&workspace, &args),
        Verb::Soak(args) => measure::soak(&workspace, &args),
        Verb::Attacks(args) => measure::attacks(&workspace, &args),
        Verb::Fleet(args) => measure::fleet(&workspace, &args),
        Verb::Fuzz(args) => fuzz::run(&workspace, &args),
        Verb::Fidelity(args) => args.exec(&workspace, build::COMPARISONS, &["fidelity"]),
        Verb::Enough(args) => args.exec(&workspace, build::COMPARISONS, &["enough"]),
        Verb::Judges(args) => args.exec(&workspace, build::COMPARISONS, &["judges"]),
        Verb::Nscc(args) => args.exec(&workspace, build::COMPARISONS, &["nscc"]),
        Verb::Docs => docs::run(&workspace),
        Verb::P4(args) => p4::run(&workspace, &args),
        Verb::Vm(args) => args.exec(&workspace, build::VM, &[]),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn command_line_consistent() {
        super::Cli::command().debug_assert();
    }
}
