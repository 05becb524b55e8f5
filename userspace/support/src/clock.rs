//! The clock the programs use, and the one that attachments are timed by.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, which `bpf_ktime_get_ns` reads too.
#[must_use]
pub fn monotonic_ns() -> u64 {
    // The clock exists on every Linux.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// CLOCK_BOOTTIME: it goes on while the machine is suspended.
#[must_use]
pub fn boottime_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}
