//! The worker thread: runs everything that may block (on a lock, the verifier, or the kernel's lists), sequentially.
//! Its progress is in the [`SharedState`].

mod orders;
mod overrides;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use dcqcn_control_api::{Applied, Apply, Confirm, Release};
use dcqcn_loader::failpoint;
use dcqcn_loader::pfc_tx::PauseSocket;
use dcqcn_support::causes::one_line;
use dcqcn_telemetry::audit;
use sd_notify::NotifyState;
use tokio::sync::oneshot;
use tokio::sync::watch::Sender;

use super::Source;
use super::config::Config;
use super::interfaces::{self, ManagedInterfaces, Rejection};
use super::log::Log;
use super::manager::notify;
use super::plan::{ReloadOptions, Scope};
use super::serving::{self, Metrics};
use super::watch::FileWatch;
use crate::error::Result;
use crate::shared_state::{Reloaded, SharedState, Snapshot};
use overrides::Overrides;

/// Interval between checks of the file and the attachments.
const TICK: Duration = Duration::from_secs(1);
/// Interval between searches for state of deleted namespaces.
const GC_PERIOD: Duration = Duration::from_secs(60);
/// Initial delay before a temporarily rejected file is retried; it doubles each time, up to [`MAX_RETRY_DELAY`].
const RETRY_DELAY: Duration = Duration::from_secs(10);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(320);
/// Interval between checks of link speeds, in addition to link notifications.
const SPEED_PERIOD: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) enum Command {
    /// Interfaces have changed.
    Follow,
    /// Reload the file.
    Reload,
    /// A client's request over the socket.
    Order(Box<Ordered>),
    /// Shut down, and detach or keep the managed interfaces.
    End { detach: bool },
}

/// A change requested by a client.
#[derive(Debug)]
pub(super) enum Order {
    Reload,
    Apply(Apply),
    Confirm(Confirm),
    Undo(Confirm),
    Release(Release),
}

/// An order, and the channel for its reply.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) order: Order,
    /// The client: user and process.
    pub(super) peer: String,
    pub(super) reply: oneshot::Sender<Result<Applied, Rejection>>,
}

pub(super) struct Worker {
    pub(super) shared: Arc<SharedState>,
    pub(super) log: Log,
    /// Publishes the settings of the metrics server.
    pub(super) metrics: Sender<Option<Metrics>>,
    /// Accept a file that drops every managed interface.
    pub(super) allow_empty: bool,
    /// Socket for PFC frames, if permitted.
    pub(super) pause_socket: Option<PauseSocket>,
}

impl Worker {
    /// Attaches the interfaces, and works until shutdown.
    pub(super) fn run(mut self, source: Source, config: Config, commands: &Receiver<Command>) -> Result<()> {
        self.shared.step();
        let (mut overrides, mut expired) = (Overrides::default(), Vec::new());
        let (scope, file) = match source {
            Source::File(file) => {
                (overrides, expired) = Overrides::begin(config, file.path())?;
                (Scope::File(Box::new(overrides.effective())), Some(file))
            }
            Source::Ifaces(ifaces) => (Scope::Named(ifaces), None),
        };
        let published = Snapshot { bounds: Arc::new(overrides.own.bounds()), ..Snapshot::default() };
        // Attaching takes seconds; publish the override first, for clients that query it in the meantime.
        self.shared.publish(overrides.added_to(&published));
        let interfaces = ManagedInterfaces::new(scope, Arc::clone(&self.shared), self.pause_socket.take())?;
        let now = Instant::now();
        let rejection_limit = RejectionLimit::new(now);
        let mut state = WorkerState {
            worker: self,
            interfaces,
            file,
            retry: None,
            overrides,
            rejection_limit,
            rejection: String::new(),
            failures: LoggedOnce::default(),
            published,
            freed: now,
            measured: now,
            have_links_changed: false,
        };
        state.follow();
        let expired = Config { interfaces: expired, ..Config::default() };
        if let Err(error) = state.interfaces.end_expired(expired) {
            tracing::error!(error = one_line(&error), "cannot end the attachments of an expired override");
        }
        state.published.is_ready = true;
        state.publish();
        notify(&[NotifyState::Ready, NotifyState::Status(&state.status())]);
        let detach = state.serve(commands);
        state.interfaces.end(detach)
    }
}

