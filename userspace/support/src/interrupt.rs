//! The end as a value: a signal, a terminal that is gone, or a reader that is.
//!
//! Commands that run on must end in order: a lab removes its network, a dashboard puts its terminal back. They must also end
//! at all: one that waits in a write that nobody takes, or reads a terminal that is gone again and again, is ended from
//! another thread.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// How long a command has to end in order, if it says what is to be done after that.
const GRACE: Duration = Duration::from_millis(500);

/// What is done if a command does not end in order: as little as possible, for the rest of the process may be stuck.
pub(crate) type LastResort = fn();

/// While this exists, SIGINT, SIGTERM and SIGHUP do not end the process but set a flag, and so does the end of what the
/// process writes to or reads from. Threads started in the meantime inherit that; those started before do not, so it is made
/// first.
#[derive(Debug)]
pub struct Interrupt {
    previous_mask: SigSet,
    signals: Arc<SignalFd>,
    received: Arc<AtomicBool>,
    /// Its other end is closed when the end has come.
    came: PipeReader,
    /// Closed when this is dropped, which ends the thread.
    _alive: PipeWriter,
}

impl Interrupt {
    /// Takes the signals over, and looks whether somebody is still at the other end of standard output. The command has all
    /// the time it needs to end.
    ///
    /// # Errors
    /// The process has no file descriptor or thread left.
    pub fn catch() -> Result<Self> {
        Self::new(vec![dup(io::stdout())?], None)
    }

    /// As [`Self::catch`], for a command that has nothing to revert: should it not have ended after half a second,
    /// `last_resort` is done and the process ended.
    ///
    /// # Errors
    /// As [`Self::catch`].
    pub fn catch_or(last_resort: LastResort) -> Result<Self> {
        Self::new(vec![dup(io::stdout())?], Some(last_resort))
    }

    /// As [`Self::catch_or`], for a command that also needs somebody at its standard input.
    ///
    /// # Errors
    /// As [`Self::catch`].
    pub fn of_terminal(last_resort: LastResort) -> Result<Self> {
        Self::new(vec![dup(io::stdin())?, dup(io::stdout())?], Some(last_resort))
    }

    fn new(needed: Vec<OwnedFd>, last_resort: Option<LastResort>) -> Result<Self> {
        let mask: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("cannot watch for Ctrl-C")?;
        let (came, told) = io::pipe().context("cannot watch for Ctrl-C")?;
        let (alive, _alive) = io::pipe().context("cannot watch for Ctrl-C")?;
        let previous_mask = SigSet::thread_get_mask()?;
        mask.thread_block()?;
        let received = Arc::new(AtomicBool::new(false));
        let signals = Arc::new(signals);
        let watch = Watch {
            signals: Arc::clone(&signals),
            needed,
            alive,
            told,
            received: Arc::clone(&received),
            last_resort,
        };
        let interrupt = Self { previous_mask, signals, received, came, _alive };
        thread::Builder::new()
            .name("interrupt".into())
            .spawn(move || watch.run())
            .context("cannot watch for Ctrl-C")?;
        Ok(interrupt)
    }

    /// Whether the end has come.
    #[must_use]
    pub fn has_come(&self) -> bool {
        self.received.load(Ordering::Acquire)
    }

    /// Sleeps for `time` or until the end comes. Returns whether it has come.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub fn sleep(&self, time: Duration) -> Result<bool> {
        self.wait(None, time)
    }

    /// As [`Self::sleep`]; something to read from `input` ends it too.
    ///
    /// # Errors
    /// As [`Self::sleep`].
    pub fn sleep_unless_read(&self, input: &impl AsFd, time: Duration) -> Result<bool> {
        self.wait(Some(PollFd::new(input.as_fd(), PollFlags::POLLIN)), time)
    }

    fn wait(&self, input: Option<PollFd<'_>>, time: Duration) -> Result<bool> {
        let mut fds = vec![PollFd::new(self.came.as_fd(), PollFlags::POLLIN)];
        fds.extend(input);
        match poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => Ok(self.has_come()),
            Err(errno) => Err(errno).context("cannot wait for signals"),
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

/// Waits until nobody is at the other end of `fd` any more: its pipe has no reader, its terminal is gone. That never
/// comes for a file.
///
/// # Errors
/// The kernel refuses to wait.
pub fn wait_for_hangup(fd: &impl AsFd) -> io::Result<()> {
    loop {
        // Errors and hang-ups are told without being requested.
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::empty())];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn dup(fd: impl AsFd) -> Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned().context("cannot watch standard input and output")
}

/// What the thread looks at.
struct Watch {
    signals: Arc<SignalFd>,
    needed: Vec<OwnedFd>,
    alive: PipeReader,
    told: PipeWriter,
    received: Arc<AtomicBool>,
    last_resort: Option<LastResort>,
}

impl Watch {
    fn run(self) {
        let Self { signals, needed, alive, told, received, last_resort } = self;
        let is_over = loop {
            let mut fds = vec![
                PollFd::new(alive.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            ];
            // Errors and hang-ups are told without being requested.
            fds.extend(needed.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::empty())));
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(0) | Err(Errno::EINTR) => continue,
                // Without this thread nothing would end the command: it ends now.
                Err(_) => break false,
                Ok(_) => break fds.first().is_some_and(|fd| fd.any() == Some(true)),
            }
        };
        if is_over {
            return;
        }
        received.store(true, Ordering::Release);
        drop(told);
        let Some(last_resort) = last_resort else {
            return;
        };
        let mut fds = [PollFd::new(alive.as_fd(), PollFlags::POLLIN)];
        let grace = PollTimeout::try_from(GRACE).unwrap_or(PollTimeout::ZERO);
        if matches!(poll(&mut fds, grace), Ok(0)) {
            last_resort();
            std::process::exit(0);
        }
    }
}
