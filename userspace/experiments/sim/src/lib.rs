//! `dcqcn-lab sim` and `tune`: a deterministic, packet-level simulator of RoCEv2 with DCQCN.
//!
//! | module | content |
//! |---|---|
//! | [`network`] | the engine: hosts, switches, workloads, topologies, on several cores |
//! | [`star`](mod@star) | one congested port: a star in that engine, with TCP next to RoCE, and its statistics |
//! | [`presets`], [`file`](mod@file), [`report`] | stars, from settings to tables |
//! | [`fabric`] | fabrics, from flags to tables |
//! | [`tune`] | random search of parameters in a fabric |
//! | [`sweep`], `runs` | combinations of settings, and their simulations on all cores |
//!
//! DCQCN itself (marking, CNP interval, rate machine, pacing) is the code of `dcqcn-common` that runs in the
//! kernel; go-back-N is shared with the test bed.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

mod cycle;
mod error;
pub mod fabric;
pub mod file;
pub mod network;
pub mod plot;
pub mod presets;
pub mod report;
mod runs;
pub mod star;
pub mod sweep;
pub mod sweep_report;
pub mod tune;

pub use error::{Error, SetupError};
pub use presets::knobs;
pub use runs::{Run, RunCost};
