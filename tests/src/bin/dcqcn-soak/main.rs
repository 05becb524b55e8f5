//! Faults in a random order, with traffic, for as long as asked; `cargo xtask soak` builds and runs it.

mod alone;
mod served;
mod site;
mod traffic;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use dcqcn_support::interrupt::Interrupt;
use dcqcn_support::render::Table;
use nix::unistd::Uid;

use crate::site::{Harm, Site};

/// Make every fault that is tested, in a random order, with traffic.
#[derive(Parser)]
struct Args {
    /// How long.
    #[arg(long = "for", value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    length: Duration,
    /// Begin the random order with this number; it is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Make these faults only.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Say which faults there are.
    #[arg(long)]
    list: bool,
}

/// What is done to it.
#[derive(Clone, Copy)]
struct Fault {
    name: &'static str,
    make: fn(&mut Site, &mut fastrand::Rng) -> Result<()>,
}

/// What came of it, all in all.
#[derive(Default)]
struct Tally {
    times: u32,
    failed: u32,
    harm: Harm,
    longest: Duration,
}

impl Tally {
    fn is_clean(&self) -> bool {
        self.failed == 0 && self.harm.is_none()
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs, prints the table, and says whether nothing was harmed.
fn run(args: &Args) -> Result<bool> {
    let all: Vec<Fault> = served::FAULTS.iter().chain(alone::FAULTS).copied().collect();
    if args.list {
        all.iter().for_each(|fault| println!("{}", fault.name));
        return Ok(true);
    }
    if let Some(unknown) = args.only.iter().find(|name| !all.iter().any(|fault| fault.name == **name)) {
        anyhow::bail!("there is no fault `{unknown}`; --list says which there are");
    }
    ensure!(Uid::effective().is_root(), "this makes network namespaces and loads programs: run it as root");
    let wanted = |fault: &&Fault| args.only.is_empty() || args.only.iter().any(|name| name == fault.name);
    let faults: Vec<Fault> = all.iter().filter(wanted).copied().collect();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("seed {seed}, {} s", args.length.as_secs());
    let interrupt = Interrupt::catch()?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let began = Instant::now();
    let mut site = Site::new()?;
    let mut sent = 0;
    let mut order: Vec<Fault> = Vec::new();
    while began.elapsed() < args.length && !interrupt.has_come() {
        // Each once, before any of them again.
        let Some(fault) = order.pop() else {
            order.clone_from(&faults);
            random.shuffle(&mut order);
            continue;
        };
        let at = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let made = (fault.make)(&mut site, &mut random).with_context(|| fault.name.to_owned());
        let checked = site.harm();
        let tally = tallies.entry(fault.name).or_default();
        tally.times += 1;
        tally.longest = tally.longest.max(began.elapsed());
        let failed = match (&made, &checked) {
            (Ok(()), Ok(harm)) => {
                tally.harm.add(*harm);
                (!harm.is_none()).then(|| harm.to_string())
            }
            (Err(error), _) | (Ok(()), Err(error)) => {
                tally.failed += 1;
                Some(format!("{error:#}"))
            }
        };
        let result = failed.as_deref().unwrap_or("ok");
        println!("{at:7.1} s {:40} {result}", fault.name);
        if failed.is_some() {
            // What follows is to tell of itself.
            sent += site.sent();
            drop(site);
            site = Site::new()?;
        }
    }
    sent += site.sent();
    let left = site.end()?;
    print(&tallies, sent, began.elapsed(), seed, left);
    Ok(left == 0 && tallies.values().all(Tally::is_clean))
}

fn print(tallies: &BTreeMap<&str, Tally>, sent: u64, took: Duration, seed: u64, left: usize) {
    let mut table = Table::new(&[
        "FAULT",
        ">TIMES",
        ">FAILED",
        ">PACKETS LOST",
        ">RATES LOST",
        ">LEFT BEHIND",
        ">LONGEST",
    ]);
    let mut all = Tally::default();
    for (name, tally) in tallies {
        table.row(cells(name, tally));
        all.times += tally.times;
        all.failed += tally.failed;
        all.harm.add(tally.harm);
        all.longest = all.longest.max(tally.longest);
    }
    all.harm.left_behind += left as u64;
    table.row(cells("all", &all));
    println!(
        "\n{table}\nseed {seed}, {:.0} s, {sent} packets sent, {left} things left at the end",
        took.as_secs_f64()
    );
}

fn cells(name: &str, tally: &Tally) -> [String; 7] {
    let Harm { packets_lost, rates_lost, left_behind } = tally.harm;
    [
        name.to_owned(),
        tally.times.to_string(),
        tally.failed.to_string(),
        packets_lost.to_string(),
        rates_lost.to_string(),
        left_behind.to_string(),
        format!("{:.1} s", tally.longest.as_secs_f64()),
    ]
}
