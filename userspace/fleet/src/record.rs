//! The records in etcd, as JSON. They are the whole state of a fleet, so that any process can continue from them.
//!
//! ```text
//! PREFIX/versions/N        a version of the whole fleet; never changed, its number never used again
//! PREFIX/outcomes/N        how its rollout ended
//! PREFIX/rollout           the current or last rollout without its steps, changed by compare-and-swap
//! PREFIX/steps/ID/H        the step of host H in the rollout with that ID
//! PREFIX/coordinators/C    a running coordinator, under a lease
//! PREFIX/period            how often agents report, in milliseconds; written by coordinators
//! PREFIX/hosts/H/member    existence and labels of a host; written by its agent, and stays
//! PREFIX/hosts/H/want      the configuration that the host should have; written by coordinators
//! PREFIX/hosts/H/report    the configuration that it has, and its health; written by its agent under a lease
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::file::{Group, Labels, Policy};
use crate::measure::{Reading, Source, find};

/// Longest text of a host that is taken over into records of the fleet, in characters.
pub(crate) const TEXT_CHARS: usize = 300;
/// Most complaints of a host that are taken over.
const COMPLAINTS: usize = 20;
/// Longest report or membership that is read, in bytes.
pub(crate) const HOST_BYTES: usize = 64 << 10;

/// Cuts a text that a host wrote.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(TEXT_CHARS).collect()
}

/// Content hash of a configuration: FNV-1a with 64 bits, in hexadecimal. It tells different texts of one number from each other; it is
/// not a protection against forgery.
pub(crate) fn hash(text: &str) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
}

/// A version of the whole fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Version {
    /// From 1. In version 0 there is no fleet: every host has its own file.
    pub(crate) version: u64,
    /// Its author.
    pub(crate) by: String,
    /// Its date, RFC 3339, by the clock of its author.
    pub(crate) at: String,
    /// Its reason.
    pub(crate) why: String,
    /// The version that it repeats.
    pub(crate) rollback_of: Option<u64>,
    /// How it is rolled out.
    pub(crate) policy: Policy,
    /// Which hosts get what; the first group that matches a host applies.
    pub(crate) groups: Vec<Group>,
}

impl Version {
    /// Version 0.
    pub(crate) fn none() -> Self {
        let [by, at, why] = [const { String::new() }; 3];
        Self { version: 0, by, at, why, rollback_of: None, policy: Policy::default(), groups: Vec::new() }
    }

    /// The group that a host is in.
    pub(crate) fn group_of(&self, host: &str, labels: &Labels) -> Option<&Group> {
        self.groups.iter().find(|group| group.has(host, labels))
    }

    /// The configuration of the group called `name`.
    pub(crate) fn text_of(&self, name: Option<&str>) -> Option<&str> {
        let group = self.groups.iter().find(|group| Some(group.name.as_str()) == name)?;
        Some(group.text.as_str())
    }

    /// The configuration that hosts of `group` get from this version.
    pub(crate) fn target(&self, group: Option<&Group>) -> Target {
        Target {
            version: self.version,
            group: group.map(|group| group.name.clone()),
            hash: group.map(|group| hash(&group.text)),
        }
    }
}

/// A configuration: of a version and a group, with the hash of its text. Without a group the host's own file applies alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    /// The version.
    pub(crate) version: u64,
    /// The group.
    pub(crate) group: Option<String>,
    /// Hash of the group's text.
    pub(crate) hash: Option<String>,
}

/// The configuration that a host should have. Its text is in the version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Want {
    /// The configuration.
    #[serde(flatten)]
    pub(crate) target: Target,
    /// Author of the version.
    pub(crate) by: String,
    /// Reason.
    pub(crate) why: String,
}

/// Existence of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Member {
    /// Its labels, from its agent's command line.
    pub(crate) labels: Labels,
}

