//! Measures the data plane and its control plane; `cargo xtask bench` builds and runs it.

mod bmv2;
mod control;
mod gate;
mod growth;
mod links;
mod live;
mod per_packet;
mod programs;
mod report;
mod runner;
mod scale;
mod tables;
mod tcp;

use std::process::ExitCode;

use clap::{Parser, ValueEnum as _};
use dcqcn_tests::prelude::*;

use crate::gate::Verdict;
use crate::report::{Machine, Metric, Report, Section, Skipped, VERSION};
use crate::runner::Baselines;

/// Measure the data plane and its control plane.
#[derive(Parser)]
struct Args {
    /// Fewer rounds and cases: a smoke test.
    #[arg(long)]
    quick: bool,
    /// Measure these parts only.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Section>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Also write the JSON to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Compare with the JSON of an earlier run, ratio by ratio. Regressions and noisy values are measured again, up to
    /// three times. Exit code 2: a regression; 3: no regression, but inconclusive.
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
    /// Check machine-independent ratios against their bounds; exit code 2 if one is exceeded.
    #[arg(long, conflicts_with = "compare")]
    gate: bool,
    /// Write the tables in Markdown, a file each, and the plots to this directory.
    #[arg(long, value_name = "DIRECTORY")]
    pages: Option<PathBuf>,
}

/// A run in progress.
pub(crate) struct Bench {
    quick: bool,
    baselines: Baselines,
    metrics: Vec<Metric>,
    skipped: Vec<Skipped>,
}

impl Bench {
    pub(crate) fn add(&mut self, metric: Metric) {
        self.metrics.push(metric);
    }

    /// Records that something cannot be measured here.
    pub(crate) fn skip(&mut self, what: &str, why: &str) {
        eprintln!("SKIPPED {what}: {why}");
        self.skipped.push(Skipped { what: what.to_owned(), why: why.to_owned() });
    }

    pub(crate) fn progress(&self, what: &str) {
        eprintln!("   {what}");
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    ensure!(nix::unistd::Uid::effective().is_root(), "loading programs needs root: run it as root");
    let old = args.compare.as_ref().map(read).transpose()?;
    if let Some(old) = &old {
        ensure!(old.quick == args.quick, "quick and complete runs differ; compare two of a kind");
    }
    let selected: Vec<Section> = match args.only.as_slice() {
        [] => Section::value_variants().to_vec(),
        only => Section::value_variants().iter().copied().filter(|section| only.contains(section)).collect(),
    };
    let report = measure(&selected, args.quick)?;
    let json = serde_json::to_string_pretty(&report)?;
    if let Some(file) = &args.save {
        fs::write(file, &json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(directory) = &args.pages {
        tables::pages(&report, directory)?;
    }
    if args.json {
        println!("{json}");
    } else {
        print!("{}", tables::text(&report));
    }
    // JSON is printed to standard output.
    let print_text = |text: &str| if args.json { eprint!("{text}") } else { print!("\n{text}") };
    if let Some(old) = old {
        return compare(&old, report, args.quick, print_text);
    }
    if args.gate {
        return gate(report, &selected, args.quick, print_text);
    }
    Ok(ExitCode::SUCCESS)
}

/// Exit codes of a regression, and of an inconclusive comparison.
const WORSE: u8 = 2;
const INCONCLUSIVE: u8 = 3;

/// Compares a run with an earlier one, and repeats measurements in doubt.
fn compare(old: &Report, report: Report, quick: bool, print_text: impl Fn(&str)) -> Result<ExitCode> {
    let mut runs = vec![report];
    let mut changes = gate::compare(old, &runs);
    while runs.len() < gate::MAX_RUNS && !gate::doubtful(&changes).is_empty() {
        runs.push(measure(&gate::doubtful(&changes), quick)?);
        changes = gate::compare(old, &runs);
    }
    print_text(&tables::changes(&changes));
    Ok(match changes.iter().map(|change| change.verdict).max() {
        Some(Verdict::Worse) => ExitCode::from(WORSE),
        Some(Verdict::Unsure) | None => ExitCode::from(INCONCLUSIVE),
        Some(Verdict::Kept) => ExitCode::SUCCESS,
    })
}

/// Checks sections of a run against the machine-independent bounds, and repeats those beyond them.
fn gate(report: Report, sections: &[Section], quick: bool, print_text: impl Fn(&str)) -> Result<ExitCode> {
    let mut beyond = gate::beyond(&report, sections);
    for _ in 1..gate::MAX_RUNS {
        if beyond.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        let is_beyond = |section: &Section| beyond.iter().any(|(of, _)| of == section);
        let again: Vec<Section> = sections.iter().copied().filter(is_beyond).collect();
        beyond = gate::beyond(&measure(&again, quick)?, &again);
    }
    beyond.iter().for_each(|(_, line)| print_text(&format!("BEYOND {line}\n")));
    Ok(ExitCode::from(if beyond.is_empty() { 0 } else { WORSE }))
}

fn measure(sections: &[Section], quick: bool) -> Result<Report> {
    let start = Instant::now();
    let mut bench =
        Bench { quick, baselines: Baselines::load(LO)?, metrics: Vec::new(), skipped: Vec::new() };
    for section in sections {
        match section {
            Section::Packets => per_packet::measure(&mut bench)?,
            Section::Growth => growth::measure(&mut bench)?,
            Section::Cpus => growth::cpus(&mut bench)?,
            Section::Programs => programs::measure(&mut bench)?,
            Section::Links => {
                links::measure(&mut bench)?;
                bmv2::measure(&mut bench)?;
            }
            Section::Tcp => tcp::measure(&mut bench)?,
            Section::Live => live::measure(&mut bench)?,
            Section::Control => control::measure(&mut bench)?,
        }
    }
    let mut report = Report {
        version: VERSION,
        machine: machine()?,
        quick,
        seconds: start.elapsed().as_secs_f64(),
        metrics: bench.metrics,
        skipped: bench.skipped,
        targets: Vec::new(),
    };
    report.targets = tables::targets(&report);
    Ok(report)
}

fn read(path: &PathBuf) -> Result<Report> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report: Report = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a report of `cargo xtask bench --json`", path.display()))?;
    let (path, found) = (path.display(), report.version);
    ensure!(found == VERSION, "{path} has version {found}, expected {VERSION}: run that benchmark again");
    Ok(report)
}

fn machine() -> Result<Machine> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let field = |name: &str| {
        cpuinfo.lines().find_map(|line| Some(line.strip_prefix(name)?.split_once(':')?.1.trim().to_owned()))
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let kernel: String = release.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    Ok(Machine {
        cpu: field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cpus: thread::available_parallelism()?.get(),
        is_virtual: field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        kernel: kernel.split('.').take(2).collect::<Vec<_>>().join("."),
    })
}
