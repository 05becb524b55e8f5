//! Data for a live view: interfaces, their parameters, and recent changes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Counts, Failing};

pub const MAX_QPS: usize = 64;
/// Maximum number of interfaces whose QPs are sampled concurrently: reading a table takes milliseconds.
pub const MAX_WATCHED: usize = 4;
pub const MAX_CHANGES: usize = 200;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotRequest {
    /// The interface whose busiest QPs to include; none by default.
    pub busiest_of: Option<String>,
    pub most: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    pub interfaces: BTreeMap<String, InterfaceSnapshot>,
    /// Interfaces that are unreadable or not attached although configured.
    pub failing: Vec<Failing>,
    /// QPs of the requested interface, the busiest first.
    pub busiest: Vec<Qp>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InterfaceSnapshot {
    #[serde(flatten)]
    pub counts: Counts,
    /// `host` or `switch`.
    pub role: String,
    /// `none`, `fq` or `htb`.
    pub pacer: String,
    /// Highest rate of a flow, in bit/s; 0 = unknown.
    pub line_rate_bps: u64,
    pub classes: Vec<Class>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    pub tc: usize,
    pub ecn: bool,
    /// Queue depth from which packets are marked.
    pub kmin_bytes: u64,
    /// Queue depth above which all packets are marked.
    pub kmax_bytes: u64,
    /// Queue depth in bytes; of two ports the larger.
    pub depth_bytes: u64,
    pub packets: u64,
    /// Bytes since it was attached, layer 2.
    pub bytes: u64,
    pub marked_packets: u64,
}

/// A QP that this host sends to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Qp {
    pub address: String,
    pub qpn: u32,
    /// Kind of its last increase, as in `additive-increase`.
    pub state: String,
    /// Current rate R_C, in bit/s.
    pub rate_bps: u64,
    /// Target rate R_T, in bit/s.
    pub target_bps: u64,
    /// Rate sent since the previous sample, layer 2, in bit/s; 0 at the first.
    pub throughput_bps: f64,
    pub cnps_handled: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    pub interface: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Values {
    pub parameters: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Formatted for people, as in `100KB`.
    pub text: String,
    /// Range that may be set remotely, as in `50KB to 500KB`; null if it may not.
    pub bounds: Option<String>,
}

/// Recent changes, the latest last; at most [`MAX_CHANGES`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Time, RFC 3339.
    pub at: String,
    /// Interface; empty for a configuration as a whole.
    pub interface: String,
    /// `changed`, `pending`, `confirmed`, `reverted`, `refused`, or a request over the socket, as in `applied`.
    pub kind: String,
    /// Parameter, or name of the configuration.
    pub what: String,
    /// Previous value; empty if there is none.
    pub old: String,
    /// New value, or the cause of a rejection.
    pub new: String,
    pub by: String,
}
