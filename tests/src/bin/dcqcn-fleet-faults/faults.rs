//! All faults.

use std::ops::Range;

use dcqcn_tests::fleet::{Behaviour, Clock, reporting_hosts};
use dcqcn_tests::prelude::*;

use crate::fleet::Fleet;

pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// Parameters of the new version.
    pub(crate) parameters: &'static str,
    pub(crate) gets_there: bool,
    /// The fault starts the first coordinator.
    pub(crate) is_alone: bool,
    /// Takes minutes; only injected on request.
    pub(crate) is_long: bool,
    pub(crate) needs_clock: bool,
    pub(crate) make: fn(&mut Fleet) -> Result<()>,
}

pub(crate) const fn fault(name: &'static str, make: fn(&mut Fleet) -> Result<()>) -> Fault {
    let [is_alone, is_long, needs_clock] = [false; 3];
    Fault { name, parameters: "rpg_gd = 12", gets_there: true, is_alone, is_long, needs_clock, make }
}

const fn harmful_rollout(name: &'static str, make: fn(&mut Fleet) -> Result<()>) -> Fault {
    Fault { gets_there: false, ..fault(name, make) }
}

/// Suspends processes for a number of seconds, after the first host has changed.
fn silence(fleet: &Fleet, seconds: u64, signal: impl Fn(Signal) -> Result<()>) -> Result<()> {
    fleet.wait_for_hosts(1)?;
    signal(Signal::SIGSTOP)?;
    thread::sleep(Duration::from_secs(seconds));
    signal(Signal::SIGCONT)
}

fn silence_etcd(fleet: &Fleet, members: Range<usize>, seconds: u64) -> Result<()> {
    let etcd = &fleet.fixture.etcd;
    silence(fleet, seconds, |what| members.clone().try_for_each(|member| etcd.signal(member, what)))
}

/// A member of etcd is killed, and starts again when another host has changed.
fn restart_member(fleet: &mut Fleet, distance_to_leader: usize) -> Result<()> {
    fleet.wait_for_hosts(1)?;
    let etcd = &mut fleet.fixture.etcd;
    let member = (etcd.leader()? + distance_to_leader) % etcd.count();
    etcd.kill(member)?;
    fleet.wait_for_hosts(2)?;
    fleet.fixture.etcd.begin(member)
}

/// A daemon behaves differently until the rollout has ended.
fn misbehave(fleet: &Fleet, host: &str, behaviour: Behaviour) -> Result<()> {
    fleet.fixture.daemons[host].be(behaviour);
    fleet.end()?;
    fleet.fixture.daemons[host].be(Behaviour::Good);
    Ok(())
}

/// The canary's agent is killed once this number of hosts have changed.
fn lose_canary(fleet: &mut Fleet, hosts: usize) -> Result<()> {
    let canary = fleet.canary();
    fleet.wait_for_hosts(hosts)?;
    fleet.fixture.kill_agent(&canary)?;
    fleet.end()?;
    fleet.fixture.begin_agent(&canary)
}

