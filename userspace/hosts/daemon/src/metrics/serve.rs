//! Replies of the HTTP server: maps are read and formatted on a separate thread, at most once a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use dcqcn_support::http::{Check, Limits, Server, check};
use tokio::net::TcpListener;
use tokio::task::JoinError;

use super::exposition::Format;
use super::{Readiness, Scrape, render};
use crate::fresh::Fresh;
use crate::shared_state::SharedState;

const INDEX: &str = "\
dcqcn
/metrics  Prometheus metrics
/healthz  health of this process
/readyz   readiness: all configured interfaces attached and complete
";

#[derive(Default)]
pub struct Exporter {
    top_qps: AtomicUsize,
    /// State of the enclosing daemon, and the time limit of its steps.
    daemon: Option<(Arc<SharedState>, Duration)>,
    metrics: Fresh<Bytes>,
    open_metrics: Fresh<Bytes>,
    readiness: Fresh<Check>,
}

impl Exporter {
    /// A standalone server.
    pub fn alone(top_qps: usize) -> Arc<Self> {
        Arc::new(Self { top_qps: top_qps.into(), ..Self::default() })
    }

    /// The server of a daemon, whose steps may take `late`.
    pub(crate) fn of_daemon(shared: Arc<SharedState>, late: Duration) -> Arc<Self> {
        Arc::new(Self { daemon: Some((shared, late)), ..Self::default() })
    }

    /// Sets the number of flows per interface with metrics, the busiest ones.
    pub(crate) fn set_top_qps(&self, top_qps: usize) {
        self.top_qps.store(top_qps, Ordering::Relaxed);
    }

    /// Metrics, at most a second old.
    async fn metrics(self: &Arc<Self>, format: Format) -> Result<Bytes, Failed> {
        let cached = match format {
            Format::Text => &self.metrics,
            Format::OpenMetrics => &self.open_metrics,
        };
        let exporter = Arc::clone(self);
        let read = move || {
            let began = Instant::now();
            let top_qps = exporter.top_qps.load(Ordering::Relaxed);
            let scrape = Scrape::take(top_qps != 0);
            let shared = exporter.daemon.as_ref().map(|(shared, _)| &**shared);
            Bytes::from(render::whole(&scrape, top_qps, shared, began, format))
        };
        cached.get(read).await.map_err(internal_error)
    }

    /// Readiness, at most a second old.
    async fn readiness(self: &Arc<Self>) -> Result<Check, Failed> {
        let exporter = Arc::clone(self);
        let read = move || {
            let found = Readiness::check(exporter.daemon.as_ref().map(|(shared, _)| &**shared));
            check(found.is_ready, &found)
        };
        self.readiness.get(read).await.map_err(internal_error)
    }
}

async fn metrics(
    State(exporter): State<Arc<Exporter>>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Failed> {
    let accept: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::preferred(&accept.join(","));
    let text = exporter.metrics(format).await?;
    Ok(([(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")], text))
}

/// Checks only this process: it is polled often, and a restart would fix no other fault.
async fn health(State(exporter): State<Arc<Exporter>>) -> Check {
    let stuck = exporter.daemon.as_ref().and_then(|(shared, late)| shared.stuck(*late));
    let is_well = stuck.is_none();
    // With the stalled part, if any.
    let health = serde_json::json!({ "status": if is_well { "ok" } else { "stuck" }, "stuck": stuck });
    check(is_well, &health)
}

async fn ready(State(exporter): State<Arc<Exporter>>) -> Result<Check, Failed> {
    exporter.readiness().await
}

/// An error of the server, not of the request.
type Failed = (StatusCode, String);

fn internal_error(error: JoinError) -> Failed {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `shutdown` completes. Its threads are in the network namespace of
/// the thread that started the runtime.
pub async fn serve(listener: TcpListener, exporter: Arc<Exporter>, shutdown: impl Future<Output = ()>) {
    let router = Router::new()
        .route("/", get(|| async { INDEX }))
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .with_state(exporter);
    let mut server = Server::new(router, Limits::SHORT);
    tokio::select! {
        () = server.accept(&listener) => {}
        () = shutdown => {}
    }
    server.finish().await;
}
