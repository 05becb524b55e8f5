//! Rollouts in simulated fleets: hosts that answer, refuse, get worse and go away, and coordinators that die at any step.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::file::{Gate, Group, Labels, Wave};
use crate::record::{Member, Tried, Version, Want};

/// A host that does what it is told, as long as it is there.
#[derive(Clone, Debug, Default)]
struct Host {
    is_away: bool,
    refuses: bool,
    /// It refuses so many times to go back, and tries again each turn.
    refuses_back: usize,
    /// What it counts with version 2.
    marks: u64,
    want: Option<Target>,
    has: Option<Tried>,
    /// Answers this many turns late.
    slow: usize,
    due: usize,
}

struct World {
    hosts: BTreeMap<String, Host>,
    /// What etcd has.
    kept: Rollout,
    /// What each step told, in order.
    told: Vec<Vec<Send>>,
}

pub(super) fn policy(canary: usize, wave: usize, max_unavailable: usize) -> Policy {
    Policy {
        canary,
        wave: Wave::Hosts(wave),
        max_unavailable,
        soak_ms: 3_000,
        patience_ms: 5_000,
        gate: Gate::default(),
    }
}

pub(super) fn version(policy: Policy) -> Version {
    let group = |name: &str, hosts: &str| Group {
        name: name.into(),
        hosts: vec![hosts.into()],
        labels: Labels::new(),
        text: format!("of {name}"),
    };
    let groups = vec![group("a", "a*"), group("b", "b*")];
    Version { version: 2, policy, groups, by: "ada".into(), ..Version::none() }
}

fn rates(marks: u64) -> Rates {
    Rates { window_ms: 60_000, data_packets: 100_000, marks, ..Rates::default() }
}

impl World {
    fn new(hosts: Vec<Host>, policy: Policy) -> Self {
        let name = |index: usize| format!("{}{index:02}", if index.is_multiple_of(3) { "b" } else { "a" });
        let hosts: BTreeMap<String, Host> =
            hosts.into_iter().enumerate().map(|(index, host)| (name(index), host)).collect();
        let members = hosts.keys().map(|name| (name.clone(), Member { labels: Labels::new() })).collect();
        let mut world = Self { hosts, kept: empty(), told: Vec::new() };
        world.kept = plan(&version(policy), &members, &BTreeMap::new(), &world.reports());
        world
    }

    fn reports(&self) -> BTreeMap<String, Report> {
        let there = self.hosts.iter().filter(|(_, host)| !host.is_away);
        let report = |host: &Host| {
            let is_new = host.has.as_ref().is_some_and(|tried| tried.version == 2 && tried.error.is_none());
            Report {
                tried: host.has.clone(),
                rates: rates(if is_new { host.marks } else { 500 }),
                ..Report::default()
            }
        };
        there.map(|(name, host)| (name.clone(), report(host))).collect()
    }

    /// A step of a coordinator that dies before it has written anything if `dies`.
    fn step(&mut self, elapsed_ms: u64, dies: bool) {
        let mut next = self.kept.clone();
        let sends = next.step(elapsed_ms, &self.reports());
        if dies {
            return;
        }
        for send in &sends {
            let host = self.hosts.get_mut(&send.host).unwrap();
            host.want = Some(send.target.clone());
            host.due = host.slow;
        }
        self.kept = next;
        self.told.push(sends);
    }

    /// Hosts that are there do what they are told.
    fn obey(&mut self) {
        for host in self.hosts.values_mut().filter(|host| !host.is_away) {
            host.due = host.due.saturating_sub(1);
            if let Some(want) = host.want.as_ref().filter(|_| host.due == 0) {
                let goes_back = host.refuses_back > 0 && want.version == 0;
                host.refuses_back -= usize::from(goes_back);
                let refuses = goes_back || host.refuses && want.version == 2;
                host.has = Some(Tried { version: want.version, error: refuses.then(|| "no".into()) });
            }
        }
    }

