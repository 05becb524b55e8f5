//! All faults.

use std::time::Duration;

use anyhow::{Result, ensure};
use dcqcn_tests::fleet::{Clock, Nature, reporting_hosts};
use nix::sys::signal::Signal;

use crate::field::Field;

/// Time limit for the end of a rollout.
const LONG: Duration = Duration::from_secs(120);

/// A fault during a rollout.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// Parameters of the new version.
    pub(crate) parameters: &'static str,
    /// Whether the rollout should succeed.
    pub(crate) gets_there: bool,
    /// The fault starts the first coordinator.
    pub(crate) is_alone: bool,
    /// Takes minutes; only injected on request.
    pub(crate) is_long: bool,
    /// Requires `libfaketime`.
    pub(crate) needs_clock: bool,
    pub(crate) make: fn(&mut Field) -> Result<()>,
}

/// A fault that does not prevent the rollout.
pub(crate) const fn fault(name: &'static str, make: fn(&mut Field) -> Result<()>) -> Fault {
    let [is_alone, is_long, needs_clock] = [false; 3];
    Fault { name, parameters: "rpg_gd = 12", gets_there: true, is_alone, is_long, needs_clock, make }
}

/// A fault that causes a rollback.
const fn harm(name: &'static str, make: fn(&mut Field) -> Result<()>) -> Fault {
    Fault { gets_there: false, ..fault(name, make) }
}

