//! The agent of a host: has the controller do what etcd says, and says in etcd how that goes.
//!
//! It keeps nothing. What is in force is the controller's to keep; what is wanted is in etcd. Without etcd all stays as it is.

mod controller;
mod lease;
mod pending;
mod rates;
mod wanted;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use dcqcn_control_api::Status;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::file::Labels;
use crate::record::{Member, Report, Tried, Want};
use crate::store::Store;
use controller::{Controller, Obeyed};
use lease::Lease;
use pending::{BUSY, Pending, REFUSED};
use rates::Window;

/// What an agent is for.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The host.
    pub(crate) host: String,
    /// Its labels.
    pub(crate) labels: Labels,
    /// Its controller's socket.
    pub(crate) control: PathBuf,
    /// How often it reports when nothing has changed.
    pub(crate) every: Duration,
    /// How long etcd keeps the report of an agent that is gone.
    pub(crate) ttl_s: i64,
    /// How often the controller is asked what it counts.
    pub(crate) look: Duration,
}

/// An agent at work.
struct Agent {
    options: Options,
    controller: Controller,
    window: Window,
    tried: Option<Tried>,
    /// What is tried again.
    pending: Option<Pending>,
    /// What was last complained of.
    told: String,
}

/// Works until it is dropped.
///
/// # Errors
/// None: what fails is told in the log and tried again.
pub(crate) async fn run(store: Store, options: Options) -> Result<()> {
    let (say, mut want) = watch::channel(None);
    let watching = wanted::follow(store.clone(), options.host.clone(), say);
    let (reports, reported) = watch::channel(None);
    let member = Member { labels: options.labels.clone() };
    let reporting = lease::report(
        Lease::new(store, options.host.clone(), options.ttl_s),
        member,
        reported,
        options.every,
    );
    let mut agent = Agent::new(options);
    let working = async {
        let mut tick = interval(agent.options.look);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                changed = want.changed() => if changed.is_err() { return },
            }
            let wanted: Option<Want> = want.borrow_and_update().clone();
            let report = agent.turn(wanted).await;
            reports.send_replace(Some(report));
        }
    };
    tokio::select! {
        () = working => {}
        () = watching => {}
        () = reporting => {}
    }
    Ok(())
}

impl Agent {
    fn new(options: Options) -> Self {
        let controller = Controller::new(&options.control);
        let (window, told) = (Window::default(), String::new());
        Self { options, controller, window, tried: None, pending: None, told }
    }

    /// Has the controller do what is wanted, if it has not, and looks how the host does.
    async fn turn(&mut self, wanted: Option<Want>) -> Report {
        let mut failing = Vec::new();
        if let Some(want) = wanted.as_ref().filter(|want| self.is_due(want.target.version)) {
            failing.extend(self.obey(want).await);
        }
        let pending = self.pending.as_ref();
        let still =
            |pending: &&Pending| wanted.as_ref().is_some_and(|want| pending.is_of(want.target.version));
        failing.extend(pending.filter(still).and_then(|pending| pending.why.clone()));
        let interfaces = match self.controller.look().await {
            Ok((status, health)) => {
                self.look_at(&status, wanted.as_ref());
                failing.extend(complaints(&status));
                failing.extend(health.failing.iter().map(|one| format!("{}: {}", one.interface, one.error)));
                self.window.add(health);
                status.interfaces
            }
            Err(error) => {
                failing.push(error);
                Vec::new()
            }
        };
        failing.sort_unstable();
        failing.dedup();
        let told = failing.join("; ");
        if told != self.told {
            let host = &self.options.host;
            tracing::warn!(host, failing = told, "how this host does has changed");
            self.told = told;
        }
        Report { tried: self.tried.clone(), interfaces, failing, rates: self.window.rates() }
    }

    /// Whether the controller is to be asked for a version now: it has not done it, and did not say no just before.
    fn is_due(&self, version: u64) -> bool {
        let is_done = |tried: &Tried| tried.version == version && tried.error.is_none();
        let waits = |pending: &Pending| pending.is_of(version) && pending.at > Instant::now();
        !self.tried.as_ref().is_some_and(is_done) && !self.pending.as_ref().is_some_and(waits)
    }

    /// Asks the controller for what is wanted. Returns why it cannot be asked, if so.
    async fn obey(&mut self, want: &Want) -> Option<String> {
        let Want { target, by, why, .. } = want;
        let version = target.version;
        match self.controller.obey(want).await {
            Obeyed::InForce { changed } => {
                if changed {
                    self.window.clear();
                }
                tracing::info!(version, changed, by, why, "in force");
                (self.tried, self.pending) = (Some(Tried { version, error: None }), None);
            }
            Obeyed::Refused(error) => {
                // Once: it is tried again for as long as it is wanted.
                if self.tried.as_ref().is_none_or(|tried| tried.version != version) {
                    tracing::error!(
                        version,
                        error,
                        "refused: all stays as it was; tried again, ever more seldom"
                    );
                }
                self.tried = Some(Tried { version, error: Some(error) });
                self.pending = Some(Pending::after(self.pending.take(), version, REFUSED, None));
            }
            Obeyed::Busy(error) => {
                self.pending = Some(Pending::after(self.pending.take(), version, BUSY, Some(error)));
            }
            // Asking costs nothing then: it is tried again at the next turn.
            Obeyed::Unreachable(error) => return Some(error),
        }
        None
    }
}

impl Agent {
    /// Notes whether the controller still has what it was told: its host's file may allow it no longer, or somebody else may have
    /// asked for something else. It is told again then, once.
    fn look_at(&mut self, status: &Status, wanted: Option<&Want>) {
        let Some(want) = wanted else { return };
        let expected = want.text.as_ref().map(|_| controller::name(want.target.version));
        let is_done = self
            .tried
            .as_ref()
            .is_some_and(|tried| tried.version == want.target.version && tried.error.is_none());
        if is_done && status.config != expected {
            tracing::warn!(found = status.config, expected, "the controller has something else: told again");
            self.tried = None;
        }
    }
}

/// What a controller says of itself that is not well.
fn complaints(status: &Status) -> Vec<String> {
    let failing = status.failing.iter().map(|one| format!("{}: {}", one.interface, one.error));
    failing.chain(status.stuck.iter().map(|what| format!("the controller is stuck: {what}"))).collect()
}

#[cfg(test)]
mod tests;
