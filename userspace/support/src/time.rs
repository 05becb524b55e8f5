//! RFC 3339 timestamps.

use std::time::{SystemTime, UNIX_EPOCH};

/// `time` in UTC to the millisecond, as in `2026-03-01T12:00:00.250Z`; times before 1970 become 1970.
pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time.max(UNIX_EPOCH)).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timestamps_are_rfc_3339_milliseconds() {
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(1_250)), "1970-01-01T00:00:01.250Z");
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(1_709_164_800)), "2024-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
    }
}
