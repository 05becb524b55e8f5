//! Removal of idle flows.
//!
//! User space can write a set of flows only as a whole, and would lose packets' changes between the read and the write.
//! So it only finds the sets with idle flows; a BPF program removes them, under the lock of the flow (RP) or of the set (NP), after
//! checking the time again.

use std::sync::Arc;
use std::time::Duration;

use dcqcn_common::events::Table;
use dcqcn_loader::attach;
use dcqcn_loader::dataplane::Expire;
use dcqcn_netlink::Netlink;
use dcqcn_support::clock::monotonic_ns;

use super::work::{Begun, IDLE_PERIOD, Port, Settings, Start, Work};
use crate::error::Result;

/// Range of the interval between scans of a table.
const SCAN_INTERVAL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));

struct Age {
    port: Arc<Port>,
    settings: Arc<Settings>,
    /// Opened when aging is enabled.
    expire: Option<Expire>,
}

pub(super) fn begin(Start { port, settings, .. }: Start<'_>) -> Begun {
    Ok(Some(Box::new(Age { port, settings, expire: None })))
}

impl Work for Age {
    fn run(&mut self, _: &Netlink) -> Result<Duration> {
        let Some(idle) = self.settings.age_idle() else {
            return Ok(IDLE_PERIOD);
        };
        let Self { port, expire, .. } = self;
        let expire = match expire {
            Some(expire) => expire,
            None => expire.insert(attach::open_expire(&port.info)?),
        };
        let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        let before_ns = monotonic_ns().saturating_sub(idle_ns);
        let is_idle = |last_seen_ns: u64| last_seen_ns != 0 && last_seen_ns < before_ns;
        let (mut rp_flows, mut np_flows) = (0, 0);
        let params = port.maps().params()?;
        // Set by set, because other tasks need the maps in the meantime.
        for index in 0..=params.port.rp_set_mask {
            if port.maps().rp_set(index)?.flows().any(|(_, flow)| is_idle(flow.hot.last_seen_ns())) {
                rp_flows += expire.run(Table::Rp, index, before_ns)?;
            }
        }
        for index in 0..=params.port.np_set_mask {
            if port.maps().np_set(index)?.ways.iter().any(|flow| is_idle(flow.last_seen_ns)) {
                np_flows += expire.run(Table::Np, index, before_ns)?;
            }
        }
        if rp_flows + np_flows != 0 {
            tracing::info!(iface = port.info.iface, rp_flows, np_flows, "idle flows removed");
        }
        let (shortest, longest) = SCAN_INTERVAL;
        Ok((idle / 4).clamp(shortest, longest))
    }
}
