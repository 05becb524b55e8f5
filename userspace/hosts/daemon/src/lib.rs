//! What stays running: the controller (`dcqcn run`) and its tasks, the metrics, and the pairs that it tells
//! the data plane.

mod counts;
pub mod daemon;
mod depths;
mod desk;
mod error;
mod fresh;
pub mod hangup;
mod looks;
pub mod metrics;
pub mod pairing;

pub use error::Error;
