//! The words for topologies and faults.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::network::{Cables, Fault, FaultKind, StormAction, Topology, Watchdog, workload};
use anyhow::{Context, Result, anyhow, bail};
use dcqcn_params::quantity::parse_duration_ns;

/// A topology, as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Leaves, spines, hosts per leaf.
    LeafSpine([u32; 3]),
    /// Pods, ToRs per pod, hosts per ToR.
    FatTree([u32; 3]),
    /// A file: TOML, or in HPCC's format.
    File(PathBuf),
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
            Some(("leaf-spine", numbers)) => three(numbers)
                .map(Self::LeafSpine)
                .ok_or_else(|| format!("`{text}`: give LEAVESxSPINESxHOSTS, as in `leaf-spine:32x16x32`")),
            Some(("fat-tree", numbers)) => three(numbers)
                .map(Self::FatTree)
                .ok_or_else(|| format!("`{text}`: give PODSxTORSxHOSTS, as in `fat-tree:8x4x4`")),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(format!(
                "`{text}` is no topology: give `leaf-spine:LEAVESxSPINESxHOSTS`, `fat-tree:PODSxTORSxHOSTS` or `file:PATH`"
            )),
        }
    }
}

impl Shape {
    /// The topology.
    pub(super) fn build(&self, cables: Cables) -> Result<Topology> {
        match self {
            Self::LeafSpine([leaves, spines, hosts]) => {
                Ok(Topology::leaf_spine(*leaves, *spines, *hosts, cables)?)
            }
            Self::FatTree([pods, tors, hosts]) => Ok(Topology::fat_tree(*pods, *tors, *hosts, cables)?),
            Self::File(path) => {
                let name = path.display().to_string();
                let text = workload::text(path)?;
                let is_toml = path.extension().is_some_and(|extension| extension == "toml");
                Ok(if is_toml { Topology::parse(&name, &text)? } else { Topology::hpcc(&name, &text)? })
            }
        }
    }
}

/// `TIME,down,A,B`, `TIME,up,A,B`, `TIME,storm,HOST` or `TIME,calm,HOST`.
pub(super) fn fault(text: &str, topology: &Topology, class: u8) -> Result<Fault> {
    let syntax = || {
        anyhow!(
            "--fault {text}: write TIME,down,NODE,NODE or up, or TIME,storm,HOST or calm, as in `1ms,down,leaf0,spine1`"
        )
    };
    let words: Vec<&str> = text.split(',').collect();
    let node = |name: &str| {
        topology.node(name).with_context(|| {
            let last = topology.names.last().map_or("", String::as_str);
            format!(
                "--fault {text}: there is no node `{name}`; they are called `{}` to `{last}`",
                topology.name(0)
            )
        })
    };
    let at = |time: &str| parse_duration_ns(time).with_context(|| format!("--fault {text}"));
    match words.as_slice() {
        [time, what @ ("down" | "up"), a, b] => {
            let ends = [node(a)?, node(b)?];
            let link =
                topology.links.iter().position(|link| ends == [link.a, link.b] || ends == [link.b, link.a]);
            let link = link.with_context(|| format!("--fault {text}: no link joins {a} and {b}"))? as u32;
            let kind = if *what == "up" { FaultKind::LinkUp(link) } else { FaultKind::LinkDown(link) };
            Ok(Fault { at_ns: at(time)?, kind })
        }
        [time, what @ ("storm" | "calm"), name] => {
            let host = node(name)?;
            if host >= topology.hosts {
                bail!("--fault {text}: `{name}` is no host");
            }
            let kind = if *what == "calm" {
                FaultKind::StormEnds { host }
            } else {
                FaultKind::StormBegins { host, classes: 1 << class }
            };
            Ok(Fault { at_ns: at(time)?, kind })
        }
        _ => Err(syntax()),
    }
}

/// `DETECTION,RESTORATION,drop` or `forward`.
pub(super) fn watchdog(text: &str) -> Result<Watchdog, String> {
    let syntax = || format!("`{text}`: write DETECTION,RESTORATION,drop or forward, as in `200ms,2s,drop`");
    let words: Vec<&str> = text.split(',').collect();
    let &[detection, restoration, action] = words.as_slice() else { return Err(syntax()) };
    let time = |text: &str| parse_duration_ns(text).map_err(|error| error.to_string());
    let action = match action {
        "drop" => StormAction::Drop,
        "forward" => StormAction::Forward,
        _ => return Err(syntax()),
    };
    Ok(Watchdog { detection_ns: time(detection)?, restoration_ns: time(restoration)?, action })
}

/// The path after a word of traffic, which must not be empty.
pub(super) fn path(text: &str) -> Option<&Path> {
    (!text.is_empty()).then(|| Path::new(text))
}
