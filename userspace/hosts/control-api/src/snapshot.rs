//! What a page that is looked at needs: interfaces as they are now, their parameters, and what was changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Counts, Failing};

/// Most queue pairs of an answer.
pub const MOST_QPS: usize = 64;
/// Interfaces whose queue pairs are looked at, at a time: reading a table costs milliseconds.
pub const LOOKED_AT: usize = 4;
/// Most changes of an answer.
pub const MOST_CHANGES: usize = 200;

/// Asks for interfaces as they are now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotRequest {
    /// The interface whose busiest queue pairs are wanted; none unless said.
    pub busiest_of: Option<String>,
    /// How many of them, up to [`MOST_QPS`].
    pub most: usize,
}

/// Interfaces as they are now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// The interfaces that are attached, by name.
    pub interfaces: BTreeMap<String, InterfaceSnapshot>,
    /// What is attached and cannot be read, or is to be attached and is not.
    pub failing: Vec<Failing>,
    /// The busiest queue pairs of the interface that was requested, those of most throughput first.
    pub busiest: Vec<Qp>,
}

/// An interface as it is now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InterfaceSnapshot {
    /// What it counts.
    #[serde(flatten)]
    pub counts: Counts,
    /// `host` or `switch`.
    pub role: String,
    /// `none`, `fq` or `htb`.
    pub pacer: String,
    /// Highest rate of a flow, in bit/s; 0 if not known.
    pub line_rate_bps: u64,
    /// The traffic classes that are in use.
    pub classes: Vec<Class>,
}

/// A traffic class as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Its number, 0 to 7.
    pub tc: usize,
    /// Whether it marks.
    pub ecn: bool,
    /// Depth at which marking begins, in bytes.
    pub kmin_bytes: u64,
    /// Depth from which on all is marked, in bytes.
    pub kmax_bytes: u64,
    /// Bytes in its queue; of two ports the deeper.
    pub depth_bytes: u64,
    /// Packets since it was attached.
    pub packets: u64,
    /// Bytes of them, layer 2.
    pub bytes: u64,
    /// Packets that were marked here.
    pub marked_packets: u64,
}

/// A queue pair that this host sends to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Qp {
    /// The receiver's address.
    pub address: String,
    /// The receiver's QPN.
    pub qpn: u32,
    /// The kind of its last increase, as in `additive-increase`.
    pub state: String,
    /// The rate it is held to, R_C, in bit/s.
    pub rate_bps: u64,
    /// The rate it recovers to, R_T, in bit/s.
    pub target_bps: u64,
    /// What it sent since the look before, layer 2, in bit/s; 0 at the first.
    pub throughput_bps: f64,
    /// CNPs that cut it.
    pub cnps_handled: u32,
}

/// Asks for the parameters of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// The interface.
    pub interface: String,
}

/// The parameters of an interface, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Values {
    /// Each of them.
    pub parameters: BTreeMap<String, Value>,
}

/// A parameter's value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// As people write it, as in `100KB`.
    pub text: String,
    /// What this host lets others set it to, as in `50KB to 500KB`; null if nothing.
    pub bounds: Option<String>,
}

/// What was changed, the latest last; at most [`MOST_CHANGES`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Each of them.
    pub changes: Vec<Change>,
}

/// Something that was changed, or was not to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When, RFC 3339.
    pub at: String,
    /// The interface; empty for a configuration as a whole.
    pub interface: String,
    /// `changed`, `pending`, `confirmed`, `taken back`, `refused`, or what was ordered over the socket, as in `applied`.
    pub kind: String,
    /// The parameter, or the name of the configuration.
    pub what: String,
    /// Its value before; empty where there is none.
    pub old: String,
    /// Its value since, or why it was refused.
    pub new: String,
    /// Who did it.
    pub by: String,
}
