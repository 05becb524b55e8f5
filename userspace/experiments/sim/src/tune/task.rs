//! Input of a search, and its simulations.

use anyhow::{Context as _, Result, ensure};
use clap::builder::TypedValueParser as _;
use clap::{Args, value_parser};
use dcqcn_params::Profile;

use super::evaluate::{Limits, Objective};
use crate::fabric::FabricSetup;
use crate::knobs::SetupError;
use crate::knobs::refuse_without_effect;
use crate::network::Scenario;
use crate::sweep::SimulationSetup as _;

/// Default time limit of a simulation: slower flows count as incomplete.
const DURATION_NS: u64 = 100_000_000;

/// Input of a search: the fabric and its traffic, whose profile and parameters are not searched, and its size.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Search")]
pub struct Task {
    #[command(flatten)]
    pub setup: FabricSetup,
    /// Further workload: flags on top of the others, as workload=incast:16,size=500KB. May be repeated.
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub also: Vec<String>,
    /// Candidates to simulate.
    #[arg(long, value_name = "N", default_value_t = 96, value_parser = value_parser!(u16).range(1..=10_000).map(usize::from))]
    pub budget: usize,
    /// Metric of slowdown to minimise.
    #[arg(long, value_name = "METRIC", value_enum, default_value_t = Objective::P99)]
    pub objective: Objective,
    #[command(flatten)]
    pub limits: Limits,
    /// Number of seeds per workload in the search, starting at --seed.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u64).range(1..=100))]
    pub seeds: u64,
    /// Number of seeds per workload in the second evaluation.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u64).range(1..=100))]
    pub check_seeds: u64,
    /// Candidates in the second evaluation.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u16).range(1..=100).map(usize::from))]
    pub keep: usize,
    /// Seed of the search.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub search_seed: u64,
}

impl Task {
    /// All workloads, without DCQCN settings, which each candidate adds.
    fn setups(&self) -> Result<Vec<FabricSetup>> {
        let base = FabricSetup {
            changes: Vec::new(),
            duration: self.setup.duration.or(Some(DURATION_NS)),
            ..self.setup.clone()
        };
        let mut setups = vec![base.clone()];
        for text in &self.also {
            setups.push(other_workload(&base, text).with_context(|| format!("--also {text}"))?);
        }
        // There is one score of many simulations, and only DCQCN is searched.
        for setup in &setups {
            let flags = [
                ("--sample", setup.sample),
                ("--base-rtt", setup.base_rtt),
                ("--target-delay", setup.target_delay),
            ];
            for (flag, given) in flags {
                ensure!(given.is_none(), SetupError(format!("{flag} has no effect here: omit it")));
            }
        }
        refuse_without_effect(setups.iter().map(FabricSetup::without_effect))?;
        // Any profile for these links will do.
        for setup in &mut setups {
            setup.profile.get_or_insert(Profile::Paper);
        }
        Ok(setups)
    }

    /// The simulations of each workload with `count` seeds, from the setup's own seed plus an offset. Seeds wrap to 0.
    ///
    /// # Errors
    /// Settings are inconsistent, have no effect, or describe no workload.
    pub(super) fn workloads(&self, beyond: u64, count: u64) -> Result<Vec<Vec<Scenario>>> {
        let of = |setup: &FabricSetup| -> Result<Vec<Scenario>> {
            let first = setup.seed.unwrap_or(1).wrapping_add(beyond);
            let with =
                |number| FabricSetup { seed: Some(first.wrapping_add(number)), ..setup.clone() }.scenario();
            (0..count).map(with).collect()
        };
        let workloads: Vec<Vec<Scenario>> = self.setups()?.iter().map(of).collect::<Result<_>>()?;
        let mut rates = workloads.iter().flatten().map(host_rate_bps);
        let first = rates.next();
        // A topology from a file defines its own rates.
        ensure!(
            rates.all(|rate| Some(rate) == first),
            "all hosts' links must have one rate, but the topologies of --topology and --also have several"
        );
        Ok(workloads)
    }
}

