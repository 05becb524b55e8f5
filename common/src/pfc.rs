//! Priority flow control: what a neighbour's pauses mean for what is sent to it, and what is done when they never end.

pub mod tx;
pub mod watchdog;

use crate::layout::{CLASSES, TIMES, Time};

/// How a neighbour has paused one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// Up to when; what is past means nothing.
    pub until_ns: u64,
    /// How long the priority will have been paused by then, since the beginning of time.
    pub total_ns: u64,
}

impl Pause {
    /// Those of all priorities, as the programs keep them.
    #[must_use]
    pub fn all(times_ns: &[u64; TIMES as usize]) -> [Self; CLASSES] {
        core::array::from_fn(|priority| Self {
            until_ns: times_ns[Time::PAUSED_UNTIL[priority] as usize],
            total_ns: times_ns[Time::PAUSED_FOR[priority] as usize],
        })
    }

    /// The neighbour asks at `now_ns` for a pause of `duration_ns` from now on; 0 = it may be sent to again. What it asked before
    /// counts no more.
    #[inline(always)]
    #[must_use]
    pub const fn heard(self, now_ns: u64, duration_ns: u64) -> Self {
        Self {
            until_ns: now_ns.wrapping_add(duration_ns),
            total_ns: self.paused_ns(now_ns).wrapping_add(duration_ns),
        }
    }

    /// How long it has been paused up to `now_ns`.
    #[inline(always)]
    #[must_use]
    pub const fn paused_ns(&self, now_ns: u64) -> u64 {
        self.total_ns.wrapping_sub(self.until_ns.saturating_sub(now_ns))
    }
}

/// How long it is believed that there is a storm after it was said last: whoever looks may have gone away.
pub const STORM_AGE_NS: u64 = 5_000_000_000;

/// Priorities in a storm of pauses, as bits, by what is done about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storms {
    /// They are sent to, whatever the neighbour says.
    pub forwards: u8,
    /// What is for them is dropped.
    pub drops: u8,
}

impl Storms {
    /// As one number, said at `at_ns`, to 66 us.
    #[must_use]
    pub const fn word(self, at_ns: u64) -> u64 {
        if self.forwards | self.drops == 0 {
            return 0;
        }
        (at_ns & !0xffff) | (self.drops as u64) << 8 | self.forwards as u64
    }

    /// What a number says at `now_ns`; none if that was too long ago.
    #[inline(always)]
    #[must_use]
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
        // To the nanosecond, of what was said at a time that the number has exactly.
        let word = storms.word(77 << 16);
        assert_eq!(Storms::read(word, (77 << 16) + STORM_AGE_NS), storms);
        assert_eq!(Storms::read(word, (77 << 16) + STORM_AGE_NS + 1), Storms::default());
        assert_eq!(Storms::read(0, 1), Storms::default());
        assert_eq!(Storms::default().word(at_ns), 0);
    }

    #[test]
    fn priorities_have_separate_timers() {
        let mut times_ns = [0; TIMES as usize];
        for priority in 0..CLASSES {
            times_ns[Time::PAUSED_UNTIL[priority] as usize] = 10 + priority as u64;
            times_ns[Time::PAUSED_FOR[priority] as usize] = 20 + priority as u64;
        }
        for (priority, pause) in (0..).zip(Pause::all(&times_ns)) {
            assert_eq!(pause, Pause { until_ns: 10 + priority, total_ns: 20 + priority });
        }
    }

    #[test]
    fn pause_ends_by_timeout_or_xon() {
        let pause = Pause::default().heard(1_000, 300);
        assert_eq!((pause.until_ns, pause.paused_ns(1_100), pause.paused_ns(2_000)), (1_300, 100, 300));
        // Asked again before it is over: from then on, not on top.
        let again = pause.heard(1_200, 300);
        assert_eq!((again.until_ns, again.paused_ns(1_200), again.paused_ns(2_000)), (1_500, 200, 500));
        let xon = again.heard(1_400, 0);
        assert_eq!((xon.until_ns, xon.paused_ns(1_400), xon.paused_ns(9_000)), (1_400, 400, 400));
    }

    proptest! {
        /// The total is what somebody finds who looks at every nanosecond.
        #[test]
        fn total_is_time_spent_paused(frames in prop::collection::vec((0u64..50, 0u64..60), 1..40)) {
            let (mut pause, mut now_ns, mut slow_ns) = (Pause::default(), 0, 0);
            for (gap_ns, duration_ns) in frames {
                for _ in 0..gap_ns {
                    slow_ns += u64::from(now_ns < pause.until_ns);
                    now_ns += 1;
                }
                prop_assert_eq!(pause.paused_ns(now_ns), slow_ns);
                pause = pause.heard(now_ns, duration_ns);
            }
        }
    }
}
