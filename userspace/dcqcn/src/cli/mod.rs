//! The `dcqcn` command.

mod attach;
mod audit;
mod config;
mod counters;
mod diff;
mod doctor;
mod ecnconfig;
mod events;
mod flows;
mod gc;
mod group;
mod lab;
mod metrics;
mod nvidia;
mod output;
mod p4;
mod package;
mod pair;
mod profile;
mod queues;
mod replay;
mod run;
mod settings;
mod sim;
mod sonic;
mod status;
mod targets;
mod top;
mod trace;
mod tune;
mod upgrade;
mod watch;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dcqcn_control::daemon::log;
use dcqcn_netlink::Netns;
use dcqcn_netlink::netns::Entered;

use output::Output;

/// Exit code: failed or refused.
const FAILED: u8 = 1;
/// Exit code: the interface is not attached. (2, wrong usage, is clap's.)
const NOT_ATTACHED: u8 = 3;
/// Exit code: `diff` found a difference.
const DIFFERENT: u8 = 4;

const AFTER_HELP: &str = "\
Parameters have the names NICs and switches know them by; `dcqcn config example` explains every one.
Quantities are written with their unit: 100KB, 1.5MB, 64KiB, 40mbit, 25gbit, 55us, 2ms, 1%.

Exit codes:
  0  done
  1  failed or refused; nothing was changed
  2  wrong usage
  3  the interface is not attached
  4  `diff`: what was compared is different; `doctor`: warnings, nothing worse
  5  `doctor`: errors

Environment:
  DCQCN_LOG  what is logged to standard error, as in `debug` or `dcqcn::net=trace` (default: warn)
  DCQCN_AUDIT  directory of the audit log (default: /var/log/dcqcn)";

/// DCQCN congestion control for RoCEv2, in eBPF.
///
/// Marks packets at congestion points, answers marked packets with CNPs, and holds each queue pair to its DCQCN rate.
/// The data plane stays in the kernel when the command ends.
#[derive(Debug, Parser)]
#[command(name = "dcqcn", version, max_term_width = 120, after_long_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print JSON: raw numbers, units in the names.
    #[arg(long, global = true)]
    json: bool,
    /// Work in this network namespace, one of those that `ip netns` lists.
    #[arg(short, long, global = true, value_name = "NETNS")]
    netns: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Attach(attach::AttachArgs),
    Detach(attach::DetachArgs),
    Status(status::StatusArgs),
    Gc(gc::GcArgs),
    Get(tune::GetArgs),
    Set(tune::SetArgs),
    Wred(group::WredArgs),
    Np(group::NpArgs),
    Rp(group::RpArgs),
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    Diff(diff::DiffArgs),
    Doctor(doctor::DoctorArgs),
    Save(diff::SaveArgs),
    Audit(audit::AuditArgs),
    #[command(subcommand)]
    Sonic(sonic::SonicCommand),
    Ecnconfig(ecnconfig::EcnconfigArgs),
    #[command(subcommand)]
    Nvidia(nvidia::NvidiaCommand),
    Qp(flows::QpArgs),
    #[command(subcommand)]
    Pair(pair::PairCommand),
    Queues(queues::QueuesArgs),
    Counters(counters::CountersArgs),
    Events(events::EventsArgs),
    Watch(watch::WatchArgs),
    Top(top::TopArgs),
    Metrics(metrics::MetricsArgs),
    Run(run::RunArgs),
    Upgrade(upgrade::UpgradeArgs),
    #[command(subcommand)]
    Lab(lab::LabCommand),
    Replay(replay::ReplayArgs),
    Sim(sim::SimArgs),
    Trace(trace::TraceArgs),
    #[command(subcommand)]
    P4(p4::P4Command),
    #[command(subcommand)]
    Config(config::ConfigCommand),
    Man(package::ManArgs),
    Completions(package::CompletionsArgs),
}

