//! An HTTP/1 server with bounded connections, times and sizes.
//!
//! Any client that reaches the address can connect. So connections are limited in number, the head of a
//! request has seconds to arrive, a client that does not read is disconnected, and a new connection replaces
//! the oldest one without a request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::{self, Next};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::{setsockopt, sockopt::TcpUserTimeout};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a request's head, bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum number of connections. A browser opens up to six.
const MAX_CONNECTIONS: usize = 64;
/// Pause after the system failed to accept a connection, for example without a free descriptor.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time limit of replies in progress at shutdown.
const GRACE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time limit of the whole connection; `None` for streams.
    pub connection: Option<Duration>,
    /// TCP user timeout: the kernel closes a connection whose peer does not read for this long.
    pub unread: Duration,
    pub keep_alive: bool,
}

impl Limits {
    /// One short reply per connection.
    pub const SHORT: Self = Self {
        connection: Some(Duration::from_secs(30)),
        unread: Duration::from_secs(30),
        keep_alive: false,
    };
    /// A page in a browser, with streams.
    pub const PAGE: Self = Self { connection: None, unread: Duration::from_secs(20), keep_alive: true };
}

#[derive(Debug)]
struct Open {
    end: AbortHandle,
    has_request: Arc<AtomicBool>,
}

/// A server; dropping it closes its connections.
#[derive(Debug)]
pub struct Server {
    router: Router,
    limits: Limits,
    /// Oldest first.
    open: VecDeque<Open>,
    connections: JoinSet<()>,
}

impl Server {
    pub fn new(router: Router, limits: Limits) -> Self {
        Self { router, limits, open: VecDeque::new(), connections: JoinSet::new() }
    }

    pub async fn accept(&mut self, listener: &TcpListener) {
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.begin(stream),
                    Err(_) => sleep(ACCEPT_RETRY_DELAY).await,
                },
                Some(_) = self.connections.join_next() => {}
            }
        }
    }

    fn begin(&mut self, stream: TcpStream) {
        self.open.retain(|open| !open.end.is_finished());
        if self.open.len() >= MAX_CONNECTIONS {
            let idle = self.open.iter().position(|open| !open.has_request.load(Ordering::Relaxed));
            match idle.and_then(|idle| self.open.remove(idle)) {
                Some(oldest) => oldest.end.abort(),
                // All have sent a request.
                None => return,
            }
        }
        let has_request = Arc::<AtomicBool>::default();
        let noted = Arc::clone(&has_request);
        let note = move |request: Request, next: Next| {
            noted.store(true, Ordering::Relaxed);
            next.run(request)
        };
        let router = self.router.clone().layer(middleware::from_fn(note));
        let end = self.connections.spawn(connection(stream, router, self.limits));
        self.open.push_back(Open { end, has_request });
    }

    /// Completes requests in progress, but not for clients that do not read.
    pub async fn finish(&mut self) {
        for open in self.open.iter().filter(|open| !open.has_request.load(Ordering::Relaxed)) {
            open.end.abort();
        }
        let finished = async { while self.connections.join_next().await.is_some() {} };
        let _ = timeout(GRACE, finished).await;
    }
}

/// Reply of a health check.
pub type Check = (StatusCode, [(HeaderName, &'static str); 1], Bytes);

/// `body` as JSON, with status 200 if `is_good`, else 503.
pub fn check(is_good: bool, body: &impl Serialize) -> Check {
    let status = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Text, numbers and lists of these always serialise.
    let text = serde_json::to_string(body).unwrap_or_default() + "\n";
    (status, [(header::CONTENT_TYPE, "application/json")], Bytes::from(text))
}

async fn connection(stream: TcpStream, router: Router, limits: Limits) {
    // Failure is harmless.
    let _ =
        setsockopt(&stream, TcpUserTimeout, &u32::try_from(limits.unread.as_millis()).unwrap_or(u32::MAX));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        // Also applies between requests, so that idle connections are closed.
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .keep_alive(limits.keep_alive)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // Errors of a connection concern only its client.
    match limits.connection {
        Some(limit) => drop(timeout(limit, serving).await),
        None => drop(serving.await),
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

    #[tokio::test]
    async fn stalled_reader_is_disconnected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        // More than the kernel buffers for a client that does not read.
        let much = Bytes::from(vec![b'x'; 64 << 20]);
        let router = Router::new().route("/", get(move || async move { much.clone() }));
        client.write_all(REQUEST).await.unwrap();
        let serving = connection(stream, router, Limits { unread: Duration::from_secs(1), ..Limits::PAGE });
        timeout(Duration::from_secs(30), serving).await.expect("the connection stays open");
        drop(client);
    }

    #[tokio::test]
    async fn new_client_replaces_oldest_silent_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = Server::new(Router::new().route("/", get(|| async { "hello" })), Limits::SHORT);
        let clients = async {
            let mut silent = Vec::new();
            for _ in 0..MAX_CONNECTIONS {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(REQUEST).await.unwrap();
            let mut reply = String::new();
            client.read_to_string(&mut reply).await.unwrap();
            assert!(reply.ends_with("hello"), "{reply}");
            assert_eq!(silent[0].read(&mut [0]).await.unwrap_or_default(), 0);
        };
        tokio::select! {
            () = server.accept(&listener) => {}
            done = timeout(HEAD_TIMEOUT / 2, clients) => done.expect("no reply"),
        }
        timeout(2 * GRACE, server.finish()).await.expect("silent clients delay the exit");
    }
}
