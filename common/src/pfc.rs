//! Priority flow control: effect of a neighbour's pauses on what is sent to it, and the response to pause storms.

pub mod tx;
pub mod watchdog;

use crate::layout::{CLASSES, TIMES, Time};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// End of the pause; a past time means not paused.
    pub until_ns: u64,
    /// Total pause time of the priority up to `until_ns`.
    pub total_ns: u64,
}

impl Pause {
    /// Pause state of all priorities, from the map of timestamps.
    pub fn all(times_ns: &[u64; TIMES]) -> [Self; CLASSES] {
        core::array::from_fn(|priority| Self {
            until_ns: times_ns[Time::paused_until(priority).index()],
            total_ns: times_ns[Time::paused_for(priority).index()],
        })
    }

    /// State after the neighbour requests a pause of `duration_ns` at `now_ns` (0 = XON), which replaces any earlier
    /// pause.
    #[inline(always)]
    pub const fn updated(self, now_ns: u64, duration_ns: u64) -> Self {
        Self {
            until_ns: now_ns.wrapping_add(duration_ns),
            total_ns: self.paused_ns(now_ns).wrapping_add(duration_ns),
        }
    }

    /// Total pause time up to `now_ns`.
    #[inline(always)]
    pub const fn paused_ns(&self, now_ns: u64) -> u64 {
        self.total_ns.wrapping_sub(self.until_ns.saturating_sub(now_ns))
    }
}

/// Validity of a storm report: the watchdog that made it may have exited.
pub const STORM_AGE_NS: u64 = 5_000_000_000;

/// Priorities in a pause storm, as bits, by action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storms {
    /// Priorities whose pauses are ignored.
    pub forwards: u8,
    /// Priorities whose packets are dropped.
    pub drops: u8,
}

impl Storms {
    /// Encodes the report with its time `at_ns`, to 66 us.
    pub const fn word(self, at_ns: u64) -> u64 {
        if self.forwards | self.drops == 0 {
            return 0;
        }
        (at_ns & !0xffff) | (self.drops as u64) << 8 | self.forwards as u64
    }

    /// Decodes a report at `now_ns`; empty if it has expired.
    #[inline(always)]
    pub const fn read(word: u64, now_ns: u64) -> Self {
        if now_ns.saturating_sub(word & !0xffff) > STORM_AGE_NS {
            return Self { forwards: 0, drops: 0 };
        }
        Self { forwards: word as u8, drops: (word >> 8) as u8 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn storm_state_expires() {
        let storms = Storms { forwards: 0x81, drops: 0x10 };
        let at_ns = 77_000_000_123;
        let word = storms.word(at_ns);
        assert_eq!(Storms::read(word, at_ns), storms);
        assert_eq!(Storms::read(word, at_ns + STORM_AGE_NS - 65_536), storms);
        assert_eq!(Storms::read(word, at_ns + STORM_AGE_NS + 1), Storms::default());
        // Valid to the nanosecond, if the time of the report is a multiple of the resolution.
        let word = storms.word(77 << 16);
        assert_eq!(Storms::read(word, (77 << 16) + STORM_AGE_NS), storms);
        assert_eq!(Storms::read(word, (77 << 16) + STORM_AGE_NS + 1), Storms::default());
        assert_eq!(Storms::read(0, 1), Storms::default());
        assert_eq!(Storms::default().word(at_ns), 0);
    }

    #[test]
    fn priorities_have_separate_timers() {
        let mut times_ns = [0; TIMES];
        for priority in 0..CLASSES {
            times_ns[Time::paused_until(priority).index()] = 10 + priority as u64;
            times_ns[Time::paused_for(priority).index()] = 20 + priority as u64;
        }
        for (priority, pause) in (0..).zip(Pause::all(&times_ns)) {
            assert_eq!(pause, Pause { until_ns: 10 + priority, total_ns: 20 + priority });
        }
    }

    #[test]
    fn pause_ends_by_timeout_or_xon() {
        let pause = Pause::default().updated(1_000, 300);
        assert_eq!((pause.until_ns, pause.paused_ns(1_100), pause.paused_ns(2_000)), (1_300, 100, 300));
        // Refreshed before it ends: the new duration starts now, and is not added.
        let again = pause.updated(1_200, 300);
        assert_eq!((again.until_ns, again.paused_ns(1_200), again.paused_ns(2_000)), (1_500, 200, 500));
        let xon = again.updated(1_400, 0);
        assert_eq!((xon.until_ns, xon.paused_ns(1_400), xon.paused_ns(9_000)), (1_400, 400, 400));
    }

    proptest! {
        /// The total equals that of a check at every nanosecond.
        #[test]
        fn total_is_time_spent_paused(frames in prop::collection::vec((0u64..50, 0u64..60), 1..40)) {
            let (mut pause, mut now_ns, mut slow_ns) = (Pause::default(), 0, 0);
            for (gap_ns, duration_ns) in frames {
                for _ in 0..gap_ns {
                    slow_ns += u64::from(now_ns < pause.until_ns);
                    now_ns += 1;
                }
                prop_assert_eq!(pause.paused_ns(now_ns), slow_ns);
                pause = pause.updated(now_ns, duration_ns);
            }
        }
    }
}
