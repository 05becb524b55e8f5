//! The metrics server beside the daemon's other work.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::metrics;

/// What is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Where.
    pub listen: SocketAddr,
    /// Of how many flows of each interface, those that sent most.
    pub top_qps: usize,
}

/// The server, while one is asked for.
#[derive(Default)]
pub(super) struct MetricsServer {
    serving: Option<Serving>,
}

struct Serving {
    metrics: Metrics,
    listener: StdListener,
    end: Arc<Notify>,
}

impl MetricsServer {
    /// Takes the address of `wanted`, if it is not this server's already.
    ///
    /// # Errors
    /// It is in use, or not this host's.
    pub(super) fn prepare(&self, wanted: Option<Metrics>) -> Result<Option<StdListener>> {
        let Some(Metrics { listen, .. }) = wanted else {
            return Ok(None);
        };
        let bind = || {
            let ours = self.serving.as_ref().filter(|serving| serving.metrics.listen == listen);
            let listener = match ours {
                Some(serving) => serving.listener.try_clone()?,
                None => StdListener::bind(listen)?,
            };
            listener.set_nonblocking(true)?;
            Ok::<_, io::Error>(listener)
        };
        bind().map(Some).with_context(|| format!("cannot serve metrics on {listen}"))
    }

    /// Serves `wanted` on the listener that was prepared for it, and nothing else any more.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub(super) fn switch(&mut self, wanted: Option<Metrics>, listener: Option<StdListener>) -> Result<()> {
        if wanted == self.serving.as_ref().map(|serving| serving.metrics) {
            return Ok(());
        }
        if let Some(serving) = self.serving.take() {
            serving.end.notify_one();
        }
        let (Some(metrics), Some(listener)) = (wanted, listener) else {
            return Ok(());
        };
        let accepting =
            listener.try_clone().and_then(TcpListener::from_std).context("cannot serve metrics")?;
        let end = Arc::new(Notify::new());
        let ended = Arc::clone(&end);
        tokio::spawn(async move {
            let end = async move { ended.notified().await };
            if let Err(error) = metrics::serve(accepting, metrics.top_qps, end).await {
                tracing::error!(%error, "metrics are no longer served");
            }
        });
        tracing::info!(listen = %metrics.listen, "serving metrics");
        self.serving = Some(Serving { metrics, listener, end });
        Ok(())
    }
}
