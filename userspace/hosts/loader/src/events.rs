//! The data plane's event log: mapped into this process, or private to it.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use dcqcn_common::events::{self, EntryState, Event, EventKind, EventLog, SLOTS};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// An event log, shared with the programs or private to this process.
#[derive(Debug)]
pub struct Log {
    at: NonNull<EventLog>,
    /// Whether it is a mapping of the data plane's log; otherwise a box.
    is_mapped: bool,
}

// SAFETY: the memory is shared with programs and other processes, so all accesses to it are atomic.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

impl Log {
    const LEN: NonZeroUsize = NonZeroUsize::new(size_of::<EventLog>()).expect("not empty");
    const ACCESS: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

    /// Maps the data plane's log; `fd` is the map's descriptor.
    pub(crate) fn of_map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: a new mapping, whose memory belongs to the map as long as it is mapped.
        let at = unsafe { mmap(None, Self::LEN, Self::ACCESS, MapFlags::MAP_SHARED, fd, 0) }?;
        Ok(Self { at: at.cast(), is_mapped: true })
    }

    /// Creates a log private to this process.
    pub fn in_memory() -> Self {
        Self { at: NonNull::from(Box::leak(Box::new(EventLog::EMPTY))), is_mapped: false }
    }

    /// Records an event, at most one per `interval_ns` (not 0) and kind; false if it was suppressed.
    pub fn record(&self, interval_ns: u64, event: Event) -> bool {
        // SAFETY: valid while `self` lives; all writers use this function.
        unsafe { events::record(self.at.as_ptr(), interval_ns, event) }
    }

    /// Number of the newest entry; 0 = empty.
    fn newest(&self) -> u64 {
        // SAFETY: as above.
        unsafe { events::newest(self.at.as_ptr()) }
    }

    /// Reads entry `number`, counted from 1.
    fn entry(&self, number: u64) -> EntryState {
        // SAFETY: as above.
        unsafe { events::read_entry(self.at.as_ptr(), number) }
    }

    /// All entries, oldest first.
    pub fn latest(&self) -> Vec<Event> {
        let newest = self.newest();
        let found = (newest.saturating_sub(SLOTS as u64) + 1..=newest).map(|number| self.entry(number));
        found
            .filter_map(|found| if let EntryState::Event(event) = found { Some(event) } else { None })
            .collect()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if self.is_mapped {
            // SAFETY: the mapping is exclusively owned. Unmapping an existing one does not fail.
            let _ = unsafe { munmap(self.at.cast(), Self::LEN.get()) };
        } else {
            // SAFETY: leaked by `in_memory`, and exclusively owned.
            drop(unsafe { Box::from_raw(self.at.as_ptr()) });
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    Event {
        event: Event,
        /// Suppressed events of its kind since the last one returned by this reader.
        left_out: u64,
    },
    /// Number of entries overwritten before this reader reached them.
    Missed(u64),
}

/// Reads a log from some entry on. Any number of readers may follow the same log independently.
#[derive(Debug)]
pub struct Reader {
    log: Log,
    next: u64,
    /// Whether entry `next` was still incomplete at the last read, although newer ones were complete.
    is_late: bool,
    /// Suppressed events per kind as of that kind's last entry; `None` before the first.
    left_out: [Option<u32>; EventKind::ALL.len()],
}

impl Reader {
    /// Starts with the `last` newest existing entries.
    pub fn new(log: Log, last: u64) -> Self {
        let oldest = log.newest().saturating_sub(SLOTS as u64);
        let next = log.newest().saturating_sub(last).max(oldest) + 1;
        Self { log, next, is_late: false, left_out: [None; EventKind::ALL.len()] }
    }

    /// Entries since the last call, oldest first. Never waits.
    pub fn read(&mut self) -> Vec<Entry> {
        let (mut entries, mut missed) = (Vec::new(), 0);
        let newest = self.log.newest();
        while self.next <= newest {
            match self.log.entry(self.next) {
                EntryState::Event(event) => {
                    if missed != 0 {
                        entries.push(Entry::Missed(std::mem::take(&mut missed)));
                    }
                    let left_out = self.missed_since(&event);
                    entries.push(Entry::Event { event, left_out });
                }
                EntryState::Gone => missed += 1,
                // A program completes an entry within a microsecond; a process may have been killed while
                // writing one.
                EntryState::NotYet if self.is_late => missed += 1,
                EntryState::NotYet => {
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

    fn missed_since(&mut self, event: &Event) -> u64 {
        let Some(last) = self.left_out.get_mut(event.kind as usize) else { return 0 };
        let since = last.map_or(0, |last| event.left_out.wrapping_sub(last));
        // Two CPUs may number their entries in the opposite order, which makes the difference negative
        // (modulo 2^32).
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
        let counts: Vec<u64> = reader
            .read()
            .iter()
            .map(|entry| if let Entry::Event { left_out, .. } = entry { *left_out } else { 0 })
            .collect();
        assert_eq!(counts, [0, 0, 8]);
    }
}
