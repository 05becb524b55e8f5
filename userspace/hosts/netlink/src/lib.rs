//! Network namespaces, links and queueing disciplines over rtnetlink.
//!
//! All calls block, and no async runtime is required: a request is one `send`, its answer one or a
//! few `recv` on a [`Netlink`] socket. A socket belongs to the network namespace it was opened in,
//! even if its thread enters another one later.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

mod error;
mod ethtool;
pub mod link;
mod netlink;
pub mod netns;
pub mod rdma;
pub mod tc;
mod wire;

pub use error::{Error, Refusal, Result};
pub use ethtool::Driver;
pub use link::{Link, LinkStatistics, Stack, is_cable, wire_overhead_bytes};
pub use netlink::Netlink;
pub use netns::Netns;
