//! `metrics`: a Prometheus endpoint.

use std::io;
use std::net::SocketAddr;

use anyhow::Context as _;
use clap::Args;
use dcqcn_control::hangup::hangup_of;
use dcqcn_control::metrics::{self, Exporter};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::output::Output;

/// Serve metrics for Prometheus until Ctrl-C, a signal, or the end of the terminal.
///
/// `/metrics` has every counter, queue and threshold of every interface attached in this network namespace; `/healthz`
/// answers 200 if all of them can be read, 503 with the reason if not.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Counters have the names `dcqcn counters` shows, as in dcqcn_np_cnp_sent_total{interface=\"eth0\",hook=\"egress\"}.
A flow is a series only if --top-qps asks for it: each costs the server that stores it.
There is no encryption and no password: other addresses than loopback are for networks that need none.

Examples:
  dcqcn metrics
  dcqcn metrics --listen 127.0.0.1:9310 --top-qps 20
  dcqcn metrics --listen 0.0.0.0:9310")]
pub(super) struct MetricsArgs {
    /// The address and port to listen at.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9310")]
    listen: SocketAddr,
    /// Flows of each interface that have series of their own: those that sent most.
    #[arg(long, value_name = "N", default_value_t = 0)]
    top_qps: usize,
}

impl MetricsArgs {
    pub(super) fn run(self, out: &mut Output<'_>) -> anyhow::Result<()> {
        let Self { listen, top_qps } = self;
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
                .with_context(|| format!("cannot listen at {listen}; --listen names another address"))?;
            let address = listener.local_addr()?;
            out.text(&format!("serving http://{address}/metrics and http://{address}/healthz\n"))?;
            if !address.ip().is_loopback() {
                out.text(&"everyone who reaches this address can read them\n")?;
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
            Ok(metrics::serve(listener, Exporter::alone(top_qps), shutdown).await?)
        })
    }
}
