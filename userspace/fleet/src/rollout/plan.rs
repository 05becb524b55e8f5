//! Planning: selects the hosts that a version changes, and divides them into canaries and waves.

use std::cmp::Reverse;

use super::{Forward, State};
use crate::file::Wave;
use crate::prelude::*;

/// Plans the rollout of `version` to hosts whose configuration differs, or that report lacking their current one.
pub(crate) fn plan(
    version: &Version,
    members: &BTreeMap<String, Member>,
    desired_configs: &BTreeMap<String, DesiredConfig>,
    hosts: &Hosts,
) -> Rollout {
    let mut steps: Vec<Step> = Vec::new();
    for (host, member) in members {
        let target = version.target(version.group_of(host, &member.labels));
        let report = hosts.get(host).map(|seen| &seen.report);
        let former = former(desired_configs.get(host), hosts, host);
        let lacks = desired_configs.contains_key(host) && report.is_some_and(|report| report.lacks(&former));
        let is_same = target.hash == former.hash;
        if is_same && !lacks {
            continue;
        }
        let (state, before, complaints) = (State::Waiting, None, Vec::new());
        let (host, wave) = (host.clone(), usize::MAX);
        steps.push(Step { host, wave, target, former, state, before, complaints, is_retry: is_same });
    }
    choose_canaries(&mut steps, version, hosts);
    let size = match version.policy.wave {
        Wave::Hosts(hosts) => hosts,
        Wave::Percent(percent) => (steps.len() * percent).div_ceil(100),
    };
    let from = usize::from(steps.iter().any(|step| step.wave == 0));
    let rest = steps.iter_mut().filter(|step| step.wave != 0);
    rest.enumerate().for_each(|(index, step)| step.wave = from + index / size.max(1));
    steps.sort_by(|a, b| (a.wave, &a.host).cmp(&(b.wave, &b.host)));
    let Version { version, by, why, policy, .. } = version.clone();
    let until_ms = policy.soak_ms;
    let phase = match steps.is_empty() {
        true => Phase::Done,
        false => Phase::Forward(Forward { until_ms, ..Forward::default() }),
    };
    let (id, hosts, clock_ms, lines) = (version.to_string(), steps.len(), 0, Vec::new());
    Rollout { id, version, by, why, policy, hosts, clock_ms, phase, lines, steps }
}

/// The configuration that a host is ordered to have. Without a readable order, the one that it reports.
fn former(desired: Option<&DesiredConfig>, hosts: &Hosts, host: &str) -> Target {
    let tried = || {
        let tried = hosts.get(host)?.report.tried.as_ref()?;
        tried.error.is_none().then(|| tried.target.clone())
    };
    desired.map(|desired| desired.target.clone()).or_else(tried).unwrap_or_default()
}

/// Chooses canaries among the reporting hosts of each group. Hosts with a baseline come first, as others
/// cannot be evaluated.
fn choose_canaries(steps: &mut [Step], version: &Version, hosts: &Hosts) {
    let speaks = |host: &str| {
        let rates = hosts.get(host).map(|seen| &seen.report.rates);
        rates.is_some_and(|rates| {
            let reading = rates.of.get(THROUGHPUT).copied().unwrap_or_default();
            rates.data_packets >= version.policy.gate.min_packets
                && reading.value > 0
                && reading.spread < UNKNOWN_SPREAD
        })
    };
    // A retried host may be skipped after another rejection, and would prove nothing.
    let mut candidates: Vec<&mut Step> =
        steps.iter_mut().filter(|step| hosts.contains_key(&step.host) && !step.is_retry).collect();
    candidates.sort_by_key(|step| (Reverse(speaks(&step.host)), step.host.clone()));
    let mut taken: BTreeMap<Option<String>, usize> = BTreeMap::new();
    for step in candidates {
        let taken = taken.entry(step.target.group.clone()).or_default();
        if *taken < version.policy.canary {
            *taken += 1;
            step.wave = 0;
        }
    }
}

#[cfg(test)]
mod tests;
