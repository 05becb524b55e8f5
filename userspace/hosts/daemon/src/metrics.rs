//! Metrics as Prometheus text or OpenMetrics over HTTP: `/metrics`, `/healthz` for liveness, and `/readyz` for
//! readiness.
//!
//! Counters have the names of [`Stat`], which are those of mlx5 where it has the same counter.
//!
//! [`Stat`]: dcqcn_common::stats::Stat

mod exposition;
mod render;
mod serve;
#[cfg(test)]
mod tests;

use std::panic;
use std::thread::{self, ScopedJoinHandle};

use dcqcn_control_api::Failing;
use dcqcn_loader::attach::{self, Info, Part, Sweep};
use dcqcn_telemetry::Reading;
use serde::Serialize;

use crate::daemon::repair::suspension;
use crate::shared_state::SharedState;
pub use serve::{Exporter, serve};

/// A reading of every interface attached in this network namespace.
#[derive(Debug)]
pub(crate) struct Scrape {
    pub(crate) readings: Vec<Reading>,
    /// Interfaces with unreadable maps; one without a name if attachments cannot be listed.
    pub(crate) unreadable: Vec<Failing>,
}

impl Scrape {
    /// Reads all interfaces, with all flows or only their number. Failures are part of the result.
    pub(crate) fn take(with_flows: bool) -> Self {
        let failing = |name: &str, error: attach::Error| Failing::new(name, &error.to_string());
        let attach::Alive { attached, unreadable } = match attach::alive() {
            Ok(alive) => alive,
            Err(error) => return Self { readings: Vec::new(), unreadable: vec![failing("", error)] },
        };
        let unreadable = unreadable.into_iter().map(|(name, error)| failing(&name, error));
        let mut scrape = Self { readings: Vec::new(), unreadable: unreadable.collect() };
        let mut names: Vec<String> = attached.into_iter().map(|info| info.iface).collect();
        names.sort_unstable();
        // Tables are large: read some on each core.
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let share = names.len().div_ceil(threads).max(1);
        let read_one = if with_flows { Reading::take } else { Reading::without_flows };
        let read = |names: &[String]| names.iter().map(|name| (name.clone(), read_one(name))).collect();
        let readings: Vec<(String, Result<Reading, attach::Error>)> = thread::scope(|scope| {
            let start =
                |some| thread::Builder::new().spawn_scoped(scope, move || read(some)).map_err(|_| some);
            let threads: Vec<_> = names.chunks(share).map(start).collect();
            let join = |thread: Result<ScopedJoinHandle<'_, Vec<_>>, &[String]>| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)),
                // At a limit of threads, this one reads all.
                Err(some) => read(some),
            };
            threads.into_iter().flat_map(join).collect()
        });
        let mut failed = Vec::new();
        for (name, result) in readings {
            match result {
                Ok(reading) => scrape.readings.push(reading),
                Err(error) => failed.push(failing(&name, error)),
            }
        }
        if !failed.is_empty() {
            scrape.unreadable.extend(still_attached(failed, attach::alive()));
        }
        scrape
    }
}

/// Failures without those of interfaces that were detached, removed or renamed since they were listed.
fn still_attached(mut failed: Vec<Failing>, now: Result<attach::Alive, attach::Error>) -> Vec<Failing> {
    if let Ok(attach::Alive { attached, .. }) = now {
        failed.retain(|failing| attached.iter().any(|info| info.iface == failing.interface));
    }
    failed
}

/// Body of `/readyz`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Readiness {
    /// All configured interfaces are attached and complete.
    pub(crate) is_ready: bool,
    pub(crate) interfaces: Vec<String>,
    pub(crate) failing: Vec<Failing>,
    pub(crate) waiting: usize,
}

impl Readiness {
    /// Checks readiness; `shared` is the state of the enclosing daemon, if any.
    pub(crate) fn check(shared: Option<&SharedState>) -> Self {
        let mut readiness = Self { is_ready: true, interfaces: Vec::new(), failing: Vec::new(), waiting: 0 };
        let mut unreadable = Vec::new();
        let read = || -> Result<_, attach::Error> { Ok((attach::alive()?, Sweep::take()?)) };
        match read() {
            Ok((alive, sweep)) => {
                unreadable = alive.unreadable;
                for info in alive.attached {
                    match problem(&sweep, &info) {
                        None => readiness.interfaces.push(info.iface),
                        Some(error) => readiness.failing.push(Failing::new(&info.iface, &error)),
                    }
                }
            }
            Err(error) => readiness.failing.push(Failing::new("", &error.to_string())),
        }
        if let Some(snapshot) = shared.map(SharedState::snapshot) {
            readiness.waiting = snapshot.waiting;
            readiness.is_ready = snapshot.is_ready;
            readiness
                .interfaces
                .retain(|name| snapshot.bypassed.iter().all(|bypassed| bypassed.interface != *name));
            let absent = snapshot.served.iter().filter(|name| !readiness.interfaces.contains(name));
            let absent = absent.map(|interface| Failing::new(interface, "managed, but not attached"));
            for other in snapshot.failing.iter().cloned().chain(absent) {
                // The kernel was just asked.
                let is_complete_again =
                    snapshot.incomplete.contains(&other) && readiness.interfaces.contains(&other.interface);
                if !is_complete_again
                    && readiness.failing.iter().all(|failing| failing.interface != other.interface)
                {
                    readiness.failing.push(other);
                }
            }
            let (failing, suspension) = (readiness.failing.iter_mut(), suspension());
            for failing in failing.filter(|failing| snapshot.suspended.contains(&failing.interface)) {
                failing.error = format!("{}; {suspension}", failing.error);
            }
        }
        for (interface, error) in unreadable {
            if readiness.failing.iter().all(|failing| failing.interface != interface) {
                readiness.failing.push(Failing::new(&interface, &error.to_string()));
            }
        }
        readiness.is_ready &= readiness.failing.is_empty() && readiness.waiting == 0;
        readiness
    }
}

fn problem(sweep: &Sweep, info: &Info) -> Option<String> {
    match sweep.verify(info) {
        Ok(parts) => parts.iter().find_map(Part::complaint),
        Err(error) => Some(error.to_string()),
    }
}
