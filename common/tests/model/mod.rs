//! An independent model of DCQCN's reaction point: real timers, floating point, one event at a time. It shares only the
//! parameters' names with the machine under test.
//!
//! Both variants: the paper's (SIGCOMM'15, §3.1 and §5), and that of NVIDIA's parameters, as in HPCC's simulator and
//! isekai.
//!
//! At one instant the alpha timer goes first, then the decrease check, the increase timer, the byte counter
//! and the CNP.

use dcqcn_common::params::{COARSE_ALPHA_BITS, Config, RP_VARIANT_FIRMWARE};

/// A rate this close to the line rate, in bit/s, counts as the line rate, which averages only approach.
const AT_LINE_BPS: f64 = 1e-3;
/// An alpha this small is 0: it is far below the quantum of any integer machine.
const NO_ALPHA: f64 = 1e-13;

/// Parameters in the paper's terms.
struct Parameters {
    line_rate_bps: f64,
    min_rate_bps: f64,
    ai_rate_bps: f64,
    hai_rate_bps: f64,
    /// F.
    threshold: u64,
    /// g.
    gain: f64,
    /// Alpha is a whole number of 1/1024, rounded down.
    alpha_is_coarse: bool,
    initial_alpha: f64,
    /// A cut takes this times alpha; 1/2 in the paper.
    cut: f64,
    /// Minimum fraction of its rate that a flow keeps.
    keep: f64,
    /// tau'.
    alpha_period_ns: u64,
    /// T; `None` = off.
    timer_ns: Option<u64>,
    /// B; `None` = off.
    byte_counter: Option<u64>,
    /// Parameters of the firmware; `None` = the paper's variant.
    firmware: Option<Firmware>,
}

struct Firmware {
    check_period_ns: u64,
    clamp: bool,
    clamp_after_time: bool,
    first_cnp_rate_bps: Option<f64>,
}

impl Parameters {
    fn new(config: &Config) -> Self {
        let s = &config.scalars;
        Self {
            line_rate_bps: s.link_rate_bps as f64,
            min_rate_bps: s.rpg_min_rate_bps as f64,
            ai_rate_bps: s.rpg_ai_rate_bps as f64,
            hai_rate_bps: s.rpg_hai_rate_bps as f64,
            threshold: s.rpg_threshold,
            gain: 1.0 - s.dce_tcp_g as f64 / 1024.0,
            alpha_is_coarse: s.alpha_bits == COARSE_ALPHA_BITS,
            initial_alpha: s.initial_alpha_value as f64 / 1024.0,
            cut: 1024.0 / f64::powf(2.0, s.rpg_gd as f64),
            keep: s.rpg_min_dec_fac as f64 / 100.0,
            alpha_period_ns: s.dce_tcp_rtt_ns,
            timer_ns: (s.rpg_time_reset_ns != 0).then_some(s.rpg_time_reset_ns),
            byte_counter: (s.rpg_byte_reset_bytes != 0).then_some(s.rpg_byte_reset_bytes),
            firmware: (s.rp_variant == RP_VARIANT_FIRMWARE).then_some(Firmware {
                check_period_ns: s.rate_reduce_monitor_period_ns,
                clamp: s.clamp_tgt_rate != 0,
                clamp_after_time: s.clamp_tgt_rate_after_time_inc != 0,
                first_cnp_rate_bps: (s.rate_to_set_on_first_cnp_bps != 0)
                    .then_some(s.rate_to_set_on_first_cnp_bps as f64),
            }),
        }
    }

    /// An alpha with the precision of this machine.
    fn held(&self, alpha: f64) -> f64 {
        if self.alpha_is_coarse {
            (alpha * 1024.0).floor().min(1023.0) / 1024.0
        } else if alpha < NO_ALPHA {
            0.0
        } else {
            alpha
        }
    }
}

/// When the timers expire; they run from the first CNP on.
#[derive(Clone, Copy)]
struct Timers {
    alpha_ns: u64,
    check_ns: Option<u64>,
    increase_ns: Option<u64>,
}

