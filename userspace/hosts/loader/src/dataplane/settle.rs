//! Consistent reads of flows while programs change them.

use dcqcn_common::flow::RpSet;
use dcqcn_common::layout::WAYS;

/// Reads after the first that must find a flow unlocked and unchanged, with a fence before each.
///
/// Suppose that the first read saw one of two stores made under a lock. The fence orders it before the second read, which
/// therefore found the lock taken, or released after both stores. On x86 the second read, in ascending order from the lock
/// on, then sees both. A CPU that reorders loads may have read the data before the lock: the next fence orders the lock
/// before the data of a third read, which sees both. `common/tests/ordering.rs` checks this.
pub(super) const EQUAL_READS: u8 = if cfg!(target_arch = "x86_64") { 1 } else { 2 };

/// A set of the RP table, read until every flow was unlocked and equal in successive reads.
///
/// Every packet changes its flow, if only a counter.
pub(super) struct Settling {
    /// Settled flows as they were then, the others as last read.
    set: RpSet,
    equal_reads: [u8; WAYS],
    needed: u8,
}

impl Settling {
    /// Starts with a first read; `needed` is [`EQUAL_READS`].
    pub(super) const fn new(first: RpSet, needed: u8) -> Self {
        Self { set: first, equal_reads: [0; WAYS], needed }
    }

    /// Adds a read; returns true if all flows are settled.
    pub(super) fn read(&mut self, set: &RpSet) -> bool {
        let now = set.tags.iter().zip(&set.hot).zip(&set.cold);
        let before = self.set.tags.iter_mut().zip(&mut self.set.hot).zip(&mut self.set.cold);
        for ((((tag, hot), cold), ((old_tag, old_hot), old_cold)), equal_reads) in
            now.zip(before).zip(&mut self.equal_reads)
        {
            if *equal_reads < self.needed {
                let is_as_before = (tag, hot, cold) == (&*old_tag, &*old_hot, &*old_cold);
                *equal_reads = if is_as_before && !hot.is_held() { *equal_reads + 1 } else { 0 };
                (*old_tag, *old_hot, *old_cold) = (*tag, *hot, *cold);
            }
        }
        self.equal_reads == [self.needed; WAYS]
    }

    /// The set; its flows may be from different times.
    pub(super) const fn into_set(self) -> RpSet {
        RpSet { lock: 0, ..self.set }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(change: impl FnOnce(&mut RpSet)) -> RpSet {
        let mut set = RpSet::EMPTY;
        change(&mut set);
        set
    }

    #[test]
    fn unlocked_set_read_twice() {
        let unlocked = set(|set| set.hot[3].packets = 7);
        let mut settling = Settling::new(unlocked, 1);
        assert!(settling.read(&unlocked));
        assert_eq!(settling.into_set(), unlocked);
    }

    #[test]
    fn change_restarts_equal_reads() {
        let packets = |packets| set(|set| set.hot[0].packets = packets);
        let mut settling = Settling::new(packets(1), 2);
        for (read, is_settled) in [(1, false), (2, false), (2, false), (2, true)] {
            assert_eq!(settling.read(&packets(read)), is_settled);
        }
    }

    #[test]
    fn flow_read_while_unlocked() {
        let packets = |of: [u64; 2]| set(|set| (set.hot[0].packets, set.hot[1].packets) = of.into());
        let mut settling = Settling::new(packets([1, 1]), 1);
        assert!(!settling.read(&packets([1, 2])), "the second is busy");
        assert!(!settling.read(&packets([2, 3])), "both are busy, but the first was read before");
        assert!(settling.read(&packets([3, 3])));
        assert_eq!(settling.into_set(), packets([1, 3]));
    }

    #[test]
    fn locked_flow_is_not_settled() {
        let locked = set(|set| set.hot[7].lock = 5);
        let free = set(|set| set.hot[7].lock = 4);
        let mut settling = Settling::new(locked, 1);
        assert!(!settling.read(&locked));
        assert!(!settling.read(&free));
        assert!(settling.read(&free));
        assert_eq!(settling.into_set(), free);
    }

    #[test]
    fn cnp_fields_read_while_unlocked() {
        for changed in [set(|set| set.cold[2].cnps.handled = 1), set(|set| set.tags[2] = 9)] {
            let mut settling = Settling::new(RpSet::EMPTY, 1);
            assert!(!settling.read(&changed));
            assert!(settling.read(&changed));
            assert_eq!(settling.into_set(), changed);
        }
    }

    #[test]
    fn busy_flow_returns_last_read() {
        let mut settling = Settling::new(RpSet::EMPTY, 1);
        for packets in 1..100 {
            assert!(!settling.read(&set(|set| set.hot[4].packets = packets)));
        }
        assert_eq!(settling.into_set().hot[4].packets, 99);
    }
}
