//! Running fabrics on all cores, with progress and Ctrl-C.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use dcqcn_support::interrupt::Interrupt;
use indicatif::{ProgressBar, ProgressStyle};

use crate::network::{FabricError, Outcome, Progress, Scenario, run};

/// Interval of updating the progress line and checking for Ctrl-C.
const TICK: Duration = Duration::from_millis(20);

/// Result of one scenario.
#[derive(Debug)]
pub struct FabricRun {
    /// Outcome.
    pub outcome: Outcome,
    /// Duration.
    pub wall: Duration,
}

/// Cores, a progress line on stderr, and Ctrl-C, for any number of calls of [`Pool::run`].
pub(crate) struct Pool {
    threads: usize,
    interrupt: Interrupt,
    bar: ProgressBar,
    /// Completed flows of all calls.
    complete: AtomicU64,
}

impl Pool {
    /// `flows`: total of all calls.
    ///
    /// # Errors
    /// The system has no file descriptor or thread left.
    pub(crate) fn new(flows: u64, threads: usize) -> Result<Self> {
        let interrupt = Interrupt::catch()?;
        let style = ProgressStyle::with_template("{wide_bar}  {pos} of {len} flows, {msg}, {eta} left")?;
        let bar = ProgressBar::new(flows).with_style(style);
        Ok(Self { threads, interrupt, bar, complete: AtomicU64::new(0) })
    }

    /// Runs every scenario: a single one on all cores, several on one each. After Ctrl-C, the remaining and interrupted
    /// ones have no result. `message` formats the progress line from the number of remaining runs and the time of the
    /// current one.
    ///
    /// # Errors
    /// A scenario is invalid.
    pub(crate) fn run(
        &self,
        scenarios: &[Scenario],
        message: &dyn Fn(usize, u64) -> String,
    ) -> Result<Vec<Option<FabricRun>>> {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (now_ns, left) = (AtomicU64::new(0), AtomicUsize::new(scenarios.len()));
        let done: Mutex<Vec<Option<Result<FabricRun, FabricError>>>> =
            Mutex::new(scenarios.iter().map(|_| None).collect());
        let (workers, cores) =
            if scenarios.len() > 1 { (self.threads.min(scenarios.len()), 1) } else { (1, self.threads) };
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(scenario) = scenarios.get(index) else { return };
                let started = Instant::now();
                let mut reported = 0;
                let mut report = |progress: Progress| {
                    self.complete.fetch_add(progress.done - reported, Ordering::Relaxed);
                    reported = progress.done;
                    now_ns.store(progress.now_ns, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                };
                let result = run(scenario, cores, &mut report);
                let result = result.map(|outcome| FabricRun { outcome, wall: started.elapsed() });
                self.complete.fetch_add(scenario.workload.flows().len() as u64 - reported, Ordering::Relaxed);
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(slot) = done.get_mut(index) {
                    *slot = Some(result);
                }
                left.fetch_sub(1, Ordering::Relaxed);
            }
        };
        thread::scope(|scope| -> Result<()> {
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
        let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.into_iter()
            .map(|result| match result {
                Some(Ok(run)) => Ok(Some(run)),
                None | Some(Err(FabricError::Stopped { .. })) => Ok(None),
                Some(Err(error)) => Err(error.into()),
            })
            .collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Runs every scenario, a single one on all `threads` cores, several on one each, with a progress line on stderr. After
/// Ctrl-C, the remaining and interrupted ones have no result.
///
/// # Errors
/// A scenario is invalid, or the system has no file descriptor or thread left.
pub fn run_all(scenarios: &[Scenario], threads: usize) -> Result<Vec<Option<FabricRun>>> {
    let flows = scenarios.iter().map(|scenario| scenario.workload.flows().len() as u64).sum();
    let runs = scenarios.len();
    Pool::new(flows, threads)?.run(scenarios, &|left, now_ns| {
        if runs > 1 { format!("{} of {runs} runs", runs - left) } else { dcqcn_support::render::ns(now_ns) }
    })
}