pub(crate) struct Model {
    parameters: Parameters,
    timers: Option<Timers>,
    bytes: u64,
    /// A CNP arrived in this alpha period.
    alpha_cnp: bool,
    /// A CNP arrived since the last cut.
    cut_cnp: bool,
    /// R_C.
    pub(crate) rate_bps: f64,
    /// R_T.
    pub(crate) target_bps: f64,
    /// Alpha, 0 to 1.
    pub(crate) alpha: f64,
    /// T's events since the last cut.
    pub(crate) time_stage: u64,
    /// B's events since the last cut.
    pub(crate) byte_stage: u64,
}

impl Model {
    /// A new flow, on a link whose rate is in `config` (valid).
    pub(crate) fn new(config: &Config) -> Self {
        let parameters = Parameters::new(config);
        Self {
            rate_bps: parameters.line_rate_bps,
            target_bps: parameters.line_rate_bps,
            alpha: parameters.held(parameters.initial_alpha),
            parameters,
            timers: None,
            bytes: 0,
            alpha_cnp: false,
            cut_cnp: false,
            time_stage: 0,
            byte_stage: 0,
        }
    }

    /// Whether increase events only change the stages, so that many can be processed at once.
    pub(crate) fn is_at_line_rate(&self) -> bool {
        self.rate_bps == self.parameters.line_rate_bps && self.target_bps == self.rate_bps
    }

    /// Processes all timers up to and including `now_ns`.
    pub(crate) fn run_until(&mut self, now_ns: u64) {
        while let Some(timers) = self.timers {
            let never = u64::MAX;
            let check_ns = timers.check_ns.unwrap_or(never);
            let increase_ns = timers.increase_ns.unwrap_or(never);
            let next_ns = timers.alpha_ns.min(check_ns).min(increase_ns);
            if next_ns > now_ns {
                return;
            }
            // Timers that change nothing for a long time go up to the next one that does, or to the end.
            let quiet_until_ns = if self.cut_cnp { check_ns.min(now_ns) } else { now_ns };
            if timers.alpha_ns == next_ns {
                let is_quiet = self.alpha == 0.0 && !self.alpha_cnp;
                let period_ns = self.parameters.alpha_period_ns;
                let expiries = whole_while(is_quiet, quiet_until_ns, next_ns, period_ns);
                self.end_alpha_period();
                self.timers = Some(Timers { alpha_ns: next_ns + expiries * period_ns, ..timers });
            } else if let Some(firmware) = self.parameters.firmware.as_ref().filter(|_| check_ns == next_ns) {
                let expiries = whole_while(!self.cut_cnp, now_ns, next_ns, firmware.check_period_ns);
                let check_ns = Some(next_ns + expiries * firmware.check_period_ns);
                self.timers = Some(Timers { check_ns, ..timers });
                if self.cut_cnp {
                    self.cut(next_ns);
                }
            } else if let Some(period_ns) = self.parameters.timer_ns {
                let is_quiet = self.is_at_line_rate();
                // The check may cut, and restart this timer, at the same instant.
                let quiet_until_ns = if self.cut_cnp { quiet_until_ns - 1 } else { quiet_until_ns };
                let expiries = whole_while(is_quiet, quiet_until_ns.max(next_ns), next_ns, period_ns);
                self.increase(|model| model.time_stage += expiries);
                self.timers = Some(Timers { increase_ns: Some(next_ns + expiries * period_ns), ..timers });
            }
        }
    }

    pub(crate) fn send(&mut self, bytes: u64) {
        let is_idle = self.parameters.firmware.is_some() && self.timers.is_none();
        let Some(limit) = self.parameters.byte_counter.filter(|_| !is_idle) else { return };
        self.bytes += bytes;
        while self.bytes >= limit {
            let events = if self.is_at_line_rate() { self.bytes / limit } else { 1 };
            self.bytes -= events * limit;
            self.increase(|model| model.byte_stage += events);
        }
    }

