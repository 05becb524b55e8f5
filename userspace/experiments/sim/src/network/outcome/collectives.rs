//! How long collectives took, and who was last.

use serde::Serialize;

use super::FlowOutcome;
use crate::network::scenario::Scenario;
use crate::network::workload::Collective;

/// A collective that is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CollectiveOutcome {
    /// What it was.
    pub collective: Collective,
    /// Bytes that it was about.
    pub bytes: u64,
    /// Ranks.
    pub ranks: u32,
    /// When the last rank was ready for it.
    pub start_ns: u64,
    /// From then until the last rank was through.
    pub time_ns: u64,
    /// The same of the rank in the middle, and of the first.
    pub median_ns: u64,
    /// Of the first rank to be through.
    pub first_ns: u64,
    /// Name of the host that was through last: the straggler.
    pub last_host: String,
}

pub(super) fn of(scenario: &Scenario, flows: &[FlowOutcome]) -> Vec<CollectiveOutcome> {
    let end_ns = |flow: &u32| {
        let flow = flows.get(*flow as usize)?;
        Some(flow.start_ns? + flow.fct_ns?)
    };
    let outcome = |round: &crate::network::workload::Round| {
        let ready: Option<Vec<u64>> = round.ready.iter().map(end_ns).collect();
        let start_ns = ready?.into_iter().max()?;
        let done: Option<Vec<u64>> = round.done.iter().map(end_ns).collect();
        let done = done?;
        let last = (0..done.len()).max_by_key(|rank| (done[*rank], std::cmp::Reverse(*rank)))?;
        let mut sorted: Vec<u64> = done.iter().map(|end_ns| end_ns.saturating_sub(start_ns)).collect();
        sorted.sort_unstable();
        Some(CollectiveOutcome {
            collective: round.collective,
            bytes: round.bytes,
            ranks: round.ranks.len() as u32,
            start_ns,
            time_ns: *sorted.last()?,
            median_ns: *sorted.get(sorted.len() / 2)?,
            first_ns: *sorted.first()?,
            last_host: scenario.topology.name(*round.ranks.get(last)?),
        })
    };
    scenario.workload.rounds().iter().filter_map(outcome).collect()
}
