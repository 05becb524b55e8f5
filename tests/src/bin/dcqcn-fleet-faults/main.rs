//! Faults of a fleet, each during a rollout, and the time until the requested state was reached; `cargo xtask fleet`
//! builds and runs it.

mod faults;
mod field;
mod scale;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use dcqcn_support::render::Table;
use dcqcn_tests::exit::exit_code;
use dcqcn_tests::fleet::Etcd;

use crate::faults::FAULTS;
use crate::field::{End, Field};

/// Inject faults into a fleet, during rollouts.
#[derive(Parser)]
struct Args {
    /// Number of hosts, each with an agent process.
    #[arg(long, default_value_t = 20)]
    hosts: usize,
    /// Inject only these faults.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Measure this many hosts instead, whose agents share one process.
    #[arg(long, conflicts_with_all = ["hosts", "only", "list"])]
    scale: Option<usize>,
    /// List the faults.
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
        bail!("there is no fault `{unknown}`; --list says which there are");
    }
    if !Etcd::is_there("dcqcn-fleet-faults") {
        bail!("there is no etcd");
    }
    if let Some(hosts) = args.scale {
        return scale::measure(hosts).map(|()| true);
    }
    let mut table = Table::new(&["FAULT", "ENDED", ">FROM APPLY TO THE LAST HOST", ">HOSTS ELSEWHERE"]);
    let mut is_clean = true;
    let mut field = Field::new(args.hosts)?;
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    for fault in FAULTS.iter().filter(|fault| wanted(fault.name)) {
        let began = Instant::now();
        let ended = field.round(fault.parameters, fault.make).with_context(|| fault.name.to_owned());
        match ended {
            Ok((end, elsewhere)) => {
                let is_right = elsewhere.is_empty() && (end == End::Done) == fault.gets_there;
                is_clean &= is_right;
                let (took, word) =
                    (seconds(began.elapsed()), if end == End::Done { "done" } else { "rolled back" });
                eprintln!("{}: {word}, {took} {}", fault.name, elsewhere.join(", "));
                table.row([fault.name.into(), word.into(), took, elsewhere.len().to_string()]);
            }
            Err(error) => {
                is_clean = false;
                eprintln!("{error:#}");
                table.row([fault.name.into(), "FAILED".into(), seconds(began.elapsed()), "?".into()]);
                // Its remains must not affect the next one.
                drop(field);
                field = Field::new(args.hosts)?;
            }
        }
    }
    print!("{table}");
    Ok(is_clean)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