pub(super) fn host_rate_bps(scenario: &Scenario) -> u64 {
    scenario.topology.links.first().map_or(0, |link| link.rate_bps)
}

/// Another workload between the same hosts.
fn other_workload(base: &FabricSetup, text: &str) -> Result<FabricSetup> {
    let other = base.with_effect(text)?;
    let is_same = (other.profile, other.control) == (base.profile, base.control) && other.changes.is_empty();
    ensure!(is_same, "DCQCN is the same for all traffic; specify --profile and --set outside --also");
    ensure!(
        other.class == base.class,
        "parameters are searched for one class; specify --class outside --also"
    );
    ensure!(
        other.host_link == base.host_link,
        "all hosts' links must have one rate; specify --host-link outside --also"
    );
    Ok(other)
}

/// The task given by flags on a command line.
#[cfg(test)]
pub(super) fn task(flags: &str) -> Task {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        task: Task,
    }
    let words = ["tune"].into_iter().chain(flags.split_whitespace());
    <Line as clap::Parser>::try_parse_from(words).unwrap().task
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(flags: &str, also: &[&str]) -> Task {
        Task { also: also.iter().map(|text| (*text).to_owned()).collect(), ..task(flags) }
    }

    #[test]
    fn seeds_wrap_after_largest() {
        for first in [1, u64::MAX - 1_000, u64::MAX] {
            let task = with(&format!("--topology leaf-spine:1x0x3 --workload incast:2 --seed {first}"), &[]);
            let seeds = |beyond, count| -> Vec<u64> {
                let workloads = task.workloads(beyond, count).unwrap();
                workloads.iter().flatten().map(|scenario| scenario.seed).collect()
            };
            assert_eq!(seeds(0, 2), [first, first.wrapping_add(1)]);
            assert_eq!(seeds(1_000, 3), [1_000, 1_001, 1_002].map(|more| first.wrapping_add(more)));
        }
    }

    #[test]
    fn incompatible_extra_traffic_rejected() {
        for (line, also, expected) in [
            ("", "class=4", "--also class=4: parameters are searched for one class"),
            ("", "load=30%,host-link=25gbit", "all hosts' links must have one rate"),
            ("", "topology=file:/none", "/none"),
            ("", "profile=hpcc", "DCQCN is the same for all traffic"),
            ("", "profile=paper", "DCQCN is the same for all traffic"),
            ("--profile hpcc", "profile=nvidia", "DCQCN is the same for all traffic"),
            ("", "set=rpg_gd=12", "DCQCN is the same for all traffic"),
            ("", "kmin=12KB", "DCQCN is the same for all traffic"),
            ("", "workload=incast:3,load=30%", "--load has no effect: it needs --workload random"),
            ("--trim 6", "load=30%", "--trim has no effect: it needs --pfc off"),
            ("--sample 1us", "load=30%", "--sample has no effect here: omit it"),
            ("", "sample=1us", "--sample has no effect here: omit it"),
            ("--base-rtt 1us", "load=30%", "--base-rtt has no effect here: omit it"),
            ("--target-delay 1us", "load=30%", "--target-delay has no effect here: omit it"),
        ] {
            let refused = with(line, &[also]).workloads(0, 1).unwrap_err();
            assert!(format!("{refused:#}").contains(expected), "{line} {also}: {refused:#}");
        }
        // Flags of one workload do not affect another.
        for (line, also) in [
            ("--load 30%", "workload=incast:3,size=20KB"),
            ("--workload incast:3", "workload=random,load=30%"),
            ("--pfc off --trim 6", "pfc=on,headroom=10KB"),
        ] {
            assert_eq!(with(line, &[also]).workloads(0, 1).unwrap().len(), 2, "{line} {also}");
        }
    }
}
