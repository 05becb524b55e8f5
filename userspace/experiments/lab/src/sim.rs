//! `sim`: simulation of DCQCN at any link speed.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgMatches, Args, FromArgMatches, Subcommand, ValueEnum};
use dcqcn_params::{Assignment, Profile, word};
use dcqcn_sim::knobs::{Knob, ROCE_KNOBS, SHORTHANDS};
use dcqcn_sim::presets::{Preset, Setting, Setup};
use dcqcn_sim::report::{Report, title, write_series};
use dcqcn_sim::sweep::{Axis, SimulationSetup as _, SweptRun, sweep};
use dcqcn_sim::sweep_report::{SweepReport, SweepRun};
use dcqcn_sim::{Run, file, plot};

use dcqcn_support::cli::Output;

use crate::fabric::FabricArgs;
use crate::files::{INTERRUPTED, ensure_complete, refuse_in_sweep, refuse_two_outputs, show, write_file};

/// Defaults of the comparison in `stability`.
const STABILITY_FLOWS: &str = "flows=2,10,64";
const STABILITY_DELAYS: &str = "loop-delay=4us,85us";

/// Simulate DCQCN packet by packet, at any link speed, with the code of the data plane.
///
/// Senders, each with its own link into a switch, one output port, one receiver. Rates, marks and CNP intervals are
/// computed by the same functions as in the kernel. Equal settings and seeds give bit-identical results.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_long_help = "\
FILE is a scenario in TOML whose keys are the names of the flags; flags override the file. All flags are described in
`dcqcn-lab sim incast --help`. The default profile is `paper` at any link rate.

CSV of one run: a line per sample and series, t_ns,series,rate_bps,target_bps,goodput_bps,queue_bytes,
max_queue_bytes; a series is `flow:NAME`, `group:NAME` or `class:N`. CSV of a sweep: a line per run.

Examples:
  # 8 flows into 40 Gbit/s; the report compares the queue with the fluid model
  dcqcn-lab sim incast --flows 8
  # a sweep on all cores, one table
  dcqcn-lab sim incast --flows 16 --sweep kmax=200KB,400KB,1MB --sweep profile=paper,nvidia
  # a custom scenario
  dcqcn-lab sim example > mine.toml && dcqcn-lab sim mine.toml --duration 150ms --plot mine"
)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: Option<SimCommand>,
    /// Scenario file (`dcqcn-lab sim example` prints one).
    #[arg(value_name = "FILE.toml")]
    file: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs<{ Preset::Incast as usize }>,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Simulate N senders and one receiver.
    ///
    /// The report compares the measured queue with the fixed point of the fluid model, if that applies: the paper's
    /// rate machine, endless data, no other traffic.
    #[command(after_long_help = "\
Examples:
  dcqcn-lab sim incast --flows 4
  # the paper's packets of 1 KB; plots of rates and queue
  dcqcn-lab sim incast --flows 2 --mtu 1000B --header 0 --plot incast
  # 100 Gbit/s with HPCC's thresholds
  dcqcn-lab sim incast --link 100g --kmin 400KB --kmax 1600KB --pmax 20%
  # 64 messages of 1 MB without DCQCN, lossless by PFC
  dcqcn-lab sim incast --flows 64 --size 1MB --control off --pfc on
  # a single value
  dcqcn-lab sim incast --json | jq '.outcome.classes[0].queue.mean_bytes'")]
    Incast(Box<RunArgs<{ Preset::Incast as usize }>>),
    /// Start with two flows and add one more every --step.
    #[command(after_long_help = "\
Examples:
  dcqcn-lab sim staircase
  dcqcn-lab sim staircase --flows 5 --step 50ms --duration 250ms --plot staircase.svg")]
    Staircase(Box<RunArgs<{ Preset::Staircase as usize }>>),
    /// Measure oscillation: few and many flows, with a short and a long control loop.
    ///
    /// By default: 2, 10 and 64 flows, each with 4 us and 85 us of loop delay. The table shows the queue's deviation
    /// from its mean, the swing of the sum of all rates, and the utilisation of the link.
    #[command(after_long_help = "\
