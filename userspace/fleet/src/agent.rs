//! The agent of a host: forwards orders from etcd to the daemon, and reports to etcd.
//!
//! The agent is stateless: the daemon persists the active configuration, and etcd the order. During an etcd outage the
//! configuration remains active.

pub(crate) mod daemon;
mod lease;
mod order;
pub(crate) mod rates;

use dcqcn_control_api::{ClientError, Status};
use tokio::sync::watch;

use crate::prelude::*;
use daemon::DaemonClient;
use order::{LatestOrder, Order};
use rates::Window;

/// A change that takes longer is reported as in progress.
const PROGRESS_DELAY: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) host: String,
    pub(crate) labels: Labels,
    pub(crate) control: PathBuf,
    /// Reporting period while nothing changes.
    pub(crate) every: Duration,
    pub(crate) ttl_s: i64,
    pub(crate) look: Duration,
}

struct Agent {
    options: Options,
    daemon: DaemonClient,
    window: Window,
    tried: Option<Tried>,
    pending: Option<Pending>,
    logged: String,
}

/// Runs until it is dropped, unless another agent controls the daemon. Other failures are logged and retried.
pub(crate) async fn run(store: Store, options: Options) -> Result<()> {
    let mut agent = Agent::new(options.clone());
    agent.daemon.claim()?;
    let (sender, mut latest) = watch::channel(LatestOrder::default());
    let (period_sender, fleet) = watch::channel(None);
    let watching = order::follow(store.clone(), options.host.clone(), sender, period_sender);
    let (reports, reported) = watch::channel(None);
    let reporting = lease::report(store, options, fleet, reported);
    let working = async {
        let mut tick = interval(agent.options.look);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                changed = latest.changed() => if changed.is_err() { return },
            }
            let latest = latest.borrow_and_update().clone();
            let due = agent.due(&latest);
            let step = agent.step(latest);
            tokio::pin!(step);
            let report = tokio::select! {
                report = &mut step => report,
                () = sleep(PROGRESS_DELAY), if due.is_some() => {
                    // A change may take minutes: report it as in progress.
                    reports.send_if_modified(|report: &mut Option<Report>| {
                        report.as_mut().map(|report| report.applying = due).is_some()
                    });
                    step.await
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
        let daemon = DaemonClient::new(&options.control);
        let (window, logged) = (Window::default(), String::new());
        Self { options, daemon, window, tried: None, pending: None, logged }
    }

    /// Forwards the order if it is due, and samples the state of the host.
    async fn step(&mut self, latest: LatestOrder) -> Report {
        let mut failing: Vec<String> = latest.problem.clone().into_iter().collect();
        // One that was removed with its socket, or did not exist yet.
        if let Err(error) = self.daemon.claim() {
            failing.push(error.to_string());
        } else if self.due(&latest).is_some()
            && let Some(order) = &latest.order
        {
            failing.extend(self.apply(order).await);
        }
        let order = latest.order.as_ref();
        let still =
            |pending: &&Pending| order.is_some_and(|order| pending.concerns(order.desired.target.version));
        failing.extend(self.pending.as_ref().filter(still).and_then(|pending| pending.why.clone()));
        let interfaces = match self.daemon.poll().await {
            Ok((status, health)) => {
                self.check_config(&status, order);
                failing.extend(complaints(&status));
                failing.extend(health.failing.iter().map(|one| format!("{}: {}", one.interface, one.error)));
                self.window.add(health);
                status.interfaces
            }
            Err(error) => {
                failing.push(error.to_string());
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

    /// The version to request from the daemon now, unless it is active or waits for a retry.
    fn due(&self, latest: &LatestOrder) -> Option<u64> {
        let target = &latest.order.as_ref()?.desired.target;
        let is_done = |tried: &Tried| tried.applied(target);
        let waits = |pending: &Pending| pending.concerns(target.version) && pending.at > Instant::now();
        let is_due = !self.tried.as_ref().is_some_and(is_done) && !self.pending.as_ref().is_some_and(waits);
        is_due.then_some(target.version)
    }

    /// Requests the configuration from the daemon. Returns the error if the daemon is unreachable.
    async fn apply(&mut self, order: &Order) -> Option<String> {
        let target = order.desired.target.clone();
        let version = target.version;
        let (by, why) = (&order.desired.by, &order.desired.why);
        match self.daemon.apply(order).await {
            Ok(changed) => {
                if changed {
                    self.window.clear();
                }
                tracing::info!(version, changed, by, why, "configuration active");
                (self.tried, self.pending) = (Some(Tried { target, error: None }), None);
            }
            Err(error) if error.is_refusal() => {
                let error = error.to_string();
                // Log the first rejection only: the order is retried for as long as it exists.
                if self.tried.as_ref().is_none_or(|tried| !tried.concerns(&target)) {
                    tracing::error!(
                        version,
                        error,
                        "configuration rejected; retrying with exponential backoff"
                    );
                }
                self.tried = Some(Tried { target, error: Some(error) });
                self.pending = Some(Pending::after(self.pending.take(), version, REFUSED, None));
            }
            // A change of unknown result may still complete.
            Err(error @ (ClientError::Busy(_) | ClientError::Unknown(_))) => {
                let why = Some(error.to_string());
                self.pending = Some(Pending::after(self.pending.take(), version, BUSY, why));
            }
            // No backoff: the next step retries, which is cheap.
            Err(error) => return Some(error.to_string()),
        }
        None
    }

    /// Checks that the daemon still has the configuration, and schedules a new request if not: the host's file may no
    /// longer allow it, or another program may have applied another one.
    fn check_config(&mut self, status: &Status, order: Option<&Order>) {
        let Some(order) = order else { return };
        let target = &order.desired.target;
        let expected = order.text.as_ref().map(|_| daemon::name(target.version));
        // Without a group the host has its own file, which other clients may override.
        let found = status.config.as_ref().filter(|name| expected.is_some() || daemon::is_of_fleet(name));
        let is_done = self.tried.as_ref().is_some_and(|tried| tried.applied(target));
        if is_done && found != expected.as_ref() {
            tracing::warn!(
                found = status.config,
                expected,
                "daemon has another configuration; requesting ours again"
            );
            self.tried = None;
        }
    }
}

fn complaints(status: &Status) -> Vec<String> {
    let failing = status.failing.iter().map(|one| format!("{}: {}", one.interface, one.error));
    let stuck = status.stuck.iter().map(|what| format!("the daemon is stalled: {what}"));
    let overdue = status.overdue.iter().map(|what| format!("the daemon cannot revert: {what}"));
    failing.chain(stuck).chain(overdue).collect()
}

/// Exponential backoff: the first pause, which doubles with each retry, and the longest.
type Pauses = (Duration, Duration);

/// Backoff after a transient error: a lock is held, or an unconfirmed trial is pending.
const BUSY: Pauses = (Duration::from_secs(1), Duration::from_secs(30));
/// Backoff after a rejection. A rejection may be temporary too (full disk, bounds in the host's own file),
/// but every attempt is logged on the host. The default `patience` of 60 s allows two retries.
const REFUSED: Pauses = (Duration::from_secs(10), Duration::from_secs(300));

#[derive(Debug)]
struct Pending {
    version: u64,
    at: Instant,
    pause: Duration,
    why: Option<String>,
}

impl Pending {
    /// Schedules a retry after a failed attempt at `version`; `before` is the previous retry, if any.
    fn after(before: Option<Self>, version: u64, (first, longest): Pauses, why: Option<String>) -> Self {
        let before = before.filter(|before| before.concerns(version));
        let pause = before.map_or(first, |before| (before.pause * 2).clamp(first, longest));
        Self { version, at: Instant::now() + pause, pause, why }
    }

    const fn concerns(&self, version: u64) -> bool {
        self.version == version
    }
}

#[cfg(test)]
mod tests;
