//! What one request reads.

use std::panic;
use std::thread::{self, ScopedJoinHandle};

use dcqcn_loader::attach;
use dcqcn_telemetry::Reading;
use serde::Serialize;

/// A reading of every interface attached in this network namespace.
#[derive(Debug, Default)]
pub struct Scrape {
    pub(crate) readings: Vec<Reading>,
    pub(crate) unreadable: Vec<Unreadable>,
}

/// An interface whose maps cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    /// Its name; `None` if not even the list of what is attached can be read.
    pub interface: Option<String>,
    /// Why.
    pub error: String,
}

fn take(name: &str, with_flows: bool) -> Result<Reading, attach::Error> {
    if with_flows { Reading::take(name) } else { Reading::without_flows(name) }
}

impl Scrape {
    /// Reads them all, with each flow or only how many there are. What cannot be read is part of the answer.
    #[must_use]
    pub(crate) fn take(with_flows: bool) -> Self {
        let mut scrape = Self::default();
        let attach::Alive { attached, unreadable } = match attach::alive() {
            Ok(alive) => alive,
            Err(error) => {
                scrape.unreadable.push(Unreadable { interface: None, error: error.to_string() });
                return scrape;
            }
        };
        let told = |(name, error): (String, attach::Error)| Unreadable {
            interface: Some(name),
            error: error.to_string(),
        };
        scrape.unreadable.extend(unreadable.into_iter().map(told));
        let mut names: Vec<String> = attached.into_iter().map(|info| info.iface).collect();
        names.sort_unstable();
        // Tables are large: each core reads some.
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let share = names.len().div_ceil(threads).max(1);
        let read =
            |names: &[String]| names.iter().map(|name| (name.clone(), take(name, with_flows))).collect();
        let taken: Vec<(String, Result<Reading, attach::Error>)> = thread::scope(|scope| {
            let threads: Vec<_> = names.chunks(share).map(|some| scope.spawn(move || read(some))).collect();
            let join = |thread: ScopedJoinHandle<'_, Vec<_>>| {
                thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
            };
            threads.into_iter().flat_map(join).collect()
        });
        for (name, result) in taken {
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

    /// The interfaces that cannot be read.
    pub(super) fn failed(&self) -> Vec<String> {
        self.unreadable.iter().filter_map(|unreadable| unreadable.interface.clone()).collect()
    }
}