struct WorkerState {
    worker: Worker,
    interfaces: ManagedInterfaces,
    file: Option<FileWatch>,
    /// The file was rejected, and will be retried.
    retry: Option<Retry>,
    overrides: Overrides,
    rejection_limit: RejectionLimit,
    /// Last rejection, if temporary.
    rejection: String,
    /// Errors of periodic checks as last logged, by check.
    failures: LoggedOnce,
    /// State for clients, without that of the interfaces and overrides.
    published: Snapshot,
    /// Time when state of deleted namespaces was last freed.
    freed: Instant,
    /// Time when link speeds were last checked.
    measured: Instant,
    /// Interfaces have changed since parts were last checked: an inline port in another network namespace still
    /// forwards.
    have_links_changed: bool,
}

/// A file rejected for a temporary reason: a lock, or an unconfirmed change.
#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Instant,
    /// Delay of this retry.
    waited: Duration,
}

impl WorkerState {
    /// Processes requests until shutdown, and returns whether to detach.
    fn serve(&mut self, commands: &Receiver<Command>) -> bool {
        let mut tick = Instant::now() + TICK;
        loop {
            self.worker.shared.step();
            let first = commands.recv_timeout(tick.saturating_duration_since(Instant::now()));
            self.worker.shared.step();
            match first {
                Ok(first) => {
                    let (mut reload, mut follow, mut orders) = (false, false, Vec::new());
                    // Merge a burst of notifications.
                    for command in std::iter::once(first).chain(commands.try_iter()) {
                        match command {
                            Command::End { detach } => return detach,
                            Command::Reload => reload = true,
                            Command::Follow => follow = true,
                            Command::Order(order) => orders.push(*order),
                        }
                    }
                    if reload {
                        // Logged by the callee.
                        let _ = self.reload(true, None);
                    } else if follow {
                        self.follow();
                    }
                    self.have_links_changed |= follow;
                    orders.into_iter().for_each(|order| self.order(order));
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The event loop has ended.
                Err(RecvTimeoutError::Disconnected) => return false,
            }
            if Instant::now() >= tick {
                self.tick();
                tick = Instant::now() + TICK;
            }
        }
    }

    fn tick(&mut self) {
        self.revert_overdue();
        self.revert_unconfirmed();
        if self.freed.elapsed() >= GC_PERIOD {
            self.worker.shared.step();
            interfaces::free(|_| false);
            self.freed = Instant::now();
        }
        let is_time = self.measured.elapsed() >= SPEED_PERIOD / failpoint::speedup();
        let have_changed = std::mem::take(&mut self.have_links_changed);
        if is_time || have_changed || self.interfaces.is_unsure_of_parts() {
            self.worker.shared.step();
            if self.interfaces.check(is_time) {
                self.publish();
            }
        }
        if is_time {
            self.measured = Instant::now();
        }
        let now = Instant::now();
        if self.file.as_mut().is_some_and(|file| file.has_changed(now)) {
            // Logged by the callee.
            let _ = self.reload(false, None);
        } else if let Some(retry) = self.retry.filter(|retry| now >= retry.at)
            && !self.file.as_ref().is_some_and(FileWatch::is_settling)
        {
            // A reload on change keeps parameters set manually since.
            let _ = self.reload(false, Some(retry));
        }
        let has_changed = self.interfaces.has_changed();
        if self.failures.log("cannot list attachments", has_changed) == Some(true) {
            self.follow();
        }
    }

    fn revert_overdue(&mut self) {
        self.failures.log("cannot revert unconfirmed changes", interfaces::revert());
    }

    fn follow(&mut self) {
        let Self { worker, interfaces, overrides, published, .. } = self;
        let mut publish = |interfaces: &ManagedInterfaces, waiting: usize| {
            worker.shared.step();
            publish(&worker.shared, interfaces, overrides, published, waiting);
            notify(&[NotifyState::Status(&status(interfaces, waiting))]);
        };
        if let Err(error) = interfaces.follow(&mut publish) {
            tracing::error!(error = one_line(&error), "cannot list interfaces");
        }
        self.publish();
        notify(&[NotifyState::Status(&self.status())]);
    }

    /// Reloads the file. An invalid one changes nothing, and is read again when it changes. A temporarily rejected one
    /// is retried; `retry`: this is a retry.
    fn reload(&mut self, explicitly: bool, retry: Option<Retry>) -> Result<(), Rejection> {
        // Revert changes not confirmed in time first, as they would block the reload.
        self.revert_overdue();
        let Some(file) = &mut self.file else { return Ok(()) };
        let began = Instant::now();
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => tracing::debug!(%error, "no clock"),
        }
        // Before reading: a write in the meantime triggers another reload.
        file.mark();
        let name = file.path().display().to_string();
        let options = ReloadOptions { explicitly, allow_empty: self.worker.allow_empty, is_revert: false };
        let loaded = Config::load(file.path()).map_err(Rejection::from);
        self.retry = None;
        let previous_error =
            retry.and_then(|_| self.published.reload.take()).map(|reloaded| reloaded.refused);
        let wait = retry.map_or(RETRY_DELAY, |retry| (2 * retry.waited).min(MAX_RETRY_DELAY));
        let result = loaded.and_then(|own| self.switch_file(own, options));
        let refused = match &result {
            Ok(()) => {
                let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                tracing::info!(file = name, took_ms, "reloaded");
                String::new()
            }
            Err(rejection) => {
                let why = rejection.why.join("; ");
                let again = rejection.passes;
                self.retry = again.then(|| Retry { at: Instant::now() + wait, waited: wait });
                // Logged once, not at every retry.
                if previous_error.is_none_or(|before| !equals_ignoring_numbers(&before, &why)) {
                    for line in rejection.why.iter().flat_map(|text| text.lines()) {
                        tracing::error!(
                            file = name,
                            error = line,
                            will_retry = again,
                            "reload rejected; configuration unchanged"
                        );
                    }
                    audit::enter_refusal("", &format!("{name}: {why}"));
                }
                why
            }
        };
        self.published.reload = Some(Reloaded { at: SystemTime::now(), refused });
        self.publish();
        notify(&[NotifyState::Ready, NotifyState::Status(&self.status())]);
        result
    }

