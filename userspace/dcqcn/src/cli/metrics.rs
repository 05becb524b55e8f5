//! `run --metrics-only`: a Prometheus endpoint that keeps nothing.

use std::net::SocketAddr;

use anyhow::Context as _;
use dcqcn_cli::Output;
use dcqcn_control::metrics;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Serves metrics of what is attached until Ctrl-C or SIGTERM, with the `top_qps` flows of each interface that sent most.
pub(super) fn serve(listen: SocketAddr, top_qps: usize, out: &mut Output<'_>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
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
            }
        };
        Ok(metrics::serve(listener, top_qps, shutdown).await?)
    })
}
