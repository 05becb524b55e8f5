//! The daemon (`dcqcn run`) with its tasks, the metrics server, and RDMA QP pairs for the data plane.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

mod counts;
pub mod daemon;
mod error;
mod fresh;
pub mod hangup;
pub mod metrics;
pub mod pairing;
mod shared_state;
mod snapshot_cache;

pub use error::Error;
