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

use dcqcn_control_api::Failing;
use dcqcn_loader::attach;
use dcqcn_telemetry::Reading;

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
                Err(error) => scrape.unreadable.push(failing(&name, error)),
            }
        }
        scrape
    }
}

#[cfg(test)]
mod tests;
