//! Errors of settings, simulations and searches.

use std::io;
use std::path::PathBuf;

use dcqcn_params::quantity::{OutOfRange, QuantityError};
use dcqcn_params::{FileErrors, SetError, SettingsError, UnknownKey, UnknownWord};
use dcqcn_support::{interrupt, plot, render};
use indicatif::style::TemplateError;

use crate::knobs::Requirement;
use crate::network::workload::{FileError, MAX_FLOWS};
use crate::network::{SimError, TopologyError};
use crate::sweep::MAX_RUNS;

/// Reason why a setting is rejected, with value and allowed range: wrong usage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    #[error("unknown setting `{key}`: {hint}")]
    Unknown { key: String, hint: String },
    #[error("{key} = {source}")]
    Quantity { key: &'static str, source: QuantityError },
    #[error("profile = {0}")]
    Profile(#[source] UnknownWord),
    #[error(transparent)]
    Range(#[from] OutOfRange),
    #[error(transparent)]
    Parameter(#[from] SetError),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A flag of a fabric, with clap's reason.
    #[error("{key}={text}: {reason}")]
    Flag { key: String, text: String, reason: String },
    #[error("`{0}` is not KEY=VALUE, as in `workload=incast:16`")]
    NoValue(String),
    #[error("`{text}` is not KEY=VALUE,VALUE,..., as in `{example}`")]
    NoValues { text: String, example: &'static str },
    #[error("`{0}` is swept twice; specify all its values in one --sweep")]
    SweptTwice(String),
    #[error("the sweep has at least {0} combinations; the maximum is {MAX_RUNS}")]
    Combinations(usize),
    #[error("{0} has no effect in a simulation; omit it")]
    Unread(String),
    #[error("{} has no effect: it needs {}; add that or omit {}", .0.0, .0.1, .0.0)]
    Requires(Requirement),
    #[error("{0} has no effect here: omit it")]
    OfOneRun(&'static str),
    #[error("{key} = {text} has no effect: every [[roce]] sets {key} ({places}); remove it there")]
    Overridden { key: String, text: String, places: String },
    #[error("group `{0}` has more than one of size, block and flow-sizes: keep one")]
    SeveralWorks(String),
    #[error("size = 0B is out of range: at least 1B")]
    NoSize,
    #[error("the topology has fewer than 2 hosts, so there is no traffic: specify one with at least 2")]
    OneHost,
    #[error(
        "incast:{senders} is out of range: 1 to {}, as one of the {hosts} hosts receives",
        hosts.saturating_sub(1)
    )]
    Senders { senders: u32, hosts: u32 },
    #[error(
        "about {0} flows would start: the limit is {MAX_FLOWS}; increase --size, or reduce --until or --load"
    )]
    RandomFlows(u64),
    #[error("no flow starts before --until; increase --until or --load")]
    NoFlows,
    #[error("{0} flows would be sent: the limit is {MAX_FLOWS}; reduce the hosts or --repeat")]
    CollectiveFlows(u64),
    #[error("--fault {text}: {problem}")]
    Fault { text: String, problem: FaultProblem },
    #[error("{problem}; specify {flags} outside --also")]
    NotAlso { problem: &'static str, flags: &'static str },
    #[error("all hosts' links must have one rate, but the topologies of --topology and --also have several")]
    HostRates,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultProblem {
    #[error("write TIME,down,NODE,NODE or up, or TIME,storm,HOST or calm, as in `1ms,down,leaf0,spine1`")]
    Syntax,
    #[error(transparent)]
    Time(#[from] QuantityError),
    #[error("no node `{name}`; nodes are `{first}` to `{last}`")]
    NoNode { name: String, first: String, last: String },
    #[error("{a} and {b} have no common link")]
    NoLink { a: String, b: String },
    #[error("`{0}` is not a host")]
    NotHost(String),
}

/// Reason why a simulation or search cannot be set up, or has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error("--also {text}")]
    Also { text: String, source: Box<SetupError> },
    /// Parameters that a profile or each other do not allow.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A scenario file.
    #[error(transparent)]
    Scenario(#[from] FileErrors),
    /// A topology, workload or file of flow sizes.
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot simulate this {what}")]
    Rejected { what: String, source: Box<SimError> },
    #[error(
        "the flows and their dependencies need about {} of memory, and {} are available; simulate fewer flows, \
         or fewer runs at a time (--threads)",
        render::bytes(*needed_bytes),
        render::bytes(*available_bytes)
    )]
    Memory { needed_bytes: u64, available_bytes: u64 },
    #[error(transparent)]
    Interrupt(#[from] interrupt::Error),
    #[error(transparent)]
    Progress(#[from] TemplateError),
    #[error(transparent)]
    Run(#[from] SimError),
    #[error("cannot draw {}", path.display())]
    Draw { path: PathBuf, source: plot::Error },
    #[error("no simulations; set --seeds and --check-seeds to at least 1")]
    NoSimulations,
    #[error("a searched parameter was renamed")]
    Renamed(#[from] UnknownKey),
    #[error("no candidate is valid with the given --profile and --set")]
    NoCandidate(#[source] SettingsError),
    #[error("interrupted before the presets were simulated")]
    Interrupted,
    #[error(
        "no preset completes all flows in the simulated time (`{name}` leaves {left}); increase --duration (now {}) or \
         use finite traffic",
        render::ns(*duration_ns)
    )]
    Incomplete { name: String, left: u64, duration_ns: u64 },
    #[error("nothing was simulated")]
    Nothing,
    #[error(
        "the best result, `{name}`, exceeds a limit: {limits}; increase --budget, --max-queue, --max-pauses, --max-drops or \
         --duration"
    )]
    Limits { name: String, limits: String },
}

impl Error {
    /// Whether options are out of range, or contradict each other.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Setup(_) | Self::Also { .. } => true,
            Self::Run(error) => is_usage(error),
            Self::Rejected { source, .. } => is_usage(source),
            _ => false,
        }
    }
}

const fn is_usage(error: &SimError) -> bool {
    matches!(error, SimError::Range(_) | SimError::NsccRecovery | SimError::Buffer { .. })
}
