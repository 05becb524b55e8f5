//! Failpoints for tests, without effect unless the crate is built with the feature `failpoints`.
//!
//! With `DCQCN_TEST_ABORT=N` in the environment the process kills itself with SIGKILL at its N-th step.
//! With `DCQCN_TEST_CLSACT=1` it attaches as on a kernel without TCX, with the same steps but filters
//! instead of links.
//! With `DCQCN_TEST_SPEEDUP=N` the daemon checks attachments N times as often, and waits an N-th of the time
//! between their repairs.
//!
//! The shipped binary lacks the feature, so that no variable makes it do any of this as root.

pub use imp::speedup;
pub(crate) use imp::{is_without_tcx, step};

#[cfg(not(feature = "failpoints"))]
mod imp {
    #[inline]
    pub fn speedup() -> u32 {
        1
    }

    #[inline]
    pub(crate) fn is_without_tcx() -> bool {
        false
    }

    #[inline]
    pub(crate) fn step(_what: &str) {}
}

#[cfg(feature = "failpoints")]
mod imp {
    use std::env;
    use std::num::NonZero;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use nix::sys::signal::{Signal, raise};

    /// Step at which the process kills itself.
    static END: LazyLock<Option<u32>> = LazyLock::new(|| env::var("DCQCN_TEST_ABORT").ok()?.parse().ok());
    static STEPS: AtomicU32 = AtomicU32::new(0);
    static SPEEDUP: LazyLock<Option<NonZero<u32>>> =
        LazyLock::new(|| env::var("DCQCN_TEST_SPEEDUP").ok()?.parse().ok());

    /// Divisor of the time between checks and between repairs of attachments.
    pub fn speedup() -> u32 {
        SPEEDUP.map_or(1, NonZero::get)
    }

    /// Whether to ignore the kernel's support for TCX.
    pub(crate) fn is_without_tcx() -> bool {
        env::var_os("DCQCN_TEST_CLSACT").is_some()
    }

    /// A point between two changes at which the process may be killed; `what` was just done.
    pub(crate) fn step(what: &str) {
        let Some(end) = *END else { return };
        if STEPS.fetch_add(1, Ordering::Relaxed) + 1 == end {
            eprintln!("DCQCN_TEST_ABORT={end}: killed after: {what}");
            // SIGKILL cannot be blocked.
            let _ = raise(Signal::SIGKILL);
        }
    }
}
