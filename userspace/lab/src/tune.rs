//! `tune`: parameters for a fabric and its traffic, as a file for `dcqcn-fleet apply`.

use std::io::Write as _;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context as _, ensure};
use clap::Args;
use dcqcn_cli::Output;
use dcqcn_params::quantity::parse_bytes;
use dcqcn_sim::fabric::FabricSetup;
use dcqcn_sim::tune::{Limits, Method, Objective, Place, Task, TuneReport, tune};
use dcqcn_support::file::Replacement;

/// Look for better parameters in a simulated fabric: Kmin, Kmax, Pmax and the rate machine.
///
/// Simulates candidates on a fabric and traffic of yours (the flags are those of `sim fabric`), and the presets that others publish.
/// What is small in a good one: the 99th percentile of slowdown, which is how many times as long as in an empty fabric a flow took;
/// of several workloads and seeds the geometric mean. The first quarter of the candidates is drawn at random, of the paper's machine
/// only those for which DCQCN's fluid model has a steady queue; the others follow from what was found. The best, and all presets, are
/// simulated again with seeds that were not searched on: that decides. The same flags find the same, on any number of cores.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Searched are the profile (those for the hosts' links), Kmin, Kmax and Pmax of the flows' class, rpg_ai_rate, rpg_hai_rate,
rpg_time_reset, dce_tcp_g and min_time_between_cnps. What --profile and --set say is the same in all candidates, and not searched.

Columns: SLOWDOWN with the other seeds, SEARCHED with those of the search, QUEUE the deepest of any port, PAUSES, DROPS and LEFT
(flows that did not end) of all simulations with the other seeds. `!` is what breaks a limit, and comes behind all that keep them;
--max-pauses and --max-drops count for each simulation, and the limits below the table for as many as there are.

Examples:
  # random traffic at 60 % load, and incasts; the best as a file for the fleet
  dcqcn-lab tune --load 60% --also workload=incast:12,size=500KB --out fleet.toml
  dcqcn-fleet apply fleet.toml --dry-run
  # queues of no more than 1 MB, and no packet lost
  dcqcn-lab tune --load 60% --max-queue 1MB --max-drops 0
  # the NIC's machine and its steps stay
  dcqcn-lab tune --profile nvidia --set rpg_ai_rate=5mbit --set rpg_hai_rate=50mbit --budget 48
  # what the search has to be better than
  dcqcn-lab tune --load 60% --search random")]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    setup: FabricSetup,
    /// More traffic that the same parameters must serve: flags that count over the others, as workload=incast:16,size=500KB. May be repeated.
    #[arg(long, value_name = "KEY=VALUE,...", help_heading = "Search")]
    also: Vec<String>,
    /// Candidates to simulate.
    #[arg(long, value_name = "N", default_value_t = 96, value_parser = clap::value_parser!(u16).range(1..=10_000), help_heading = "Search")]
    budget: u16,
    /// Which figure of slowdown is to be small.
    #[arg(long, value_name = "FIGURE", value_enum, default_value_t = Objective::P99, help_heading = "Search")]
    objective: Objective,
    /// Deepest queue of a port; a candidate beyond is behind all that keep to it.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Search")]
    max_queue: Option<u64>,
    /// Most times that switches pause a neighbour, in a simulation on average [default: the fewest of any preset, and a tenth more].
    #[arg(long, value_name = "N", help_heading = "Search")]
    max_pauses: Option<u64>,
    /// Most packets dropped, in a simulation on average.
    #[arg(long, value_name = "N", help_heading = "Search")]
    max_drops: Option<u64>,
    /// Seeds of each workload, from --seed on, while searching.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100), help_heading = "Search")]
    seeds: u64,
    /// Other seeds for the second look at the best.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100), help_heading = "Search")]
    check_seeds: u64,
    /// Candidates that get a second look.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100), help_heading = "Search")]
    keep: u16,
    /// How candidates are found: from the fluid model and what was found before (tpe), or all by chance (random).
    #[arg(long, value_name = "METHOD", value_enum, default_value_t = Method::Tpe, help_heading = "Search")]
    search: Method,
    /// Where the random numbers of the search begin.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Search")]
    search_seed: u64,
    /// Cores to use [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Search")]
    threads: Option<u16>,
    /// Write the best here, for `dcqcn-fleet apply`: candidate or preset, with --profile or --set one that has what they say. Not if it breaks a limit.
    #[arg(long, value_name = "FILE", help_heading = "Fleet")]
    out: Option<PathBuf>,
    /// With --out: name of the group.
    #[arg(long, value_name = "NAME", default_value = "tuned", help_heading = "Fleet")]
    group: String,
    /// With --out: a label that the group's hosts have. May be repeated [default: all hosts].
    #[arg(long, value_name = "KEY=VALUE", value_parser = label, help_heading = "Fleet")]
    label: Vec<(String, String)>,
    /// With --out: the hosts' interfaces.
    #[arg(long, value_name = "PATTERN", default_value = "eth*", help_heading = "Fleet")]
    interface: String,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not KEY=VALUE, as in `rack=a`")),
    }
}

impl TuneArgs {
    pub(crate) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        ensure!(self.setup.is_dcqcn(), "DCQCN is what is tuned: leave --control out");
        let threads = match self.threads {
            Some(threads) => threads.into(),
            None => thread::available_parallelism().map_or(1, usize::from),
        };
        let limits = Limits { queue_bytes: self.max_queue, pauses: self.max_pauses, drops: self.max_drops };
        let task = Task {
            setup: self.setup,
            also: self.also,
            budget: self.budget.into(),
            method: self.search,
            search_seed: self.search_seed,
            seeds: self.seeds,
            check_seeds: self.check_seeds,
            keep: self.keep.into(),
            objective: self.objective,
            limits,
        };
        let report = tune(&task, threads)?;
        out.show(&report)?;
        ensure!(
            !report.is_interrupted,
            "interrupted: {} of {} candidates are simulated",
            report.simulated,
            task.budget
        );
        if let Some(path) = &self.out {
            let place = Place { group: self.group, labels: self.label, interface: self.interface };
            write(&report, &place, path)?;
            if !out.is_json() {
                let shown = path.display();
                out.text(&format!(
                    "{shown} is written; what it would change: dcqcn-fleet apply {shown} --dry-run\n"
                ))?;
            }
        }
        Ok(())
    }
}

fn write(report: &TuneReport, place: &Place, path: &std::path::Path) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let text = report.fragment(place).context("nothing was simulated")?;
    let mut file = Replacement::create(path).with_context(failed)?;
    file.write_all(text.as_bytes()).with_context(failed)?;
    file.finish().with_context(failed)
}
