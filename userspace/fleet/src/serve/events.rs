//! Server-sent events: streams views to clients.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;

use super::board::{Beginning, Board, View};

/// Messages buffered per connection.
const UNDER_WAY: usize = 4;
/// Period of keep-alive messages, which detect closed connections.
const ALIVE: Duration = Duration::from_secs(15);

/// Streams the overview and, if requested, the metrics of `view`; `None` if that does not exist.
pub(super) fn events(
    board: Arc<Board>,
    view: Option<View>,
    place: OwnedSemaphorePermit,
) -> Option<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let (say, said) = mpsc::channel(UNDER_WAY);
    let overview = board.overview();
    let figures = view.as_ref().map(|view| board.look_at(view));
    if let Some(None) = figures {
        return None;
    }
    tokio::spawn(async move {
        // `send` fails once the client has disconnected.
        let _ = tokio::select! {
            gone = tell(&say, "overview", overview, || Some(board.overview())) => gone,
            gone = async {
                match figures.flatten() {
                    Some(figures) => tell(&say, "figures", figures, || board.look_at(view.as_ref()?)).await,
                    None => std::future::pending().await,
                }
            } => gone,
            () = say.closed() => None,
        };
        drop(place);
    });
    Some(Sse::new(ReceiverStream::new(said)).keep_alive(KeepAlive::new().interval(ALIVE)))
}

/// Forwards a subscription, and starts again from the complete state after the client fell behind. Returns when the client
/// disconnects or the view is removed.
async fn tell(
    say: &mpsc::Sender<Result<Event, Infallible>>,
    kind: &str,
    mut beginning: Beginning,
    again: impl Fn() -> Option<Beginning>,
) -> Option<Infallible> {
    let event = |text: &str| Ok(Event::default().event(kind).data(text));
    loop {
        let Beginning { first, mut more } = beginning;
        say.send(event(&first)).await.ok()?;
        loop {
            match more.recv().await {
                Ok(text) => say.send(event(&text)).await.ok()?,
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return None,
            }
        }
        beginning = again()?;
    }
}