    /// Steps until it is over.
    fn run(&mut self) -> Outcome {
        for _ in 0..2_000 {
            self.step(1_000, false);
            self.obey();
            if let Some(outcome) = self.kept.outcome() {
                return outcome;
            }
        }
        panic!("it does not end: {:?}", self.kept);
    }

    /// In which step each host was first told version 2.
    fn told_at(&self, host: &str) -> Option<usize> {
        self.told
            .iter()
            .position(|sends| sends.iter().any(|send| send.host == host && send.target.version == 2))
    }
}

fn empty() -> Rollout {
    plan(&Version::none(), &BTreeMap::new(), &BTreeMap::new(), &BTreeMap::new())
}

fn healthy(count: usize) -> Vec<Host> {
    vec![Host { marks: 500, ..Host::default() }; count]
}

#[test]
fn canaries_of_each_group_are_first_and_the_rest_follows_in_waves() {
    let mut world = World::new(healthy(12), policy(1, 4, 2));
    let outcome = world.run();
    assert!(outcome.is_done && outcome.reason.starts_with("12 hosts changed, 0 are away"), "{outcome:?}");
    let waves: Vec<usize> = world.kept.steps.iter().map(|step| step.wave).collect();
    assert_eq!(waves, [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
    assert_eq!([world.told_at("a01"), world.told_at("b00")], [Some(0), Some(0)]);
    assert!(world.kept.lines.iter().any(|line| line.contains("canaries good: 2 of 2 changed hosts")));
}

#[test]
fn worse_marks_on_a_canary_take_it_back_and_say_so_with_figures() {
    let mut hosts = healthy(9);
    hosts[1].marks = 5_000;
    let mut world = World::new(hosts, policy(1, 4, 2));
    let outcome = world.run();
    let expected = "a01 has 5000 marked packets in a million in the last 60 s; before it was 500, 500 on 7 hosts that are not \
                    changed; allowed are 1750 ([gate] marks = { times = 1.5, plus = 1000 })";
    assert_eq!((outcome.is_done, outcome.reason.as_str()), (false, expected));
    let changed: Vec<&String> =
        world.hosts.iter().filter(|(_, host)| host.want.is_some()).map(|(name, _)| name).collect();
    assert_eq!(changed, ["a01", "b00"], "no other host was told anything");
    assert!(world.hosts.values().all(|host| host.has.as_ref().is_none_or(|tried| tried.version == 0)));
}

#[test]
fn what_gets_worse_everywhere_is_not_the_changes_fault() {
    let mut world = World::new(healthy(9), policy(1, 4, 2));
    for host in world.hosts.values_mut() {
        host.marks = 4_000;
    }
    // Also on hosts that are not changed.
    let mut next = world.kept.clone();
    next.step(0, &world.reports());
    let mut reports = world.reports();
    for report in reports.values_mut() {
        report.rates = rates(4_000);
        report.tried = Some(Tried { version: 2, error: None });
    }
    next.step(0, &reports);
    next.step(3_000, &reports);
    assert_eq!(next.phase, Phase::Forward { wave: 1, soaked_ms: 0 }, "{next:?}");
}

#[test]
fn a_refusal_ends_it_and_a_host_that_is_away_gets_it_later() {
    let mut hosts = healthy(6);
    hosts[4].refuses = true;
    let outcome = World::new(hosts, policy(1, 2, 1)).run();
    assert_eq!(outcome.reason, "a04 refuses version 2: no");
    let mut hosts = healthy(6);
    hosts[4].is_away = true;
    let mut world = World::new(hosts, policy(1, 2, 1));
    assert!(world.run().is_done);
    let away = world.hosts.get_mut("a04").unwrap();
    assert_eq!(away.want.as_ref().unwrap().version, 2, "it is told when it is back");
}

#[test]
fn hosts_that_fall_silent_end_it_when_there_are_too_many() {
    let mut world = World::new(healthy(8), policy(1, 8, 2));
    while world.told_at("a04").is_none() {
        world.step(1_000, false);
        world.obey();
    }
    for name in ["a02", "a04", "a05", "a07"] {
        world.hosts.get_mut(name).unwrap().is_away = true;
    }
    let outcome = world.run();
    assert!(outcome.reason.contains("have not answered for 5 s") && !outcome.is_done, "{outcome:?}");
}

#[test]
fn one_whose_controller_is_busy_for_too_long_has_its_own_words_in_the_reason() {
    let mut world = World::new(healthy(3), policy(1, 2, 1));
    world.step(0, false);
    let mut reports = world.reports();
    reports.get_mut("a01").unwrap().failing = vec!["somebody tries something".into()];
    world.kept.step(5_000, &reports);
    let Phase::Back { reason } = &world.kept.phase else { panic!("{:?}", world.kept) };
    assert!(reason.ends_with("; a01 says: somebody tries something"), "{reason}");
}

#[test]
fn pause_holds_it_resume_lets_it_go_on_and_abort_takes_it_back() {
    let mut world = World::new(healthy(6), policy(1, 2, 1));
    world.step(0, false);
    world.obey();
    world.kept.pause("ada");
    let paused = world.kept.clone();
    for _ in 0..50 {
        world.step(1_000, false);
    }
    assert_eq!(world.kept, paused);
    world.kept.resume("ada");
    world.step(1_000, false);
    world.kept.abort("bob", "a mistake");
    let outcome = world.run();
    assert_eq!((outcome.is_done, outcome.reason.as_str()), (false, "aborted by bob: a mistake"));
}

#[test]
fn nothing_to_change_is_done_at_once_and_what_is_the_same_is_left_alone() {
    assert!(empty().is_over());
    let version = version(policy(1, 4, 1));
    let members: BTreeMap<String, Member> =
        ["a1", "a2"].map(|name| (name.to_owned(), Member { labels: Labels::new() })).into();
    let [by, why] = [const { String::new() }; 2];
    let target = Target { version: 1, group: Some("a".into()) };
    let wants = BTreeMap::from([("a1".to_owned(), Want { target, text: Some("of a".into()), by, why })]);
    let rollout = plan(&version, &members, &wants, &BTreeMap::new());
    assert_eq!(rollout.steps.iter().map(|step| step.host.as_str()).collect::<Vec<_>>(), ["a2"]);
}

/// A rollout of three waves that is aborted in the last one, where a canary refuses so many times to go back, and a host of the second
/// wave may be away.
fn aborted(refuses_back: usize, is_away: bool) -> World {
    let mut world = World::new(healthy(6), policy(1, 2, 2));
    while world.told_at("a05").is_none() {
        world.step(1_000, false);
        world.obey();
    }
    world.hosts.get_mut("a01").unwrap().refuses_back = refuses_back;
    world.hosts.get_mut("a02").unwrap().is_away = is_away;
    world.kept.abort("ada", "");
    assert!(!world.run().is_done);
    world
}

#[test]
fn a_host_that_refuses_to_go_back_is_waited_for_and_keeps_nobody_from_going_back() {
    for (refuses, is_away, state) in [
        (0, false, State::Returned),
        (4, false, State::Returned),
        (6, false, State::Unheard),
        // For longer than one is waited for, while another still is.
        (6, true, State::Returned),
        (usize::MAX, true, State::Unheard),
    ] {
        let World { kept, told, .. } = aborted(refuses, is_away);
        let of = |host: &str| kept.steps.iter().find(|step| step.host == host).unwrap().state;
        let away = if is_away { State::Unheard } else { State::Returned };
        assert_eq!((of("a01"), of("a02"), of("a05")), (state, away, State::Returned), "{refuses}, {is_away}");
        let back = |host: &str| {
            let is_back = |send: &Send| send.host == host && send.target.version == 0;
            told.iter().position(|sends| sends.iter().any(is_back)).unwrap()
        };
        assert_eq!(back("a04") - back("a01"), 1, "{refuses}: the next wave waits for no answer of its");
        let said = kept.lines.iter().filter(|line| *line == "a01 cannot go back to version 0: no").count();
        assert_eq!(said, usize::from(refuses > 0), "{:?}", kept.lines);
        let unheard = [state, away].iter().filter(|state| **state == State::Unheard).count();
        assert!(kept.lines.last().unwrap().contains(&format!("; {unheard} have not")), "{:?}", kept.lines);
    }
}

/// Fleets of every kind.
fn hosts() -> impl Strategy<Value = Vec<Host>> {
    let host = (0..12_u8, 0..4_usize).prop_map(|(kind, slow)| Host {
        is_away: kind == 0,
        refuses: kind == 1,
        refuses_back: if kind == 3 { 3 * slow } else { 0 },
        marks: if kind == 2 { 9_000 } else { 500 },
        slow,
        ..Host::default()
    });
    vec(host, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Coordinators die, hosts go away and come back, operators pause and abort, in any order. Then all come back.
    #[test]
    fn whatever_happens_every_host_ends_at_a_version_somebody_asked_for(
        hosts in hosts(), canary in 0..3_usize, wave in 1..8_usize, handler in 1..4_usize,
        events in vec((0..10_u8, any::<prop::sample::Index>(), 0..4_000_u64), 0..80),
    ) {
        let mut world = World::new(hosts, policy(canary, wave, handler));
        let names: Vec<String> = world.hosts.keys().cloned().collect();
        for (event, which, elapsed_ms) in events {
            match event {
                0 => world.step(elapsed_ms, true),
                1 => {
                    let host = world.hosts.get_mut(which.get(&names)).unwrap();
                    host.is_away = !host.is_away;
                }
                2 if !world.kept.is_over() => world.kept.pause("ada"),
                3 if !world.kept.is_over() => world.kept.resume("ada"),
                4 if which.index(20) == 0 && !world.kept.is_over() => world.kept.abort("ada", ""),
                _ => {
                    world.step(elapsed_ms, false);
                    world.obey();
                }
            }
            let sent = world.kept.count(|state| matches!(state, State::Sent { .. }));
            prop_assert!(sent <= handler, "{sent} at a time");
        }
        world.kept.resume("ada");
        let outcome = world.run();
        world.hosts.values_mut().for_each(|host| host.is_away = false);
        for _ in 0..12 {
            world.obey();
        }
        for (name, host) in &world.hosts {
            let step = world.kept.steps.iter().find(|step| step.host == *name).unwrap();
            let wanted = host.want.as_ref().map_or(0, |want| want.version);
            prop_assert_eq!(wanted, if outcome.is_done { 2 } else { 0 }, "{} of {:?}", name, step);
            prop_assert!(host.has.as_ref().is_none_or(|has| has.version == wanted));
        }
        if !outcome.is_done {
            prop_assert!(!outcome.reason.is_empty());
        }
        // No wave was told before all of the wave before it were, and the canaries had been watched.
        let mut last = 0;
        for step in world.kept.steps.iter().filter(|step| world.told_at(&step.host).is_some()) {
            let at = world.told_at(&step.host).unwrap();
            let earlier = world.kept.steps.iter().filter(|other| other.wave < step.wave);
            for other in earlier {
                prop_assert!(world.told_at(&other.host).is_some_and(|before| before < at));
            }
            last = last.max(step.wave);
        }
        prop_assert!(last <= world.kept.last_wave());
        // Who goes back goes back wave by wave, canaries first.
        let back: Vec<usize> = world.told.iter().flatten().filter(|send| send.target.version == 0)
            .map(|send| world.kept.steps.iter().find(|step| step.host == send.host).unwrap().wave).collect();
        prop_assert!(back.is_sorted(), "{back:?}");
    }

    /// What is kept is the same after a round through etcd.
    #[test]
    fn a_rollout_is_kept_whole(hosts in hosts(), steps in 0..20_usize) {
        let mut world = World::new(hosts, policy(1, 3, 2));
        for _ in 0..steps {
            world.step(700, false);
            world.obey();
        }
        let text = serde_json::to_string(&world.kept).unwrap();
        prop_assert_eq!(serde_json::from_str::<Rollout>(&text).unwrap(), world.kept);
    }
}
