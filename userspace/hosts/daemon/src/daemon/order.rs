//! Orders from the event loop to the worker.

use dcqcn_control_api::{Applied, Apply, Confirm, Release};
use tokio::sync::oneshot;

/// A change requested by a client.
#[derive(Debug)]
pub(super) enum Order {
    Reload,
    Apply(Apply),
    Confirm(Confirm),
    Undo(Confirm),
    Release(Release),
}

/// An order, and the channel for its reply.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) order: Order,
    /// The client: user and process.
    pub(super) peer: String,
    pub(super) reply: oneshot::Sender<Result<Applied, Refusal>>,
}

/// Reason for rejecting an order.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) why: String,
    /// The obstacle is temporary: the same request may succeed later.
    pub(super) again: bool,
}
