//! What stays running: the controller (`dcqcn run`) and its tasks, the metrics, and the pairs that it tells
//! the data plane.

mod counts;
pub mod daemon;
mod depths;
mod error;
mod fresh;
pub mod hangup;
pub mod metrics;
pub mod pairing;
mod shared_state;
mod snapshot_cache;

pub use error::Error;