impl Cli {
    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        match self.command {
            Command::Attach(args) => args.run(out),
            Command::Detach(args) => args.run(out),
            Command::Status(args) => args.run(out),
            Command::Gc(args) => args.run(out),
            Command::Get(args) => args.run(out),
            Command::Set(args) => args.run(out),
            Command::Wred(args) => args.run(out),
            Command::Np(args) => args.run(out),
            Command::Rp(args) => args.run(out),
            Command::Profile(command) => command.run(out),
            Command::Diff(args) => args.run(out),
            Command::Doctor(args) => args.run(out),
            Command::Save(args) => args.run(out),
            Command::Audit(args) => args.run(out),
            Command::Sonic(command) => command.run(out),
            Command::Ecnconfig(args) => args.run(out),
            Command::Nvidia(command) => command.run(out),
            Command::Qp(args) => args.run(out),
            Command::Pair(command) => command.run(out),
            Command::Queues(args) => args.run(out),
            Command::Counters(args) => args.run(out),
            Command::Events(args) => args.run(out),
            Command::Watch(args) => args.run(out),
            Command::Top(args) => args.run(out),
            Command::Metrics(args) => args.run(out),
            Command::Run(args) => args.run(out),
            Command::Upgrade(args) => args.run(out),
            Command::Lab(command) => command.run(out),
            Command::Replay(args) => args.run(out),
            Command::Sim(args) => args.run(out),
            Command::Trace(args) => args.run(out),
            Command::P4(command) => command.run(out),
            Command::Config(command) => command.run(out),
            Command::Man(args) => args.run(out),
            Command::Completions(args) => args.run(out),
        }
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // The controller's log is its own.
    if !matches!(cli.command, Command::Run(_)) {
        log::begin_for_command();
    }
    let on_terminal = io::stdout().is_terminal();
    // Not by the line, as standard output would be: a full table has a million.
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let mut out = Output::new(&mut stdout, cli.json);
    let result = enter(cli.netns.as_deref()).and_then(|_inside| {
        cli.run(&mut out)?;
        out.finish()
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read has read enough, as in `dcqcn qp eth0 | head`.
        Err(error) if is_unheard(&error, on_terminal) => ExitCode::SUCCESS,
        Err(error) if error.is::<diff::Differs>() => ExitCode::from(DIFFERENT),
        Err(error) if error.is::<doctor::Unwell>() => doctor::Unwell::exit_code(&error),
        Err(error) => {
            // Nobody may be there to read it any more.
            let _ = io::stderr().write_all(output::explain(&error).as_bytes());
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Takes this thread, and those it starts, into a network namespace for as long as the guard lives.
fn enter(netns: Option<&str>) -> anyhow::Result<Option<Entered>> {
    Ok(netns.map(|name| Netns::open(name)?.enter()).transpose()?)
}

/// Whether what failed is writing to a reader that is gone, or to a terminal that is (`EIO`).
fn is_unheard(error: &anyhow::Error, on_terminal: bool) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| {
        cause.kind() == io::ErrorKind::BrokenPipe || on_terminal && cause.raw_os_error() == Some(libc::EIO)
    })
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let not_attached = |cause: &(dyn std::error::Error + 'static)| {
        matches!(cause.downcast_ref(), Some(dcqcn_plane::attach::Error::NotAttached { .. }))
    };
    if error.chain().any(not_attached) { NOT_ATTACHED } else { FAILED }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The long help of every command and of those below it.
    fn long_helps(command: &mut clap::Command) -> Vec<String> {
        let mut helps = vec![command.render_long_help().to_string()];
        for command in command.get_subcommands_mut().filter(|command| command.get_name() != "help") {
            helps.extend(long_helps(command));
        }
        helps
    }

    #[test]
    fn every_command_shows_examples_that_are_right() {
        let mut cli = Cli::command();
        cli.build();
        let helps = long_helps(&mut cli);
        for help in helps.iter().skip(1) {
            let (_, examples) =
                help.split_once("Examples:\n").unwrap_or_else(|| panic!("no examples: {help}"));
            let commands: Vec<&str> =
                examples.split('\n').map(str::trim).filter(|line| line.starts_with("dcqcn ")).collect();
            assert!(!commands.is_empty(), "{help}");
            for command in commands.iter().flat_map(|line| line.split(" && ")) {
                let words = command.split(['|', '>']).next().unwrap_or_default().split_whitespace();
                assert!(Cli::try_parse_from(words).is_ok(), "{command}");
            }
        }
    }

    #[test]
    fn wrong_usage_names_the_next_step() {
        for (line, says) in [
            ("dcqcn set eth0", "<KEY=VALUE>"),
            ("dcqcn set eth0 rpg_ai_rat=1mbit", "did you mean `rpg_ai_rate`?"),
            ("dcqcn set eth0 rpg_time_reset=55", "write a time, as in `55us`"),
            ("dcqcn attach eth0 --role swich", "[possible values: host, switch]"),
            ("dcqcn attach eth0 --flows 3", "allowed is 8 to 1048576"),
            ("dcqcn detach", "<IFACE|--all>"),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn causes_tell_the_exit_code() {
        let error = dcqcn_plane::attach::Error::NotAttached { iface: "eth0".into() };
        assert_eq!(exit_code(&anyhow::Error::from(error).context("cannot show")), NOT_ATTACHED);
        assert_eq!(exit_code(&anyhow::anyhow!("other")), FAILED);
    }
}
