//! Running many simulations on all cores, with progress and Ctrl-C.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use dcqcn_support::interrupt::Interrupt;
use indicatif::{ProgressBar, ProgressStyle};

use super::knobs::SetupError;
use super::presets::Setting;
use super::{Outcome, Scenario, SimError, run};

/// Interval of updating the progress line and checking for Ctrl-C.
const TICK: Duration = Duration::from_millis(20);
/// Maximum number of combinations of one sweep.
pub(crate) const MAX_RUNS: usize = 10_000;

/// A setting and its values, as in `kmax=200KB,400KB,1MB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The setting with each value, in order.
    pub settings: Vec<Setting>,
}

impl std::str::FromStr for Axis {
    type Err = SetupError;

    fn from_str(text: &str) -> Result<Self, SetupError> {
        let syntax =
            || SetupError(format!("`{text}` is not KEY=VALUE,VALUE,..., as in `kmax=200KB,400KB,1MB`"));
        let (key, values) = text.split_once('=').ok_or_else(syntax)?;
        if values.trim().is_empty() {
            return Err(syntax());
        }
        let settings = values.split(',').map(|value| Setting::new(key.trim(), value.trim()));
        Ok(Self { settings: settings.collect::<Result<_, _>>()? })
    }
}

/// All combinations of the axes' values; the last axis changes fastest. Without axes, a single empty one.
///
/// # Errors
/// There are too many combinations, or an axis is given twice.
pub fn combinations(axes: &[Axis]) -> Result<Vec<Vec<Setting>>, SetupError> {
    let key = |axis: &Axis| axis.settings.first().map(|setting| setting.key.clone()).unwrap_or_default();
    for (index, axis) in axes.iter().enumerate() {
        let name = key(axis);
        if axes.iter().take(index).any(|before| key(before) == name) {
            return Err(SetupError(format!(
                "`{name}` is swept twice; specify all its values in one --sweep"
            )));
        }
    }
    let mut combinations = vec![Vec::new()];
    for axis in axes {
        let count = combinations.len() * axis.settings.len();
        if count > MAX_RUNS {
            return Err(SetupError(format!(
                "the sweep has at least {count} combinations; the maximum is {MAX_RUNS}"
            )));
        }
        let longer = |before: &Vec<Setting>| {
            let before = before.clone();
            axis.settings.iter().map(move |setting| before.iter().cloned().chain([setting.clone()]).collect())
        };
        combinations = combinations.iter().flat_map(longer).collect();
    }
    Ok(combinations)
}

/// Result of one scenario.
#[derive(Debug)]
pub struct Run {
    /// Outcome.
    pub outcome: Outcome,
    /// Duration.
    pub wall: Duration,
}

/// Runs every scenario, as many at a time as there are cores, with a progress line on stderr. After Ctrl-C, the
/// remaining and interrupted ones have no result.
///
/// # Errors
/// A scenario is invalid, or the system has no file descriptor or thread left.
pub fn run_all(scenarios: &[Scenario]) -> Result<Vec<Option<Run>>> {
    let interrupt = Interrupt::catch()?;
    let progress = progress_line(scenarios)?;
    let work = Work {
        scenarios,
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        simulated_ns: AtomicU64::new(0),
        left: AtomicUsize::new(scenarios.len()),
        done: Mutex::new(scenarios.iter().map(|_| None).collect()),
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(scenarios.len());
    thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(|| work.all())).collect();
        while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
            if interrupt.sleep(TICK)? {
                work.stop.store(true, Ordering::Relaxed);
            }
            progress.set_position(work.simulated_ns.load(Ordering::Relaxed) / NS_PER_STEP);
            let finished = scenarios.len() - work.left.load(Ordering::Relaxed);
            progress.set_message(format!("{finished} of {} runs", scenarios.len()));
        }
        Ok(())
    })?;
    progress.finish_and_clear();
    let done = work.done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.into_iter()
        .map(|result| match result {
            Some(Ok(run)) => Ok(Some(run)),
            None | Some(Err(SimError::Stopped { .. })) => Ok(None),
            Some(Err(error)) => Err(error.into()),
        })
        .collect()
}

/// Simulated time per step of the progress line.
const NS_PER_STEP: u64 = 1_000;

fn progress_line(scenarios: &[Scenario]) -> Result<ProgressBar> {
    let steps: u64 = scenarios.iter().map(|scenario| scenario.duration_ns / NS_PER_STEP).sum();
    let style = ProgressStyle::with_template("{wide_bar}  {percent:>3} %  {msg}, {eta} left")?;
    Ok(ProgressBar::new(steps).with_style(style))
}

struct Work<'a> {
    scenarios: &'a [Scenario],
    /// The scenario that the next free thread takes.
    next: AtomicUsize,
    stop: AtomicBool,
    simulated_ns: AtomicU64,
    left: AtomicUsize,
    done: Mutex<Vec<Option<Result<Run, SimError>>>>,
}

impl Work<'_> {
    fn all(&self) {
        while let Some((index, scenario)) = self.take() {
            let started = Instant::now();
            let mut reported_ns = 0;
            let mut report = |now_ns: u64| {
                self.simulated_ns.fetch_add(now_ns.saturating_sub(reported_ns), Ordering::Relaxed);
                reported_ns = now_ns;
                if self.stop.load(Ordering::Relaxed) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let result = run(scenario, &mut report);
            let result = result.map(|outcome| Run { outcome, wall: started.elapsed() });
            let mut done = self.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(slot) = done.get_mut(index) {
                *slot = Some(result);
            }
            self.left.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn take(&self) -> Option<(usize, &Scenario)> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        Some((index, self.scenarios.get(index)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_multiply_and_the_last_changes_fastest() {
        let axes: Vec<Axis> =
            ["flows=2,4", "kmax=200KB, 1MB"].iter().map(|text| text.parse().unwrap()).collect();
        let all: Vec<String> = combinations(&axes)
            .unwrap()
            .iter()
            .map(|settings| settings.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(all, ["flows=2 kmax=200KB", "flows=2 kmax=1MB", "flows=4 kmax=200KB", "flows=4 kmax=1MB"]);
        assert_eq!(combinations(&[]), Ok(vec![Vec::new()]));
    }

    #[test]
    fn invalid_axes_rejected() {
        for (text, says) in [
            ("kmax", "is not KEY=VALUE,VALUE"),
            ("kmax=", "is not KEY=VALUE,VALUE"),
            ("flows=2,none", "flows = `none`"),
            ("flws=2", "did you mean `flows`?"),
        ] {
            let refused = text.parse::<Axis>().unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
        let axis: Axis = "seed=1,2".parse().unwrap();
        assert!(combinations(&[axis.clone(), axis]).unwrap_err().to_string().contains("swept twice"));
        let many: Axis = format!("seed={}", vec!["1"; 101].join(",")).parse().unwrap();
        let other: Axis = format!("flows={}", vec!["1"; 101].join(",")).parse().unwrap();
        assert!(combinations(&[many, other]).unwrap_err().to_string().contains("the maximum is 10000"));
    }
}
