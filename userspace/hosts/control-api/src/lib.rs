//! The protocol of the daemon's socket, and its client.
//!
//! A Unix stream socket. A client writes requests, each a JSON object on a line, and reads one line of reply for each.
//! The daemon rejects unknown fields; clients must ignore unknown fields of a reply. Thus both may be extended
//! within a version.

#![expect(missing_docs, reason = "docs/reference/control-socket.md describes the fields")]

mod client;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use client::{ClientError, ControlClient};

pub const VERSION: u32 = 1;
pub const PATH: &str = "/run/dcqcn/control";
/// Maximum length of a line with its end, in bytes: a configuration is text of some KB.
pub const MAX_LINE_BYTES: usize = 256 << 10;
/// Range of the time to confirm a change, in seconds.
pub const CONFIRM_WITHIN_S: std::ops::RangeInclusive<u64> = 1..=86_400;
pub const MAX_QPS: usize = 64;
/// Maximum number of interfaces whose QPs are sampled concurrently: reading a table takes milliseconds.
pub const MAX_WATCHED: usize = 4;
pub const MAX_CHANGES: usize = 200;

/// Path of the file that the fleet's agent locks, so that a daemon has one; the daemon creates it with its socket.
pub fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "a request")]
pub struct Question {
    pub v: u32,
    #[serde(flatten)]
    pub verb: Verb,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "lowercase", deny_unknown_fields)]
pub enum Verb {
    /// Query the version of dcqcn: [`VersionAnswer`].
    Version {},
    /// Query the daemon's state: [`Status`].
    Status {},
    /// Query the interfaces' counters: [`Health`].
    Health {},
    /// Query the active override: [`Override`], or null.
    Config {},
    /// Query snapshots of interfaces: [`Snapshot`].
    Snapshot(SnapshotRequest),
    /// Query the parameters of an interface: [`Values`].
    Parameters(Parameters),
    /// Query recent changes: [`Changes`].
    Changes {},
    /// Reload the host's own file, as on SIGHUP (root only): [`Applied`].
    Reload {},
    /// Apply an override on all interfaces or none: [`Applied`].
    Apply(Apply),
    /// Confirm an unconfirmed override: [`Applied`].
    Confirm(Confirm),
    /// Revert an unconfirmed override now: [`Applied`].
    Undo(Confirm),
    /// Remove the override, leaving the host's own file: [`Applied`].
    Release(Release),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// Name given by the client, such as `7`: up to 100 characters.
    pub name: String,
    /// `[[interface]]` tables as `dcqcn run` reads them. They take precedence over the host's own file.
    pub text: String,
    #[serde(default)]
    pub by: String,
    #[serde(default)]
    pub why: String,
    /// Revert it unless it is confirmed within this many seconds ([`CONFIRM_WITHIN_S`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_within_s: Option<u64>,
    /// Name of the override that it was derived from, empty for none. The request is rejected if another one is active
    /// by then. `None` skips the check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirm {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Release {
    pub by: String,
    pub why: String,
    /// Name of the override to remove; another one stays. `None` removes any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    /// Cause of a rejection or failure; nothing was changed then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The error is temporary, and the request was not processed: retry.
    #[serde(default, skip_serializing_if = "is_false")]
    pub again: bool,
    /// The request was not completed in time, but may still be.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unknown: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "name required by serde")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl Answer {
    pub fn of<T: Serialize>(result: Result<T, String>) -> Self {
        match result.and_then(|value| serde_json::to_value(value).map_err(|error| error.to_string())) {
            Ok(value) => Self { v: VERSION, ok: Some(value), error: None, again: false, unknown: false },
            Err(error) => Self::refused(error),
        }
    }

    pub fn refused(why: String) -> Self {
        Self { v: VERSION, ok: None, error: Some(why), again: false, unknown: false }
    }

    pub fn again(why: String) -> Self {
        Self { again: true, ..Self::refused(why) }
    }

