//! State shared between the worker, which publishes it, and the event loop, which reads it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use dcqcn_control_api::{Failing, Override};
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::sync::lock;

use crate::daemon::depths::DepthSamples;

/// Time limit of a worker's step, as a multiple of a task's: the verifier takes a second on most machines, and a minute
/// on an emulated one. A restart would only run it again.
const WORKER_FACTOR: u64 = 10;

#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// All interfaces in the file have been processed once.
    pub(crate) is_ready: bool,
    pub(crate) served: Vec<String>,
    /// Interfaces that cannot be managed, with causes.
    pub(crate) failing: Vec<Failing>,
    /// Failing interfaces that had missing parts at the last check.
    pub(crate) incomplete: Vec<Failing>,
    /// Failing interfaces that are complete but see no packets.
    pub(crate) bypassed: Vec<Failing>,
    /// Entries of the file that match no interface.
    pub(crate) absent: Vec<String>,
    pub(crate) repairs: BTreeMap<String, u64>,
    /// Interfaces whose repairs are suspended.
    pub(crate) suspended: Vec<String>,
    /// Interfaces still to be attached.
    pub(crate) waiting: usize,
    pub(crate) reload: Option<Reloaded>,
    pub(crate) active_override: Option<Override>,
    pub(crate) confirm_until: Option<Instant>,
    /// Why it could not be reverted after that.
    pub(crate) overdue: Option<String>,
    /// Parameters that may be set remotely, with their ranges as text.
    pub(crate) bounds: Arc<BTreeMap<String, String>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Reloaded {
    pub(crate) at: SystemTime,
    /// Reasons of a rejection; empty on success.
    pub(crate) refused: String,
}

pub(crate) struct SharedState {
    snapshot: Mutex<Arc<Snapshot>>,
    tasks: Mutex<Tasks>,
    depth_samples: Arc<DepthSamples>,
    /// Time of the worker's last step, CLOCK_MONOTONIC.
    step_ns: AtomicU64,
    is_ending: AtomicBool,
}

impl Default for SharedState {
    /// Initial state; the worker's time limit starts now.
    fn default() -> Self {
        Self {
            snapshot: Mutex::default(),
            tasks: Mutex::default(),
            depth_samples: Arc::default(),
            step_ns: AtomicU64::new(monotonic_ns()),
            is_ending: AtomicBool::default(),
        }
    }
}

impl SharedState {
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&lock(&self.snapshot))
    }

    pub(crate) fn depth_samples(&self) -> Arc<DepthSamples> {
        Arc::clone(&self.depth_samples)
    }

    pub(crate) fn tasks(&self) -> Tasks {
        lock(&self.tasks).clone()
    }

    /// The part without progress for `late`, as text; `None` if all is well. The worker has [`WORKER_FACTOR`]
    /// times as long.
    pub(crate) fn stuck(&self, late: Duration) -> Option<String> {
        let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let idle_ns = monotonic_ns().saturating_sub(self.step_ns.load(Ordering::Relaxed));
        if idle_ns > late_ns.saturating_mul(WORKER_FACTOR) {
            return Some("attaching and reloading".into());
        }
        let tasks = self.tasks();
        let (task, health) = tasks.iter().find(|(_, health)| health.busy_ns() > late_ns)?;
        Some(format!("task {task} at {}", lock(&health.at)))
    }

    /// A state with all fields set.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        let shared = Self::default();
        shared.set_tasks(
            ["pacer", "age", "pairs", "backlog", "events"].map(|task| (task, Arc::default())).into(),
        );
        shared.publish(Snapshot {
            is_ready: true,
            served: vec!["eth0".into()],
            failing: vec![Failing { interface: "eth1".into(), error: "it was removed".into() }],
            repairs: BTreeMap::from([("eth0".into(), 0)]),
            waiting: 0,
            reload: Some(Reloaded { at: SystemTime::UNIX_EPOCH, refused: String::new() }),
            ..Snapshot::default()
        });
        shared
    }

    pub(crate) fn publish(&self, snapshot: Snapshot) {
        *lock(&self.snapshot) = Arc::new(snapshot);
    }

    pub(crate) fn set_tasks(&self, tasks: Tasks) {
        *lock(&self.tasks) = tasks;
    }

    /// Records progress of the worker.
    pub(crate) fn step(&self) {
        self.step_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    /// Requests the worker to start nothing more.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }
}

/// Kinds of tasks by name.
pub(crate) type Tasks = Vec<(&'static str, Arc<TaskHealth>)>;

/// Health of one kind of task, published by its thread.
#[derive(Default)]
pub(crate) struct TaskHealth {
    /// Start of the current run, CLOCK_MONOTONIC; 0 while idle.
    busy_since_ns: AtomicU64,
    at: Mutex<String>,
    /// Number of interfaces with this task.
    pub(crate) interfaces: AtomicU64,
    /// Failures on any interface; the task runs again after a second.
    pub(crate) failures: AtomicU64,
}

impl TaskHealth {
    pub(crate) fn begin(&self, iface: &str) {
        iface.clone_into(&mut lock(&self.at));
        self.busy_since_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    pub(crate) fn set_idle(&self) {
        self.busy_since_ns.store(0, Ordering::Relaxed);
    }

    /// Time on the current interface; 0 while idle.
    pub(crate) fn busy_ns(&self) -> u64 {
        match self.busy_since_ns.load(Ordering::Relaxed) {
            0 => 0,
            since_ns => monotonic_ns().saturating_sub(since_ns),
        }
    }
}
