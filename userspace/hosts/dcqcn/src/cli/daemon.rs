//! `daemon`: the client of `dcqcn run`'s control socket; `run`: the daemon, or a Prometheus endpoint without one.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use dcqcn_control_api::{Applied, ClientError, Confirm, ControlClient, PATH, Status, Verb};
use dcqcn_daemon::daemon::config::{Config, DEFAULT_PATH, LogFormat};
use dcqcn_daemon::daemon::log::Log;
use dcqcn_daemon::daemon::{self, FileWatch, Options, Source};
use dcqcn_daemon::hangup::hangup_of;
use dcqcn_daemon::metrics::{self, Exporter};
use dcqcn_support::cli::Output;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::targets::resolve_altname;

/// Timeout of a reload, which attaches interfaces and so runs the verifier.
const TIMEOUT: Duration = Duration::from_secs(310);

const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

const OUTCOMES: &str = "\
With --json, `outcome` is the result, with the exit code:
  done         0  done; all interfaces are managed
  failed       1  the result is unknown: check `dcqcn daemon status`
  refused      6  rejected: nothing was changed
  partial      7  partially done: some interfaces are not managed: `failing` lists them, or the daemon is starting
               or cannot revert an unconfirmed configuration
  unreachable  8  no daemon answers; `status` and `health` wait 5 s
  busy         9  not processed: try again";

/// Query and control the running daemon (`dcqcn run` with `[control]` in its file).
#[derive(Debug, Subcommand)]
#[command(after_long_help = format!("\
{OUTCOMES}

Examples:
  dcqcn daemon status
  dcqcn daemon reload"))]
pub(super) enum DaemonCommand {
    /// Show the daemon's interfaces, overrides and unconfirmed configuration, and failures with their cause.
    #[command(after_long_help = format!("\
{OUTCOMES}

Examples:
  dcqcn daemon status
  dcqcn daemon status --json"))]
    Status(Socket),
    /// Exit with 0 if all interfaces are managed and complete, as `/readyz` checks, and with 7 if not.
    #[command(after_long_help = format!("\
{OUTCOMES}

Examples:
  dcqcn daemon health"))]
    Health(Socket),
    /// Reload the configuration file, and wait for the result (root only).
    #[command(after_long_help = format!("\
Like SIGHUP: on all interfaces or, if any change is rejected, on none.

{OUTCOMES}

Examples:
  dcqcn daemon reload
  dcqcn daemon reload --json"))]
    Reload(Socket),
    Confirm(ConfirmArgs),
}

#[derive(Debug, Args)]
pub(super) struct Socket {
    /// Path of the control socket, as in `[control] socket`.
    #[arg(long, value_name = "PATH", default_value = PATH)]
    socket: PathBuf,
}

/// Confirm a configuration that was applied over the socket for a limited time.
#[derive(Debug, Args)]
#[command(after_long_help = format!("\
{OUTCOMES}

Examples:
  dcqcn daemon confirm
  # revert it now instead of at the deadline
  dcqcn daemon confirm --revert"))]
pub(super) struct ConfirmArgs {
    /// Name of the configuration [default: the unconfirmed one].
    name: Option<String>,
    /// Revert it now.
    #[arg(long)]
    revert: bool,
    #[command(flatten)]
    socket: Socket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Done,
    Failed,
    Refused,
    Partial,
    Unreachable,
    Busy,
}

impl Outcome {
    const fn exit_code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Refused => 6,
            Self::Partial => super::PARTIALLY_DONE,
            Self::Unreachable => 8,
            Self::Busy => 9,
        }
    }

    const fn of(error: &ClientError) -> Self {
        match error {
            ClientError::Unreachable { .. } => Self::Unreachable,
            ClientError::Refused(_) => Self::Refused,
            ClientError::Busy(_) => Self::Busy,
            ClientError::Unknown(_) | ClientError::Answer(_) | ClientError::Lost { .. } => Self::Failed,
        }
    }
}

/// The command failed, or succeeded on some interfaces only.
#[derive(Debug, thiserror::Error)]
#[error("{}", error.as_deref().unwrap_or("some interfaces are not managed"))]
pub(super) struct CommandFailed {
    outcome: Outcome,
    error: Option<String>,
}

