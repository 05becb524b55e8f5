//! Health of the task threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::sync::lock;
use serde::Serialize;

/// Health of one kind of task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TaskHealth {
    /// Name.
    pub(crate) task: &'static str,
    /// Number of interfaces with this task.
    pub(crate) interfaces: usize,
    /// Failures on any interface, each followed by a restart.
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

/// Health of all tasks.
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
