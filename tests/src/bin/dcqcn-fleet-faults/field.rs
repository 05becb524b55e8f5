//! A fleet with consecutive rollouts, and their results.

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use dcqcn_tests::fleet::{Site, signal, there};
use nix::sys::signal::Signal;

/// Options of a rollout: observed for as long as hosts need for metrics.
const ROLLOUT: &str = "canary = 1\nwave = '25%'\nmax_unavailable = 10\nsoak = '3s'\npatience = '20s'";

/// How a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Reverted,
}

/// A fleet, and a coordinator.
pub(crate) struct Field {
    pub(crate) site: Site,
    coordinators: Vec<Child>,
    /// The version of all hosts.
    version: u64,
    /// The latest version.
    made: u64,
}

impl Field {
    /// Three members of etcd, and a number of hosts with a version.
    pub(crate) fn new(hosts: usize) -> Result<Self> {
        let site = Site::new(3, hosts)?;
        let mut field = Self { site, coordinators: Vec::new(), version: 0, made: 0 };
        let (end, elsewhere) = field.round("rpg_gd = 11", |_| Ok(()))?;
        ensure!(
            end == End::Done && elsewhere.is_empty(),
            "the first version does not get everywhere: {elsewhere:?}"
        );
        Ok(field)
    }

    /// Rolls out `parameters` with a fault during the rollout; returns the hosts with another version.
    pub(crate) fn round(
        &mut self,
        parameters: &str,
        fault: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<(End, Vec<String>)> {
        // A new text each time, or no host would have to change.
        let parameters = format!("{parameters}\nrpg_ai_rate = '{}mbit'", 5 + self.made % 50);
        self.site.text(&["apply", &self.site.file(ROLLOUT, &parameters)?])?;
        self.made += 1;
        self.coordinate()?;
        fault(self)?;
        if self.coordinators.is_empty() {
            self.coordinate()?;
        }
        let hosts = self.site.controllers.len();
        self.site.wait("it is over and all are there", |status| {
            Ok(status["rollout"]["is_over"] == true && there(status) == hosts)
        })?;
        let status = self.site.status()?;
        let is_done = status["rollout"]["status"].as_str().context("no status")?.starts_with("done");
        if is_done {
            self.version = self.made;
        }
        let name = format!("fleet {}", self.version);
        // A host that was away may have it a moment later.
        let settled =
            self.site.settle("every host has it", |_, controller| controller.name() == Some(name.clone()));
        let mut elsewhere = Vec::new();
        if settled.is_err() {
            let others = self.site.controllers.iter().filter(|(_, one)| one.name() != Some(name.clone()));
            elsewhere.extend(others.map(|(host, one)| format!("{host} has {:?}", one.name())));
        }
        self.end_coordinators()?;
        Ok((if is_done { End::Done } else { End::Reverted }, elsewhere))
    }

    /// Starts one more coordinator.
    pub(crate) fn coordinate(&mut self) -> Result<()> {
        self.coordinators.push(self.site.command(&["coordinate", "--tick", "200ms"])?.spawn()?);
        Ok(())
    }

    /// Kills all coordinators.
    pub(crate) fn end_coordinators(&mut self) -> Result<()> {
        for mut coordinator in self.coordinators.drain(..) {
            coordinator.kill()?;
            coordinator.wait()?;
        }
        Ok(())
    }

    /// Name of the version being rolled out.
    pub(crate) fn name(&self) -> String {
        format!("fleet {}", self.made)
    }

    /// Waits until this many hosts have the version being rolled out.
    pub(crate) fn until(&self, hosts: usize) -> Result<()> {
        let name = self.name();
        let has = |one: &dcqcn_tests::fleet::Controller| one.name() == Some(name.clone());
        let enough = |_: &str, _: &dcqcn_tests::fleet::Controller| {
            self.site.controllers.values().filter(|one| has(one)).count() >= hosts
        };
        self.site.settle("so many hosts have it", enough).map(drop)
    }

    /// Waits while the rollout continues.
    pub(crate) fn rest(time: Duration) {
        std::thread::sleep(time);
    }

    /// Whether the rollout is over.
    pub(crate) fn is_over(&self) -> Result<bool> {
        Ok(self.site.status()?["rollout"]["is_over"] == true)
    }

    /// Stops or continues all coordinators.
    pub(crate) fn signal_coordinators(&self, what: Signal) -> Result<()> {
        self.coordinators.iter().try_for_each(|coordinator| signal(coordinator, what))
    }

    /// The host that is changed first.
    pub(crate) fn canary(&self) -> String {
        self.site.controllers.keys().next().cloned().unwrap_or_default()
    }

    /// Waits for the end of the rollout, up to `time`.
    pub(crate) fn end_within(&self, time: Duration) -> Result<()> {
        let began = Instant::now();
        while !self.is_over()? {
            ensure!(began.elapsed() < time, "no end within {} s", time.as_secs());
            Self::rest(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Waits until the rollout is over.
    pub(crate) fn end(&self) -> Result<()> {
        self.site.wait("it is over", |status| Ok(status["rollout"]["is_over"] == true)).map(drop)
    }

    /// Names of some hosts, the last ones: they are changed last.
    pub(crate) fn last(&self, hosts: usize) -> Vec<String> {
        self.site.controllers.keys().rev().take(hosts).cloned().collect()
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        // Fails for processes that have exited.
        let _ = self.end_coordinators();
    }
}
