//! Random faults under traffic, for the requested time; `cargo xtask soak` builds and runs it.

mod commands;
mod daemon;
mod fixture;
mod supervise;

use std::process::ExitCode;
use std::sync::Mutex;

use clap::Parser;
use dcqcn_support::interrupt::Interrupt;
use dcqcn_support::render::Table;
use dcqcn_support::sync::lock;
use dcqcn_tests::command::exit_code;
use dcqcn_tests::prelude::*;
use nix::unistd::Uid;

use crate::fixture::{SoakFixture, Violations};

/// Inject every tested fault in random order, under traffic.
#[derive(Parser)]
struct Args {
    /// Duration.
    #[arg(long = "for", value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    length: Duration,
    /// Seed of the random order, which is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Inject only these faults.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// List the faults.
    #[arg(long)]
    list: bool,
}

/// A fault, and its cause.
#[derive(Clone, Copy)]
struct Fault {
    name: &'static str,
    make: fn(&mut SoakFixture, &mut fastrand::Rng) -> Result<()>,
}

const fn fault(name: &'static str, make: fn(&mut SoakFixture, &mut fastrand::Rng) -> Result<()>) -> Fault {
    Fault { name, make }
}

#[derive(Default)]
struct Tally {
    times: u32,
    failed: u32,
    violations: Violations,
    longest: Duration,
}

impl Tally {
    fn is_clean(&self) -> bool {
        self.failed == 0 && self.violations.is_none()
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let ran = if args.list || supervise::is_worker() { run(&args) } else { supervise::run() };
    exit_code(&ran)
}

/// Runs, prints the table, and returns whether all is well.
fn run(args: &Args) -> Result<bool> {
    let all: Vec<Fault> = daemon::FAULTS.iter().chain(commands::FAULTS).copied().collect();
    if args.list {
        all.iter().for_each(|fault| println!("{}", fault.name));
        return Ok(true);
    }
    if let Some(unknown) = args.only.iter().find(|name| !all.iter().any(|fault| fault.name == **name)) {
        bail!("unknown fault `{unknown}`; --list prints all faults");
    }
    ensure!(Uid::effective().is_root(), "this makes network namespaces and loads programs: run it as root");
    let is_selected =
        |fault: &&Fault| args.only.is_empty() || args.only.iter().any(|name| name == fault.name);
    let faults: Vec<Fault> = all.iter().filter(is_selected).copied().collect();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("seed {seed}, {} s", args.length.as_secs());
    let soak = Arc::new(Mutex::new(Soak { seed, began: Instant::now(), sent: 0, tallies: BTreeMap::new() }));
    exit_immediately(&soak)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let began = Instant::now();
    let mut fixture = SoakFixture::new()?;
    let mut sent = 0;
    let mut order: Vec<Fault> = Vec::new();
    while began.elapsed() < args.length {
        // Inject each fault once before repeating any.
        let Some(fault) = order.pop() else {
            order.clone_from(&faults);
            random.shuffle(&mut order);
            continue;
        };
        let at = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let made = (fault.make)(&mut fixture, &mut random).with_context(|| fault.name.to_owned());
        let checked = fixture.violations();
        let mut soak = lock(&soak);
        soak.sent = sent + fixture.sent();
        let tally = soak.tallies.entry(fault.name).or_default();
        tally.times += 1;
        tally.longest = tally.longest.max(began.elapsed());
        let failed = match (&made, &checked) {
            (Ok(()), Ok(violations)) => {
                tally.violations.add(*violations);
                (!violations.is_none()).then(|| violations.to_string())
            }
            (Err(error), _) | (Ok(()), Err(error)) => {
                tally.failed += 1;
                Some(format!("{error:#}"))
            }
        };
        drop(soak);
        let result = failed.as_deref().unwrap_or("ok");
        println!("{at:7.1} s {:40} {result}", fault.name);
        if failed.is_some() {
            // Later results must not depend on earlier ones.
            sent += fixture.sent();
            drop(fixture);
            fixture = SoakFixture::new()?;
        }
    }
    sent += fixture.sent();
    let left = fixture.end()?;
    let mut soak = lock(&soak);
    soak.sent = sent;
    soak.print(left as u64, &format!("{left} leftovers at the end"));
    Ok(left == 0 && soak.is_clean())
}

struct Soak {
    seed: u64,
    began: Instant,
    sent: u64,
    tallies: BTreeMap<&'static str, Tally>,
}

/// Prints the results and exits when the end is requested, during any fault: the parent removes the remains.
fn exit_immediately(soak: &Arc<Mutex<Soak>>) -> Result<()> {
    let interrupt = Interrupt::catch()?;
    let soak = Arc::clone(soak);
    let watch = move || {
        while !interrupt.sleep(Duration::from_secs(60)).unwrap_or(true) {}
        let soak = lock(&soak);
        soak.print(0, "called off");
        std::process::exit(i32::from(!soak.is_clean()));
    };
    thread::Builder::new().name("end".into()).spawn(watch).context("no thread")?;
    Ok(())
}

impl Soak {
    fn is_clean(&self) -> bool {
        self.tallies.values().all(Tally::is_clean)
    }

    fn print(&self, left: u64, end: &str) {
        let mut all = Tally::default();
        for tally in self.tallies.values() {
            all.times += tally.times;
            all.failed += tally.failed;
            all.violations.add(tally.violations);
            all.longest = all.longest.max(tally.longest);
        }
        all.violations.leaked += left;
        let rows = self.tallies.iter().map(|(name, tally)| (*name, tally)).chain([("all", &all)]);
        let table = Table::of(
            rows,
            &[
                ("FAULT", &|row| row.0.to_owned()),
                (">TIMES", &|row| row.1.times.to_string()),
                (">FAILED", &|row| row.1.failed.to_string()),
                (">PACKETS LOST", &|row| row.1.violations.packets_lost.to_string()),
                (">RATES LOST", &|row| row.1.violations.rates_lost.to_string()),
                (">LEFT BEHIND", &|row| row.1.violations.leaked.to_string()),
                (">LONGEST", &|row| format!("{:.1} s", row.1.longest.as_secs_f64())),
            ],
        );
        let Self { seed, sent, .. } = self;
        // The reader may have exited.
        let seconds = self.began.elapsed().as_secs();
        let end = format!("seed {seed}, {seconds} s, {sent} packets sent, {end}");
        let _ = writeln!(std::io::stdout(), "\n{table}\n{end}");
    }
}
