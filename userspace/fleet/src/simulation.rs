//! False alarms and misses of the gate in simulated rollouts. `cargo xtask fleet --gate` runs the documented
//! number of them.
//!
//! A fleet has 24 hosts. Their traffic, in data packets per second:
//!
//! - steady (25 % of hosts): 20,000, normally distributed with 5 %
//! - bursty (35 %): 40,000 for 3 s on average, then none for 3 s on average, exponential
//! - quiet (25 %): 30, Poisson
//! - idle (15 %): none
//!
//! 0.2 % of packets are marked, times a factor of 0.2 to 3 that changes every second. A host drops 1 to 20
//! packets at once every 100 s on average, and retransmits 1 to 8 every 60 s. During a rollout the job of one
//! host in 50 ends, and its QPs are removed. The last rows, fleets with only bursty hosts, are not asserted.

use std::env;

use fastrand::Rng;

use crate::agent::rates::Window;
use crate::prelude::*;
use crate::rollout::{next, plan};

const HOSTS: usize = 24;
const SOAK_S: u64 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Steady,
    Bursty,
    Quiet,
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeEffect {
    None,
    Marks,
    Drops,
    Errors,
    Silence,
    DeadAgent,
    HalfThroughput,
}

const HARMS: [ChangeEffect; 6] = {
    use ChangeEffect::*;
    [Marks, Drops, Errors, Silence, DeadAgent, HalfThroughput]
};

struct Host {
    traffic: Traffic,
    is_on: bool,
    left_s: f64,
    counts: Counts,
    window: Window,
    tried: Option<Tried>,
    order: Option<(Target, u64)>,
    job_ends_s: u64,
    agent_dies_s: Option<u64>,
    seen: Option<ReceivedReport>,
}

fn poisson(rng: &mut Rng, mean: f64) -> u64 {
    if mean > 50.0 {
        return normal(rng, mean, mean.sqrt());
    }
    let (limit, mut product, mut count) = ((-mean).exp(), rng.f64(), 0);
    while product > limit {
        product *= rng.f64();
        count += 1;
    }
    count
}

fn normal(rng: &mut Rng, mean: f64, deviation: f64) -> u64 {
    let sum: f64 = (0..12).map(|_| rng.f64()).sum();
    (mean + deviation * (sum - 6.0)).max(0.0) as u64
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.f64()).ln()
}

impl Host {
    fn new(rng: &mut Rng, traffic: Option<Traffic>) -> Self {
        let drawn = match rng.u8(..100) {
            0..25 => Traffic::Steady,
            25..60 => Traffic::Bursty,
            60..85 => Traffic::Quiet,
            _ => Traffic::Idle,
        };
        let traffic = traffic.unwrap_or(drawn);
        let job_ends_s = if rng.u8(..50) == 0 { 60 + rng.u64(..360) } else { u64::MAX };
        Self {
            traffic,
            is_on: false,
            left_s: 0.0,
            counts: Counts { attached_at_ns: 1, queue_pairs: Some(4), ..Counts::default() },
            window: Window::default(),
            tried: None,
            order: None,
            job_ends_s,
            agent_dies_s: None,
            seen: None,
        }
    }

    fn pass(&mut self, rng: &mut Rng, at_s: u64, harm: ChangeEffect) {
        let has = self.tried.as_ref().is_some_and(|tried| tried.target.version == 1);
        let harm = if has { harm } else { ChangeEffect::None };
        let mut packets = match self.traffic {
            Traffic::Steady => normal(rng, 20_000.0, 1_000.0),
            Traffic::Quiet => poisson(rng, 30.0),
            Traffic::Idle => 0,
            Traffic::Bursty => {
                // Fraction of this second in which it sends.
                let (mut rest, mut on): (f64, f64) = (1.0, 0.0);
                while rest > 0.0 {
                    if self.left_s <= 0.0 {
                        self.is_on = !self.is_on;
                        self.left_s = exponential(rng, 3.0);
                    }
                    let part = rest.min(self.left_s);
                    on += if self.is_on { part } else { 0.0 };
                    self.left_s -= part;
                    rest -= part;
                }
                poisson(rng, 40_000.0 * on)
            }
        };
        if at_s >= self.job_ends_s {
            (packets, self.counts.queue_pairs) = (0, Some(0));
        }
        match harm {
            ChangeEffect::Silence => packets = 0,
            ChangeEffect::HalfThroughput => packets /= 2,
            _ => {}
        }
        let marked = if harm == ChangeEffect::Marks { 0.02 } else { 0.002 * (0.2 + 2.8 * rng.f64()) };
        let lossy = |is: bool| if is { 1e-4 } else { 0.0 };
        let counts = &mut self.counts;
        counts.data_packets += packets;
        counts.marked_packets += poisson(rng, packets as f64 * marked).min(packets);
        counts.drops += poisson(rng, packets as f64 * lossy(harm == ChangeEffect::Drops));
        counts.rdma_errors += poisson(rng, packets as f64 * lossy(harm == ChangeEffect::Errors));
        if packets > 0 && rng.u8(..100) == 0 {
            counts.drops += rng.u64(1..=20);
        }
        if packets > 0 && rng.u8(..60) == 0 {
            counts.rdma_errors += rng.u64(1..=8);
        }
    }

