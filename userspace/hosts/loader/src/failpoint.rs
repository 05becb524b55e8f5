//! Ending in the middle, for tests: with `DCQCN_TEST_ABORT=N` in the environment the process kills itself at the N-th step it
//! comes to, as `kill -9` would. And `DCQCN_TEST_CLSACT=1` attaches as on a kernel without TCX, which has the same steps with
//! filters in the place of links.
//!
//! Both are in every build, so that what is tested is what is installed. They cost a look at a variable for each step of attaching,
//! detaching or changing, and give nobody a right he has not: who can set the
//! environment can end the process as well.

use std::env;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, raise};

/// The step to end at.
static END: LazyLock<Option<u32>> = LazyLock::new(|| env::var("DCQCN_TEST_ABORT").ok()?.parse().ok());
/// Steps come to so far.
static STEPS: AtomicU32 = AtomicU32::new(0);

/// Whether to do without TCX though the kernel has it.
pub(crate) fn is_without_tcx() -> bool {
    env::var_os("DCQCN_TEST_CLSACT").is_some()
}

/// A place between two changes, at which the process may be killed; `what` has just been done.
pub(crate) fn step(what: &str) {
    let Some(end) = *END else {
        return;
    };
    if STEPS.fetch_add(1, Ordering::Relaxed) + 1 == end {
        eprintln!("DCQCN_TEST_ABORT={end}: killed after: {what}");
        // SIGKILL cannot be refused.
        let _ = raise(Signal::SIGKILL);
    }
}
