//! The long-running process: attaches the interfaces of its file, follows changes, and runs periodic tasks.
//!
//! It has no state of its own. Programs, maps and links are pinned: killed, it leaves the data plane running, and takes
//! it over when restarted.
//!
//! The event loop handles signals, systemd, link notifications and HTTP, and never blocks. The `worker` thread
//! attaches, reads the file, changes and detaches, and may block. Each kind of task (`tasks`) has one thread for
//! all interfaces.

pub mod config;
mod control_socket;
pub(crate) mod depths;
mod host_congestion;
mod interfaces;
pub mod log;
mod manager;
mod pairs;
mod plan;
mod probe;
pub mod repair;
mod serving;
mod tasks;
mod upkeep;
mod watch;
mod watchdog;
mod work;
mod worker;

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};
use std::{env, future, io, thread};

use caps::{CapSet, Capability, CapsHashSet};
use dcqcn_loader::attach;
use dcqcn_loader::pfc_tx::PauseSocket;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{self as sys, SigSet};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::error::{Context as _, Error, Result};
use crate::hangup::hangup_of;
use crate::metrics::Exporter;
use crate::shared_state::SharedState;
use config::Config;
use log::Log;
use manager::notify;
pub use serving::Metrics;
pub use watch::FileWatch;
use worker::{Command, Worker};

/// Interval of systemd watchdog pings, unless systemd requires a shorter one.
const TICK: Duration = Duration::from_secs(1);
/// Time limit of one step of the worker, unless systemd specifies another: attaching an interface takes a second, and
/// waiting for another command's lock ten.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time to wait for another daemon to release the control socket.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(1);
const SOCKET_RETRY_DELAY: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Options {
    pub source: Source,
    pub detach_on_exit: bool,
    /// Accept a changed file that drops every managed interface.
    pub allow_empty: bool,
}

#[derive(Debug)]
pub enum Source {
    /// A configuration file, watched since before it was read.
    File(FileWatch),
    /// These interfaces, which are attached already and keep their parameters.
    Ifaces(Vec<String>),
}

/// Runs until SIGTERM or SIGINT; started from a terminal, also until the terminal or the log's reader is closed.
///
/// # Errors
/// An interface on the command line is not attached, or a requirement is missing. Once running, errors are logged and
/// retried.
pub fn run(options: Options, config: Config, log: Log) -> Result<()> {
    raise_limit();
    // Needs privileges to give the socket to a group.
    let listener = config.control.as_ref().map(open_socket).transpose()?;
    // Opened while privileged; whether it is needed is known later, and may change.
    let pause_socket = PauseSocket::open().ok();
    drop_privileges()?;
    let Options { source, detach_on_exit, allow_empty } = options;
    match &source {
        Source::File(file) if config.interfaces.is_empty() => {
            let file = file.path().display();
            tracing::warn!(%file, "file has no interface; add an [[interface]] with a name");
        }
        Source::File(_) => config.warn_shadowed(),
        Source::Ifaces(ifaces) => {
            for iface in ifaces {
                attach::open(iface)?;
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let ended = runtime.block_on(async {
        // Before anything is attached, so that a signal in the meantime is handled instead of fatal.
        let signals = Signals::watch()?;
        let shared = Arc::<SharedState>::default();
        let (metrics, wanted) = tokio::sync::watch::channel(config.metrics);
        let exporter = Exporter::of_daemon(Arc::clone(&shared), TIMEOUT);
        let serving = tokio::spawn(serving::serve(wanted, exporter));
        let (sender, ended) = oneshot::channel();
        let (commands, received) = mpsc::channel();
        let follow = commands.clone();
        // Before the first listing, so that no change is missed in between.
        let links = watch::links()?;
        let has_file = matches!(source, Source::File(_));
        let worker = Worker { shared: Arc::clone(&shared), log, metrics, allow_empty, pause_socket };
        let work = move || {
            // The receiver has exited.
            let _ = sender.send(worker.run(source, config, &received));
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
        if let Some(listener) = listener {
            tokio::spawn(control_socket::serve(listener, Arc::clone(&shared), commands.clone(), TIMEOUT)?);
        }
        let shared = EventLoop { shared, commands, has_file, detach_on_exit };
        let result = shared.serve(signals, ended).await;
        serving.abort();
        result
    });
    // A read of maps for an abandoned request must not delay the exit.
    runtime.shutdown_background();
    ended
}

struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn watch() -> Result<Self> {
        // The parent may have blocked them, which is inherited; then only SIGKILL would end the daemon.
        let all: SigSet =
            [sys::Signal::SIGHUP, sys::Signal::SIGTERM, sys::Signal::SIGINT].into_iter().collect();
        all.thread_unblock().context("cannot unblock signals")?;
        let on = |kind| signal(kind).context("cannot watch for signals");
        let [hangup, terminate, interrupt] =
            [SignalKind::hangup(), SignalKind::terminate(), SignalKind::interrupt()].map(on);
        Ok(Self { hangup: hangup?, terminate: terminate?, interrupt: interrupt? })
    }
}

struct EventLoop {
    shared: Arc<SharedState>,
    commands: Sender<Command>,
    has_file: bool,
    detach_on_exit: bool,
}

impl EventLoop {
    /// Runs until shutdown. The worker has then ended, or is abandoned.
    async fn serve(self, mut signals: Signals, mut ended: oneshot::Receiver<Result<()>>) -> Result<()> {
        let watchdog = sd_notify::watchdog_enabled();
        let mut tick = interval(watchdog.map_or(TICK, |watchdog| TICK.min(watchdog / 2)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Only for a daemon started from a terminal: a service manager stops it by a signal.
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
                result = &mut ended => return result.unwrap_or_else(|_| Err(Error::Panicked("the working thread"))),
                _ = signals.hangup.recv() => {
                    if !self.has_file {
                        break;
                    }
                    self.request(Command::Reload);
                }
                _ = tick.tick() => self.ping_watchdog(watchdog.unwrap_or(TIMEOUT), &mut complained),
            }
        }
        notify(&[NotifyState::Stopping]);
        tracing::info!(detach = self.detach_on_exit, "ending");
        self.shared.end();
        if !self.detach_on_exit {
            attach::stop_waiting();
        }
        self.request(Command::End { detach: self.detach_on_exit });
        tokio::select! {
            result = ended => result.unwrap_or(Ok(())),
            // The second signal.
            _ = signals.terminate.recv() => Ok(()),
            _ = signals.interrupt.recv() => Ok(()),
            // An attachment in progress ends before that; the next process undoes an interrupted one.
            () = sleep(TIMEOUT), if !self.detach_on_exit => Ok(()),
        }
    }

    fn request(&self, command: Command) {
        // A worker that has ended needs no order.
        let _ = self.commands.send(command);
    }

    /// Pings the systemd watchdog unless stalled. Startup is included, which may take longer than systemd's interval.
    fn ping_watchdog(&self, late: Duration, complained: &mut bool) {
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
            let usec = u32::try_from(TIMEOUT.as_micros()).unwrap_or(u32::MAX);
            notify(&[NotifyState::ExtendTimeoutUsec(usec)]);
        }
    }
}

/// Opens the control socket. A killed daemon holds it until the kernel has freed its maps.
fn open_socket(control: &config::Control) -> Result<control_socket::Opened> {
    let until = Instant::now() + SOCKET_TIMEOUT;
    loop {
        match control_socket::open(control) {
            Err(Error::SocketInUse(_)) if Instant::now() < until => thread::sleep(SOCKET_RETRY_DELAY),
            opened => return opened,
        }
    }
}

/// Raises the soft limit to the hard limit, which needs no privilege. The low soft limit exists for `select`, which the
/// daemon does not use.
fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of file descriptors: RLIMIT_NOFILE");
    }
}

