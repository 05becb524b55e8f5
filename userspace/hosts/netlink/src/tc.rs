//! Queueing disciplines (qdiscs) and classes: shaping, pacing and queueing at an interface.

mod batch;
mod filter;
mod qdisc;
mod rate;
mod read;
mod save;
mod spec;

pub use crate::handle::Handle;
pub use batch::Batch;
pub use filter::Filter;
pub use qdisc::kernel_has_qdisc;
pub use read::{Class, Fq, Qdisc, Shaper, Shaping, Stats};
pub use save::{Restored, SavedQdisc};
pub use spec::{Ets, HtbClass, QdiscSpec};
