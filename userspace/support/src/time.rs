//! RFC 3339 timestamps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last millisecond of the year 9999, after which the format ends.
const LAST: Duration = Duration::from_millis(253_402_300_799_999);

/// `time` in UTC to the millisecond, as in `2026-03-01T12:00:00.250Z`; times before 1970 become 1970, those after 9999
/// its end.
pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time.clamp(UNIX_EPOCH, UNIX_EPOCH + LAST)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_rfc_3339_milliseconds() {
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(1_250)), "1970-01-01T00:00:01.250Z");
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(1_709_164_800)), "2024-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(UNIX_EPOCH + LAST + Duration::from_secs(1)), "9999-12-31T23:59:59.999Z");
    }
}
