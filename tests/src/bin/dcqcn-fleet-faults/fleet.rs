//! Runs consecutive rollouts in a fleet, each with a fault, and checks their outcomes.

use dcqcn_tests::fleet::reporting_hosts;
use dcqcn_tests::prelude::*;

use crate::faults::{Fault, fault};

/// Rollout policy; the soak is long enough for new metrics of every host.
const ROLLOUT: &str = "canary = 1\nwave = '25%'\nmax_unavailable = 10\nsoak = '3s'\npatience = '20s'";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Reverted,
}

pub(crate) struct Fleet {
    pub(crate) fixture: FleetFixture,
    coordinators: Vec<Running>,
    version: u64,
    made: u64,
}

impl Fleet {
    /// Starts an etcd cluster of three members and a number of hosts, and rolls out a first version.
    pub(crate) fn new(hosts: usize) -> Result<Self> {
        let fixture = FleetFixture::new(3, hosts)?;
        let mut fleet = Self { fixture, coordinators: Vec::new(), version: 0, made: 0 };
        let (end, elsewhere, _) = fleet.round(&fault("the first version", |_| Ok(())))?;
        ensure!(end == End::Done && elsewhere.is_empty(), "hosts without the first version: {elsewhere:?}");
        Ok(fleet)
    }

    /// Rolls out a version with a fault, and waits for the end. Returns the outcome, the hosts with another
    /// version than expected, and the time from `apply` to the last host.
    pub(crate) fn round(&mut self, fault: &Fault) -> Result<(End, Vec<String>, Duration)> {
        let parameters = fault.parameters;
        // Hosts with a baseline are preferred as canaries. If all have one, the first host becomes the canary.
        self.fixture.wait("every host has a baseline", |status| {
            let hosts = status["hosts"].as_array().map(Vec::as_slice).unwrap_or_default();
            let packets = |host: &Value| host["rates"]["data_packets"].as_u64().unwrap_or(0);
            Ok(hosts.iter().all(|host| packets(host) >= 30_000))
        })?;
        let began = Instant::now();
        // A new text for each version; otherwise no host would change.
        let parameters = format!("{parameters}\nrpg_ai_rate = '{}mbit'", 5 + self.made % 50);
        self.fixture.text(&["apply", &self.fixture.file(ROLLOUT, &parameters)?])?;
        self.made += 1;
        if !fault.is_alone {
            self.coordinate()?;
        }
        (fault.make)(self)?;
        if self.coordinators.is_empty() {
            self.coordinate()?;
        }
        let hosts = self.fixture.daemons.len();
        self.fixture.wait("the rollout has ended and all hosts report", |status| {
            Ok(status["rollout"]["is_over"] == true && reporting_hosts(status) == hosts)
        })?;
        let status = self.fixture.status()?;
        let is_done = status["rollout"]["status"].as_str().context("no status")?.starts_with("done");
        if is_done {
            self.version = self.made;
        }
        let name = format!("fleet {}", self.version);
        // A host that was away may change shortly afterwards.
        let settled = self
            .fixture
            .wait_for_daemons("every host has the version", |_, daemon| daemon.name() == Some(name.clone()));
        let mut elsewhere = Vec::new();
        if settled.is_err() {
            let others = self.fixture.daemons.iter().filter(|(_, one)| one.name() != Some(name.clone()));
            elsewhere.extend(others.map(|(host, one)| format!("{host} has {:?}", one.name())));
        }
        let took = began.elapsed();
        self.end_coordinators()?;
        Ok((if is_done { End::Done } else { End::Reverted }, elsewhere, took))
    }

    pub(crate) fn coordinate(&mut self) -> Result<()> {
        self.coordinate_under(&[])
    }

    pub(crate) fn coordinate_under(&mut self, program: &[&str]) -> Result<()> {
        let words = ["coordinate", "--tick", "200ms"];
        self.coordinators.push(Running(self.fixture.command_under(program, &words)?.spawn()?));
        Ok(())
    }

    /// Kills all etcd members, and restarts them after `time`.
    pub(crate) fn restart_etcd_after(&mut self, time: Duration) -> Result<()> {
        for member in 0..self.fixture.etcd.count() {
            self.fixture.etcd.kill(member)?;
        }
        thread::sleep(time);
        for member in 0..self.fixture.etcd.count() {
            self.fixture.etcd.begin(member)?;
        }
        self.fixture.etcd.healthy()
    }

    /// Writes records of a host as an agent of another version does, until the rollout has ended.
    ///
    /// The records have unknown fields and metrics, and few known ones.
    pub(crate) fn run_rival_agent(&self, host: &str) -> Result<()> {
        let key = |what: &str| format!("/dcqcn/hosts/{host}/{what}");
        let began = Instant::now();
        while !self.is_over()? {
            ensure!(began.elapsed() < Duration::from_secs(120), "no end within two minutes");
            let order = self.fixture.etcd.ok(&["get", &key("want"), "--print-value-only"])?;
            let mut tried: Value = serde_json::from_str(&order)?;
            tried["took_ms"] = 30.into();
            tried["error"] = Value::Null;
            let rates =
                json!({ "window_ms": 60_000, "data_packets": 60_000, "of": { "latency": { "value": 9 } } });
            let report = json!({ "tried": tried, "rates": rates, "uptime_s": 7 });
            let member = json!({ "labels": {}, "kernel": "6.12" });
            self.fixture
                .etcd
                .put(&[(key("report"), report.to_string()), (key("member"), member.to_string())])?;
            thread::sleep(Duration::from_millis(300));
        }
        let status = self.fixture.status()?;
        let hosts = status["hosts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let own = hosts.iter().find(|one| one["host"] == host).context("the host is not listed")?;
        ensure!(own["has"] == self.made && own["is_there"] == true, "the host was skipped: {own}");
        Ok(())
    }

    pub(crate) fn changed(&self) -> usize {
        let name = Some(self.name());
        self.fixture.daemons.values().filter(|one| one.name() == name).count()
    }

    pub(crate) fn end_coordinators(&mut self) -> Result<()> {
        self.coordinators.drain(..).try_for_each(|mut coordinator| coordinator.kill())
    }

    pub(crate) fn name(&self) -> String {
        format!("fleet {}", self.made)
    }

    pub(crate) fn wait_for_hosts(&self, hosts: usize) -> Result<()> {
        self.fixture
            .wait_for_daemons("enough hosts have the version", |_, _| self.changed() >= hosts)
            .map(drop)
    }

    pub(crate) fn is_over(&self) -> Result<bool> {
        Ok(self.fixture.status()?["rollout"]["is_over"] == true)
    }

    pub(crate) fn signal_coordinators(&self, what: Signal) -> Result<()> {
        self.coordinators.iter().try_for_each(|coordinator| coordinator.signal(what))
    }

    pub(crate) fn canary(&self) -> String {
        self.fixture.daemons.keys().next().cloned().unwrap_or_default()
    }

    pub(crate) fn end(&self) -> Result<()> {
        wait_for(Duration::from_secs(120), || {
            Ok(self.is_over()?.then_some(()).ok_or_else(|| "the rollout goes on".to_owned()))
        })
    }

    pub(crate) fn last(&self, hosts: usize) -> Vec<String> {
        self.fixture.daemons.keys().rev().take(hosts).cloned().collect()
    }
}
