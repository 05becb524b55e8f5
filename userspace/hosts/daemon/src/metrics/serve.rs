//! The HTTP server.
//!
//! Whoever reaches its address can connect, so nobody may take more than a little: a connection answers one request, has
//! seconds to ask and to read, and gives way to others when there are many. Reading maps and making text of them happens on
//! a thread of its own, at most once a second, however many ask.

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

/// How long a connection has to say what it wants.
const ASKING: Duration = Duration::from_secs(5);
/// How long it may take as a whole.
const WHOLE: Duration = Duration::from_secs(30);
/// Bytes of a request.
const REQUEST_BYTES: usize = 16 << 10;
/// Connections at a time. One more takes the place of the oldest that has not asked yet.
const CONNECTIONS: usize = 64;
/// How long the system has to recover when it gives no connection.
const PAUSE: Duration = Duration::from_millis(100);
/// How long answers under way may take once the end has come.
const GRACE: Duration = Duration::from_millis(500);

const INDEX: &str = "\
dcqcn
/metrics  Prometheus metrics
/healthz  whether this process is running
/readyz   whether everything that is attached is whole, and all that is to be attached is
";

/// What answers requests.
pub struct Exporter {
    top_qps: AtomicUsize,
    /// The controller it is part of, and how long a step of that may take.
    daemon: Option<(Arc<SharedState>, Duration)>,
    metrics: Fresh<Bytes>,
    open_metrics: Fresh<Bytes>,
    readiness: Fresh<Result<(StatusCode, Bytes), Failed>>,
}

impl Exporter {
    /// Of a process that does nothing else.
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

    /// Of a controller, a step of which may take `late`.
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

    /// Sets of how many flows of each interface there are metrics, those that sent most.
    pub(crate) fn set_top_qps(&self, top_qps: usize) {
        self.top_qps.store(top_qps, Ordering::Relaxed);
    }

    /// The metrics, no older than a second.
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
        kept.get(read).await.map_err(|error| failed(&error))
    }

    /// Whether what is attached is whole, no older than a second.
    async fn readiness(self: &Arc<Self>) -> Result<(StatusCode, Bytes), Failed> {
        let exporter = Arc::clone(self);
        let look = move || {
            let found = readiness::look(exporter.daemon.as_ref().map(|(shared, _)| &**shared));
            Ok((status(found.is_ready), json(&found)?))
        };
        self.readiness.get(look).await.map_err(|error| failed(&error))?
    }
}

/// What `/healthz` says.
#[derive(Debug, Serialize)]
struct Health {
    /// `ok` or `stuck`.
    status: &'static str,
    /// What has not moved for long.
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

/// Looks at nothing but this process: it may be asked often, and restarting it fixes nothing else.
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
    let text = serde_json::to_string(value).map_err(|error| failed(&error))?;
    Ok(Bytes::from(text + "\n"))
}

/// What went wrong here, and not with what is requested.
type Failed = (StatusCode, String);

fn failed(error: &dyn std::error::Error) -> Failed {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
}

/// A connection.
struct Open {
    /// Ends it.
    end: AbortHandle,
    /// It has said what it wants.
    has_asked: Arc<AtomicBool>,
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `shutdown` is done. Threads it reads maps on are in the network
/// namespace of the one that started the runtime.
///
/// # Errors
/// None so far: what fails is tried again.
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
    // A client that reads nothing must not keep the process.
    let _ = timeout(GRACE, server.finish()).await;
    Ok(())
}

/// Serves until it is dropped.
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
                    // No file descriptor is left, for example.
                    Err(_) => tokio::time::sleep(PAUSE).await,
                },
                Some(_) = self.connections.join_next() => {}
            }
        }
    }

    fn begin(&mut self, stream: TcpStream) {
        self.open.retain(|open| !open.end.is_finished());
        if self.open.len() >= CONNECTIONS {
            let idle = self.open.iter().position(|open| !open.has_asked.load(Ordering::Relaxed));
            match idle.and_then(|idle| self.open.remove(idle)) {
                Some(oldest) => oldest.end.abort(),
                // All are being answered: this one would only wait.
                None => return,
            }
        }
        let has_asked = Arc::<AtomicBool>::default();
        let end = self.connections.spawn(connection(stream, router(&self.exporter, &has_asked)));
        self.open.push_back(Open { end, has_asked });
    }

    /// Lets those that have asked have their answer.
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
        .header_read_timeout(ASKING)
        .max_buf_size(REQUEST_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // What goes wrong with a connection is its client's.
    let _ = timeout(WHOLE, serving).await;
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
