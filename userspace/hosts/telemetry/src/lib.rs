//! State and rates of the data plane, read from its pinned maps: needs no daemon, and allows any number of readers.
//!
//! A [`Reading`] is a snapshot of one interface's maps; the difference of two is a [`Sample`] with rates.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

pub mod audit;
mod counters;
pub mod event;
mod flows;
mod parameters;
mod qp;
mod queues;
mod reading;
mod sample;

pub use counters::{CountersReport, Softnet};
pub use event::{PacketRow, RoceRow};
pub use flows::{FlowsReport, NpFlowRow, PairRow};
pub use parameters::{ChangeReport, Parameter, Source, each};
pub use qp::{FlowRow, Process, RateRow};
pub use queues::QueuesReport;
pub use reading::Reading;
pub use sample::{ClassSample, PerStat, QpKey, QpSample, QueueSample, Sample};
pub use sample::{Sampler, alive_names, check_readable};

#[cfg(any(test, feature = "testing"))]
pub use reading::testing::reading;
