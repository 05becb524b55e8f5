//! Rollouts of a simulated fleet, one condition each.

use std::collections::BTreeMap;

use super::world::{Dialect, Host, World, healthy, policy, rates, version};
use super::*;
use crate::measure::{Reading, THROUGHPUT, UNKNOWN_SPREAD};
use crate::record::{Member, Tried, Version, Want};

#[test]
fn canaries_of_each_group_come_first() {
    let mut world = World::new(healthy(12), policy(1, 4, 2));
    let outcome = world.run();
    assert!(outcome.is_done && outcome.reason.starts_with("12 hosts changed, 0 are away"), "{outcome:?}");
    let waves: Vec<usize> = world.kept.steps.iter().map(|step| step.wave).collect();
    assert_eq!(waves, [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
    assert_eq!([world.ordered_at("a01"), world.ordered_at("b00")], [Some(0), Some(0)]);
    assert!(
        world.kept.lines.iter().any(|line| line == "canaries good: 2 of 2 changed hosts had enough packets")
    );
}

#[test]
fn worse_canary_rolls_back_with_figures() {
    let mut hosts = healthy(9);
    hosts[1].marks = 5_000;
    let mut world = World::new(hosts, policy(1, 4, 2));
    let outcome = world.run();
    let expected = "a01 has 5000 marked packets per million in the last 60 s; before the change 500, on 7 unchanged hosts 500; \
                    limit 1750 ([gate] marks = { times = 1.5, plus = 1000 })";
    assert_eq!((outcome.is_done, outcome.reason.as_str()), (false, expected));
    let changed: Vec<&String> =
        world.hosts.iter().filter(|(_, host)| host.want.is_some()).map(|(name, _)| name).collect();
    assert_eq!(changed, ["a01", "b00"], "no other host got an order");
    assert!(world.hosts.values().all(|host| host.has.as_ref().is_none_or(|tried| tried.target.version == 0)));
}

/// A rollout whose canaries have just applied the version.
fn canaries(hosts: usize) -> World {
    let mut world = World::new(healthy(hosts), policy(1, 4, 2));
    world.step(0);
    world.obey();
    world.step(0);
    world
}

#[test]
fn silent_canary_is_bad_while_others_send() {
    let mut world = canaries(9);
    for _ in 0..4 {
        world.obey();
        // The host still has QPs, but no packets arrive.
        let seen = &mut world.host("a01").seen.report.rates;
        (seen.data_packets, seen.quiet_ms) = (0, 60_000);
        seen.of.insert(THROUGHPUT.into(), Reading::default());
        world.step(1_000);
    }
    let Phase::Back { reason } = &world.kept.phase else { panic!("{:?}", world.kept.phase) };
    assert!(reason.starts_with("a01 has had no data packet for 60 s"), "{reason}");
}

#[test]
fn canary_without_queue_pairs_is_not_judged() {
    // A job that ended on all hosts, or on the changed hosts only, proves neither harm nor its absence.
    for everywhere in [true, false] {
        let mut world = canaries(9);
        for _ in 0..40 {
            world.obey();
            for (name, host) in &mut world.hosts {
                if everywhere || ["a01", "b00"].contains(&name.as_str()) {
                    let seen = &mut host.seen.report.rates;
                    (seen.data_packets, seen.quiet_ms) = (0, 60_000);
                    seen.queue_pairs = (!everywhere).then_some(0);
                    seen.of.insert(THROUGHPUT.into(), Reading::default());
                }
            }
            world.step(1_000);
        }
        assert!(world.kept.is_paused() && !world.kept.is_over(), "{:?}", world.kept.lines);
        assert!(world.kept.status().contains("too few hosts could be evaluated"));
        world.operate(Event::Resume { by: "ada" });
        let Phase::Forward(forward) = &world.kept.phase else { panic!("{:?}", world.kept.phase) };
        assert_eq!((forward.wave, forward.hold), (1, None), "approved");
    }
}

/// Predicate that selects a moment in a rollout of nine hosts in three waves.
type Moment = fn(&World) -> bool;

fn forward(world: &World) -> Option<&Forward> {
    match &world.kept.phase {
        Phase::Forward(forward) => Some(forward),
        _ => None,
    }
}

const MOMENTS: [(&str, Moment); 7] = [
    ("ordered", |world| matches!(world.state("a01"), State::Sent { .. })),
    ("changed", |world| matches!(world.state("a01"), State::Applied { .. })),
    ("watched", |world| forward(world).is_some_and(|forward| forward.soaked_ms >= 1_000)),
    ("judged", |world| forward(world).is_some_and(|forward| forward.soaked_ms >= 2_000)),
    ("next wave", |world| forward(world).is_some_and(|forward| forward.wave == 1)),
    ("next wave watched", |world| forward(world).is_some_and(|now| now.wave == 1 && now.soaked_ms > 0)),
    ("last wave watched", |world| forward(world).is_some_and(|now| now.wave == 2 && now.soaked_ms > 0)),
];

/// Advances a rollout to `moment`.
fn at(moment: Moment) -> World {
    let mut world = World::new(healthy(9), policy(1, 4, 2));
    world.host("a01").slow = 2;
    for _ in 0..200 {
        world.step(1_000);
        if moment(&world) {
            return world;
        }
        world.obey();
    }
    panic!("moment not reached: {:?}", world.kept);
}

#[test]
fn dead_canary_rolls_back_in_each_phase() {
    for (name, moment) in MOMENTS {
        let mut world = at(moment);
        let wave = forward(&world).map(|forward| forward.wave);
        world.host("a01").is_away = true;
        let outcome = world.run();
        assert!(
            !outcome.is_done && outcome.reason.contains("have not responded for 5 s"),
            "{name}: {outcome:?}"
        );
        let changed = world.kept.steps.iter().filter(|step| world.ordered_at(&step.host).is_some());
        assert_eq!(changed.map(|step| step.wave).max(), wave, "{name}: no wave began while it was silent");
        assert_eq!(world.state("a01"), State::Unheard, "{name}: it goes back when it returns");
    }
}

#[test]
fn dead_canary_does_not_hold_the_rollback() {
    let mut world = at(MOMENTS[3].1);
    world.operate(Event::Abort { by: "ada", why: "" });
    world.step(1_000);
    world.host("a01").is_away = true;
    assert_eq!(world.run().reason, "aborted by ada");
    assert_eq!([world.state("a01"), world.state("b00")], [State::Unheard, State::Returned]);
}

#[test]
fn canary_dead_before_its_turn_pauses() {
    let mut world = World::new(healthy(9), policy(1, 4, 2));
    for name in ["a01", "b00"] {
        world.host(name).is_away = true;
    }
    for _ in 0..20 {
        world.step(1_000);
        world.obey();
    }
    assert!(world.kept.is_paused() && !world.kept.is_over(), "{:?}", world.kept);
    assert_eq!([world.ordered_at("a02"), world.ordered_at("b03")], [None, None], "no canary was judged");
}

#[test]
fn long_outage_in_each_phase_does_no_harm() {
    // A coordinator stopped for ten minutes; or an etcd outage of five, after which agents return one by one.
    for (name, moment) in MOMENTS {
        for (outage_ms, is_lapsed) in [(600_000, false), (300_000, true)] {
            let mut world = at(moment);
            let (clock_ms, wave) = (world.kept.clock_ms, forward(&world).map(|forward| forward.wave));
            let names: Vec<String> = world.hosts.keys().cloned().collect();
            world.hosts.values_mut().for_each(|host| host.is_away = is_lapsed);
            world.step(outage_ms);
            assert!(world.kept.clock_ms - clock_ms <= MOST_ELAPSED_MS, "{name}");
            assert_eq!(
                forward(&world).map(|forward| forward.wave),
                wave,
                "{name}: judged by reports of before"
            );
            for (index, host) in names.iter().enumerate() {
                world.host(host).is_away = false;
                world.obey();
                world.step(if index % 4 == 0 { 1_000 } else { 0 });
            }
            let outcome = world.run();
            assert!(outcome.is_done, "{name}, {outage_ms} ms: {outcome:?}");
        }
    }
}

#[test]
fn host_without_baseline_is_waited_for() {
    let unknown = Reading { value: 1_666, spread: UNKNOWN_SPREAD };
    let mut begun = rates(500);
    begun.of.insert(THROUGHPUT.into(), unknown);
    for (young, name) in [(begun, "few samples"), (Rates::default(), "none")] {
        let report = |world: &mut World| {
            for host in ["a01", "b00"] {
                world.host(host).seen.report.rates = young.clone();
            }
        };
        // Agent recently started: ordered once the baseline is known.
        let mut world = World::new(healthy(9), policy(1, 4, 2));
        for _ in 0..5 {
            report(&mut world);
            world.step(1_000);
        }
        assert_eq!(world.ordered_at("a01"), None, "{name}");
        world.obey();
        world.step(1_000);
        assert_eq!(world.ordered_at("a01"), Some(5), "{name}");
        assert!(world.run().is_done, "{name}");
        // The baseline never becomes known: ordered after the time limit.
        let mut world = World::new(healthy(9), policy(1, 4, 2));
        for _ in 0..16 {
            report(&mut world);
            world.step(1_000);
        }
        assert_eq!(world.ordered_at("a01"), Some(15), "{name}");
        // Without a soak nothing is compared, so no baseline is needed.
        let unwatched = Policy { soak_ms: 0, ..policy(1, 4, 2) };
        let mut world = World::new(healthy(9), unwatched);
        report(&mut world);
        world.step(1_000);
        assert_eq!(world.ordered_at("a01"), Some(0), "{name}");
    }
}

#[test]
fn mixed_agents_are_changed_and_judged() {
    let mut hosts = healthy(9);
    for (index, host) in hosts.iter_mut().enumerate() {
        host.dialect = [Dialect::Older, Dialect::Newer, Dialect::Own][index % 3];
    }
    let mut world = World::new(hosts.clone(), policy(1, 4, 2));
    assert_eq!(world.run().reason, "9 hosts changed, 0 are away and change when they return");
    for canary in [0, 1] {
        let mut hosts = hosts.clone();
        hosts[canary].marks = 5_000;
        let outcome = World::new(hosts, policy(1, 4, 2)).run();
        assert!(!outcome.is_done && outcome.reason.contains("5000 marked packets"), "{canary}: {outcome:?}");
    }
    // A changed host with an unreadable report is silent.
    hosts[1].dialect = Dialect::Unreadable;
    let mut world = World::new(hosts, policy(1, 4, 2));
    assert_eq!(world.run().reason, "8 hosts changed, 1 are away and change when they return");
}

#[test]
fn agent_whose_reports_become_unreadable_is_lost() {
    let mut world = at(MOMENTS[2].1);
    world.host("a01").dialect = Dialect::Unreadable;
    let outcome = world.run();
    assert!(!outcome.is_done && outcome.reason.contains("(a01)"), "{outcome:?}");
}

#[test]
fn canary_whose_reports_stand_still_rolls_back() {
    let mut world = canaries(9);
    world.host("a01").is_stuck = true;
    let outcome = world.run();
    assert!(!outcome.is_done && outcome.reason.contains("have not responded"), "{outcome:?}");
}

#[test]
fn host_dead_in_last_wave_is_not_done() {
    let mut world = World::new(healthy(4), policy(1, 8, 1));
    while world.ordered_at("a02").is_none() {
        world.step(1_000);
        world.obey();
    }
    world.step(0);
    world.host("a02").is_away = true;
    let outcome = world.run();
    // max_unavailable = 1: either the silent host blocks the others, or it is lost at the end.
    assert!(!outcome.is_done || outcome.reason.contains("3 hosts changed, 1 are away"), "{outcome:?}");
}

#[test]
fn outage_is_not_watching_time() {
    let mut world = canaries(9);
    let soaked = |world: &World| match &world.kept.phase {
        Phase::Forward(forward) => forward.soaked_ms,
        phase => panic!("{phase:?}"),
    };
    world.step(600_000);
    assert_eq!((soaked(&world), world.kept.clock_ms), (MOST_ELAPSED_MS, MOST_ELAPSED_MS));
    // The soak is complete, but without new reports there is no evaluation.
    world.step(600_000);
    world.step(1_000);
    assert_eq!(world.ordered_at("a02"), None);
    world.obey();
    world.step(1_000);
    world.step(1_000);
    assert!(world.ordered_at("a02").is_some(), "{:?}", world.kept);
}

#[test]
fn old_complaint_does_not_excuse_a_new_one() {
    let mut hosts = healthy(9);
    hosts[1].failing = vec!["a rival agent".into()];
    let mut world = World::new(hosts, policy(1, 4, 2));
    world.step(0);
    world.obey();
    world.step(0);
    assert!(matches!(world.kept.phase, Phase::Forward(_)), "it complained before");
    world.host("a01").failing.push("eth0 cannot be served".into());
    world.obey();
    world.step(0);
    let Phase::Back { reason } = &world.kept.phase else { panic!("{:?}", world.kept.phase) };
    assert_eq!(reason, "on a01, with version 2: eth0 cannot be served");
}

#[test]
fn harm_on_unchanged_hosts_too_is_not_the_change() {
    let mut world = canaries(9);
    for _ in 0..4 {
        world.obey();
        for host in world.hosts.values_mut() {
            host.seen.report.rates = rates(4_000);
        }
        world.step(1_000);
    }
    assert!(matches!(&world.kept.phase, Phase::Forward(forward) if forward.wave == 1), "{:?}", world.kept);
}

#[test]
fn refusal_rolls_back() {
    let mut hosts = healthy(6);
    hosts[4].refuses = true;
    let outcome = World::new(hosts, policy(1, 2, 1)).run();
    assert_eq!(outcome.reason, "a04 rejects version 2: no");
}

#[test]
fn away_hosts_are_ordered_fifty_at_a_time() {
    let away = || Host { is_away: true, ..Host::default() };
    let mut world = World::new(std::iter::repeat_with(away).take(120).collect(), policy(1, 200, 2));
    for ordered in [50, 100, 120] {
        world.step(1_000);
        assert_eq!(world.hosts.values().filter(|host| host.want.is_some()).count(), ordered);
        let expected = format!("canaries, 0 of 120 hosts changed, {ordered} away");
        assert_eq!(world.kept.status(), expected);
    }
}

#[test]
fn away_host_is_ordered_for_its_return() {
    let mut hosts = healthy(6);
    hosts[4].is_away = true;
    let mut world = World::new(hosts, policy(1, 2, 1));
    assert!(world.run().is_done);
    assert_eq!(world.host("a04").want.as_ref().unwrap().version, 2);
}

#[test]
fn lost_hosts_beyond_max_unavailable_roll_back() {
    let mut world = World::new(healthy(8), policy(1, 8, 2));
    while world.ordered_at("a04").is_none() {
        world.step(1_000);
        world.obey();
    }
    for name in ["a02", "a04", "a05", "a07"] {
        world.host(name).is_away = true;
    }
    let outcome = world.run();
    assert!(outcome.reason.contains("have not responded for 5 s") && !outcome.is_done, "{outcome:?}");
}

#[test]
fn busy_daemon_is_not_lost() {
    let mut world = World::new(healthy(3), policy(1, 2, 1));
    world.step(0);
    let mut hosts = world.reports();
    for seen in hosts.values_mut() {
        seen.report.applying = Some(2);
    }
    for _ in 0..160 {
        world.tick(0, 2_000, &hosts, 9, false);
    }
    assert!(matches!(world.kept.phase, Phase::Forward(_)), "320 s: {:?}", world.kept.phase);
    for _ in 0..10 {
        world.tick(0, 2_000, &hosts, 9, false);
    }
    assert!(!matches!(world.kept.phase, Phase::Forward(_)), "more than the daemon may take");
}

#[test]
fn lost_host_reports_why() {
    let mut world = World::new(healthy(3), policy(1, 2, 1));
    world.step(0);
    world.host("a01").failing = vec!["another trial is under way".into()];
    world.host("a01").slow = 100;
    world.host("a01").due = 100;
    let outcome = world.run();
    assert!(outcome.reason.ends_with("; a01 reports: another trial is under way"), "{outcome:?}");
}

#[test]
fn pause_stops_new_changes_and_nothing_else() {
    let mut world = World::new(healthy(6), policy(1, 2, 1));
    world.step(0);
    world.obey();
    world.operate(Event::Pause { by: "ada" });
    let orders = |world: &World| world.orders.iter().flatten().count();
    let before = orders(&world);
    for _ in 0..50 {
        world.step(1_000);
        world.obey();
    }
    assert_eq!(orders(&world), before);
    assert!(world.kept.is_paused() && !world.kept.is_over());
    // A rejection during the pause still rolls back.
    let mut refused = world.kept.clone();
    let mut hosts = world.reports();
    let target = refused.steps[0].target.clone();
    let host = refused.steps[0].host.clone();
    hosts.get_mut(&host).unwrap().report.tried = Some(Tried { target, error: Some("no".into()) });
    (refused, _) = next(refused, Event::Tick { elapsed_ms: 0, hosts: &hosts, revision: 99 });
    assert!(matches!(refused.phase, Phase::Back { .. }), "{:?}", refused.phase);
    world.operate(Event::Resume { by: "ada" });
    world.step(1_000);
    assert!(orders(&world) > before);
    world.operate(Event::Abort { by: "bob", why: "a mistake" });
    let outcome = world.run();
    assert_eq!((outcome.is_done, outcome.reason.as_str()), (false, "aborted by bob: a mistake"));
}

#[test]
fn unchanged_text_is_not_rolled_out() {
    let members: BTreeMap<String, Member> =
        ["a1", "a2"].map(|name| (name.to_owned(), Member::default())).into();
    let version = version(policy(1, 4, 1));
    let group = &version.groups[0];
    let [by, why] = [const { String::new() }; 2];
    let target = Target { version: 1, ..version.target(Some(group)) };
    let wants = BTreeMap::from([("a1".to_owned(), Want { target, by, why })]);
    let rollout = plan(&version, &members, &wants, &BTreeMap::new());
    assert_eq!(rollout.steps.iter().map(|step| step.host.as_str()).collect::<Vec<_>>(), ["a2"]);
    let none = plan(&Version::none(), &members, &BTreeMap::new(), &BTreeMap::new());
    assert!(none.is_over());
}

/// A rollout aborted in the last of three waves. A canary rejects its rollback, and a host of the second wave may be away.
fn aborted(refuses_back: usize, is_away: bool) -> World {
    let mut world = World::new(healthy(6), policy(1, 2, 2));
    while world.ordered_at("a05").is_none() {
        world.step(1_000);
        world.obey();
    }
    world.host("a01").refuses_back = refuses_back;
    world.host("a02").is_away = is_away;
    world.operate(Event::Abort { by: "ada", why: "" });
    assert!(!world.run().is_done);
    world
}

#[test]
fn host_that_refuses_to_go_back_holds_no_other() {
    for (refuses, is_away, state) in [
        (0, false, State::Returned),
        (4, false, State::Returned),
        (6, false, State::Unheard),
        // Rejects for longer than the time limit, while the rollback waits for another host.
        (6, true, State::Returned),
        (usize::MAX, true, State::Unheard),
    ] {
        let world = aborted(refuses, is_away);
        let away = if is_away { State::Unheard } else { State::Returned };
        let of = |host: &str| world.state(host);
        assert_eq!((of("a01"), of("a02"), of("a05")), (state, away, State::Returned), "{refuses}, {is_away}");
        let back = |host: &str| {
            let is_back = |(name, target): &(String, Target)| name == host && target.version == 0;
            world.orders.iter().position(|orders| orders.iter().any(is_back)).unwrap()
        };
        assert_eq!(back("a04") - back("a01"), 1, "{refuses}: the next wave does not wait for it");
        let lines = &world.kept.lines;
        let said = lines.iter().filter(|line| *line == "a01 cannot roll back to version 0: no").count();
        assert_eq!(said, usize::from(refuses > 0), "{lines:?}");
        let unheard = [state, away].iter().filter(|state| **state == State::Unheard).count();
        assert!(lines.last().unwrap().contains(&format!("; {unheard} have not")), "{lines:?}");
    }
}

#[test]
fn largest_rollout_fits_its_records() {
    let long = "x".repeat(10_000);
    let mut rollout = World::new(healthy(3), policy(1, 2, 1)).kept;
    rollout.why = "y".repeat(500);
    let mut effects = Vec::new();
    (0..1_000).for_each(|_| rollout.say(long.clone(), &mut effects));
    rollout.fail(long, &mut effects);
    assert!(serde_json::to_string(&rollout).unwrap().len() < 1 << 18);
}

#[test]
fn hosts_with_a_baseline_become_canaries() {
    let mut world = World::new(vec![Host::default(); 9], policy(1, 4, 1));
    for name in ["a01", "b00"] {
        world.host(name).seen.report.rates = Rates::default();
    }
    let unknown = Reading { value: 1_666, spread: UNKNOWN_SPREAD };
    world.host("a02").seen.report.rates.of.insert(THROUGHPUT.into(), unknown);
    let members = world.hosts.keys().map(|name| (name.clone(), Member::default())).collect();
    let rollout = plan(&version(policy(1, 4, 1)), &members, &BTreeMap::new(), &world.reports());
    let canaries: Vec<&str> =
        rollout.steps.iter().filter(|step| step.wave == 0).map(|step| step.host.as_str()).collect();
    assert_eq!(canaries, ["a04", "b03"]);
}
