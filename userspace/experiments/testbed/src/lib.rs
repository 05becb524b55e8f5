//! Library of `dcqcn-lab`: a closed loop in separate network namespaces.
//!
//! A lab is a [`Topology`] (hosts around a switch with a shaped port), endpoints that drive RoCEv2 traffic through it,
//! a thread that samples the bottleneck, and, if requested, the data plane attached as on any host ([`DataPlane`]).
//! Results are stored in a [`RunRecord`], from which metrics, tables and plots are derived.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

mod bmv2;
mod config;
mod control;
mod cpu;
mod endpoint;
mod error;
pub mod frame;
mod host;
mod incast;
mod measure;
pub mod plot;
pub mod qualify;
mod rc;
pub mod record;
pub mod report;
mod socket;
mod task;
mod tcp;
pub mod topology;

pub use config::IncastConfig;
pub use control::{DataPlane, RpLocation};
pub use cpu::CpuMeter;
pub use endpoint::QueuePair;
pub use error::{ConfigError, Error};
pub use incast::incast;
pub use record::{ControlSample, RunRecord, Thresholds};
pub use report::{IncastReport, RunReport};
pub use topology::Topology;
