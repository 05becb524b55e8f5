//! What the daemon does for interfaces for as long as they are attached: one thread for each kind of task, which goes from
//! interface to interface, with one netlink socket; one set of maps of each interface, which all of them share.

use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use dcqcn_netlink::Netlink;
use dcqcn_plane::attach::{self, Attachment, Id, Info};
use dcqcn_plane::dataplane::Maps;
use dcqcn_support::clock::monotonic_ns;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use super::{age, backlog, chain, events, pacer, pairs};

/// How long a task that failed rests.
const REST: Duration = Duration::from_secs(1);
/// How long it is waited for tasks to let go of an interface. One that is stuck must not hold up the others.
const PATIENCE: Duration = Duration::from_secs(2);

/// An attached interface, as tasks share it.
pub(super) struct Port {
    /// How it is attached.
    pub(super) info: Info,
    maps: RwLock<Maps>,
}

impl Port {
    /// Opens its maps.
    ///
    /// # Errors
    /// It is not attached any more.
    pub(super) fn open(iface: &str) -> Result<Arc<Self>> {
        let Attachment { info, maps } = attach::open(iface)?;
        Ok(Arc::new(Self { info, maps: RwLock::new(maps) }))
    }

    /// Its maps, to read. Not to be kept while waiting for anything.
    pub(super) fn maps(&self) -> RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its maps, to write. Not to be kept while waiting for anything.
    pub(super) fn maps_mut(&self) -> RwLockWriteGuard<'_, Maps> {
        self.maps.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the file says of tasks.
#[derive(Debug, Default)]
pub(super) struct Settings {
    age_idle_ns: AtomicU64,
}

impl Settings {
    /// After how long a flow counts as idle, if anybody wants to know.
    pub(super) fn age_idle(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.age_idle_ns.load(Ordering::Relaxed))).filter(|idle| !idle.is_zero())
    }

    fn set_age_idle(&self, idle: Option<Duration>) {
        let ns = idle.map_or(0, |idle| u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX));
        self.age_idle_ns.store(ns, Ordering::Relaxed);
    }
}

/// A task of one interface.
pub(super) trait Work {
    /// Does what is due, and returns how long there is nothing to do.
    ///
    /// # Errors
    /// Told in the log; the task is begun anew.
    fn turn(&mut self, netlink: &Netlink) -> Result<Duration>;

    /// Something to read here ends the rest.
    fn wakes(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Begins a task, or says that the interface does not need it.
type Begin = fn(&Arc<Port>, &Arc<Settings>, &Netlink) -> Result<Option<Box<dyn Work>>>;

/// Every kind of task.
const KINDS: [(&str, Begin); 5] = [
    ("pacer", pacer::begin),
    ("age", age::begin),
    ("pairs", pairs::begin),
    ("backlog", backlog::begin),
    ("events", events::begin),
];

/// How one kind of task does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskHealth {
    /// Its kind.
    pub task: &'static str,
    /// Interfaces it is at work for.
    pub interfaces: usize,
    /// Times it failed, for whatever interface, and was begun anew.
    pub failures: u64,
    /// How long it has been at one interface; 0 while it rests.
    pub busy_ns: u64,
}

/// What a thread tells of itself.
#[derive(Default)]
struct Health {
    /// CLOCK_MONOTONIC since when it has been at one interface; 0 while it rests.
    busy_since_ns: AtomicU64,
    /// Which.
    at: Mutex<String>,
    interfaces: AtomicU64,
    failures: AtomicU64,
}

impl Health {
    fn begin(&self, iface: &str) {
        iface.clone_into(&mut lock(&self.at));
        self.busy_since_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    fn rest(&self) {
        self.busy_since_ns.store(0, Ordering::Relaxed);
    }

    fn busy_ns(&self) -> u64 {
        match self.busy_since_ns.load(Ordering::Relaxed) {
            0 => 0,
            since_ns => monotonic_ns().saturating_sub(since_ns),
        }
    }
}

/// The interfaces there are tasks for.
#[derive(Clone, Default)]
struct Ports {
    /// Counts changes.
    generation: u64,
    ports: BTreeMap<Id, Arc<Port>>,
    is_over: bool,
    /// The generation each thread has last gone over to.
    gone_over: [u64; KINDS.len()],
}

#[derive(Default)]
struct Shared {
    ports: Mutex<Ports>,
    /// A thread has gone over to another generation.
    changed: Condvar,
    settings: Arc<Settings>,
}

/// All tasks; dropped, they end.
pub(super) struct Tasks {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
}

struct Thread {
    name: &'static str,
    health: Arc<Health>,
    wake: PipeWriter,
    /// `None` once joined.
    handle: Option<JoinHandle<()>>,
}

impl Tasks {
    /// Starts their threads.
    ///
    /// # Errors
    /// The system gives none, or no file descriptor.
    pub(super) fn start() -> Result<Self> {
        let mut tasks = Self { shared: Arc::default(), threads: Vec::new() };
        for (index, (name, begin)) in KINDS.into_iter().enumerate() {
            let (woken, wake) = io::pipe().context("cannot start a task")?;
            let (shared, health) = (Arc::clone(&tasks.shared), Arc::<Health>::default());
            let looper = Looper { index, name, begin, shared, health: Arc::clone(&health), woken };
            let handle = thread::Builder::new().name(name.into()).spawn(move || looper.run());
            let handle = Some(handle.context("cannot start a thread")?);
            tasks.threads.push(Thread { name, health, wake, handle });
        }
        Ok(tasks)
    }

