//! The run's clock: CLOCK_MONOTONIC, the one the data plane stamps and paces by.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC now, ns. All namespaces of the lab share it, so one-way delays are true.
pub(super) fn now_ns() -> u64 {
    // The clock exists on every Linux since 2.6, and its reading fits 64 bits of ns for 584 years of uptime.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX))
}

/// The part of machine-wide CPU time that is not idle, from `/proc/stat`.
pub(super) struct CpuMeter {
    start: Option<(u64, u64)>,
}

impl CpuMeter {
    /// Starts to measure.
    pub(super) fn start() -> Self {
        Self { start: busy_and_total() }
    }

    /// Share of the CPUs busy since the start, 0 to 1; 0 if the kernel does not say.
    pub(super) fn share(&self) -> f64 {
        match (self.start, busy_and_total()) {
            (Some((busy, total)), Some((busy_now, total_now))) if total_now > total => {
                busy_now.saturating_sub(busy) as f64 / (total_now - total) as f64
            }
            _ => 0.0,
        }
    }
}

/// Ticks of all CPUs: not idle, and all of them (proc_stat(5): user nice system idle iowait irq softirq steal).
fn busy_and_total() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    let total = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    Some((total - idle, total))
}
