//! The HTTP server of the page: who may ask, how much, and what every answer says to the browser.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::{setsockopt, sockopt::TcpUserTimeout};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::write::{Shown, Token};

/// How long a connection has to say what it wants.
const ASKING: Duration = Duration::from_secs(5);
/// How long one may take nothing of what is sent: the kernel ends it then.
const TAKING: Duration = Duration::from_secs(20);
/// Connections at a time; a browser has up to six.
const CONNECTIONS: usize = 64;
/// Bytes of a request's head, and of its body.
const HEAD_BYTES: usize = 16 << 10;
const BODY_BYTES: usize = 16 << 10;
/// How long the system has to recover when it gives no connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Nothing of others, nothing inline, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];
/// In which the token is shown. A page of others cannot send it: it would have to be asked first, and nothing here answers that.
pub(super) const TOKEN: &str = "x-dcqcn-token";

/// Whom to answer.
pub(super) struct Guard {
    /// Names by which the page may be requested, besides addresses and `localhost`: with any other a page of others could ask by a
    /// name of its own that leads here.
    pub(super) names: Vec<String>,
    /// What those must show who want to change something; nobody may if there is none.
    pub(super) token: Option<Token>,
}

/// Why something is not done.
pub(super) type Refusal = (StatusCode, String);

impl Guard {
    fn knows(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.trim_start_matches('[').trim_end_matches(']');
        address.parse::<std::net::IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Whether who asks may change something.
    async fn admits(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(token) = &self.token else {
            let why = "this page changes nothing: dcqcn-fleet serve was started without --allow-write";
            return Err((StatusCode::FORBIDDEN, why.into()));
        };
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text(header::HOST).unwrap_or_default();
        // A browser says from which page it asks.
        let is_own = text(header::ORIGIN).is_none_or(|origin| {
            origin.split_once("://").is_some_and(|(_, from)| from.eq_ignore_ascii_case(host))
        });
        if !is_own || text(header::CONTENT_TYPE) != Some("application/json") {
            return Err((StatusCode::FORBIDDEN, "asked from another page, or not as JSON".into()));
        }
        let shown = headers.get(TOKEN).map(HeaderValue::as_bytes).unwrap_or_default();
        match token.look_at(shown).await {
            Shown::Right => Ok(()),
            Shown::Wrong => {
                let why = "the token is wrong: it is in the file that --allow-write names";
                Err((StatusCode::UNAUTHORIZED, why.into()))
            }
            Shown::TooMany => {
                let why = "the token is wrong, and so is another that is shown now: it is in the file that --allow-write names";
                Err((StatusCode::TOO_MANY_REQUESTS, why.into()))
            }
        }
    }
}

/// Looks at every request before it is answered, and at every answer before it goes.
async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let refused = if guard.knows(headers) {
        match *request.method() {
            Method::GET | Method::HEAD => Ok(()),
            _ => guard.admits(headers).await,
        }
    } else {
        let why =
            "requested by a name that is not this page's: start dcqcn-fleet serve with --host-name NAME"
                .to_owned();
        Err((StatusCode::MISDIRECTED_REQUEST, why))
    };
    let mut response = match refused {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Answers with `router` for as long as it is waited for.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    guard: Arc<Guard>,
) -> Result<Infallible, io::Error> {
    let router =
        router.layer(DefaultBodyLimit::max(BODY_BYTES)).layer(middleware::from_fn_with_state(guard, check));
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Whoever comes when all places are taken waits in the kernel.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let Ok((stream, _)) = listener.accept().await else {
            // No file descriptor is left, for example.
            sleep(PAUSE).await;
            continue;
        };
        let router = router.clone();
        tokio::spawn(async move {
            connection(stream, router, TAKING).await;
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, router: Router, taking: Duration) {
    // Without it somebody who looks on and does not read keeps a place for good. A kernel that refuses it is as one without it.
    let taking = u32::try_from(taking.as_millis()).unwrap_or(u32::MAX);
    let _ = setsockopt(&stream, TcpUserTimeout, &taking);
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        // Also between two requests: a connection without one gives its place back.
        .header_read_timeout(ASKING)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // What goes wrong with a connection is its client's.
    let _ = serving.await;
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[tokio::test]
    async fn stalled_reader_is_disconnected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut asking = TcpStream::connect(address).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        // More than the kernel keeps for somebody who does not read.
        let much = axum::body::Bytes::from(vec![b'x'; 64 << 20]);
        let router = Router::new().route("/", axum::routing::get(move || async move { much.clone() }));
        asking.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let serving = connection(stream, router, Duration::from_secs(1));
        tokio::time::timeout(Duration::from_secs(30), serving).await.expect("it is kept");
        drop(asking);
    }

    #[test]
    fn request_for_another_host_name_is_rejected() {
        let guard = Guard { names: vec!["fleet.example.com".into()], token: None };
        for known in [
            "127.0.0.1:9320",
            "[::1]:9320",
            "localhost:9320",
            "LOCALHOST",
            "10.0.0.1",
            "Fleet.example.com:443",
        ] {
            assert!(guard.knows(&headers(&[("host", known)])), "{known}");
        }
        for other in
            ["evil.example.com:9320", "", "127.0.0.1.evil.example.com", "localhost.evil.example.com:9320"]
        {
            assert!(!guard.knows(&headers(&[("host", other)])), "{other}");
        }
    }
}
