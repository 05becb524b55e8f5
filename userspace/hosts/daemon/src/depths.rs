//! Samples of queue depths and of flows at the lowest rate, taken often while a client needs percentiles.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dcqcn_control_api::{QUEUE_BINS, QUEUE_PERCENT};
use dcqcn_support::clock::monotonic_ns;
use dcqcn_support::sync::lock;

/// Time for which sampling continues after a request, in nanoseconds.
const DEMAND_NS: u64 = 10_000_000_000;

/// Samples of an interface since the first one.
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
    use super::*;

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
        assert_eq!(
            (snapshots[0], snapshots[1], snapshots[9], snapshots[10], snapshots[QUEUE_BINS - 1]),
            (2, 1, 1, 1, 1)
        );
        assert_eq!(snapshots.iter().sum::<u64>(), 6);
        samples.forget(7);
        assert_eq!(samples.request(7), Depths::default());
    }
}
