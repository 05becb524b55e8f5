//! What is in etcd, as JSON. Everything about a fleet is there and nowhere else, so that whoever comes can go on with it.
//!
//! ```text
//! PREFIX/versions/N        a version of the whole fleet; never changed
//! PREFIX/outcomes/N        how its rollout ended
//! PREFIX/rollout           the rollout under way or the last one, changed by compare-and-swap
//! PREFIX/hosts/H/member    that there is such a host, and its labels; written by its agent, and stays
//! PREFIX/hosts/H/want      what the host is to have; written by who rolls out
//! PREFIX/hosts/H/report    what it has, and how it does; written by its agent under a lease
//! ```

use serde::{Deserialize, Serialize};

use crate::file::{Group, Labels, Policy};

/// A version of the whole fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Version {
    /// From 1. Version 0 is that there is no fleet: every host has its own file.
    pub(crate) version: u64,
    /// Who made it.
    pub(crate) by: String,
    /// When, RFC 3339, by the clock of who made it.
    pub(crate) at: String,
    /// Why.
    pub(crate) why: String,
    /// The version that this one is again.
    pub(crate) rollback_of: Option<u64>,
    /// How it is rolled out.
    pub(crate) policy: Policy,
    /// Which hosts get what; of those that match a host, the first counts.
    pub(crate) groups: Vec<Group>,
}

impl Version {
    /// That there is no fleet.
    pub(crate) fn none() -> Self {
        let [by, at, why] = [const { String::new() }; 3];
        Self { version: 0, by, at, why, rollback_of: None, policy: Policy::default(), groups: Vec::new() }
    }

    /// The group that a host is in.
    pub(crate) fn group_of(&self, host: &str, labels: &Labels) -> Option<&Group> {
        self.groups.iter().find(|group| group.has(host, labels))
    }

    /// What the group called `name` gets.
    pub(crate) fn text_of(&self, name: Option<&str>) -> Option<&str> {
        let group = self.groups.iter().find(|group| Some(group.name.as_str()) == name)?;
        Some(group.text.as_str())
    }
}

/// Which configuration: a version's, of a group; of none, the host's own file counts alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    /// The version.
    pub(crate) version: u64,
    /// The group.
    pub(crate) group: Option<String>,
}

/// What a host is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Want {
    /// Which configuration this is.
    #[serde(flatten)]
    pub(crate) target: Target,
    /// The configuration; none if the host's own file is to count alone.
    pub(crate) text: Option<String>,
    /// Who wants it.
    pub(crate) by: String,
    /// Why.
    pub(crate) why: String,
}

/// That there is a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Its labels, as its own file says.
    pub(crate) labels: Labels,
}

/// What a host says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// What its controller was last told to have; none before it was told anything.
    pub(crate) tried: Option<Tried>,
    /// Interfaces that are served.
    pub(crate) interfaces: Vec<String>,
    /// What does not work there, in sentences.
    pub(crate) failing: Vec<String>,
    /// What its interfaces counted.
    pub(crate) rates: Rates,
}

impl Report {
    /// Whether the host has what `version` says.
    pub(crate) fn has(&self, version: u64) -> bool {
        self.tried.as_ref().is_some_and(|tried| tried.version == version && tried.error.is_none())
    }

    /// Whether it says that it does not have what `version` says: it refused it, or has another. Before it was told anything it says
    /// neither.
    pub(crate) fn lacks(&self, version: u64) -> bool {
        self.tried.is_some() && !self.has(version)
    }

    /// Why it does not have what `version` says, if it said so.
    pub(crate) fn refusal(&self, version: u64) -> Option<&str> {
        self.tried.as_ref().filter(|tried| tried.version == version)?.error.as_deref()
    }
}

/// How applying a version went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tried {
    /// The version.
    pub(crate) version: u64,
    /// Why it is not in force; none if it is.
    pub(crate) error: Option<String>,
}

/// What the interfaces of a host counted, over the last minute or since its configuration changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Rates {
    /// Over how long, in milliseconds.
    pub(crate) window_ms: u64,
    /// RoCE data packets.
    pub(crate) data_packets: u64,
    /// Marked packets, of a million.
    pub(crate) marks: u64,
    /// CNPs sent and handled, for a million packets.
    pub(crate) cnps: u64,
    /// Dropped packets, for a million.
    pub(crate) drops: u64,
    /// Retransmissions and time-outs of RDMA devices, for a million packets.
    pub(crate) rdma_errors: u64,
    /// PFC frames received and sent, for a million packets.
    pub(crate) pauses: u64,
    /// The deepest queue that marks, in percent of its Kmax, on average of a look every second.
    pub(crate) queue: u64,
    /// Below which percent of Kmax the deepest queue was in 99 of 100 looks, 50 of them a second.
    pub(crate) queue_p99: u64,
    /// Flows held to the lowest rate, of a hundred that send, on average.
    pub(crate) floor: u64,
}

/// How a rollout ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// It is in force; otherwise all went back.
    pub(crate) is_done: bool,
    /// In a sentence.
    pub(crate) reason: String,
}
