//! Derivation of the rate machine's and WRED's parameters, with all divisions precomputed.

use super::{COARSE_ALPHA_BITS, Config, RP_VARIANT_FIRMWARE, WredConfig};
use crate::rate::{
    ALPHA_ONE, CLAMP_AFTER_BYTES, CLAMP_AFTER_TIME, CLAMP_ALWAYS, COARSE_MAX_Q31, COARSE_STEPS, CoarseDecay,
    MAX_HYPER, RpParams, coarse_steps, decay_powers,
};
use crate::wred::Wred;

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

impl Wred {
    /// Computes the slope; `config` is valid.
    pub const fn new(config: &WredConfig) -> Self {
        let span_bytes = config.kmax_bytes.saturating_sub(config.kmin_bytes);
        // pmax_ppm ≤ 10^6 < 2^20, so the product stays below 2^60 with 40 fractional bits; 8 more follow by the shift
        // of a quotient. A span below 2^8 bytes is finer than any packet: the lost bits do not matter.
        let p_q40 = config.pmax_ppm * (1 << 40) / 1_000_000;
        let slope_q48 = match (p_q40 << 8).checked_div(span_bytes) {
            Some(slope_q48) => slope_q48,
            None => 0,
        };
        Self { kmin_bytes: config.kmin_bytes, kmax_bytes: config.kmax_bytes, slope_q48, enabled: config.ecn }
    }
}
