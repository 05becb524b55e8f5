//! The clock of this machine, which the time axis and the dates of changes are of.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, to a thousandth.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as f64 / 1e3
}
