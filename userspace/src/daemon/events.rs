//! Carrying the data plane's events into the log.

use std::time::{Duration, SystemTime};

use anyhow::Result;

use super::tasks::{Subject, Work};
use crate::attach::Attachment;
use crate::clock::monotonic_ns;
use crate::events::{EventRow, Kind, Reader};

/// How often it is looked for new ones.
const PERIOD: Duration = Duration::from_secs(1);

struct Events {
    iface: String,
    reader: Reader,
}

/// Begins following the event log, from now on.
pub(super) fn begin(subject: &Subject) -> Result<Option<Box<dyn Work>>> {
    let Attachment { info, maps } = subject.open()?;
    Ok(Some(Box::new(Events { iface: info.iface, reader: Reader::new(maps.event_log()?, 0) })))
}

impl Work for Events {
    fn turn(&mut self) -> Result<Duration> {
        let (clock, now_ns, iface) = (SystemTime::now(), monotonic_ns(), &self.iface);
        for entry in self.reader.read() {
            let Some(row) = EventRow::new(iface, &entry, clock, now_ns) else {
                continue;
            };
            let (event, left_out) = (crate::params::word(&row.event), row.left_out);
            match row.event {
                // What DCQCN does all the time.
                Kind::RateCut => tracing::debug!(iface, left_out, "{event}: {}", row.detail),
                Kind::FlowPaired => tracing::info!(iface, left_out, "{event}: {}", row.detail),
                _ => tracing::warn!(iface, left_out, "{event}: {}", row.detail),
            }
        }
        Ok(PERIOD)
    }
}
