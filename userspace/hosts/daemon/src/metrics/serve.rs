//! The HTTP server.
//!
//! Any client that reaches the address can connect, so clients are limited: a connection serves one request, has
//! seconds for it, and yields to newer ones. Maps are read and formatted on a separate thread, at most once a second.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::exposition::Format;
use super::{Scrape, readiness, render};
use crate::fresh::Fresh;
use crate::shared_state::SharedState;

/// Time limit for receiving a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a request, bytes.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Maximum number of connections. A further one replaces the oldest that has sent no request.
const MAX_CONNECTIONS: usize = 64;
/// Pause after the system failed to accept a connection.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time limit of replies in progress at shutdown.
const GRACE: Duration = Duration::from_millis(500);

const INDEX: &str = "\
dcqcn
/metrics  Prometheus metrics
/healthz  health of this process
/readyz   readiness: all configured interfaces attached and complete
";

/// The server.
pub struct Exporter {
    top_qps: AtomicUsize,
    /// State of the enclosing daemon, and the time limit of its steps.
    daemon: Option<(Arc<SharedState>, Duration)>,
    metrics: Fresh<Bytes>,
    open_metrics: Fresh<Bytes>,
    readiness: Fresh<Result<(StatusCode, Bytes), Failed>>,
}

impl Exporter {
    /// A standalone server.
    #[must_use]
    pub fn alone(top_qps: usize) -> Arc<Self> {
        Arc::new(Self {
            top_qps: AtomicUsize::new(top_qps),
            daemon: None,
            metrics: Fresh::default(),
            open_metrics: Fresh::default(),
            readiness: Fresh::default(),
        })
    }

    /// The server of a daemon, whose steps may take `late`.
    #[must_use]
    pub(crate) fn of_daemon(shared: Arc<SharedState>, late: Duration) -> Arc<Self> {
        Arc::new(Self {
            top_qps: AtomicUsize::new(0),
            daemon: Some((shared, late)),
            metrics: Fresh::default(),
            open_metrics: Fresh::default(),
            readiness: Fresh::default(),
        })
    }

    /// Sets the number of flows per interface with metrics, the busiest ones.
    pub(crate) fn set_top_qps(&self, top_qps: usize) {
        self.top_qps.store(top_qps, Ordering::Relaxed);
    }

    /// Metrics, at most a second old.
    async fn metrics(self: &Arc<Self>, format: Format) -> Result<Bytes, Failed> {
        let kept = match format {
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
        kept.get(read).await.map_err(|error| internal_error(&error))
    }

    /// Readiness, at most a second old.
    async fn readiness(self: &Arc<Self>) -> Result<(StatusCode, Bytes), Failed> {
        let exporter = Arc::clone(self);
        let read = move || {
            let found = readiness::check(exporter.daemon.as_ref().map(|(shared, _)| &**shared));
            Ok((status(found.is_ready), json(&found)?))
        };
        self.readiness.get(read).await.map_err(|error| internal_error(&error))?
    }
}

/// Body of `/healthz`.
#[derive(Debug, Serialize)]
struct Health {
    /// `ok` or `stuck`.
    status: &'static str,
    /// The stalled part.
    stuck: Option<String>,
}

async fn index() -> &'static str {
    INDEX
}

async fn metrics(State(exporter): State<Arc<Exporter>>, headers: HeaderMap) -> Response {
    let accept: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::preferred(&accept.join(","));
    match exporter.metrics(format).await {
        Ok(text) => {
            let headers = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
            (headers, text).into_response()
        }
        Err(failed) => failed.into_response(),
    }
}

/// Checks only this process: it is polled often, and a restart would fix no other fault.
async fn health(State(exporter): State<Arc<Exporter>>) -> Response {
    let stuck = exporter.daemon.as_ref().and_then(|(shared, late)| shared.stuck(*late));
    let health = Health { status: if stuck.is_none() { "ok" } else { "stuck" }, stuck };
    json(&health)
        .map_or_else(IntoResponse::into_response, |text| answer(status(health.stuck.is_none()), text))
}

async fn ready(State(exporter): State<Arc<Exporter>>) -> Response {
    exporter.readiness().await.map_or_else(IntoResponse::into_response, |(status, text)| answer(status, text))
}

fn status(is_good: bool) -> StatusCode {
    if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn answer(status: StatusCode, text: Bytes) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn json(value: &impl Serialize) -> Result<Bytes, Failed> {
    let text = serde_json::to_string(value).map_err(|error| internal_error(&error))?;
    Ok(Bytes::from(text + "\n"))
}

/// An error of the server, not of the request.
type Failed = (StatusCode, String);

fn internal_error(error: &dyn std::error::Error) -> Failed {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
}

/// A connection.
struct Open {
    /// Closes it.
    end: AbortHandle,
    /// A request was received.
    has_asked: Arc<AtomicBool>,
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `shutdown` completes. Its threads are in the network namespace of
/// the thread that started the runtime.
///
/// # Errors
/// None at present: errors are retried.
pub async fn serve(
    listener: TcpListener,
    exporter: Arc<Exporter>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let mut server = Server::new(exporter);
    tokio::select! {
        () = server.accept(&listener) => {}
        () = shutdown => {}
    }
    // A client that does not read must not delay the exit.
    let _ = timeout(GRACE, server.finish()).await;
    Ok(())
}

/// Serves until dropped.
pub(crate) async fn accept(listener: TcpListener, exporter: Arc<Exporter>) {
    Server::new(exporter).accept(&listener).await;
}

struct Server {
    exporter: Arc<Exporter>,
    /// Oldest first.
    open: VecDeque<Open>,
    connections: JoinSet<()>,
}

impl Server {
    fn new(exporter: Arc<Exporter>) -> Self {
        Self { exporter, open: VecDeque::new(), connections: JoinSet::new() }
    }

    async fn accept(&mut self, listener: &TcpListener) {
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.begin(stream),
                    // For example, no file descriptor is left.
                    Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
                },
                Some(_) = self.connections.join_next() => {}
            }
        }
    }

    fn begin(&mut self, stream: TcpStream) {
        self.open.retain(|open| !open.end.is_finished());
        if self.open.len() >= MAX_CONNECTIONS {
            let idle = self.open.iter().position(|open| !open.has_asked.load(Ordering::Relaxed));
            match idle.and_then(|idle| self.open.remove(idle)) {
                Some(oldest) => oldest.end.abort(),
                // All have requests in progress: this one would only wait.
                None => return,
            }
        }
        let has_asked = Arc::<AtomicBool>::default();
        let end = self.connections.spawn(connection(stream, router(&self.exporter, &has_asked)));
        self.open.push_back(Open { end, has_asked });
    }

    /// Completes requests in progress.
    async fn finish(&mut self) {
        for open in self.open.iter().filter(|open| !open.has_asked.load(Ordering::Relaxed)) {
            open.end.abort();
        }
        while self.connections.join_next().await.is_some() {}
    }
}

async fn connection(stream: TcpStream, router: Router) {
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(MAX_REQUEST_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // Errors of a connection concern its client only.
    let _ = timeout(CONNECTION_TIMEOUT, serving).await;
}

fn router(exporter: &Arc<Exporter>, has_asked: &Arc<AtomicBool>) -> Router {
    let has_asked = Arc::clone(has_asked);
    let note = move |request: Request, next: Next| {
        has_asked.store(true, Ordering::Relaxed);
        next.run(request)
    };
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .layer(middleware::from_fn(note))
        .with_state(Arc::clone(exporter))
}
