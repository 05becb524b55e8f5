//! Rate limit of repairs of attachments that another program damaged.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use dcqcn_loader::failpoint;
use serde::{Deserialize, Serialize};

/// Parts of a damaged attachment that the daemon restores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// None: damage is logged and reported.
    None,
    /// Programs, links and filters.
    #[default]
    Programs,
    /// Programs, links, filters and the qdisc.
    All,
}

/// Period in which repairs are limited.
const WINDOW: Duration = Duration::from_secs(600);
/// Maximum repairs in that period: the operator must stop a program that keeps removing parts.
const MAX_REPAIRS: usize = 3;
/// Delay between the first repair and the second; it doubles each time.
const BACK_OFF: Duration = Duration::from_secs(10);

/// Describes suspended repairs.
pub(crate) fn suspension() -> String {
    let minutes = WINDOW.as_secs() / 60;
    format!(
        "repairs suspended after {MAX_REPAIRS} in {minutes} minutes; they resume {minutes} minutes after the first"
    )
}

/// Repairs of one attachment.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    recent: Vec<Instant>,
    /// All repairs, successful or not.
    pub(super) total: u64,
    /// Whether the limit was reached and logged, and parts to repair are missing since.
    pub(super) has_stopped: bool,
}

/// Time of the next repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    /// After a delay.
    Later,
    /// At the end of the period: the limit of repairs is reached.
    Stopped,
}

impl Attempts {
    pub(super) fn due(&mut self, now: Instant) -> Due {
        self.recent.retain(|at| now.duration_since(*at) < WINDOW);
        let shift = u32::try_from(self.recent.len()).unwrap_or(u32::MAX).saturating_sub(1);
        let back_off = BACK_OFF / failpoint::speedup();
        let back_off = back_off.saturating_mul(1_u32.checked_shl(shift).unwrap_or(u32::MAX));
        match self.recent.last() {
            _ if self.recent.len() >= MAX_REPAIRS => Due::Stopped,
            Some(last) if now.duration_since(*last) < back_off => Due::Later,
            _ => {
                self.has_stopped = false;
                Due::Now
            }
        }
    }

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
            // The first one has expired, so two remain.
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
