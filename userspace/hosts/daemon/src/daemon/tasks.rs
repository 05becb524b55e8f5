//! Periodic tasks for attached interfaces: one thread per kind of task, with one netlink socket, handles all
//! interfaces; all tasks share one set of maps per interface.

mod looper;

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Write as _};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dcqcn_loader::attach::Id;
use dcqcn_support::sync::lock;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::upkeep::{Age, Events, Feeder, Pacer, PfcTask};
use super::work::{Begun, Port, Settings, Start};
use super::{depths, host_congestion, pairs, probe, watchdog};
use crate::error::{Context as _, Result};
use crate::shared_state::{self, TaskHealth};
use looper::Looper;

/// Time limit for tasks to release an interface. A stalled one must not block the others.
const TIMEOUT: Duration = Duration::from_secs(2);

type Begin = fn(Start<'_>) -> Begun;

const KINDS: [(&str, Begin); 10] = [
    ("pacer", Pacer::begin),
    ("age", Age::begin),
    ("pairs", pairs::begin),
    ("backlog", Feeder::begin),
    ("events", Events::begin),
    ("watchdog", watchdog::begin),
    ("depths", depths::begin),
    ("pfc_tx", PfcTask::begin),
    ("probe", probe::begin),
    ("host_congestion", host_congestion::begin),
];

#[derive(Clone, Default)]
struct Ports {
    /// Generation, incremented by each change.
    generation: u64,
    ports: BTreeMap<Id, Arc<Port>>,
    is_over: bool,
    /// Generation that each thread has adopted.
    adopted: [u64; KINDS.len()],
}

#[derive(Default)]
struct Shared {
    ports: Mutex<Ports>,
    /// Records that a thread has adopted a generation.
    changed: Condvar,
    settings: Arc<Settings>,
}

/// All tasks; dropping it ends them.
pub(super) struct Tasks {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
}

struct Thread {
    name: &'static str,
    health: Arc<TaskHealth>,
    wake: PipeWriter,
    /// `None` once joined.
    handle: Option<JoinHandle<()>>,
}

impl Tasks {
    pub(super) fn start(settings: Settings) -> Result<Self> {
        let shared = Arc::new(Shared { settings: Arc::new(settings), ..Shared::default() });
        let mut tasks = Self { shared, threads: Vec::new() };
        for (index, (name, begin)) in KINDS.into_iter().enumerate() {
            let (woken, wake) = wake_pipe().context("cannot start a task")?;
            let (shared, health) = (Arc::clone(&tasks.shared), Arc::<TaskHealth>::default());
            let began = Instant::now();
            let looper = Looper { index, name, begin, shared, health: Arc::clone(&health), woken, began };
            let handle = thread::Builder::new().name(name.into()).spawn(move || looper.run());
            let handle = Some(handle.context("cannot start a thread")?);
            tasks.threads.push(Thread { name, health, wake, handle });
        }
        Ok(tasks)
    }

    pub(super) fn add(&mut self, id: Id, port: Arc<Port>) {
        self.change(|ports| _ = ports.ports.insert(id, port));
    }

    /// Ends the tasks of these interfaces, and waits until all have released them.
    pub(super) fn remove(&mut self, ids: &[Id]) {
        if ids.is_empty() {
            return;
        }
        let generation = self.change(|ports| ports.ports.retain(|id, _| !ids.contains(id)));
        let are_behind = |ports: &mut Ports| ports.adopted.iter().any(|at| *at < generation);
        let ports = lock(&self.shared.ports);
        let waited = self.shared.changed.wait_timeout_while(ports, TIMEOUT, are_behind);
        if waited.is_ok_and(|(_, timeout)| timeout.timed_out()) {
            tracing::error!("task did not release its interface in time; continuing");
        }
    }

    pub(super) fn set_age_idle(&self, idle: Option<Duration>) {
        self.shared.settings.set_age_idle(idle);
    }

    pub(super) fn health(&self) -> shared_state::Tasks {
        self.threads.iter().map(|thread| (thread.name, Arc::clone(&thread.health))).collect()
    }

    fn change(&mut self, change: impl FnOnce(&mut Ports)) -> u64 {
        let generation = {
            let mut ports = lock(&self.shared.ports);
            change(&mut ports);
            ports.generation += 1;
            ports.generation
        };
        for thread in &mut self.threads {
            // A thread that has ended needs no wake-up, nor does one whose pipe is full.
            let _ = thread.wake.write(&[0]);
        }
        generation
    }
}

/// A pipe that wakes a thread. Writing never waits for a thread that does not read.
fn wake_pipe() -> nix::Result<(PipeReader, PipeWriter)> {
    let (woken, wake) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    Ok((woken.into(), wake.into()))
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.change(|ports| ports.is_over = true);
        for thread in &mut self.threads {
            // A panic of a task has been caught and logged.
            let _ = thread.handle.take().map(JoinHandle::join);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_changes_do_not_block() {
        const CAPACITY: u64 = 65_536;
        let (_stalled, wake) = wake_pipe().unwrap();
        let stalled = Thread { name: "stalled", health: Arc::default(), wake, handle: None };
        let mut tasks = Tasks { shared: Arc::default(), threads: vec![stalled] };
        for change in 0..=CAPACITY {
            assert_eq!(tasks.change(|_| {}), change + 1);
        }
    }
}
