//! What is said over the controller's socket, and asking it.
//!
//! A Unix stream socket. Who asks writes an object of JSON on a line, and reads one line of answer for each; a connection may
//! ask again. Names that the controller does not know are refused, names in an answer that the asker does not know are to be
//! passed over: that is how both may grow within a version.

mod client;
mod snapshot;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use client::{AskError, ControlClient};
pub use snapshot::{
    Change, Changes, Class, InterfaceSnapshot, LOOKED_AT, MOST_CHANGES, MOST_QPS, Parameters, Qp, Snapshot,
    SnapshotRequest, Value as ParameterValue, Values,
};

/// The version of everything here, in every question and every answer.
pub const VERSION: u32 = 1;
/// Where the socket is unless the file says otherwise.
pub const PATH: &str = "/run/dcqcn/control";
/// Longest line, in bytes, with its end: a configuration is text of some KB.
pub const LINE_BYTES: usize = 256 << 10;
/// Shortest and longest time in which a change may have to be confirmed, in seconds.
pub const CONFIRM_WITHIN_S: std::ops::RangeInclusive<u64> = 1..=86_400;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// [`VERSION`].
    pub v: u32,
    /// What is requested.
    #[serde(flatten)]
    pub verb: Verb,
}

/// What may be requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "lowercase", deny_unknown_fields)]
pub enum Verb {
    /// Which dcqcn this is: [`VersionAnswer`].
    Version {},
    /// What the controller is at: [`Status`].
    Status {},
    /// What the interfaces count: [`Health`].
    Health {},
    /// What it was told over this socket and keeps: [`Override`], or null.
    Config {},
    /// Interfaces as they are now: [`Snapshot`].
    Look(SnapshotRequest),
    /// The parameters of an interface: [`Values`].
    Parameters(Parameters),
    /// What was changed recently: [`Changes`].
    Changes {},
    /// Read the host's own file again, as on SIGHUP; for root alone: [`Applied`].
    Reload {},
    /// Go over to a configuration, on every interface or on none: [`Applied`].
    Apply(Apply),
    /// Keep a configuration that waits to be confirmed: [`Applied`].
    Confirm(Confirm),
    /// Take back a configuration that waits to be confirmed, at once: [`Applied`].
    Undo(Confirm),
    /// Forget what was told over this socket: the host's own file counts alone. [`Applied`].
    Release(Release),
}

/// A configuration to go over to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// What it is called by whoever sends it, such as `7`: up to 100 characters.
    pub name: String,
    /// `[[interface]]` tables as `dcqcn run` reads them. They count over the host's own file.
    pub text: String,
    /// Who wants it, for the audit log.
    #[serde(default)]
    pub by: String,
    /// Why, for the audit log.
    #[serde(default)]
    pub why: String,
    /// Goes back to what was before unless it is confirmed within so many seconds ([`CONFIRM_WITHIN_S`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_within_s: Option<u64>,
    /// What it was made from: the name of what is active on top of the host's own file, empty for nothing. If something else is by then,
    /// it is refused. None: whatever is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
}

/// What is to be kept, or reverted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirm {
    /// The name it was applied by.
    pub name: String,
}

/// Why the host's own file is to count alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Who wants it, for the audit log.
    #[serde(default)]
    pub by: String,
    /// Why, for the audit log.
    #[serde(default)]
    pub why: String,
}

/// An answer: one of the two is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// [`VERSION`].
    pub v: u32,
    /// What was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    /// Why it is refused, or failed; all is as it was then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// There is an error, and it is not about what was requested, which nobody has refused: ask the same again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub again: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl Answer {
    /// What was requested, or why it cannot be had.
    #[must_use]
    pub fn of<T: Serialize>(result: Result<T, String>) -> Self {
        match result.and_then(|value| serde_json::to_value(value).map_err(|error| error.to_string())) {
            Ok(value) => Self { v: VERSION, ok: Some(value), error: None, again: false },
            Err(error) => Self { v: VERSION, ok: None, error: Some(error), again: false },
        }
    }

    /// Nobody has looked at what was requested, or nobody knows how it went.
    #[must_use]
    pub const fn again(why: String) -> Self {
        Self { v: VERSION, ok: None, error: Some(why), again: true }
    }
}

/// Which dcqcn answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionAnswer {
    /// Its version, such as `0.1.0`.
    pub dcqcn: String,
    /// The newest version of this protocol that it knows.
    pub protocol: u32,
}

