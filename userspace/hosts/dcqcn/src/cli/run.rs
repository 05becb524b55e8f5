//! `run`: the daemon, or a Prometheus endpoint without one.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_daemon::daemon::config::{Config, DEFAULT_PATH, LogFormat};
use dcqcn_daemon::daemon::log::Log;
use dcqcn_daemon::daemon::{self, FileWatch, Options, Source};
use dcqcn_daemon::hangup::hangup_of;
use dcqcn_daemon::metrics::{self, Exporter};
use dcqcn_support::cli::Output;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::targets::resolve_altname;

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
    metrics_only: bool,
    /// With --metrics-only: address and port to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9310", requires = "metrics_only")]
    listen: SocketAddr,
    /// With --metrics-only: number of flows per interface with their own series, the busiest ones.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "metrics_only")]
    top_qps: usize,
}

impl RunArgs {
    /// Whether the command starts the daemon, which configures its own log.
    pub(super) const fn has_own_log(&self) -> bool {
        !self.metrics_only
    }

    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        if self.metrics_only {
            return serve_metrics(self.listen, self.top_qps, out);
        }
        let (source, config) = if self.ifaces.is_empty() {
            // Watched before it is read, so that no change in between is missed.
            let file = FileWatch::new(self.config);
            let config = Config::load(file.path())?;
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
