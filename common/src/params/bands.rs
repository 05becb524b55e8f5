//! Queue parameters of a port, and the bands of its qdisc.

use core::array;
use core::cmp::Reverse;

use super::spec::parameters;
use super::{Config, Unit};
use crate::layout::CLASSES;

/// Default queue length in frames of the largest size, as in Linux's own qdiscs.
const DEFAULT_LIMIT_FRAMES: u64 = 1_000;

impl Config {
    /// The band of each queue, its index in the qdisc: 0 is served first.
    ///
    /// Strict bands come first, because a scheduler serves them first: the highest queue number leads. Weighted bands
    /// follow.
    pub fn bands(&self) -> [u8; CLASSES] {
        let mut queues: [usize; CLASSES] = array::from_fn(|queue| queue);
        queues.sort_unstable_by_key(|&queue| (self.queue[queue].scheduler, Reverse(queue)));
        let mut bands = [0; CLASSES];
        for (band, queue) in (0..).zip(queues) {
            bands[queue] = band;
        }
        bands
    }

    pub fn strict_queues(&self) -> u8 {
        self.queue.iter().filter(|queue| queue.scheduler == SCHEDULER_STRICT).count() as u8
    }

    /// Maximum bytes in a queue: the largest `queue_limit` of its traffic classes. If none is set, a thousand frames of
    /// `frame_bytes`, or twice the highest Kmax if that is more.
    pub fn buffer_bytes(&self, queue: usize, frame_bytes: u64) -> u64 {
        let classes =
            || self.wred.iter().zip(self.tc_to_queue).filter(move |(_, of)| usize::from(*of) == queue);
        let configured_bytes = classes().map(|(wred, _)| wred.queue_limit_bytes).max().unwrap_or(0);
        if configured_bytes != 0 {
            return configured_bytes;
        }
        let kmax_bytes = classes().map(|(wred, _)| wred.kmax_bytes).max().unwrap_or(0);
        (DEFAULT_LIMIT_FRAMES * frame_bytes).max(2 * kmax_bytes)
    }

    /// `skb->priority` for the band that is served first, if the port has queues.
    pub(super) const fn first_priority(&self) -> u32 {
        if self.scalars.queues == QUEUES_NONE { 0 } else { ((QUEUES_MAJOR as u32) << 16) | 1 }
    }

    /// `skb->priority` for each traffic class; 0 = unchanged.
    pub(super) fn priorities(&self) -> [u32; CLASSES] {
        let bands = self.bands();
        self.tc_to_queue.map(|queue| match (self.scalars.queues, self.scalars.priority_major as u32) {
            (QUEUES_NONE, 0) => 0,
            (QUEUES_NONE, major) => (major << 16) | (u32::from(queue) + 1),
            _ => (u32::from(QUEUES_MAJOR) << 16) | (u32::from(bands[usize::from(queue) % CLASSES]) + 1),
        })
    }
}

/// Words of `queues`.
pub(crate) const QUEUES_KINDS: &[&str] = &["none", "ets", "htb"];
/// `queues`: the port's qdisc is unchanged.
pub const QUEUES_NONE: u64 = 0;
/// `queues`: eight bands of the ets qdisc.
pub const QUEUES_ETS: u64 = 1;
/// `queues`: eight classes of the htb qdisc.
pub const QUEUES_HTB: u64 = 2;
/// Major number of the qdisc with the queues. Its classes are the bands, numbered from 1.
pub const QUEUES_MAJOR: u16 = 0xdc03;

/// Words of `scheduler`.
pub const SCHEDULERS: &[&str] = &["strict", "dwrr"];
/// `scheduler`: served before all weighted queues, and before strict queues of lower numbers.
pub const SCHEDULER_STRICT: u64 = 0;
/// `scheduler`: shares the bandwidth that strict queues leave, by weight and in bytes.
pub const SCHEDULER_DWRR: u64 = 1;

parameters! {
    /// How one queue of a port is served (SONiC: the `SCHEDULER` of a `QUEUE`).
    QueueConfig {
        /// `strict`: served before all weighted queues, and before strict ones of lower numbers. `dwrr`:
        /// shares by weight.
        scheduler = SCHEDULER_DWRR, "scheduler", Unit::Choice(SCHEDULERS), 0, 1, "";
        /// Weight of a `dwrr` queue when sharing the bandwidth that strict queues leave.
        weight = 1, "weight", Unit::Count, 1, 100, "A larger share while other queues have a backlog.";
    }
}

impl QueueConfig {
    /// Weight 1 for all queues but queue 6, which carries the CNPs and is strict.
    pub(super) const DEFAULT_ALL: [Self; CLASSES] = {
        let mut queues = [Self::DEFAULT; CLASSES];
        queues[6].scheduler = SCHEDULER_STRICT;
        queues
    };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn strict_queues_precede_rest_descending() {
        assert_eq!(Config::DEFAULT.bands(), [7, 6, 5, 4, 3, 2, 0, 1]);
        assert_eq!(Config::DEFAULT.strict_queues(), 1);
        let config = Config::with(|c| {
            (c.queue[2].scheduler, c.queue[7].scheduler) = (SCHEDULER_STRICT, SCHEDULER_STRICT)
        });
        assert_eq!((config.bands(), config.strict_queues()), ([7, 6, 2, 5, 4, 3, 1, 0], 3));
    }

    #[test]
    fn class_has_priority_of_its_queue() {
        assert_eq!(Config::DEFAULT.priorities(), [0; CLASSES]);
        let of_operator = Config::with(|c| c.scalars.priority_major = 1);
        assert_eq!(of_operator.priorities()[3], 0x0001_0004);
        let queues = Config::with(|c| c.scalars.queues = QUEUES_ETS);
        assert_eq!((queues.priorities()[6], queues.priorities()[3]), (0xdc03_0001, 0xdc03_0005));
    }

    #[test]
    fn buffer_from_classes_or_large() {
        assert_eq!(Config::DEFAULT.buffer_bytes(3, 1_514), 1_514_000);
        assert_eq!(Config::with(|c| c.wred[3].kmax_bytes = 1_000_000).buffer_bytes(3, 1_514), 2_000_000);
        let params =
            Config::with(|c| (c.wred[0].queue_limit_bytes, c.wred[5].queue_limit_bytes) = (30_000, 50_000));
        assert_eq!(params.buffer_bytes(0, 1_514), 50_000, "classes 0 and 5 share queue 0");
    }

    proptest! {
        #[test]
        fn bands_permute_with_strict_first(kinds in prop::array::uniform8(0u64..=1)) {
            let config = Config::with(|c| c.queue.iter_mut().zip(kinds).for_each(|(q, kind)| q.scheduler = kind));
            let bands = config.bands();
            let mut sorted = bands;
            sorted.sort_unstable();
            prop_assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6, 7]);
            for (kind, band) in kinds.into_iter().zip(bands) {
                prop_assert_eq!(band < config.strict_queues(), kind == SCHEDULER_STRICT);
            }
        }
    }
}
