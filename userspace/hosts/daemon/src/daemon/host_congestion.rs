//! Reports congestion of this host's receive processing to the NP (`np_host_congestion`).

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dcqcn_common::host_congestion::{PERIOD_NS, Receiving, Trigger, VALID_NS};
use dcqcn_netlink::Netlink;
use dcqcn_support::clock::monotonic_ns;
use dcqcn_telemetry::Softnet;

use super::work::{Port, Settings, Work};

/// Interval between checks whether it is enabled.
const IDLE_PERIOD: Duration = Duration::from_secs(1);
/// The kernel's default of `net.core.netdev_max_backlog`, which only the initial network namespace shows on older kernels.
const MAX_BACKLOG: u64 = 1_000;

struct HostCongestion {
    port: Arc<Port>,
    trigger: Trigger,
    is_congested: bool,
}

/// Starts the task, if the interface has the ingress program.
pub(super) fn begin(port: &Arc<Port>, _: &Arc<Settings>, _: &Netlink) -> Result<Option<Box<dyn Work>>> {
    if !port.info.programs.iter().any(|name| name == "ingress") {
        return Ok(None);
    }
    let (port, trigger) = (Arc::clone(port), Trigger::default());
    Ok(Some(Box::new(HostCongestion { port, trigger, is_congested: false })))
}

impl Work for HostCongestion {
    fn run(&mut self, _: &Netlink) -> Result<Duration> {
        let scalars = self.port.maps().params()?.config.scalars;
        if scalars.np_host_congestion == 0 || scalars.np_enable == 0 {
            self.trigger = Trigger::default();
            self.report(false)?;
            return Ok(IDLE_PERIOD);
        }
        let receiving = receiving(&Softnet::read().context("cannot read /proc/net/softnet_stat")?);
        let max_backlog = fs::read_to_string("/proc/sys/net/core/netdev_max_backlog");
        let max_backlog = max_backlog.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(MAX_BACKLOG);
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

/// Counters of all CPUs, and the longest backlog of one.
fn receiving(cpus: &[Softnet]) -> Receiving {
    let Softnet { dropped, squeezed, .. } = Softnet::sum(cpus);
    Receiving { dropped, squeezed, backlog: cpus.iter().map(|cpu| cpu.backlog).max().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_backlog_counts() {
        let cpu = |squeezed, backlog| Softnet { dropped: 1, squeezed, backlog, processed: 9 };
        let expected = Receiving { dropped: 3, squeezed: 6, backlog: 40 };
        assert_eq!(receiving(&[cpu(1, 30), cpu(2, 40), cpu(3, 0)]), expected);
        assert_eq!(receiving(&[]), Receiving::default());
    }
}
