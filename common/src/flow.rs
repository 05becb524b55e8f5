//! Flow identity and the flow tables.
//!
//! A data packet names the destination QP and its source address, so a flow is identified everywhere by its
//! VLAN tags, both addresses and the destination QPN. The reaction point stores rate and pacing per flow, the
//! notification point the CNP interval. Packets from another address to the same QP are another flow.
//!
//! The tables are set-associative, as a cache is: a hash selects a set of eight ways, within which the least recently
//! used flow is evicted. One array lookup, one lock, no allocation, and the same result in every engine. (Eviction in
//! the kernel's LRU hash depends on the CPU.)

mod enter;
mod entry;
pub mod lock;
mod set;
mod shared;
mod subprogram;
mod table;

pub use crate::id::{FlowId, HashKeys, QpId, hash, set_index};
pub use enter::enter;
pub(crate) use enter::in_any_vlan;

pub(crate) use set::home_way;
pub use set::{Entry, Selection, Set, tag};
pub(crate) use shared::FlowGuard;
pub use shared::{FlowPeek, LookupError, Shared, Slot};
pub use table::{Cnps, NpFlow, NpPeek, NpSet, RpCold, RpFlow, RpHot, RpSet};

#[cfg(test)]
mod tests;
