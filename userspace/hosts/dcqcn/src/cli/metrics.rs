//! `run --metrics-only`: a Prometheus endpoint without a daemon.

use std::io;
use std::net::SocketAddr;

use anyhow::Context as _;
use dcqcn_daemon::hangup::hangup_of;
use dcqcn_daemon::metrics::{self, Exporter};
use dcqcn_support::cli::Output;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Serves metrics of attached interfaces, with the `top_qps` busiest flows of each, until a signal or hangup.
pub(super) fn serve(listen: SocketAddr, top_qps: usize, out: &mut Output<'_>) -> anyhow::Result<()> {
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
