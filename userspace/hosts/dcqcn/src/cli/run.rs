//! `run`: the controller.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::metrics;
use super::targets::called;
use clap::Args;
use clap_complete::ArgValueCompleter;
use dcqcn_daemon::daemon::config::{Config, DEFAULT_PATH, LogFormat};
use dcqcn_daemon::daemon::log::Log;
use dcqcn_daemon::daemon::{self, FileWatch, Options, Source};

use dcqcn_support::cli::Output;

/// Run the controller until Ctrl-C or SIGTERM: attach and maintain the interfaces of its file.
///
/// The data plane works without it and keeps running after it exits. The controller attaches interfaces that appear
/// later, applies parameters from a file, maintains the classes of the HTB pacer, learns pairs from the kernel's RDMA
/// QPs, and reads the real backlog for `queue_source = backlog`. When restarted, it takes over existing attachments.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The file is read again on SIGHUP, and when it has changed and stayed the same for a second: on all interfaces or, if
anything in it is refused, on none. One that names none of the interfaces that are served is refused. Parameters that were
set since stay where the file says nothing else than before; SIGHUP puts them back to the file's. `dcqcn config check FILE`
checks it beforehand. With interfaces instead of a file, these are served as they are attached.

Metrics for Prometheus are served where the file's [metrics] says, or by `run --metrics-only` without a controller:
`/metrics` has every counter, queue and threshold of every interface attached in this network namespace, under the names
`dcqcn counters` shows, as in dcqcn_np_cnp_sent_total{interface=\"eth0\",hook=\"egress\"}; `/healthz` answers
200 as long as the process is running, `/readyz` 503 with the reasons unless all is served. A flow is a series only if
--top-qps asks for it: each costs the server that stores it. There is no encryption and no password: other addresses than
loopback are for networks that need none.

Examples:
  dcqcn run
  dcqcn run --config /etc/dcqcn/dcqcn.toml --log-format json
  dcqcn attach eth0 --pacer htb && dcqcn run eth0
  # an exporter for attachments without a controller
  dcqcn run --metrics-only --listen 127.0.0.1:9310 --top-qps 20")]
pub(super) struct RunArgs {
    /// Interfaces that are already attached [default: those of the file].
    #[arg(conflicts_with = "config", add = ArgValueCompleter::new(dcqcn_support::cli::iface))]
    ifaces: Vec<String>,
    /// Configuration file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
    config: PathBuf,
    /// Detach all served interfaces on exit.
    #[arg(long)]
    detach_on_exit: bool,
    /// Accept a changed file even if it drops every served interface, and detach them all.
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
    /// Whether the controller runs, which has its own log.
    pub(super) const fn keeps_its_own_log(&self) -> bool {
        !self.metrics_only
    }

    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self {
            ifaces,
            config: path,
            detach_on_exit,
            allow_empty,
            log_format,
            metrics_only,
            listen,
            top_qps,
        } = self;
        if metrics_only {
            return metrics::serve(listen, top_qps, out);
        }
        let (source, config) = if ifaces.is_empty() {
            // Watched before it is read, so that no change in between is missed.
            let file = FileWatch::new(path);
            let config = Config::load(file.path())?;
            (Source::File(file), config)
        } else {
            (Source::Ifaces(ifaces.into_iter().map(called).collect()), Config::default())
        };
        let log = Log::begin(log_format, config.log_format, config.log_filter.as_deref())?;
        daemon::run(Options { source, detach_on_exit, allow_empty }, config, log)
    }
}
