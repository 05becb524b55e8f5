//! The metrics server next to the daemon's other work. An address that is not this host's yet is tried again until it is: the
//! data plane does not wait for it.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::net::TcpListener;
use tokio::sync::watch::{Receiver, error::RecvError};
use tokio::time::timeout;

use crate::metrics::{self, Exporter};

/// How often an address is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// What is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Where.
    pub listen: SocketAddr,
    /// Of how many flows of each interface, those that sent most.
    pub top_qps: usize,
}

/// Whether `wanted` can be served, or may be later; `served` is what this process serves already.
///
/// # Errors
/// The address is in use by somebody else, or may not be used.
pub(super) fn check(wanted: Option<Metrics>, served: Option<Metrics>) -> Result<()> {
    let Some(Metrics { listen, .. }) = wanted else {
        return Ok(());
    };
    match StdListener::bind(listen) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Ok(()),
        // In the way of itself: of the same port one address may stand for all.
        Err(_) if served.is_some_and(|served| overlap(served.listen, listen)) => Ok(()),
        Err(error) => Err(anyhow!("cannot serve metrics on {listen}: {error}")),
    }
}

fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let either_is_all = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (one.ip() == other.ip() || either_is_all)
}

/// Serves what is wanted, wherever that is, for as long as somebody may want something.
pub(super) async fn serve(mut wanted: Receiver<Option<Metrics>>, exporter: Arc<Exporter>) {
    let mut told = String::new();
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
                told.clear();
                tokio::select! {
                    () = metrics::accept(listener, Arc::clone(&exporter)) => {}
                    other = other(&mut wanted, listen, &exporter) => {
                        if other.is_err() {
                            return;
                        }
                    }
                }
            }
            Err(error) => {
                let text = error.to_string();
                if text != told {
                    tracing::error!(%listen, error = text, "metrics cannot be served there; tried again every 2 s");
                    told = text;
                }
                // Whichever comes first.
                if matches!(timeout(RETRY, wanted.changed()).await, Ok(Err(_))) {
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

/// Waits until another address is wanted, or none.
///
/// # Errors
/// Nobody is left who may want one.
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
