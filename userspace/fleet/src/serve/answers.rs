//! Handlers of HTTP requests, and the embedded files of the page.

use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use dcqcn_control_api::{Parameters, Values};
use dcqcn_params::word;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::board::{Board, View, events};
use super::guard::Refusal;
use super::write;
use crate::prelude::*;

const MAX_STREAMS: usize = 32;
const MAX_BODY_BYTES: usize = 16 << 10;
const MAX_REASON_CHARS: usize = 500;
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

type Answer = Result<Response, Refusal>;

#[derive(Clone)]
pub(super) struct Handler {
    board: Arc<Board>,
    query_client: ControlClient,
    change: ControlClient,
    store: Option<Store>,
    author: String,
    streams: Arc<Semaphore>,
    /// Permit for a query. The daemon limits connections per user, and the agent may run as the same user.
    reading: Arc<Semaphore>,
    /// Permit for a change. A change is derived from the active configuration, so changes are serialised.
    changing: Arc<Semaphore>,
}

impl Handler {
    pub(super) fn new(
        board: Arc<Board>,
        [query_client, change]: [ControlClient; 2],
        store: Option<Store>,
        author: String,
    ) -> Self {
        let [streams, reading, changing] = [MAX_STREAMS, 1, 1].map(|count| Arc::new(Semaphore::new(count)));
        Self { board, query_client, change, store, author, streams, reading, changing }
    }

    /// Runs a handler while holding the permit; other requests wait.
    async fn alone(of: &Arc<Semaphore>, answer: impl Future<Output = Answer> + Send + 'static) -> Answer {
        // The semaphore is never closed.
        let permit = Arc::clone(of).acquire_owned().await.ok();
        // A separate task holds the permit: the daemon remains busy even if the client disconnects.
        let task = tokio::spawn(async move {
            let _permit = permit;
            answer.await
        });
        task.await.unwrap_or_else(|error| Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())))
    }
}

pub(super) fn router(handler: Handler) -> Router {
    assets()
        .route("/events", get(overview))
        .route("/events/interface/{name}", get(interface))
        .route("/events/host/{name}", get(host))
        .route("/parameters/{interface}", get(parameters))
        .route("/change", post(change))
        .route("/keep", post(keep))
        .route("/undo", post(undo))
        .route("/rollout", post(rollout))
        .with_state(handler)
}

async fn overview(State(handler): State<Handler>) -> Answer {
    stream(handler, None)
}

async fn interface(State(handler): State<Handler>, Path(name): Path<String>) -> Answer {
    stream(handler, Some(View::Interface(name)))
}

async fn host(State(handler): State<Handler>, Path(name): Path<String>) -> Answer {
    stream(handler, Some(View::Host(name)))
}

fn stream(handler: Handler, view: Option<View>) -> Answer {
    let busy = |_| (StatusCode::SERVICE_UNAVAILABLE, format!("{MAX_STREAMS} clients are streaming already"));
    let permit = handler.streams.try_acquire_owned().map_err(busy)?;
    Ok(events(handler.board, view, permit).into_response())
}

async fn parameters(State(handler): State<Handler>, Path(interface): Path<String>) -> Answer {
    let client = handler.query_client;
    Handler::alone(&handler.reading, async move { explained(&client, interface).await }).await
}

async fn explained(client: &ControlClient, interface: String) -> Answer {
    let values = send(client, Verb::Parameters(Parameters { interface })).await;
    let values: Values = values.map_err(|error| (StatusCode::BAD_GATEWAY, error.to_string()))?;
    let parameter = |key: Key| -> Option<Value> {
        let name = key.to_string();
        let value = values.parameters.get(&name)?;
        Some(json!({
            "key": name, "text": value.text, "bounds": value.bounds, "group": word(&key.group()),
            "default": key.default_text(), "allowed": key.allowed(), "doc": key.doc(), "larger": key.larger(),
        }))
    };
    answer(&Key::all().filter_map(parameter).collect::<Vec<_>>())
}

async fn change(State(handler): State<Handler>, body: Body) -> Answer {
    let (request, client) = (read(body).await?, handler.change);
    let change = async move { done(write::change(&client, &request).await) };
    Handler::alone(&handler.changing, change).await
}

async fn keep(State(handler): State<Handler>, body: Body) -> Answer {
    settle(handler, Verb::Confirm(read(body).await?)).await
}

async fn undo(State(handler): State<Handler>, body: Body) -> Answer {
    settle(handler, Verb::Undo(read(body).await?)).await
}

