//! Flow identity and the flow tables.
//!
//! A data packet names the receiver's queue pair and where it comes from; so that is what a flow is called everywhere: both
//! addresses and the number of the QP that receives its data. The reaction point keeps rate and pacing under it, the
//! notification point its CNP interval. A packet from elsewhere that names the same QP is another flow's.
//!
//! The tables are set-associative, as a cache is: a hash picks a set of eight, within which the least recently used
//! goes first. One lookup in an array, one lock, no allocation, and the same result in every engine. (Whom the kernel's
//! LRU hash evicts depends on the CPU.)

mod enter;
mod entry;
pub mod lock;
mod set;
mod shared;
mod subprogram;
mod table;
mod wait;

pub use crate::id::{FlowId, HashKeys, QpId, hash, set_index};
pub use enter::enter;
pub(crate) use enter::in_any_vlan;

pub(crate) use set::home_way;
pub use set::{Entry, Place, Set, tag};
pub(crate) use shared::FlowGuard;
pub use shared::{FlowPeek, LookupError, Shared, Slot};
pub use table::{Cnps, NpFlow, NpSet, RpCold, RpFlow, RpHot, RpSet};

#[cfg(test)]
mod tests;
