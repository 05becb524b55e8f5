//! Parsing of flags: topologies, faults, workloads and choices.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use dcqcn_common::params::Unit;
use dcqcn_params::quantity::{self, parse_time_ns};
use dcqcn_params::{parse_word, word};

use crate::error::{Error, FaultProblem, SetupError};
use crate::network::workload::{self, Collective};
use crate::network::{Cables, Fault, FaultKind, StormAction, Topology, Watchdog};

/// A requested topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Leaves, spines, hosts per leaf.
    LeafSpine([u32; 3]),
    /// Pods, ToRs per pod, hosts per ToR.
    FatTree([u32; 3]),
    /// A file: TOML, or in HPCC's format.
    File(PathBuf),
}

impl Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeafSpine([leaves, spines, hosts]) => write!(f, "leaf-spine:{leaves}x{spines}x{hosts}"),
            Self::FatTree([pods, tors, hosts]) => write!(f, "fat-tree:{pods}x{tors}x{hosts}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let three = |numbers: &str| {
            let numbers: Option<Vec<u32>> =
                numbers.split(['x', ',']).map(|number| number.parse().ok()).collect();
            numbers.and_then(|numbers| <[u32; 3]>::try_from(numbers).ok())
        };
        match text.split_once(':') {
            Some(("leaf-spine", numbers)) => three(numbers).map(Self::LeafSpine).ok_or_else(|| {
                format!("`{text}`: expected LEAVESxSPINESxHOSTS, as in `leaf-spine:32x16x32`")
            }),
            Some(("fat-tree", numbers)) => three(numbers)
                .map(Self::FatTree)
                .ok_or_else(|| format!("`{text}`: expected PODSxTORSxHOSTS, as in `fat-tree:8x4x4`")),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(format!(
                "`{text}` is not a topology: expected `leaf-spine:LEAVESxSPINESxHOSTS`, `fat-tree:PODSxTORSxHOSTS` or `file:PATH`"
            )),
        }
    }
}

impl Shape {
    pub(super) fn build(&self, cables: Cables) -> Result<Topology, Error> {
        Ok(match self {
            Self::LeafSpine([leaves, spines, hosts]) => {
                Topology::leaf_spine(*leaves, *spines, *hosts, cables).map_err(SetupError::from)?
            }
            Self::FatTree([pods, tors, hosts]) => {
                Topology::fat_tree(*pods, *tors, *hosts, cables).map_err(SetupError::from)?
            }
            Self::File(path) => {
                let name = path.display().to_string();
                let text = workload::text(path)?;
                let is_toml = path.extension().is_some_and(|extension| extension == "toml");
                if is_toml { Topology::parse(&name, &text)? } else { Topology::hpcc(&name, &text)? }
            }
        })
    }
}

/// `TIME,down,A,B`, `TIME,up,A,B`, `TIME,storm,HOST` or `TIME,calm,HOST`.
pub(super) fn fault(text: &str, topology: &Topology, class: u8) -> Result<Fault, FaultProblem> {
    let words: Vec<&str> = text.split(',').collect();
    let node = |name: &str| {
        topology.node(name).ok_or_else(|| FaultProblem::NoNode {
            name: name.to_owned(),
            first: topology.name(0).to_owned(),
            last: topology.names.last().cloned().unwrap_or_default(),
        })
    };
    match words.as_slice() {
        [time, what @ ("down" | "up"), a, b] => {
            let ends = [node(a)?, node(b)?];
            let link =
                topology.links.iter().position(|link| ends == [link.a, link.b] || ends == [link.b, link.a]);
            let no_link = || FaultProblem::NoLink { a: (*a).to_owned(), b: (*b).to_owned() };
            let link = link.ok_or_else(no_link)? as u32;
            let kind = if *what == "up" { FaultKind::LinkUp(link) } else { FaultKind::LinkDown(link) };
            Ok(Fault { at_ns: parse_time_ns(time)?, kind })
        }
        [time, what @ ("storm" | "calm"), name] => {
            let host = node(name)?;
            if host >= topology.hosts {
                return Err(FaultProblem::NotHost((*name).to_owned()));
            }
            let kind = if *what == "calm" {
                FaultKind::StormEnds { host }
            } else {
                FaultKind::StormBegins { host, classes: 1 << class }
            };
            Ok(Fault { at_ns: parse_time_ns(time)?, kind })
        }
        _ => Err(FaultProblem::Syntax),
    }
}