async fn settle(handler: Handler, verb: Verb) -> Answer {
    let client = handler.change;
    let settle = async move { done(send::<Applied>(&client, verb).await) };
    Handler::alone(&handler.changing, settle).await
}

#[derive(Debug, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase", deny_unknown_fields)]
enum Command {
    Pause,
    Resume,
    Abort { why: String },
}

async fn rollout(State(handler): State<Handler>, body: Body) -> Answer {
    let command: Command = read(body).await?;
    let Some(mut store) = handler.store else {
        return Err((StatusCode::NOT_FOUND, "this page shows no fleet; start it with --fleet".into()));
    };
    let author = &handler.author;
    let why = match &command {
        Command::Abort { why } => why.chars().take(MAX_REASON_CHARS).collect(),
        Command::Pause | Command::Resume => String::new(),
    };
    let edited = store.edit(match &command {
        Command::Pause => Event::Pause { by: author },
        Command::Resume => Event::Resume { by: author },
        Command::Abort { .. } => Event::Abort { by: author, why: &why },
    });
    done(edited.await.map(|(rollout, _)| rollout.status()))
}

async fn read<T: DeserializeOwned>(body: Body) -> Result<T, Refusal> {
    let bad = |why: String| (StatusCode::BAD_REQUEST, why);
    let bytes = timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY_BYTES))
        .await
        .map_err(|_| bad("request body not received in time".into()))?;
    let bytes = bytes.map_err(|error| bad(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))
}

fn done(result: Result<impl Serialize, impl std::error::Error>) -> Answer {
    answer(&result.map_err(|error| (StatusCode::CONFLICT, one_line(&error)))?)
}

fn answer(value: &impl Serialize) -> Answer {
    let text = serde_json::to_string(value);
    let text = text.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

const FILES: [(&str, &str, &str); 14] = [
    ("/", HTML, include_str!("../../page/index.html")),
    ("/page.css", CSS, include_str!("../../page/page.css")),
    ("/page.js", JS, include_str!("../../page/page.js")),
    ("/dom.js", JS, include_str!("../../page/dom.js")),
    ("/chart.js", JS, include_str!("../../page/chart.js")),
    ("/overview.js", JS, include_str!("../../page/overview.js")),
    ("/figures.js", JS, include_str!("../../page/figures.js")),
    ("/fleet.js", JS, include_str!("../../page/fleet.js")),
    ("/interface.js", JS, include_str!("../../page/interface.js")),
    ("/parameters.js", JS, include_str!("../../page/parameters.js")),
    ("/icon.svg", "image/svg+xml", include_str!("../../page/icon.svg")),
    ("/uplot.js", JS, include_str!(concat!(env!("OUT_DIR"), "/uplot.js"))),
    ("/uplot.css", CSS, include_str!(concat!(env!("OUT_DIR"), "/uplot.css"))),
    // The licence requires that copies of uPlot include it.
    ("/uplot.license", "text/plain; charset=utf-8", include_str!(concat!(env!("OUT_DIR"), "/uplot.license"))),
];

fn assets<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let add = |router: Router<S>, (path, kind, text): (&'static str, &'static str, &'static str)| {
        router.route(path, get(move || async move { ([(header::CONTENT_TYPE, kind)], text).into_response() }))
    };
    FILES.into_iter().fold(Router::new(), add)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn abandoned_requests_stay_serialised() {
        let (permit, busy, most) =
            (Arc::new(Semaphore::new(1)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let asking = |busy: Arc<AtomicUsize>, most: Arc<AtomicUsize>| async move {
            most.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_millis(50)).await;
            busy.fetch_sub(1, Ordering::SeqCst);
            answer(&"done")
        };
        for _ in 0..20 {
            let answer = Handler::alone(&permit, asking(Arc::clone(&busy), Arc::clone(&most)));
            assert!(timeout(Duration::from_millis(5), answer).await.is_err(), "the client disconnects");
        }
        assert!(Handler::alone(&permit, asking(busy, Arc::clone(&most))).await.is_ok());
        assert_eq!(most.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn page_has_no_remote_or_inline_code() {
        let own = FILES.iter().filter(|(path, ..)| !path.starts_with("/uplot"));
        for (path, _, text) in own {
            for word in
                ["https:", "innerHTML", "insertAdjacentHTML", "eval(", " style=", "onclick=", "<style"]
            {
                assert!(!text.contains(word), "{path} has {word}");
            }
            // The SVG namespace is not fetched.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http:"), "{path}");
        }
        let (_, _, html) = FILES[0];
        for script in html.split("<script").skip(1) {
            assert!(script.starts_with(" src=\"/") && script.contains("></script>"), "{script}");
        }
    }
}
