//! How often what another program removed is restored.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What the daemon restores of an attachment that another program took apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// Nothing: it is logged and reported.
    None,
    /// Programs, links and filters.
    #[default]
    Programs,
    /// The qdisc too.
    All,
}

/// Repairs in this time are counted together.
const WINDOW: Duration = Duration::from_secs(600);
/// Repairs in that time: a program that removes ours again and again must be stopped by its operator.
const MOST: usize = 3;
/// Time between the first repair and the second; twice as long after each.
const BACK_OFF: Duration = Duration::from_secs(10);

/// Repairs of one attachment.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    recent: Vec<Instant>,
    /// All there were, successful or not.
    pub(super) total: u64,
    /// It was logged that no more are made.
    pub(super) has_stopped: bool,
}

/// Whether a repair may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Now.
    Now,
    /// Not before some time has passed.
    Later,
    /// There were too many.
    Stopped,
}

impl Attempts {
    /// Whether another one may be made.
    pub(super) fn due(&mut self, now: Instant) -> Due {
        self.recent.retain(|at| now.duration_since(*at) < WINDOW);
        let shift = u32::try_from(self.recent.len()).unwrap_or(u32::MAX).saturating_sub(1);
        let back_off = BACK_OFF.saturating_mul(1_u32.checked_shl(shift).unwrap_or(u32::MAX));
        match self.recent.last() {
            _ if self.recent.len() >= MOST => Due::Stopped,
            Some(last) if now.duration_since(*last) < back_off => Due::Later,
            _ => {
                self.has_stopped = false;
                Due::Now
            }
        }
    }

    /// Counts one.
    pub(super) fn count(&mut self, now: Instant) {
        self.recent.push(now);
        self.total += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_back_off_and_stop_after_three() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut attempts = Attempts::default();
        for (seconds, due) in [
            (0, Due::Now),
            (9, Due::Later),
            (10, Due::Now),
            (29, Due::Later),
            (30, Due::Now),
            (31, Due::Stopped),
            (599, Due::Stopped),
            // The first is forgotten by now, and two are left.
            (600, Due::Now),
            (601, Due::Stopped),
        ] {
            assert_eq!(attempts.due(at(seconds)), due, "after {seconds} s");
            if due == Due::Now {
                attempts.count(at(seconds));
            }
        }
        assert_eq!(attempts.total, 4);
    }
}