    /// Begins the tasks that an interface needs.
    pub(super) fn add(&mut self, id: Id, port: Arc<Port>) {
        self.change(|ports| _ = ports.ports.insert(id, port));
    }

    /// Ends the tasks of these interfaces, and waits until all of them have let go.
    pub(super) fn remove(&mut self, ids: &[Id]) {
        if ids.is_empty() {
            return;
        }
        let generation = self.change(|ports| ports.ports.retain(|id, _| !ids.contains(id)));
        let are_behind = |ports: &mut Ports| ports.gone_over.iter().any(|at| *at < generation);
        let ports = lock(&self.shared.ports);
        let waited = self.shared.changed.wait_timeout_while(ports, PATIENCE, are_behind);
        if waited.is_ok_and(|(_, timeout)| timeout.timed_out()) {
            tracing::error!("a task does not let go of an interface; it is gone on without it");
        }
    }

    /// Sets after how long a flow counts as idle.
    pub(super) fn set_age_idle(&self, idle: Option<Duration>) {
        self.shared.settings.set_age_idle(idle);
    }

    /// How each kind does.
    pub(super) fn watch(&self) -> TaskWatch {
        TaskWatch(self.threads.iter().map(|thread| (thread.name, Arc::clone(&thread.health))).collect())
    }

