//! The `dcqcn` command.

mod attach;
mod config;
mod confirm;
mod daemon;
mod diff;
mod doctor;
mod ecnconfig;
mod events;
mod exchange;
mod get;
mod pages;
mod peer;
mod profile;
mod status;
mod tables;
mod targets;
mod upgrade;

use std::ffi::OsStr;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgMatches, FromArgMatches as _, Parser, Subcommand};
use clap_complete::{ArgValueCompleter, CompleteEnv, CompletionCandidate};
use dcqcn_loader::attach::Error::NotAttached;
use dcqcn_netlink::Netns;
use dcqcn_params::quantity::parse_time_ns;
use dcqcn_support::causes::one_line;
use dcqcn_support::cli::{GenerateCommand, Output, arguments, hide_json, log_to_stderr};
use nix::errno::Errno;
use nix::unistd::geteuid;

use crate::doctor::peer::Interrupted;

/// Exit code: the interface is not attached. (2, wrong usage, is clap's.)
const NOT_ATTACHED: u8 = 3;
/// Exit code: `config diff` found a difference.
const DIFFERENT: u8 = 4;
/// Exit code: some interfaces are done, others are not.
const PARTIALLY_DONE: u8 = 7;
/// Exit code: a signal ended a check of two hosts.
const INTERRUPTED: u8 = 130;

const AFTER_HELP: &str = "\
Parameters have the names that NICs and switches use; `dcqcn config example` explains each.
Quantities are written with their unit: 100KB, 1.5MB, 64KiB, 40mbit, 25gbit, 55us, 2ms, 1%.
For experiments (incast, simulator, replay, P4), see `dcqcn-lab`.

Exit codes:
  0  done
  1  failed or rejected; a rejected change has no effect
  2  wrong usage
  3  the interface is not attached
  4  `config diff`: the configurations differ; `doctor`: warnings, nothing worse
  5  `doctor`: errors
  6  `daemon`: rejected, nothing was changed
  7  partially done (`attach`, `confirm`, `detach` and `get` of several, `upgrade --all`, `status`, `daemon`): the
     output lists successes
  8  `daemon`: no daemon answers
  9  `daemon`: busy, try again
  130  `doctor peer` and `doctor listen`: interrupted

Environment:
  DCQCN_LOG    filter of the log on standard error, as in `debug` or `dcqcn_netlink=trace` (default: warn)
  DCQCN_AUDIT  directory of the audit log (default: /var/log/dcqcn)

Completions for bash: source <(COMPLETE=bash dcqcn)";

/// Commands without JSON output.
const WITHOUT_JSON: [&str; 3] = ["run", "top", "doctor listen"];

/// DCQCN congestion control for RoCEv2, in eBPF.
///
/// Marks packets at congestion points, answers marked packets with CNPs, and paces each QP at its DCQCN rate. The data
/// plane stays in the kernel when the command exits.
#[derive(Debug, Parser)]
#[command(name = "dcqcn", version, max_term_width = 120, after_long_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print JSON: raw numbers, with units in the key names.
    #[arg(long, global = true)]
    json: bool,
    /// Run in this network namespace, as listed by `ip netns`.
    #[arg(short, long, global = true, value_name = "NETNS", add = ArgValueCompleter::new(netns))]
    netns: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Attach(attach::AttachArgs),
    Detach(attach::DetachArgs),
    Prepare(upgrade::PrepareArgs),
    Status(status::StatusArgs),
    Gc(upgrade::GcArgs),
    Run(daemon::RunArgs),
    #[command(subcommand)]
    Daemon(daemon::DaemonCommand),
    Upgrade(upgrade::UpgradeArgs),
    #[command(visible_alias = "qp")]
    Flows(tables::FlowsArgs),
    Queues(tables::QueuesArgs),
    Counters(tables::CountersArgs),
    Events(events::EventsArgs),
    Log(events::LogArgs),
    Monitor(tables::MonitorArgs),
    Top(tables::TopArgs),
    Doctor(doctor::DoctorArgs),
    Get(get::GetArgs),
    Set(get::SetArgs),
    Confirm(confirm::ConfirmArgs),
    #[command(subcommand)]
    Config(config::ConfigCommand),
    Import(exchange::ImportArgs),
    Export(exchange::ExportArgs),
    #[command(subcommand, hide = true)]
    Generate(GenerateCommand),
}

impl Command {
    /// Whether the command changes interfaces or the daemon.
    const fn changes(&self) -> bool {
        match self {
            Self::Attach(_)
            | Self::Detach(_)
            | Self::Prepare(_)
            | Self::Gc(_)
            | Self::Upgrade(_)
            | Self::Set(_)
            | Self::Confirm(_)
            | Self::Import(_) => true,
            Self::Flows(args) => args.changes(),
            Self::Config(command) => matches!(command, config::ConfigCommand::Apply(_)),
            Self::Daemon(command) => {
                matches!(command, daemon::DaemonCommand::Reload(_) | daemon::DaemonCommand::Confirm(_))
            }
            _ => false,
        }
    }
}

