//! Command line of `dcqcn-fleet`.

mod apply;
mod operate;

use std::env;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::CompleteEnv;
use dcqcn_support::cli::{GenerateCommand, arguments, hide_json, log_to_stderr};
use nix::unistd::{Uid, User, gethostname};

use crate::prelude::*;
use crate::status::{History, Status};

const AFTER_HELP: &str = "\
The desired state is stored in etcd as numbered versions. An agent on each host forwards it to the daemon
(`dcqcn run`) through its socket. A host never accepts a value that its own file does not allow ([fleet] allow).

Exit codes:
  0  done
  1  failed, rejected, rolled back, or interrupted
  2  wrong usage
  3  `resume` and `abort`: stored in etcd, but no coordinator is running

Environment:
  DCQCN_ETCD, DCQCN_ETCD_CA, DCQCN_ETCD_CERT, DCQCN_ETCD_KEY, DCQCN_PREFIX  defaults of the options
  DCQCN_LOG  level of messages on standard error, for example `info` (default: warn)

Completions for bash: source <(COMPLETE=bash dcqcn-fleet)";

/// Longest reporting period: with it a report arrives well within the time limit of a rollout.
const MAX_REPORT_PERIOD: Duration = Duration::from_secs(20);

/// Commands without JSON output: services.
const WITHOUT_JSON: [&str; 3] = ["coordinate", "agent", "serve"];

/// Roll out changes to many hosts: canaries first, then in waves, with automatic rollback if metrics degrade.
#[derive(Debug, Parser)]
#[command(name = "dcqcn-fleet", version, max_term_width = 120, after_long_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: EtcdOptions,
    /// Print JSON: raw numbers, with units in the names.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(operate::ServeArgs),
    Agent(operate::AgentArgs),
    Apply(apply::ApplyArgs),
    Rollback(apply::RollbackArgs),
    Coordinate(operate::CoordinateArgs),
    /// Show the current or last rollout, and all hosts with their ordered version, active version and health.
    #[command(after_long_help = "\
Examples:
  dcqcn-fleet status
  dcqcn-fleet status --watch
  dcqcn-fleet status --json | jq '.hosts[] | select(.is_there | not) | .host'")]
    Status {
        /// Print changes every two seconds until the current rollout has ended.
        #[arg(long)]
        watch: bool,
    },
    /// List all versions with author, time, reason and outcome.
    #[command(after_long_help = "\
Examples:
  dcqcn-fleet history
  dcqcn-fleet history --json")]
    History {},
    /// Show the settings that differ between two versions.
    #[command(after_long_help = "\
Examples:
  dcqcn-fleet diff 6 7
  dcqcn-fleet diff 0 7")]
    Diff {
        /// Old version; 0 means no fleet.
        old: u64,
        /// New version.
        new: u64,
    },
    /// Stop changing further hosts in the current rollout. Rejections, lost hosts and harm still roll it back.
    #[command(after_long_help = "\
Examples:
  dcqcn-fleet pause")]
    Pause {},
    /// Continue a paused rollout. If it paused for lack of evaluated hosts, this approves the wave.
    #[command(after_long_help = "\
Examples:
  dcqcn-fleet resume")]
    Resume {},
    /// Abort the current rollout, and roll back every host that it changed.
    #[command(after_long_help = "\
Examples:
  dcqcn-fleet abort --why CHG-1234
  dcqcn-fleet abort --wait")]
    Abort {
        /// Reason, stored in the history and the audit logs.
        #[arg(long, value_name = "TEXT", default_value = "")]
        why: String,
        /// Execute the rollback and wait for its end.
        #[arg(long)]
        wait: bool,
    },
    /// Delete the records of a host that has left the fleet. If its agent reports again, the host is added again.
    #[command(after_long_help = "\
Examples:
  dcqcn-fleet forget st7")]
    Forget {
        /// The host.
        #[arg(value_parser = host_name)]
        host: String,
    },
    /// Delete old versions, except those that a host has, is ordered to have, or may be rolled back to.
    #[command(after_long_help = "\
Examples:
  dcqcn-fleet prune --keep 20")]
    Prune {
        /// Number of latest versions to keep.
        #[arg(long, value_name = "VERSIONS", default_value_t = 20)]
        keep: usize,
    },
    #[command(subcommand, hide = true)]
    Generate(GenerateCommand),
}

