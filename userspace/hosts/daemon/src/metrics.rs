//! Metrics as Prometheus text or OpenMetrics over HTTP: `/metrics`, `/healthz` for liveness, and `/readyz` for
//! readiness.
//!
//! Counters have the names of [`Stat`], which are those of mlx5 where it has the same counter.
//!
//! [`Stat`]: dcqcn_common::stats::Stat

mod exposition;
#[cfg(test)]
mod page;
mod process;
pub(crate) mod readiness;
mod render;
mod serve;

use std::panic;
use std::thread::{self, ScopedJoinHandle};

use dcqcn_loader::attach;
use dcqcn_telemetry::Reading;
use serde::Serialize;

pub(crate) use serve::accept;
pub use serve::{Exporter, serve};

/// A reading of every interface attached in this network namespace.
#[derive(Debug, Default)]
pub struct Scrape {
    pub(crate) readings: Vec<Reading>,
    pub(crate) unreadable: Vec<Unreadable>,
}

/// An interface with unreadable maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    /// Name; `None` if attachments cannot be listed.
    pub interface: Option<String>,
    /// Cause.
    pub error: String,
}

fn read_interface(name: &str, with_flows: bool) -> Result<Reading, attach::Error> {
    if with_flows { Reading::take(name) } else { Reading::without_flows(name) }
}

impl Scrape {
    /// Reads all interfaces, with all flows or only their number. Failures are part of the result.
    pub(crate) fn take(with_flows: bool) -> Self {
        let mut scrape = Self::default();
        let attach::Alive { attached, unreadable } = match attach::alive() {
            Ok(alive) => alive,
            Err(error) => {
                scrape.unreadable.push(Unreadable { interface: None, error: error.to_string() });
                return scrape;
            }
        };
        let unreadable_interface = |(name, error): (String, attach::Error)| Unreadable {
            interface: Some(name),
            error: error.to_string(),
        };
        scrape.unreadable.extend(unreadable.into_iter().map(unreadable_interface));
        let mut names: Vec<String> = attached.into_iter().map(|info| info.iface).collect();
        names.sort_unstable();
        // Tables are large: read some on each core.
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let share = names.len().div_ceil(threads).max(1);
        let read = |names: &[String]| {
            names.iter().map(|name| (name.clone(), read_interface(name, with_flows))).collect()
        };
        let readings: Vec<(String, Result<Reading, attach::Error>)> = thread::scope(|scope| {
            let threads: Vec<_> = names.chunks(share).map(|some| scope.spawn(move || read(some))).collect();
            let join = |thread: ScopedJoinHandle<'_, Vec<_>>| {
                thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
            };
            threads.into_iter().flat_map(join).collect()
        });
        for (name, result) in readings {
            match result {
                Ok(reading) => scrape.readings.push(reading),
                // Detached since it was listed.
                Err(attach::Error::NotAttached { .. }) => {}
                Err(error) => {
                    scrape.unreadable.push(Unreadable { interface: Some(name), error: error.to_string() });
                }
            }
        }
        scrape
    }

    /// Unreadable interfaces.
    fn failed(&self) -> Vec<String> {
        self.unreadable.iter().filter_map(|unreadable| unreadable.interface.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
