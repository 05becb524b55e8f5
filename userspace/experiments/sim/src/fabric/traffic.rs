//! The words for workloads.

use std::path::PathBuf;
use std::str::FromStr;

use crate::network::Random;
use crate::network::workload::{self, Collective, Poisson, Sizes, Workload};
use anyhow::{Result, ensure};

use super::network::path;

/// Most flows of one simulation, which take some 2 GB.
const MAX_FLOWS: u64 = 16_000_000;

/// What hosts send each other, as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// So many hosts send to host 0.
    Incast(u32),
    /// Every host sends to one other.
    Permutation,
    /// Flows at random times between random hosts.
    Random,
    /// A collective over all hosts.
    Collective(Collective),
    /// A file of others.
    File(Format, PathBuf),
}

/// Formats of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What a workload depends on besides.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) hosts: u32,
    pub(super) class: u8,
    pub(super) bytes: u64,
    pub(super) sizes: Option<PathBuf>,
    pub(super) host_rate_bps: u64,
    pub(super) load: f64,
    pub(super) until_ns: u64,
    pub(super) repeat: u32,
    pub(super) shuffled: bool,
    pub(super) seed: u64,
}

/// The numbers below `hosts`, by chance (Fisher and Yates).
fn shuffled(hosts: u32, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let mut ranks: Vec<u32> = (0..hosts).collect();
    for last in (1..ranks.len()).rev() {
        ranks.swap(last, random.up_to(last as u64) as usize);
    }
    ranks
}

impl FromStr for Traffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, rest) = text.split_once(':').unwrap_or((text, ""));
        let file = |format| path(rest).map(|path| Self::File(format, path.to_owned()));
        let found = match word {
            "incast" => rest.parse().ok().map(Self::Incast),
            "hpcc" => file(Format::Hpcc),
            "htsim" => file(Format::Htsim),
            "chakra" => file(Format::Chakra),
            "simai" => file(Format::Simai),
            _ if !rest.is_empty() => None,
            "permutation" => Some(Self::Permutation),
            "random" => Some(Self::Random),
            "all-reduce" => Some(Self::Collective(Collective::AllReduce)),
            "all-gather" => Some(Self::Collective(Collective::AllGather)),
            "reduce-scatter" => Some(Self::Collective(Collective::ReduceScatter)),
            "all-to-all" => Some(Self::Collective(Collective::AllToAll)),
            _ => None,
        };
        found.ok_or_else(|| {
            format!(
                "`{text}` is no workload: give `incast:SENDERS`, `permutation`, `random`, `all-reduce`, `all-gather`, \
                 `reduce-scatter`, `all-to-all`, or a file: `hpcc:FILE`, `htsim:FILE`, `simai:FILE`, `chakra:PREFIX`"
            )
        })
    }
}

impl Traffic {
    /// The workload.
    pub(super) fn build(&self, terms: &Terms) -> Result<Workload> {
        let Terms { hosts, class, bytes, repeat, .. } = *terms;
        ensure!(bytes != 0, "size = 0B is out of range: allowed is 1B and more");
        Ok(match self {
            Self::Incast(senders) => {
                ensure!(
                    (1..hosts).contains(senders),
                    "incast:{senders} is out of range: allowed is 1 to {}, as one of the {hosts} hosts receives",
                    hosts.saturating_sub(1)
                );
                Workload::incast(*senders, bytes, class)
            }
            Self::Permutation => Workload::permutation(hosts, bytes, class, terms.seed),
            Self::Random => {
                let sizes = match &terms.sizes {
                    Some(path) => Sizes::parse(&path.display().to_string(), &workload::text(path)?)?,
                    None => Sizes::constant(bytes),
                };
                let Terms { host_rate_bps: rate_bps, load, until_ns, seed, .. } = *terms;
                let spec = Poisson { hosts, rate_bps, load, until_ns, class, seed };
                let flows = spec.mean_flows(&sizes);
                ensure!(
                    flows <= MAX_FLOWS as f64,
                    "some {flows:.0} flows would start: allowed are {MAX_FLOWS}; give longer ones, a shorter --until, or \
                     less --load"
                );
                let workload = Workload::poisson(&sizes, &spec);
                ensure!(
                    !workload.flows().is_empty(),
                    "no flow starts in that time: give a longer --until, or more --load"
                );
                workload
            }
            Self::Collective(collective) => {
                let flows = Workload::flows_of_collectives(*collective, hosts.into(), repeat);
                ensure!(
                    flows <= MAX_FLOWS,
                    "{flows} flows would be sent: allowed are {MAX_FLOWS}; give fewer hosts, or a smaller --repeat"
                );
                let ranks = if terms.shuffled { shuffled(hosts, terms.seed) } else { (0..hosts).collect() };
                Workload::collectives(*collective, &ranks, bytes, class, repeat)
            }
            Self::File(format, path) => {
                let name = path.display().to_string();
                match format {
                    Format::Hpcc => Workload::hpcc(&name, &workload::text(path)?, class)?,
                    Format::Htsim => Workload::htsim(&name, &workload::text(path)?, class)?,
                    Format::Chakra => Workload::chakra(path, hosts, class)?,
                    Format::Simai => Workload::simai(&name, &workload::text(path)?, hosts, class)?,
                }
            }
        })
    }
}
