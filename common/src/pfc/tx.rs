//! Asking a neighbour to wait, as an ingress port does whose share of the buffer runs out.
//!
//! A pause is requested when what came in by the port, and still waits, is above XOFF; requested again before it is over while
//! that is above XON; and reverted (XON) once it is not. Between the two nothing is said, so that it does not flap.

/// Depths of one ingress port and priority at which something is said, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A pause is requested above this.
    pub xoff_bytes: u64,
    /// It is reverted at this and below; not more than XOFF.
    pub xon_bytes: u64,
}

/// What is said to the neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseAction {
    /// Wait (XOFF).
    Wait,
    /// Go on (XON).
    GoOn,
}

/// What one neighbour was requested one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseState {
    /// Up to when it was asked to wait, if it was.
    until_ns: Option<u64>,
}

impl PauseState {
    /// Whether it was asked to wait, and not yet to go on.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.until_ns.is_some()
    }

    /// Looks at a depth. `lasts_ns` is how long a pause lasts; a look at least every half of that keeps it up.
    pub fn look(
        &mut self,
        limits: &Limits,
        depth_bytes: u64,
        now_ns: u64,
        lasts_ns: u64,
    ) -> Option<PauseAction> {
        match self.until_ns {
            None if depth_bytes > limits.xoff_bytes => {}
            None => return None,
            Some(_) if depth_bytes <= limits.xon_bytes => {
                self.until_ns = None;
                return Some(PauseAction::GoOn);
            }
            Some(until_ns) if until_ns > now_ns.saturating_add(lasts_ns / 2) => return None,
            Some(_) => {}
        }
        self.until_ns = Some(now_ns.saturating_add(lasts_ns));
        Some(PauseAction::Wait)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { xoff_bytes: 1_000, xon_bytes: 400 };

    #[test]
    fn xoff_refreshed_before_expiry() {
        let mut asked = PauseState::default();
        let said =
            [(900, 0), (1_001, 10), (1_200, 20), (500, 55), (700, 60), (401, 70), (400, 80), (1_000, 90)]
                .map(|(depth_bytes, now_ns)| asked.look(&LIMITS, depth_bytes, now_ns, 100));
        assert_eq!(
            said,
            [
                None,
                Some(PauseAction::Wait),
                None,
                None,
                Some(PauseAction::Wait),
                None,
                Some(PauseAction::GoOn),
                None
            ]
        );
        assert!(!asked.is_waiting());
    }

    proptest! {
        /// What a neighbour believes that hears all of it.
        #[test]
        fn xoff_above_limit_xon_below(
            depths in prop::collection::vec(0u64..2_000, 1..200),
            lasts_ns in 2u64..1_000,
            xoff_bytes in 0u64..1_500,
            xon in 0u64..1_500,
        ) {
            let limits = Limits { xoff_bytes, xon_bytes: xon.min(xoff_bytes) };
            let (mut asked, mut paused_until_ns, mut now_ns, mut before) = (PauseState::default(), 0, 1_000, None);
            for depth_bytes in depths {
                // As late as allowed.
                now_ns += lasts_ns / 2;
                // Whoever is told to wait has not gone on by himself in between.
                prop_assert!(!asked.is_waiting() || paused_until_ns >= now_ns);
                let said = asked.look(&limits, depth_bytes, now_ns, lasts_ns);
                match said {
                    Some(PauseAction::Wait) => paused_until_ns = now_ns + lasts_ns,
                    Some(PauseAction::GoOn) => paused_until_ns = 0,
                    None => {}
                }
                let is_paused = paused_until_ns > now_ns;
                prop_assert_eq!(is_paused, asked.is_waiting());
                if depth_bytes > limits.xoff_bytes {
                    prop_assert!(is_paused);
                } else if depth_bytes <= limits.xon_bytes {
                    prop_assert!(!is_paused);
                }
                // Going on is never said twice.
                prop_assert!(said != Some(PauseAction::GoOn) || before == Some(true));
                before = Some(is_paused);
            }
        }
    }
}
