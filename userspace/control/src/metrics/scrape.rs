//! What one request reads.

use dcqcn_plane::attach;
use dcqcn_view::{Reading, attached};
use serde::Serialize;

use super::render::render;

/// A reading of every interface attached in this network namespace.
#[derive(Debug, Default)]
pub struct Scrape {
    pub(super) readings: Vec<Reading>,
    pub(super) unreadable: Vec<Unreadable>,
}

/// An interface whose maps cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    /// Its name; `None` if not even the list of what is attached can be read.
    pub interface: Option<String>,
    /// Why.
    pub error: String,
}

/// What `/healthz` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// `ok` or `failing`.
    pub status: &'static str,
    /// The interfaces that can be read.
    pub interfaces: Vec<String>,
    /// Those that cannot.
    pub unreadable: Vec<Unreadable>,
}

impl Scrape {
    /// Reads them all. What cannot be read is part of the answer.
    #[must_use]
    pub fn take() -> Self {
        let mut scrape = Self::default();
        let names = match attached() {
            Ok(names) => names,
            Err(error) => {
                scrape.unreadable.push(Unreadable { interface: None, error: error.to_string() });
                return scrape;
            }
        };
        for name in names {
            match Reading::take(&name) {
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

    /// As metrics, with the `top_qps` flows of each interface that sent most.
    #[must_use]
    pub fn metrics(&self, top_qps: usize) -> String {
        let failed: Vec<String> =
            self.unreadable.iter().filter_map(|unreadable| unreadable.interface.clone()).collect();
        render(&self.readings, &failed, top_qps)
    }

    /// As a state of health.
    #[must_use]
    pub fn health(&self) -> Health {
        Health {
            status: if self.unreadable.is_empty() { "ok" } else { "failing" },
            interfaces: self.readings.iter().map(|reading| reading.info.iface.clone()).collect(),
            unreadable: self.unreadable.clone(),
        }
    }
}