impl Cli {
    fn run(self, out: &mut Output<'_>) -> Result<()> {
        if let Command::Generate(command) = self.command {
            return Ok(command.run(out, described(), &[])?);
        }
        // Services print nothing.
        if !matches!(self.command, Command::Status { .. } | Command::History {} | Command::Diff { .. }) {
            out.set_changes();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(async {
            let mut store = match self.command {
                // A page for one host does not need etcd.
                Command::Serve(args) if !args.fleet => {
                    return service(&self.reach, args.run(None)).await;
                }
                Command::Agent(args) => return service(&self.reach, args.run(&self.reach)).await,
                _ => self.reach.store().await?,
            };
            match self.command {
                Command::Serve(args) => service(&self.reach, args.run(Some(store))).await,
                Command::Apply(args) => args.run(store, out).await,
                Command::Rollback(args) => args.run(store, out).await,
                Command::Coordinate(args) => args.run(store, &self.reach).await,
                Command::Status { watch } => status(store, watch, out).await,
                Command::History {} => Ok(out.show(&History::read(&mut store).await?)?),
                Command::Diff { old, new } => diff(store, old, new, out).await,
                // No check for a coordinator: without one the rollout does not proceed either.
                Command::Pause {} => {
                    operate::edit(&mut store, out, Event::Pause { by: &author() }).await.map(drop)
                }
                Command::Resume {} => operate::resume(store, out).await,
                Command::Abort { why, wait } => operate::abort(store, &why, wait, out).await,
                Command::Forget { host } => operate::forget(store, host, out).await,
                Command::Prune { keep } => operate::prune(store, keep, out).await,
                Command::Agent(_) | Command::Generate(_) => Ok(()),
            }
        });
        // Do not wait for blocking requests to an unresponsive daemon.
        runtime.shutdown_background();
        ended
    }
}

/// Runs a service until SIGINT or SIGTERM, which process 1 of a container otherwise ignores, or until its
/// certificates were replaced.
async fn service(reach: &EtcdOptions, run: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::select! {
        ended = run => ended,
        ended = apply::interrupted() => ended,
        error = reach.replaced() => Err(error.into()),
    }
}

/// The command line, for manual pages and completions.
fn described() -> clap::Command {
    hide_json(Cli::command(), &WITHOUT_JSON)
}

/// Runs `dcqcn-fleet`.
pub fn main() -> ExitCode {
    CompleteEnv::with_factory(described).complete();
    let cli = Cli::from_arg_matches(&arguments(Cli::command(), &WITHOUT_JSON))
        .unwrap_or_else(|error| error.format(&mut Cli::command()).exit());
    log_to_stderr();
    let code = |error: &anyhow::Error| error.is::<NotCoordinated>().then_some((3, false));
    dcqcn_support::cli::run(cli.json, |out| cli.run(out), code)
}

/// A request was stored in etcd, but no coordinator executes it. Contains the name of the request.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot {0} yet: no coordinator is running; the request is stored in etcd; start `dcqcn-fleet coordinate`"
)]
struct NotCoordinated(&'static str);

/// The operator, as `user@host`, for records and logs.
fn author() -> String {
    let user = env::var("SUDO_USER")
        .ok()
        .or_else(|| User::from_uid(Uid::current()).ok().flatten().map(|user| user.name));
    format!("{}@{}", user.unwrap_or_else(|| Uid::current().to_string()), host())
}

/// This host's name. Not read from `/proc/sys`, which `ProcSubset=pid` in the units hides.
fn host() -> String {
    let name = gethostname().ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| "localhost".into())
}

/// Whether this can be the name of a host, which is a part of keys.
pub(crate) fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 253 && name.chars().all(is_allowed)
}

/// Parses the name of a host.
fn host_name(text: &str) -> Result<String, String> {
    let form = "1 to 253 letters, digits, `-`, `_` and `.`";
    if is_name(text) {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is not the name of a host: {form}"))
    }
}

/// Parses a period that limits writes to etcd. A rollout counts a host without a report for 30 s as lost.
fn report_period(text: &str) -> Result<Duration, String> {
    let time = at_least(text, Duration::from_secs(1), "1s")?;
    if time <= MAX_REPORT_PERIOD { Ok(time) } else { Err(format!("`{text}` is out of range: 1s to 20s")) }
}

/// Parses a period of steps or samples.
fn step_period(text: &str) -> Result<Duration, String> {
    at_least(text, Duration::from_millis(10), "10ms")
}

fn at_least(text: &str, shortest: Duration, shown: &str) -> Result<Duration, String> {
    let time = parse_time_ns(text).map(Duration::from_nanos).map_err(|error| error.to_string())?;
    if time >= shortest { Ok(time) } else { Err(format!("`{text}` is out of range: at least {shown}")) }
}

/// Time between two updates.
const TICK: Duration = Duration::from_secs(2);

