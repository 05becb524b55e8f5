//! Comparisons of the simulator, each a page of tables: `cargo xtask fidelity`, `enough`, `judges` and `nscc`.

mod enough;
mod fidelity;
mod judges;
mod lab;
mod nscc;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use xtask::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Verb {
    /// Compare the simulator with analysis and published results; writes target/measured/fidelity.md.
    Fidelity(lab::Args),
    /// Simulate storage, collectives and TCP with and without DCQCN; writes target/measured/enough.md.
    Enough(lab::Args),
    /// Compare the simulated fabric with other simulators, and write docs/measured/judges.md.
    Judges(lab::Args),
    /// Compare UEC's NSCC with DCQCN in the simulated fabric; writes target/measured/nscc.md.
    Nscc(lab::Args),
}

fn main() -> ExitCode {
    xtask::exit(Workspace::locate().and_then(|workspace| run(&workspace, &Verb::parse())))
}

fn run(workspace: &Workspace, verb: &Verb) -> Result<()> {
    match verb {
        Verb::Fidelity(args) => fidelity::run(workspace, args),
        Verb::Enough(args) => enough::run(workspace, args),
        Verb::Judges(args) => judges::run(workspace, args),
        Verb::Nscc(args) => nscc::run(workspace, args),
    }
}