/// For programs and maps; for links and qdiscs; for programs with packet pointers.
const CAPABILITIES: [Capability; 3] =
    [Capability::CAP_BPF, Capability::CAP_NET_ADMIN, Capability::CAP_PERFMON];

/// Permanently drops all privileges that attaching does not need. Called before any thread starts, because capabilities
/// are per thread.
///
/// # Errors
/// A capability is missing, or the BPF file system cannot be mounted.
fn drop_privileges() -> Result<()> {
    const READ: &str = "cannot read the capabilities";
    // Mounting the BPF file system, and finding that of another mount namespace, needs privileges dropped below.
    attach::hold_file_system()?;
    let retained: CapsHashSet = CAPABILITIES.into_iter().collect();
    prctl::set_no_new_privs().context("cannot set no_new_privs")?;
    caps::clear(None, CapSet::Ambient).context("cannot clear the ambient capabilities")?;
    caps::clear(None, CapSet::Inheritable).context("cannot clear the inheritable capabilities")?;
    // Without CAP_SETPCAP the bounding set is unchanged; no_new_privs makes it harmless.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).context(READ)? {
        for capability in caps::runtime::thread_all_supported().difference(&retained) {
            caps::drop(None, CapSet::Bounding, *capability)
                .context(format_args!("cannot drop {capability} from the bounding set"))?;
        }
    }
    let left: CapsHashSet =
        caps::read(None, CapSet::Permitted).context(READ)?.intersection(&retained).copied().collect();
    if left.len() != CAPABILITIES.len() {
        return Err(Error::Capabilities);
    }
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &left).context("cannot drop capabilities")?;
    }
    tracing::debug!(?left, "capabilities dropped");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_becomes_the_hard_one() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard.min(1_000), hard).unwrap();
        raise_limit();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
    }

    #[test]
    fn socket_of_killed_daemon_awaited() {
        let dir = tempfile::tempdir().unwrap();
        let control = config::Control { socket: dir.path().join("control"), group: None };
        let killed = control_socket::open(&control).unwrap();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            drop(killed);
        });
        let _running = open_socket(&control).unwrap();
        assert!(matches!(open_socket(&control), Err(Error::SocketInUse(_))));
    }
}