pub(crate) const FAULTS: &[Fault] = &[
    fault("none", |_| Ok(())),
    fault("a member of etcd killed, and started again", |field| {
        field.until(1)?;
        let other = (field.site.etcd.leader()? + 1) % field.site.etcd.count();
        field.site.etcd.kill(other)?;
        field.until(2)?;
        field.site.etcd.begin(other)
    }),
    fault("the leader of etcd killed, and started again", |field| {
        field.until(1)?;
        let leader = field.site.etcd.leader()?;
        field.site.etcd.kill(leader)?;
        field.until(2)?;
        field.site.etcd.begin(leader)
    }),
    fault("the leader of etcd silent for 5 s", |field| {
        field.until(1)?;
        let leader = field.site.etcd.leader()?;
        field.site.etcd.signal(leader, Signal::SIGSTOP)?;
        Field::sleep(Duration::from_secs(5));
        field.site.etcd.signal(leader, Signal::SIGCONT)
    }),
    fault("no majority of etcd for 5 s", |field| {
        field.until(1)?;
        for member in [0, 1] {
            field.site.etcd.signal(member, Signal::SIGSTOP)?;
        }
        Field::sleep(Duration::from_secs(5));
        for member in [0, 1] {
            field.site.etcd.signal(member, Signal::SIGCONT)?;
        }
        Ok(())
    }),
    fault("all of etcd killed, and started again after 5 s", |field| {
        field.until(1)?;
        field.restart_etcd_after(Duration::from_secs(5))
    }),
    fault("the coordinator killed repeatedly, at every step", |field| {
        let mut times = 0;
        while !field.is_over()? {
            field.end_coordinators()?;
            field.coordinate()?;
            Field::sleep(Duration::from_millis(2_000));
            times += 1;
            ensure!(times < 60, "the rollout does not end; coordinator killed {times} times");
        }
        Ok(())
    }),
    fault("three coordinators at once", |field| {
        field.coordinate()?;
        field.coordinate()
    }),
    fault("agents killed in the middle of applying, and started again", |field| {
        let hosts = field.last(3);
        for host in &hosts {
            field.site.daemons[host].be(Nature::Slow(Duration::from_secs(1)));
        }
        field.until(field.site.daemons.len() - 3)?;
        for host in &hosts {
            field.site.kill_agent(host)?;
            field.site.begin_agent(host)?;
            field.site.daemons[host].be(Nature::Good);
        }
        Ok(())
    }),
    fault("agents silent for 8 s", |field| {
        field.until(1)?;
        for host in field.last(3) {
            field.site.signal_agent(&host, Signal::SIGSTOP)?;
        }
        Field::sleep(Duration::from_secs(8));
        for host in field.last(3) {
            field.site.signal_agent(&host, Signal::SIGCONT)?;
        }
        Ok(())
    }),
    fault("a host away for the whole rollout, and back", |field| {
        let host = field.last(1).remove(0);
        field.site.kill_agent(&host)?;
        field.end()?;
        ensure!(field.site.daemons[&host].name() != Some(field.name()), "the host changed without an agent");
        field.site.begin_agent(&host)
    }),
    fault("history compacted while agents are silent", |field| {
        let hosts = field.last(2);
        for host in &hosts {
            field.site.signal_agent(host, Signal::SIGSTOP)?;
        }
        field.until(field.site.daemons.len() - 2)?;
        let status = field.site.etcd.ctl(&["get", "healthy", "--write-out=fields"])?;
        let text = String::from_utf8_lossy(&status.stdout).into_owned();
        let revision = text.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap_or_default();
        let compacted = field.site.etcd.ctl(&["compact", revision])?;
        ensure!(compacted.status.success(), "{}", String::from_utf8_lossy(&compacted.stderr));
        for host in &hosts {
            field.site.signal_agent(host, Signal::SIGCONT)?;
        }
        Ok(())
    }),
    Fault { parameters: "rpg_gd = 15", ..harm("worse values: rolled back", |_| Ok(())) },
    harm("one host refuses: rolled back", |field| {
        let host = field.last(1).remove(0);
        field.site.daemons[&host].be(Nature::Refuses);
        field.end()?;
        field.site.daemons[&host].be(Nature::Good);
        Ok(())
    }),
    harm("aborted, and the coordinator killed in the rollback", |field| {
        field.until(3)?;
        field.site.text(&["abort", "--why", "a mistake"])?;
        field.end_coordinators()?;
        field.coordinate()
    }),
    harm("a canary silent: rolled back", |field| {
        // The canary has not changed yet: the coordinator has just started.
        field.site.daemons[&field.canary()].be(Nature::Silent);
        field.end_within(LONG)?;
        field.site.daemons[&field.canary()].be(Nature::Good);
        Ok(())
    }),
    harm("half the throughput of a canary: rolled back", |field| {
        field.site.daemons[&field.canary()].be(Nature::Half);
        field.end_within(LONG)?;
        field.site.daemons[&field.canary()].be(Nature::Good);
        Ok(())
    }),
    harm("a canary dead before it changes: rolled back", |field| {
        let canary = field.canary();
        field.site.daemons[&canary].be(Nature::Slow(Duration::from_secs(2)));
        Field::sleep(Duration::from_millis(1_000));
        field.site.kill_agent(&canary)?;
        field.end_within(LONG)?;
        field.site.daemons[&canary].be(Nature::Good);
        field.site.begin_agent(&canary)
    }),
    harm("a canary dead while it is watched: rolled back", |field| {
        let canary = field.canary();
        field.until(1)?;
        field.site.kill_agent(&canary)?;
        field.end_within(LONG)?;
        field.site.begin_agent(&canary)
    }),
    harm("a canary dead in a later wave: rolled back", |field| {
        let canary = field.canary();
        field.until(2)?;
        field.site.kill_agent(&canary)?;
        field.end_within(LONG)?;
        field.site.begin_agent(&canary)
    }),
    fault("the coordinator silent for 25 s, longer than patience", |field| {
        field.until(1)?;
        field.signal_coordinators(Signal::SIGSTOP)?;
        Field::sleep(Duration::from_secs(25));
        field.signal_coordinators(Signal::SIGCONT)
    }),
    fault("all of etcd silent for 25 s, longer than patience", |field| {
        field.until(1)?;
        for member in 0..field.site.etcd.count() {
            field.site.etcd.signal(member, Signal::SIGSTOP)?;
        }
        Field::sleep(Duration::from_secs(25));
        for member in 0..field.site.etcd.count() {
            field.site.etcd.signal(member, Signal::SIGCONT)?;
        }
        Ok(())
    }),
    fault("records of a host that are not JSON, or too long", |field| {
        field.until(1)?;
        let host = field.last(1).remove(0);
        // A command-line argument is limited to 128 KiB.
        let long = "x".repeat(100_000);
        for (what, value) in [("report", "{"), ("member", "[]"), ("report", long.as_str())] {
            let key = format!("/dcqcn/hosts/ghost/{what}");
            let put = field.site.etcd.ctl(&["put", &key, value])?;
            ensure!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
        }
        let key = format!("/dcqcn/hosts/{host}/report");
        field.site.etcd.ctl(&["put", &key, "{"])?;
        field.site.text(&["status"])?;
        field.end_within(LONG)?;
        field.site.etcd.ctl(&["del", "--prefix", "/dcqcn/hosts/ghost/"])?;
        Ok(())
    }),
    harm("a canary dead during the rollback", |field| {
        let canary = field.canary();
        field.until(3)?;
        field.end_coordinators()?;
        // The next coordinator orders the rollback after the canary has died.
        field.site.run(&["abort"])?;
        field.site.kill_agent(&canary)?;
        field.coordinate()?;
        field.end_within(LONG)?;
        field.site.begin_agent(&canary)
    }),
    Fault {
        is_alone: true,
        ..fault("a canary dead before its turn: paused, then approved", |field| {
            let canary = field.canary();
            field.site.kill_agent(&canary)?;
            field
                .site
                .wait("the host is away", |status| Ok(reporting_hosts(status) < field.site.daemons.len()))?;
            field.coordinate()?;
            field.site.wait("the rollout is paused", |status| Ok(status["rollout"]["is_paused"] == true))?;
            ensure!(field.changed() == 0, "a host changed though no canary was evaluated");
            field.site.text(&["resume"])?;
            field.end_within(LONG)?;
            field.site.begin_agent(&canary)
        })
    },
    fault("a host whose agent is of another version", |field| {
        // Replace the agent by a program that writes the records of another version.
        let host = field.last(1).remove(0);
        field.site.kill_agent(&host)?;
        field.run_rival_agent(&host)?;
        field.site.begin_agent(&host)
    }),
    Fault {
        needs_clock: true,
        ..fault("wall clocks that jump by hours, back and forth", |field| {
            let hosts = [field.canary(), field.last(1).remove(0)];
            let clock = Clock::new()?;
            for host in &hosts {
                field.site.kill_agent(host)?;
                field.site.begin_agent_under(&clock.program(), host)?;
            }
            field.end_coordinators()?;
            field.coordinate_under(&clock.program())?;
            let mut is_over = false;
            for jump in ["+3h", "-5h", "+26h", "-1d"].iter().cycle().take(60) {
                clock.set(jump)?;
                Field::sleep(Duration::from_secs(2));
                is_over = field.is_over()?;
                if is_over {
                    break;
                }
            }
            ensure!(is_over, "no end within two minutes");
            for host in &hosts {
                field.site.kill_agent(host)?;
                field.site.begin_agent(host)?;
            }
            Ok(())
        })
    },
    Fault {
        is_long: true,
        ..fault("the coordinator stopped for ten minutes", |field| {
            field.until(1)?;
            field.signal_coordinators(Signal::SIGSTOP)?;
            Field::sleep(Duration::from_secs(600));
            field.signal_coordinators(Signal::SIGCONT)
        })
    },
    Fault {
        is_long: true,
        ..fault("all of etcd killed, and started again after five minutes", |field| {
            field.until(1)?;
            field.restart_etcd_after(Duration::from_secs(300))
        })
    },
];
