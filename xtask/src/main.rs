//! The one door to the repository: `cargo xtask setup`, `build`, `deb`, `image`, `check`, `test`, `demo`, `bench`, `soak`, `fuzz`, `fidelity`, `fleet`,
//! `judges`, `nscc`, `enough`, `tune`, `docs`, `p4` and `vm`.
//!
//! Everything a verb needs is set up on the way, so each of them is the first command that may be run on a new machine.

mod apt;
mod attacks;
mod bench;
mod build;
mod check;
mod circles;
mod crates;
mod deb;
mod demo;
mod docs;
mod enough;
mod fidelity;
mod fleet;
mod fuzz;
mod image;
mod judges;
mod lab;
mod linker;
mod llvm;
mod nscc;
mod p4;
mod page;
mod peer;
mod programs;
mod prose;
mod public;
mod run;
mod soak;
mod tally;
mod test;
mod toolchain;
mod tools;
mod tuned;
mod version;
mod vm;
mod web;
mod workspace;

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
    /// Find or install what the eBPF build and the tests need. Run by the other verbs too.
    Setup,
    /// Build the eBPF object and the commands, for release.
    Build,
    /// Check formatting, prose, clippy with warnings denied (eBPF crate included) and rustdoc.
    Check,
    /// Build the Debian packages: binary, units, default file, manual pages, completions, documentation.
    Deb,
    /// Make an OCI image from scratch with the commands, for Kubernetes and others: target/image/dcqcn.tar. Needs root.
    Image,
    /// Run every test; those that need the kernel need root.
    Test(test::Args),
    /// Four senders into a 200 Mb/s port, with and without DCQCN, in network namespaces. Needs root.
    Demo(demo::Args),
    /// Measure nanoseconds per packet, packets per second and the control plane. Needs root.
    Bench(bench::Args),
    /// Make every fault that is tested, in a random order, with traffic, for as long as requested. Needs root.
    Soak(soak::Args),
    /// Send what an attacker would to a host running, and measure what it costs and does. Needs root.
    Attacks(attacks::Args),
    /// Break what may break in a fleet of hosts with etcd, in the middle of rollouts.
    Fleet(fleet::Args),
    /// Fuzz what reads other people's bytes, by coverage, for as long as requested.
    Fuzz(fuzz::Args),
    /// Compare the simulator with analysis and published results; writes target/measured/fidelity.md.
    Fidelity(fidelity::Args),
    /// Simulate storage, collectives and TCP with and without DCQCN; writes target/measured/enough.md.
    Enough(lab::Args),
    /// Compare the simulated fabric with other simulators, and write docs/measured/judges.md.
    Judges(judges::Args),
    /// Compare UEC's NSCC with DCQCN in the simulated fabric; writes target/measured/nscc.md.
    Nscc(lab::Args),
    /// Compare parameters found by `dcqcn-lab tune` with presets, on other traffic; writes target/measured/tune.md.
    Tune(lab::Args),
    /// Write the reference pages and pictures that come from the code.
    Docs,
    /// Write the constants of the P4 program and compile it, where p4c is installed.
    P4(p4::Args),
    /// Real soft-RoCE traffic on stock Debian kernels in a virtual machine. Needs root.
    Vm(vm::Args),
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().verb) {
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
            vm::setup();
            // Said; all else goes without.
            web::left_out(&workspace);
            toolchain::require_runtime_tools()
        }
        Verb::Build => build::run(&workspace).map(drop),
        Verb::Check => check::run(&workspace),
        Verb::Deb => deb::run(&workspace),
        Verb::Image => image::run(&workspace),
        Verb::Test(args) => test::run(&workspace, &args),
        Verb::Demo(args) => demo::run(&workspace, &args),
        Verb::Bench(args) => bench::run(&workspace, &args),
        Verb::Soak(args) => soak::run(&workspace, &args),
        Verb::Attacks(args) => attacks::run(&workspace, &args),
        Verb::Fleet(args) => fleet::run(&workspace, &args),
        Verb::Fuzz(args) => fuzz::run(&workspace, &args),
        Verb::Fidelity(args) => fidelity::run(&workspace, &args),
        Verb::Enough(args) => enough::run(&workspace, &args),
        Verb::Judges(args) => judges::run(&workspace, &args),
        Verb::Nscc(args) => nscc::run(&workspace, &args),
        Verb::Tune(args) => tuned::run(&workspace, &args),
        Verb::Docs => docs::run(&workspace),
        Verb::P4(args) => p4::run(&workspace, &args),
        Verb::Vm(args) => vm::run(&workspace, &args),
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
