//! A simulated fleet for tests of the state machine. Hosts apply, reject, degrade and disappear; coordinators
//! may have stale state.

use super::*;
use crate::file::Wave;

/// Agent version, by its report format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialect {
    #[default]
    Own,
    /// Does not measure throughput, pauses, QPs or drops.
    Older,
    /// Has unknown fields and metrics.
    Newer,
    Unreadable,
}

impl Dialect {
    /// The report as read from etcd, `None` if unreadable.
    fn read(self, report: &Report) -> Option<Report> {
        if self == Self::Own {
            return Some(report.clone());
        }
        let mut record = serde_json::to_value(report).unwrap();
        match self {
            Self::Own => {}
            Self::Older => {
                let report = record.as_object_mut().unwrap();
                report.retain(|key, _| ["tried", "failing", "rates"].contains(&key.as_str()));
                let rates = report["rates"].as_object_mut().unwrap();
                rates.retain(|key, _| ["window_ms", "data_packets", "of"].contains(&key.as_str()));
                rates["of"].as_object_mut().unwrap().retain(|name, _| name == "marks");
            }
            Self::Newer => {
                record["uptime_s"] = 7.into();
                record["rates"]["of"]["latency"] = json!({ "value": 9, "spread": 1, "p99": [1] });
                if let Some(tried) = record["tried"].as_object_mut() {
                    tried.insert("took_ms".into(), 30.into());
                }
            }
            Self::Unreadable => record["rates"] = "none".into(),
        }
        serde_json::from_str(&record.to_string()).ok().map(Report::bounded)
    }
}

/// A host that follows its orders unless it is away.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    pub(super) is_away: bool,
    /// The agent's lease is alive, but it does not report.
    pub(super) is_stuck: bool,
    pub(super) dialect: Dialect,
    pub(super) refuses: bool,
    pub(super) refuses_back: usize,
    pub(super) marks: u64,
    pub(super) failing: Vec<String>,
    pub(super) desired: Option<Target>,
    pub(super) has: Option<Tried>,
    /// Delay before it applies an order, in turns.
    pub(super) slow: usize,
    pub(super) due: usize,
    pub(super) seen: ReceivedReport,
    pub(super) is_unreadable: bool,
}

pub(super) struct SimulatedFleet {
    pub(super) hosts: BTreeMap<String, Host>,
    /// State in etcd, and its revision.
    pub(super) stored: Rollout,
    pub(super) stored_at: i64,
    pub(super) revision: i64,
    /// State known to each of two coordinators, and its revision.
    pub(super) known: [(Rollout, i64); 2],
    pub(super) orders: Vec<Vec<(String, Target)>>,
}

pub(super) fn policy(canary: usize, wave: usize, max_unavailable: usize) -> Policy {
    let wave = Wave::Hosts(wave);
    Policy { canary, wave, max_unavailable, soak_ms: 3_000, patience_ms: 5_000, gate: Gate::default() }
}

pub(super) fn version(policy: Policy) -> Version {
    let groups = vec![Group::new("a", &["a*"], "of a"), Group::new("b", &["b*"], "of b")];
    Version { version: 2, policy, groups, by: "ada".into(), ..Version::default() }
}

pub(super) fn rates(marks: u64) -> Rates {
    let reading = |value: u64| Reading { value, spread: 100 };
    let of = [
        ("marks", reading(marks / 10)),
        ("drops", reading(0)),
        (THROUGHPUT, Reading { value: 1_666, spread: 3 }),
    ];
    let of = of.map(|(name, reading)| (name.to_owned(), reading)).into();
    Rates { window_ms: 60_000, data_packets: 100_000, quiet_ms: 0, gap_ms: 1_000, queue_pairs: Some(4), of }
}

impl SimulatedFleet {
    pub(super) fn new(hosts: Vec<Host>, policy: Policy) -> Self {
        let name = |index: usize| format!("{}{index:02}", if index.is_multiple_of(3) { "b" } else { "a" });
        let hosts: BTreeMap<String, Host> =
            hosts.into_iter().enumerate().map(|(index, host)| (name(index), host)).collect();
        let members = hosts.keys().map(|name| (name.clone(), Member::default())).collect();
        let empty = plan(&Version::default(), &BTreeMap::new(), &BTreeMap::new(), &BTreeMap::new());
        let known = [(empty.clone(), 1), (empty.clone(), 1)];
        let mut fleet = Self { hosts, stored: empty, stored_at: 1, revision: 1, known, orders: Vec::new() };
        fleet.report();
        fleet.stored = plan(&version(policy), &members, &BTreeMap::new(), &fleet.reports());
        fleet.known = [(fleet.stored.clone(), 1), (fleet.stored.clone(), 1)];
        fleet
    }

    fn report(&mut self) {
        for host in self.hosts.values_mut().filter(|host| !host.is_away && !host.is_stuck) {
            self.revision += 1;
            let is_new =
                host.has.as_ref().is_some_and(|tried| tried.target.version == 2 && tried.error.is_none());
            let report = Report {
                tried: host.has.clone(),
                failing: host.failing.clone(),
                rates: rates(if is_new { host.marks } else { 500 }),
                ..Report::default()
            };
            let read = host.dialect.read(&report);
            host.is_unreadable = read.is_none();
            host.seen = ReceivedReport { report: read.unwrap_or_default(), revision: self.revision };
        }
    }

