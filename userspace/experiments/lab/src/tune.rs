//! `tune`: parameters for a fabric and its traffic, as a file for `dcqcn-fleet apply`.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, ensure};
use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, Args};
use dcqcn_sim::presets::refuse_unread;
use dcqcn_sim::tune::{FleetTarget, Task, TuneReport, tune};
use dcqcn_support::cli::Output;
use dcqcn_support::file::Replacement;
use dcqcn_support::number::number;

use crate::WrongUsage;

/// Search for better parameters in a simulated fabric: Kmin, Kmax, Pmax and the rate machine.
///
/// Simulates random candidates and the published presets on your fabric and traffic, described by the flags
/// of `sim fabric`. The default objective is the 99th percentile of slowdown: the completion time of a flow
/// relative to an empty fabric. Workloads and seeds are combined by geometric mean. The best candidates and
/// all presets are simulated again with other seeds, and that result decides. The same flags give the same
/// result on any number of cores.
#[derive(Debug, Args)]
#[command(mut_args(adapted))]
#[command(after_long_help = "\
The search covers the profile (of those for the hosts' links), Kmin, Kmax and Pmax of the flows' class, rpg_ai_rate,
rpg_hai_rate, rpg_time_reset, dce_tcp_g and min_time_between_cnps. --profile and --set fix a value for all candidates.

Columns: SLOWDOWN with the other seeds; SEARCHED, slowdown with the seeds of the search; QUEUE, the deepest queue of any port;
PAUSES, DROPS and LEFT (incomplete flows), totals of all simulations with the other seeds. `!` marks a candidate beyond a
limit, which ranks behind all others. --max-pauses and --max-drops are per simulation; the limits below the table are totals.

Examples:
  # random traffic at 60 % load, and incasts; write the best result for the fleet
  dcqcn-lab tune --load 60% --also workload=incast:12,size=500KB --out fleet.toml
  dcqcn-fleet apply fleet.toml --group tuned --dry-run
  # queues up to 1 MB, without packet loss
  dcqcn-lab tune --load 60% --max-queue 1MB --max-drops 0
  # keep the NIC's rate machine and its steps
  dcqcn-lab tune --profile nvidia --set rpg_ai_rate=5mbit --set rpg_hai_rate=50mbit --budget 48")]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    task: Task,
    /// Cores to use [default: all].
    #[arg(long, value_name = "N", value_parser = number("threads", 1u16..=1024), help_heading = "Search")]
    threads: Option<u16>,
    /// Write the best result as a file for `dcqcn-fleet apply`, unless it exceeds a limit.
    #[arg(long, value_name = "FILE", help_heading = "Fleet")]
    out: Option<PathBuf>,
    /// With --out: name of the group.
    #[arg(long, value_name = "NAME", default_value = "tuned", requires = "out", value_parser = NonEmptyStringValueParser::new(), help_heading = "Fleet")]
    group: String,
    /// With --out: a label of the group's hosts. May be repeated [default: all hosts].
    #[arg(long, value_name = "KEY=VALUE", value_parser = label, requires = "out", help_heading = "Fleet")]
    label: Vec<(String, String)>,
    /// With --out: interfaces of the hosts.
    #[arg(long, value_name = "PATTERN", default_value = "eth*", requires = "out", value_parser = pattern, help_heading = "Fleet")]
    interface: String,
}

/// The flags of `sim fabric` as adapted here: those rejected are hidden.
fn adapted(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "sample" | "base_rtt" | "target_delay" | "control" => arg.hide(true),
        "duration" => arg.help(
            "Maximum time to simulate; the simulation ends when all flows are complete, and incomplete flows exceed a limit [default: 100ms]",
        ),
        _ => arg,
    }
}

/// A pattern that `dcqcn-fleet apply` accepts.
fn pattern(text: &str) -> Result<String, String> {
    match glob::Pattern::new(text) {
        Ok(_) if !text.is_empty() => Ok(text.to_owned()),
        Ok(_) => Err("a pattern is not empty".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not KEY=VALUE, as in `rack=a`")),
    }
}

/// The output file, and its target hosts.
struct Written {
    path: PathBuf,
    file: Replacement,
    target: FleetTarget,
}

impl Written {
    /// Opens the file before the search, so that an error is reported early.
    fn begin(path: PathBuf, target: FleetTarget) -> anyhow::Result<Self> {
        let mut keys = BTreeSet::new();
        for (key, _) in &target.labels {
            ensure!(
                keys.insert(key),
                "--label {key} is given twice: a host has one value per label; omit one"
            );
        }
        let file = Replacement::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, file, target })
    }

    fn finish(self, report: &TuneReport) -> anyhow::Result<String> {
        let Self { path, mut file, target } = self;
        let shown = path.display();
        let text = report.fragment(&target).with_context(|| format!("cannot write {shown}"))?;
        let mut write = || file.write_all(text.as_bytes());
        write().and_then(|()| file.finish()).with_context(|| format!("cannot write {shown}"))?;
        // Without --group, the other groups of the fleet's file would be dropped.
        let group = &target.group;
        Ok(format!(
            "wrote {shown}; to see its changes, run dcqcn-fleet apply {shown} --group {group} --dry-run\n"
        ))
    }
}

