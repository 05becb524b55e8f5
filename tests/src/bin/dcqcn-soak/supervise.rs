//! The supervising process. A child injects the faults; on exit, the child and its remains are removed within a second.

use std::env;
use std::os::unix::process::CommandExt as _;

use dcqcn_netlink::netns::current_cookie;
use dcqcn_support::interrupt::Interrupt;
use dcqcn_tests::prelude::*;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{kill, killpg};

/// Set for the child process.
const WORKER: &str = "DCQCN_SOAK_WORKER";
/// Interval between checks whether it has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for printing its table.
const GRACE: Duration = Duration::from_millis(300);

pub(crate) fn is_worker() -> bool {
    env::var_os(WORKER).is_some()
}

pub(crate) fn run() -> Result<bool> {
    let interrupt = Interrupt::catch()?;
    let directory = tempfile::tempdir()?;
    let mut command = Command::new(env::current_exe()?);
    command.args(env::args_os().skip(1)).env(WORKER, "1").env("TMPDIR", directory.path());
    // A separate process group, so that it, its daemon and its commands end together.
    let mut worker = command.process_group(0).spawn().context("cannot start another process")?;
    let pid = Pid::from_raw(worker.id().try_into()?);
    while worker.try_wait()?.is_none() && !interrupt.sleep(POLL_INTERVAL)? {}
    if worker.try_wait()?.is_none() {
        // Fails if it has just exited.
        let _ = kill(pid, Signal::SIGTERM);
        // A time-out is followed by a kill.
        let _ = wait_for(GRACE, || Ok(worker.try_wait()?.ok_or_else(String::new)));
    }
    let _ = killpg(pid, Signal::SIGKILL);
    let status = worker.wait()?;
    let left = clear(worker.id());
    Ok(left? == 0 && status.success())
}

/// Removes the remains of a killed process: namespaces, file systems, attachments. Returns how many namespaces cannot
/// be removed.
fn clear(pid: u32) -> Result<usize> {
    let names = Netns::list(&format!("dcqcn-test-{pid}-"))?;
    if names.is_empty() {
        return Ok(0);
    }
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mut left = 0;
    for name in &names {
        let cookie = Netns::open(name).and_then(|netns| netns.run(current_cookie)?);
        let journals = cookie.map(|cookie| Path::new("/run/dcqcn").join(format!("ns-{cookie}")));
        if let Ok(journals) = journals
            && mounts.contains(&format!(" {} ", journals.display()))
        {
            let _ = umount2(&journals, MntFlags::MNT_DETACH);
            let _ = fs::remove_dir(&journals);
        }
        left += usize::from(Netns::delete(name).is_err());
    }
    // Attachments of deleted namespaces.
    dcqcn("gc")?.output()?;
    Ok(left)
}