async fn status(mut store: Store, watch: bool, out: &mut Output<'_>) -> Result<()> {
    if !watch {
        return Ok(out.show(&Status::new(&store.snapshot().await?))?);
    }
    let mut mirror = Mirror::new(store);
    let mut shown = String::new();
    loop {
        let status = match mirror.next(TICK).await {
            Ok(snapshot) => Status::new(&snapshot),
            // The rollout continues without this command.
            Err(error) if !shown.is_empty() => {
                message(format_args!("warning: {}; retrying", one_line(&error)));
                sleep(TICK).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let text = serde_json::to_string(&status)?;
        if text != shown {
            out.line(&status)?;
            out.finish()?;
            shown = text;
        }
        if status.rollout.as_ref().is_none_or(|rollout| rollout.is_over) {
            return Ok(());
        }
    }
}

#[derive(Serialize)]
struct Report {
    old: u64,
    new: u64,
    changes: Vec<Difference>,
}

async fn diff(mut store: Store, old: u64, new: u64, out: &mut Output<'_>) -> Result<()> {
    let (before, after) = (store.version(old).await?, store.version(new).await?);
    let changes = differences(&before.groups, &after.groups);
    let text = if changes.is_empty() {
        format!("versions {old} and {new} have the same settings\n")
    } else {
        Difference::table(&changes, &old.to_string(), &new.to_string()).to_string()
    };
    Ok(out.show_as(&Report { old, new, changes }, text)?)
}

#[cfg(test)]
mod tests {
    use dcqcn_support::cli::json_page_differences;

    use super::*;

    #[test]
    fn command_line_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn documented_commands_exist() {
        assert_eq!(dcqcn_support::cli::refused::<Cli>(Cli::command()), [] as [String; 0]);
    }

    #[test]
    fn periods_out_of_range_are_rejected() {
        let error = |words: &str| Cli::try_parse_from(words.split(' ')).unwrap_err().to_string();
        for (words, least) in [
            ("agent --every 0s", "1s"),
            ("agent --every 999ms", "1s"),
            ("agent --look 0s", "10ms"),
            ("coordinate --tick 0s", "10ms"),
            ("apply x --tick 9ms", "10ms"),
        ] {
            let error = error(&format!("dcqcn-fleet {words}"));
            assert!(error.contains(&format!("out of range: at least {least}")), "{error}");
        }
        for long in ["20001ms", "2min", "500h"] {
            let error = error(&format!("dcqcn-fleet agent --every {long}"));
            assert!(error.contains("out of range: 1s to 20s"), "{error}");
        }
        for every in ["1s", "20s"] {
            let words = ["dcqcn-fleet", "agent", "--every", every, "--look", "10ms"];
            assert!(Cli::try_parse_from(words).is_ok());
        }
    }

    #[test]
    fn invalid_names_are_rejected() {
        let refused = |words: &[&str]| {
            let words = ["dcqcn-fleet"].iter().chain(words);
            let error = Cli::try_parse_from(words).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        };
        for host in ["", "a/b", "..\u{0}", "a b"] {
            for words in [&["forget", host][..], &["agent", "--name", host]] {
                let error = refused(words);
                assert!(error.contains("1 to 253 letters, digits, `-`, `_` and `.`"), "{error}");
            }
        }
        for prefix in ["", "/", "dcqcn", "//dcqcn", "/a//b", "/a b"] {
            let error = refused(&["status", "--prefix", prefix]);
            assert!(error.contains("as in /dcqcn or /dcqcn/site1"), "{error}");
        }
        assert!(refused(&["agent", "--label", "=a"]).contains("a label is KEY=VALUE"));
        for words in ["forget st7.rack-1", "status --prefix /dcqcn/", "status --prefix /dcqcn/site_1"] {
            let words = ["dcqcn-fleet"].into_iter().chain(words.split(' '));
            assert!(Cli::try_parse_from(words).is_ok());
        }
    }

    #[test]
    fn repeated_label_is_rejected() {
        let words = ["dcqcn-fleet", "agent", "--name", "h1", "--label", "rack=a", "--label", "rack=b"];
        let mut printed = Vec::new();
        let ended = Cli::try_parse_from(words).unwrap().run(&mut Output::new(&mut printed, false));
        assert_eq!(
            ended.unwrap_err().to_string(),
            "label `rack` is given twice; a host has one value of each"
        );
    }

    #[test]
    fn json_page_lists_commands() {
        assert_eq!(json_page_differences(Cli::command(), &WITHOUT_JSON), [] as [String; 0]);
    }
}
