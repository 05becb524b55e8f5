//! How the threads of tasks do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dcqcn_support::clock::monotonic_ns;
use serde::Serialize;

/// How one kind of task does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TaskHealth {
    /// Its kind.
    pub(crate) task: &'static str,
    /// Interfaces it is running for.
    pub(crate) interfaces: usize,
    /// Times it failed, for whatever interface, and was begun again.
    pub(crate) failures: u64,
    /// How long it has been at one interface; 0 while it rests.
    pub(crate) busy_ns: u64,
}

/// What a thread tells of itself.
#[derive(Default)]
pub(crate) struct Health {
    /// CLOCK_MONOTONIC since when it has been at one interface; 0 while it rests.
    busy_since_ns: AtomicU64,
    /// Which.
    at: Mutex<String>,
    pub(crate) interfaces: AtomicU64,
    pub(crate) failures: AtomicU64,
}

impl Health {
    pub(crate) fn begin(&self, iface: &str) {
        iface.clone_into(&mut lock(&self.at));
        self.busy_since_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    pub(crate) fn rest(&self) {
        self.busy_since_ns.store(0, Ordering::Relaxed);
    }

    fn busy_ns(&self) -> u64 {
        match self.busy_since_ns.load(Ordering::Relaxed) {
            0 => 0,
            since_ns => monotonic_ns().saturating_sub(since_ns),
        }
    }
}

/// How the tasks do, for other threads.
#[derive(Clone, Default)]
pub(crate) struct TaskWatch(pub(crate) Vec<(&'static str, Arc<Health>)>);

impl TaskWatch {
    /// Of tasks that rest.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        Self(["pacer", "age", "pairs", "backlog", "events"].map(|name| (name, Arc::default())).into())
    }

    /// Each kind.
    pub(crate) fn health(&self) -> Vec<TaskHealth> {
        let health = |(task, health): &(&'static str, Arc<Health>)| TaskHealth {
            task,
            interfaces: health.interfaces.load(Ordering::Relaxed) as usize,
            failures: health.failures.load(Ordering::Relaxed),
            busy_ns: health.busy_ns(),
        };
        self.0.iter().map(health).collect()
    }

    /// A task that has been at one interface for `late`: the interface and the task's name.
    pub(crate) fn stuck(&self, late: Duration) -> Option<(String, &'static str)> {
        let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let (name, health) = self.0.iter().find(|(_, health)| health.busy_ns() > late_ns)?;
        Some((lock(&health.at).clone(), name))
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
