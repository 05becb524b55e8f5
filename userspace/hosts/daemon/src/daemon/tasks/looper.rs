//! The thread of one kind of task, for all interfaces.

use std::collections::BTreeMap;
use std::io::{PipeReader, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dcqcn_loader::attach::Id;
use dcqcn_netlink::Netlink;
use dcqcn_support::causes::one_line;
use dcqcn_support::sync::lock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::work::{Begun, Port, Start, Work};
use super::{Begin, Ports, Shared};
use crate::error::{Error, Result};
use crate::shared_state::TaskHealth;

/// Delay before a failed task runs again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Rests of at least this long end together for all interfaces.
const MIN_SHARED_REST: Duration = Duration::from_millis(50);

/// State of one interface in this thread.
struct Entry {
    port: Arc<Port>,
    state: State,
    /// Time of the next run; `None` = never.
    due: Option<Instant>,
    /// Last error; empty after a success.
    error: String,
}

enum State {
    New,
    NotNeeded,
    Running(Box<dyn Work>),
}

impl State {
    /// Starts the task if it was not, and runs it. One that fails keeps its state; one that panics is started again.
    fn run(&mut self, begin: impl FnOnce() -> Begun, netlink: &Netlink) -> Result<Option<Duration>> {
        let turn = || -> Result<Option<Duration>> {
            if matches!(self, Self::New) {
                *self = begin()?.map_or(Self::NotNeeded, Self::Running);
            }
            match self {
                Self::Running(work) => work.run(netlink).map(Some),
                _ => Ok(None),
            }
        };
        panic::catch_unwind(AssertUnwindSafe(turn)).unwrap_or_else(|_| {
            *self = Self::New;
            Err(Error::Panicked("the task"))
        })
    }
}

/// Stores the error of a run; true if it differs from that of the last one.
fn is_news(last: &mut String, error: &str) -> bool {
    let is_news = last != error;
    error.clone_into(last);
    is_news
}

pub(super) struct Looper {
    pub(super) index: usize,
    pub(super) name: &'static str,
    pub(super) begin: Begin,
    pub(super) shared: Arc<Shared>,
    pub(super) health: Arc<TaskHealth>,
    pub(super) woken: PipeReader,
    pub(super) began: Instant,
}

/// Time of the run after a rest. Long rests end at the same time for all interfaces: the thread wakes once for all.
fn next_run(began: Instant, now: Instant, rest: Duration) -> Instant {
    if rest < MIN_SHARED_REST {
        return now + rest;
    }
    let past_ns = now.saturating_duration_since(began).as_nanos() % rest.as_nanos();
    now + rest.saturating_sub(Duration::from_nanos(u64::try_from(past_ns).unwrap_or_default()))
}

impl Looper {
    pub(super) fn run(mut self) {
        let mut entries: BTreeMap<Id, Entry> = BTreeMap::new();
        let mut netlink = None;
        let mut generation = 0;
        loop {
            let ports = {
                let ports = lock(&self.shared.ports);
                if ports.is_over {
                    return;
                }
                (ports.generation != generation).then(|| ports.clone())
            };
            if let Some(ports) = ports {
                generation = ports.generation;
                self.adopt(&mut entries, ports);
            }
            let now = Instant::now();
            for entry in entries.values_mut().filter(|entry| entry.due.is_some_and(|due| due <= now)) {
                if lock(&self.shared.ports).generation != generation {
                    break;
                }
                self.health.begin(&entry.port.info.iface);
                self.run_entry(&mut netlink, entry);
                self.health.set_idle();
            }
            self.count(&entries);
            self.wait(&mut entries);
        }
    }

    /// Releases interfaces that are no longer managed, and adds new ones.
    fn adopt(&self, entries: &mut BTreeMap<Id, Entry>, ports: Ports) {
        entries.retain(|id, _| ports.ports.contains_key(id));
        for (id, port) in ports.ports {
            let entry = || Entry { port, state: State::New, due: Some(Instant::now()), error: String::new() };
            entries.entry(id).or_insert_with(entry);
        }
        self.count(entries);
        let mut shared = lock(&self.shared.ports);
        if let Some(adopted) = shared.adopted.get_mut(self.index) {
            *adopted = ports.generation;
        }
        self.shared.changed.notify_all();
    }

    fn count(&self, entries: &BTreeMap<Id, Entry>) {
        let at_work = entries.values().filter(|entry| !matches!(entry.state, State::NotNeeded)).count();
        self.health.interfaces.store(at_work as u64, Ordering::Relaxed);
    }

    /// Starts or runs the task of an interface. A failed one is run again after a while.
    fn run_entry(&self, netlink: &mut Option<Netlink>, entry: &mut Entry) {
        let iface = &entry.port.info.iface;
        let mut turn = || -> Result<Option<Duration>> {
            let netlink: &Netlink = match netlink {
                Some(netlink) => netlink,
                None => netlink.insert(Netlink::connect()?),
            };
            let begin = || {
                let (port, settings) = (Arc::clone(&entry.port), Arc::clone(&self.shared.settings));
                let begun = (self.begin)(Start { port, settings, netlink })?;
                if begun.is_some() {
                    tracing::info!(iface, task = self.name, "task started");
                }
                Ok(begun)
            };
            entry.state.run(begin, netlink)
        };
        match turn() {
            Ok(rest) => {
                if is_news(&mut entry.error, "") {
                    tracing::info!(iface, task = self.name, "task recovered");
                }
                entry.due = rest.map(|rest| next_run(self.began, Instant::now(), rest));
            }
            Err(error) => {
                let error = one_line(&error);
                if is_news(&mut entry.error, &error) {
                    tracing::warn!(iface, task = self.name, error, "task failed; retrying every second");
                }
                self.health.failures.fetch_add(1, Ordering::Relaxed);
                // The socket may be the cause.
                *netlink = None;
                entry.due = Some(Instant::now() + RETRY_DELAY);
            }
        }
    }

    /// Waits until a task is due, a file descriptor is readable, or the interfaces change.
    fn wait(&mut self, entries: &mut BTreeMap<Id, Entry>) {
        let due = entries.values().filter_map(|entry| entry.due).min();
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            // Rounded up, to avoid busy waiting during the last millisecond.
            let rest_ms = due.saturating_duration_since(Instant::now()).as_micros().div_ceil(1_000);
            PollTimeout::try_from(rest_ms).unwrap_or(PollTimeout::MAX)
        });
        let wakes: Vec<(&Id, BorrowedFd<'_>)> = entries
            .iter()
            .filter_map(|(id, entry)| match &entry.state {
                // After an error, not before it is due.
                State::Running(work) if entry.error.is_empty() => Some((id, work.wake_fd()?)),
                _ => None,
            })
            .collect();
        let mut fds = vec![PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        fds.extend(wakes.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::POLLIN)));
        if poll(&mut fds, timeout).is_err() {
            // A signal, or out of memory: check again.
            return;
        }
        let is_ready = |fd: &PollFd<'_>| fd.any() == Some(true);
        let is_woken = fds.first().is_some_and(is_ready);
        let ready = wakes.iter().zip(fds.iter().skip(1)).filter(|(_, fd)| is_ready(fd));
        let ready: Vec<Id> = ready.map(|((id, _), _)| **id).collect();
        if is_woken {
            // Drains the pipe; further writes wake it again.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// Fails at its first run and panics at its third; counts its end.
    struct Faulty {
        runs: u32,
        ends: Rc<Cell<u32>>,
    }

    impl Work for Faulty {
        fn run(&mut self, _: &Netlink) -> Result<Duration> {
            self.runs += 1;
            match self.runs {
                1 => Err(Error::Capabilities),
                2 => Ok(Duration::ZERO),
                _ => panic!("third run"),
            }
        }
    }

    impl Drop for Faulty {
        fn drop(&mut self) {
            self.ends.set(self.ends.get() + 1);
        }
    }

    #[test]
    fn failed_task_keeps_its_state() {
        let (netlink, ends) = (Netlink::connect().unwrap(), Rc::<Cell<u32>>::default());
        let mut state = State::New;
        let mut run = || {
            let begin = || -> Begun { Ok(Some(Box::new(Faulty { runs: 0, ends: Rc::clone(&ends) }))) };
            (state.run(begin, &netlink).is_ok(), ends.get())
        };
        assert_eq!([run(), run()], [(false, 0), (true, 0)]);
        assert_eq!([run(), run(), run()], [(false, 1), (false, 1), (true, 1)], "restarted after a panic");
    }

    #[test]
    fn error_logged_again_after_a_success() {
        let mut last = String::new();
        let news = ["", "full", "full", "", "", "full", "gone"].map(|error| is_news(&mut last, error));
        assert_eq!(news, [false, true, false, true, false, true, true]);
    }

    #[test]
    fn long_intervals_end_together() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let next = |now, ms| next_run(began, at(now), Duration::from_millis(ms));
        assert_eq!([next(0, 500), next(1, 500), next(499, 500)], [at(500); 3]);
        assert_eq!((next(500, 500), next(1_700, 1_000)), (at(1_000), at(2_000)));
        assert_eq!((next(3, 20), next(4, 20)), (at(23), at(24)), "as exact as requested");
    }
}
