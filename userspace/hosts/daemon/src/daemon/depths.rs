//! Samples of queue depths and of flows at the lowest rate, taken often while a client evaluates a change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dcqcn_common::flow::RpSet;
use dcqcn_common::layout::{BACKLOG_AGE_NS, CLASSES, QUEUES};
use dcqcn_common::params::{Params, QUEUE_SOURCE_BACKLOG};
use dcqcn_control_api::{QUEUE_BINS, QUEUE_PERCENT};
use dcqcn_loader::dataplane;
use dcqcn_netlink::Netlink;
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::sync::lock;

use super::work::{Begun, Port, Settings, Start, Work};
use crate::error::Result;

/// Interval between samples of queues.
const PERIOD: Duration = Duration::from_millis(20);
/// Interval between checks whether a client needs samples.
const IDLE_PERIOD: Duration = Duration::from_millis(500);
/// Minimum interval between readings of flows, also as a multiple of their duration, since the table may be large.
const MIN_FLOWS_PERIOD: Duration = Duration::from_secs(2);
const PAUSE_FACTOR: u32 = 500;
/// Maximum time since a flow sent for it to count, in nanoseconds.
const ACTIVE_NS: u64 = 5_000_000_000;

struct Sampler {
    port: Arc<Port>,
    settings: Arc<Settings>,
    flows_at: Instant,
}

pub(super) fn begin(Start { port, settings, .. }: Start<'_>) -> Begun {
    Ok(Some(Box::new(Sampler { port, settings, flows_at: Instant::now() })))
}

impl Work for Sampler {
    fn run(&mut self, _: &Netlink) -> Result<Duration> {
        if !self.settings.depth_samples.is_needed() {
            return Ok(IDLE_PERIOD);
        }
        let params = self.port.maps().params()?;
        let percent = deepest(&self.port, &params)?;
        let began = Instant::now();
        let is_due = began >= self.flows_at;
        let flows = is_due.then(|| flows(&params, |index| self.port.maps().rp_set(index))).transpose()?;
        self.settings.depth_samples.change(self.port.info.ifindex, |depths| {
            depths.count(percent);
            if let Some(flows) = flows {
                (depths.active, depths.at_floor) = flows;
            }
        });
        if is_due {
            self.flows_at = Instant::now() + MIN_FLOWS_PERIOD.max(began.elapsed() * PAUSE_FACTOR);
        }
        Ok(PERIOD)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.settings.depth_samples.forget(self.port.info.ifindex);
    }
}

/// Depth of the deepest marking queue, in percent of its Kmax.
fn deepest(port: &Port, params: &Params) -> Result<u64> {
    let config = &params.config;
    let is_used = |tc: usize| {
        let marks = config.wred.get(tc).is_some_and(|wred| wred.ecn != 0 && wred.kmax_bytes != 0);
        marks && config.dscp_to_tc.iter().any(|class| usize::from(*class) == tc)
    };
    let maps = port.maps();
    let by_backlog = config.scalars.queue_source == QUEUE_SOURCE_BACKLOG;
    let backlogs = if by_backlog { Some(maps.backlogs()?) } else { None };
    let ports = 1 + usize::from(port.info.inline_peer.is_some());
    let mut deepest = 0;
    for index in (0..QUEUES as usize).take(ports * CLASSES).filter(|index| is_used(index % CLASSES)) {
        let now_ns = monotonic_ns();
        let backlog = backlogs.as_ref().and_then(|backlogs| backlogs.get(index));
        let backlog = backlog.filter(|backlog| now_ns.saturating_sub(backlog.read_at_ns) < BACKLOG_AGE_NS);
        let bytes = match (backlog, params.drain.get(index % params.drain.len().max(1))) {
            (Some(backlog), _) => backlog.bytes,
            (None, Some(drain)) => drain.depth_bytes(maps.queue(index as u32)?, monotonic_ns()),
            (None, None) => 0,
        };
        let kmax_bytes = config.wred.get(index % CLASSES).map_or(0, |wred| wred.kmax_bytes);
        deepest = deepest.max((bytes.saturating_mul(100)).checked_div(kmax_bytes).unwrap_or(0));
    }
    Ok(deepest)
}

