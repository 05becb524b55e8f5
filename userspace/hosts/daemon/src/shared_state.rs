//! State shared between the worker, which publishes it, and the event loop, which reads it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use dcqcn_control_api::{Failing, Override};
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::sync::lock;
use serde::Serialize;

use crate::depths::Watched;

/// Time limit of a worker's step, as a multiple of a task's: the verifier takes a second on most machines, and a minute
/// on an emulated one. A restart would only run it again.
const WORK: u64 = 10;

/// Published state of the daemon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// All interfaces in the file have been processed once.
    pub(crate) is_ready: bool,
    /// Managed interfaces.
    pub(crate) served: Vec<String>,
    /// Interfaces that cannot be managed, with causes.
    pub(crate) failing: Vec<Failing>,
    /// Failing interfaces that had missing parts at the last check.
    pub(crate) incomplete: Vec<Failing>,
    /// Failing interfaces that are complete but see no packets.
    pub(crate) bypassed: Vec<Failing>,
    /// Entries of the file that match no interface.
    pub(crate) absent: Vec<String>,
    /// Repairs of each managed interface.
    pub(crate) repairs: BTreeMap<String, u64>,
    /// Interfaces still to be attached.
    pub(crate) waiting: usize,
    /// Result of the last reload.
    pub(crate) reload: Option<Reloaded>,
    pub(crate) active_override: Option<Override>,
    /// Deadline of its confirmation.
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
    tasks: Mutex<TaskWatch>,
    watched: Arc<Watched>,
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
            watched: Arc::default(),
            step_ns: AtomicU64::new(monotonic_ns()),
            is_ending: AtomicBool::default(),
        }
    }
}

impl SharedState {
    /// Current state of the daemon.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&lock(&self.snapshot))
    }

    /// Samples of queues and flows.
    pub(crate) fn watched(&self) -> Arc<Watched> {
        Arc::clone(&self.watched)
    }

    pub(crate) fn tasks(&self) -> Vec<TaskHealth> {
        lock(&self.tasks).health()
    }

    /// The part without progress for `late`, as text; `None` if all is well. The worker has `WORK` times as long.
    pub(crate) fn stuck(&self, late: Duration) -> Option<String> {
        let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let idle_ns = monotonic_ns().saturating_sub(self.step_ns.load(Ordering::Relaxed));
        if idle_ns > late_ns.saturating_mul(WORK) {
            return Some("attaching and reloading".into());
        }
        let tasks = lock(&self.tasks);
        tasks.stuck(late).map(|(iface, task)| format!("task {task} at {iface}"))
    }

    /// A state with all fields set.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        let shared = Self::default();
        shared.set_tasks(TaskWatch::sample());
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

    /// Publishes the state of the daemon.
    pub(crate) fn publish(&self, snapshot: Snapshot) {
        *lock(&self.snapshot) = Arc::new(snapshot);
    }

    /// Publishes the tasks' health.
    pub(crate) fn set_tasks(&self, watch: TaskWatch) {
        *lock(&self.tasks) = watch;
    }

    /// Records progress of the worker.
    pub(crate) fn step(&self) {
        self.step_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    /// Requests the worker to start nothing more.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Whether the worker must start nothing more.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }
}

/// Health of one kind of task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TaskHealth {
    /// Name.
    pub(crate) task: &'static str,
    /// Number of interfaces with this task.
    pub(crate) interfaces: usize,
    /// Failures on any interface; the task runs again after a second.
    pub(crate) failures: u64,
    /// Time on the current interface; 0 while idle.
    pub(crate) busy_ns: u64,
}

/// State published by a thread.
#[derive(Default)]
pub(crate) struct Health {
    /// Start of the current run, CLOCK_MONOTONIC; 0 while idle.
    busy_since_ns: AtomicU64,
    /// Current interface.
    at: Mutex<String>,
    pub(crate) interfaces: AtomicU64,
    pub(crate) failures: AtomicU64,
}

impl Health {
    pub(crate) fn begin(&self, iface: &str) {
        iface.clone_into(&mut lock(&self.at));
        self.busy_since_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    pub(crate) fn set_idle(&self) {
        self.busy_since_ns.store(0, Ordering::Relaxed);
    }

    fn busy_ns(&self) -> u64 {
        match self.busy_since_ns.load(Ordering::Relaxed) {
            0 => 0,
            since_ns => monotonic_ns().saturating_sub(since_ns),
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct TaskWatch(pub(crate) Vec<(&'static str, Arc<Health>)>);

impl TaskWatch {
    /// Idle tasks.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        Self(["pacer", "age", "pairs", "backlog", "events"].map(|name| (name, Arc::default())).into())
    }

    /// Health by kind.
    pub(crate) fn health(&self) -> Vec<TaskHealth> {
        let health = |(task, health): &(&'static str, Arc<Health>)| TaskHealth {
            task,
            interfaces: health.interfaces.load(Ordering::Relaxed) as usize,
            failures: health.failures.load(Ordering::Relaxed),
            busy_ns: health.busy_ns(),
        };
        self.0.iter().map(health).collect()
    }

    /// A task that has been on one interface for `late`: the interface and the task's name.
    pub(crate) fn stuck(&self, late: Duration) -> Option<(String, &'static str)> {
        let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let (name, health) = self.0.iter().find(|(_, health)| health.busy_ns() > late_ns)?;
        Some((lock(&health.at).clone(), name))
    }
}
