//! The end of a terminal or of a reader, next to an event loop's other work.

use std::future;
use std::os::fd::AsFd;
use std::thread;

use anyhow::{Context as _, Result};
use dcqcn_support::interrupt::wait_for_hangup;
use tokio::sync::oneshot;

/// Done when nobody is at the other end of `fd` any more; never for a file.
///
/// # Errors
/// The process has no file descriptor or thread left.
pub fn hangup_of(fd: impl AsFd) -> Result<impl Future<Output = ()>> {
    let fd = fd.as_fd().try_clone_to_owned().context("cannot watch who reads")?;
    let (tell, told) = oneshot::channel();
    // It ends with the process: nothing else wakes it.
    let watch = move || {
        if wait_for_hangup(&fd).is_ok() {
            // Nobody waits for it any more.
            let _ = tell.send(());
        }
    };
    thread::Builder::new().name("hangup".into()).spawn(watch).context("cannot start a thread")?;
    Ok(async move {
        if told.await.is_err() {
            future::pending().await
        }
    })
}
