//! What the daemon does for an interface for as long as it is attached: each task on a thread of its own, begun again when
//! it fails.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use dcqcn_netlink::Netlink;
use dcqcn_params::{PacerChoice, word};
use dcqcn_plane::attach::{self, Attachment, Info};
use dcqcn_plane::pacer::htb::HtbPacer;
use dcqcn_support::clock::monotonic_ns;

use super::{age, backlog, chain, events, pairs};

/// How long a task that failed rests.
const REST: Duration = Duration::from_secs(1);

/// What a task works on.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// The attachment.
    pub(crate) info: Info,
    /// After how long a flow counts as idle, if anybody wants to know.
    pub(crate) age_idle: Option<Duration>,
}

impl Subject {
    /// Opens its maps, for this task alone.
    ///
    /// # Errors
    /// It is not attached any more.
    pub(crate) fn open(&self) -> Result<Attachment> {
        Ok(attach::open(&self.info.iface)?)
    }
}

/// A task under way.
pub(crate) trait Work {
    /// Does what is due, and returns how long there is nothing to do. It may itself wait, for less than a second.
    ///
    /// # Errors
    /// Told in the log; the task is begun anew.
    fn turn(&mut self) -> Result<Duration>;
}

/// Begins a task, or says that the interface does not need it.
type Begin = fn(&Subject) -> Result<Option<Box<dyn Work>>>;

/// Every task, by name.
const TASKS: [(&str, Begin); 5] = [
    ("pacer", pacer),
    ("age", age::begin),
    ("pairs", pairs::begin),
    ("backlog", backlog::begin),
    ("events", events::begin),
];

impl Work for HtbPacer {
    fn turn(&mut self) -> Result<Duration> {
        // It waits for a cut itself.
        HtbPacer::turn(self).map(|()| Duration::ZERO)
    }
}

fn pacer(subject: &Subject) -> Result<Option<Box<dyn Work>>> {
    if subject.info.pacer != word(&PacerChoice::Htb) {
        return Ok(None);
    }
    let Attachment { info, maps } = subject.open()?;
    Ok(Some(Box::new(HtbPacer::new(Netlink::connect()?, maps, info.ifindex)?)))
}

/// The tasks of one interface; dropped, they end.
pub(super) struct Tasks {
    stop: Arc<Stop>,
    threads: Vec<Thread>,
}

struct Thread {
    name: &'static str,
    /// CLOCK_MONOTONIC at which it wants to be at work again.
    due_ns: Arc<AtomicU64>,
    /// `None` once joined.
    handle: Option<JoinHandle<()>>,
}

impl Tasks {
    /// Begins the tasks the interface needs.
    pub(super) fn begin(subject: &Subject) -> Result<Self> {
        let mut tasks = Self { stop: Arc::default(), threads: Vec::new() };
        for (name, begin) in TASKS {
            let (subject, stop, due_ns) = (subject.clone(), Arc::clone(&tasks.stop), Arc::default());
            let beat = Arc::clone(&due_ns);
            let handle = thread::Builder::new()
                .name(format!("{name} {}", subject.info.iface))
                .spawn(move || keep(name, begin, &subject, &stop, &beat))
                .context("cannot start a thread")?;
            tasks.threads.push(Thread { name, due_ns, handle: Some(handle) });
        }
        Ok(tasks)
    }

    /// The first task that should have been at work for `late` but is not.
    pub(super) fn stuck(&self, late: Duration) -> Option<&'static str> {
        let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = monotonic_ns();
        let is_stuck = |thread: &&Thread| {
            let running = thread.handle.as_ref().is_some_and(|handle| !handle.is_finished());
            let due_ns = thread.due_ns.load(Ordering::Relaxed);
            running && due_ns != 0 && now_ns > due_ns.saturating_add(late_ns)
        };
        self.threads.iter().find(is_stuck).map(|thread| thread.name)
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.stop.set();
        for thread in &mut self.threads {
            // A panic of the task has been caught and told.
            let _ = thread.handle.take().map(JoinHandle::join);
        }
    }
}

/// Keeps one task going.
fn keep(name: &str, begin: Begin, subject: &Subject, stop: &Stop, due_ns: &AtomicU64) {
    let iface = &subject.info.iface;
    let mut told = String::new();
    loop {
        let run = || {
            let Some(mut work) = begin(subject)? else {
                return Ok(());
            };
            tracing::info!(iface, task = name, "begun");
            loop {
                let rest = work.turn()?;
                let rest_ns = u64::try_from(rest.as_nanos()).unwrap_or(u64::MAX);
                due_ns.store(monotonic_ns().saturating_add(rest_ns), Ordering::Relaxed);
                if stop.wait(rest) {
                    return Ok(());
                }
            }
        };
        let ended =
            panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(anyhow!("the task panicked")));
        let Err(error) = ended else {
            return;
        };
        let text = chain(&error);
        if text != told && !stop.is_set() {
            tracing::warn!(iface, task = name, error = text, "failed; tried again every second");
            told = text;
        }
        due_ns.store(0, Ordering::Relaxed);
        if stop.wait(REST) {
            return;
        }
    }
}

/// A flag that can be waited for.
#[derive(Default)]
struct Stop {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    fn set(&self) {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn is_set(&self) -> bool {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `time`, or until it is set; returns whether it is.
    fn wait(&self, time: Duration) -> bool {
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        if *set || time.is_zero() {
            return *set;
        }
        let waited = self.changed.wait_timeout_while(set, time, |set| !*set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_ends_a_wait_and_every_later_one() {
        let stop = Arc::new(Stop::default());
        assert!(!stop.wait(Duration::ZERO) && !stop.wait(Duration::from_millis(1)));
        let other = Arc::clone(&stop);
        let setter = thread::spawn(move || other.set());
        // Longer than anybody waits for a test.
        assert!(stop.wait(Duration::from_secs(1 << 20)) && stop.wait(Duration::ZERO) && stop.is_set());
        setter.join().unwrap();
    }
}
