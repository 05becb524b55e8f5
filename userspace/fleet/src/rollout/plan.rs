//! Which hosts a version changes, and in which order.

use std::collections::BTreeMap;

use super::{Phase, Rollout, State, Step};
use crate::file::Wave;
use crate::record::{Member, Report, Version, Want};

/// A host as the plan needs it.
struct Candidate {
    step: Step,
    is_there: bool,
}

/// The rollout of `version`, for the hosts whose configuration it changes. `wants` are what hosts are to have now, `reports` those
/// of hosts that are there.
pub(crate) fn plan(
    version: &Version,
    members: &BTreeMap<String, Member>,
    wants: &BTreeMap<String, Want>,
    reports: &BTreeMap<String, Report>,
) -> Rollout {
    let mut candidates: Vec<Candidate> = Vec::new();
    for (host, member) in members {
        let group = version.group_of(host, &member.labels);
        let want = wants.get(host);
        let (text, wanted) = (group.map(|group| &group.text), want.and_then(|want| want.text.as_ref()));
        if text == wanted {
            continue;
        }
        let step = Step {
            host: host.clone(),
            wave: 0,
            group: group.map(|group| group.name.clone()),
            former: want.map(|want| want.target.clone()).unwrap_or_default(),
            state: State::Waiting,
            before: None,
            was_failing: false,
        };
        candidates.push(Candidate { step, is_there: reports.contains_key(host) });
    }
    let mut canaries: BTreeMap<Option<String>, usize> = BTreeMap::new();
    let mut is_canary = |candidate: &Candidate| {
        // One that is away would prove nothing.
        let taken = canaries.entry(candidate.step.group.clone()).or_default();
        let is_canary = candidate.is_there && *taken < version.policy.canary;
        *taken += usize::from(is_canary);
        is_canary
    };
    let (first, rest): (Vec<_>, Vec<_>) = candidates.into_iter().partition(&mut is_canary);
    let all = first.len() + rest.len();
    let size = match version.policy.wave {
        Wave::Hosts(hosts) => hosts,
        Wave::Percent(percent) => (all * percent).div_ceil(100),
    };
    let mut steps: Vec<Step> = first.into_iter().map(|candidate| candidate.step).collect();
    let from = usize::from(!steps.is_empty());
    let later = rest.into_iter().enumerate();
    steps.extend(later.map(|(index, candidate)| Step { wave: from + index / size.max(1), ..candidate.step }));
    let Version { version, by, why, policy, .. } = version.clone();
    let phase = if steps.is_empty() { Phase::Done } else { Phase::Forward { wave: 0, soaked_ms: 0 } };
    let (is_for_newcomers, is_paused, lines) = (false, false, Vec::new());
    Rollout { version, is_for_newcomers, by, why, policy, steps, phase, is_paused, lines }
}
