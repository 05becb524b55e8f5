//! The long-running controller: attaches what its file names, follows interfaces, does what they need a process for.
//!
//! It holds no state of its own. Programs, maps and links are pinned; killed, it leaves the data plane at work, and started
//! again it takes that over.

mod age;
mod backlog;
pub mod config;
mod events;
mod fleet;
mod links;
pub mod log;
mod pairs;
mod privileges;
pub mod serving;
pub(crate) mod tasks;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, future, io};

use anyhow::{Context as _, Result};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

use config::Config;
use fleet::{Fleet, Refused, Scope};
use log::Log;
use serving::MetricsServer;
use watch::FileWatch;

use crate::audit;
use crate::hangup::hangup_of;

/// How often the file and the attachments are looked at.
const TICK: Duration = Duration::from_secs(1);

/// What the daemon is to do.
#[derive(Debug)]
pub struct Options {
    /// Which interfaces.
    pub source: Source,
    /// Detach at the end what was served.
    pub detach_on_exit: bool,
}

/// Where it is said which interfaces the daemon is for.
#[derive(Debug)]
pub enum Source {
    /// A configuration file.
    File(PathBuf),
    /// These interfaces, which are attached already and stay as they are.
    Ifaces(Vec<String>),
}

/// Runs until SIGTERM or SIGINT; started by hand, also until its terminal or the reader of its log is gone.
///
/// # Errors
/// The file is bad, an interface named on the command line is not attached, or the kernel refuses what the daemon
/// cannot be without. Once it runs, what fails is told in the log and tried again.
pub fn run(options: Options, config: Config, log: &Log) -> Result<()> {
    privileges::give_up()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    runtime.block_on(async {
        // Before anything is attached: a signal that comes meanwhile is answered, not deadly.
        let signals = Signals::watch()?;
        Daemon::start(options, config, log)?.serve(signals).await
    })
}

/// What others tell the process.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn watch() -> Result<Self> {
        let on = |kind: SignalKind| -> Result<Signal> { signal(kind).context("cannot watch for signals") };
        Ok(Self {
            hangup: on(SignalKind::hangup())?,
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
        })
    }
}

struct Daemon<'a> {
    fleet: Fleet,
    file: Option<FileWatch>,
    links: Arc<Notify>,
    log: &'a Log,
    metrics: MetricsServer,
    detach_on_exit: bool,
    /// How long systemd waits for a sign of life.
    watchdog: Option<Duration>,
}

impl<'a> Daemon<'a> {
    fn start(options: Options, config: Config, log: &'a Log) -> Result<Self> {
        let Options { source, detach_on_exit } = options;
        // Before the first look, so that nothing is missed between the two.
        let links = links::watch()?;
        let mut metrics = MetricsServer::default();
        let listener = metrics.prepare(config.metrics)?;
        metrics.switch(config.metrics, listener)?;
        let (scope, file) = match source {
            Source::File(path) => {
                if config.interfaces.is_empty() {
                    let file = path.display();
                    tracing::warn!(%file, "names no interface: write an [[interface]] with a name");
                }
                (Scope::File(config), Some(FileWatch::new(path)))
            }
            Source::Ifaces(ifaces) => {
                for iface in &ifaces {
                    dcqcn_plane::attach::open(iface)?;
                }
                (Scope::Named(ifaces), None)
            }
        };
        let mut fleet = Fleet::new(scope)?;
        fleet.follow()?;
        let watchdog = sd_notify::watchdog_enabled();
        Ok(Self { fleet, file, links, log, metrics, detach_on_exit, watchdog })
    }

    async fn serve(mut self, signals: Signals) -> Result<()> {
        let Signals { mut hangup, mut terminate, mut interrupt } = signals;
        let mut tick = interval(self.watchdog.map_or(TICK, |watchdog| TICK.min(watchdog / 2)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Of a daemon that somebody started by hand: a service manager ends it when it wants to.
        let mut reader = Box::pin(async {
            match env::var_os("NOTIFY_SOCKET").is_none().then(|| hangup_of(io::stderr())) {
                Some(Ok(reader)) => reader.await,
                _ => future::pending().await,
            }
        });
        notify(&[NotifyState::Ready, NotifyState::Status(&self.status())]);
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                () = &mut reader => break,
                _ = hangup.recv() => match &self.file {
                    Some(_) => self.reload(),
                    None => break,
                },
                () = self.links.notified() => self.follow(),
                _ = tick.tick() => self.tick(),
            }
        }
        notify(&[NotifyState::Stopping]);
        tracing::info!(detach = self.detach_on_exit, "ending");
        self.fleet.end(self.detach_on_exit);
        Ok(())
    }

    fn tick(&mut self) {
        if self.file.as_mut().is_some_and(FileWatch::has_changed) {
            self.reload();
        }
        match self.fleet.has_changed() {
            Ok(true) => self.follow(),
            Ok(false) => {}
            Err(error) => tracing::error!(error = chain(&error), "cannot look at what is attached"),
        }
        if let Some(watchdog) = self.watchdog {
            match self.fleet.stuck(watchdog) {
                None => notify(&[NotifyState::Watchdog]),
                Some((iface, task)) => tracing::error!(iface, task, "stuck: systemd is not told of life"),
            }
        }
    }

    fn follow(&mut self) {
        if let Err(error) = self.fleet.follow() {
            tracing::error!(error = chain(&error), "cannot look at the interfaces");
        }
        notify(&[NotifyState::Status(&self.status())]);
    }

    /// Reads the file again; a bad one changes nothing.
    fn reload(&mut self) {
        let Some(file) = &mut self.file else {
            return;
        };
        let began = Instant::now();
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => tracing::debug!(%error, "no clock"),
        }
        let path = file.mark().to_owned();
        let name = path.display().to_string();
        let reloaded = Config::load(&path).map_err(Refused::from).and_then(|config| self.apply(config));
        match reloaded {
            Ok(()) => {
                let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                tracing::info!(file = name, took_ms, "reloaded");
            }
            Err(refused) => {
                for line in refused.0.iter().flat_map(|text| text.lines()) {
                    tracing::error!(file = name, error = line, "refused: all stays as it was");
                }
                audit::enter_refusal("", &format!("{name}: {}", refused.0.join("; ")));
            }
        }
        notify(&[NotifyState::Ready, NotifyState::Status(&self.status())]);
    }

    fn apply(&mut self, config: Config) -> Result<(), Refused> {
        let (metrics, format, filter) = (config.metrics, config.log_format, config.log_filter.clone());
        let listener = self.metrics.prepare(metrics)?;
        self.fleet.reload(config)?;
        self.log.set(format, filter.as_deref());
        Ok(self.metrics.switch(metrics, listener)?)
    }

    fn status(&self) -> String {
        match self.fleet.ifaces() {
            none if none.is_empty() => "no interface to serve yet".into(),
            ifaces => format!("serving {}", ifaces.join(", ")),
        }
    }
}

/// An error and its causes on one line; a cause that is told already is left out.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{separator}{cause}");
        }
    }
    text
}

/// Tells systemd, if it is there.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