    fn switch_to(&mut self, config: Config, options: ReloadOptions) -> Result<(), Rejection> {
        if !options.explicitly && self.interfaces.config() == Some(&config) {
            // Only touched. Parameters set since are kept.
            tracing::info!("configuration unchanged");
            return Ok(());
        }
        let (format, filter, wanted) = (config.log_format, config.log_filter.clone(), config.metrics);
        let served = self.interfaces.config().and_then(|config| config.metrics);
        let Self { worker, interfaces, overrides, published, .. } = self;
        let mut publish = |interfaces: &ManagedInterfaces, waiting: usize| {
            worker.shared.step();
            publish(&worker.shared, interfaces, overrides, published, waiting);
        };
        let listen = interfaces.reload(config, options, || serving::check(wanted, served), &mut publish)?;
        if listen {
            worker.metrics.send_replace(wanted);
        }
        worker.log.set(format, filter.as_deref());
        Ok(())
    }

    fn publish(&self) {
        publish(&self.worker.shared, &self.interfaces, &self.overrides, &self.published, 0);
    }

    fn status(&self) -> String {
        status(&self.interfaces, 0)
    }
}

/// Errors of checks that are repeated every second, which are logged once until the check succeeds.
#[derive(Debug, Default)]
struct LoggedOnce(BTreeMap<&'static str, String>);

impl LoggedOnce {
    /// The result of a check; logs its error.
    fn log<T>(&mut self, check: &'static str, result: Result<T>) -> Option<T> {
        let logged = self.0.entry(check).or_default();
        let error = result.as_ref().err().map(|error| one_line(error)).unwrap_or_default();
        if !error.is_empty() && !equals_ignoring_numbers(&error, logged) {
            tracing::error!(error, "{check}");
        }
        *logged = error;
        result.ok()
    }
}

/// Whether two errors are equal apart from numbers, such as a remaining time.
fn equals_ignoring_numbers(one: &str, other: &str) -> bool {
    let words = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    words(one) == words(other)
}

fn publish(
    shared: &SharedState,
    interfaces: &ManagedInterfaces,
    overrides: &Overrides,
    published: &Snapshot,
    waiting: usize,
) {
    shared.publish(Snapshot {
        served: interfaces.ifaces(),
        failing: interfaces.failing(),
        incomplete: interfaces.incomplete(),
        bypassed: interfaces.bypassed(),
        absent: interfaces.absent(),
        repairs: interfaces.repairs(),
        suspended: interfaces.suspended(),
        waiting,
        ..overrides.added_to(published)
    });
}

fn status(interfaces: &ManagedInterfaces, waiting: usize) -> String {
    let served = match interfaces.ifaces() {
        none if none.is_empty() => "managing no interface yet".into(),
        ifaces if ifaces.len() > 16 => format!("managing {} interfaces", ifaces.len()),
        ifaces => format!("managing {}", ifaces.join(", ")),
    };
    if waiting == 0 { served } else { format!("{served}; {waiting} more to attach") }
}

/// Burst of logged rejections.
const BURST: u32 = 20;
/// Time per further rejection.
const ONE_MORE: Duration = Duration::from_secs(60);

/// Rejections that may still be logged.
#[derive(Debug)]
struct RejectionLimit {
    left: u32,
    /// Time for which `left` is valid.
    since: Instant,
    /// Rejections omitted since the last logged one.
    omitted: u64,
}

impl RejectionLimit {
    fn new(now: Instant) -> Self {
        Self { left: BURST, since: now, omitted: 0 }
    }

    /// The text to log, if allowed: `text`, with the number of omitted rejections.
    fn entry(&mut self, text: String, now: Instant) -> Option<String> {
        while self.left < BURST && now.duration_since(self.since) >= ONE_MORE {
            self.left += 1;
            self.since += ONE_MORE;
        }
        if self.left == BURST {
            self.since = now;
        }
        let Some(left) = self.left.checked_sub(1) else {
            self.omitted += 1;
            return None;
        };
        self.left = left;
        match std::mem::take(&mut self.omitted) {
            0 => Some(text),
            before => Some(format!("{text} ({before} earlier rejections omitted)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Mutex;

    use super::*;
    use crate::error::Error;

    #[test]
    fn repeated_failure_logged_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let writer = Mutex::new(file.reopen().unwrap());
        let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, || {
            let mut failures = LoggedOnce::default();
            let fail = |failures: &mut LoggedOnce, number: u32| {
                let error = Error::NotSocket(format!("/x{number}").into());
                assert_eq!(failures.log::<()>("cannot look", Err(error)), None);
            };
            (0..3).for_each(|number| fail(&mut failures, number));
            assert_eq!(failures.log("cannot look", Ok(7)), Some(7));
            fail(&mut failures, 3);
        });
        assert_eq!(fs::read_to_string(file.path()).unwrap().matches("cannot look").count(), 2);
    }

    #[test]
    fn rejections_logged_then_summarised() {
        let began = Instant::now();
        let mut rejection_limit = RejectionLimit::new(began);
        let entered = (0..1_000).filter_map(|_| rejection_limit.entry("no".into(), began)).count();
        assert_eq!(entered, 20);
        let later = began + ONE_MORE;
        let entry = rejection_limit.entry("no".into(), later);
        assert_eq!(entry.as_deref(), Some("no (980 earlier rejections omitted)"));
        assert_eq!(rejection_limit.entry("no".into(), later), None);
        // After a long pause, the full burst and no more.
        let rested = later + 1_000 * ONE_MORE;
        assert_eq!((0..1_000).filter_map(|_| rejection_limit.entry("no".into(), rested)).count(), 20);
    }
}
