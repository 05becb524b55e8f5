//! Removing flows that have been silent for long.
//!
//! User space can write a set of flows only as a whole, and what a packet changed between the read and the write would be
//! lost. So it only finds the sets that have idle flows; a program removes them, under the set's lock and by its own look
//! at the time.

use std::time::Duration;

use anyhow::Result;
use dcqcn_common::events::Table;
use dcqcn_plane::attach::{self, Attachment};
use dcqcn_plane::dataplane::{Expire, Maps};
use dcqcn_support::clock::monotonic_ns;

use super::tasks::{Subject, Work};

/// Most and least often that is looked at the tables, each a whole one.
const LOOK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));

struct Age {
    iface: String,
    maps: Maps,
    expire: Expire,
    idle: Duration,
}

/// Begins, if anybody wants it.
pub(super) fn begin(subject: &Subject) -> Result<Option<Box<dyn Work>>> {
    let Some(idle) = subject.age_idle else {
        return Ok(None);
    };
    let Attachment { info, maps } = subject.open()?;
    let expire = attach::open_expire(&info.iface)?;
    Ok(Some(Box::new(Age { iface: info.iface, maps, expire, idle })))
}

impl Work for Age {
    fn turn(&mut self) -> Result<Duration> {
        let Self { iface, maps, expire, idle } = self;
        let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        let before_ns = monotonic_ns().saturating_sub(idle_ns);
        let is_idle = |last_seen_ns: u64| last_seen_ns != 0 && last_seen_ns < before_ns;
        let (mut rp_flows, mut np_flows) = (0, 0);
        for (index, set) in (0..).zip(maps.rp_sets()) {
            if set?.ways.iter().any(|flow| is_idle(flow.last_seen_ns)) {
                rp_flows += expire.run(Table::Rp, index, before_ns)?;
            }
        }
        for (index, set) in (0..).zip(maps.np_sets()) {
            if set?.ways.iter().any(|flow| is_idle(flow.last_seen_ns)) {
                np_flows += expire.run(Table::Np, index, before_ns)?;
            }
        }
        if rp_flows + np_flows != 0 {
            tracing::info!(iface, rp_flows, np_flows, "idle flows removed");
        }
        let (shortest, longest) = LOOK;
        Ok((self.idle / 4).clamp(shortest, longest))
    }
}
