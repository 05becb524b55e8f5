//! Following a log.

use dcqcn_common::events::{Event, EventKind, Found};

use super::Log;

/// What a reader gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Something that happened.
    Event {
        /// It.
        event: Event,
        /// How many of its kind were left out since the last one this reader got.
        left_out: u64,
    },
    /// So many entries were written over before this reader came to them.
    Missed(u64),
}

/// Reads a log from some entry on. Any number of readers may read the same one; none takes anything from another.
#[derive(Debug)]
pub struct Reader {
    log: Log,
    /// Number of the next entry.
    next: u64,
    /// That entry was not written yet at the last look, though newer ones were.
    is_late: bool,
    /// How many of each kind had been left out at its last entry; `None` before the first.
    left_out: [Option<u32>; EventKind::ALL.len()],
}

impl Reader {
    /// Begins with the `last` newest entries that are there already.
    #[must_use]
    pub fn new(log: Log, last: u64) -> Self {
        let oldest = log.newest().saturating_sub(dcqcn_common::events::SLOTS as u64);
        let next = log.newest().saturating_sub(last).max(oldest) + 1;
        Self { log, next, is_late: false, left_out: [None; EventKind::ALL.len()] }
    }

    /// What is new since the last call, oldest first. Never waits.
    pub fn read(&mut self) -> Vec<Entry> {
        let (mut entries, mut missed) = (Vec::new(), 0);
        let newest = self.log.newest();
        while self.next <= newest {
            match self.log.look(self.next) {
                Found::Event(event) => {
                    if missed != 0 {
                        entries.push(Entry::Missed(std::mem::take(&mut missed)));
                    }
                    let left_out = self.left_out_since(&event);
                    entries.push(Entry::Event { event, left_out });
                }
                Found::Gone => missed += 1,
                // A program needs less than a microsecond; a process may have been killed over it.
                Found::NotYet if self.is_late => missed += 1,
                Found::NotYet => {
                    self.is_late = true;
                    break;
                }
            }
            self.is_late = false;
            self.next += 1;
        }
        if missed != 0 {
            entries.push(Entry::Missed(missed));
        }
        entries
    }

    fn left_out_since(&mut self, event: &Event) -> u64 {
        let Some(last) = self.left_out.get_mut(event.kind as usize) else {
            return 0;
        };
        let since = last.map_or(0, |last| event.left_out.wrapping_sub(last));
        // Two CPUs may take their numbers in the other order: less than none are left out then, modulo 2^32.
        if since > u32::MAX / 2 {
            return 0;
        }
        *last = Some(event.left_out);
        since.into()
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::events::SLOTS;
    use dcqcn_common::flow::QpId;

    use super::*;

    fn event(at_ns: u64) -> Event {
        Event { at_ns, left_out: 0, id: QpId::NONE, kind: EventKind::RateCut as u32, values: [at_ns; 2] }
    }

    fn times(entries: &[Entry]) -> Vec<u64> {
        let time = |entry: &Entry| match entry {
            Entry::Event { event, .. } => Some(event.at_ns),
            Entry::Missed(_) => None,
        };
        entries.iter().filter_map(time).collect()
    }

    #[test]
    fn reader_starts_at_offset_reads_once() {
        let log = Log::in_memory();
        (1..=5).for_each(|n| assert!(log.record(1, event(n))));
        let mut reader = Reader::new(log, 2);
        assert_eq!(times(&reader.read()), [4, 5]);
        assert!(reader.read().is_empty());
        assert!(reader.log.record(1, event(6)));
        assert_eq!(times(&reader.read()), [6]);
    }

    #[test]
    fn slow_reader_gets_missed_count() {
        let mut reader = Reader::new(Log::in_memory(), 0);
        let all = SLOTS as u64 + 7;
        (1..=all).for_each(|n| assert!(reader.log.record(1, event(n))));
        let entries = reader.read();
        assert_eq!(entries.first(), Some(&Entry::Missed(7)));
        assert_eq!(times(&entries), (8..=all).collect::<Vec<_>>());
    }

    #[test]
    fn suppressed_count_on_next_entry() {
        const INTERVAL_NS: u64 = 500_000_000;
        let mut reader = Reader::new(Log::in_memory(), 0);
        let entered = (0..10).filter(|_| reader.log.record(INTERVAL_NS, event(1))).count();
        assert_eq!(entered, 2);
        assert!(reader.log.record(INTERVAL_NS, event(1_000_000_000)));
        let told: Vec<u64> = reader
            .read()
            .iter()
            .map(|entry| if let Entry::Event { left_out, .. } = entry { *left_out } else { 0 })
            .collect();
        assert_eq!(told, [0, 0, 8]);
    }
}