    pub(super) fn reports(&self) -> Hosts {
        let there = self.hosts.iter().filter(|(_, host)| !host.is_away && !host.is_unreadable);
        there.map(|(name, host)| (name.clone(), host.seen.clone())).collect()
    }

    pub(super) fn step(&mut self, elapsed_ms: u64) {
        self.known[0] = (self.stored.clone(), self.stored_at);
        let hosts = self.reports();
        self.tick(0, elapsed_ms, &hosts, self.revision, false);
    }

    /// Steps one coordinator from its own state; written only if that is the latest, and unless it dies first.
    pub(super) fn tick(
        &mut self,
        coordinator: usize,
        elapsed_ms: u64,
        hosts: &Hosts,
        revision: i64,
        dies: bool,
    ) {
        let (state, at) = self.known[coordinator].clone();
        let (state, effects) = next(state, Event::Tick { elapsed_ms, hosts, revision });
        if at != self.stored_at || dies {
            // The compare-and-swap fails, and it reads the state again.
            self.known[coordinator] = (self.stored.clone(), self.stored_at);
            return;
        }
        self.write(state, effects);
        self.known[coordinator] = (self.stored.clone(), self.stored_at);
    }

    pub(super) fn operate(&mut self, event: Event<'_>) {
        let (state, effects) = next(self.stored.clone(), event);
        self.write(state, effects);
    }

    fn write(&mut self, state: Rollout, effects: Vec<Effect>) {
        self.revision += 1;
        (self.stored, self.stored_at) = (state, self.revision);
        let mut orders = Vec::new();
        for effect in effects {
            let Effect::Send { host: name, target } = effect else { continue };
            let host = self.hosts.get_mut(&name).unwrap();
            host.desired = Some(target.clone());
            host.due = host.slow;
            orders.push((name, target));
        }
        self.orders.push(orders);
    }

    pub(super) fn apply_orders(&mut self) {
        for host in self.hosts.values_mut().filter(|host| !host.is_away) {
            host.due = host.due.saturating_sub(1);
            if let Some(desired) = host.desired.as_ref().filter(|_| host.due == 0) {
                let goes_back = host.refuses_back > 0 && desired.version == 0;
                host.refuses_back -= usize::from(goes_back);
                let refuses = goes_back || host.refuses && desired.version == 2;
                host.has = Some(Tried { target: desired.clone(), error: refuses.then(|| "no".into()) });
            }
        }
        self.report();
    }

    pub(super) fn run(&mut self) -> Outcome {
        for _ in 0..2_000 {
            self.turns(1);
            if let Some(outcome) = self.stored.outcome() {
                return outcome;
            }
        }
        panic!("no end: {:?}", self.stored);
    }

    pub(super) fn turns(&mut self, turns: usize) {
        for _ in 0..turns {
            self.step(1_000);
            self.apply_orders();
        }
    }

    /// Changes the hosts' reports before each of some steps.
    pub(super) fn report_turns(&mut self, turns: usize, change: impl Fn(&str, &mut Host)) {
        for _ in 0..turns {
            self.apply_orders();
            self.hosts.iter_mut().for_each(|(name, host)| change(name, host));
            self.step(1_000);
        }
    }

    pub(super) fn begin(&mut self) {
        self.step(0);
        self.apply_orders();
        self.step(0);
    }

    pub(super) fn turn_until_ordered(&mut self, host: &str) {
        while self.ordered_at(host).is_none() {
            self.turns(1);
        }
    }

    pub(super) fn forward(&self) -> Option<&Forward> {
        match &self.stored.phase {
            Phase::Forward(forward) => Some(forward),
            _ => None,
        }
    }

    pub(super) fn wave_and_hold(&self) -> Option<(usize, Option<Hold>)> {
        self.forward().map(|forward| (forward.wave, forward.hold))
    }

    pub(super) fn back(&self) -> &str {
        match &self.stored.phase {
            Phase::Back { reason } => reason,
            phase => panic!("{phase:?}"),
        }
    }

    pub(super) fn has_line(&self, line: &str) -> bool {
        self.stored.lines.iter().any(|stored| stored == line)
    }

    /// Index of the step in which a host was first ordered version 2.
    pub(super) fn ordered_at(&self, host: &str) -> Option<usize> {
        let concerns = |orders: &Vec<(String, Target)>| {
            orders.iter().any(|(name, target)| name == host && target.version == 2)
        };
        self.orders.iter().position(concerns)
    }

    pub(super) fn host(&mut self, name: &str) -> &mut Host {
        self.hosts.get_mut(name).unwrap()
    }

    pub(super) fn state(&self, host: &str) -> State {
        self.stored.steps.iter().find(|step| step.host == host).unwrap().state
    }
}

pub(super) fn healthy(count: usize) -> Vec<Host> {
    vec![Host { marks: 500, ..Host::default() }; count]
}
