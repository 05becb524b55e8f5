//! Rollouts of a simulated fleet, one condition each.

use super::simulated::{Dialect, Host, SimulatedFleet, healthy, policy, rates, version};
use super::*;

#[test]
fn canaries_of_each_group_come_first() {
    let mut fleet = SimulatedFleet::new(healthy(12), policy(1, 4, 2));
    let outcome = fleet.run();
    assert!(outcome.is_done && outcome.reason == "12 hosts changed", "{outcome:?}");
    let waves: Vec<usize> = fleet.stored.steps.iter().map(|step| step.wave).collect();
    assert_eq!(waves, [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
    assert_eq!([fleet.ordered_at("a01"), fleet.ordered_at("b00")], [Some(0), Some(0)]);
    assert!(fleet.has_line("canaries good: 2 of 2 changed hosts had enough packets"));
}

#[test]
fn degraded_canary_rolls_back_with_metrics() {
    let mut hosts = healthy(9);
    hosts[1].marks = 5_000;
    let mut fleet = SimulatedFleet::new(hosts, policy(1, 4, 2));
    let outcome = fleet.run();
    let expected = "a01 has 5000 marked packets per million in the last 60 s; before the change 500, on 7 unchanged hosts 500; \
                    limit 1750 ([gate] marks = { times = 1.5, plus = 1000 })";
    assert_eq!((outcome.is_done, outcome.reason.as_str()), (false, expected));
    let changed: Vec<&String> =
        fleet.hosts.iter().filter(|(_, host)| host.desired.is_some()).map(|(name, _)| name).collect();
    assert_eq!(changed, ["a01", "b00"], "no other host got an order");
    assert!(fleet.hosts.values().all(|host| host.has.as_ref().is_none_or(|tried| tried.target.version == 0)));
}

/// A rollout whose canaries have just applied the version.
fn canaries(hosts: usize) -> SimulatedFleet {
    let mut fleet = SimulatedFleet::new(healthy(hosts), policy(1, 4, 2));
    fleet.begin();
    fleet
}

#[test]
fn away_host_not_ordered_beyond_limit() {
    let mut fleet = SimulatedFleet::new(healthy(4), policy(0, 4, 1));
    fleet.begin();
    assert_eq!([fleet.ordered_at("a01"), fleet.ordered_at("a02")], [Some(0), Some(1)]);
    // A changed host falls silent while another one changes; a third one that is away may return at any time.
    (fleet.host("a01").is_away, fleet.host("b03").is_away) = (true, true);
    fleet.step(0);
    assert_eq!(fleet.ordered_at("b03"), None);
    fleet.host("a01").is_away = false;
    let outcome = fleet.run();
    assert!(outcome.is_done && outcome.reason.starts_with("3 hosts changed, 1 away"), "{outcome:?}");
    assert!(fleet.ordered_at("b03").is_some());
}

fn silence(host: &mut Host) {
    let rates = &mut host.seen.report.rates;
    (rates.data_packets, rates.quiet_ms) = (0, 60_000);
    rates.of.insert(THROUGHPUT.into(), Reading::default());
}

#[test]
fn silent_canary_is_harm_while_others_send() {
    let mut fleet = canaries(9);
    // The host still has QPs, but no packets arrive.
    fleet.report_turns(4, |name, host| {
        if name == "a01" {
            silence(host)
        }
    });
    assert!(fleet.back().starts_with("a01 has had no data packet for 60 s"), "{}", fleet.back());
}

#[test]
fn canary_without_qps_is_not_evaluated() {
    // A job that ended on all hosts, or on the changed hosts only, proves neither harm nor its absence.
    for everywhere in [true, false] {
        let mut fleet = canaries(9);
        fleet.report_turns(40, |name, host| {
            if everywhere || ["a01", "b00"].contains(&name) {
                silence(host);
                host.seen.report.rates.queue_pairs = (!everywhere).then_some(0);
            }
        });
        assert!(fleet.stored.is_paused() && !fleet.stored.is_over(), "{:?}", fleet.stored.lines);
        assert!(fleet.stored.status().contains("too few hosts could be evaluated"));
        fleet.operate(Event::Resume { by: "ada" });
        assert_eq!(fleet.wave_and_hold(), Some((1, None)), "approved");
    }
}

/// A pause stays one although the hosts cannot be evaluated in the meantime: its end approves nothing.
#[test]
fn resume_of_a_pause_approves_no_wave() {
    let mut fleet = canaries(9);
    fleet.operate(Event::Pause { by: "ada" });
    fleet.report_turns(40, |_, host| silence(host));
    assert_eq!(fleet.wave_and_hold(), Some((0, Some(Hold::Operator))));
    fleet.operate(Event::Resume { by: "bob" });
    assert_eq!(fleet.wave_and_hold(), Some((0, None)));
    fleet.report_turns(40, |_, host| silence(host));
    assert_eq!(fleet.wave_and_hold(), Some((0, Some(Hold::Unjudged))));
    fleet.operate(Event::Resume { by: "bob" });
    assert_eq!(fleet.wave_and_hold(), Some((1, None)));
    assert!(fleet.has_line("canaries good: approved by bob"));
}

/// Predicate that selects a moment in a rollout of nine hosts in three waves.
type RolloutState = fn(&SimulatedFleet) -> bool;

const MOMENTS: [(&str, RolloutState); 7] = [
    ("ordered", |fleet| matches!(fleet.state("a01"), State::Sent { .. })),
    ("changed", |fleet| matches!(fleet.state("a01"), State::Applied { .. })),
    ("watched", |fleet| fleet.forward().is_some_and(|forward| forward.soaked_ms >= 1_000)),
    ("judged", |fleet| fleet.forward().is_some_and(|forward| forward.soaked_ms >= 2_000)),
    ("next wave", |fleet| fleet.forward().is_some_and(|forward| forward.wave == 1)),
    ("next wave watched", |fleet| fleet.forward().is_some_and(|now| now.wave == 1 && now.soaked_ms > 0)),
    ("last wave watched", |fleet| fleet.forward().is_some_and(|now| now.wave == 2 && now.soaked_ms > 0)),
];

fn at(moment: RolloutState) -> SimulatedFleet {
    let mut fleet = SimulatedFleet::new(healthy(9), policy(1, 4, 2));
    fleet.host("a01").slow = 2;
    for _ in 0..200 {
        fleet.step(1_000);
        if moment(&fleet) {
            return fleet;
        }
        fleet.apply_orders();
    }
    panic!("moment not reached: {:?}", fleet.stored);
}

#[test]
fn dead_canary_rolls_back_in_each_phase() {
    for (name, moment) in MOMENTS {
        let mut fleet = at(moment);
        let wave = fleet.forward().map(|forward| forward.wave);
        fleet.host("a01").is_away = true;
        let outcome = fleet.run();
        let is_lost = outcome.reason.contains("for 5 s since the change");
        assert!(!outcome.is_done && is_lost, "{name}: {outcome:?}");
        let changed = fleet.stored.steps.iter().filter(|step| fleet.ordered_at(&step.host).is_some());
        assert_eq!(changed.map(|step| step.wave).max(), wave, "{name}: no wave began while it was silent");
        assert_eq!(fleet.state("a01"), State::Unheard, "{name}: it goes back when it returns");
    }
}

#[test]
fn dead_canary_does_not_block_rollback() {
    let mut fleet = at(MOMENTS[3].1);
    fleet.operate(Event::Abort { by: "ada", why: "" });
    fleet.step(1_000);
    fleet.host("a01").is_away = true;
    assert_eq!(fleet.run().reason, "aborted by ada");
    assert_eq!([fleet.state("a01"), fleet.state("b00")], [State::Unheard, State::Returned]);
}

#[test]
fn canary_dead_before_its_turn_pauses() {
    let mut fleet = SimulatedFleet::new(healthy(9), policy(1, 4, 2));
    for name in ["a01", "b00"] {
        fleet.host(name).is_away = true;
    }
    fleet.turns(20);
    assert!(fleet.stored.is_paused() && !fleet.stored.is_over(), "{:?}", fleet.stored);
    assert_eq!([fleet.ordered_at("a02"), fleet.ordered_at("b03")], [None, None], "no canary was evaluated");
}

#[test]
fn long_outage_in_each_phase_is_harmless() {
    // A coordinator stopped for ten minutes; or an etcd outage of five, after which agents return one by one.
    for (name, moment) in MOMENTS {
        for (outage_ms, is_lapsed) in [(600_000, false), (300_000, true)] {
            let mut fleet = at(moment);
            let (clock_ms, wave) = (fleet.stored.clock_ms, fleet.forward().map(|forward| forward.wave));
            let names: Vec<String> = fleet.hosts.keys().cloned().collect();
            fleet.hosts.values_mut().for_each(|host| host.is_away = is_lapsed);
            fleet.step(outage_ms);
            assert!(fleet.stored.clock_ms - clock_ms <= MOST_ELAPSED_MS, "{name}");
            assert_eq!(fleet.forward().map(|now| now.wave), wave, "{name}: evaluated with old reports");
            for (index, host) in names.iter().enumerate() {
                fleet.host(host).is_away = false;
                fleet.apply_orders();
                fleet.step(if index % 4 == 0 { 1_000 } else { 0 });
            }
            let outcome = fleet.run();
            assert!(outcome.is_done, "{name}, {outage_ms} ms: {outcome:?}");
        }
    }
}

#[test]
fn rollout_waits_for_baseline() {
    let unknown = Reading { value: 1_666, spread: UNKNOWN_SPREAD };
    let mut begun = rates(500);
    begun.of.insert(THROUGHPUT.into(), unknown);
    for (young, name) in [(begun, "few samples"), (Rates::default(), "none")] {
        let report = |fleet: &mut SimulatedFleet| {
            for host in ["a01", "b00"] {
                fleet.host(host).seen.report.rates = young.clone();
            }
        };
        // Agent recently started: ordered once the baseline is known.
        let mut fleet = SimulatedFleet::new(healthy(9), policy(1, 4, 2));
        for _ in 0..5 {
            report(&mut fleet);
            fleet.step(1_000);
        }
        assert_eq!(fleet.ordered_at("a01"), None, "{name}");
        fleet.apply_orders();
        fleet.step(1_000);
        assert_eq!(fleet.ordered_at("a01"), Some(5), "{name}");
        assert!(fleet.run().is_done, "{name}");
        // The baseline never becomes known: ordered after the time limit.
        let mut fleet = SimulatedFleet::new(healthy(9), policy(1, 4, 2));
        for _ in 0..16 {
            report(&mut fleet);
            fleet.step(1_000);
        }
        assert_eq!(fleet.ordered_at("a01"), Some(15), "{name}");
        // Without a soak nothing is compared, so no baseline is needed.
        let unwatched = Policy { soak_ms: 0, ..policy(1, 4, 2) };
        let mut fleet = SimulatedFleet::new(healthy(9), unwatched);
        report(&mut fleet);
        fleet.step(1_000);
        assert_eq!(fleet.ordered_at("a01"), Some(0), "{name}");
    }
}

#[test]
fn mixed_agent_versions_are_evaluated() {
    let mut hosts = healthy(9);
    for (index, host) in hosts.iter_mut().enumerate() {
        host.dialect = [Dialect::Older, Dialect::Newer, Dialect::Own][index % 3];
    }
    let mut fleet = SimulatedFleet::new(hosts.clone(), policy(1, 4, 2));
    assert_eq!(fleet.run().reason, "9 hosts changed");
    for canary in [0, 1] {
        let mut hosts = hosts.clone();
        hosts[canary].marks = 5_000;
        let outcome = SimulatedFleet::new(hosts, policy(1, 4, 2)).run();
        assert!(!outcome.is_done && outcome.reason.contains("5000 marked packets"), "{canary}: {outcome:?}");
    }
    // A changed host with an unreadable report is silent.
    hosts[1].dialect = Dialect::Unreadable;
    let mut fleet = SimulatedFleet::new(hosts, policy(1, 4, 2));
    assert_eq!(fleet.run().reason, "8 hosts changed, 1 away; to change on return");
}

#[test]
fn agent_with_unreadable_reports_is_lost() {
    let mut fleet = at(MOMENTS[2].1);
    fleet.host("a01").dialect = Dialect::Unreadable;
    let outcome = fleet.run();
    assert!(!outcome.is_done && outcome.reason.contains("(a01)"), "{outcome:?}");
}

#[test]
fn canary_with_stale_reports_rolls_back() {
    let mut fleet = canaries(9);
    fleet.host("a01").is_stuck = true;
    let outcome = fleet.run();
    assert!(!outcome.is_done && outcome.reason.contains("no response from"), "{outcome:?}");
}

#[test]
fn host_dead_in_last_wave_is_not_done() {
    let mut fleet = SimulatedFleet::new(healthy(4), policy(1, 8, 1));
    fleet.turn_until_ordered("a02");
    fleet.step(0);
    fleet.host("a02").is_away = true;
    let outcome = fleet.run();
    // max_unavailable = 1: either the silent host blocks the others, or it is lost at the end.
    assert!(!outcome.is_done || outcome.reason.contains("3 hosts changed, 1 away"), "{outcome:?}");
}

#[test]
fn outage_does_not_count_as_soak() {
    let mut fleet = canaries(9);
    fleet.step(600_000);
    let soaked_ms = fleet.forward().map(|forward| forward.soaked_ms);
    assert_eq!((soaked_ms, fleet.stored.clock_ms), (Some(MOST_ELAPSED_MS), MOST_ELAPSED_MS));
    // The soak is complete, but without new reports there is no evaluation.
    fleet.step(600_000);
    fleet.step(1_000);
    assert_eq!(fleet.ordered_at("a02"), None);
    fleet.apply_orders();
    fleet.step(1_000);
    fleet.step(1_000);
    assert!(fleet.ordered_at("a02").is_some(), "{:?}", fleet.stored);
}

#[test]
fn old_error_does_not_hide_new_error() {
    let mut hosts = healthy(9);
    hosts[1].failing = vec!["eth1: a rival agent, process 6".into()];
    let mut fleet = SimulatedFleet::new(hosts, policy(1, 4, 2));
    fleet.begin();
    assert!(fleet.forward().is_some(), "it complained before");
    // With another number it is the same problem; on another interface it is not.
    fleet.host("a01").failing = vec!["eth1: a rival agent, process 17".into()];
    fleet.step(0);
    assert!(fleet.forward().is_some(), "{:?}", fleet.stored.phase);
    fleet.host("a01").failing.push("eth0: a rival agent, process 17".into());
    fleet.apply_orders();
    fleet.step(0);
    assert_eq!(fleet.back(), "on a01, with version 2: eth0: a rival agent, process 17");
}

#[test]
fn harm_on_all_hosts_does_not_roll_back() {
    let mut fleet = canaries(9);
    fleet.report_turns(4, |_, host| host.seen.report.rates = rates(4_000));
    assert!(fleet.forward().is_some_and(|forward| forward.wave == 1), "{:?}", fleet.stored);
}

#[test]
fn rejection_rolls_back() {
    let mut hosts = healthy(6);
    hosts[4].refuses = true;
    let outcome = SimulatedFleet::new(hosts, policy(1, 2, 1)).run();
    assert_eq!(outcome.reason, "a04 rejects version 2: no");
}

#[test]
fn absent_hosts_ordered_fifty_at_a_time() {
    let away = || Host { is_away: true, ..Host::default() };
    let mut fleet = SimulatedFleet::new(std::iter::repeat_with(away).take(120).collect(), policy(1, 200, 2));
    for ordered in [50, 100, 120] {
        fleet.step(1_000);
        assert_eq!(fleet.hosts.values().filter(|host| host.desired.is_some()).count(), ordered);
        let expected = format!("canaries, 0 of 120 hosts changed, {ordered} away");
        assert_eq!(fleet.stored.status(), expected);
    }
}

#[test]
fn absent_host_gets_order_for_its_return() {
    let mut hosts = healthy(6);
    hosts[4].is_away = true;
    let mut fleet = SimulatedFleet::new(hosts, policy(1, 2, 1));
    assert!(fleet.run().is_done);
    assert_eq!(fleet.host("a04").desired.as_ref().unwrap().version, 2);
}

#[test]
fn lost_hosts_beyond_max_unavailable_roll_back() {
    let mut fleet = SimulatedFleet::new(healthy(8), policy(1, 8, 2));
    fleet.turn_until_ordered("a04");
    for name in ["a02", "a04", "a05", "a07"] {
        fleet.host(name).is_away = true;
    }
    let outcome = fleet.run();
    assert!(outcome.reason.contains("for 5 s since the change") && !outcome.is_done, "{outcome:?}");
}

#[test]
fn busy_daemon_is_not_lost() {
    let mut fleet = SimulatedFleet::new(healthy(3), policy(1, 2, 1));
    fleet.step(0);
    let mut hosts = fleet.reports();
    for seen in hosts.values_mut() {
        seen.report.applying = Some(2);
    }
    for _ in 0..160 {
        fleet.tick(0, 2_000, &hosts, 9, false);
    }
    assert!(fleet.forward().is_some(), "320 s: {:?}", fleet.stored.phase);
    for _ in 0..10 {
        fleet.tick(0, 2_000, &hosts, 9, false);
    }
    assert!(fleet.forward().is_none(), "more than the daemon may take");
}

#[test]
fn lost_host_reports_why() {
    let mut fleet = SimulatedFleet::new(healthy(3), policy(1, 2, 1));
    fleet.step(0);
    fleet.host("a01").failing = vec!["another trial is under way".into()];
    fleet.host("a01").slow = 100;
    fleet.host("a01").due = 100;
    let outcome = fleet.run();
    assert!(outcome.reason.ends_with("; a01 reports: another trial is under way"), "{outcome:?}");
}

#[test]
fn pause_stops_only_new_changes() {
    let mut fleet = SimulatedFleet::new(healthy(6), policy(1, 2, 1));
    fleet.step(0);
    fleet.apply_orders();
    fleet.operate(Event::Pause { by: "ada" });
    let orders = |fleet: &SimulatedFleet| fleet.orders.iter().flatten().count();
    let before = orders(&fleet);
    fleet.turns(50);
    assert_eq!(orders(&fleet), before);
    assert!(fleet.stored.is_paused() && !fleet.stored.is_over());
    // A rejection during the pause still rolls back.
    let mut refused = fleet.stored.clone();
    let mut hosts = fleet.reports();
    let target = refused.steps[0].target.clone();
    let host = refused.steps[0].host.clone();
    hosts.get_mut(&host).unwrap().report.tried = Some(Tried { target, error: Some("no".into()) });
    (refused, _) = next(refused, Event::Tick { elapsed_ms: 0, hosts: &hosts, revision: 99 });
    assert!(matches!(refused.phase, Phase::Back { .. }), "{:?}", refused.phase);
    fleet.operate(Event::Resume { by: "ada" });
    fleet.step(1_000);
    assert!(orders(&fleet) > before);
    fleet.operate(Event::Abort { by: "bob", why: "a mistake" });
    let outcome = fleet.run();
    assert_eq!((outcome.is_done, outcome.reason.as_str()), (false, "aborted by bob: a mistake"));
}

#[test]
fn unchanged_text_is_not_rolled_out() {
    let members: BTreeMap<String, Member> =
        ["a1", "a2"].map(|name| (name.to_owned(), Member::default())).into();
    let version = version(policy(1, 4, 1));
    let group = &version.groups[0];
    let target = Target { version: 1, ..version.target(Some(group)) };
    let desired = DesiredConfig { target, ..DesiredConfig::default() };
    let desired_configs = BTreeMap::from([("a1".to_owned(), desired)]);
    let rollout = plan(&version, &members, &desired_configs, &BTreeMap::new());
    assert_eq!(rollout.steps.iter().map(|step| step.host.as_str()).collect::<Vec<_>>(), ["a2"]);
    let none = plan(&Version::default(), &members, &BTreeMap::new(), &BTreeMap::new());
    assert!(none.is_over());
}

/// A rollout aborted in the last of three waves. A canary rejects its rollback, and a host of the second wave
/// may be away.
fn aborted(refuses_back: usize, is_away: bool) -> SimulatedFleet {
    let mut fleet = SimulatedFleet::new(healthy(6), policy(1, 2, 2));
    fleet.turn_until_ordered("a05");
    fleet.host("a01").refuses_back = refuses_back;
    fleet.host("a02").is_away = is_away;
    fleet.operate(Event::Abort { by: "ada", why: "" });
    assert!(!fleet.run().is_done);
    fleet
}

#[test]
fn rejected_rollback_blocks_no_other_host() {
    for (refuses, is_away, state) in [
        (0, false, State::Returned),
        (4, false, State::Returned),
        (6, false, State::Unheard),
        // Rejects for longer than the time limit, while the rollback waits for another host.
        (6, true, State::Returned),
        (usize::MAX, true, State::Unheard),
    ] {
        let fleet = aborted(refuses, is_away);
        let away = if is_away { State::Unheard } else { State::Returned };
        let of = |host: &str| fleet.state(host);
        assert_eq!((of("a01"), of("a02"), of("a05")), (state, away, State::Returned), "{refuses}, {is_away}");
        let back = |host: &str| {
            let is_back = |(name, target): &(String, Target)| name == host && target.version == 0;
            fleet.orders.iter().position(|orders| orders.iter().any(is_back)).unwrap()
        };
        assert_eq!(back("a04") - back("a01"), 1, "{refuses}: the next wave does not wait for it");
        let lines = &fleet.stored.lines;
        let failures = lines.iter().filter(|line| *line == "a01 cannot roll back to version 0: no").count();
        assert_eq!(failures, usize::from(refuses > 0), "{lines:?}");
        let unheard = [state, away].iter().filter(|state| **state == State::Unheard).count();
        let last = match unheard {
            0 => "all changed hosts have rolled back".to_owned(),
            unheard => format!("all hosts ordered to roll back; still retrying: {}", count(unheard, "host")),
        };
        assert_eq!(*lines.last().unwrap(), last);
    }
}

#[test]
fn largest_rollout_fits_its_records() {
    let long = "x".repeat(10_000);
    let mut rollout = SimulatedFleet::new(healthy(3), policy(1, 2, 1)).stored;
    rollout.why = "y".repeat(500);
    let mut effects = Vec::new();
    (0..1_000).for_each(|_| rollout.add_message(long.clone(), &mut effects));
    rollout.fail(long, &mut effects);
    assert!(serde_json::to_string(&rollout).unwrap().len() < 1 << 18);
}

#[test]
fn hosts_with_a_baseline_become_canaries() {
    let mut fleet = SimulatedFleet::new(vec![Host::default(); 9], policy(1, 4, 1));
    for name in ["a01", "b00"] {
        fleet.host(name).seen.report.rates = Rates::default();
    }
    let unknown = Reading { value: 1_666, spread: UNKNOWN_SPREAD };
    fleet.host("a02").seen.report.rates.of.insert(THROUGHPUT.into(), unknown);
    let members = fleet.hosts.keys().map(|name| (name.clone(), Member::default())).collect();
    let rollout = plan(&version(policy(1, 4, 1)), &members, &BTreeMap::new(), &fleet.reports());
    let canaries: Vec<&str> =
        rollout.steps.iter().filter(|step| step.wave == 0).map(|step| step.host.as_str()).collect();
    assert_eq!(canaries, ["a04", "b03"]);
}
