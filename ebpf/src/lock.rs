//! Locked access to a set of the NP table.

use dcqcn_common::flow::lock::{acquire_if_unchanged, release};
use dcqcn_common::flow::{Entry, Set};

/// Runs `f` on a set under its lock; `None` if there is no such set or the lock is contended.
#[inline(always)]
pub fn locked<T: Entry, R>(set: Option<*mut Set<T>>, f: impl FnOnce(&mut Set<T>) -> R) -> Option<R> {
    let set = set?;
    // SAFETY: a map value. `lock` is only accessed atomically, and the other fields only while it is held.
    // Ordering: locking acquires and `release` releases; `common/tests/ordering.rs` checks both.
    unsafe {
        let lock = &raw mut (*set).lock;
        if acquire_if_unchanged(lock, 0) != Ok(()) {
            return None;
        }
        let result = f(&mut *set);
        release(lock, 0);
        Some(result)
    }
}