    /// Simulates one second of the agent: applies an order, samples, and reports every five seconds.
    fn step(&mut self, rng: &mut Rng, at_s: u64, number: usize, revision: &mut i64, harm: ChangeEffect) {
        self.pass(rng, at_s, harm);
        if let Some((target, due_s)) = self.order.take() {
            if at_s < due_s {
                self.order = Some((target, due_s));
            } else {
                self.window.clear();
                self.tried = Some(Tried { target, error: None });
                if harm == ChangeEffect::DeadAgent {
                    self.agent_dies_s = Some(at_s + rng.u64(..SOAK_S));
                }
            }
        }
        if self.agent_dies_s.is_some_and(|dies_s| at_s >= dies_s) {
            // The agent's lease expires 15 s later.
            if self.agent_dies_s.is_some_and(|dies_s| at_s >= dies_s + 15) {
                self.seen = None;
            }
            return;
        }
        let interfaces = BTreeMap::from([("eth0".to_owned(), self.counts.clone())]);
        self.window.add(Health { at_ns: (at_s + 1) * 1_000_000_000, interfaces, failing: Vec::new() });
        let tried = self.seen.as_ref().and_then(|seen| seen.report.tried.as_ref());
        if tried != self.tried.as_ref() || (at_s + number as u64).is_multiple_of(5) {
            *revision += 1;
            let report =
                Report { tried: self.tried.clone(), rates: self.window.rates(), ..Report::default() };
            self.seen = Some(ReceivedReport { report, revision: *revision });
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Done,
    RolledBack(String),
    Paused,
}

fn rollout(seed: u64, harm: ChangeEffect, traffic: Option<Traffic>) -> End {
    let mut rng = Rng::with_seed(seed);
    let mut hosts: BTreeMap<String, Host> =
        (0..HOSTS).map(|number| (format!("h{number:02}"), Host::new(&mut rng, traffic))).collect();
    let policy = Policy { max_unavailable: 2, soak_ms: SOAK_S * 1_000, ..Policy::default() };
    let group = Group::new("all", &[], "x");
    let version = Version { version: 1, policy, groups: vec![group], ..Version::default() };
    let (mut state, mut revision): (Option<Rollout>, i64) = (None, 1);
    for at_s in 0..3_600 {
        for (number, host) in hosts.values_mut().enumerate() {
            host.step(&mut rng, at_s, number, &mut revision, harm);
        }
        if at_s < 60 {
            continue;
        }
        let seen: Hosts =
            hosts.iter().filter_map(|(name, host)| Some((name.clone(), host.seen.clone()?))).collect();
        let now = state.take().unwrap_or_else(|| {
            let members = hosts.keys().map(|name| (name.clone(), Member::default())).collect();
            plan(&version, &members, &BTreeMap::new(), &seen)
        });
        let (now, effects) = next(now, Event::Tick { elapsed_ms: 1_000, hosts: &seen, revision });
        for effect in effects {
            let Effect::Send { host, target } = effect else { continue };
            hosts.get_mut(&host).unwrap().order = Some((target, at_s + rng.u64(1..=3)));
        }
        match &now.phase {
            Phase::Done => return End::Done,
            Phase::Back { reason } | Phase::RolledBack { reason } => return End::RolledBack(reason.clone()),
            Phase::Forward(_) if now.is_paused() => return End::Paused,
            Phase::Forward(_) => state = Some(now),
        }
    }
    panic!("seed {seed}, {harm:?}: no end");
}

#[test]
fn gate_false_alarms_and_misses() {
    let number = |name: &str, default: u64| env::var(name).map_or(default, |text| text.parse().unwrap());
    let rollouts = number("DCQCN_GATE_ROLLOUTS", 20);
    let first = number("DCQCN_GATE_SEED", 0);
    let run = |seed: u64, harm: ChangeEffect, traffic: Option<Traffic>| {
        let end = rollout(first + seed, harm, traffic);
        if let (ChangeEffect::None, End::RolledBack(why)) = (harm, &end) {
            eprintln!("seed {}: {why}", first + seed);
        }
        end
    };
    let mut table = Vec::new();
    let mut row = |name: String, ends: Vec<End>| {
        let count = |is: fn(&End) -> bool| ends.iter().filter(|end| is(end)).count();
        let done = count(|end| *end == End::Done);
        let back = count(|end| matches!(end, End::RolledBack(_)));
        let paused = count(|end| *end == End::Paused);
        table.push(format!("{name:<34} {:>8} {done:>8} {back:>12} {paused:>8}", ends.len()));
        (done, back, paused)
    };
    let (_, back, paused) =
        row("good".into(), (0..rollouts).map(|seed| run(seed, ChangeEffect::None, None)).collect());
    let mut passed = 0;
    for (index, harm) in HARMS.into_iter().enumerate() {
        // Each kind of harm gets a sixth of the rollouts.
        let seeds = (0..rollouts).filter(|seed| seed % HARMS.len() as u64 == index as u64);
        let ends = seeds.map(|seed| run(1_000_000 + seed, harm, None)).collect();
        passed += row(format!("bad: {harm:?}"), ends).0;
    }
    for harm in [ChangeEffect::None, ChangeEffect::HalfThroughput] {
        let ends = (0..rollouts / 10).map(|seed| run(2_000_000 + seed, harm, Some(Traffic::Bursty)));
        row(format!("all bursty: {harm:?}"), ends.collect());
    }
    println!(
        "{:<34} {:>8} {:>8} {:>12} {:>8}\n{}",
        "ROLLOUTS",
        "NUMBER",
        "DONE",
        "ROLLED BACK",
        "PAUSED",
        table.join("\n")
    );
    let allowed = |per_thousand: u64| (rollouts * per_thousand / 1_000) as usize;
    assert!(back <= allowed(5), "{back} good rollouts were rolled back");
    assert!(paused <= allowed(20), "{paused} good rollouts paused");
    assert!(passed <= allowed(5), "{passed} bad rollouts passed");
}
