//! Metrics in Prometheus' text format or OpenMetrics, as the client prefers, over HTTP: `/metrics`, `/healthz` to restart by, and `/readyz` to send work by.
//!
//! Counters keep their [`Stat`] names, which are mlx5's where mlx5 has them.
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
