//! The reaction point of DCQCN (SIGCOMM'15, §3.1 and §5) as one would simulate it: real timers, floating point, one
//! event at a time. It shares nothing with the machine it judges but the parameters' names.
//!
//! At one instant the alpha timer goes first, then the increase timer, the byte counter and the CNP.

use dcqcn_common::params::Config;

/// A rate this close to the line rate, in bit/s, is the line rate: averages only come near it.
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
    /// A cut takes this times alpha; 1/2 in the paper.
    cut: f64,
    /// The part of its rate a flow keeps at least.
    keep: f64,
    /// tau'.
    alpha_period_ns: u64,
    /// T; `None` = off.
    timer_ns: Option<u64>,
    /// B; `None` = off.
    byte_counter: Option<u64>,
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
            cut: 1024.0 / f64::powf(2.0, s.rpg_gd as f64),
            keep: s.rpg_min_dec_fac as f64 / 100.0,
            alpha_period_ns: s.dce_tcp_rtt_ns,
            timer_ns: (s.rpg_time_reset_ns != 0).then_some(s.rpg_time_reset_ns),
            byte_counter: (s.rpg_byte_reset_bytes != 0).then_some(s.rpg_byte_reset_bytes),
        }
    }
}

/// When the two timers expire; they run from the first CNP on.
struct Timers {
    alpha_ns: u64,
    increase_ns: Option<u64>,
}

/// The flow.
pub(crate) struct Model {
    parameters: Parameters,
    timers: Option<Timers>,
    bytes: u64,
    /// R_C.
    pub(crate) rate_bps: f64,
    /// R_T.
    pub(crate) target_bps: f64,
    /// Alpha, 0 to 1.
    pub(crate) alpha: f64,
    /// T's events since the last CNP.
    pub(crate) time_stage: u64,
    /// B's events since the last CNP.
    pub(crate) byte_stage: u64,
}

impl Model {
    /// A flow that starts, on a link whose rate `config` (valid) gives.
    pub(crate) fn new(config: &Config) -> Self {
        let parameters = Parameters::new(config);
        Self {
            rate_bps: parameters.line_rate_bps,
            target_bps: parameters.line_rate_bps,
            alpha: config.scalars.initial_alpha_value as f64 / 1024.0,
            parameters,
            timers: None,
            bytes: 0,
            time_stage: 0,
            byte_stage: 0,
        }
    }

    /// Whether increase events change nothing but the stages any more, so that many cost no more than one.
    pub(crate) fn is_at_line_rate(&self) -> bool {
        self.rate_bps == self.parameters.line_rate_bps && self.target_bps == self.rate_bps
    }

    /// Lets every timer expire that does so up to and including `now_ns`.
    pub(crate) fn run_until(&mut self, now_ns: u64) {
        while let Some(Timers { alpha_ns, increase_ns }) = self.timers {
            let alpha_is_next = increase_ns.is_none_or(|increase_ns| alpha_ns <= increase_ns);
            if alpha_is_next && alpha_ns <= now_ns {
                let expiries = if self.alpha == 0.0 {
                    whole(now_ns - alpha_ns, self.parameters.alpha_period_ns)
                } else {
                    1
                };
                self.alpha *= 1.0 - self.parameters.gain;
                if self.alpha < NO_ALPHA {
                    self.alpha = 0.0;
                }
                self.timers = Some(Timers {
                    alpha_ns: alpha_ns + expiries * self.parameters.alpha_period_ns,
                    increase_ns,
                });
            } else if let Some((expiry_ns, period_ns)) = increase_ns.zip(self.parameters.timer_ns)
                && expiry_ns <= now_ns
            {
                let expiries = if self.is_at_line_rate() { whole(now_ns - expiry_ns, period_ns) } else { 1 };
                self.time_stage += expiries;
                self.increase();
                self.timers = Some(Timers { alpha_ns, increase_ns: Some(expiry_ns + expiries * period_ns) });
            } else {
                return;
            }
        }
    }

    /// A packet leaves.
    pub(crate) fn send(&mut self, bytes: u64) {
        let (Some(limit), Some(_)) = (self.parameters.byte_counter, &self.timers) else {
            return;
        };
        self.bytes += bytes;
        while self.bytes >= limit {
            let events = if self.is_at_line_rate() { self.bytes / limit } else { 1 };
            self.bytes -= events * limit;
            self.byte_stage += events;
            self.increase();
        }
    }

    /// A CNP arrives.
    pub(crate) fn cnp(&mut self, now_ns: u64) {
        let p = &self.parameters;
        self.target_bps = self.rate_bps;
        self.rate_bps =
            (self.rate_bps * (1.0 - self.alpha * p.cut)).max(self.rate_bps * p.keep).max(p.min_rate_bps);
        self.alpha = (1.0 - p.gain) * self.alpha + p.gain;
        self.time_stage = 0;
        self.byte_stage = 0;
        self.bytes = 0;
        self.timers = Some(Timers {
            alpha_ns: now_ns + p.alpha_period_ns,
            increase_ns: p.timer_ns.map(|period_ns| now_ns + period_ns),
        });
    }

    /// An increase event, its stage already counted.
    fn increase(&mut self) {
        let p = &self.parameters;
        let time = p.timer_ns.map(|_| self.time_stage);
        let bytes = p.byte_counter.map(|_| self.byte_stage);
        let running = || [time, bytes].into_iter().flatten();
        let least = running().min().expect("one of the two has just counted");
        let most = running().max().expect("one of the two has just counted");
        if least > p.threshold {
            self.target_bps += (least - p.threshold) as f64 * p.hai_rate_bps;
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

/// Expiries of a timer that expires now and has `left_ns` to go.
fn whole(left_ns: u64, period_ns: u64) -> u64 {
    1 + left_ns / period_ns
}