/// Numbers of active flows, and of those at the lowest rate.
///
/// Reads set by set, because other tasks need the maps in the meantime.
fn flows(params: &Params, set: impl Fn(u32) -> Result<RpSet, dataplane::Error>) -> Result<(u64, u64)> {
    let (mut active, mut at_floor) = (0, 0);
    for index in 0..=params.port.rp_set_mask {
        let set = set(index)?;
        let now_ns = monotonic_ns();
        for (_, flow) in set.flows() {
            if now_ns.saturating_sub(flow.last_seen_ns()) > ACTIVE_NS {
                continue;
            }
            active += 1;
            let mut machine = flow.hot.machine;
            // The machine is lazy: events since the flow's last packet have not been applied.
            machine.advance(&params.rp, now_ns);
            at_floor += u64::from(machine.active != 0 && machine.rate_bps <= params.rp.min_rate_bps);
        }
    }
    Ok((active, at_floor))
}

/// Time for which sampling continues after a request, in nanoseconds.
const DEMAND_NS: u64 = 10_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Depths {
    /// Samples by depth of the deepest queue, in percent of its Kmax; see [`QUEUE_PERCENT`].
    pub(crate) snapshots: [u64; QUEUE_BINS],
    /// Flows that sent recently.
    pub(crate) active: u64,
    /// Active flows at the lowest rate.
    pub(crate) at_floor: u64,
}

impl Depths {
    pub(crate) fn count(&mut self, percent: u64) {
        let bin = QUEUE_PERCENT.iter().position(|bound| percent <= *bound).unwrap_or(QUEUE_PERCENT.len());
        if let Some(count) = self.snapshots.get_mut(bin) {
            *count += 1;
        }
    }
}

/// Samples by interface, and the state of the demand.
#[derive(Default)]
pub(crate) struct DepthSamples {
    /// End of the demand, CLOCK_MONOTONIC.
    until_ns: AtomicU64,
    of_interfaces: Mutex<BTreeMap<u32, Depths>>,
}

impl DepthSamples {
    /// Renews the demand, and returns the samples of the interface with this index.
    pub(crate) fn request(&self, ifindex: u32) -> Depths {
        self.until_ns.store(monotonic_ns().saturating_add(DEMAND_NS), Ordering::Relaxed);
        lock(&self.of_interfaces).get(&ifindex).copied().unwrap_or_default()
    }

    pub(crate) fn is_needed(&self) -> bool {
        monotonic_ns() < self.until_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn change(&self, ifindex: u32, change: impl FnOnce(&mut Depths)) {
        change(lock(&self.of_interfaces).entry(ifindex).or_default());
    }

    pub(crate) fn forget(&self, ifindex: u32) {
        lock(&self.of_interfaces).remove(&ifindex);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use dcqcn_common::params::{Config, Port as PortParams};

    use super::*;

    #[test]
    fn flows_are_read_set_by_set() {
        let params = Params::new(&Config::DEFAULT, PortParams::new(1, 4, 4)).unwrap();
        let (now_ns, read) = (monotonic_ns(), RefCell::new(Vec::new()));
        let set = |index| {
            read.borrow_mut().push(index);
            let mut set = RpSet::EMPTY;
            // One flow has sent recently, one has not.
            (set.hot[0].fingerprint, set.hot[0].last_ns) = (1, [now_ns, 0]);
            (set.hot[1].fingerprint, set.hot[1].last_ns) = (2, [0, 1]);
            Ok(set)
        };
        assert_eq!(flows(&params, set).unwrap(), (4, 0));
        assert_eq!(read.into_inner(), [0, 1, 2, 3]);
    }

    #[test]
    fn depths_counted_until_forgotten() {
        let samples = DepthSamples::default();
        assert!(!samples.is_needed());
        assert_eq!(samples.request(7), Depths::default());
        assert!(samples.is_needed());
        for percent in [0, 10, 11, 100, 101, 5_000] {
            samples.change(7, |depths| depths.count(percent));
        }
        let snapshots = samples.request(7).snapshots;
        assert_eq!([0, 1, 9, 10, QUEUE_BINS - 1].map(|bin| snapshots[bin]), [2, 1, 1, 1, 1]);
        assert_eq!(snapshots.iter().sum::<u64>(), 6);
        samples.forget(7);
        assert_eq!(samples.request(7), Depths::default());
    }
}
