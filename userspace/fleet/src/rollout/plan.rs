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

/// The rollout of `version`, for the hosts whose configuration it changes, and those that say that they do not have theirs. `wants` are
/// what hosts are to have now, `reports` those of hosts that are there.
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
        // One that went back only in etcd is told the same once more.
        let lacks = |want: &Want| reports.get(host).is_some_and(|report| report.lacks(want.target.version));
        let is_mended = text == wanted && want.is_some_and(lacks);
        if text == wanted && !is_mended {
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
            is_mended,
        };
        candidates.push(Candidate { step, is_there: reports.contains_key(host) });
    }
    let mut canaries: BTreeMap<Option<String>, usize> = BTreeMap::new();
    let mut is_canary = |candidate: &Candidate| {
        // One that is away, or may refuse again and be passed over, would prove nothing.
        let taken = canaries.entry(candidate.step.group.clone()).or_default();
        let is_canary = candidate.is_there && !candidate.step.is_mended && *taken < version.policy.canary;
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

#[cfg(test)]
mod tests {
    use super::super::tests::{policy, version};
    use super::*;
    use crate::file::Labels;
    use crate::record::{Target, Tried};

    fn tried(version: u64, error: Option<&str>) -> Option<Tried> {
        Some(Tried { version, error: error.map(str::to_owned) })
    }

    /// A host that was to have version 1, whose text this is again, and one that is new; what the first one says of itself.
    fn mended(canary: usize, tried: Option<Tried>) -> (Rollout, BTreeMap<String, Report>) {
        let members = ["a1", "a2"].map(|name| (name.to_owned(), Member { labels: Labels::new() })).into();
        let [by, why] = [const { String::new() }; 2];
        let target = Target { version: 1, group: Some("a".into()) };
        let wants = [("a1".to_owned(), Want { target, text: Some("of a".into()), by, why })].into();
        let report = |tried| Report { tried, ..Report::default() };
        let reports = [("a1".to_owned(), report(tried)), ("a2".to_owned(), report(None))].into();
        (plan(&version(policy(canary, 4, 1)), &members, &wants, &reports), reports)
    }

    #[test]
    fn a_host_without_what_it_should_have_is_told_the_same_again() {
        for (tried, is_told) in [
            (tried(1, Some("no")), true),
            // What it was to go back from.
            (tried(2, None), true),
            (tried(1, None), false),
            // It comes up, and its agent tells it.
            (None, false),
        ] {
            let told: Vec<(String, bool)> = mended(0, tried.clone())
                .0
                .steps
                .into_iter()
                .map(|step| (step.host, step.is_mended))
                .collect();
            let expected = [("a1".to_owned(), true), ("a2".to_owned(), false)];
            assert_eq!(told, expected[usize::from(!is_told)..], "{tried:?}");
        }
    }

    #[test]
    fn one_that_may_refuse_again_is_no_canary() {
        let steps = mended(1, tried(1, Some("no"))).0.steps;
        let waves: Vec<(&str, usize)> = steps.iter().map(|step| (step.host.as_str(), step.wave)).collect();
        assert_eq!(waves, [("a2", 0), ("a1", 1)]);
    }

    #[test]
    fn one_that_refuses_or_does_not_do_the_same_again_takes_nothing_back() {
        for answer in [tried(2, Some("no")), tried(1, Some("no"))] {
            let (mut rollout, mut reports) = mended(0, tried(1, Some("no")));
            assert_eq!(rollout.step(0, &reports).len(), 1);
            for _ in 0..20 {
                reports.get_mut("a1").unwrap().tried = answer.clone();
                for send in rollout.step(1_000, &reports) {
                    reports.get_mut(&send.host).unwrap().tried = tried(2, None);
                }
            }
            let outcome = rollout.outcome().unwrap();
            let expected =
                "1 hosts changed, 1 are away, or did not take it before either, and change when they can";
            assert_eq!((outcome.is_done, outcome.reason.as_str()), (true, expected), "{answer:?}");
        }
        let (mut rollout, mut reports) = mended(0, tried(1, Some("no")));
        rollout.step(0, &reports);
        let mut after = |answer| {
            reports.get_mut("a1").unwrap().tried = answer;
            rollout.step(1_000, &reports);
            rollout.steps[0].state
        };
        assert_eq!(after(tried(2, Some("no"))), State::Away, "nobody waits for it");
        assert_eq!(
            after(tried(2, None)),
            State::Applied { silent_ms: 0 },
            "one that takes it is like any other"
        );
        // A coordinator of before knows nothing of it.
        let text = serde_json::to_string(&rollout).unwrap().replace(",\"is_mended\":true", "");
        assert!(!serde_json::from_str::<Rollout>(&text).unwrap().steps[0].is_mended);
    }
}
