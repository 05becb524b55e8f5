//! Reports congestion of this host's receive processing to the NP (`np_host_congestion`).

use std::sync::Arc;
use std::time::Duration;

use dcqcn_common::host_congestion::{PERIOD_NS, Trigger, VALID_NS};
use dcqcn_netlink::Netlink;
use dcqcn_support::clock::monotonic_ns;

use super::work::{Begun, IDLE_PERIOD, Port, Settings, Start, Work};
use crate::error::Result;

struct HostCongestion {
    port: Arc<Port>,
    settings: Arc<Settings>,
    trigger: Trigger,
    is_congested: bool,
}

/// Starts the task, if the interface has the ingress program.
pub(super) fn begin(Start { port, settings, .. }: Start<'_>) -> Begun {
    if !port.info.programs.iter().any(|name| name == "ingress") {
        return Ok(None);
    }
    let trigger = Trigger::default();
    Ok(Some(Box::new(HostCongestion { port, settings, trigger, is_congested: false })))
}

impl Work for HostCongestion {
    fn run(&mut self, _: &Netlink) -> Result<Duration> {
        let scalars = self.port.maps().params()?.config.scalars;
        if scalars.np_host_congestion == 0 || scalars.np_enable == 0 {
            self.trigger = Trigger::default();
            self.report(false)?;
            return Ok(IDLE_PERIOD);
        }
        let (receiving, max_backlog) = self.settings.last_reading.now()?;
        let is_congested = self.trigger.observe(receiving, max_backlog);
        self.report(is_congested)?;
        Ok(Duration::from_nanos(PERIOD_NS))
    }
}

impl HostCongestion {
    /// Reports the state to the programs, repeatedly while congested because reports expire, and logs changes.
    fn report(&mut self, is_congested: bool) -> Result<()> {
        if !is_congested && !self.is_congested {
            return Ok(());
        }
        let until_ns = if is_congested { monotonic_ns().saturating_add(VALID_NS) } else { 0 };
        self.port.maps_mut().set_host_congested_until(until_ns)?;
        let iface = &self.port.info.iface;
        if is_congested && !self.is_congested {
            tracing::warn!(iface, "host congested: ECT packets are answered with CNPs");
        } else if !is_congested {
            tracing::info!(iface, "host no longer congested");
        }
        self.is_congested = is_congested;
        Ok(())
    }
}
