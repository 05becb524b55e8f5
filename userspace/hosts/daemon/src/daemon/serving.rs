//! The metrics server of the daemon. An address that the host does not have yet is retried: the data plane does not
//! depend on it.

use std::future;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch::{Receiver, error::RecvError};
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::metrics::{self, Exporter};

/// Interval between attempts to bind an address.
const RETRY_DELAY: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    pub listen: SocketAddr,
    /// Number of flows per interface with their own metrics, the busiest ones.
    pub top_qps: usize,
}

/// Whether `wanted` can be served, now or later; `served` is this process's current server.
///
/// # Errors
/// The address is in use by another process, or not permitted.
pub(super) fn check(wanted: Option<Metrics>, served: Option<Metrics>) -> Result<()> {
    let Some(Metrics { listen, .. }) = wanted else { return Ok(()) };
    match StdListener::bind(listen) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Ok(()),
        // Conflict with itself: the wildcard address covers the same port.
        Err(_) if served.is_some_and(|served| overlap(served.listen, listen)) => Ok(()),
        Err(source) => Err(Error::Metrics { listen, source }),
    }
}

fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let either_is_all = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (one.ip() == other.ip() || either_is_all)
}

/// Serves the requested metrics, following changes of the settings.
pub(super) async fn serve(mut wanted: Receiver<Option<Metrics>>, exporter: Arc<Exporter>) {
    let mut logged = String::new();
    loop {
        let Some(Metrics { listen, top_qps }) = *wanted.borrow_and_update() else {
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        exporter.set_top_qps(top_qps);
        match bind(listen) {
            Ok(listener) => {
                tracing::info!(%listen, "serving metrics");
                logged.clear();
                tokio::select! {
                    () = metrics::serve(listener, Arc::clone(&exporter), future::pending()) => {}
                    other = other(&mut wanted, listen, &exporter) => {
                        if other.is_err() {
                            return;
                        }
                    }
                }
            }
            Err(error) => {
                let text = error.to_string();
                if text != logged {
                    tracing::error!(%listen, error = text, "cannot serve metrics; retrying every 2 s");
                    logged = text;
                }
                // Retries after the delay, or immediately after a change of the settings.
                if matches!(timeout(RETRY_DELAY, wanted.changed()).await, Ok(Err(_))) {
                    return;
                }
            }
        }
    }
}

fn bind(listen: SocketAddr) -> io::Result<TcpListener> {
    let listener = StdListener::bind(listen)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Waits for a change of the settings.
async fn other(
    wanted: &mut Receiver<Option<Metrics>>,
    listen: SocketAddr,
    exporter: &Exporter,
) -> Result<(), RecvError> {
    loop {
        wanted.changed().await?;
        let now = *wanted.borrow();
        match now {
            Some(metrics) if metrics.listen == listen => exporter.set_top_qps(metrics.top_qps),
            _ => {
                wanted.mark_changed();
                return Ok(());
            }
        }
    }
}
