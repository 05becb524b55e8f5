//! Reaction point: the DCQCN rate machine of one QP.
//!
//! One machine, two variants (`rp_variant`):
//!
//! - `paper` (DCQCN, SIGCOMM'15 §3.1 and §5): a CNP cuts immediately with the old alpha, then raises alpha; alpha
//!   decays while no CNPs arrive.
//! - `firmware` (the machine that NVIDIA's parameters describe; HPCC's simulator and Google's isekai have open
//!   implementations): alpha and cuts have free-running periods, and all CNPs of a period count once.
//!
//! The machine is lazy: a rate only matters when a packet is sent, so [`RateMachine::advance`] processes all events
//! that are due, in order. Events at the same instant are ordered: alpha, cut, increase timer, byte counter, CNP.
//!
//! Integers only. Rates are below 2^40 bit/s (800 Gbit/s); alpha is a fraction of 2^31. Averages round up, so that a
//! rate reaches its target after at most 40 halvings of the difference instead of staying one below it.

mod alpha;
mod debt;
mod increase;
mod params;

use crate::verifier::{forget, opaque};
pub use alpha::{COARSE_MAX, COARSE_SHIFT};
pub(crate) use alpha::{COARSE_MAX_Q31, coarse_steps, decay_powers};
pub use debt::Debt;
pub(crate) use increase::MAX_HYPER;
use increase::{MAX_STEPS, Source};
pub use params::{CLAMP_AFTER_BYTES, CLAMP_AFTER_TIME, CLAMP_ALWAYS, COARSE_STEPS, CoarseDecay, RpParams};

pub const ALPHA_ONE: u32 = 1 << 31;

/// [`RateMachine::pending`]: a CNP arrived in this alpha period.
pub const RAISE: u16 = 1;
/// [`RateMachine::pending`]: a CNP arrived since the last cut.
pub const CUT: u16 = 2;

/// The rate machine of one QP. Fields that each packet reads or changes come first; see [`RpHot`](crate::flow::RpHot).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateMachine {
    /// Bytes sent since the byte counter's last event.
    pub bytes: u64,
    pub next_increase_ns: u64,
    /// 0 until the first CNP: timers are idle.
    pub active: u16,
    /// Pending effects of the last CNP: [`RAISE`] and [`CUT`]. `firmware` only.
    pub pending: u16,
    /// Alpha at `alpha_epoch_ns`, in 2^-31; see [`RateMachine::alpha_q31`] for the current value.
    pub alpha_at_epoch_q31: u32,
    /// Current rate R_C.
    pub rate_bps: u64,
    /// Target rate R_T.
    pub target_bps: u64,
    /// An instant of the periodic cut check: the next one if a cut is pending. `firmware` only.
    pub cut_check_ns: u64,
    /// Reference time of the stored alpha: the last CNP, or a period boundary before it.
    pub alpha_epoch_ns: u64,
    /// Events of the increase timer since the last cut (T); saturates.
    pub time_stage: u32,
    /// Events of the byte counter since the last cut (BC); saturates.
    pub byte_stage: u32,
}

/// Next internal events; `None` = no such event would change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// End of the alpha period.
    pub alpha_ns: Option<u64>,
    /// Check that cuts the rate.
    pub cut_ns: Option<u64>,
    /// Expiry of the increase timer.
    pub increase_ns: Option<u64>,
}

impl RateMachine {
    /// A new flow: line rate, alpha at its initial value, timers idle.
    #[inline(always)]
    pub const fn new(p: &RpParams) -> Self {
        Self {
            rate_bps: p.line_rate_bps,
            target_bps: p.line_rate_bps,
            alpha_epoch_ns: 0,
            next_increase_ns: 0,
            cut_check_ns: 0,
            bytes: 0,
            alpha_at_epoch_q31: p.initial_alpha_q31,
            time_stage: 0,
            byte_stage: 0,
            active: 0,
            pending: 0,
        }
    }

    /// Whether no event is due at `now_ns` and no changed parameter affects one: advancing would change no rate. A
    /// target above a lowered line rate is corrected at the next event.
    #[inline(always)]
    pub(crate) const fn is_current(&self, p: &RpParams, now_ns: u64) -> bool {
        if self.active == 0 {
            return self.rate_bps == p.line_rate_bps;
        }
        let timer_waits = if p.time_reset_ns == 0 {
            self.next_increase_ns == u64::MAX
        } else {
            // At least 1 ns ahead, and at most a period.
            self.next_increase_ns.wrapping_sub(now_ns).wrapping_sub(1) < p.time_reset_ns
        };
        timer_waits
            && self.rate_bps <= p.line_rate_bps
            && (self.pending & CUT == 0 || self.cut_waits(p, now_ns))
    }