Examples:
  dcqcn-lab sim stability
  # with parameters that remove the oscillation
  dcqcn-lab sim stability --set rpg_ai_rate=10mbit --kmax 1000KB
  # plot one unstable case
  dcqcn-lab sim stability --flows 10 --loop-delay 85us --plot unstable")]
    Stability(Box<RunArgs<{ Preset::Stability as usize }>>),
    /// Read blocks from storage alongside TCP, with or without classes, ECN and DCQCN.
    ///
    /// One client reads blocks of 16 KiB from 6 targets over a port of 25 Gbit/s that bulk TCP shares.
    #[command(after_long_help = "\
Examples:
  dcqcn-lab sim coexist --classes on
  dcqcn-lab sim coexist --sweep classes=on,off
  dcqcn-lab sim coexist --tcp 16 --tcp-law dctcp --outstanding 64")]
    Coexist(Box<RunArgs<{ Preset::Coexist as usize }>>),
    Fabric(Box<FabricArgs>),
    /// Print a scenario file with all settings.
    #[command(after_long_help = "\
Examples:
  dcqcn-lab sim example > scenario.toml")]
    Example,
}

impl SimArgs {
    pub(crate) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        match self.command {
            Some(SimCommand::Incast(args)) => args.run(None, out),
            Some(SimCommand::Staircase(args)) => args.run(None, out),
            Some(SimCommand::Stability(args)) => args.run(None, out),
            Some(SimCommand::Coexist(args)) => args.run(None, out),
            Some(SimCommand::Fabric(args)) => args.run(out),
            Some(SimCommand::Example) => Ok(out.text(&file::EXAMPLE)?),
            None => {
                let path = self.file.context(
                    "nothing to simulate: specify a preset, as in `dcqcn-lab sim incast`, or a FILE.toml",
                )?;
                self.run.run(Some(&path), out)
            }
        }
    }
}

/// Flags of all simulations. `PRESET` is the index of the preset.
#[derive(Debug, Args)]
struct RunArgs<const PRESET: usize> {
    #[command(flatten)]
    knobs: Knobs<PRESET>,
    /// Send messages at random times with the size distribution in this file: lines BYTES,WEIGHT, or `BYTES PERCENT`
    /// (cumulative, as in HPCC's traffic generator). See --load.
    #[arg(long, value_name = "FILE", help_heading = "RoCE flows")]
    flow_sizes: Option<PathBuf>,
    /// Profile to start from [default: paper].
    #[arg(long, value_enum, help_heading = "DCQCN")]
    profile: Option<Profile>,
    /// Set a DCQCN parameter; overrides the profile. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", help_heading = "DCQCN")]
    changes: Vec<Assignment>,
    /// Run with each value of a flag or parameter, on all cores. May be repeated: all combinations.
    #[arg(long, value_name = "KEY=VALUE,...")]
    sweep: Vec<Axis>,
    /// Write time series to this file; for a sweep, a line per run.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Plot rates and queue over time to FILE (.svg or .png); without such an extension, to FILE.svg and FILE.png.
    #[arg(long, value_name = "FILE", value_parser = plot::path)]
    plot: Option<PathBuf>,
}

/// The flags described by [`Knob`]s.
#[derive(Clone, Debug, Default)]
struct Knobs<const PRESET: usize>(Vec<Setting>);

impl<const PRESET: usize> Knobs<PRESET> {
    fn preset() -> Preset {
        Preset::value_variants().get(PRESET).copied().unwrap_or(Preset::Incast)
    }

    fn keys() -> impl Iterator<Item = &'static str> {
        let own = Setup::knobs(Self::preset()).map(|knob| knob.key);
        own.chain(ROCE_KNOBS.iter().map(|knob| knob.key)).chain(SHORTHANDS.iter().map(|short| short.0))
    }
}

