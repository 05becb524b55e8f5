//! The PFC watchdog of one port.

use dcqcn_common::layout::CLASSES;

use crate::scenario::{StormAction, Watchdog};

/// Looks per detection time.
const LOOKS: u64 = 4;

impl Watchdog {
    /// Time between two looks.
    pub(crate) const fn poll_ns(&self) -> u64 {
        let poll_ns = self.detection_ns / LOOKS;
        if poll_ns == 0 { 1 } else { poll_ns }
    }
}

/// What is seen of a queue at one look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Something waits.
    pub(crate) backlog: bool,
    /// How long it has been paused, since the beginning of time.
    pub(crate) paused_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    sent: bool,
    paused_ns: u64,
    /// Looks in a row with a backlog, nothing sent, and a pause for over 99 % of the time.
    stuck: u64,
    /// Looks in a row without a pause.
    free: u64,
}

/// The state of a port's queues.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    storm: u8,
    drops: u8,
    forwards: u8,
    watches: [Watch; CLASSES],
}

impl Guard {
    /// Whether what is to go into this queue is dropped.
    #[inline]
    pub(crate) const fn drops(&self, class: usize) -> bool {
        self.drops >> class & 1 == 1
    }

    /// Bits of classes that send in spite of a pause.
    #[inline]
    pub(crate) const fn forwards(&self) -> u8 {
        self.forwards
    }

    /// A class has sent a packet.
    #[inline]
    pub(crate) fn sent(&mut self, class: usize) {
        self.watches[class].sent = true;
    }

    /// Looks at a queue; whether a storm begins.
    pub(crate) fn look(&mut self, watchdog: &Watchdog, class: usize, look: Look) -> bool {
        let poll_ns = watchdog.poll_ns();
        let bit = 1 << class;
        let watch = &mut self.watches[class];
        let paused_ns = look.paused_ns - std::mem::replace(&mut watch.paused_ns, look.paused_ns);
        let sent = std::mem::take(&mut watch.sent);
        if self.storm & bit != 0 {
            watch.free = if paused_ns == 0 { watch.free + 1 } else { 0 };
            if watch.free * poll_ns >= watchdog.restoration_ns {
                self.storm &= !bit;
                self.drops &= !bit;
                self.forwards &= !bit;
                watch.stuck = 0;
            }
            return false;
        }
        let is_stuck = look.backlog && !sent && paused_ns * 100 > poll_ns * 99;
        watch.stuck = if is_stuck { watch.stuck + 1 } else { 0 };
        if watch.stuck < LOOKS {
            return false;
        }
        watch.free = 0;
        self.storm |= bit;
        match watchdog.action {
            StormAction::Drop => self.drops |= bit,
            StormAction::Forward => self.forwards |= bit,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WATCHDOG: Watchdog = Watchdog { detection_ns: 400, restoration_ns: 300, action: StormAction::Drop };

    #[test]
    fn a_storm_is_found_after_the_detection_time_and_over_after_the_restoration_time() {
        let mut guard = Guard::default();
        let mut paused_ns = 0;
        let mut look = |guard: &mut Guard, pause_ns: u64, sends: bool| {
            paused_ns += pause_ns;
            if sends {
                guard.sent(3);
            }
            guard.look(&WATCHDOG, 3, Look { backlog: true, paused_ns })
        };
        // One packet in between, or a pause that is not the whole time: no storm.
        let told: Vec<_> = [(100, false), (100, false), (100, false), (100, true), (98, false), (100, false)]
            .map(|(pause_ns, sends)| look(&mut guard, pause_ns, sends))
            .to_vec();
        assert_eq!(told, [false; 6]);
        let told: Vec<_> = (0..3).map(|_| look(&mut guard, 100, false)).collect();
        assert_eq!(told, [false, false, true]);
        assert!(guard.drops(3) && !guard.drops(4));
        // A pause in between puts the end off.
        for (pause_ns, drops) in [(0, true), (0, true), (50, true), (0, true), (0, true), (0, false)] {
            assert!(!look(&mut guard, pause_ns, false));
            assert_eq!(guard.drops(3), drops);
        }
    }
}
