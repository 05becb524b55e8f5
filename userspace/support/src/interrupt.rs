//! Ctrl-C as a value: the lab must remove its network before it ends.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// While this exists, SIGINT, SIGTERM and SIGHUP do not end the process but set a flag. Threads started meanwhile
/// inherit that; those started before do not, so it is made first.
#[derive(Debug)]
pub struct Interrupt {
    signals: SignalFd,
    previous_mask: SigSet,
    received: AtomicBool,
}

impl Interrupt {
    /// Takes the signals over.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn catch() -> Result<Self> {
        let mask: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("cannot watch for Ctrl-C")?;
        let previous_mask = SigSet::thread_get_mask()?;
        mask.thread_block()?;
        Ok(Self { signals, previous_mask, received: AtomicBool::new(false) })
    }

    /// Sleeps for `time` or until a signal comes. Returns whether one has come.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub fn sleep(&self, time: Duration) -> Result<bool> {
        let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for signals"),
        }
        while self.signals.read_signal()?.is_some() {
            self.received.store(true, Ordering::Relaxed);
        }
        Ok(self.received.load(Ordering::Relaxed))
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        if let Err(errno) = self.previous_mask.thread_set_mask() {
            tracing::error!(%errno, "cannot restore the signal mask");
        }
    }
}
