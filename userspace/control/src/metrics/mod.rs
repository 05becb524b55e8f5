//! Metrics in Prometheus' text format, over HTTP: `/metrics`, and `/healthz` for a load balancer or a kubelet.
//!
//! Each request reads the pinned maps. Counters keep their [`Stat`] names, which are mlx5's where mlx5 has them.
//!
//! [`Stat`]: dcqcn_common::stats::Stat

mod exposition;
#[cfg(test)]
mod page;
mod render;
mod scrape;
mod serve;

pub use scrape::{Health, Scrape, Unreadable};
pub use serve::serve;

#[cfg(test)]
mod tests;
