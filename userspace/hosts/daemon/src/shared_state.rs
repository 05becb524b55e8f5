//! What the two threads of the daemon know of each other: the one that works tells, the one that answers reads.

mod health;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dcqcn_control_api::Override;
use dcqcn_support::clock::monotonic_ns;
use serde::Serialize;

pub(crate) use health::TaskHealth;
pub(crate) use health::{Health, TaskWatch, lock};

use crate::depths::Watched;

/// How much longer than a task the thread that works may take for a step: one may be the verifier's, which takes a second on
/// most machines and a minute on one that is emulated. Ended there, the next daemon would only begin the same again.
const WORK: u64 = 10;

/// What the daemon is at, at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// All that the file names has been looked at once.
    pub(crate) is_ready: bool,
    /// Interfaces served.
    pub(crate) served: Vec<String>,
    /// Interfaces that are to be served and cannot be, and why.
    pub(crate) failing: Vec<Failing>,
    /// Those of them that are complete and see no packets: a program of others ends the chain before theirs.
    pub(crate) bypassed: Vec<Failing>,
    /// Repairs of each interface served.
    pub(crate) repairs: BTreeMap<String, u64>,
    /// Interfaces that are still to be attached.
    pub(crate) waiting: usize,
    /// How the last reload went.
    pub(crate) reload: Option<Reloaded>,
    /// What others requested over the socket, and is active.
    pub(crate) held: Option<Override>,
    /// When that is reverted unless somebody confirms it.
    pub(crate) confirm_until: Option<Instant>,
    /// The parameters that others may set, and to what, as text.
    pub(crate) bounds: Arc<BTreeMap<String, String>>,
}

/// An interface that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Failing {
    /// Its name.
    pub(crate) interface: String,
    /// Why.
    pub(crate) error: String,
}

/// How a reload went.
#[derive(Clone, Debug)]
pub(crate) struct Reloaded {
    /// When.
    pub(crate) at: SystemTime,
    /// Why it was refused; empty if it was not.
    pub(crate) refused: String,
}

/// Where the thread that works leaves word.
pub(crate) struct SharedState {
    snapshot: Mutex<Arc<Snapshot>>,
    tasks: Mutex<TaskWatch>,
    watched: Arc<Watched>,
    /// CLOCK_MONOTONIC of its last step.
    step_ns: AtomicU64,
    is_ending: AtomicBool,
}

impl Default for SharedState {
    /// Nothing yet, from now on: who has just begun is not late.
    fn default() -> Self {
        Self {
            snapshot: Mutex::default(),
            tasks: Mutex::default(),
            watched: Arc::default(),
            step_ns: AtomicU64::new(monotonic_ns()),
            is_ending: AtomicBool::default(),
        }
    }
}

impl SharedState {
    /// What the daemon is at.
    #[must_use]
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is seen of queues and flows.
    #[must_use]
    pub(crate) fn watched(&self) -> Arc<Watched> {
        Arc::clone(&self.watched)
    }

    /// How its tasks do.
    #[must_use]
    pub(crate) fn tasks(&self) -> Vec<TaskHealth> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).health()
    }

    /// What has not moved for `late`, as text; `None` if all does. The thread that works has `WORK` times as long.
    #[must_use]
    pub(crate) fn stuck(&self, late: Duration) -> Option<String> {
        let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let idle_ns = monotonic_ns().saturating_sub(self.step_ns.load(Ordering::Relaxed));
        if idle_ns > late_ns.saturating_mul(WORK) {
            return Some("attaching and reloading".into());
        }
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.stuck(late).map(|(iface, task)| format!("task {task} at {iface}"))
    }

    /// One with a word of everything.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        let shared = Self::default();
        shared.set_tasks(TaskWatch::sample());
        shared.publish(Snapshot {
            is_ready: true,
            served: vec!["eth0".into()],
            failing: vec![Failing { interface: "eth1".into(), error: "it is gone".into() }],
            repairs: BTreeMap::from([("eth0".into(), 0)]),
            waiting: 0,
            reload: Some(Reloaded { at: SystemTime::UNIX_EPOCH, refused: String::new() }),
            ..Snapshot::default()
        });
        shared
    }

    /// Tells what the daemon is at.
    pub(crate) fn publish(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }

    /// Tells where to look at tasks.
    pub(crate) fn set_tasks(&self, watch: TaskWatch) {
        *self.tasks.lock().unwrap_or_else(PoisonError::into_inner) = watch;
    }

    /// Tells that it goes on.
    pub(crate) fn step(&self) {
        self.step_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    /// Asks the thread that works to begin nothing more.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Whether it is to begin nothing more.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }
}