impl<const PRESET: usize> Args for Knobs<PRESET> {
    fn augment_args(mut command: clap::Command) -> clap::Command {
        fn arg<T>(knob: &'static Knob<T>, doc: &str, defaults: &T) -> Arg {
            let default = format!(" [default: {}]", knob.text(defaults));
            // Unless it depends on other settings.
            let default = if doc.contains("[default:") { "" } else { &default };
            flag(knob.key, knob.value, format!("{doc}{default}"))
        }
        fn flag(key: &'static str, value: &'static str, help: String) -> Arg {
            let parse = move |text: &str| Setting::new(key, text);
            Arg::new(key).long(key).value_name(value).help(help).value_parser(parse)
        }
        let defaults = Setup::new(Self::preset());
        for knob in Setup::knobs(Self::preset()) {
            // `staircase` has a fixed one.
            let is_fixed = knob.key == "warm-up" && defaults.warm_up_ns.is_some();
            let doc = knob.doc.split_once(" [").filter(|_| is_fixed).map_or(knob.doc, |(doc, _)| doc);
            let arg = arg(knob, doc, &defaults).help_heading("Network and time");
            let arg = if knob.key == "loop-delay" { arg.conflicts_with("delay") } else { arg };
            command = command.arg(arg);
        }
        for knob in ROCE_KNOBS {
            command = command.arg(arg(knob, knob.doc, &defaults.roce).help_heading("RoCE flows"));
        }
        for (key, name, value, doc) in SHORTHANDS {
            let help = format!("{doc}; short for --set {name}");
            command = command.arg(flag(key, value, help).help_heading("DCQCN"));
        }
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl<const PRESET: usize> FromArgMatches for Knobs<PRESET> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = Self::keys().filter_map(|key| matches.get_one::<Setting>(key).cloned());
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<const PRESET: usize> RunArgs<PRESET> {
    fn run(&self, file: Option<&Path>, out: &mut Output<'_>) -> anyhow::Result<()> {
        refuse_two_outputs(out, self.csv.as_deref())?;
        let (mut base, axes) = (self.setup(file)?, self.axes()?);
        refuse_in_sweep(self.plot.as_deref(), "--plot", &axes)?;
        base.series = axes.is_empty() && (self.csv.is_some() || self.plot.is_some());
        let mut runs = sweep(&base, &axes, None)?;
        if axes.is_empty() {
            return self.show_one(runs.pop().context(INTERRUPTED)?, out);
        }
        let report = |completed: SweptRun<Setup>| {
            let SweptRun { settings, setup, simulation, run } = completed;
            SweepRun::new(settings, Report::new(&setup, &simulation, run.outcome, run.wall))
        };
        let report = SweepReport { runs: runs.into_iter().map(report).collect() };
        show(out, &report, self.csv.as_deref())?;
        if let Some(path) = &self.csv {
            write_file(path, |file| report.write_csv(file))?;
        }
        ensure_complete(report.runs.len(), &axes)
    }

    fn setup(&self, file: Option<&Path>) -> anyhow::Result<Setup> {
        let mut setup = match file {
            Some(path) => file::read(path)?,
            None => Setup::new(Knobs::<PRESET>::preset()),
        };
        self.knobs.0.iter().try_for_each(|setting| setup.apply(setting))?;
        if let Some(path) = &self.flow_sizes {
            setup.roce.sizes = file::flow_sizes(path)?;
        }
        if let Some(profile) = self.profile {
            setup.set("profile", &word(&profile))?;
        }
        setup.changes.extend(&self.changes);
        Ok(setup)
    }

    fn is_set(&self, keys: &[&str]) -> bool {
        let swept = self.sweep.iter().filter_map(|axis| axis.settings.first());
        self.knobs.0.iter().chain(swept).any(|setting| keys.contains(&setting.key.as_str()))
    }

    /// Axes of the sweep: those requested, and the defaults of `stability` unless overridden.
    fn axes(&self) -> anyhow::Result<Vec<Axis>> {
        let mut axes = Vec::new();
        if PRESET == Preset::Stability as usize {
            if !self.is_set(&["flows"]) {
                axes.push(STABILITY_FLOWS.parse()?);
            }
            if !self.is_set(&["delay", "loop-delay"]) {
                axes.push(STABILITY_DELAYS.parse()?);
            }
        }
        axes.extend(self.sweep.iter().cloned());
        Ok(axes)
    }

    fn show_one(&self, completed: SweptRun<Setup>, out: &mut Output<'_>) -> anyhow::Result<()> {
        let SweptRun { setup, simulation: star, run: Run { outcome, wall }, .. } = completed;
        let series = outcome.series.clone();
        // First, as a file may fail.
        show(out, &Report::new(&setup, &star, outcome, wall), self.csv.as_deref())?;
        let Some(series) = &series else { return Ok(()) };
        if let Some(path) = &self.csv {
            write_file(path, |file| write_series(file, series))?;
        }
        if let Some(path) = &self.plot {
            plot::write(path, &title(&setup), &star, series)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
