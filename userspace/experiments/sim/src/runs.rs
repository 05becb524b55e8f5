//! Running simulations on all cores, with progress and Ctrl-C.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dcqcn_support::interrupt::Interrupt;
use dcqcn_support::render;
use dcqcn_support::sync::lock;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;

use crate::Error;
use crate::network::{Progress, SimError, Simulation};

/// Interval between updates of the progress line and checks for Ctrl-C.
const TICK: Duration = Duration::from_millis(20);

/// Result of one simulation.
#[derive(Debug)]
pub struct Run<T> {
    pub outcome: T,
    pub wall: Duration,
}

/// Resources used by a simulation. Unlike its results, they differ between equal runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RunCost {
    /// Wall-clock time, s.
    pub wall_seconds: f64,
    pub hops_per_second: f64,
    /// Peak memory of the process so far, B; 0 if the system does not report it.
    pub peak_memory_bytes: u64,
}

impl RunCost {
    pub(crate) fn new(hops: u64, wall: Duration) -> Self {
        let wall_seconds = wall.as_secs_f64();
        let hops_per_second = hops as f64 / wall_seconds.max(1e-9);
        Self { wall_seconds, hops_per_second, peak_memory_bytes: peak_memory_bytes() }
    }
}

/// From Linux' accounting of the process.
fn peak_memory_bytes() -> u64 {
    kilobytes("/proc/self/status", "VmHWM:").unwrap_or(0) * 1_024
}

/// The value of a line of such a file of `/proc`.
fn kilobytes(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?.parse().ok()
}

