//! The clock the programs use.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, which `bpf_ktime_get_ns` reads too.
#[must_use]
pub fn monotonic_ns() -> u64 {
    // The clock exists on every Linux.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}
