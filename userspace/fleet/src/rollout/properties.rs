//! Properties of rollouts under arbitrary sequences of host, coordinator, operator and outage events.

use proptest::collection::vec;
use proptest::prelude::*;

use super::simulated::{Dialect, Host, SimulatedFleet, policy};
use super::*;

const DIALECT_WEIGHTS: [Dialect; 8] = {
    use Dialect::*;
    [Own, Older, Newer, Unreadable, Own, Older, Newer, Own]
};

fn hosts() -> impl Strategy<Value = Vec<Host>> {
    let host = (0..14_u8, 0..4_usize, 0..DIALECT_WEIGHTS.len()).prop_map(|(kind, slow, dialect)| Host {
        dialect: DIALECT_WEIGHTS[dialect],
        is_away: kind == 0,
        refuses: kind == 1,
        refuses_back: if kind == 3 { 3 * slow } else { 0 },
        marks: if kind == 2 { 9_000 } else { 500 },
        failing: if kind == 4 { vec!["as before".into()] } else { Vec::new() },
        slow,
        ..Host::default()
    });
    vec(host, 1..24)
}

/// Checks a step that ordered changes against the reports available to it.
fn check_orders(fleet: &SimulatedFleet, before: &Rollout, hosts: &Hosts) -> Result<(), TestCaseError> {
    let orders = fleet.orders.last().unwrap();
    let new: Vec<&String> =
        orders.iter().filter(|(_, target)| target.version == 2).map(|(host, _)| host).collect();
    if new.is_empty() {
        return Ok(());
    }
    prop_assert!(!before.is_paused(), "changed while paused");
    let mut silent = 0;
    for step in before.steps.iter().filter(|step| step.state != State::Waiting) {
        let report = hosts.get(&step.host).map(|seen| &seen.report);
        let is_changed = matches!(step.state, State::Sent { .. } | State::Applied { .. } | State::Lost);
        silent += usize::from(is_changed && report.is_none());
        let Some(report) = report else { continue };
        prop_assert!(report.rejection_of(&step.target).is_none(), "{} has refused", step.host);
        let is_bad =
            report.has(&step.target) && report.failing.iter().any(|what| !step.complaints.contains(what));
        prop_assert!(!is_bad, "{} is bad", step.host);
    }
    prop_assert!(silent <= before.policy.max_unavailable, "{silent} are silent");
    let busy = fleet.stored.steps.iter().filter(|step| step.state.is_unavailable()).count();
    prop_assert!(busy <= before.policy.max_unavailable, "{busy} at a time");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rollout_invariants_hold(
        hosts in hosts(), canary in 0..3_usize, wave in 1..8_usize, most in 1..4_usize,
        events in vec((0..16_u8, any::<prop::sample::Index>(), 0..4_000_u64), 0..120),
    ) {
        let mut fleet = SimulatedFleet::new(hosts, policy(canary, wave, most));
        let names: Vec<String> = fleet.hosts.keys().cloned().collect();
        // Stale reports, as a coordinator has after an outage.
        let mut stale = (fleet.reports(), fleet.revision);
        for (event, which, elapsed_ms) in events {
            let is_over = fleet.stored.is_over();
            match event {
                0 | 1 => {
                    // Either of two coordinators steps from its own state, and may die before writing.
                    let (before, reports, revision) = (fleet.stored.clone(), fleet.reports(), fleet.revision);
                    let count = fleet.orders.len();
                    fleet.tick(usize::from(event), elapsed_ms, &reports, revision, which.index(3) == 0);
                    if fleet.orders.len() > count {
                        check_orders(&fleet, &before, &reports)?;
                    }
                }
                2 => {
                    let host = fleet.host(which.get::<String>(&names));
                    host.is_away = !host.is_away;
                }
                3 => {
                    let host = fleet.host(which.get::<String>(&names));
                    host.is_stuck = !host.is_stuck;
                }
                4 => {
                    let host = fleet.host(which.get::<String>(&names));
                    host.failing = if host.failing.is_empty() { vec!["new".into()] } else { Vec::new() };
                }
                5 if !is_over => fleet.operate(Event::Pause { by: "ada" }),
                6 if !is_over => fleet.operate(Event::Resume { by: "ada" }),
                7 if which.index(20) == 0 => fleet.operate(Event::Abort { by: "ada", why: "" }),
                8 => {
                    // An etcd outage of ten minutes, with stale reports.
                    let (clock_ms, soaked) = (fleet.stored.clock_ms, soaked(&fleet.stored));
                    let (reports, revision) = stale.clone();
                    fleet.known[0] = (fleet.stored.clone(), fleet.stored_at);
                    fleet.tick(0, 600_000, &reports, revision, false);
                    prop_assert!(fleet.stored.clock_ms - clock_ms <= MOST_ELAPSED_MS);
                    prop_assert!(self::soaked(&fleet.stored) <= soaked + MOST_ELAPSED_MS);
                }
                9 => stale = (fleet.reports(), fleet.revision),
                10 => {
                    // An agent is upgraded or downgraded.
                    let dialect = DIALECT_WEIGHTS[which.index(DIALECT_WEIGHTS.len())];
                    fleet.host(which.get::<String>(&names)).dialect = dialect;
                }
                11 => {
                    // A clock jumps in either direction.
                    let (before, reports) = (fleet.stored.clone(), fleet.reports());
                    fleet.step([0, u64::MAX, 7_200_000][which.index(3)]);
                    check_orders(&fleet, &before, &reports)?;
                    prop_assert!(fleet.stored.clock_ms - before.clock_ms <= MOST_ELAPSED_MS);
                    prop_assert!(soaked(&fleet.stored) <= soaked(&before) + MOST_ELAPSED_MS);
                }
                _ => {
                    let (before, reports) = (fleet.stored.clone(), fleet.reports());
                    fleet.step(elapsed_ms);
                    check_orders(&fleet, &before, &reports)?;
                    fleet.apply_orders();
                }
            }
            let sent = fleet.stored.count(|state| matches!(state, State::Sent { .. }));
            prop_assert!(sent <= most, "{sent} at a time");
            // Serialisation to etcd is lossless.
            let head: Rollout = serde_json::from_str(&serde_json::to_string(&fleet.stored).unwrap()).unwrap();
            prop_assert_eq!(Rollout { steps: fleet.stored.steps.clone(), ..head }, fleet.stored.clone());
        }
        // Every sequence terminates if an operator responds.
        for _ in 0..2_000 {
            if fleet.stored.is_over() {
                break;
            }
            if fleet.stored.is_paused() {
                fleet.operate(Event::Resume { by: "ada" });
            }
            fleet.turns(1);
        }
        let outcome = fleet.stored.outcome();
        prop_assert!(outcome.is_some(), "no end: {:?}", fleet.stored);
        let is_done = outcome.is_some_and(|outcome| outcome.is_done);
        fleet.hosts.values_mut().for_each(|host| (host.is_away, host.is_stuck) = (false, false));
        (0..14).for_each(|_| fleet.apply_orders());
        for (name, host) in &fleet.hosts {
            let step = fleet.stored.steps.iter().find(|step| step.host == *name).unwrap();
            let desired_target = host.desired.clone().unwrap_or_default();
            let expected = if is_done { &step.target } else { &step.former };
            prop_assert_eq!(&desired_target, expected, "{} of {:?}", name, step);
            prop_assert!(host.has.as_ref().is_none_or(|has| has.concerns(&desired_target)));
        }
        // No wave began before every host of the previous wave was ordered to change; canaries roll back first.
        for step in fleet.stored.steps.iter().filter(|step| fleet.ordered_at(&step.host).is_some()) {
            let at = fleet.ordered_at(&step.host).unwrap();
            for other in fleet.stored.steps.iter().filter(|other| other.wave < step.wave) {
                prop_assert!(fleet.ordered_at(&other.host).is_some_and(|before| before < at));
            }
        }
        let wave = |host: &String| fleet.stored.steps.iter().find(|step| step.host == *host).unwrap().wave;
        let back: Vec<usize> = fleet.orders.iter().flatten().filter(|(_, target)| target.version == 0)
            .map(|(host, _)| wave(host)).collect();
        prop_assert!(back.is_sorted(), "{back:?}");
    }
}

fn soaked(rollout: &Rollout) -> u64 {
    match &rollout.phase {
        Phase::Forward(forward) => forward.soaked_ms,
        _ => 0,
    }
}
