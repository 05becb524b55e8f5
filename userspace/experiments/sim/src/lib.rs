//! `dcqcn-lab sim`: a deterministic discrete-event simulator.
//!
//! [`run`] makes an [`Outcome`] of a [`Scenario`]: what is modelled, and what is not, is said there. DCQCN itself (marking,
//! CNP interval, rate machine, pacing) is `dcqcn-common`, the code that runs in the kernel.

mod bottleneck;
mod cycle;
pub mod fabric;
pub mod file;
pub mod network;
mod outcome;
pub mod plot;
pub mod presets;
pub mod report;
mod scenario;
pub mod sweep;
pub mod sweep_report;
pub mod tune;

pub use bottleneck::run;
pub use outcome::*;
pub use presets::knobs;
pub use scenario::*;
