//! PFC transmission: pausing a neighbour when an ingress port exceeds its share of the buffer.
//!
//! XOFF is sent when the backlog from the port exceeds `xoff`, and refreshed before it expires while the backlog is
//! above `xon`. XON is sent once it is not. The range between the two is hysteresis, which prevents flapping.

/// Thresholds of one ingress port and priority, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// XOFF is sent above this backlog.
    pub xoff_bytes: u64,
    /// XON is sent at this backlog and below; at most XOFF.
    pub xon_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseAction {
    Xoff,
    Xon,
}

/// Pause that one neighbour was sent for one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseState {
    /// End of the requested pause, if any.
    until_ns: Option<u64>,
}

impl PauseState {
    /// Whether the neighbour is paused: XOFF was sent, and no XON since.
    pub const fn is_paused(&self) -> bool {
        self.until_ns.is_some()
    }

    /// Processes a sample of the backlog. A pause of `lasts_ns` is maintained if samples come at least every half of
    /// that.
    pub fn observe(
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
                return Some(PauseAction::Xon);
            }
            Some(until_ns) if until_ns > now_ns.saturating_add(lasts_ns / 2) => return None,
            Some(_) => {}
        }
        self.until_ns = Some(now_ns.saturating_add(lasts_ns));
        Some(PauseAction::Xoff)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { xoff_bytes: 1_000, xon_bytes: 400 };

    #[test]
    fn xoff_refreshed_before_expiry() {
        let mut state = PauseState::default();
        let action =
            [(900, 0), (1_001, 10), (1_200, 20), (500, 55), (700, 60), (401, 70), (400, 80), (1_000, 90)]
                .map(|(depth_bytes, now_ns)| state.observe(&LIMITS, depth_bytes, now_ns, 100));
        let (xoff, xon) = (Some(PauseAction::Xoff), Some(PauseAction::Xon));
        assert_eq!(action, [None, xoff, None, None, xoff, None, xon, None]);
        assert!(!state.is_paused());
    }

    proptest! {
        /// Model of a neighbour that receives all frames.
        #[test]
        fn xoff_above_limit_xon_below(
            depths in prop::collection::vec(0u64..2_000, 1..200),
            lasts_ns in 2u64..1_000,
            xoff_bytes in 0u64..1_500,
            xon in 0u64..1_500,
        ) {
            let limits = Limits { xoff_bytes, xon_bytes: xon.min(xoff_bytes) };
            let (mut state, mut paused_until_ns, mut now_ns, mut before) = (PauseState::default(), 0, 1_000, None);
            for depth_bytes in depths {
                // As late as allowed.
                now_ns += lasts_ns / 2;
                // A paused neighbour must not have resumed by timeout in the meantime.
                prop_assert!(!state.is_paused() || paused_until_ns >= now_ns);
                let action = state.observe(&limits, depth_bytes, now_ns, lasts_ns);
                match action {
                    Some(PauseAction::Xoff) => paused_until_ns = now_ns + lasts_ns,
                    Some(PauseAction::Xon) => paused_until_ns = 0,
                    None => {}
                }
                let is_paused = paused_until_ns > now_ns;
                prop_assert_eq!(is_paused, state.is_paused());
                if depth_bytes > limits.xoff_bytes {
                    prop_assert!(is_paused);
                } else if depth_bytes <= limits.xon_bytes {
                    prop_assert!(!is_paused);
                }
                // XON is never repeated.
                prop_assert!(action != Some(PauseAction::Xon) || before == Some(true));
                before = Some(is_paused);
            }
        }
    }
}