    pub fn unknown(why: String) -> Self {
        Self { unknown: true, ..Self::refused(why) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionAnswer {
    pub dcqcn: String,
    pub protocol: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// All configured interfaces have been processed once.
    pub is_ready: bool,
    pub interfaces: Vec<String>,
    pub failing: Vec<Failing>,
    #[serde(default)]
    pub absent: Vec<String>,
    pub waiting: usize,
    pub stuck: Option<String>,
    pub config: Option<String>,
    pub confirm_within_s: Option<u64>,
    pub overdue: Option<String>,
    pub reload: Option<LastReload>,
    /// Repairs of each managed interface after another program removed parts.
    #[serde(default)]
    pub repairs: BTreeMap<String, u64>,
    pub without_group: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReload {
    pub at: String,
    pub refused: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    pub interface: String,
    pub error: String,
}

impl Failing {
    pub fn new(interface: &str, error: &str) -> Self {
        Self { interface: interface.to_owned(), error: error.to_owned() }
    }
}

/// Counters of the interfaces, to compare with earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Time, in nanoseconds of CLOCK_MONOTONIC: wall clocks of hosts differ, and are adjusted.
    pub at_ns: u64,
    pub interfaces: BTreeMap<String, Counts>,
    /// Interfaces that are unreadable or not attached although configured.
    pub failing: Vec<Failing>,
}

/// Counters of one interface. All but queue depths, limits and numbers of flows are monotonic until it is attached
/// again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Identity of the attachment: another number means that the counters restarted.
    pub attached_at_ns: u64,
    pub data_packets: u64,
    /// Data packets marked CE here, or received marked.
    pub marked_packets: u64,
    pub cnps_sent: u64,
    /// CNPs that cut a flow here.
    pub cnps_handled: u64,
    /// Received PFC frames that pause or resume a priority, counted per priority.
    pub pauses_received: u64,
    pub pauses_sent: u64,
    /// Packets dropped by the data plane or by the port's own queues.
    pub drops: u64,
    /// Packets dropped by the interface, in both directions, including frames of unknown protocols and VLANs.
    pub interface_drops: u64,
    /// Connected QPs of the RDMA devices on the interface; none if there is no device or they cannot be listed.
    pub queue_pairs: Option<u64>,
    /// Retransmissions and time-outs of the RDMA devices on the interface, if their drivers count them.
    pub rdma_errors: u64,
    pub flows: u64,
    /// Bytes in the deepest marking queue now.
    pub queue_bytes: u64,
    /// Kmax of that queue, in bytes; 0 if no queue marks.
    pub kmax_bytes: u64,
    /// Samples, 50 a second while requested, by depth of the deepest queue in percent of its Kmax: [`QUEUE_PERCENT`].
    pub queue_samples: Vec<u64>,
    /// Flows that sent in the last seconds, at the last reading.
    pub active_flows: u64,
    /// Of these, flows at the lowest rate, `rpg_min_rate`.
    pub flows_at_floor: u64,
}

/// Upper limit of each of [`Counts::queue_samples`] in percent of Kmax; the last is unlimited.
pub const QUEUE_PERCENT: [u64; 14] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 120, 150, 200, 300];
pub const QUEUE_BINS: usize = QUEUE_PERCENT.len() + 1;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    pub name: String,
    pub text: String,
    pub by: String,
    pub why: String,
    pub at: String,
    pub confirm_within_s: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    pub name: Option<String>,
    pub changed: bool,
    pub took_ms: u64,
    pub interfaces: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotRequest {
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
    pub kmin_bytes: u64,
    pub kmax_bytes: u64,
    /// Queue depth in bytes; of two ports the larger.
    pub depth_bytes: u64,
    pub packets: u64,
    /// Bytes since it was attached, layer 2.
    pub bytes: u64,
    pub marked_packets: u64,
}

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
    pub parameters: BTreeMap<String, ParameterValue>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterValue {
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
    pub at: String,
    /// Interface; empty for a configuration as a whole.
    pub interface: String,
    /// `changed`, `pending`, `confirmed`, `reverted`, `refused`, or a request over the socket, as in `applied`.
    pub kind: String,
    /// Parameter, or name of the configuration.
    pub what: String,
    pub old: String,
    /// New value, or the cause of a rejection.
    pub new: String,
    pub by: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_match_documentation() {
        let apply = r#"{"v":1,"verb":"apply","name":"7","text":"x"}"#;
        let Question { v, verb: Verb::Apply(apply) } = serde_json::from_str(apply).unwrap() else {
            panic!("not an apply");
        };
        assert_eq!((v, apply.name.as_str(), apply.confirm_within_s), (1, "7", None));
        let version = Question { v: VERSION, verb: Verb::Version {} };
        assert_eq!(serde_json::to_string(&version).unwrap(), r#"{"v":1,"verb":"version"}"#);
        for refused in [
            r#"{"verb":"version"}"#,
            r#"{"v":1,"verb":"reboot"}"#,
            r#"{"v":1,"verb":"apply","name":"7"}"#,
            r#"{"v":1,"verb":"apply","name":"7","text":"x","confrm_within_s":1}"#,
            r#"{"v":1,"verb":"status","x":1}"#,
            r#"{"v":1}"#,
            "[]",
        ] {
            assert!(serde_json::from_str::<Question>(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn answer_has_result_or_error() {
        let text = |answer: &Answer| serde_json::to_string(answer).unwrap();
        assert_eq!(text(&Answer::of(Ok(None::<Override>))), r#"{"v":1,"ok":null}"#);
        assert_eq!(text(&Answer::of::<Override>(Err("no".into()))), r#"{"v":1,"error":"no"}"#);
        assert_eq!(text(&Answer::again("full".into())), r#"{"v":1,"error":"full","again":true}"#);
        assert_eq!(text(&Answer::unknown("late".into())), r#"{"v":1,"error":"late","unknown":true}"#);
    }

    proptest! {
        #[test]
        fn arbitrary_text_parsed_or_rejected(text in "\\PC{0,80}") {
            let _ = serde_json::from_str::<Question>(&text);
            let _ = serde_json::from_str::<Answer>(&text);
        }
    }
}