    #[inline(always)]
    const fn cut_waits(&self, p: &RpParams, now_ns: u64) -> bool {
        p.cut_period_ns == 0 || self.cut_check_ns.wrapping_sub(now_ns).wrapping_sub(1) < p.cut_period_ns
    }

    /// Whether nothing limits the flow: it sends at the line rate, or was never cut, and no cut is pending.
    /// No event but a CNP changes that.
    #[inline(always)]
    pub(crate) const fn is_at_line_rate(&self, p: &RpParams) -> bool {
        let is_at_line = self.rate_bps == p.line_rate_bps && self.target_bps == p.line_rate_bps;
        self.active == 0 || is_at_line && self.pending & CUT == 0
    }

    /// Fast path of [`advance`](Self::advance): at line rate with no cut pending, the usual state, only the increase
    /// timer moves. Returns `false`, having changed nothing, if the slow path is needed.
    #[inline(always)]
    pub(crate) fn advance_at_line_rate(&mut self, p: &RpParams, now_ns: u64) -> bool {
        if self.active == 0 || !self.is_at_line_rate(p) {
            return false;
        }
        let Some(late_ns) = now_ns.checked_sub(self.next_increase_ns) else { return false };
        let Some(periods) = late_ns.checked_div(p.time_reset_ns) else { return false };
        let taken = periods + 1;
        self.time_stage = self.time_stage.saturating_add(taken.min(u32::MAX as u64) as u32);
        self.next_increase_ns = self.next_increase_ns.wrapping_add(taken.wrapping_mul(p.time_reset_ns));
        self.cut_check_ns = self.cut_check_ns.min(now_ns.saturating_add(p.cut_period_ns));
        true
    }

    /// Processes all events due up to and including `now_ns`.
    ///
    /// The work is bounded for any gap: a run of increase events of at most `MAX_STEPS` steps, a cut, and another run.
    /// There is at most one cut, because only a CNP makes one due, and the machine is advanced to each CNP.
    #[inline(always)]
    pub fn advance(&mut self, p: &RpParams, now_ns: u64) {
        let mut none = Debt::NONE;
        self.advance_paying(p, now_ns, &mut none);
    }

    /// As [`RateMachine::advance`]; pays `debt` at each rate up to the last change, and leaves the rest to be paid at
    /// the new rate.
    #[inline(always)]
    pub(crate) fn advance_paying(&mut self, p: &RpParams, now_ns: u64, debt: &mut Debt) {
        if self.active == 0 {
            self.rate_bps = p.line_rate_bps;
            self.target_bps = p.line_rate_bps;
            return;
        }
        // The line rate may have been lowered since, or a period shortened.
        self.rate_bps = self.rate_bps.min(p.line_rate_bps);
        self.target_bps = self.target_bps.min(p.line_rate_bps);
        self.next_increase_ns = match p.time_reset_ns {
            // Off: it restarts when it is enabled again.
            0 => u64::MAX,
            period_ns => self.next_increase_ns.min(now_ns.saturating_add(period_ns)),
        };
        self.cut_check_ns = self.cut_check_ns.min(now_ns.saturating_add(p.cut_period_ns));
        for _ in 0..2 {
            let cuts = p.cut_period_ns != 0 && self.pending & CUT != 0 && self.cut_check_ns <= now_ns;
            // A cut restarts the timer, even one that expires at the same instant.
            self.run_timer(p, if cuts { self.cut_check_ns.saturating_sub(1) } else { now_ns }, debt);
            if !cuts {
                return;
            }
            debt.pay(self.rate_bps, self.cut_check_ns);
            forget(debt);
            // Otherwise the compiler would keep the address of each alpha table for both rounds, on a stack of 512
            // bytes.
            let p = opaque(p);
            self.cut(p, self.cut_check_ns, self.alpha_q31(p, self.cut_check_ns));
            forget(self);
        }
    }

