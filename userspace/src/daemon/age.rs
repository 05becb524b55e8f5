//! Counting flows that have been silent for long.
//!
//! They are counted and not removed. User space can write a set of flows only as a whole: under its lock, but what a packet
//! changed between the read and the write would be lost. They do no harm: a new flow takes the place of the one that has
//! been silent longest.

use std::time::Duration;

use anyhow::Result;

use super::tasks::{Subject, Work};
use crate::attach::Attachment;
use crate::clock::monotonic_ns;
use crate::dataplane::Maps;

/// Most and least often that is looked at the tables, each a whole one.
const LOOK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));

struct Age {
    iface: String,
    maps: Maps,
    idle: Duration,
    last: Option<[usize; 4]>,
}

/// Begins counting, if anybody wants to know.
pub(super) fn begin(subject: &Subject) -> Result<Option<Box<dyn Work>>> {
    let Some(idle) = subject.age_idle else {
        return Ok(None);
    };
    let Attachment { info, maps } = subject.open()?;
    Ok(Some(Box::new(Age { iface: info.iface, maps, idle, last: None })))
}

impl Work for Age {
    fn turn(&mut self) -> Result<Duration> {
        let idle_ns = u64::try_from(self.idle.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = monotonic_ns();
        let mut counts = [0; 4];
        let [rp_flows, rp_idle, np_flows, np_idle] = &mut counts;
        for flow in self.maps.rp_flows() {
            *rp_flows += 1;
            *rp_idle += usize::from(now_ns.saturating_sub(flow?.2.last_seen_ns) >= idle_ns);
        }
        for flow in self.maps.np_flows() {
            *np_flows += 1;
            *np_idle += usize::from(now_ns.saturating_sub(flow?.last_seen_ns) >= idle_ns);
        }
        if self.last != Some(counts) {
            let [rp_flows, rp_idle, np_flows, np_idle] = counts;
            tracing::info!(iface = self.iface, rp_flows, rp_idle, np_flows, np_idle, "flows");
            self.last = Some(counts);
        }
        let (shortest, longest) = LOOK;
        Ok((self.idle / 4).clamp(shortest, longest))
    }
}
