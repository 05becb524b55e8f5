//! Locked access to a set of the NP table.

use dcqcn_common::flow::lock::{free, take_as_seen};
use dcqcn_common::flow::{Entry, Set};

/// Runs `f` on a set under its lock; `None` if there is no such set or the lock is contended.
#[inline(always)]
pub fn locked<T: Entry, R>(set: Option<*mut Set<T>>, f: impl FnOnce(&mut Set<T>) -> R) -> Option<R> {
    let set = set?;
    // SAFETY: a map value. `lock` is only accessed atomically, and the other fields only while it is held. Ordering: taking
    // it acquires and `free` releases; `common/tests/ordering.rs` checks both.
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
