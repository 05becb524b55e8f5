//! Retries of orders that the daemon did not apply.

/// Exponential backoff: the first pause, which doubles with each retry, and the longest.
pub(super) type Pauses = (Duration, Duration);

/// Backoff after a transient error: a lock is held, or an unconfirmed trial is pending.
pub(super) const BUSY: Pauses = (Duration::from_secs(1), Duration::from_secs(30));
/// Backoff after a rejection. A rejection may be temporary too (full disk, bounds in the host's own file), but every attempt is
/// logged on the host. The default `patience` of 60 s allows two retries.
pub(super) const REFUSED: Pauses = (Duration::from_secs(10), Duration::from_secs(300));

#[derive(Debug)]
pub(super) struct Pending {
    version: u64,
    pub(super) at: Instant,
    pause: Duration,
    pub(super) why: Option<String>,
}

impl Pending {
    /// Schedules a retry after a failed attempt at `version`; `before` is the previous retry, if any.
    pub(super) fn after(
        before: Option<Self>,
        version: u64,
        (first, longest): Pauses,
        why: Option<String>,
    ) -> Self {
        let before = before.filter(|before| before.concerns(version));
        let pause = before.map_or(first, |before| (before.pause * 2).clamp(first, longest));
        Self { version, at: Instant::now() + pause, pause, why }
    }

    pub(super) const fn concerns(&self, version: u64) -> bool {
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