/// `DETECTION,RESTORATION,drop` or `forward`.
pub(super) fn watchdog(text: &str) -> Result<Watchdog, String> {
    let syntax = || format!("`{text}`: write DETECTION,RESTORATION,drop or forward, as in `200ms,2s,drop`");
    let words: Vec<&str> = text.split(',').collect();
    let &[detection, restoration, action] = words.as_slice() else { return Err(syntax()) };
    let time = |text: &str| parse_time_ns(text).map_err(|error| error.to_string());
    let action = match action {
        "drop" => StormAction::Drop,
        "forward" => StormAction::Forward,
        _ => return Err(syntax()),
    };
    Ok(Watchdog { detection_ns: time(detection)?, restoration_ns: time(restoration)?, action })
}

/// A requested workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// This number of hosts send to host 0.
    Incast(u32),
    /// Every host sends to one other.
    Permutation,
    /// Flows at random times between random hosts.
    Random,
    /// A collective over all hosts.
    Collective(Collective),
    /// A file in a foreign format.
    File(Format, PathBuf),
}

/// Formats of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A flow file of HPCC's simulator.
    Hpcc,
    /// A connection matrix of htsim.
    Htsim,
    /// Execution traces, by the part of their names before the rank.
    Chakra,
    /// A workload file of SimAI.
    Simai,
}

impl Format {
    /// Reason why a file has no flow between hosts, and its fix.
    pub(super) const fn no_traffic(self) -> &'static str {
        match self {
            Self::Hpcc => "the first line announces 0 flows; write their number there",
            Self::Htsim => "it has no connection; add one, as in `0->1 start 0 size 1000000`",
            Self::Chakra => {
                "no rank sends to another, and each collective has one rank; specify the prefix of the traces of all ranks, \
                 and check `pg_name`"
            }
            Self::Simai => {
                "each collective has one rank, 0 bytes or the type NONE; change `all_gpus`, `model_parallel_NPU_group` or \
                 `ep` in the first line, or the layers"
            }
        }
    }
}

impl Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incast(senders) => write!(f, "incast:{senders}"),
            Self::Permutation => f.write_str("permutation"),
            Self::Random => f.write_str("random"),
            Self::Collective(collective) => f.write_str(&word(collective)),
            Self::File(format, path) => write!(f, "{}:{}", word(format), path.display()),
        }
    }
}

impl FromStr for Traffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = match text.split_once(':').unwrap_or((text, "")) {
            ("incast", senders) => senders.parse().ok().map(Self::Incast),
            ("permutation", "") => Some(Self::Permutation),
            ("random", "") => Some(Self::Random),
            (word, "") => {
                let collective =
                    parse_word(word).ok().filter(|collective: &Collective| !collective.has_root());
                collective.map(Self::Collective)
            }
            (format, path) => parse_word(format).ok().map(|format| Self::File(format, path.into())),
        };
        found.ok_or_else(|| {
            format!(
                "`{text}` is not a workload: expected `incast:SENDERS`, `permutation`, `random`, `all-reduce`, `all-gather`, \
                 `reduce-scatter`, `all-to-all`, or a file: `hpcc:FILE`, `htsim:FILE`, `simai:FILE`, `chakra:PREFIX`"
            )
        })
    }
}

/// A share, from percent.
pub(super) fn share(text: &str) -> Result<f64, String> {
    quantity::parse(text, Unit::PartsPerMillion)
        .map(|ppm| ppm as f64 / 1e6)
        .map_err(|error| error.to_string())
}

/// Whether a switch of a setting is on.
pub(super) fn on_off(text: &str) -> Result<bool, String> {
    quantity::parse(text, Unit::Switch).map(|on| on != 0).map_err(|error| error.to_string())
}

/// Congestion control of senders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    Off,
    #[default]
    #[value(alias = "on")]
    Dcqcn,
    /// UEC's NSCC.
    Nscc,
}

/// Assignment of ranks to hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    #[default]
    InOrder,
    Random,
}