    pub(crate) fn cnp(&mut self, now_ns: u64) {
        let p = &self.parameters;
        let increase_ns = p.timer_ns.map(|period_ns| now_ns + period_ns);
        let alpha_ns = now_ns + p.alpha_period_ns;
        let Some(firmware) = &p.firmware else {
            let raised = (1.0 - p.gain) * self.alpha;
            // The product is rounded before the gain is added, as integers do it.
            let raised = p.held(p.held(raised) + p.gain);
            self.timers = Some(Timers { alpha_ns, check_ns: None, increase_ns });
            self.cut(now_ns);
            self.alpha = raised;
            return;
        };
        if self.timers.is_some() {
            (self.alpha_cnp, self.cut_cnp) = (true, true);
            return;
        }
        match firmware.first_cnp_rate_bps {
            Some(rate_bps) => {
                self.rate_bps = rate_bps.min(p.line_rate_bps);
                self.target_bps = self.rate_bps;
            }
            None => self.cut_cnp = true,
        }
        self.alpha = p.held(p.initial_alpha);
        let check_ns = Some(now_ns + firmware.check_period_ns);
        self.timers = Some(Timers { alpha_ns, check_ns, increase_ns });
    }

    fn end_alpha_period(&mut self) {
        let p = &self.parameters;
        self.alpha = p.held((1.0 - p.gain) * self.alpha);
        if self.alpha_cnp {
            self.alpha = p.held(self.alpha + p.gain);
        }
        self.alpha_cnp = false;
    }

    fn cut(&mut self, now_ns: u64) {
        let p = &self.parameters;
        let clamps = p.firmware.as_ref().is_none_or(|firmware| {
            firmware.clamp || self.byte_stage != 0 || (firmware.clamp_after_time && self.time_stage != 0)
        });
        if clamps {
            self.target_bps = self.rate_bps;
        }
        self.rate_bps =
            (self.rate_bps * (1.0 - self.alpha * p.cut)).max(self.rate_bps * p.keep).max(p.min_rate_bps);
        let increase_ns = p.timer_ns.map(|period_ns| now_ns + period_ns);
        self.timers = self.timers.map(|timers| Timers { increase_ns, ..timers });
        (self.time_stage, self.byte_stage, self.bytes, self.cut_cnp) = (0, 0, 0, false);
    }

    /// An increase event: the paper increments its stage first, the firmware last.
    fn increase(&mut self, count: impl FnOnce(&mut Self)) {
        if self.parameters.firmware.is_some() {
            self.raise_target(|_| 1);
            count(self);
        } else {
            count(self);
            self.raise_target(|beyond| beyond);
        }
    }

    /// `hyper` is the multiple of R_HAI in a step when both counters are this far beyond F.
    fn raise_target(&mut self, hyper: impl FnOnce(u64) -> u64) {
        let p = &self.parameters;
        let time = p.timer_ns.map(|_| self.time_stage);
        let bytes = p.byte_counter.map(|_| self.byte_stage);
        let running = || [time, bytes].into_iter().flatten();
        let (least, most) = running().min().zip(running().max()).expect("one of the two has just expired");
        if least > p.threshold {
            self.target_bps += hyper(least - p.threshold) as f64 * p.hai_rate_bps;
        } else if most >= p.threshold {
            self.target_bps += p.ai_rate_bps;
        }
        self.target_bps = self.target_bps.min(p.line_rate_bps);
        self.rate_bps = (self.rate_bps + self.target_bps) / 2.0;
        if self.target_bps == p.line_rate_bps && p.line_rate_bps - self.rate_bps < AT_LINE_BPS {
            self.rate_bps = p.line_rate_bps;
        }
    }
}

/// Expiries up to `until_ns` of a timer that expires at `next_ns` if `is_quiet`, otherwise the one.
fn whole_while(is_quiet: bool, until_ns: u64, next_ns: u64, period_ns: u64) -> u64 {
    if is_quiet { 1 + until_ns.saturating_sub(next_ns) / period_ns } else { 1 }
}
