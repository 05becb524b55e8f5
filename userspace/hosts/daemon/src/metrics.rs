//! Metrics as Prometheus text or OpenMetrics over HTTP: `/metrics`, `/healthz` for liveness, and `/readyz` for
//! readiness.
//!
//! Counters have their [`Stat`] names, which are mlx5's where mlx5 has them.
//!
//! [`Stat`]: dcqcn_common::stats::Stat

mod exposition;
#[cfg(test)]
mod page;
mod process;
mod readiness;
mod render;
mod scrape;
mod serve;

pub use scrape::{Scrape, Unreadable};
pub(crate) use serve::accept;
pub use serve::{Exporter, serve};

#[cfg(test)]
mod tests;