impl TuneArgs {
    pub(crate) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        ensure!(self.task.setup.is_dcqcn(), WrongUsage(anyhow!("only DCQCN can be tuned: omit --control")));
        refuse_unread(&self.task.setup.changes)?;
        let target = FleetTarget { group: self.group, labels: self.label, interface: self.interface };
        let written = self.out.map(|path| Written::begin(path, target)).transpose()?;
        let report = tune(&self.task, self.threads)?;
        out.show(&report)?;
        // After Ctrl-C too, write the best result so far.
        let written = written.map(|written| written.finish(&report)).transpose();
        let done = format!("interrupted: {} of {} candidates simulated", report.simulated, report.budget);
        let message = match written {
            Err(error) if report.is_interrupted => return Err(error.context(done)),
            written => written?,
        };
        if let Some(message) = message.filter(|_| !out.is_json()) {
            out.text(&message)?;
        }
        ensure!(!report.is_interrupted, done);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &str) -> Result<TuneArgs, clap::Error> {
        crate::parse(options)
    }

    /// The error of a run, and whether it printed a report before.
    fn error_of(options: &str) -> (String, bool) {
        let mut printed = Vec::new();
        let error = parse(options).unwrap().run(&mut Output::new(&mut printed, false)).unwrap_err();
        (dcqcn_support::causes::one_line(error.as_ref()), !printed.is_empty())
    }

    const SMALL: &str =
        "--topology leaf-spine:1x0x4 --workload incast:3 --size 100KB --budget 2 --seeds 1 --check-seeds 1";

    #[test]
    fn interface_option_needs_file() {
        for options in
            ["--group a", "--label rack=a", "--interface eth0", "--out x --group=", "--out x --interface="]
        {
            assert!(parse(options).is_err(), "{options}");
        }
        let args = parse("--out x --label rack=a").unwrap();
        assert_eq!((args.group.as_str(), args.interface.as_str()), ("tuned", "eth*"));
        assert!(parse("").is_ok());
    }

    /// An unwritable file fails before any simulation.
    #[test]
    fn unwritable_output_rejected_before_search() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.toml");
        for (options, expected) in [
            ("--out /nonexistent/fleet.toml".to_owned(), "cannot write /nonexistent/fleet.toml"),
            (format!("--out {}", directory.path().display()), "cannot write "),
            (
                format!("--out {} --label rack=a --label rack=b", path.display()),
                "--label rack is given twice",
            ),
        ] {
            let (error, is_printed) = error_of(&format!("{SMALL} {options}"));
            assert!(error.starts_with(expected) && !is_printed, "{error}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn invalid_interface_pattern_rejected() {
        for pattern in ["[", "***", ""] {
            assert!(parse(&format!("--out f.toml --interface={pattern}")).is_err(), "{pattern}");
        }
    }

    #[test]
    fn best_result_written_unless_limit_exceeded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.toml");
        let out = format!("{SMALL} --out {}", path.display());
        let (error, is_printed) = error_of(&format!("{out} --max-queue 1KB"));
        assert!(is_printed && error.starts_with(&format!("cannot write {}", path.display())), "{error}");
        assert!(error.contains("exceeds a limit: deepest queue "), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let mut printed = Vec::new();
        parse(&out).unwrap().run(&mut Output::new(&mut printed, false)).unwrap();
        let printed = String::from_utf8(printed).unwrap();
        assert!(printed.contains("; to see its changes, run dcqcn-fleet apply "), "{printed}");
        assert!(std::fs::read_to_string(&path).unwrap().contains("[[group.interface]]\nname = \"eth*\""));
    }

    #[test]
    fn help_lists_search_options() {
        let help = TuneArgs::augment_args(clap::Command::new("tune")).render_long_help().to_string();
        assert!(help.contains("[default: 100ms]") && !help.contains("[default: 1s]"), "{help}");
        for flag in ["--sample ", "--base-rtt ", "--target-delay ", "--control "] {
            assert!(!help.contains(flag), "{flag}");
        }
    }
}
