//! Access control and security headers of the page.

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;

use super::write::Token;
use crate::prelude::*;

/// Content security policy: no foreign content, no inline content, no framing.
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
/// Header with the token. Pages of other origins cannot send it: it requires a CORS preflight, which this
/// server does not answer.
pub(super) const TOKEN: &str = "x-dcqcn-token";

pub(super) struct Guard {
    /// Accepted host names, in addition to addresses and `localhost`. All others are rejected: by DNS
    /// rebinding, a foreign page could let its own name resolve to this server.
    pub(super) names: Vec<String>,
    /// Token required for changes; `None` makes the page read-only.
    pub(super) token: Option<Token>,
}

pub(super) type Refusal = (StatusCode, String);

impl Guard {
    fn accepts_host(&self, headers: &HeaderMap) -> bool {
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

    fn admits(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(token) = &self.token else {
            let why = "this page is read-only: dcqcn-fleet serve was started without --allow-write";
            return Err((StatusCode::FORBIDDEN, why.into()));
        };
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text(header::HOST).unwrap_or_default();
        // Browsers send the origin of the requesting page.
        let is_own = text(header::ORIGIN).is_none_or(|origin| {
            origin.split_once("://").is_some_and(|(_, from)| from.eq_ignore_ascii_case(host))
        });
        if !is_own || text(header::CONTENT_TYPE) != Some("application/json") {
            return Err((StatusCode::FORBIDDEN, "request from another origin, or not JSON".into()));
        }
        let shown = headers.get(TOKEN).map(HeaderValue::as_bytes).unwrap_or_default();
        if !token.matches(shown) {
            let why = "wrong token; use the one in the file given by --allow-write";
            return Err((StatusCode::UNAUTHORIZED, why.into()));
        }
        Ok(())
    }
}

/// Middleware: checks every request, and adds security headers to every response.
async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let refused = if guard.accepts_host(headers) {
        match *request.method() {
            Method::GET | Method::HEAD => Ok(()),
            _ => guard.admits(headers),
        }
    } else {
        let why =
            "the page was requested by an unknown host name; start dcqcn-fleet serve with --host-name NAME"
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

pub(super) fn guarded(router: Router, guard: Arc<Guard>) -> Router {
    router.layer(middleware::from_fn_with_state(guard, check))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn request_for_another_host_name_is_rejected() {
        let guard = Guard { names: vec!["fleet.example.com".into()], token: None };
        let known = "127.0.0.1:9320 [::1]:9320 localhost:9320 LOCALHOST 10.0.0.1 Fleet.example.com:443";
        for known in known.split(' ') {
            assert!(guard.accepts_host(&headers(&[("host", known)])), "{known}");
        }
        // One of them is empty.
        let other = "evil.example.com:9320  127.0.0.1.evil.example.com localhost.evil.example.com:9320";
        for other in other.split(' ') {
            assert!(!guard.accepts_host(&headers(&[("host", other)])), "{other}");
        }
    }
}
