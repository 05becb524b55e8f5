//! The HTTP server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Notify};

use super::Scrape;
use super::exposition::CONTENT_TYPE;

/// How long answers under way may take once the end has come.
const GRACE: Duration = Duration::from_millis(500);

const INDEX: &str =
    "dcqcn\n/metrics  Prometheus metrics\n/healthz  whether every attached interface can be read\n";

/// What requests share.
struct Server {
    top_qps: usize,
    /// One request reads at a time: who asks faster than maps can be read waits, and takes no more than one thread.
    reading: Mutex<()>,
}

/// Serves `/metrics`, with the `top_qps` flows of each interface that sent most, and `/healthz`, until `shutdown` is
/// done. Threads it reads maps on are in the network namespace of the one that started the runtime.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    top_qps: usize,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let server = Arc::new(Server { top_qps, reading: Mutex::new(()) });
    let router = Router::new()
        .route("/", get(INDEX))
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .with_state(server);
    let end = Arc::new(Notify::new());
    let ended = Arc::clone(&end);
    let serving = axum::serve(listener, router).with_graceful_shutdown(async move { ended.notified().await });
    // A client that reads nothing must not keep the process.
    let enough = async move {
        shutdown.await;
        end.notify_one();
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        result = serving => result,
        () = enough => Ok(()),
    }
}

async fn metrics(State(server): State<Arc<Server>>) -> Response {
    match server.scrape().await {
        Ok(scrape) => {
            ([(header::CONTENT_TYPE, CONTENT_TYPE)], scrape.metrics(server.top_qps)).into_response()
        }
        Err(response) => response,
    }
}

async fn health(State(server): State<Arc<Server>>) -> Response {
    let health = match server.scrape().await {
        Ok(scrape) => scrape.health(),
        Err(response) => return response,
    };
    let status = if health.unreadable.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    match serde_json::to_string(&health) {
        Ok(json) => (status, [(header::CONTENT_TYPE, "application/json")], json + "\n").into_response(),
        Err(error) => failed(&error),
    }
}

impl Server {
    /// Reads the maps on a thread of its own: it takes milliseconds, with full tables tens of them.
    async fn scrape(&self) -> Result<Scrape, Response> {
        let _alone = self.reading.lock().await;
        tokio::task::spawn_blocking(Scrape::take).await.map_err(|error| failed(&error))
    }
}

fn failed(error: &dyn std::error::Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
}
