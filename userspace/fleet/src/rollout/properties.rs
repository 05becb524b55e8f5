//! Properties of rollouts under arbitrary sequences of host, coordinator, operator and outage events.

use proptest::collection::vec;
use proptest::prelude::*;

use super::world::{Dialect, Host, World, policy};
use super::*;

/// Agent versions by weight.
const DIALECTS: [Dialect; 8] = [
    Dialect::Own,
    Dialect::Older,
    Dialect::Newer,
    Dialect::Unreadable,
    Dialect::Own,
    Dialect::Older,
    Dialect::Newer,
    Dialect::Own,
];

/// Arbitrary fleets.
fn hosts() -> impl Strategy<Value = Vec<Host>> {
    let host = (0..14_u8, 0..4_usize, 0..DIALECTS.len()).prop_map(|(kind, slow, dialect)| Host {
        dialect: DIALECTS[dialect],
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
fn check_orders(world: &World, before: &Rollout, hosts: &Hosts) -> Result<(), TestCaseError> {
    let orders = world.orders.last().unwrap();
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
        prop_assert!(report.refusal(&step.target).is_none(), "{} has refused", step.host);
        let is_bad =
            report.has(&step.target) && report.failing.iter().any(|what| !step.complaints.contains(what));
        prop_assert!(!is_bad, "{} is bad", step.host);
    }
    prop_assert!(silent <= before.policy.max_unavailable, "{silent} are silent");
    let busy = world.kept.steps.iter().filter(|step| step.state.is_unavailable()).count();
    prop_assert!(busy <= before.policy.max_unavailable, "{busy} at a time");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rollout_holds_its_promises(
        hosts in hosts(), canary in 0..3_usize, wave in 1..8_usize, most in 1..4_usize,
        events in vec((0..16_u8, any::<prop::sample::Index>(), 0..4_000_u64), 0..120),
    ) {
        let mut world = World::new(hosts, policy(canary, wave, most));
        let names: Vec<String> = world.hosts.keys().cloned().collect();
        // Stale reports, as a coordinator has after an outage.
        let mut stale = (world.reports(), world.revision);
        for (event, which, elapsed_ms) in events {
            let is_over = world.kept.is_over();
            match event {
                0 | 1 => {
                    // Either of two coordinators steps from its own state, and may die before writing.
                    let (before, reports, revision) = (world.kept.clone(), world.reports(), world.revision);
                    let count = world.orders.len();
                    world.tick(usize::from(event), elapsed_ms, &reports, revision, which.index(3) == 0);
                    if world.orders.len() > count {
                        check_orders(&world, &before, &reports)?;
                    }
                }
                2 => {
                    let host = world.host(which.get::<String>(&names));
                    host.is_away = !host.is_away;
                }
                3 => {
                    let host = world.host(which.get::<String>(&names));
                    host.is_stuck = !host.is_stuck;
                }
                4 => {
                    let host = world.host(which.get::<String>(&names));
                    host.failing = if host.failing.is_empty() { vec!["new".into()] } else { Vec::new() };
                }
                5 if !is_over => world.operate(Event::Pause { by: "ada" }),
                6 if !is_over => world.operate(Event::Resume { by: "ada" }),
                7 if which.index(20) == 0 => world.operate(Event::Abort { by: "ada", why: "" }),
                8 => {
                    // An etcd outage of ten minutes, with stale reports.
                    let (clock_ms, soaked) = (world.kept.clock_ms, soaked(&world.kept));
                    let (reports, revision) = stale.clone();
                    world.known[0] = (world.kept.clone(), world.kept_at);
                    world.tick(0, 600_000, &reports, revision, false);
                    prop_assert!(world.kept.clock_ms - clock_ms <= MOST_ELAPSED_MS);
                    prop_assert!(self::soaked(&world.kept) <= soaked + MOST_ELAPSED_MS);
                }
                9 => stale = (world.reports(), world.revision),
                10 => {
                    // An agent is upgraded or downgraded.
                    let dialect = DIALECTS[which.index(DIALECTS.len())];
                    world.host(which.get::<String>(&names)).dialect = dialect;
                }
                11 => {
                    // A clock jumps in either direction.
                    let (before, reports) = (world.kept.clone(), world.reports());
                    world.step([0, u64::MAX, 7_200_000][which.index(3)]);
                    check_orders(&world, &before, &reports)?;
                    prop_assert!(world.kept.clock_ms - before.clock_ms <= MOST_ELAPSED_MS);
                    prop_assert!(soaked(&world.kept) <= soaked(&before) + MOST_ELAPSED_MS);
                }
                _ => {
                    let (before, reports) = (world.kept.clone(), world.reports());
                    world.step(elapsed_ms);
                    check_orders(&world, &before, &reports)?;
                    world.obey();
                }
            }
            let sent = world.kept.count(|state| matches!(state, State::Sent { .. }));
            prop_assert!(sent <= most, "{sent} at a time");
            // Serialisation to etcd is lossless.
            let head: Rollout = serde_json::from_str(&serde_json::to_string(&world.kept).unwrap()).unwrap();
            prop_assert_eq!(Rollout { steps: world.kept.steps.clone(), ..head }, world.kept.clone());
        }
        // Every sequence terminates if an operator responds.
        for _ in 0..2_000 {
            if world.kept.is_over() {
                break;
            }
            if world.kept.is_paused() {
                world.operate(Event::Resume { by: "ada" });
            }
            world.step(1_000);
            world.obey();
        }
        let outcome = world.kept.outcome();
        prop_assert!(outcome.is_some(), "no end: {:?}", world.kept);
        let is_done = outcome.is_some_and(|outcome| outcome.is_done);
        world.hosts.values_mut().for_each(|host| (host.is_away, host.is_stuck) = (false, false));
        (0..14).for_each(|_| world.obey());
        for (name, host) in &world.hosts {
            let step = world.kept.steps.iter().find(|step| step.host == *name).unwrap();
            let wanted = host.want.clone().unwrap_or_default();
            let expected = if is_done { &step.target } else { &step.former };
            prop_assert_eq!(&wanted, expected, "{} of {:?}", name, step);
            prop_assert!(host.has.as_ref().is_none_or(|has| has.is_of(&wanted)));
        }
        // No wave began before every host of the previous wave was ordered to change; canaries roll back first.
        for step in world.kept.steps.iter().filter(|step| world.ordered_at(&step.host).is_some()) {
            let at = world.ordered_at(&step.host).unwrap();
            for other in world.kept.steps.iter().filter(|other| other.wave < step.wave) {
                prop_assert!(world.ordered_at(&other.host).is_some_and(|before| before < at));
            }
        }
        let wave = |host: &String| world.kept.steps.iter().find(|step| step.host == *host).unwrap().wave;
        let back: Vec<usize> = world.orders.iter().flatten().filter(|(_, target)| target.version == 0)
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
