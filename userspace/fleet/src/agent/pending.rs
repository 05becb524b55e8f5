//! When the controller is asked again for what it did not do.

use std::time::Duration;

use tokio::time::Instant;

/// Pauses between two tries: the first, each next one twice the one before, and the longest.
pub(super) type Pauses = (Duration, Duration);

/// It said itself that it is worth asking again: a lock is held, or what somebody tries waits to be confirmed.
pub(super) const BUSY: Pauses = (Duration::from_secs(1), Duration::from_secs(30));
/// It said no. That may pass as well, when a disk has room again or the host's own file allows it; and each no is a line in the
/// host's logs. Within the 60 s that a rollout waits by default, it is asked twice more.
pub(super) const REFUSED: Pauses = (Duration::from_secs(10), Duration::from_secs(300));

/// What the controller has not done yet.
#[derive(Debug)]
pub(super) struct Pending {
    version: u64,
    /// When it is asked again.
    pub(super) at: Instant,
    pause: Duration,
    /// What is complained of in the meantime.
    pub(super) why: Option<String>,
}

impl Pending {
    /// After a try of `version` that failed, with what was pending before it.
    pub(super) fn after(
        before: Option<Self>,
        version: u64,
        (first, longest): Pauses,
        why: Option<String>,
    ) -> Self {
        let before = before.filter(|before| before.is_of(version));
        let pause = before.map_or(first, |before| (before.pause * 2).clamp(first, longest));
        Self { version, at: Instant::now() + pause, pause, why }
    }

    /// Whether it is this version that is requested again.
    pub(super) const fn is_of(&self, version: u64) -> bool {
        self.version == version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_back_off_until_the_version_changes() {
        let pauses = |pauses: Pauses, tries: usize| -> Vec<u64> {
            let mut pending = None;
            let next = |_| {
                let after = Pending::after(pending.take(), 2, pauses, None);
                let pause = after.pause.as_secs();
                pending = Some(after);
                pause
            };
            (0..tries).map(next).collect()
        };
        assert_eq!(pauses(BUSY, 7), [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pauses(REFUSED, 7), [10, 20, 40, 80, 160, 300, 300]);
        let long = Pending::after(None, 2, (REFUSED.1, REFUSED.1), None);
        assert_eq!(Pending::after(Some(long), 3, BUSY, None).pause, BUSY.0);
    }
}