/// Rejects runs that need more memory than is available, before the system ends the process.
fn check_memory(needed_bytes: u64, available_bytes: Option<u64>) -> Result<(), Error> {
    match available_bytes {
        Some(available_bytes) if needed_bytes > available_bytes => {
            Err(Error::Memory { needed_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

/// Results in the order of the scenarios; `None`: interrupted.
type Results<T> = Vec<Result<Option<Run<T>>, SimError>>;

/// Cores, a progress line on stderr, and Ctrl-C, for any number of calls of [`Pool::run`].
pub(crate) struct Pool {
    threads: usize,
    interrupt: Interrupt,
    bar: ProgressBar,
    /// Completed steps of all calls.
    complete: AtomicU64,
}

impl Pool {
    /// `steps`: total of all calls; `threads`: cores, by default all.
    pub(crate) fn new(steps: u64, threads: Option<u16>) -> Result<Self, Error> {
        let all = || thread::available_parallelism().map_or(1, usize::from);
        let interrupt = Interrupt::catch()?;
        let style = ProgressStyle::with_template("{wide_bar}  {percent:>3} %  {msg}{left}")?.with_key(
            "left",
            |state: &ProgressState, text: &mut dyn fmt::Write| {
                let _ = text.write_str(&left(state.fraction(), state.eta()));
            },
        );
        let bar = ProgressBar::new(steps).with_style(style);
        Ok(Self {
            threads: threads.map_or_else(all, usize::from),
            interrupt,
            bar,
            complete: AtomicU64::new(0),
        })
    }

    /// Runs every scenario: a single one on all cores, several on one each.
    ///
    /// After Ctrl-C, the remaining and interrupted ones have no result. `message` formats the progress line
    /// from the number of remaining runs and the time of the current one.
    pub(crate) fn run<S: Simulation>(
        &self,
        scenarios: &[S],
        message: &dyn Fn(usize, u64) -> String,
    ) -> Result<Vec<Option<Run<S::Outcome>>>, Error> {
        Ok(self.results(scenarios, message)?.into_iter().collect::<Result<_, _>>()?)
    }

    /// As [`Self::run`], with an error for each scenario that failed.
    fn results<S: Simulation>(
        &self,
        scenarios: &[S],
        message: &dyn Fn(usize, u64) -> String,
    ) -> Result<Results<S::Outcome>, Error> {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (now_ns, left) = (AtomicU64::new(0), AtomicUsize::new(scenarios.len()));
        let done: Mutex<Results<S::Outcome>> = Mutex::new(scenarios.iter().map(|_| Ok(None)).collect());
        let (workers, cores) =
            if scenarios.len() > 1 { (self.threads.min(scenarios.len()), 1) } else { (1, self.threads) };
        let most = scenarios.iter().map(Simulation::memory_bytes).max().unwrap_or(0);
        let available = kilobytes("/proc/meminfo", "MemAvailable:").map(|kilobytes| kilobytes * 1_024);
        check_memory(most.saturating_mul(workers as u64), available)?;
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(scenario) = scenarios.get(index) else { return };
                let started = Instant::now();
                let mut reported = 0;
                let mut report = |now: Progress| {
                    self.complete.fetch_add(now.done.saturating_sub(reported), Ordering::Relaxed);
                    reported = now.done;
                    now_ns.store(now.now_ns, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                };
                let result = match scenario.run(cores, &mut report) {
                    Err(SimError::Stopped { .. }) => Ok(None),
                    result => result.map(|outcome| Some(Run { outcome, wall: started.elapsed() })),
                };
                self.complete.fetch_add(scenario.steps().saturating_sub(reported), Ordering::Relaxed);
                let mut done = lock(&done);
                if let Some(slot) = done.get_mut(index) {
                    *slot = result;
                }
                left.fetch_sub(1, Ordering::Relaxed);
            }
        };
        thread::scope(|scope| -> Result<(), Error> {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
                if self.interrupt.sleep(TICK)? {
                    stop.store(true, Ordering::Relaxed);
                }
                self.bar.set_position(self.complete.load(Ordering::Relaxed));
                self.bar.set_message(message(left.load(Ordering::Relaxed), now_ns.load(Ordering::Relaxed)));
            }
            Ok(())
        })?;
        Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The estimated time left, unless too little is done for an estimate.
fn left(done: f32, eta: Duration) -> String {
    if done < 0.01 { String::new() } else { format!(", {:#} left", HumanDuration(eta)) }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Runs scenarios, with a progress line on stderr, after logging each different warning.
///
/// A single one runs on `threads` cores (default: all), several run on one core each. After Ctrl-C, the remaining and
/// interrupted ones have no result. Of several, one that fails is logged, and has none either.
///
/// # Errors
/// All scenarios fail, a setting of one is out of range, or the system has too little memory, or no file descriptor or
/// thread left.
pub(crate) fn run_all<S: Simulation>(
    scenarios: &[S],
    threads: Option<u16>,
) -> Result<Vec<Option<Run<S::Outcome>>>, Error> {
    let warnings: BTreeSet<String> = scenarios.iter().filter_map(Simulation::warning).collect();
    warnings.iter().for_each(|text| tracing::warn!("{text}"));
    let runs = scenarios.len();
    let pool = Pool::new(scenarios.iter().map(Simulation::steps).sum(), threads)?;
    let results = pool.results(scenarios, &|left, now_ns| {
        if runs > 1 { format!("{} of {runs} runs", runs - left) } else { render::ns(now_ns) }
    })?;
    drop(pool);
    let is_wrong_usage = |result: &Result<_, SimError>| matches!(result, Err(SimError::Range(_)));
    if results.iter().any(is_wrong_usage) || results.iter().all(Result::is_err) {
        return Ok(results.into_iter().collect::<Result<_, _>>()?);
    }
    let log = |(run, result): (usize, Result<_, SimError>)| {
        result.inspect_err(|error| tracing::warn!("run {run} of {runs} failed: {error}")).ok().flatten()
    };
    Ok((1..).zip(results).map(log).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_flows_rejected_with_memory() {
        assert!(check_memory(5_000_000_000, Some(5_000_000_000)).is_ok() && check_memory(5, None).is_ok());
        let refused = check_memory(5_100_000_000, Some(5_000_000_000)).unwrap_err().to_string();
        assert!(refused.contains("about 5.10 GB of memory, and 5.00 GB are available"), "{refused}");
        assert!(kilobytes("/proc/meminfo", "MemAvailable:").is_some_and(|kilobytes| kilobytes > 0));
    }

    #[test]
    fn estimate_omitted_below_one_percent() {
        assert_eq!(left(0.009, Duration::from_secs(0)), "");
        assert_eq!(left(0.01, Duration::from_secs(35)), ", 35s left");
    }
}
