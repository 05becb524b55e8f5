//! Server-sent events: streams views to clients.

use std::convert::Infallible;

use axum::response::sse::{Event, KeepAlive, Sse};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;

use super::board::{Board, Subscription, View};
use crate::prelude::*;

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

/// Forwards a subscription, and starts again from the complete state after the client fell behind. Returns when the client
/// disconnects or the view is removed.
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
