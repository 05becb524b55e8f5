//! The agent of a host: forwards orders from etcd to the controller, and reports to etcd.
//!
//! It keeps no state: the active configuration is the controller's, the order is in etcd. Without etcd the configuration stays.

mod controller;
mod lease;
mod pending;
pub(crate) mod rates;
mod wanted;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use dcqcn_control_api::Status;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::file::Labels;
use crate::record::{Member, Report, Tried};
use crate::store::Store;
use controller::{Controller, Obeyed};
use lease::Reporting;
use pending::{BUSY, Pending, REFUSED};
use rates::Window;
use wanted::{Order, Wanted};

/// A change that takes longer is reported as under way.
const LONG: Duration = Duration::from_secs(2);

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

/// An agent running.
struct Agent {
    options: Options,
    controller: Controller,
    window: Window,
    tried: Option<Tried>,
    /// What is tried again.
    pending: Option<Pending>,
    /// The complaints that were logged last.
    logged: String,
}

/// Runs until it is dropped. Failures are logged and retried.
///
/// # Errors
/// None.
pub(crate) async fn run(store: Store, options: Options) -> Result<()> {
    let (say, mut wanted) = watch::channel(Wanted::default());
    let (say_period, fleet) = watch::channel(None);
    let watching = wanted::follow(store.clone(), options.host.clone(), say, say_period);
    let (reports, reported) = watch::channel(None);
    let member = Member { labels: options.labels.clone() };
    let (host, ttl_s, every) = (options.host.clone(), options.ttl_s, options.every);
    let reporting = lease::report(Reporting { store, host, member, ttl_s, every, fleet }, reported);
    let mut agent = Agent::new(options);
    let working = async {
        let mut tick = interval(agent.options.look);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                changed = wanted.changed() => if changed.is_err() { return },
            }
            let wanted = wanted.borrow_and_update().clone();
            let due = agent.due(&wanted);
            let turn = agent.turn(wanted);
            tokio::pin!(turn);
            let report = tokio::select! {
                report = &mut turn => report,
                () = sleep(LONG), if due.is_some() => {
                    // A change may take minutes: the fleet should know that it is under way.
                    reports.send_if_modified(|report: &mut Option<Report>| {
                        report.as_mut().map(|report| report.applying = due).is_some()
                    });
                    turn.await
                }
            };
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
        let (window, logged) = (Window::default(), String::new());
        Self { options, controller, window, tried: None, pending: None, logged }
    }

    /// Forwards the order if it is due, and reads the state of the host.
    async fn turn(&mut self, wanted: Wanted) -> Report {
        let mut failing: Vec<String> = wanted.problem.clone().into_iter().collect();
        if self.due(&wanted).is_some()
            && let Some(order) = &wanted.order
        {
            failing.extend(self.obey(order).await);
        }
        let order = wanted.order.as_ref();
        let still = |pending: &&Pending| order.is_some_and(|order| pending.is_of(order.want.target.version));
        failing.extend(self.pending.as_ref().filter(still).and_then(|pending| pending.why.clone()));
        let interfaces = match self.controller.look().await {
            Ok((status, health)) => {
                self.look_at(&status, order);
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
        let logged = failing.join("; ");
        if logged != self.logged {
            let host = &self.options.host;
            tracing::warn!(host, failing = logged, "complaints of this host changed");
            self.logged = logged;
        }
        let (tried, rates) = (self.tried.clone(), self.window.rates());
        Report { tried, applying: None, interfaces, failing, rates }.bounded()
    }

    /// The version to ask the controller for now: one that it does not have, and did not refuse just before.
    fn due(&self, wanted: &Wanted) -> Option<u64> {
        let target = &wanted.order.as_ref()?.want.target;
        let is_done = |tried: &Tried| tried.is_of(target) && tried.error.is_none();
        let waits = |pending: &Pending| pending.is_of(target.version) && pending.at > Instant::now();
        let is_due = !self.tried.as_ref().is_some_and(is_done) && !self.pending.as_ref().is_some_and(waits);
        is_due.then_some(target.version)
    }

    /// Asks the controller for the configuration. Returns why it cannot be asked, if so.
    async fn obey(&mut self, order: &Order) -> Option<String> {
        let target = order.want.target.clone();
        let version = target.version;
        let (by, why) = (&order.want.by, &order.want.why);
        match self.controller.obey(order).await {
            Obeyed::InForce { changed } => {
                if changed {
                    self.window.clear();
                }
                tracing::info!(version, changed, by, why, "configuration active");
                (self.tried, self.pending) = (Some(Tried { target, error: None }), None);
            }
            Obeyed::Refused(error) => {
                // Once: it is tried again for as long as it is ordered.
                if self.tried.as_ref().is_none_or(|tried| !tried.is_of(&target)) {
                    tracing::error!(
                        version,
                        error,
                        "configuration refused; retrying with exponential backoff"
                    );
                }
                self.tried = Some(Tried { target, error: Some(error) });
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

    /// Notes whether the controller still has the configuration: its host's file may no longer allow it, or another program may have
    /// applied another one. It is asked again then, once.
    fn look_at(&mut self, status: &Status, order: Option<&Order>) {
        let Some(order) = order else { return };
        let target = &order.want.target;
        let expected = order.text.as_ref().map(|_| controller::name(target.version));
        let is_done = self.tried.as_ref().is_some_and(|tried| tried.is_of(target) && tried.error.is_none());
        if is_done && status.config != expected {
            tracing::warn!(
                found = status.config,
                expected,
                "the controller has another configuration; asking again"
            );
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