impl Cli {
    /// Parses the command line of this process, or exits with a usage error.
    fn read() -> Self {
        let matches = arguments(pages::command(), &WITHOUT_JSON);
        Self::from_arg_matches(&matches).unwrap_or_else(|error| {
            let mut command = pages::command();
            command.build();
            with_usage(error, &mut command, &matches).exit()
        })
    }

    fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        if self.command.changes() {
            out.set_changes();
        }
        match self.command {
            Command::Attach(args) => args.run(out),
            Command::Detach(args) => args.run(out),
            Command::Prepare(args) => args.run(out),
            Command::Status(args) => args.run(out),
            Command::Gc(args) => args.run(out),
            Command::Run(args) => args.run(out),
            Command::Daemon(command) => command.run(out),
            Command::Upgrade(args) => args.run(out),
            Command::Flows(args) => args.run(out),
            Command::Queues(args) => args.run(out),
            Command::Counters(args) => args.run(out),
            Command::Events(args) => args.run(out),
            Command::Log(args) => args.run(out),
            Command::Monitor(args) => args.run(out),
            Command::Top(args) => args.run(out),
            Command::Doctor(args) => args.run(out, self.netns.as_deref()),
            Command::Get(args) => args.run(out),
            Command::Set(args) => args.run(out),
            Command::Confirm(args) => args.run(out),
            Command::Config(command) => command.run(out),
            Command::Import(args) => args.run(out),
            Command::Export(args) => args.run(out),
            Command::Generate(command) => Ok(command.run(out, described(), &pages::pages()?)?),
        }
    }
}

/// The command line, for manual pages and completions.
fn described() -> clap::Command {
    hide_json(pages::command(), &WITHOUT_JSON)
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if is_called("ecnconfig") {
        let args = ecnconfig::EcnconfigArgs::parse();
        log_to_stderr();
        return run(args.json, None, |out| args.run(out));
    }
    CompleteEnv::with_factory(described).complete();
    let cli = Cli::read();
    let (json, netns) = (cli.json, cli.netns.clone());
    // The daemon configures its own log.
    if !matches!(&cli.command, Command::Run(args) if !args.metrics_only) {
        log_to_stderr();
    }
    run(json, netns.as_deref(), |out| cli.run(out))
}

/// Runs a command, after reverting overdue changes.
fn run(
    json: bool,
    netns: Option<&str>,
    command: impl FnOnce(&mut Output<'_>) -> anyhow::Result<()>,
) -> ExitCode {
    let work = |out: &mut Output<'_>| {
        enter(netns)?;
        confirm::revert_overdue();
        command(out).map_err(|error| with_root_hint(error, geteuid().is_root()))
    };
    dcqcn_support::cli::run(json, work, exit_code)
}

fn netns(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = Netns::list(&current.to_string_lossy()).unwrap_or_default();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// Moves this thread, and the threads it will start, into a network namespace.
fn enter(netns: Option<&str>) -> anyhow::Result<()> {
    if let Some(name) = netns {
        let netns = Netns::open(name).with_context(|| {
            format!("cannot enter network namespace {name}; `ip netns` lists the available ones")
        })?;
        netns.enter()?.stay();
    }
    Ok(())
}

/// Adds the usage of the subcommand to an error.
fn with_usage(error: clap::Error, command: &mut clap::Command, matches: &ArgMatches) -> clap::Error {
    if let Some((name, matches)) = matches.subcommand()
        && let Some(command) = command.find_subcommand_mut(name)
    {
        return with_usage(error, command, matches);
    }
    error.format(command)
}

/// Whether this process was started through a link with another name.
fn is_called(name: &str) -> bool {
    std::env::args_os()
        .next()
        .is_some_and(|path| Path::new(&path).file_name().is_some_and(|file| file == name))
}

/// Adds the fix to an error that an unprivileged user gets from the kernel.
fn with_root_hint(error: anyhow::Error, is_root: bool) -> anyhow::Error {
    let is_denied = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
            || matches!(cause.downcast_ref(), Some(Errno::EACCES | Errno::EPERM))
    };
    // Its text has the fix, with the missing capabilities.
    let has_fix = |cause: &(dyn std::error::Error + 'static)| {
        matches!(cause.downcast_ref(), Some(dcqcn_loader::Error::File { .. }))
    };
    if is_root || error.chain().any(has_fix) || !error.chain().any(is_denied) {
        return error;
    }
    anyhow::anyhow!("{}; run as root", one_line(error.as_ref()))
}

/// Exit codes of specific errors, and whether their message was printed already.
fn exit_code(error: &anyhow::Error) -> Option<(u8, bool)> {
    if error.is::<diff::DifferencesFound>() {
        return Some((DIFFERENT, true));
    }
    if let Some(unwell) = error.downcast_ref::<doctor::FindingsFound>() {
        return Some((unwell.exit_code(), true));
    }
    if let Some(not_done) = error.downcast_ref::<daemon::CommandFailed>() {
        return Some(not_done.exit_code());
    }
    if error.is::<Interrupted>() {
        return Some((INTERRUPTED, false));
    }
    let is_not_attached = |error: &anyhow::Error| {
        error.chain().any(|cause| match cause.downcast_ref() {
            // A transparent error: `source()` skips the wrapped one.
            Some(dcqcn_daemon::Error::Attach(error)) => matches!(error, NotAttached { .. }),
            _ => matches!(cause.downcast_ref(), Some(NotAttached { .. })),
        })
    };
    let is_not_attached = match error.downcast_ref::<targets::SeveralFailed>() {
        Some(several) if several.is_partially_done => return Some((PARTIALLY_DONE, false)),
        Some(several) => several.errors.iter().all(is_not_attached),
        None => is_not_attached(error),
    };
    is_not_attached.then_some((NOT_ATTACHED, false))
}

