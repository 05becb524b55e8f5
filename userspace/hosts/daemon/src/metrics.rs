//! Metrics as Prometheus text or OpenMetrics over HTTP: `/metrics`, `/healthz` for liveness, and `/readyz` for
//! readiness.
//!
//! Counters have the names of [`Stat`], which are those of mlx5 where it has the same counter.
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
