//! Shared state of the page, and server-sent events that stream it to clients.

use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard};

use axum::response::sse::{Event, KeepAlive, Sse};
use dcqcn_support::sync::lock;
use serde_json::Value;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;

use super::series::Track;
use crate::prelude::*;

/// Messages buffered per subscriber. A subscriber that falls further behind receives the complete state again.
const SUBSCRIBER_BUFFER: usize = 16;
/// Maximum number of interfaces and hosts with stored metrics.
const MAX_TRACKS: usize = 2_048;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum View {
    Interface(String),
    Host(String),
}

struct ViewState {
    track: Track,
    listeners: Sender<Arc<str>>,
}

struct Inner {
    views: BTreeMap<View, ViewState>,
    parts: BTreeMap<&'static str, Value>,
    overview: Sender<Arc<str>>,
}

pub(super) struct Board(Mutex<Inner>);

/// Subscription to a view: the complete state, then updates.
pub(super) struct Subscription {
    pub(super) first: Arc<str>,
    pub(super) more: Receiver<Arc<str>>,
}

impl Board {
    pub(super) fn new() -> Self {
        let (overview, _) = channel(SUBSCRIBER_BUFFER);
        Self(Mutex::new(Inner { views: BTreeMap::new(), parts: BTreeMap::new(), overview }))
    }

    pub(super) fn overview(&self) -> Subscription {
        let inner = self.lock();
        Subscription { first: text(&json!(inner.parts)), more: inner.overview.subscribe() }
    }

    /// Subscribes to the metrics of a view; `None` if it does not exist.
    pub(super) fn subscribe(&self, view: &View) -> Option<Subscription> {
        let inner = self.lock();
        let views = inner.views.get(view)?;
        Some(Subscription { first: text(&views.track.history()), more: views.listeners.subscribe() })
    }

    /// Returns whether there is any subscriber; each one subscribes to the overview.
    pub(super) fn is_watched(&self) -> bool {
        self.lock().overview.receiver_count() > 0
    }

    pub(super) fn watched_interfaces(&self) -> BTreeSet<String> {
        let inner = self.lock();
        let watched = inner.views.iter().filter(|(_, views)| views.listeners.receiver_count() > 0);
        let name = |view: &View| match view {
            View::Interface(name) => Some(name.clone()),
            View::Host(_) => None,
        };
        watched.filter_map(|(view, _)| name(view)).collect()
    }

    pub(super) fn add(&self, view: View, change: impl FnOnce(&mut Track)) {
        let mut inner = self.lock();
        let has_room = inner.views.len() < MAX_TRACKS;
        let views = match inner.views.entry(view) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) if has_room => {
                entry.insert(ViewState { track: Track::default(), listeners: channel(SUBSCRIBER_BUFFER).0 })
            }
            Entry::Vacant(_) => return,
        };
        change(&mut views.track);
        if views.listeners.receiver_count() > 0 {
            // Fails if the last subscriber has just left.
            let _ = views.listeners.send(text(&views.track.latest()));
        }
    }

    /// Removes views that no longer exist and have no subscriber.
    pub(super) fn retain(&self, is_there: impl Fn(&View) -> bool) {
        self.lock().views.retain(|view, views| is_there(view) || views.listeners.receiver_count() > 0);
    }

    pub(super) fn publish(&self, part: &'static str, value: Value) {
        let mut inner = self.lock();
        if inner.parts.get(part) == Some(&value) {
            return;
        }
        if inner.overview.receiver_count() > 0 {
            let _ = inner.overview.send(text(&json!({ part: &value })));
        }
        inner.parts.insert(part, value);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }
}

fn text(value: &Value) -> Arc<str> {
    value.to_string().into()
}

const CONNECTION_BUFFER: usize = 4;
/// Period of keep-alive messages, which detect closed connections.
const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(15);

const VIEW_RETRY: Duration = Duration::from_secs(3);

/// Streams the overview and, if requested, the metrics of `view`, which may appear or be removed at any time.
pub(super) fn events(
    board: Arc<Board>,
    view: Option<View>,
    permit: OwnedSemaphorePermit,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let (sender, receiver) = mpsc::channel(CONNECTION_BUFFER);
    let overview = board.overview();
    tokio::spawn(async move {
        // `send` fails once the client has disconnected.
        let _ = tokio::select! {
            ended = forward(&sender, "overview", overview, || Some(board.overview())) => ended,
            ended = async {
                let Some(view) = &view else { return std::future::pending().await };
                loop {
                    if let Some(metrics) = board.subscribe(view) {
                        forward(&sender, "figures", metrics, || board.subscribe(view)).await;
                    }
                    sleep(VIEW_RETRY).await;
                }
            } => ended,
            () = sender.closed() => None,
        };
        drop(permit);
    });
    Sse::new(ReceiverStream::new(receiver)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_PERIOD))
}

/// Forwards a subscription, and starts again from the complete state after the client fell behind. Returns
/// when the client disconnects or the view is removed.
async fn forward(
    sender: &mpsc::Sender<Result<Event, Infallible>>,
    kind: &str,
    mut subscription: Subscription,
    again: impl Fn() -> Option<Subscription>,
) -> Option<Infallible> {
    let event = |text: &str| Ok(Event::default().event(kind).data(text));
    loop {
        let Subscription { first, mut more } = subscription;
        sender.send(event(&first)).await.ok()?;
        loop {
            match more.recv().await {
                Ok(text) => sender.send(event(&text)).await.ok()?,
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return None,
            }
        }
        subscription = again()?;
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::Point;
    use super::*;

    fn point(t: f64) -> impl Fn(&mut Track) {
        move |track| track.add(Point { t, values: vec![("marks", Some(t))] }, 5.0)
    }

    #[test]
    fn subscriber_gets_state_then_changes() {
        let (board, eth0) = (Board::new(), View::Interface("eth0".into()));
        assert!(board.subscribe(&eth0).is_none() && !board.is_watched());
        for t in [1.0, 2.0] {
            board.add(eth0.clone(), point(t));
        }
        assert!(board.watched_interfaces().is_empty());
        let Subscription { first, mut more } = board.subscribe(&eth0).unwrap();
        assert!(first.contains("\"t\":[1.0,2.0]"), "{first}");
        assert_eq!(board.watched_interfaces(), ["eth0".to_owned()].into());
        board.add(eth0.clone(), point(3.0));
        let next = more.try_recv().unwrap();
        assert!(next.contains("\"t\":[3.0]") && next.contains("\"whole\":false"), "{next}");
        board.retain(|_| false);
        assert!(board.subscribe(&eth0).is_some(), "it has a subscriber");
        drop(more);
        board.retain(|_| false);
        assert!(board.subscribe(&eth0).is_none());
    }

    #[test]
    fn overview_sends_changes_only() {
        let board = Board::new();
        board.publish("status", json!(1));
        let Subscription { first, mut more } = board.overview();
        assert_eq!(&*first, "{\"status\":1}");
        board.publish("status", json!(1));
        board.publish("held", json!(null));
        assert_eq!(&*more.try_recv().unwrap(), "{\"held\":null}");
        assert!(board.is_watched() && more.try_recv().is_err());
    }
}