pub(crate) const FAULTS: &[Fault] = &[
    fault("none", |_| Ok(())),
    fault("a member of etcd killed, and started again", |fleet| restart_member(fleet, 1)),
    fault("the leader of etcd killed, and started again", |fleet| restart_member(fleet, 0)),
    fault("the leader of etcd silent for 5 s", |fleet| {
        let leader = fleet.fixture.etcd.leader()?;
        silence_etcd(fleet, leader..leader + 1, 5)
    }),
    fault("no majority of etcd for 5 s", |fleet| silence_etcd(fleet, 0..2, 5)),
    fault("all of etcd killed, and started again after 5 s", |fleet| {
        fleet.wait_for_hosts(1)?;
        fleet.restart_etcd_after(Duration::from_secs(5))
    }),
    fault("the coordinator killed repeatedly, at every step", |fleet| {
        let mut times = 0;
        while !fleet.is_over()? {
            fleet.end_coordinators()?;
            fleet.coordinate()?;
            thread::sleep(Duration::from_millis(2_000));
            times += 1;
            ensure!(times < 60, "the rollout does not end; coordinator killed {times} times");
        }
        Ok(())
    }),
    fault("three coordinators at once", |fleet| {
        fleet.coordinate()?;
        fleet.coordinate()
    }),
    fault("agents killed in the middle of applying, and started again", |fleet| {
        let hosts = fleet.last(3);
        for host in &hosts {
            fleet.fixture.daemons[host].be(Behaviour::Slow(Duration::from_secs(1)));
        }
        fleet.wait_for_hosts(fleet.fixture.daemons.len() - 3)?;
        for host in &hosts {
            fleet.fixture.kill_agent(host)?;
            fleet.fixture.begin_agent(host)?;
            fleet.fixture.daemons[host].be(Behaviour::Good);
        }
        Ok(())
    }),
    fault("agents silent for 8 s", |fleet| {
        let hosts = fleet.last(3);
        let fixture = &fleet.fixture;
        silence(fleet, 8, |what| hosts.iter().try_for_each(|host| fixture.signal_agent(host, what)))
    }),
    fault("a host away for the whole rollout, and back", |fleet| {
        let host = fleet.last(1).remove(0);
        fleet.fixture.kill_agent(&host)?;
        fleet.end()?;
        ensure!(fleet.fixture.daemons[&host].name() != Some(fleet.name()), "changed without an agent");
        fleet.fixture.begin_agent(&host)
    }),
    fault("history compacted while agents are silent", |fleet| {
        let hosts = fleet.last(2);
        for host in &hosts {
            fleet.fixture.signal_agent(host, Signal::SIGSTOP)?;
        }
        fleet.wait_for_hosts(fleet.fixture.daemons.len() - 2)?;
        fleet.fixture.etcd.compact()?;
        for host in &hosts {
            fleet.fixture.signal_agent(host, Signal::SIGCONT)?;
        }
        Ok(())
    }),
    Fault { parameters: "rpg_gd = 15", ..harmful_rollout("worse values: rolled back", |_| Ok(())) },
    harmful_rollout("one host refuses: rolled back", |fleet| {
        let host = fleet.last(1).remove(0);
        misbehave(fleet, &host, Behaviour::Refuses)
    }),
    harmful_rollout("aborted, and the coordinator killed in the rollback", |fleet| {
        fleet.wait_for_hosts(3)?;
        fleet.fixture.text(&["abort", "--why", "a mistake"])?;
        fleet.end_coordinators()?;
        fleet.coordinate()
    }),
    harmful_rollout("a canary silent: rolled back", |fleet| {
        // The canary has not changed yet: the coordinator has just started.
        misbehave(fleet, &fleet.canary(), Behaviour::Silent)
    }),
    harmful_rollout("half the throughput of a canary: rolled back", |fleet| {
        misbehave(fleet, &fleet.canary(), Behaviour::Half)
    }),
    harmful_rollout("a canary dead before it changes: rolled back", |fleet| {
        let canary = fleet.canary();
        fleet.fixture.daemons[&canary].be(Behaviour::Slow(Duration::from_secs(2)));
        thread::sleep(Duration::from_millis(1_000));
        fleet.fixture.kill_agent(&canary)?;
        fleet.end()?;
        fleet.fixture.daemons[&canary].be(Behaviour::Good);
        fleet.fixture.begin_agent(&canary)
    }),
    harmful_rollout("a canary dead while it is watched: rolled back", |fleet| lose_canary(fleet, 1)),
    harmful_rollout("a canary dead in a later wave: rolled back", |fleet| lose_canary(fleet, 2)),
    fault("the coordinator silent for 25 s, longer than patience", |fleet| {
        silence(fleet, 25, |what| fleet.signal_coordinators(what))
    }),
    fault("all of etcd silent for 25 s, longer than patience", |fleet| {
        silence_etcd(fleet, 0..fleet.fixture.etcd.count(), 25)
    }),
    fault("records of a host that are not JSON, or too long", |fleet| {
        fleet.wait_for_hosts(1)?;
        let host = fleet.last(1).remove(0);
        // A command-line argument is limited to 128 KiB.
        let long = "x".repeat(100_000);
        for (what, value) in [("report", "{"), ("member", "[]"), ("report", long.as_str())] {
            let key = format!("/dcqcn/hosts/ghost/{what}");
            fleet.fixture.etcd.ok(&["put", &key, value])?;
        }
        let key = format!("/dcqcn/hosts/{host}/report");
        fleet.fixture.etcd.ok(&["put", &key, "{"])?;
        fleet.fixture.text(&["status"])?;
        fleet.end()?;
        fleet.fixture.etcd.ok(&["del", "--prefix", "/dcqcn/hosts/ghost/"]).map(drop)
    }),
    harmful_rollout("a canary dead during the rollback", |fleet| {
        let canary = fleet.canary();
        fleet.wait_for_hosts(3)?;
        fleet.end_coordinators()?;
        // The next coordinator orders the rollback after the canary has died.
        fleet.fixture.run(&["abort"])?;
        fleet.fixture.kill_agent(&canary)?;
        fleet.coordinate()?;
        fleet.end()?;
        fleet.fixture.begin_agent(&canary)
    }),
    Fault {
        is_alone: true,
        ..fault("a canary dead before its turn: paused, then approved", |fleet| {
            let canary = fleet.canary();
            fleet.fixture.kill_agent(&canary)?;
            let is_away = |status: &Value| Ok(reporting_hosts(status) < fleet.fixture.daemons.len());
            fleet.fixture.wait("the host is away", is_away)?;
            fleet.coordinate()?;
            fleet
                .fixture
                .wait("the rollout is paused", |status| Ok(status["rollout"]["is_paused"] == true))?;
            ensure!(fleet.changed() == 0, "a host changed though no canary was evaluated");
            fleet.fixture.text(&["resume"])?;
            fleet.end()?;
            fleet.fixture.begin_agent(&canary)
        })
    },
    fault("a host whose agent is of another version", |fleet| {
        // Replace the agent by a program that writes the records of another version.
        let host = fleet.last(1).remove(0);
        fleet.fixture.kill_agent(&host)?;
        fleet.run_rival_agent(&host)?;
        fleet.fixture.begin_agent(&host)
    }),
    Fault {
        needs_clock: true,
        ..fault("wall clocks that jump by hours, back and forth", |fleet| {
            let hosts = [fleet.canary(), fleet.last(1).remove(0)];
            let clock = Clock::new()?;
            for host in &hosts {
                fleet.fixture.kill_agent(host)?;
                fleet.fixture.begin_agent_under(&clock.program(), host)?;
            }
            fleet.end_coordinators()?;
            fleet.coordinate_under(&clock.program())?;
            let mut is_over = false;
            for jump in ["+3h", "-5h", "+26h", "-1d"].iter().cycle().take(60) {
                clock.set(jump)?;
                thread::sleep(Duration::from_secs(2));
                is_over = fleet.is_over()?;
                if is_over {
                    break;
                }
            }
            ensure!(is_over, "no end within two minutes");
            for host in &hosts {
                fleet.fixture.kill_agent(host)?;
                fleet.fixture.begin_agent(host)?;
            }
            Ok(())
        })
    },
    Fault {
        is_long: true,
        ..fault("the coordinator stopped for ten minutes", |fleet| {
            silence(fleet, 600, |what| fleet.signal_coordinators(what))
        })
    },
    Fault {
        is_long: true,
        ..fault("all of etcd killed, and started again after five minutes", |fleet| {
            fleet.wait_for_hosts(1)?;
            fleet.restart_etcd_after(Duration::from_secs(300))
        })
    },
];
