//! Rate limit of rejections in the audit log, which clients of the socket must not fill.

use std::time::{Duration, Instant};

/// Burst of logged rejections.
const BURST: u32 = 20;
/// Time per further rejection.
const ONE_MORE: Duration = Duration::from_secs(60);

/// Rejections that may still be logged.
#[derive(Debug)]
pub(super) struct RejectionLimit {
    left: u32,
    /// Time for which `left` is valid.
    since: Instant,
    /// Rejections omitted since the last logged one.
    omitted: u64,
}

impl RejectionLimit {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: BURST, since: now, omitted: 0 }
    }

    /// The text to log, if allowed: `text`, with the number of omitted rejections.
    pub(super) fn entry(&mut self, text: String, now: Instant) -> Option<String> {
        while self.left < BURST && now.duration_since(self.since) >= ONE_MORE {
            self.left += 1;
            self.since += ONE_MORE;
        }
        if self.left == BURST {
            self.since = now;
        }
        let Some(left) = self.left.checked_sub(1) else {
            self.omitted += 1;
            return None;
        };
        self.left = left;
        match std::mem::take(&mut self.omitted) {
            0 => Some(text),
            before => Some(format!("{text} ({before} earlier rejections omitted)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_logged_then_summarised() {
        let began = Instant::now();
        let mut rejection_limit = RejectionLimit::new(began);
        let entered = (0..1_000).filter_map(|_| rejection_limit.entry("no".into(), began)).count();
        assert_eq!(entered, 20);
        let later = began + ONE_MORE;
        assert_eq!(
            rejection_limit.entry("no".into(), later).as_deref(),
            Some("no (980 earlier rejections omitted)")
        );
        assert_eq!(rejection_limit.entry("no".into(), later), None);
        // After a long pause, the full burst and no more.
        let rested = later + 1_000 * ONE_MORE;
        assert_eq!((0..1_000).filter_map(|_| rejection_limit.entry("no".into(), rested)).count(), 20);
    }
}
