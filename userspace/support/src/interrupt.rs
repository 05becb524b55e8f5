//! Orderly exit on a signal, a closed terminal, or a closed reader.
//!
//! Long-running commands must exit in order: a lab removes its network, a dashboard restores its terminal. They must
//! also exit in any case: a command that is blocked in a write, or reads a closed terminal in a loop, is ended from
//! another thread.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Time limit of an orderly exit, for commands with a last resort.
const GRACE: Duration = Duration::from_millis(500);

/// Action if a command does not exit in order: minimal, because the rest of the process may be blocked.
pub(crate) type ForcedExit = fn();

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot watch for Ctrl-C")]
    Watch(#[source] io::Error),
    #[error("cannot wait for signals")]
    Wait(#[source] Errno),
}

/// While this exists, SIGINT, SIGTERM and SIGHUP set a flag instead of killing the process, and so does closing the
/// other end of its input or output. Threads inherit that if started later, so it is created first.
#[derive(Debug)]
pub struct Interrupt {
    previous_mask: SigSet,
    signals: Arc<SignalFd>,
    received: Arc<AtomicBool>,
    /// Becomes readable by end of file when the exit is requested.
    request: PipeReader,
    /// Closed on drop, which ends the thread.
    _alive: PipeWriter,
}

impl Interrupt {
    /// Handles the signals, and watches standard output. The time for the exit is unlimited.
    pub fn catch() -> Result<Self, Error> {
        Self::new(&[&io::stdout()], None).map_err(Error::Watch)
    }

    /// As [`Self::catch`], for a command without cleanup: if it has not exited after half a second, `last_resort` runs
    /// and the process exits.
    pub fn catch_or(last_resort: ForcedExit) -> Result<Self, Error> {
        Self::new(&[&io::stdout()], Some(last_resort)).map_err(Error::Watch)
    }

    /// As [`Self::catch_or`], for a command that also needs its standard input.
    pub fn of_terminal(last_resort: ForcedExit) -> Result<Self, Error> {
        Self::new(&[&io::stdin(), &io::stdout()], Some(last_resort)).map_err(Error::Watch)
    }

    fn new(needed: &[&dyn AsFd], last_resort: Option<ForcedExit>) -> io::Result<Self> {
        let needed = needed.iter().map(|fd| fd.as_fd().try_clone_to_owned()).collect::<io::Result<_>>()?;
        let mask: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let (request, requested) = io::pipe()?;
        let (alive, _alive) = io::pipe()?;
        let previous_mask = SigSet::thread_get_mask()?;
        mask.thread_block()?;
        let received = Arc::new(AtomicBool::new(false));
        let signals = Arc::new(signals);
        let (pending, flag) = (Arc::clone(&signals), Arc::clone(&received));
        let interrupt = Self { previous_mask, signals: pending, received: flag, request, _alive };
        let watcher = Watcher { signals, needed, alive, requested, received, last_resort };
        thread::Builder::new().name("interrupt".into()).spawn(move || watcher.run())?;
        Ok(interrupt)
    }

    pub fn is_requested(&self) -> bool {
        self.received.load(Ordering::Acquire)
    }

    /// Sleeps for `time` or until the exit is requested, and returns whether it was.
    pub fn sleep(&self, time: Duration) -> Result<bool, Error> {
        self.wait(None, time)
    }

    /// As [`Self::sleep`]; input from `input` ends it too.
    pub fn sleep_unless_read(&self, input: &impl AsFd, time: Duration) -> Result<bool, Error> {
        self.wait(Some(PollFd::new(input.as_fd(), PollFlags::POLLIN)), time)
    }

    fn wait(&self, input: Option<PollFd<'_>>, time: Duration) -> Result<bool, Error> {
        let mut fds = vec![PollFd::new(self.request.as_fd(), PollFlags::POLLIN)];
        fds.extend(input);
        match poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => Ok(self.is_requested()),
            Err(errno) => Err(Error::Wait(errno)),
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // A second Ctrl-C would be delivered when the mask is restored.
        while matches!(self.signals.read_signal(), Ok(Some(_))) {}
        if let Err(errno) = self.previous_mask.thread_set_mask() {
            tracing::error!(%errno, "cannot restore the signal mask");
        }
    }
}

/// Waits until the other end of `fd` is closed: its pipe has no reader, or its terminal is closed. Never returns for a
/// file.
pub fn wait_for_hangup(fd: &impl AsFd) -> io::Result<()> {
    loop {
        // Errors and hang-ups are always reported.
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::empty())];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

struct Watcher {
    signals: Arc<SignalFd>,
    needed: Vec<OwnedFd>,
    alive: PipeReader,
    requested: PipeWriter,
    received: Arc<AtomicBool>,
    last_resort: Option<ForcedExit>,
}

impl Watcher {
    fn run(self) {
        let Self { signals, needed, alive, requested, received, last_resort } = self;
        let is_over = loop {
            let mut fds = vec![
                PollFd::new(alive.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            ];
            // Errors and hang-ups are always reported.
            fds.extend(needed.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::empty())));
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(0) | Err(Errno::EINTR) => continue,
                // Without this thread the command could not be ended: exit now.
                Err(_) => break false,
                Ok(_) => break fds.first().is_some_and(|fd| fd.any() == Some(true)),
            }
        };
        if is_over {
            return;
        }
        received.store(true, Ordering::Release);
        drop(requested);
        let Some(last_resort) = last_resort else { return };
        let mut fds = [PollFd::new(alive.as_fd(), PollFlags::POLLIN)];
        let grace = PollTimeout::try_from(GRACE).unwrap_or(PollTimeout::ZERO);
        if matches!(poll(&mut fds, grace), Ok(0)) {
            last_resort();
            std::process::exit(0);
        }
    }
}
