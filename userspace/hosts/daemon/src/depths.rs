//! How deep queues are and how many flows are at the floor, looked at often while somebody wants to know: a look a second is too seldom
//! for a percentile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dcqcn_control_api::{LOOKS, QUEUE_PERCENT};
use dcqcn_support::clock::monotonic_ns;

/// For how long it is looked after somebody wanted to know, in nanoseconds.
const WANTED_NS: u64 = 10_000_000_000;

/// What was seen of an interface since it was first looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Depths {
    /// Looks by what the deepest queue was at, in percent of its Kmax; see [`QUEUE_PERCENT`].
    pub(crate) snapshots: [u64; LOOKS],
    /// Flows that sent recently.
    pub(crate) active: u64,
    /// Those of them that are held to the lowest rate.
    pub(crate) at_floor: u64,
}

impl Depths {
    /// Counts a look.
    pub(crate) fn see(&mut self, percent: u64) {
        let place = QUEUE_PERCENT.iter().position(|bound| percent <= *bound).unwrap_or(QUEUE_PERCENT.len());
        if let Some(count) = self.snapshots.get_mut(place) {
            *count += 1;
        }
    }
}

/// What was seen, by interface, and whether somebody wants to know.
#[derive(Default)]
pub(crate) struct Watched {
    /// CLOCK_MONOTONIC up to when somebody does.
    until_ns: AtomicU64,
    seen: Mutex<BTreeMap<u32, Depths>>,
}

impl Watched {
    /// Notes that somebody wants to know, and says what was seen of the interface of this index.
    pub(crate) fn want(&self, ifindex: u32) -> Depths {
        self.until_ns.store(monotonic_ns().saturating_add(WANTED_NS), Ordering::Relaxed);
        self.lock().get(&ifindex).copied().unwrap_or_default()
    }

    /// Whether somebody wants to know.
    pub(crate) fn is_wanted(&self) -> bool {
        monotonic_ns() < self.until_ns.load(Ordering::Relaxed)
    }

    /// Changes what was seen of an interface.
    pub(crate) fn change(&self, ifindex: u32, change: impl FnOnce(&mut Depths)) {
        change(self.lock().entry(ifindex).or_default());
    }

    /// Forgets an interface.
    pub(crate) fn forget(&self, ifindex: u32) {
        self.lock().remove(&ifindex);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Depths>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_samples_counted_while_watched() {
        let watched = Watched::default();
        assert!(!watched.is_wanted());
        assert_eq!(watched.want(7), Depths::default());
        assert!(watched.is_wanted());
        for percent in [0, 10, 11, 100, 101, 5_000] {
            watched.change(7, |depths| depths.see(percent));
        }
        let snapshots = watched.want(7).snapshots;
        assert_eq!(
            (snapshots[0], snapshots[1], snapshots[9], snapshots[10], snapshots[LOOKS - 1]),
            (2, 1, 1, 1, 1)
        );
        assert_eq!(snapshots.iter().sum::<u64>(), 6);
        watched.forget(7);
        assert_eq!(watched.want(7), Depths::default());
    }
}
