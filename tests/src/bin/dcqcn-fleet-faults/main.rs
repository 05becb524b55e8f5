//! Fault injection: causes each kind of fault during a rollout, and measures the time until every host has
//! the requested state. `cargo xtask fleet` builds and runs it.

mod faults;
mod fleet;
mod scale;

use std::process::ExitCode;

use clap::Parser;
use dcqcn_support::render::Table;
use dcqcn_tests::command::exit_code;
use dcqcn_tests::fleet::Clock;
use dcqcn_tests::prelude::*;

use crate::faults::{FAULTS, Fault};
use crate::fleet::{End, Fleet};

/// Inject faults into a fleet during rollouts.
#[derive(Parser)]
struct Args {
    /// Number of hosts, each with an agent process.
    #[arg(long, default_value_t = 20)]
    hosts: usize,
    /// Inject only this fault. May be repeated.
    #[arg(long)]
    only: Vec<String>,
    /// Also inject faults that take minutes.
    #[arg(long)]
    long: bool,
    /// Measure fleets of these sizes instead, with all agents in one process.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["hosts", "only", "list"])]
    scale: Vec<usize>,
    /// Measure a fleet of this size instead, with records written without agents.
    #[arg(long, conflicts_with_all = ["hosts", "only", "list", "scale"])]
    records: Option<usize>,
    /// List all faults.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    exit_code(&run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    if args.list {
        FAULTS.iter().for_each(|fault| println!("{}", fault.name));
        return Ok(true);
    }
    if let Some(unknown) = args.only.iter().find(|name| !FAULTS.iter().any(|fault| fault.name == **name)) {
        bail!("unknown fault `{unknown}`; --list prints all faults");
    }
    if !Etcd::available("dcqcn-fleet-faults") {
        bail!("etcd is not installed");
    }
    if !args.scale.is_empty() {
        return scale::measure(&args.scale).map(|()| true);
    }
    if let Some(hosts) = args.records {
        return scale::records(hosts).map(|()| true);
    }
    let mut table = Table::new(&["FAULT", "ENDED", ">FROM APPLY TO THE LAST HOST", ">HOSTS ELSEWHERE"]);
    let mut is_clean = true;
    let mut fleet = Fleet::new(args.hosts)?;
    let is_selected = |fault: &&Fault| match args.only.is_empty() {
        true => args.long || !fault.is_long,
        false => args.only.iter().any(|only| only == fault.name),
    };
    for fault in FAULTS.iter().filter(is_selected) {
        if fault.needs_clock && !Clock::available(fault.name) {
            continue;
        }
        let began = Instant::now();
        let ended = fleet.round(fault).with_context(|| fault.name.to_owned());
        match ended {
            Ok((end, elsewhere, took)) => {
                let is_right = elsewhere.is_empty() && (end == End::Done) == fault.gets_there;
                is_clean &= is_right;
                let (took, word) = (seconds(took), if end == End::Done { "done" } else { "rolled back" });
                eprintln!("{}: {word}, {took} {}", fault.name, elsewhere.join(", "));
                table.row([fault.name.into(), word.into(), took, elsewhere.len().to_string()]);
            }
            Err(error) => {
                is_clean = false;
                eprintln!("{error:#}");
                table.row([fault.name.into(), "FAILED".into(), seconds(began.elapsed()), "?".into()]);
                // Start the next fault with a new fleet.
                drop(fleet);
                fleet = Fleet::new(args.hosts)?;
            }
        }
    }
    print!("{table}");
    Ok(is_clean)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
