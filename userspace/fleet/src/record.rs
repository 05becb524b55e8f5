//! Records in etcd, as JSON. They hold the complete state of a fleet, so any process can continue from them.
//!
//! ```text
//! PREFIX/versions/N        a version of the whole fleet; immutable, its number is never reused
//! PREFIX/outcomes/N        outcome of its rollout
//! PREFIX/rollout           the current or last rollout without its steps, changed by compare-and-swap
//! PREFIX/steps/ID/H        the step of host H in the rollout with that ID
//! PREFIX/coordinators/C    a running coordinator, under a lease
//! PREFIX/period            how often agents report, in milliseconds; written by coordinators
//! PREFIX/hosts/H/member    existence and labels of a host; written by its agent, permanent
//! PREFIX/hosts/H/want      the host's order: its desired configuration; written by coordinators
//! PREFIX/hosts/H/report    its actual configuration and health; written by its agent under a lease
//! ```

use crate::measure::find;
use crate::prelude::*;

/// Prefix of the names of the fleet's overrides on hosts, before the version.
pub(crate) const OVERRIDE_PREFIX: &str = "fleet ";
/// Maximum length of a text from a host that is copied to records of the fleet, in characters.
pub(crate) const MAX_TEXT_CHARS: usize = 300;
const MAX_COMPLAINTS: usize = 20;
/// Maximum size of a host's record, in bytes; longer ones are unreadable.
pub(crate) const MAX_HOST_BYTES: usize = 64 << 10;

pub(crate) fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARS).collect()
}

/// Content hash of a configuration: 64-bit FNV-1a in hexadecimal.
///
/// Distinguishes different texts with the same version number; does not protect against forgery.
pub(crate) fn hash(text: &str) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
}

/// A version of the whole fleet. The default is version 0: no fleet, so every host uses its own file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Version {
    pub(crate) version: u64,
    pub(crate) by: String,
    /// Time of creation by the author's clock, RFC 3339.
    pub(crate) at: String,
    pub(crate) why: String,
    pub(crate) rollback_of: Option<u64>,
    pub(crate) policy: Policy,
    /// Groups; the first one that matches a host applies.
    pub(crate) groups: Vec<Group>,
}

impl Version {
    pub(crate) fn group_of(&self, host: &str, labels: &Labels) -> Option<&Group> {
        self.groups.iter().find(|group| group.has(host, labels))
    }

    pub(crate) fn text_of(&self, name: Option<&str>) -> Option<&str> {
        let group = self.groups.iter().find(|group| Some(group.name.as_str()) == name)?;
        Some(group.text.as_str())
    }

    pub(crate) fn target(&self, group: Option<&Group>) -> Target {
        Target {
            version: self.version,
            group: group.map(|group| group.name.clone()),
            hash: group.map(|group| hash(&group.text)),
        }
    }
}

/// Reference to a configuration: version, group and content hash. Without a group only the host's own file applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) version: u64,
    pub(crate) group: Option<String>,
    /// [`hash`] of the group's text.
    pub(crate) hash: Option<String>,
}

/// Order for a host: its desired configuration. The text is in the version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DesiredConfig {
    #[serde(flatten)]
    pub(crate) target: Target,
    pub(crate) by: String,
    /// Reason for the version or its rollback.
    pub(crate) why: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Member {
    pub(crate) labels: Labels,
}

/// State of a host, as reported by its agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    /// Result of the last attempt to apply an order; `None` before the first.
    pub(crate) tried: Option<Tried>,
    pub(crate) applying: Option<u64>,
    pub(crate) interfaces: Vec<String>,
    /// Complaints, one sentence each.
    pub(crate) failing: Vec<String>,
    pub(crate) rates: Rates,
}

impl Report {
    /// Truncates lists and texts from the host, and removes unknown metrics.
    pub(crate) fn bounded(mut self) -> Self {
        self.failing.truncate(MAX_COMPLAINTS);
        self.interfaces.truncate(1_000);
        self.failing.iter_mut().chain(&mut self.interfaces).for_each(|text| *text = cut(text));
        if let Some(tried) = &mut self.tried {
            tried.error = tried.error.as_deref().map(cut);
        }
        let known = |name: &String, _: &mut Reading| find(name).is_some();
        self.rates.of.retain(known);
        self
    }

    pub(crate) fn has(&self, target: &Target) -> bool {
        self.tried.as_ref().is_some_and(|tried| tried.applied(target))
    }

    /// Returns whether the host reports a rejection of `target`, or another configuration.
    pub(crate) fn lacks(&self, target: &Target) -> bool {
        self.tried.is_some() && !self.has(target)
    }

    pub(crate) fn rejection_of(&self, target: &Target) -> Option<&str> {
        self.tried.as_ref().filter(|tried| tried.concerns(target))?.error.as_deref()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tried {
    #[serde(flatten)]
    pub(crate) target: Target,
    /// Reason of the rejection; `None` if the configuration is active.
    pub(crate) error: Option<String>,
}

impl Tried {
    /// Returns whether the attempt concerned this configuration, by number and content.
    pub(crate) fn concerns(&self, target: &Target) -> bool {
        self.target.version == target.version && self.target.hash == target.hash
    }

    pub(crate) fn applied(&self, target: &Target) -> bool {
        self.concerns(target) && self.error.is_none()
    }
}

/// Metrics of a host over the last minute, or since its configuration changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Rates {
    pub(crate) window_ms: u64,
    pub(crate) data_packets: u64,
    /// Time since the last data packet within the window, in milliseconds.
    pub(crate) quiet_ms: u64,
    /// Longest pause between data packets within the window, in milliseconds.
    pub(crate) gap_ms: u64,
    /// Queue pairs (QPs) of the host's RDMA devices; `None` if they cannot be counted.
    pub(crate) queue_pairs: Option<u64>,
    pub(crate) of: BTreeMap<String, Reading>,
}

impl Rates {
    /// A metric in its unit; events are converted to events per million data packets.
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The version is active; otherwise it was rolled back.
    pub(crate) is_done: bool,
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
        assert_eq!(report.rejection_of(&target).map(str::len), Some(MAX_TEXT_CHARS));
        assert_eq!((report.failing.len(), report.failing[0].len()), (MAX_COMPLAINTS, MAX_TEXT_CHARS));
    }
}
