//! State and rates of the data plane, read from its pinned maps: needs no daemon, and allows any number of readers.
//!
//! A [`Reading`] is a snapshot of one interface's maps; the difference of two is a [`Sample`] with rates.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

pub mod audit;
mod counters;
pub mod event;
mod flows;
mod packet;
mod parameters;
mod process;
mod qp;
mod queues;
mod reading;
mod sample;
mod softnet;

pub use counters::CountersReport;
pub use flows::{FlowsReport, NpFlowRow, PairRow};
pub use packet::{PacketRow, RoceRow};
pub use parameters::{ChangeReport, Parameter, Source, each};
pub use process::Process;
pub use qp::{FlowRow, RateRow};
pub use queues::QueuesReport;
pub use reading::Reading;
pub use sample::{ClassSample, PerStat, QpKey, QpSample, QueueSample, Sample};
pub use sample::{Sampler, alive_names};
pub use softnet::Softnet;

#[cfg(any(test, feature = "testing"))]
pub use reading::testing::reading;