/// State of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    /// The configuration that its controller was last asked to take; none before the first.
    pub(crate) tried: Option<Tried>,
    /// The version that its controller is applying now.
    pub(crate) applying: Option<u64>,
    /// Interfaces that are served.
    pub(crate) interfaces: Vec<String>,
    /// Complaints, one sentence each.
    pub(crate) failing: Vec<String>,
    /// Counters of its interfaces.
    pub(crate) rates: Rates,
}

impl Report {
    /// Bounds the texts that the host wrote.
    pub(crate) fn bounded(mut self) -> Self {
        self.failing.truncate(COMPLAINTS);
        self.interfaces.truncate(1_000);
        self.failing.iter_mut().chain(&mut self.interfaces).for_each(|text| *text = cut(text));
        if let Some(tried) = &mut self.tried {
            tried.error = tried.error.as_deref().map(cut);
        }
        let known = |name: &String, _: &mut Reading| find(name).is_some();
        self.rates.of.retain(known);
        self
    }

    /// Whether the host has this configuration.
    pub(crate) fn has(&self, target: &Target) -> bool {
        self.tried.as_ref().is_some_and(|tried| tried.is_of(target) && tried.error.is_none())
    }

    /// Whether it reports that it does not have it: refused, or another one. Before its first order it reports neither.
    pub(crate) fn lacks(&self, target: &Target) -> bool {
        self.tried.is_some() && !self.has(target)
    }

    /// Why it refused this configuration.
    pub(crate) fn refusal(&self, target: &Target) -> Option<&str> {
        self.tried.as_ref().filter(|tried| tried.is_of(target))?.error.as_deref()
    }
}

/// Result of applying a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tried {
    /// The configuration.
    #[serde(flatten)]
    pub(crate) target: Target,
    /// Why it is not active; none if it is.
    pub(crate) error: Option<String>,
}

impl Tried {
    /// Whether it is about this configuration: number and content.
    pub(crate) fn is_of(&self, target: &Target) -> bool {
        self.target.version == target.version && self.target.hash == target.hash
    }
}

/// Counters of a host's interfaces over the last minute, or since its configuration changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Rates {
    /// Length of the window, in milliseconds.
    pub(crate) window_ms: u64,
    /// RoCE data packets.
    pub(crate) data_packets: u64,
    /// Time since the last data packet, in milliseconds, within the window.
    pub(crate) quiet_ms: u64,
    /// Longest pause between data packets, in milliseconds, within the window.
    pub(crate) gap_ms: u64,
    /// Queue pairs of the host's RDMA devices; none if they cannot be counted.
    pub(crate) queue_pairs: Option<u64>,
    /// The measures by name.
    pub(crate) of: BTreeMap<String, Reading>,
}

impl Rates {
    /// A measure in its unit; events per million data packets.
    pub(crate) fn value(&self, name: &str) -> Option<u64> {
        let value = self.of.get(name)?.value;
        Some(match find(name)?.source {
            Source::Events(_) => {
                let ppm = u128::from(value) * 1_000_000 / u128::from(self.data_packets.max(1));
                u64::try_from(ppm).unwrap_or(u64::MAX)
            }
            Source::Level(_) | Source::Throughput => value,
        })
    }
}

/// How a rollout ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The version is active; otherwise every host went back.
    pub(crate) is_done: bool,
    /// The reason, one sentence.
    pub(crate) reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_differs_by_content() {
        assert_eq!(hash(""), "cbf29ce484222325");
        assert_ne!(hash("kmin = 1"), hash("kmin = 2"));
    }

    #[test]
    fn report_texts_are_bounded() {
        let target = Target { version: 1, ..Target::default() };
        let report = Report {
            tried: Some(Tried { target: target.clone(), error: Some("x".repeat(1 << 20)) }),
            failing: vec!["y".repeat(1 << 20); 1_000],
            ..Report::default()
        };
        let report = report.bounded();
        assert_eq!(report.refusal(&target).map(str::len), Some(TEXT_CHARS));
        assert_eq!((report.failing.len(), report.failing[0].len()), (COMPLAINTS, TEXT_CHARS));
    }
}