impl CommandFailed {
    /// Exit code, and whether the reason was printed already.
    pub(super) const fn exit_code(&self) -> (u8, bool) {
        (self.outcome.exit_code(), self.error.is_none())
    }
}

/// Outcome, and the daemon's reply.
#[derive(Serialize)]
struct Report {
    outcome: Outcome,
    /// Cause of a failure, also printed to standard error.
    error: Option<String>,
    status: Option<Status>,
    applied: Option<Applied>,
    /// One line of output.
    #[serde(skip)]
    is_brief: bool,
}

impl DaemonCommand {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let (Self::Status(socket)
        | Self::Health(socket)
        | Self::Reload(socket)
        | Self::Confirm(ConfirmArgs { socket, .. })) = &self;
        let is_query = matches!(self, Self::Status(_) | Self::Health(_));
        let client = ControlClient::new(&socket.socket, if is_query { QUERY_TIMEOUT } else { TIMEOUT });
        let is_brief = !matches!(self, Self::Status(_));
        let mut report =
            Report { outcome: Outcome::Failed, error: None, status: None, applied: None, is_brief };
        let status = self.change(&client).and_then(|applied| {
            report.applied = applied;
            client.request::<Status>(Verb::Status {})
        });
        match status {
            Ok(status) => {
                report.outcome = if is_complete(&status) { Outcome::Done } else { Outcome::Partial };
                report.status = Some(status);
            }
            Err(error) if report.applied.is_some() => {
                report.outcome = Outcome::Partial;
                report.error =
                    Some(format!("the daemon made the change, but did not report its status: {error}"));
            }
            Err(error) => {
                let (outcome, error) = failure(&error, is_query);
                (report.outcome, report.error) = (outcome, Some(error));
            }
        }
        out.show(&report)?;
        let Report { outcome, error, .. } = report;
        if outcome == Outcome::Done { Ok(()) } else { Err(CommandFailed { outcome, error }.into()) }
    }

    /// Requests the change from the daemon, if the command is not a query.
    fn change(&self, client: &ControlClient) -> Result<Option<Applied>, ClientError> {
        let verb = match self {
            Self::Status(_) | Self::Health(_) => return Ok(None),
            Self::Reload(_) => Verb::Reload {},
            Self::Confirm(ConfirmArgs { name, revert, .. }) => {
                let unconfirmed = || {
                    let status: Status = client.request(Verb::Status {})?;
                    let name = status.config.filter(|_| status.confirm_within_s.is_some());
                    name.ok_or_else(|| ClientError::Refused("no configuration is unconfirmed".into()))
                };
                let confirm = Confirm { name: name.clone().map_or_else(unconfirmed, Ok)? };
                if *revert { Verb::Undo(confirm) } else { Verb::Confirm(confirm) }
            }
        };
        client.request(verb).map(Some)
    }
}

/// Outcome and message of a failed request. A query without a reply has no effect, so its result is not unknown.
fn failure(error: &ClientError, is_query: bool) -> (Outcome, String) {
    match error {
        ClientError::Lost { path, source }
            if is_query && matches!(source.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
        {
            let path = path.display();
            let error = format!("the daemon at {path} does not answer; is it stopped or overloaded?");
            (Outcome::Unreachable, error)
        }
        error => (Outcome::of(error), error.to_string()),
    }
}

/// Whether all configured interfaces are managed as configured.
fn is_complete(status: &Status) -> bool {
    let Status { is_ready, failing, waiting, stuck, overdue, .. } = status;
    *is_ready && failing.is_empty() && *waiting == 0 && stuck.is_none() && overdue.is_none()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Errors go to standard error.
        let Some(status) = &self.status else { return Ok(()) };
        let (starting, yet) = if status.is_ready { ("", "") } else { ("starting: ", " yet") };
        match status.interfaces.as_slice() {
            [] => writeln!(f, "{starting}manages no interface{yet}")?,
            ifaces => writeln!(f, "{starting}manages {}", ifaces.join(", "))?,
        }
        for failing in &status.failing {
            writeln!(f, "failing: {}: {}", failing.interface, failing.error)?;
        }
        for absent in &status.absent {
            writeln!(f, "absent: {absent}: attached when it appears")?;
        }
        if status.waiting != 0 {
            writeln!(f, "still to attach: {}", status.waiting)?;
        }
        if let Some(stuck) = &status.stuck {
            writeln!(f, "stuck: {stuck}")?;
        }
        if let Some(overdue) = &status.overdue {
            writeln!(f, "cannot revert: {overdue}")?;
        }
        if self.is_brief {
            return Ok(());
        }
        if let Some(why) = &status.without_group {
            writeln!(f, "{why}")?;
        }
        match (&status.config, status.confirm_within_s) {
            (Some(name), Some(left)) => {
                writeln!(
                    f,
                    "configuration {name} is unconfirmed: `dcqcn daemon confirm` keeps it, otherwise reverted in {left} s"
                )?;
            }
            (Some(name), None) => writeln!(f, "configuration {name} overrides the file")?,
            (None, _) => {}
        }
        if let Some(reload) = &status.reload {
            let how = if reload.refused.is_empty() { "active" } else { reload.refused.as_str() };
            writeln!(f, "last reload ({}): {how}", reload.at)?;
        }
        for (iface, repairs) in status.repairs.iter().filter(|(_, repairs)| **repairs != 0) {
            writeln!(f, "repairs of {iface}: {repairs}")?;
        }
        Ok(())
    }
}

