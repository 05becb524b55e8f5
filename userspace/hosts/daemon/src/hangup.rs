//! Detection of a closed terminal or pipe, for an event loop.

use std::future;
use std::os::fd::AsFd;
use std::thread;

use dcqcn_support::interrupt::wait_for_hangup;
use tokio::sync::oneshot;

use crate::error::{Context as _, Result};

/// Completes when the other end of `fd` is closed; never for a file.
pub fn hangup_of(fd: impl AsFd) -> Result<impl Future<Output = ()>> {
    let fd = fd.as_fd().try_clone_to_owned().context("cannot watch the log's reader")?;
    let (sender, receiver) = oneshot::channel();
    // The thread ends with the process: nothing else wakes it.
    let watch = move || {
        if wait_for_hangup(&fd).is_ok() {
            // The receiver was dropped.
            let _ = sender.send(());
        }
    };
    thread::Builder::new().name("hangup".into()).spawn(watch).context("cannot start a thread")?;
    Ok(async move {
        if receiver.await.is_err() {
            future::pending().await
        }
    })
}
