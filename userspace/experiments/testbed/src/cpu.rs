//! CPU utilisation of the machine.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::error::{Error, Result, failed};

/// Measures the non-idle fraction of machine-wide CPU time, from `/proc/stat`.
#[derive(Debug)]
pub struct CpuMeter {
    start: Option<(u64, u64)>,
}

impl CpuMeter {
    pub fn start() -> Self {
        Self { start: busy_and_total() }
    }

    /// Fraction of CPU time busy since the start, 0 to 1; 0 if unavailable.
    pub fn share(&self) -> f64 {
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

/// Restricts the calling thread, and threads it starts, to one CPU until dropped.
///
/// A veth has a queue per sending CPU (`netif_rx`). A packet sent on one CPU may overtake one queued on another, which
/// RC treats as a loss. Timers of qdiscs and softirqs stay on the CPU that started them.
#[derive(Debug)]
pub(crate) struct OneCpu {
    before: CpuSet,
}

impl OneCpu {
    /// Selects the first CPU that the thread may use.
    pub(crate) fn pin() -> Result<Self> {
        let this = Pid::from_raw(0);
        let before = sched_getaffinity(this).map_err(failed("query the CPU affinity"))?;
        let is_allowed = |cpu: &usize| before.is_set(*cpu).unwrap_or(false);
        let first = (0..CpuSet::count()).find(is_allowed).ok_or(Error::NoCpu)?;
        let mut one = CpuSet::new();
        one.set(first)?;
        sched_setaffinity(this, &one).map_err(failed("set the CPU affinity"))?;
        Ok(Self { before })
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        // Restores the previous set.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_stay_pinned_until_drop() {
        let cpus = || {
            let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
            (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap()).collect::<Vec<_>>()
        };
        let before = cpus();
        let one = OneCpu::pin().unwrap();
        assert_eq!(std::thread::spawn(cpus).join().unwrap(), before[..1]);
        drop(one);
        assert_eq!(cpus(), before);
    }
}
