//! Congestion of the receiving host: its CPUs do not keep up with received packets. No queue of the network
//! marks this, so with `np_host_congestion` the NP answers ECT packets as if they were marked.

/// Counters of a host's receive processing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receiving {
    /// Packets dropped because a CPU's backlog was full.
    pub dropped: u64,
    /// Times that a CPU stopped with packets left because its budget or time was used up.
    pub squeezed: u64,
    /// Packets in the longest backlog of a CPU.
    pub backlog: u64,
}

/// Time between two readings.
pub const PERIOD_NS: u64 = 100_000_000;
/// Validity of a report: the NP returns to its normal state this long after the daemon has stopped.
pub const VALID_NS: u64 = 5 * PERIOD_NS;

/// Increase of `squeezed` per period that starts congestion: 100 per second.
const MANY_SQUEEZED: u64 = 10;
/// Periods without congestion that end it.
const CALM_PERIODS: u32 = 3;

/// Detects congestion in successive readings.
#[derive(Debug, Default)]
pub struct Trigger {
    before: Option<Receiving>,
    /// Periods until congestion ends; 0 = none.
    left: u32,
}

impl Trigger {
    /// Processes a reading; a CPU drops packets beyond `max_backlog`. Returns whether the host is congested.
    ///
    /// Congestion starts with a drop, a backlog above half of the maximum, or repeated use of the whole budget. It ends
    /// after several readings at less than half of the latter two.
    pub fn observe(&mut self, now: Receiving, max_backlog: u64) -> bool {
        let before = self.before.replace(now).unwrap_or(now);
        let squeezed = now.squeezed.saturating_sub(before.squeezed);
        let exceeds = |squeezes, backlog| squeezed >= squeezes || now.backlog > backlog;
        let starts = now.dropped > before.dropped || exceeds(MANY_SQUEEZED, max_backlog / 2);
        if starts || self.left != 0 && exceeds(MANY_SQUEEZED / 2, max_backlog / 4) {
            self.left = CALM_PERIODS;
        } else {
            self.left = self.left.saturating_sub(1);
        }
        self.left != 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_BACKLOG: u64 = 1_000;

    /// The results for readings with these increases of `dropped` and `squeezed`, and these backlogs.
    fn observed<const N: usize>(steps: [(u64, u64, u64); N]) -> [bool; N] {
        let mut trigger = Trigger::default();
        // Counters since boot.
        let mut now = Receiving { dropped: 7, squeezed: 5_000, backlog: 0 };
        assert!(!trigger.observe(now, MAX_BACKLOG), "the first reading has no increase");
        steps.map(|(dropped, squeezed, backlog)| {
            now = Receiving { dropped: now.dropped + dropped, squeezed: now.squeezed + squeezed, backlog };
            trigger.observe(now, MAX_BACKLOG)
        })
    }

    #[test]
    fn each_sign_starts_congestion() {
        for step in [(1, 0, 0), (0, 10, 0), (0, 0, 501)] {
            let steps = [step, (0, 0, 0), (0, 0, 0), (0, 0, 0)];
            assert_eq!(observed(steps), [true, true, true, false], "{step:?}");
        }
        assert_eq!(observed([(0, 9, 500); 2]), [false; 2]);
    }

    #[test]
    fn congestion_ends_below_lower_thresholds() {
        let calm = [(0, 4, 250); 3];
        let [a, b, c] = calm;
        let steps = [(0, 10, 0), (0, 5, 0), (0, 0, 251), (0, 5, 0), a, b, c];
        assert_eq!(observed(steps), [true, true, true, true, true, true, false]);
    }

    #[test]
    fn counters_that_restart_are_no_congestion() {
        let mut trigger = Trigger::default();
        trigger.observe(Receiving { dropped: 9, squeezed: 900, backlog: 0 }, MAX_BACKLOG);
        assert!(!trigger.observe(Receiving::default(), MAX_BACKLOG));
    }

    /// A reading: increases of `dropped` and `squeezed`, and backlog, around the thresholds.
    fn step() -> impl Strategy<Value = (u64, u64, u64)> {
        let dropped = prop_oneof![9 => Just(0_u64), 1 => 1..3_u64];
        (dropped, prop_oneof![2 => 0..5_u64, 1 => 4..12_u64], prop_oneof![2 => 0..260_u64, 1 => 240..520_u64])
    }

    proptest! {
        /// Congested means: since the last start, there were never three periods in a row below the lower thresholds.
        #[test]
        fn state_follows_from_history(steps in proptest::collection::vec(step(), 1..40)) {
            let starts = |(dropped, squeezed, backlog): (u64, u64, u64)| {
                dropped > 0 || squeezed >= 10 || backlog > MAX_BACKLOG / 2
            };
            let is_calm = |step @ (_, squeezed, backlog): &(u64, u64, u64)| {
                !starts(*step) && *squeezed < 5 && *backlog <= MAX_BACKLOG / 4
            };
            let (mut trigger, mut now) = (Trigger::default(), Receiving::default());
            trigger.observe(now, MAX_BACKLOG);
            for (at, (dropped, squeezed, backlog)) in steps.iter().copied().enumerate() {
                now = Receiving { dropped: now.dropped + dropped, squeezed: now.squeezed + squeezed, backlog };
                let history = &steps[..=at];
                let expected = history.iter().rposition(|step| starts(*step)).is_some_and(|start| {
                    !history[start..].windows(3).any(|periods| periods.iter().all(is_calm))
                });
                prop_assert_eq!(trigger.observe(now, MAX_BACKLOG), expected, "at {} of {:?}", at, steps);
            }
        }

        /// Counters may restart or wrap, and the sysctl may have any value.
        #[test]
        fn any_counters_are_accepted(
            readings in proptest::collection::vec(any::<[u64; 3]>(), 1..20),
            max_backlog in any::<u64>(),
        ) {
            let mut trigger = Trigger::default();
            for [dropped, squeezed, backlog] in readings {
                trigger.observe(Receiving { dropped, squeezed, backlog }, max_backlog);
            }
            let last = Receiving { dropped: u64::MAX, squeezed: u64::MAX, backlog: 0 };
            trigger.observe(last, max_backlog);
            let ended = [(); 3].map(|()| trigger.observe(last, max_backlog));
            prop_assert!(!ended[2], "an idle host is not congested");
        }
    }
}
