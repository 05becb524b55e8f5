//! The `dcqcn-lab` command for experiments: congestion in network namespaces, a simulator, replays of
//! captures and flows through the pipeline, and tools for the P4 program.

mod fabric;
mod files;
mod incast;
mod p4;
mod qualify;
mod replay;
mod sim;
mod trace;
mod tune;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::CompleteEnv;
use dcqcn_sim::SetupError;
use dcqcn_support::cli::{GenerateCommand, Output, arguments, hide_json, log_to_stderr};
use dcqcn_testbed::ConfigError;

const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

/// Options that are out of range, or contradict each other.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct WrongUsage(#[from] anyhow::Error);

const AFTER_HELP: &str = "\
Parameters have the names used by NICs and switches; `dcqcn config example` explains each.
Quantities need a unit: 100KB, 1.5MB, 64KiB, 40mbit, 25gbit, 55us, 2ms, 1%.

Exit codes:
  0  done
  1  failed
  2  wrong usage

Environment:
  DCQCN_LOG  log filter for standard error, such as `debug` or `dcqcn_netlink=trace` (default: warn)

Completions for bash: source <(COMPLETE=bash dcqcn-lab)";

const WITHOUT_JSON: [&str; 1] = ["sim example"];

/// Experiments with DCQCN: congestion in namespaces, a simulator, captures, and the pipeline in P4.
///
/// Uses the data plane's own code. Leaves the machine's network alone, except `qualify --against`, which sends between
/// ports of the machine, and `p4 push`, `p4 set` and `p4 read`, which connect to a running simple_switch.
#[derive(Debug, Parser)]
#[command(name = "dcqcn-lab", version, max_term_width = 120, after_long_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print JSON: raw numbers, with units in the key names.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Incast(incast::IncastArgs),
    Qualify(qualify::QualifyArgs),
    Sim(sim::SimArgs),
    Tune(Box<tune::TuneArgs>),
    Replay(replay::ReplayArgs),
    Trace(trace::TraceArgs),
    #[command(subcommand)]
    P4(p4::P4Command),
    #[command(subcommand, hide = true)]
    Generate(GenerateCommand),
}

impl Cli {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        match self.command {
            Command::Incast(args) => args.run(out),
            Command::Qualify(args) => args.run(out),
            Command::Sim(args) => args.run(out),
            Command::Tune(args) => args.run(out),
            Command::Replay(args) => args.run(out),
            Command::Trace(args) => args.run(out),
            Command::P4(command) => command.run(out),
            Command::Generate(command) => Ok(command.run(out, described(), &[])?),
        }
    }
}

/// The command line, for manual pages and completions.
fn described() -> clap::Command {
    hide_json(Cli::command(), &WITHOUT_JSON)
}

fn main() -> ExitCode {
    CompleteEnv::with_factory(described).complete();
    let cli = Cli::from_arg_matches(&arguments(Cli::command(), &WITHOUT_JSON))
        .unwrap_or_else(|error| error.format(&mut Cli::command()).exit());
    log_to_stderr();
    dcqcn_support::cli::run(cli.json, |out| cli.run(out), exit_code)
}

/// Exit code of an error, and whether it was already reported.
fn exit_code(error: &anyhow::Error) -> Option<(u8, bool)> {
    if error.is::<qualify::NotQualified>() {
        return Some((FAILED, true));
    }
    let is_usage = error.is::<WrongUsage>()
        || error.is::<ConfigError>()
        || error.is::<SetupError>()
        || error.downcast_ref().is_some_and(dcqcn_sim::Error::is_usage);
    is_usage.then_some((WRONG_USAGE, false))
}

/// The options of a subcommand, from a command line without its name.
#[cfg(test)]
fn parse<A: clap::Args>(options: &str) -> Result<A, clap::Error> {
    let command = A::augment_args(clap::Command::new("lab"));
    let words = ["lab"].into_iter().chain(options.split_whitespace());
    A::from_arg_matches(&command.try_get_matches_from(words)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn documented_commands_exist() {
        assert_eq!(dcqcn_support::cli::refused::<Cli>(Cli::command()), [] as [String; 0]);
    }
}
