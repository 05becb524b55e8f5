//! The rate machine's parameters in the form it reads them.

use core::fmt;

use super::{ALPHA_ONE, COARSE_MAX_Q31, MAX_HYPER, coarse_steps, decay_powers};
use crate::params::{COARSE_ALPHA_BITS, Config, RP_VARIANT_FIRMWARE};

/// Stored powers of the decay: after 2^16 periods alpha is 0 for every gain (1023/1024 ^ 65536 = e^-64).
pub(crate) const DECAYS: usize = 16;
/// Tables for a coarse alpha: every step subtracts at least 1, so 1023 steps leave nothing.
pub const COARSE_STEPS: usize = 10;
/// [`RpParams::clamp`]: every cut.
pub const CLAMP_ALWAYS: u32 = 1;
/// [`RpParams::clamp`]: a cut after an event of the byte counter.
pub const CLAMP_AFTER_BYTES: u32 = 2;
/// [`RpParams::clamp`]: a cut after an event of the increase timer.
pub const CLAMP_AFTER_TIME: u32 = 4;

/// 2^k steps of decay, indexed by alpha in 1/1024; zeros unless alpha is coarse.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CoarseDecay(pub [[u16; 1024]; COARSE_STEPS]);

impl fmt::Debug for CoarseDecay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CoarseDecay(..)")
    }
}

/// The machine's parameters as the data plane reads them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpParams {
    /// Rate of a new flow and cap of every flow; 0 = unknown, the machine does not run.
    pub line_rate_bps: u64,
    /// Floor of every cut.
    pub min_rate_bps: u64,
    /// Additive increase R_AI.
    pub ai_rate_bps: u64,
    /// Hyper increase R_HAI.
    pub hai_rate_bps: u64,
    /// Rate a flow gets at its first CNP instead of a cut; 0 = none. `firmware` only.
    pub first_cnp_rate_bps: u64,
    /// Period of the increase timer (paper: T); 0 = off.
    pub time_reset_ns: u64,
    /// Bytes per event of the byte counter (paper: B); 0 = off.
    pub byte_reset_bytes: u64,
    /// Period of the alpha timer (paper: tau').
    pub alpha_period_ns: u64,
    /// Period after whose end a CNP causes a cut; 0 = the CNP cuts immediately, which is the `paper` variant.
    pub cut_period_ns: u64,
    /// A CNP this soon after the last one changes nothing. `paper` only.
    pub guard_ns: u64,
    /// Increase events of fast recovery (paper: F).
    pub threshold: u32,
    /// 1 = an increase event increments its stage before comparing the stages (`paper`), 0 = after (`firmware`).
    pub count_first: u32,
    /// Largest multiple of R_HAI in one step: it grows with each event in `paper`, and is constant (1) in `firmware`.
    pub max_hyper: u32,
    /// When a cut first sets R_T to R_C: [`CLAMP_ALWAYS`], [`CLAMP_AFTER_BYTES`], [`CLAMP_AFTER_TIME`].
    pub clamp: u32,
    /// A cut takes rate · alpha >> this, alpha in 2^-31: 31 + (rpg_gd − 10).
    pub cut_shift: u32,
    /// Lowest percentage of the rate that a cut leaves.
    pub min_dec_percent: u32,
    /// Gain of alpha (paper: g), in 2^-31.
    pub gain_q31: u32,
    /// Alpha of a new flow in 2^-31.
    pub initial_alpha_q31: u32,
    /// Largest alpha in 2^-31: 1, or 1023/1024.
    pub max_alpha_q31: u32,
    /// 1 = alpha is a multiple of 1/1024, rounded down at every step.
    pub alpha_is_coarse: u32,
    /// (1 − g)^(2^k) in 2^-31.
    pub decay_q31: [u32; DECAYS],
    /// Steps of decay of a coarse alpha.
    pub coarse_decay: CoarseDecay,
}

impl RpParams {
    /// Derives the machine's parameters from a valid `config`.
    pub fn new(config: &Config) -> Self {
        let s = &config.scalars;
        let line_rate_bps = config.line_rate_bps();
        let is_firmware = s.rp_variant == RP_VARIANT_FIRMWARE;
        let is_coarse = s.alpha_bits == COARSE_ALPHA_BITS;
        let g_1024ths = s.dce_tcp_g as u32;
        let max_alpha_q31 = if is_coarse { COARSE_MAX_Q31 } else { ALPHA_ONE };
        let clamp = if is_firmware {
            CLAMP_AFTER_BYTES
                | if s.clamp_tgt_rate != 0 { CLAMP_ALWAYS } else { 0 }
                | if s.clamp_tgt_rate_after_time_inc != 0 { CLAMP_AFTER_TIME } else { 0 }
        } else {
            CLAMP_ALWAYS
        };
        let period_ns = s.rate_reduce_monitor_period_ns;
        Self {
            line_rate_bps,
            min_rate_bps: s.rpg_min_rate_bps.min(line_rate_bps),
            ai_rate_bps: s.rpg_ai_rate_bps,
            hai_rate_bps: s.rpg_hai_rate_bps,
            first_cnp_rate_bps: if is_firmware { s.rate_to_set_on_first_cnp_bps } else { 0 },
            time_reset_ns: s.rpg_time_reset_ns,
            byte_reset_bytes: s.rpg_byte_reset_bytes,
            alpha_period_ns: s.dce_tcp_rtt_ns,
            cut_period_ns: if is_firmware { period_ns } else { 0 },
            guard_ns: if is_firmware { 0 } else { period_ns },
            threshold: s.rpg_threshold as u32,
            count_first: u32::from(!is_firmware),
            max_hyper: if is_firmware { 1 } else { MAX_HYPER },
            clamp,
            cut_shift: 31 + (s.rpg_gd as u32).saturating_sub(10),
            min_dec_percent: s.rpg_min_dec_fac as u32,
            gain_q31: (1024 - g_1024ths) << 21,
            initial_alpha_q31: ((s.initial_alpha_value as u32) << 21).min(max_alpha_q31),
            max_alpha_q31,
            alpha_is_coarse: u32::from(is_coarse),
            decay_q31: decay_powers(g_1024ths),
            coarse_decay: if is_coarse {
                coarse_steps(g_1024ths)
            } else {
                CoarseDecay([[0; 1024]; COARSE_STEPS])
            },
        }
    }
}
