use super::*;
use crate::rollout::next;
use crate::rollout::simulated::{policy, rates, version};

fn group_a() -> Target {
    let version = version(policy(1, 4, 1));
    version.target(version.groups.first())
}

fn tried(version: u64, error: Option<&str>) -> Option<Tried> {
    let hash = if version == 1 { group_a().hash } else { Some("other".into()) };
    let target = Target { version, group: Some("a".into()), hash };
    Some(Tried { target, error: error.map(str::to_owned) })
}

fn desired(target: Target) -> BTreeMap<String, DesiredConfig> {
    [("a1".to_owned(), DesiredConfig { target, ..DesiredConfig::default() })].into()
}

/// Plans version 1 again for host `a1`, which was ordered it and reports `tried`, and for the new host `a2`.
fn retried(canary: usize, tried: Option<Tried>) -> (Rollout, Hosts) {
    let members = ["a1", "a2"].map(|name| (name.to_owned(), Member::default())).into();
    let desired_configs = desired(Target { version: 1, ..group_a() });
    let seen = |tried| ReceivedReport {
        report: Report { tried, rates: rates(0), ..Report::default() },
        revision: 1,
    };
    let hosts = [("a1".to_owned(), seen(tried)), ("a2".to_owned(), seen(None))].into();
    (plan(&version(policy(canary, 4, 1)), &members, &desired_configs, &hosts), hosts)
}

#[test]
fn host_without_ordered_config_is_retried() {
    for (tried, is_retried) in [
        (tried(1, Some("no")), true),
        // The host still has the version that was rolled back.
        (tried(2, None), true),
        (tried(1, None), false),
        // Still starting; its agent will apply the order.
        (None, false),
    ] {
        let steps: Vec<(String, bool)> =
            retried(0, tried.clone()).0.steps.into_iter().map(|step| (step.host, step.is_retry)).collect();
        let expected = [("a1".to_owned(), true), ("a2".to_owned(), false)];
        assert_eq!(steps, expected[usize::from(!is_retried)..], "{tried:?}");
    }
}

#[test]
fn retried_host_is_not_a_canary() {
    let steps = retried(1, tried(1, Some("no"))).0.steps;
    let waves: Vec<(&str, usize)> = steps.iter().map(|step| (step.host.as_str(), step.wave)).collect();
    assert_eq!(waves, [("a2", 0), ("a1", 1)]);
}

#[test]
fn changed_text_with_same_number_rolled_out() {
    let (mut rollout, hosts) = retried(0, tried(1, None));
    assert_eq!(rollout.steps.len(), 1);
    let members = [("a1".to_owned(), Member::default())].into();
    let desired_configs = desired(Target { version: 2, group: Some("a".into()), hash: Some("other".into()) });
    rollout = plan(&version(policy(0, 4, 1)), &members, &desired_configs, &hosts);
    assert_eq!(rollout.steps.len(), 1, "its number was used before");
}

#[test]
fn unreadable_order_rolls_back_to_report() {
    let members = [("a1".to_owned(), Member::default())].into();
    let seen = ReceivedReport { report: Report { tried: tried(7, None), ..Report::default() }, revision: 1 };
    let rollout = plan(&version(policy(0, 4, 1)), &members, &BTreeMap::new(), &[("a1".into(), seen)].into());
    assert_eq!(rollout.steps[0].former.version, 7);
}

#[test]
fn rejected_retry_causes_no_rollback() {
    for answer in [Some("no"), None] {
        let (mut rollout, mut hosts) = retried(0, tried(1, Some("no")));
        rollout.policy.soak_ms = 0;
        for round in 0..20 {
            let tick = Event::Tick { elapsed_ms: 1_000, hosts: &hosts, revision: 1 };
            let effects;
            (rollout, effects) = next(rollout, tick);
            for effect in effects {
                let Effect::Send { host, target } = effect else { continue };
                let error = (host == "a1").then(|| answer.map(str::to_owned)).flatten();
                let silent = host == "a1" && answer.is_none();
                if !silent {
                    hosts.get_mut(&host).unwrap().report.tried = Some(Tried { target, error });
                }
            }
            assert!(round < 19 || rollout.is_over(), "{rollout:?}");
        }
        let outcome = rollout.outcome().unwrap();
        let expected = "1 host changed, 1 away or rejected it before; to change when possible";
        assert_eq!((outcome.is_done, outcome.reason.as_str()), (true, expected), "{answer:?}");
    }
}
