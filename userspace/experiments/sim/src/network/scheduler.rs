//! Scheduling of a port's classes: strict priority, and deficit weighted round robin (DWRR).

use dcqcn_common::layout::CLASSES;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Before all DWRR queues; of several strict queues, the highest class first.
    Strict,
    /// Deficit weighted round robin with this weight, 1 to 1000.
    Dwrr(u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    /// Bytes per DWRR turn; 0: strict.
    quantum_bytes: [u32; CLASSES],
    deficit_bytes: [u32; CLASSES],
    strict: u8,
    /// The queue with the current DWRR turn, and whether it got its quantum.
    turn: u8,
    granted: bool,
}

impl Scheduler {
    /// Initial state. No frame is larger than `largest_frame` bytes.
    pub(crate) fn new(schedules: [Schedule; CLASSES], largest_frame: u32) -> Self {
        let weights = schedules.iter().filter_map(|schedule| match schedule {
            Schedule::Dwrr(weight) => Some(*weight),
            Schedule::Strict => None,
        });
        let least = weights.min().unwrap_or(1).max(1);
        let quantum_bytes = schedules.map(|schedule| match schedule {
            Schedule::Strict => 0,
            // One turn of the lightest class is one frame: the finest grain in which every turn sends a packet.
            Schedule::Dwrr(weight) => {
                u32::try_from(u64::from(largest_frame) * u64::from(weight) / u64::from(least))
                    .unwrap_or(u32::MAX / 2)
            }
        });
        let strict = quantum_bytes.iter().rev().fold(0, |bits, quantum| bits << 1 | u8::from(*quantum == 0));
        Self { quantum_bytes, deficit_bytes: [0; CLASSES], strict, turn: 0, granted: false }
    }

    /// The class to serve among those with a bit in `waiting`; `head_bytes` returns the length of a class's first
    /// frame.
    #[inline]
    pub(crate) fn next(&mut self, waiting: u8, head_bytes: impl Fn(usize) -> u32) -> Option<usize> {
        if let Some(highest) = (waiting & self.strict).checked_ilog2() {
            return Some(highest as usize);
        }
        if waiting == 0 {
            return None;
        }
        if waiting & (waiting - 1) == 0 {
            // A single class needs no deficit.
            return Some(waiting.trailing_zeros() as usize);
        }
        // A quantum is at least a frame, so a granted turn sends something: this ends within one round.
        loop {
            let turn = usize::from(self.turn) % CLASSES;
            if waiting >> turn & 1 == 1 {
                if !self.granted {
                    self.granted = true;
                    self.deficit_bytes[turn] =
                        self.deficit_bytes[turn].saturating_add(self.quantum_bytes[turn]);
                }
                if self.deficit_bytes[turn] >= head_bytes(turn) {
                    return Some(turn);
                }
            }
            // The next class with a packet; the current one comes last.
            let skipped = waiting.rotate_right(u32::from(self.turn) + 1).trailing_zeros() as u8;
            self.turn = (self.turn + 1 + skipped) % CLASSES as u8;
            self.granted = false;
        }
    }

    /// `class` has sent `bytes`; `empty`: its queue is empty.
    #[inline]
    pub(crate) fn charge(&mut self, class: usize, bytes: u32, empty: bool) {
        let deficit = &mut self.deficit_bytes[class];
        *deficit = if empty { 0 } else { deficit.saturating_sub(bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_precedes_weighted_queues() {
        let mut schedules = [Schedule::Dwrr(1); CLASSES];
        schedules[6] = Schedule::Strict;
        schedules[7] = Schedule::Strict;
        schedules[3] = Schedule::Dwrr(3);
        let mut scheduler = Scheduler::new(schedules, 1_000);
        assert_eq!(scheduler.next(0b1100_1000, |_| 500), Some(7));
        assert_eq!(scheduler.next(0b0100_1000, |_| 500), Some(6));
        let mut sent = [0; CLASSES];
        for _ in 0..4_000 {
            let class = scheduler.next(0b0000_1001, |class| if class == 0 { 1_000 } else { 250 }).unwrap();
            let bytes = if class == 0 { 1_000 } else { 250 };
            sent[class] += bytes;
            scheduler.charge(class, bytes, false);
        }
        let share = f64::from(sent[3]) / f64::from(sent[0]);
        assert!((2.95..3.05).contains(&share), "{sent:?}");
        assert_eq!(scheduler.next(0, |_| 1), None);
    }
}
