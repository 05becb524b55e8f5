//! The long-running controller: attaches what its file names, follows interfaces, does what they need a process for.
//!
//! It holds no state of its own. Programs, maps and links are pinned; killed, it leaves the data plane running, and started
//! again it takes that over.
//!
//! One thread answers: signals, systemd, changes of interfaces, HTTP. It never waits for anything else. Another works
//! (`worker`): it attaches, reads the file, changes and detaches, and may wait for as long as that takes. Each kind of task
//! (`tasks`) has a thread that goes from interface to interface.

mod age;
mod backlog;
mod change;
pub mod config;
mod control_socket;
mod depths;
mod descriptors;
mod events;
mod interfaces;
mod links;
pub mod log;
mod manager;
mod order;
mod pacer;
mod pairs;
mod pfc_tx;
mod plan;
mod privileges;
pub mod repair;
mod serving;
mod tasks;
mod watch;
mod watchdog;
mod work;
mod worker;

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;
use std::{env, future, io, thread};

use anyhow::{Context as _, Result, anyhow};
use dcqcn_loader::pfc_tx::PauseSocket;
use dcqcn_support::causes::one_line;
use nix::sys::signal::{self as sys, SigSet};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};

use config::Config;
use log::Log;
use manager::notify;
pub use serving::Metrics;
pub use watch::FileWatch;
use worker::{Command, Worker};

use crate::hangup::hangup_of;
use crate::metrics::Exporter;
use crate::shared_state::SharedState;

/// How often systemd is told of life, unless it wants to hear of it more often.
const TICK: Duration = Duration::from_secs(1);
/// Longest time that one step of the work may take, unless systemd says another: attaching one interface takes a second, and
/// waiting for another command that does ten.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the work under way has to end. What it leaves half done is finished, or undone, by whoever comes next.
const GRACE: Duration = Duration::from_millis(1_500);

/// What the daemon is to do.
#[derive(Debug)]
pub struct Options {
    /// Which interfaces.
    pub source: Source,
    /// Detach at the end what was served.
    pub detach_on_exit: bool,
    /// Take a changed file that leaves nothing of what is served.
    pub allow_empty: bool,
}

/// Where it is said which interfaces the daemon is for.
#[derive(Debug)]
pub enum Source {
    /// A configuration file; it is watched since before it was read.
    File(FileWatch),
    /// These interfaces, which are attached already and stay as they are.
    Ifaces(Vec<String>),
}

