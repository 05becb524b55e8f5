//! A set of the NP table under its lock.

use dcqcn_common::flow::lock::{free, take_as_seen};
use dcqcn_common::flow::{Entry, Set};

/// Runs `f` on a set that nobody else uses in the meantime; `None` if there is no such set, or it was not to be had.
#[inline(always)]
pub fn locked<T: Entry, R>(set: Option<*mut Set<T>>, f: impl FnOnce(&mut Set<T>) -> R) -> Option<R> {
    let set = set?;
    // SAFETY: a map value; its first field is the lock, and the rest is ours while it is held.
    unsafe {
        let lock = &raw mut (*set).lock;
        if take_as_seen(lock, 0) != Ok(()) {
            return None;
        }
        let result = f(&mut *set);
        free(lock, 0);
        Some(result)
    }
}
