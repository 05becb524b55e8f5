//! Queueing disciplines (qdiscs) and classes: what shapes, paces and queues at an interface.

mod batch;
mod filter;
mod handle;
mod qdisc;
mod save;
mod spec;

pub use batch::Batch;
pub use filter::Filter;
pub use handle::Handle;
pub use qdisc::{Class, Qdisc, Shaper, Shaping, Stats, kernel_has_qdisc};
pub use save::{Restored, SavedQdisc};
pub use spec::{Ets, HtbClass, QdiscSpec};