/// Run the daemon until Ctrl-C or SIGTERM: attach and maintain the interfaces of its file.
///
/// The data plane works without it and keeps running after it exits. The daemon attaches interfaces that appear
/// later, applies parameters from a file, maintains the classes of the HTB pacer, learns pairs from the kernel's RDMA
/// QPs, and reads the real backlog for `queue_source = backlog`. When restarted, it takes over existing attachments.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The file is reloaded on SIGHUP, and when it has changed and been stable for a second: on all interfaces or, if anything in
it is rejected, on none. A file that drops every managed interface is rejected. Parameters set since then are kept if the
file's value is unchanged; SIGHUP resets them to the file's. Use `dcqcn config check FILE` to check it beforehand. With
interfaces instead of a file, these are managed with their current settings.

Prometheus metrics are served on the address in the file's [metrics], or by `run --metrics-only` without a daemon:
`/metrics` has every counter, queue and threshold of every interface attached in this network namespace, under the names
of `dcqcn counters`, as in dcqcn_np_cnp_sent_total{interface=\"eth0\",hook=\"egress\"}; `/healthz` answers 200 while
the process makes progress, `/readyz` 503 with the causes unless all interfaces are managed. Flows have their own series
only with --top-qps, as each costs storage. There is no encryption or authentication: use addresses other than loopback
only in trusted networks.

Examples:
  dcqcn run
  dcqcn run --config /etc/dcqcn/dcqcn.toml --log-format json
  dcqcn attach eth0 --pacer htb && dcqcn run eth0
  # an exporter for attachments without a daemon
  dcqcn run --metrics-only --listen 127.0.0.1:9310 --top-qps 20")]
pub(super) struct RunArgs {
    /// Interfaces that are already attached [default: those of the file].
    #[arg(value_name = "IFACE", conflicts_with = "config", add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Configuration file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
    config: PathBuf,
    /// Detach all managed interfaces on exit.
    #[arg(long)]
    detach_on_exit: bool,
    /// Accept a changed file even if it drops every managed interface, and detach them all.
    #[arg(long, conflicts_with = "ifaces")]
    allow_empty: bool,
    /// Log format [default: text, or the file's].
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
    /// Only serve metrics of attached interfaces.
    #[arg(long, conflicts_with_all = ["ifaces", "config", "detach_on_exit", "log_format"])]
    pub(super) metrics_only: bool,
    /// With --metrics-only: address and port to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9310", requires = "metrics_only")]
    listen: SocketAddr,
    /// With --metrics-only: number of flows per interface with their own series, the busiest ones.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "metrics_only")]
    top_qps: usize,
}

impl RunArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        if self.metrics_only {
            return serve_metrics(self.listen, self.top_qps, out);
        }
        let (source, config) = if self.ifaces.is_empty() {
            // Watched before it is read, so that no change in between is missed.
            let file = FileWatch::new(self.config);
            let path = file.path();
            ensure!(
                path.try_exists().unwrap_or(true),
                "cannot read {}: it does not exist; create it with an [[interface]], as `dcqcn config show IFACE` prints \
                 it, or specify attached interfaces, as in `dcqcn run eth0`",
                path.display()
            );
            let config = Config::load(path)?;
            (Source::File(file), config)
        } else {
            (Source::Ifaces(self.ifaces.into_iter().map(resolve_altname).collect()), Config::default())
        };
        let log = Log::begin(self.log_format, config.log_format, config.log_filter.as_deref())?;
        let options = Options { source, detach_on_exit: self.detach_on_exit, allow_empty: self.allow_empty };
        Ok(daemon::run(options, config, log)?)
    }
}

