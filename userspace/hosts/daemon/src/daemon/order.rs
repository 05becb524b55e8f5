//! What the thread that answers hands to the thread that works.

use dcqcn_control_api::{Applied, Apply, Confirm, Release};
use tokio::sync::oneshot;

/// A change that others ask for.
#[derive(Debug)]
pub(super) enum Order {
    Reload,
    Apply(Apply),
    Confirm(Confirm),
    Undo(Confirm),
    Release(Release),
}

/// An order, and where the answer goes.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) order: Order,
    /// Who asks: user and process.
    pub(super) peer: String,
    pub(super) reply: oneshot::Sender<Result<Applied, Refusal>>,
}

/// Why an order is not carried out.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) why: String,
    /// It passes by itself: the same may be taken when it is asked again.
    pub(super) again: bool,
}
