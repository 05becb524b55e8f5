//! Watchdog of a port against PFC storms: a neighbour that pauses continuously.
//!
//! The rule follows SONiC's fix for false alarms (sonic-swss, pull request 3036): a queue is in a storm if it has a
//! backlog, sends nothing, and is paused for over 99 % of the time between two samples.

use core::mem;

use super::Storms;
use crate::layout::CLASSES;

/// Settings of the watchdog, with the names of SONiC's `PFC_WD`.
///
/// A storm is detected when a queue has had a backlog, sent nothing and been paused for over 99 % of `detection_ns`; it
/// ends after `restoration_ns` without a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// Duration of a storm before the action.
    pub detection_ns: u64,
    /// Time without a pause that ends a storm.
    pub restoration_ns: u64,
    pub action: StormAction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormAction {
    /// Drop its packets, queued and new.
    Drop,
    /// Send in spite of the pauses.
    Forward,
}

/// Samples per detection time.
const SAMPLES: u64 = 4;

impl Watchdog {
    /// Time between two samples.
    pub const fn poll_ns(&self) -> u64 {
        let poll_ns = self.detection_ns / SAMPLES;
        if poll_ns == 0 { 1 } else { poll_ns }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Observation {
    pub backlog: bool,
    /// Total pause time so far.
    pub paused_ns: u64,
    /// Time since the previous sample, about [`Watchdog::poll_ns`].
    pub since_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    Same,
    Storm,
    Calm,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    sent: bool,
    paused_ns: u64,
    /// Consecutive samples with a backlog, nothing sent, and a pause for over 99 % of the time.
    stuck: u64,
    /// Time without a pause during the storm.
    free_ns: u64,
}

/// State of a port's queues.
#[derive(Debug, Default)]
pub struct Guard {
    storms: Storms,
    watches: [Watch; CLASSES],
}

impl Guard {
    #[inline]
    pub const fn drops(&self, class: usize) -> bool {
        self.storms.drops >> class & 1 == 1
    }

    /// Classes in a storm, by action.
    #[inline]
    pub const fn storms(&self) -> Storms {
        self.storms
    }

    /// Records that class `class`, below [`CLASSES`], has sent a packet.
    #[inline]
    pub fn sent(&mut self, class: usize) {
        if let Some(watch) = self.watches.get_mut(class) {
            watch.sent = true;
        }
    }

    /// Processes a sample of the queue of class `class`, below [`CLASSES`].
    pub fn observe(&mut self, watchdog: &Watchdog, class: usize, sample: Observation) -> Transition {
        let Some(watch) = self.watches.get_mut(class) else {
            return Transition::Same;
        };
        let (bit, Storms { forwards, drops }) = (1 << class, &mut self.storms);
        let paused_ns = sample.paused_ns.wrapping_sub(mem::replace(&mut watch.paused_ns, sample.paused_ns));
        let sent = mem::take(&mut watch.sent);
        if (*forwards | *drops) & bit != 0 {
            watch.free_ns = if paused_ns == 0 { watch.free_ns.saturating_add(sample.since_ns) } else { 0 };
            if watch.free_ns >= watchdog.restoration_ns {
                *forwards &= !bit;
                *drops &= !bit;
                watch.stuck = 0;
                return Transition::Calm;
            }
            return Transition::Same;
        }
        let is_paused = paused_ns.saturating_mul(100) > sample.since_ns.saturating_mul(99);
        watch.stuck = if sample.backlog && !sent && is_paused { watch.stuck + 1 } else { 0 };
        if watch.stuck < SAMPLES {
            return Transition::Same;
        }
        watch.free_ns = 0;
        match watchdog.action {
            StormAction::Drop => *drops |= bit,
            StormAction::Forward => *forwards |= bit,
        }
        Transition::Storm
    }
}

#[cfg(test)]
mod tests {
    use super::Transition::{Calm, Same, Storm};
    use super::*;

    const WATCHDOG: Watchdog = Watchdog { detection_ns: 400, restoration_ns: 300, action: StormAction::Drop };

    #[test]
    fn four_samples_per_detection_time() {
        let poll_ns = |detection_ns| Watchdog { detection_ns, ..WATCHDOG }.poll_ns();
        assert_eq!([0, 3, 4, 200_000_000].map(poll_ns), [1, 1, 1, 50_000_000]);
    }

    /// Several queues, each with its pause time in a sample interval of 200 ns.
    struct Queues {
        guard: Guard,
        watchdog: Watchdog,
        paused_ns: [u64; CLASSES],
    }

    impl Queues {
        fn new(action: StormAction) -> Self {
            let watchdog = Watchdog { detection_ns: 800, restoration_ns: 600, action };
            Self { guard: Guard::default(), watchdog, paused_ns: [0; CLASSES] }
        }

        fn observe(&mut self, class: usize, pause_ns: u64, backlog: bool) -> Transition {
            self.paused_ns[class] += pause_ns;
            let sample = Observation { backlog, paused_ns: self.paused_ns[class], since_ns: 200 };
            self.guard.observe(&self.watchdog, class, sample)
        }
    }

    #[test]
    fn storms_are_per_queue() {
        for action in [StormAction::Drop, StormAction::Forward] {
            let mut queues = Queues::new(action);
            let in_storm = |guard: &Guard, bits| {
                let drops = action == StormAction::Drop;
                let (drops, forwards) = if drops { (bits, 0) } else { (0, bits) };
                assert_eq!(guard.storms(), Storms { forwards, drops });
                assert!((0..CLASSES).all(|class| guard.drops(class) == (drops >> class & 1 == 1)));
            };
            let began = [(); 4].map(|()| [0, 3, 7].map(|class| queues.observe(class, 200, true)));
            assert_eq!(began, [[Same; 3], [Same; 3], [Same; 3], [Storm; 3]]);
            in_storm(&queues.guard, 0b1000_1001);
            let ended = [(); 3]
                .map(|()| [(0, 0), (3, 200), (7, 1)].map(|(class, ns)| queues.observe(class, ns, true)));
            assert_eq!(ended, [[Same; 3], [Same; 3], [Calm, Same, Same]]);
            in_storm(&queues.guard, 0b1000_1000);
            // A second storm is detected after the same time as the first.
            let again = [(); 4].map(|()| queues.observe(0, 200, true));
            assert_eq!(again, [Same, Same, Same, Storm]);
            in_storm(&queues.guard, 0b1000_1001);
            let calm = [(); 3].map(|()| queues.observe(3, 0, true));
            assert_eq!(calm, [Same, Same, Calm]);
            in_storm(&queues.guard, 0b1000_0001);
        }
    }

    #[test]
    fn storm_needs_backlog_and_99_percent_pause() {
        for (pause_ns, backlog, is_storm) in [(199, true, true), (198, true, false), (200, false, false)] {
            let mut queues = Queues::new(StormAction::Drop);
            let found = [(); 4].map(|()| queues.observe(5, pause_ns, backlog));
            assert_eq!(found[3] == Storm, is_storm, "{pause_ns}");
        }
        let mut guard = Guard::default();
        guard.sent(CLASSES);
        let sample = Observation { backlog: true, paused_ns: 200, since_ns: 200 };
        let found = [(); 4].map(|()| guard.observe(&WATCHDOG, CLASSES, sample));
        assert_eq!(found, [Same; 4], "no such class");
    }

    #[test]
    fn storm_detected_and_restored_on_time() {
        let mut guard = Guard::default();
        let mut paused_ns = 0;
        let mut observe = |guard: &mut Guard, pause_ns: u64, sends: bool| {
            paused_ns += pause_ns;
            if sends {
                guard.sent(3);
            }
            guard.observe(&WATCHDOG, 3, Observation { backlog: true, paused_ns, since_ns: 100 })
        };
        // One packet in between, or a pause for less than the whole time: no storm.
        let found = [(100, false), (100, false), (100, false), (100, true), (98, false), (100, false)]
            .map(|(pause_ns, sends)| observe(&mut guard, pause_ns, sends));
        assert_eq!(found, [Same; 6]);
        let found = [(); 3].map(|()| observe(&mut guard, 100, false));
        assert_eq!(found, [Same, Same, Storm]);
        assert!(guard.drops(3) && !guard.drops(4));
        // A pause in between postpones the end.
        for (pause_ns, drops) in [(0, true), (0, true), (50, true), (0, true), (0, true), (0, false)] {
            let found = observe(&mut guard, pause_ns, false);
            assert_eq!((guard.drops(3), found == Calm), (drops, !drops));
        }
    }

    /// A storm of twenty minutes on all priorities is reported once per priority.
    ///
    /// sonic-buildimage, issue 29203, reports 170 storms and ends of storms in that time.
    #[test]
    fn storm_on_all_priorities_does_not_flap() {
        const MS: u64 = 1_000_000;
        let watchdog = Watchdog { detection_ns: 400 * MS, restoration_ns: 2_000 * MS, ..WATCHDOG };
        let poll_ns = watchdog.poll_ns();
        let mut guard = Guard::default();
        let (mut storms, mut calms) = (0, 0);
        let mut paused_ns = 0;
        for poll in 0..20 * 60 * 1_000 * MS / poll_ns {
            // Typical pattern: each pause expires briefly before the next frame, and a sample may be late.
            let since_ns = poll_ns + if poll % 7 == 0 { 3 * MS } else { 0 };
            paused_ns += since_ns - since_ns / 500;
            for class in 0..CLASSES {
                // Dropped packets are no backlog.
                let backlog = !guard.drops(class);
                match guard.observe(&watchdog, class, Observation { backlog, paused_ns, since_ns }) {
                    Storm => storms += 1,
                    Calm => calms += 1,
                    Same => {}
                }
            }
        }
        assert_eq!((storms, calms), (CLASSES, 0));
    }

    #[test]
    fn paused_empty_queue_is_not_a_storm() {
        let mut guard = Guard::default();
        for n in 1..100 {
            let seen = Observation { backlog: false, paused_ns: 100 * n, since_ns: 100 };
            assert_eq!(guard.observe(&WATCHDOG, 3, seen), Same);
        }
    }
}
