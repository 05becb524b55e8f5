//! CNPs at the end of a window.

use serde::Serialize;

/// CNPs for marks within a window, sent when it was over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WindowEndOutcome {
    /// How many were sent.
    pub cnps: u64,
    /// Half of them came no later than this after the end of their window.
    pub late_p50_ns: u64,
    /// 99 % of them came no later.
    pub late_p99_ns: u64,
    /// The latest.
    pub late_max_ns: u64,
    /// Marks that were never answered, as no packet came after the window that could have had them answered.
    pub unanswered: u64,
}

impl WindowEndOutcome {
    pub(super) fn new(mut late_ns: Vec<u64>, unanswered: u64) -> Self {
        late_ns.sort_unstable();
        let count = late_ns.len();
        let at = |percent| late_ns.get(super::nearest_rank(count, percent)).copied().unwrap_or(0);
        let [late_p50_ns, late_p99_ns, late_max_ns] = [50, 99, 100].map(at);
        Self { cnps: count as u64, late_p50_ns, late_p99_ns, late_max_ns, unanswered }
    }
}
