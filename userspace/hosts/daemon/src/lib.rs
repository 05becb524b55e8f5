//! The daemon (`dcqcn run`) with its tasks, the metrics server, and RDMA QP pairs for the data plane.

mod counts;
pub mod daemon;
mod depths;
mod error;
mod fresh;
pub mod hangup;
mod last_reading;
pub mod metrics;
pub mod pairing;
mod rdma_view;
mod shared_state;
mod snapshot_cache;

pub use error::Error;