/// Whether the command line accepts these words, or why not.
#[cfg(test)]
pub(crate) fn usage_error(words: &str) -> Option<clap::Error> {
    Cli::try_parse_from(words.split(' ')).err()
}

/// Parses a duration in the range `allowed`, which is `range` as text.
fn duration_in(text: &str, allowed: RangeInclusive<Duration>, range: &str) -> Result<Duration, String> {
    let duration = parse_time_ns(text).map(Duration::from_nanos).map_err(|error| error.to_string())?;
    if allowed.contains(&duration) { Ok(duration) } else { Err(format!("`{text}` is out of range: {range}")) }
}

#[cfg(test)]
mod tests {
    use dcqcn_support::cli::json_page_differences;

    use super::*;

    #[test]
    fn command_line_consistent() {
        pages::command().debug_assert();
    }

    #[test]
    fn documented_commands_exist() {
        assert_eq!(dcqcn_support::cli::refused::<Cli>(pages::command()), [] as [String; 0]);
    }

    #[test]
    fn json_page_lists_commands() {
        // The schema is JSON, in a foreign format.
        let without = [&WITHOUT_JSON[..], &["config schema"]].concat();
        assert_eq!(json_page_differences(pages::command(), &without), [] as [String; 0]);
    }

    #[test]
    fn usage_error_suggests_next_step() {
        for (line, expected) in [
            ("dcqcn set eth0", "<KEY=VALUE|--profile PROFILE>"),
            ("dcqcn set eth0 rpg_ai_rat=1mbit", "did you mean `rpg_ai_rate`?"),
            ("dcqcn set eth0 rpg_time_reset=55", "write a time, as in `55us`"),
            ("dcqcn attach eth0 --role swich", "[possible values: host, switch]"),
            ("dcqcn attach eth0 --flows 3", "out of range: 8 to 1048576"),
            ("dcqcn attach eth0 --log-packets=0", "log_packets = 0 is out of range: 1 or more"),
            ("dcqcn get eth0 --tc 8", "tc = 8 is out of range: 0 to 7"),
            ("dcqcn log --last 0", "last = 0 is out of range: 1 or more"),
            ("dcqcn set eth0 rpg_threshold=1 rpg_threshold=2", "rpg_threshold is specified twice"),
            ("dcqcn attach", "<IFACE|--all-rdma>"),
            ("dcqcn detach", "<IFACE|--all>"),
            ("dcqcn upgrade", "<IFACE|--all>"),
            ("dcqcn config apply x.toml", "<IFACE|--all>"),
            ("dcqcn flows", "<IFACE>"),
            ("dcqcn import --format sonic config_db.json eth1", "--port <PORT>"),
            ("dcqcn doctor --duration 10ms", "out of range: 1s to 1h"),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn denied_user_gets_root_hint() {
        let denied =
            || anyhow::Error::from(io::Error::from(io::ErrorKind::PermissionDenied)).context("cannot open x");
        assert_eq!(
            with_root_hint(denied(), false).to_string(),
            "cannot open x: permission denied; run as root"
        );
        let repeated = denied().context("cannot open x: permission denied");
        assert_eq!(
            with_root_hint(repeated, false).to_string(),
            "cannot open x: permission denied; run as root"
        );
        assert_eq!(with_root_hint(denied(), true).to_string(), "cannot open x");
        assert_eq!(with_root_hint(anyhow::anyhow!("other"), false).to_string(), "other");
        let with_fix =
            dcqcn_loader::Error::File { path: "x".into(), source: io::ErrorKind::PermissionDenied.into() };
        let text = with_fix.to_string();
        assert_eq!(with_root_hint(with_fix.into(), false).to_string(), text);
    }

    #[test]
    fn exit_code_follows_cause() {
        let not_attached = || NotAttached { iface: "eth0".into() };
        let expected = Some((NOT_ATTACHED, false));
        for error in [anyhow::Error::from(not_attached()), dcqcn_daemon::Error::from(not_attached()).into()] {
            assert_eq!(exit_code(&error.context("cannot show")), expected);
        }
        let several = |other| targets::result(vec![not_attached().into(), other], false).unwrap_err();
        assert_eq!(exit_code(&several(not_attached().into())), expected);
        assert_eq!(exit_code(&several(anyhow::anyhow!("other"))), None);
        assert_eq!(exit_code(&Interrupted.into()), Some((INTERRUPTED, false)));
        assert_eq!(exit_code(&anyhow::anyhow!("other")), None);
    }
}