/// What the controller is at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// All that is to be attached has been looked at once.
    pub is_ready: bool,
    /// Interfaces that are served.
    pub interfaces: Vec<String>,
    /// Interfaces that cannot be served.
    pub failing: Vec<Failing>,
    /// Interfaces that are still to be attached.
    pub waiting: usize,
    /// What has not moved for long; null if all does.
    pub stuck: Option<String>,
    /// Name of what is active on top of the host's own file; null if nothing is.
    pub config: Option<String>,
    /// Seconds left to confirm that; null if it needs no confirmation.
    #[serde(default)]
    pub confirm_within_s: Option<u64>,
    /// The last reload; null if there was none.
    #[serde(default)]
    pub reload: Option<LastReload>,
    /// Repairs of each interface served, whose parts another program removed.
    #[serde(default)]
    pub repairs: BTreeMap<String, u64>,
    /// Why this socket is root's alone though the host's file names a group; null if it is as the file says.
    #[serde(default)]
    pub without_group: Option<String>,
}

/// The last time the file was read again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReload {
    /// When, RFC 3339.
    pub at: String,
    /// Why it was refused; empty if it was not.
    pub refused: String,
}

/// An interface that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    /// Its name.
    pub interface: String,
    /// Why.
    pub error: String,
}

/// What the interfaces count, to be compared with what they counted before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// When, in nanoseconds of CLOCK_MONOTONIC: clocks of hosts differ, and are set.
    pub at_ns: u64,
    /// The interfaces that are attached, by name.
    pub interfaces: BTreeMap<String, Counts>,
    /// What is attached and cannot be read, or is to be attached and is not.
    pub failing: Vec<Failing>,
}

/// What one interface counts. All but the depths and limits of queues and the numbers of flows only grow, until it is attached again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Which attachment counts: another number means that counting began again.
    pub attached_at_ns: u64,
    /// RoCE data packets.
    pub data_packets: u64,
    /// Data packets marked CE here, or found marked.
    pub marked_packets: u64,
    /// CNPs sent.
    pub cnps_sent: u64,
    /// CNPs that a flow here was cut for.
    pub cnps_handled: u64,
    /// PFC frames of the neighbour's that pause or resume a priority, one for each priority.
    pub pauses_received: u64,
    /// PFC frames sent, one for each priority.
    pub pauses_sent: u64,
    /// Packets dropped by the data plane or by the port's own queues.
    pub drops: u64,
    /// Packets dropped by the interface itself, in both directions: frames of unknown protocols and VLANs among them.
    pub interface_drops: u64,
    /// Connected queue pairs of the RDMA devices on the interface, now; none if there is no device or they cannot be listed.
    pub queue_pairs: Option<u64>,
    /// Retransmissions and time-outs of the RDMA devices on the interface, as far as their drivers count them.
    pub rdma_errors: u64,
    /// Flows known to the reaction point now.
    pub flows: u64,
    /// Bytes in the deepest queue that marks, now.
    pub queue_bytes: u64,
    /// Kmax of that queue, in bytes; 0 if none marks.
    pub kmax_bytes: u64,
    /// Looks, 50 a second while somebody asks, by what the deepest queue was at in percent of its Kmax: [`QUEUE_PERCENT`].
    pub queue_looks: Vec<u64>,
    /// Flows that sent in the last seconds, as they were read last.
    pub active_flows: u64,
    /// Those of them that are held to the lowest rate, `rpg_min_rate`.
    pub flows_at_floor: u64,
}

/// Up to which percent of Kmax each of [`Counts::queue_looks`] goes; the last goes on without end.
pub const QUEUE_PERCENT: [u64; 14] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 120, 150, 200, 300];
/// How many there are.
pub const LOOKS: usize = QUEUE_PERCENT.len() + 1;

/// What was told over the socket and is active.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// Its name.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Who wanted it.
    pub by: String,
    /// Why.
    pub why: String,
    /// When it was applied, RFC 3339.
    pub at: String,
    /// Seconds left to confirm it; null if it needs no confirmation.
    pub confirm_within_s: Option<u64>,
}

/// How applying went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// Name of what is active now; null if the host's own file alone is.
    pub name: Option<String>,
    /// Something was done; false if it was active already.
    pub changed: bool,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// The interfaces that are served.
    pub interfaces: Vec<String>,
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
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
            let _ = serde_json::from_str::<Question>(&text);
            let _ = serde_json::from_str::<Answer>(&text);
        }
    }
}
