//! What a host is told, and what it counts.

use std::sync::Arc;

use dcqcn_common::flow::HashKeys;

use crate::network::change::Change;
use crate::network::scenario::{Control, Transport, WindowEnd};
use crate::network::scheduler::Scheduler;
use crate::network::workload::{Edge, Workload};

/// What all hosts have in common.
#[derive(Debug)]
pub(crate) struct HostRules {
    pub(crate) transport: Transport,
    pub(crate) control: Control,
    pub(crate) window_end: WindowEnd,
    pub(crate) scheduler: Scheduler,
    pub(crate) cnp_class: u8,
    pub(crate) overhead_bytes: u64,
    pub(crate) workload: Workload,
    /// By queue pair: its number at the host that sends, and at the one that receives.
    pub(crate) locals: Vec<(u32, u32)>,
    /// By flow: its number at the host that sends it.
    pub(crate) local_flows: Vec<u32>,
    /// Who waits for whom, ordered by the flow waited for.
    pub(crate) edges: Vec<Edge>,
    /// Time until another host learns that a flow of its own need not wait any longer.
    pub(crate) notice_ns: u64,
    pub(crate) changes: Arc<[Change]>,
    pub(crate) hash_keys: HashKeys,
    pub(crate) sample_ns: Option<u64>,
}

/// A completed flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) flow: u32,
    /// When it could start.
    pub(crate) posted_ns: u64,
    /// When its last byte was acknowledged.
    pub(crate) done_ns: u64,
}

/// What a host did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostCounters {
    pub(crate) data_packets: u64,
    pub(crate) delivered_packets: u64,
    pub(crate) marked: u64,
    pub(crate) cnps_sent: u64,
    pub(crate) cnps_handled: u64,
    /// Marks that were pending when the last packet of their flow had come.
    pub(crate) marks_unanswered: u64,
    pub(crate) naks: u64,
    pub(crate) retransmitted: u64,
    pub(crate) timeouts: u64,
}
