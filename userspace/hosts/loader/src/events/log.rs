//! Event log, mapped into this process or private to it.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use dcqcn_common::events::{self, EntryState, Event, EventLog, Native, SLOTS};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// An event log, shared with the programs or private to this process.
#[derive(Debug)]
pub struct Log {
    at: NonNull<EventLog>,
    mapped: bool,
}

impl Log {
    const LEN: NonZeroUsize = NonZeroUsize::new(size_of::<EventLog>()).expect("not empty");

    /// Maps the data plane's log; `fd` is the map's descriptor.
    pub(crate) fn of_map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, whose memory belongs to the map as long as it is mapped.
        let at = unsafe { mmap(None, Self::LEN, access, MapFlags::MAP_SHARED, fd, 0) }?;
        Ok(Self { at: at.cast(), mapped: true })
    }

    /// Creates a log private to this process.
    pub fn in_memory() -> Self {
        Self { at: NonNull::from(Box::leak(Box::new(EventLog::EMPTY))), mapped: false }
    }

    /// Records an event, at most one per `interval_ns` (not 0) and kind; false if it was suppressed.
    pub fn record(&self, interval_ns: u64, event: Event) -> bool {
        // SAFETY: valid while `self` lives; all writers use this function.
        unsafe { events::record::<Native>(self.at.as_ptr(), interval_ns, event) }
    }

    /// Number of the newest entry; 0 = empty.
    pub(super) fn newest(&self) -> u64 {
        // SAFETY: as above.
        unsafe { events::newest(self.at.as_ptr()) }
    }

    /// Reads entry `number`, counted from 1.
    pub(super) fn entry(&self, number: u64) -> EntryState {
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
        // SAFETY: the mapping or the box is exclusively owned.
        unsafe {
            if self.mapped {
                // Unmapping an existing mapping does not fail.
                let _ = munmap(self.at.cast(), Self::LEN.get());
            } else {
                drop(Box::from_raw(self.at.as_ptr()));
            }
        }
    }
}
