//! Copies events of the data plane to the log.

use std::time::{Duration, SystemTime};

use dcqcn_loader::events::Reader;
use dcqcn_netlink::Netlink;
use dcqcn_params::word;
use dcqcn_support::clock::monotonic_ns;
use dcqcn_telemetry::event::{EventRow, Kind};

use super::work::{Begun, Start, Work};
use crate::error::Result;

const PERIOD: Duration = Duration::from_secs(1);

struct Events {
    iface: String,
    reader: Reader,
}

/// Starts following the event log at its current end.
pub(super) fn begin(Start { port, .. }: Start<'_>) -> Begun {
    let reader = Reader::new(port.maps().event_log()?, 0);
    Ok(Some(Box::new(Events { iface: port.info.iface.clone(), reader })))
}

impl Work for Events {
    fn run(&mut self, _: &Netlink) -> Result<Duration> {
        let (clock, now_ns, iface) = (SystemTime::now(), monotonic_ns(), &self.iface);
        let entries = self.reader.read();
        let rows = entries.iter().filter_map(|entry| EventRow::new(iface, entry, clock, now_ns));
        // Of warnings, log the last one of each kind, and their number.
        let mut wrong: Vec<(EventRow, u64)> = Vec::new();
        for row in rows {
            match row.event {
                // Normal operation of DCQCN.
                Kind::RateCut => {
                    tracing::debug!(iface, omitted = row.omitted, "{}: {}", word(&row.event), row.detail)
                }
                Kind::FlowPaired => {
                    tracing::info!(iface, omitted = row.omitted, "{}: {}", word(&row.event), row.detail)
                }
                _ => match wrong.iter_mut().find(|(last, _)| last.event == row.event) {
                    Some((last, times)) => (*times, *last) = (*times + 1 + row.omitted, row),
                    None => wrong.push((row.clone(), 1 + row.omitted)),
                },
            }
        }
        for (last, times) in wrong {
            tracing::warn!(iface, times, "{}: {}", word(&last.event), last.detail);
        }
        Ok(PERIOD)
    }
}
