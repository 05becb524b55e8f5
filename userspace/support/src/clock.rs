//! The clock of the BPF programs, and the clock of attachments.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, as returned by `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    // The clock exists on every Linux.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// CLOCK_BOOTTIME, which advances while the machine is suspended.
pub fn boottime_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}
