//! The event log in this process's memory.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use dcqcn_common::events::{self, Event, EventLog, Found, Native, SLOTS};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// A log, shared with the programs or this process's own.
#[derive(Debug)]
pub struct Log {
    at: NonNull<EventLog>,
    mapped: bool,
}

impl Log {
    const LEN: NonZeroUsize = NonZeroUsize::new(size_of::<EventLog>()).expect("not empty");

    /// Maps the data plane's log; `fd` is the map's.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn of_map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, whose memory stays the map's for as long as it is mapped.
        let at = unsafe { mmap(None, Self::LEN, access, MapFlags::MAP_SHARED, fd, 0) }?;
        Ok(Self { at: at.cast(), mapped: true })
    }

    /// A log of this process alone.
    #[must_use]
    pub fn in_memory() -> Self {
        Self { at: NonNull::from(Box::leak(Box::new(EventLog::EMPTY))), mapped: false }
    }

    /// Enters an event, at most one per `interval_ns` (not 0) of its kind; false if it is left out.
    pub fn record(&self, interval_ns: u64, event: Event) -> bool {
        // SAFETY: valid while `self` lives; all who write to it do so by this function.
        unsafe { events::record::<Native>(self.at.as_ptr(), interval_ns, event) }
    }

    /// Number of the newest entry; 0 = there is none.
    pub(super) fn newest(&self) -> u64 {
        // SAFETY: as above.
        unsafe { events::newest(self.at.as_ptr()) }
    }

    /// Looks for entry `number`, from 1.
    pub(super) fn look(&self, number: u64) -> Found {
        // SAFETY: as above.
        unsafe { events::look(self.at.as_ptr(), number) }
    }

    /// All it has, oldest first.
    #[must_use]
    pub fn latest(&self) -> Vec<Event> {
        let newest = self.newest();
        let found = (newest.saturating_sub(SLOTS as u64) + 1..=newest).map(|number| self.look(number));
        found.filter_map(|found| if let Found::Event(event) = found { Some(event) } else { None }).collect()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // SAFETY: nobody else has the mapping, or the box.
        unsafe {
            if self.mapped {
                // What was mapped can be unmapped.
                let _ = munmap(self.at.cast(), Self::LEN.get());
            } else {
                drop(Box::from_raw(self.at.as_ptr()));
            }
        }
    }
}