    fn change(&mut self, change: impl FnOnce(&mut Ports)) -> u64 {
        let generation = {
            let mut ports = lock(&self.shared.ports);
            change(&mut ports);
            ports.generation += 1;
            ports.generation
        };
        for thread in &mut self.threads {
            // One that has ended needs none.
            let _ = thread.wake.write(&[0]);
        }
        generation
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.change(|ports| ports.is_over = true);
        for thread in &mut self.threads {
            // A panic of a task has been caught and told.
            let _ = thread.handle.take().map(JoinHandle::join);
        }
    }
}

/// How the tasks do, for other threads.
#[derive(Clone, Default)]
pub(super) struct TaskWatch(Vec<(&'static str, Arc<Health>)>);

impl TaskWatch {
    /// Of tasks that rest.
    #[cfg(test)]
    pub(super) fn sample() -> Self {
        Self(KINDS.iter().map(|(name, _)| (*name, Arc::default())).collect())
    }

    /// Each kind.
    pub(super) fn health(&self) -> Vec<TaskHealth> {
        let health = |(task, health): &(&'static str, Arc<Health>)| TaskHealth {
            task,
            interfaces: health.interfaces.load(Ordering::Relaxed) as usize,
            failures: health.failures.load(Ordering::Relaxed),
            busy_ns: health.busy_ns(),
        };
        self.0.iter().map(health).collect()
    }

    /// A task that has been at one interface for `late`: the interface and the task's name.
    pub(super) fn stuck(&self, late: Duration) -> Option<(String, &'static str)> {
        let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let (name, health) = self.0.iter().find(|(_, health)| health.busy_ns() > late_ns)?;
        Some((lock(&health.at).clone(), name))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread's view of one interface.
struct Entry {
    port: Arc<Port>,
    state: State,
    /// When it wants to be at work next; `None` = never.
    due: Option<Instant>,
    /// What was last complained of.
    told: String,
}

enum State {
    /// To be begun.
    New,
    /// The interface does not need it.
    NotNeeded,
    AtWork(Box<dyn Work>),
}

struct Looper {
    index: usize,
    name: &'static str,
    begin: Begin,
    shared: Arc<Shared>,
    health: Arc<Health>,
    woken: PipeReader,
}

impl Looper {
    fn run(mut self) {
        let mut entries: BTreeMap<Id, Entry> = BTreeMap::new();
        let mut netlink = None;
        let mut generation = 0;
        loop {
            let ports = lock(&self.shared.ports).clone();
            if ports.is_over {
                return;
            }
            if ports.generation != generation {
                generation = ports.generation;
                self.go_over(&mut entries, ports);
            }
            let now = Instant::now();
            for entry in entries.values_mut().filter(|entry| entry.due.is_some_and(|due| due <= now)) {
                if lock(&self.shared.ports).generation != generation {
                    break;
                }
                self.health.begin(&entry.port.info.iface);
                self.turn(&mut netlink, entry);
                self.health.rest();
            }
            self.wait(&mut entries);
        }
    }

    /// Lets go of interfaces that are no longer served, and takes on those that are new.
    fn go_over(&self, entries: &mut BTreeMap<Id, Entry>, ports: Ports) {
        entries.retain(|id, _| ports.ports.contains_key(id));
        for (id, port) in ports.ports {
            let entry = || Entry { port, state: State::New, due: Some(Instant::now()), told: String::new() };
            entries.entry(id).or_insert_with(entry);
        }
        self.count(entries);
        let mut shared = lock(&self.shared.ports);
        if let Some(gone_over) = shared.gone_over.get_mut(self.index) {
            *gone_over = ports.generation;
        }
        self.shared.changed.notify_all();
    }

    fn count(&self, entries: &BTreeMap<Id, Entry>) {
        let at_work = entries.values().filter(|entry| !matches!(entry.state, State::NotNeeded)).count();
        self.health.interfaces.store(at_work as u64, Ordering::Relaxed);
    }

    /// Begins the task of an interface, or does what is due. One that fails is begun anew.
    fn turn(&self, netlink: &mut Option<Netlink>, entry: &mut Entry) {
        let iface = &entry.port.info.iface;
        let mut turn = || -> Result<Option<Duration>> {
            let netlink = match netlink {
                Some(netlink) => netlink,
                None => netlink.insert(Netlink::connect()?),
            };
            if matches!(entry.state, State::New) {
                entry.state = match (self.begin)(&entry.port, &self.shared.settings, netlink)? {
                    Some(work) => State::AtWork(work),
                    None => State::NotNeeded,
                };
                if matches!(entry.state, State::AtWork(_)) {
                    tracing::info!(iface, task = self.name, "begun");
                }
            }
            match &mut entry.state {
                State::AtWork(work) => work.turn(netlink).map(Some),
                _ => Ok(None),
            }
        };
        let done = panic::catch_unwind(AssertUnwindSafe(&mut turn))
            .unwrap_or_else(|_| Err(anyhow!("the task panicked")));
        match done {
            Ok(rest) => {
                entry.due = rest.map(|rest| Instant::now() + rest);
                if rest.is_none() {
                    let interfaces = &self.health.interfaces;
                    // Counted before it was known that it is not needed.
                    let _ = interfaces.try_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
                }
            }
            Err(error) => {
                let text = chain(&error);
                if text != entry.told {
                    tracing::warn!(iface, task = self.name, error = text, "failed; tried again every second");
                    entry.told = text;
                }
                self.health.failures.fetch_add(1, Ordering::Relaxed);
                // The socket may be what failed.
                *netlink = None;
                entry.state = State::New;
                entry.due = Some(Instant::now() + REST);
            }
        }
    }

    /// Rests until something is due, something came to be read, or the interfaces are others.
    fn wait(&mut self, entries: &mut BTreeMap<Id, Entry>) {
        let due = entries.values().filter_map(|entry| entry.due).min();
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            // Rounded up, or the last millisecond would be waited for in circles.
            let rest_ms = due.saturating_duration_since(Instant::now()).as_micros().div_ceil(1_000);
            PollTimeout::try_from(rest_ms).unwrap_or(PollTimeout::MAX)
        });
        let wakes: Vec<(&Id, BorrowedFd<'_>)> = entries
            .iter()
            .filter_map(|(id, entry)| match &entry.state {
                State::AtWork(work) => Some((id, work.wakes()?)),
                _ => None,
            })
            .collect();
        let mut fds = vec![PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        fds.extend(wakes.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::POLLIN)));
        if poll(&mut fds, timeout).is_err() {
            // A signal, or no memory: looked at again.
            return;
        }
        let is_ready = |fd: &PollFd<'_>| fd.any() == Some(true);
        let is_woken = fds.first().is_some_and(is_ready);
        let ready: Vec<Id> = wakes
            .iter()
            .zip(fds.iter().skip(1))
            .filter(|(_, fd)| is_ready(fd))
            .map(|((id, _), _)| **id)
            .collect();
        if is_woken {
            // What was written so far; more wakes it again.
            let _ = self.woken.read(&mut [0; 64]);
        }
        let now = Instant::now();
        for id in ready {
            if let Some(entry) = entries.get_mut(&id) {
                entry.due = Some(now);
            }
        }
    }
}