/// Serves metrics of attached interfaces, with the `top_qps` busiest flows of each, until a signal or hangup.
fn serve_metrics(listen: SocketAddr, top_qps: usize, out: &mut Output<'_>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate, mut hangup) = (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        );
        let reader = hangup_of(io::stdout())?;
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen on {listen}; pass another address with --listen"))?;
        let address = listener.local_addr()?;
        out.text(&format!("serving http://{address}/metrics and http://{address}/healthz\n"))?;
        if !address.ip().is_loopback() {
            out.text(&"unauthenticated: any client that reaches this address can read them\n")?;
        }
        out.finish()?;
        let shutdown = async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
                () = reader => {}
            }
        };
        metrics::serve(listener, Exporter::alone(top_qps), shutdown).await;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use dcqcn_control_api::Failing;

    use super::*;

    #[test]
    fn starting_daemon_is_not_without_interfaces() {
        let status = |is_ready, interfaces: &[&str], waiting| {
            let status = serde_json::json!({
                "is_ready": is_ready, "interfaces": interfaces, "failing": [], "waiting": waiting, "stuck": null,
                "config": null, "confirm_within_s": null, "reload": null, "repairs": {}, "without_group": null,
            });
            let status = Some(serde_json::from_value(status).unwrap());
            Report { outcome: Outcome::Partial, error: None, status, applied: None, is_brief: true }
                .to_string()
        };
        assert_eq!(status(false, &[], 0), "starting: manages no interface yet\n");
        assert_eq!(status(false, &["eth0"], 3), "starting: manages eth0\nstill to attach: 3\n");
        assert_eq!(status(true, &[], 0), "manages no interface\n");
    }

    #[test]
    fn status_names_group_without_access() {
        let without_group = Some("[control] group `x` does not exist".into());
        let status = Some(Status { is_ready: true, without_group, ..Status::default() });
        let report = Report { outcome: Outcome::Done, error: None, status, applied: None, is_brief: false };
        assert_eq!(report.to_string(), "manages no interface\n[control] group `x` does not exist\n");
    }

    #[test]
    fn outcomes_have_the_documented_exit_codes() {
        let errors = [
            (ClientError::Refused("no".into()), 6),
            (ClientError::Busy("later".into()), 9),
            (ClientError::Unknown("late".into()), 1),
            (ClientError::Answer("what".into()), 1),
        ];
        for (error, code) in errors {
            assert_eq!(Outcome::of(&error).exit_code(), code, "{error}");
        }
        for outcome in [Outcome::Refused, Outcome::Partial, Outcome::Unreachable, Outcome::Busy] {
            let word = serde_json::to_string(&outcome).unwrap();
            let row = OUTCOMES.lines().find(|line| line.trim().starts_with(word.trim_matches('"')));
            let code = row.and_then(|row| row.split_whitespace().nth(1));
            assert_eq!(code, Some(outcome.exit_code().to_string().as_str()), "{word}");
        }
    }

    #[test]
    fn silent_daemon_is_unreachable_to_queries() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let client = ControlClient::new(&path, Duration::from_millis(10));
        let error = client.request::<Status>(Verb::Status {}).unwrap_err();
        let (outcome, text) = failure(&error, true);
        assert_eq!(outcome, Outcome::Unreachable);
        assert!(text.contains("does not answer"), "{text}");
        assert_eq!(failure(&error, false).0, Outcome::Failed);
    }

    #[test]
    fn status_with_a_failing_interface_is_partial() {
        let mut status = Status { is_ready: true, ..Status::default() };
        assert!(is_complete(&status));
        status.failing.push(Failing { interface: "eth1".into(), error: "gone".into() });
        assert!(!is_complete(&status));
        let overdue = Some("7 was not confirmed in time: locked".into());
        assert!(!is_complete(&Status { is_ready: true, overdue, ..Status::default() }));
    }
}