    /// Runs the increase timer up to and including `until_ns`.
    #[inline(always)]
    fn run_timer(&mut self, p: &RpParams, until_ns: u64, debt: &mut Debt) {
        // One step more than a run has: the start of the debt may lie within it.
        for _ in 0..MAX_STEPS + 1 {
            let first_ns = self.next_increase_ns;
            let until_ns = if first_ns <= debt.from_ns { until_ns.min(debt.from_ns) } else { until_ns };
            let Some(late_ns) = until_ns.checked_sub(first_ns) else { return };
            let Some(periods) = late_ns.checked_div(p.time_reset_ns) else { return };
            let taken = self.increase(p, Source::Timer, periods + 1, debt);
            self.next_increase_ns = self.next_increase_ns.wrapping_add(taken.wrapping_mul(p.time_reset_ns));
            forget(self);
            forget(debt);
        }
    }

    /// Counts a packet of `bytes` (below 2^32). Returns `false`, having changed nothing, if that causes an event.
    #[inline(always)]
    pub(crate) const fn on_send_between_events(&mut self, p: &RpParams, bytes: u64) -> bool {
        if !self.counts_bytes(p) {
            return true;
        }
        let bytes = self.bytes + bytes;
        if bytes >= p.byte_reset_bytes {
            return false;
        }
        self.bytes = bytes;
        true
    }

    /// Value of `bytes` after a packet of a flow [at line rate](Self::is_at_line_rate); `None` = unchanged.
    ///
    /// It grows until an event is due: at line rate more events change only the stage, which the next cut resets.
    #[inline(always)]
    pub(crate) const fn bytes_at_line_rate(&self, p: &RpParams, bytes: u64) -> Option<u64> {
        if self.counts_bytes(p) && self.bytes < p.byte_reset_bytes { Some(self.bytes + bytes) } else { None }
    }

    #[inline(always)]
    const fn counts_bytes(&self, p: &RpParams) -> bool {
        p.byte_reset_bytes != 0 && (self.active != 0 || p.cut_period_ns == 0)
    }

    /// Counts a packet of `bytes` (below 2^32); the machine has been advanced to the time of sending.
    #[inline(always)]
    pub fn on_send(&mut self, p: &RpParams, bytes: u64) {
        if !self.counts_bytes(p) {
            return;
        }
        // Corrects for a line rate that was lowered since, if no other event was due.
        self.rate_bps = self.rate_bps.min(p.line_rate_bps);
        self.target_bps = self.target_bps.min(p.line_rate_bps);
        self.bytes += bytes;
        // No time passes here, so no debt is paid.
        let mut none = Debt::NONE;
        for _ in 0..MAX_STEPS {
            if self.bytes < p.byte_reset_bytes {
                return;
            }
            let taken = self.increase(p, Source::Bytes, self.bytes / p.byte_reset_bytes, &mut none);
            self.bytes = self.bytes.wrapping_sub(taken.wrapping_mul(p.byte_reset_bytes));
            forget(self);
        }
    }

    /// A CNP at `now_ns`; the machine has been advanced to it.
    ///
    /// `paper`: cut with the old alpha, then raise alpha; both timers restart. `firmware`: the end of the alpha period
    /// raises alpha, and the next decrease check cuts; the first CNP starts the periods.
    #[inline(always)]
    pub fn on_cnp(&mut self, p: &RpParams, now_ns: u64) {
        if p.cut_period_ns == 0 {
            let alpha_q31 = self.alpha_q31(p, now_ns);
            self.cut(p, now_ns, alpha_q31);
            self.alpha_at_epoch_q31 = alpha::raised(p, alpha_q31);
            self.alpha_epoch_ns = now_ns;
            self.pending = 0;
        } else if self.active == 0 {
            self.alpha_at_epoch_q31 = p.initial_alpha_q31;
            self.alpha_epoch_ns = now_ns;
            self.next_increase_ns = timer_from(p, now_ns);
            self.cut_check_ns = now_ns.wrapping_add(p.cut_period_ns);
            if p.first_cnp_rate_bps == 0 {
                self.pending = CUT;
            } else {
                self.rate_bps = p.first_cnp_rate_bps.min(p.line_rate_bps);
                self.target_bps = self.rate_bps;
            }
        } else {
            let periods = self.alpha_periods(p, now_ns);
            self.alpha_at_epoch_q31 = self.alpha_q31(p, now_ns);
            self.alpha_epoch_ns = self.alpha_epoch_ns.wrapping_add(periods.wrapping_mul(p.alpha_period_ns));
            if now_ns >= self.cut_check_ns {
                let checks = (now_ns - self.cut_check_ns) / p.cut_period_ns + 1;
                self.cut_check_ns = self.cut_check_ns.wrapping_add(checks.wrapping_mul(p.cut_period_ns));
            }
            self.pending = RAISE | CUT;
        }
        self.active = 1;
    }

