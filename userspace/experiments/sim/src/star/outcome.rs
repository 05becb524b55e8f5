//! Outcome of a simulation.
//!
//! Fields cover the time from [`stats_from_ns`](super::Star::stats_from_ns) to the end, unless stated otherwise.

use serde::Serialize;

use crate::network::Fct;
pub use crate::network::{Depth, FlowCounters};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    pub duration_ns: u64,
    pub stats_from_ns: u64,
    pub port_rate_bps: u64,
    /// Fraction of that time in which the port was sending, 0 to 1.
    pub link_utilisation: f64,
    /// Time from the last start of a RoCE bulk flow to the end of the last window in which those flows were unfair;
    /// `None`: they still were at the end, or there are fewer than two.
    ///
    /// A window is 1/50 of the time from that start to the end of the simulation; fair means that Jain's index of the
    /// flows' goodput in it is at least 0.95. Stopped flows do not count.
    pub convergence_ns: Option<u64>,
    /// Per group, RoCE before TCP, in the scenario's order.
    pub groups: Vec<GroupOutcome>,
    /// Per flow, in the order of the groups.
    pub flows: Vec<FlowOutcome>,
    /// Every class that has a group, lowest first.
    pub classes: Vec<ClassOutcome>,
    /// Messages that started and were not complete at the end, of flows that send a single one.
    pub unfinished_messages: u64,
    /// Messages that did not start before the end, of flows that send a single one.
    pub not_started_messages: u64,
    /// Work done, over the whole time.
    pub counters: Counters,
    /// Time series over the whole time, if requested.
    pub series: Option<Series>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupOutcome {
    pub name: String,
    pub kind: Kind,
    pub class: u8,
    pub flows: u32,
    /// Payload delivered, per second.
    pub goodput_bps: f64,
    /// Jain's fairness index of its flows' goodput: 1/flows to 1; 1 without any goodput.
    pub jain: f64,
    pub totals: FlowCounters,
    /// Completion times of all its messages; `None`: none completed.
    pub fct: Option<Fct>,
    /// Completion times by message length, in the order of `Work::Messages`.
    pub fct_by_size: Vec<FctOfSize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Roce,
    /// TCP with CUBIC.
    Cubic,
    /// TCP with DCTCP.
    Dctcp,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowOutcome {
    /// Name of the group and number in it, `incast.0`.
    pub name: String,
    pub group: u32,
    /// Payload delivered (RoCE: in order; TCP: acknowledged), per second.
    pub goodput_bps: f64,
    pub counters: FlowCounters,
    /// Rate at the end: R_C of a RoCE flow, window over smoothed round-trip time of a TCP flow.
    pub rate_bps: u64,
    /// When the one message of `Work::Once` was acknowledged; in simulated time.
    pub completed_ns: Option<u64>,
}

/// Completion times of messages of one length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FctOfSize {
    pub bytes: u64,
    /// Completion times, from a message's being ready at the sender to its acknowledgement there; `None`: none
    /// completed.
    pub fct: Option<Fct>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassOutcome {
    pub class: u8,
    /// Depth of its queue over time, without the packet being sent.
    pub queue: Depth,
    pub marked_packets: u64,
    pub dropped_packets: u64,
    pub pauses: u64,
    pub paused_ns: u64,
    pub tx_packets: u64,
    /// Bytes of them, layer 2.
    pub tx_bytes: u64,
    /// Fraction of all bytes that the port sent, 0 to 1.
    pub tx_share: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    pub sent_packets: u64,
    pub received_packets: u64,
    pub dropped_packets: u64,
    /// Packets on a link, in the queues or being sent at the end.
    pub in_flight_packets: u64,
    /// Transmissions of a packet over one link: sender to switch, switch to receiver.
    pub hops: u64,
}

/// Samples over time; every list has the length of `t_ns`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Series {
    /// When each sample was taken.
    pub t_ns: Vec<u64>,
    /// Rates, targets and goodput per flow, up to the requested number.
    pub flows: Vec<Samples>,
    pub groups: Vec<Samples>,
    /// Depths per class that has a group.
    pub classes: Vec<Samples>,
}

/// Samples of a flow, a group or a class; empty: it has no such value.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Samples {
    /// Name, or number of the class.
    pub name: String,
    /// Index of the group, or number of the class.
    pub index: u32,
    /// R_C, or window over smoothed round-trip time of a TCP flow; 0 before its start.
    pub rate_bps: Vec<u64>,
    /// R_T; 0 for a TCP flow.
    pub target_bps: Vec<u64>,
    /// Payload delivered since the last sample, per second.
    pub goodput_bps: Vec<u64>,
    pub queue_bytes: Vec<u64>,
    /// Greatest depth of the queue since the last sample.
    pub max_queue_bytes: Vec<u64>,
}
