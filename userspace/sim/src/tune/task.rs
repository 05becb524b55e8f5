//! What is asked for, and the simulations that it means.

use anyhow::{Result, ensure};
use dcqcn_fabric::Scenario;
use dcqcn_params::Profile;

use super::judge::Objective;
use super::limits::Limits;
use super::search::Method;
use crate::fabric::FabricSetup;

/// Time to simulate, at most, unless said: who takes longer does not finish, and is behind.
const DURATION_NS: u64 = 100_000_000;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Task {
    /// The fabric and its traffic; a profile and parameters that it sets are not searched.
    pub setup: FabricSetup,
    /// More traffic: settings on top of those, as [`FabricSetup::with`] reads them.
    pub also: Vec<String>,
    /// Candidates to simulate.
    pub budget: usize,
    /// How they are found.
    pub method: Method,
    /// Where the search's random numbers begin.
    pub search_seed: u64,
    /// Seeds of each workload while searching, from that of `setup` on.
    pub seeds: u64,
    /// Seeds of the second look.
    pub check_seeds: u64,
    /// Candidates that get a second look.
    pub keep: usize,
    /// What is to be small.
    pub objective: Objective,
    /// What must hold.
    pub limits: Limits,
}

impl Task {
    /// The simulations of each workload with `count` seeds from the setup's own, and so much more, on.
    pub(super) fn workloads(&self, beyond: u64, count: u64) -> Result<Vec<Vec<Scenario>>> {
        // Any profile for these links will do: every candidate brings its own parameters.
        let bare = FabricSetup {
            profile: Some(self.setup.profile.unwrap_or(Profile::Paper)),
            duration: self.setup.duration.or(Some(DURATION_NS)),
            ..self.setup.clone()
        };
        let mut setups = vec![bare.clone()];
        for text in &self.also {
            let other = bare.with(text)?;
            ensure!(
                (other.profile, other.control, &other.changes) == (bare.profile, bare.control, &bare.changes),
                "--also {text}: DCQCN is the same for all traffic; give --profile and --set beside it"
            );
            setups.push(other);
        }
        let of = |setup: &FabricSetup| -> Result<Vec<Scenario>> {
            let first = setup.seed.unwrap_or(1).saturating_add(beyond);
            let with = |seed| FabricSetup { seed: Some(seed), ..setup.clone() }.scenario();
            (first..first.saturating_add(count)).map(with).collect()
        };
        setups.iter().map(of).collect()
    }
}
