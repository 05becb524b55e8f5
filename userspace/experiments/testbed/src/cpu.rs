//! CPU utilisation of the machine.

/// Measures the non-idle fraction of machine-wide CPU time, from `/proc/stat`.
pub(super) struct CpuMeter {
    start: Option<(u64, u64)>,
}

impl CpuMeter {
    /// Starts the measurement.
    pub(super) fn start() -> Self {
        Self { start: busy_and_total() }
    }

    /// Fraction of CPU time busy since the start, 0 to 1; 0 if unavailable.
    pub(super) fn share(&self) -> f64 {
        match (self.start, busy_and_total()) {
            (Some((busy, total)), Some((busy_now, total_now))) if total_now > total => {
                busy_now.saturating_sub(busy) as f64 / (total_now - total) as f64
            }
            _ => 0.0,
        }
    }
}

/// Ticks of all CPUs: non-idle, and total (proc_stat(5): user nice system idle iowait irq softirq steal).
fn busy_and_total() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> = stat
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|word| word.parse().ok())
        .collect();
    let total = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    Some((total - idle, total))
}