/// Runs until SIGTERM or SIGINT; started by hand, also until its terminal or the reader of its log is gone.
///
/// # Errors
/// An interface named on the command line is not attached, or the kernel refuses what the daemon cannot be without. Once it
/// runs, what fails is told in the log and tried again.
pub fn run(options: Options, config: Config, log: Log) -> Result<()> {
    descriptors::raise_limit();
    // While it may still give the socket to a group.
    let door = config.control.as_ref().map(control_socket::open).transpose()?;
    // While it may; whether anybody wants it is known later, and changes.
    let pause_socket = PauseSocket::open().ok();
    privileges::give_up()?;
    let Options { source, detach_on_exit, allow_empty } = options;
    match &source {
        Source::File(file) if config.interfaces.is_empty() => {
            let file = file.path().display();
            tracing::warn!(%file, "names no interface: write an [[interface]] with a name");
        }
        Source::File(_) => {}
        Source::Ifaces(ifaces) => {
            for iface in ifaces {
                dcqcn_loader::attach::open(iface)?;
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let ended = runtime.block_on(async {
        // Before anything is attached: a signal that comes in the meantime is answered, not deadly.
        let signals = Signals::watch()?;
        let shared = Arc::<SharedState>::default();
        let (metrics, wanted) = tokio::sync::watch::channel(config.metrics);
        let exporter = Exporter::of_daemon(Arc::clone(&shared), PATIENCE);
        let serving = tokio::spawn(serving::serve(wanted, exporter));
        let (tell, ended) = oneshot::channel();
        let (commands, received) = mpsc::channel();
        let follow = commands.clone();
        // Before the first look, so that nothing is missed between the two.
        let links = links::watch()?;
        let has_file = matches!(source, Source::File(_));
        let worker = Worker { shared: Arc::clone(&shared), log, metrics, allow_empty, pause_socket };
        let work = move || {
            // Nobody waits for it any more.
            let _ = tell.send(worker.run(source, config, &received));
        };
        thread::Builder::new().name("work".into()).spawn(work).context("cannot start a thread")?;
        tokio::spawn(async move {
            loop {
                links.notified().await;
                if follow.send(Command::Follow).is_err() {
                    return;
                }
            }
        });
        if let Some(door) = door {
            tokio::spawn(control_socket::serve(door, Arc::clone(&shared), commands.clone(), PATIENCE)?);
        }
        let shared = Answering { shared, commands, has_file, detach_on_exit };
        let result = shared.serve(signals, ended).await;
        serving.abort();
        result
    });
    // What reads maps for a request that nobody waits for any more must not hold the end up.
    runtime.shutdown_background();
    ended
}

/// What others tell the process.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn watch() -> Result<Self> {
        // Whoever started this may have blocked them for itself, which is inherited; then only -9 would end it.
        let all: SigSet =
            [sys::Signal::SIGHUP, sys::Signal::SIGTERM, sys::Signal::SIGINT].into_iter().collect();
        all.thread_unblock().context("cannot let signals in")?;
        let on = |kind: SignalKind| -> Result<Signal> { signal(kind).context("cannot watch for signals") };
        Ok(Self {
            hangup: on(SignalKind::hangup())?,
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
        })
    }
}

/// The thread that answers.
struct Answering {
    shared: Arc<SharedState>,
    commands: Sender<Command>,
    has_file: bool,
    detach_on_exit: bool,
}

impl Answering {
    /// Answers until the end. The work has ended then, or is left as it is.
    async fn serve(self, mut signals: Signals, mut ended: oneshot::Receiver<Result<()>>) -> Result<()> {
        // How long systemd waits for a sign of life.
        let watchdog = sd_notify::watchdog_enabled();
        let mut tick = interval(watchdog.map_or(TICK, |watchdog| TICK.min(watchdog / 2)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Of a daemon that somebody started by hand: a service manager ends it when it wants to.
        let mut reader = Box::pin(async {
            match env::var_os("NOTIFY_SOCKET").is_none().then(|| hangup_of(io::stderr())) {
                Some(Ok(reader)) => reader.await,
                _ => future::pending().await,
            }
        });
        let mut complained = false;
        loop {
            tokio::select! {
                _ = signals.terminate.recv() => break,
                _ = signals.interrupt.recv() => break,
                () = &mut reader => break,
                result = &mut ended => return result.unwrap_or_else(|_| Err(anyhow!("the working thread panicked"))),
                _ = signals.hangup.recv() => {
                    if !self.has_file {
                        break;
                    }
                    self.ask(Command::Reload);
                }
                _ = tick.tick() => self.tell_of_life(watchdog.unwrap_or(PATIENCE), &mut complained),
            }
        }
        notify(&[NotifyState::Stopping]);
        tracing::info!(detach = self.detach_on_exit, "ending");
        self.shared.end();
        self.ask(Command::End { detach: self.detach_on_exit });
        if self.detach_on_exit {
            tokio::select! {
                result = ended => result.unwrap_or(Ok(())),
                // Asked twice.
                _ = signals.terminate.recv() => Ok(()),
                _ = signals.interrupt.recv() => Ok(()),
            }
        } else {
            timeout(GRACE, ended).await.unwrap_or(Ok(Ok(()))).unwrap_or(Ok(()))
        }
    }

    fn ask(&self, command: Command) {
        // One that has ended needs no command.
        let _ = self.commands.send(command);
    }

    /// Tells systemd of life, if there is some. Before all is attached that takes longer than systemd waits otherwise.
    fn tell_of_life(&self, late: Duration, complained: &mut bool) {
        if let Some(what) = self.shared.stuck(late) {
            if !std::mem::replace(complained, true) {
                tracing::error!(what, "stalled: withholding the systemd watchdog ping");
            }
            return;
        }
        *complained = false;
        manager::catch_up();
        notify(&[NotifyState::Watchdog]);
        if !self.shared.snapshot().is_ready {
            let usec = u32::try_from(PATIENCE.as_micros()).unwrap_or(u32::MAX);
            notify(&[NotifyState::ExtendTimeoutUsec(usec)]);
        }
    }
}

/// Notice of a change of interfaces.
type Changed = Arc<Notify>;

/// An error and its causes on one line.
fn chain(error: &anyhow::Error) -> String {
    one_line(error.as_ref())
}
