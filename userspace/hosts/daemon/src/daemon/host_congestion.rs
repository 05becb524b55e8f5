//! Reports congestion of this host's receive processing to the NP (`np_host_congestion`).

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dcqcn_common::host_congestion::{PERIOD_NS, Receiving, Trigger, VALID_NS};
use dcqcn_netlink::Netlink;
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::sync::lock;
use dcqcn_telemetry::Softnet;

use super::work::{Begun, IDLE_PERIOD, Port, Settings, Start, Work};
use crate::error::{Context as _, Result};

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

/// The kernel's default of `net.core.netdev_max_backlog`, which only the initial network namespace shows on
/// older kernels.
const MAX_BACKLOG: u64 = 1_000;

/// The last reading and maximum backlog, shared by the interfaces of a tick.
#[derive(Default)]
pub(super) struct LastReading(Mutex<Option<(Instant, (Receiving, u64))>>);

impl LastReading {
    pub(super) fn now(&self) -> Result<(Receiving, u64)> {
        self.at(Instant::now(), read)
    }

    fn at(&self, now: Instant, read: impl FnOnce() -> Result<(Receiving, u64)>) -> Result<(Receiving, u64)> {
        /// Longer than the interfaces of a tick take, shorter than the time between ticks.
        const TICK: Duration = Duration::from_nanos(PERIOD_NS / 2);
        let mut last = lock(&self.0);
        if let Some((time, reading)) = *last
            && now.saturating_duration_since(time) < TICK
        {
            return Ok(reading);
        }
        let reading = read()?;
        *last = Some((now, reading));
        Ok(reading)
    }
}

fn read() -> Result<(Receiving, u64)> {
    let receiving = receiving(&Softnet::read().context("cannot read /proc/net/softnet_stat")?);
    let max_backlog = fs::read_to_string("/proc/sys/net/core/netdev_max_backlog");
    let max_backlog = max_backlog.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(MAX_BACKLOG);
    Ok((receiving, max_backlog))
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
    fn interfaces_of_a_tick_share_a_reading() {
        let (last, start) = (LastReading::default(), Instant::now());
        let mut reads = 0;
        let mut at = |ms| {
            let read = || {
                reads += 1;
                Ok((Receiving { dropped: reads, ..Receiving::default() }, MAX_BACKLOG))
            };
            last.at(start + Duration::from_millis(ms), read).unwrap().0.dropped
        };
        assert_eq!([at(0), at(0), at(40), at(100), at(101), at(200)], [1, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn longest_backlog_counts() {
        let cpu = |squeezed, backlog| Softnet { dropped: 1, squeezed, backlog, processed: 9 };
        let expected = Receiving { dropped: 3, squeezed: 6, backlog: 40 };
        assert_eq!(receiving(&[cpu(1, 30), cpu(2, 40), cpu(3, 0)]), expected);
        assert_eq!(receiving(&[]), Receiving::default());
    }
}