    /// Alpha at `now_ns`, in 2^-31.
    #[inline(always)]
    pub fn alpha_q31(&self, p: &RpParams, now_ns: u64) -> u32 {
        let periods = self.alpha_periods(p, now_ns);
        if periods != 0 && self.pending & RAISE != 0 {
            alpha::decayed(p, alpha::raised(p, self.alpha_at_epoch_q31), periods - 1)
        } else {
            alpha::decayed(p, self.alpha_at_epoch_q31, periods)
        }
    }

    /// Next events after `now_ns`, to which the machine has been advanced.
    pub fn due(&self, p: &RpParams, now_ns: u64) -> Due {
        if self.active == 0 {
            return Due { alpha_ns: None, cut_ns: None, increase_ns: None };
        }
        let periods = self.alpha_periods(p, now_ns);
        let raises = periods == 0 && self.pending & RAISE != 0;
        let alpha_changes = p.alpha_period_ns != 0 && (raises || self.alpha_q31(p, now_ns) != 0);
        let cuts = p.cut_period_ns != 0 && self.pending & CUT != 0;
        let is_at_line = self.rate_bps == p.line_rate_bps && self.target_bps == p.line_rate_bps;
        let period_end_ns =
            self.alpha_epoch_ns.saturating_add((periods + 1).saturating_mul(p.alpha_period_ns));
        Due {
            alpha_ns: alpha_changes.then_some(period_end_ns),
            cut_ns: cuts.then_some(self.cut_check_ns),
            increase_ns: (p.time_reset_ns != 0 && !is_at_line).then_some(self.next_increase_ns),
        }
    }

    /// Whole alpha periods since the reference time of the stored alpha.
    #[inline(always)]
    const fn alpha_periods(&self, p: &RpParams, now_ns: u64) -> u64 {
        if self.active == 0 || p.alpha_period_ns == 0 {
            return 0;
        }
        now_ns.saturating_sub(self.alpha_epoch_ns) / p.alpha_period_ns
    }

    /// Cuts the rate at `at_ns` with `alpha_q31`; resets stages and byte counter, and restarts the increase timer.
    #[inline(always)]
    fn cut(&mut self, p: &RpParams, at_ns: u64, alpha_q31: u32) {
        let is_event_due = self.counts_bytes(p) && self.bytes >= p.byte_reset_bytes;
        let after_bytes = if self.byte_stage != 0 || is_event_due { CLAMP_AFTER_BYTES } else { 0 };
        let after_time = if self.time_stage != 0 { CLAMP_AFTER_TIME } else { 0 };
        if p.clamp & (CLAMP_ALWAYS | after_bytes | after_time) != 0 {
            self.target_bps = self.rate_bps;
        }
        self.rate_bps = self.rate_after_cut(p, alpha_q31);
        self.next_increase_ns = timer_from(p, at_ns);
        self.bytes = 0;
        self.time_stage = 0;
        self.byte_stage = 0;
        self.pending &= !CUT;
    }

    #[inline(always)]
    fn rate_after_cut(&self, p: &RpParams, alpha_q31: u32) -> u64 {
        let rate = self.rate_bps;
        // rate < 2^40 and alpha ≤ 2^31 need 71 bits: the rate's upper 8 bits go separately. 2^8 · 2^31 << 1 and
        // 2^32 · 2^31 >> 31 both fit.
        let high = (rate >> 32).wrapping_mul(alpha_q31 as u64) << 1;
        let low = (rate & 0xffff_ffff).wrapping_mul(alpha_q31 as u64) >> 31;
        let reduction = (high + low) >> p.cut_shift.wrapping_sub(31);
        // rate · 100 < 2^47.
        let floor = rate.wrapping_mul(p.min_dec_percent as u64) / 100;
        rate.wrapping_sub(reduction).max(floor).max(p.min_rate_bps)
    }
}

/// Expiry of an increase timer started at `start_ns`; never if it is off.
#[inline(always)]
const fn timer_from(p: &RpParams, start_ns: u64) -> u64 {
    if p.time_reset_ns == 0 { u64::MAX } else { start_ns.wrapping_add(p.time_reset_ns) }
}

#[cfg(test)]
mod tests;
