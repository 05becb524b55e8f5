//! Wall clock of this machine, used for the time axis and for dates of changes.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the Unix epoch, in steps of a millisecond.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as f64 / 1e3
}
