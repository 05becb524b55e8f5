//! Notifications to systemd, if it is the parent.
//!
//! Its socket buffers ten messages, then blocks until systemd reads one, and systemd may be busy for long. The daemon's
//! threads must not block, so a message has a short time-out.

use std::env;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;

const TIMEOUT: Duration = Duration::from_millis(100);

/// `READY=1` was not delivered, and must be repeated.
static READY_PENDING: AtomicBool = AtomicBool::new(false);

/// Notifies systemd, if it is the parent.
pub(super) fn notify(state: &[NotifyState<'_>]) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let lines: Vec<String> = state.iter().map(ToString::to_string).collect();
    match send(path, &lines.join("\n")) {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            if state.iter().any(|state| matches!(state, NotifyState::Ready)) {
                READY_PENDING.store(true, Ordering::Relaxed);
            }
            tracing::debug!(message = lines.join(" "), "systemd is busy; notification skipped");
        }
        Err(error) => tracing::warn!(%error, "cannot notify systemd"),
    }
}

pub(super) fn catch_up() {
    if READY_PENDING.swap(false, Ordering::Relaxed) {
        notify(&[NotifyState::Ready]);
    }
}

fn send(path: OsString, message: &str) -> io::Result<()> {
    let path = path.into_vec();
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(&path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    socket.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_manager_not_awaited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let sent =
            (0..1_000).take_while(|_| send(path.clone().into_os_string(), "WATCHDOG=1").is_ok()).count();
        assert!((1..1_000).contains(&sent), "{sent}");
        let mut text = [0; 64];
        let len = socket.recv(&mut text).unwrap();
        assert_eq!(&text[..len], b"WATCHDOG=1");
        assert!(send(path.into_os_string(), "READY=1").is_ok(), "the buffer has space again");
    }
}
