//! Named sets of parameters.

use clap::ValueEnum;
use dcqcn_common::params::{
    Allowed, COARSE_ALPHA_BITS, Config, MIN_RATE_BPS, NP_WINDOW_START, Quantity, RP_VARIANT_FIRMWARE,
    Scalars, Spec, Unit, WredConfig,
};
use serde::{Deserialize, Serialize};

/// A named set of parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// The DCQCN paper's machine and values, for links of 10 to 100 Gbit/s.
    #[default]
    Paper,
    /// NVIDIA's firmware: its machine, 10-bit alpha and default values.
    Nvidia,
    /// HPCC's simulator: the firmware's machine, values that scale with the link.
    Hpcc,
    /// Intel's irdma: the firmware's machine with the values of its driver.
    Irdma,
    /// The paper's dynamics slowed down for links of 1 Gbit/s or less.
    Lab,
    /// `lab` on links of up to 1 Gbit/s, `paper` on faster ones; resolved when attaching.
    Auto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    #[error("profile `{0}` depends on the link's rate, which is unknown; set it, as in `link_rate=200mbit`")]
    NoRate(&'static str),
    #[error(
        "profile `lab` is for links up to {}, this one has {}: use profile `paper`, or correct `link_rate`",
        Quantity(Profile::MAX_LAB_RATE_BPS, Unit::BitsPerSecond), Quantity(*.0, Unit::BitsPerSecond)
    )]
    TooFast(u64),
    #[error(
        "profile `hpcc` is for links of {} and more, this one has {}: use profile `lab`",
        Quantity(Profile::MIN_HPCC_RATE_BPS, Unit::BitsPerSecond), Quantity(*.0, Unit::BitsPerSecond)
    )]
    TooSlow(u64),
}

/// The link for which the paper's parameters were chosen (DCQCN, SIGCOMM'15, section 5: 40 Gbit/s).
const PAPER_RATE_BPS: u64 = 40_000_000_000;
/// The link to which HPCC's parameters are scaled (`run.py` of its simulator: `bw / 25`).
const HPCC_RATE_BPS: u64 = 25_000_000_000;
/// Pmax of `lab` on its fastest link: 10 %.
const LAB_PMAX_PPM: u64 = 100_000;
/// Highest Pmax of `lab`, for 40 Mbit/s and less.
///
/// Late packets of a machine arrive in bursts, which a steeper curve would mark. soft-RoCE in a virtual
/// machine reached 93 to 95 % of 20 Mbit/s with 50 %, and 88 to 93 % with 71 % (on a busier machine).
const LAB_MAX_PMAX_PPM: u64 = 500_000;
/// Dilation s on the fastest link of `lab`.
const LAB_DILATION: u64 = 40;
/// Times that are multiplied by s: T, tau, tau' and the minimum time between cuts.
const TIMES: [&str; 4] =
    ["min_time_between_cnps", "rpg_time_reset", "rate_reduce_monitor_period", "dce_tcp_rtt"];
/// Rates that scale with the link: R_AI, R_HAI and the lowest rate.
const RATES: [&str; 3] = ["rpg_ai_rate", "rpg_hai_rate", "rpg_min_rate"];

const US: u64 = 1_000;
const KB: u64 = 1_000;
const MBIT: u64 = 1_000_000;

impl Profile {
    /// Fastest link of `lab`. Above it the paper's own parameters work: at 10 Gbit/s two flows still have their fixed
    /// point on the linear part of the marking curve, at 1 Gbit/s they do not.
    pub const MAX_LAB_RATE_BPS: u64 = 1_000_000_000;
    /// Slowest link of `hpcc`: its lowest rate is 1 Gbit/s.
    pub(crate) const MIN_HPCC_RATE_BPS: u64 = 10_000_000_000;

    /// Parameters for a link of `link_bps`; each profile's function documents the values.
    pub fn config(self, link_bps: Option<u64>) -> Result<Config, ProfileError> {
        let link_bps = link_bps.filter(|bps| *bps != 0);
        match self {
            Self::Paper => Ok(Config::DEFAULT),
            Self::Nvidia => Ok(nvidia()),
            Self::Hpcc => hpcc(link_bps.ok_or(ProfileError::NoRate("hpcc"))?),
            Self::Irdma => Ok(irdma()),
            Self::Lab => lab(link_bps.ok_or(ProfileError::NoRate("lab"))?),
            Self::Auto => self.for_link(link_bps).config(link_bps),
        }
    }

    /// Resolves `auto` for a link of `link_bps`, with `paper` for an unknown rate; other profiles are unchanged.
    #[must_use]
    pub fn for_link(self, link_bps: Option<u64>) -> Self {
        match (self, link_bps) {
            (Self::Auto, Some(1..=Self::MAX_LAB_RATE_BPS)) => Self::Lab,
            (Self::Auto, _) => Self::Paper,
            (profile, _) => profile,
        }
    }
}

/// `nvidia`: the defaults of ConnectX firmware, as NVIDIA's "DCQCN parameters" page and `mlxconfig` list them.
///
/// The unit of `rpg_byte_reset`, 64 bytes, is isekai's reading; the field has 15 bits. Marking is the
/// switch's and stays `paper`'s.
fn nvidia() -> Config {
    let mut config = Config::DEFAULT;
    let s = &mut config.scalars;
    s.rp_variant = RP_VARIANT_FIRMWARE;
    s.alpha_bits = COARSE_ALPHA_BITS;
    s.dce_tcp_g = 1_019;
    s.dce_tcp_rtt_ns = US;
    s.initial_alpha_value = 1_023;
    s.rate_reduce_monitor_period_ns = 4 * US;
    s.rpg_gd = 11;
    s.rpg_min_dec_fac = 50;
    s.rpg_time_reset_ns = 300 * US;
    s.rpg_byte_reset_bytes = 32_767 * 64;
    s.rpg_threshold = 1;
    s.rpg_ai_rate_bps = 5 * MBIT;
    s.rpg_hai_rate_bps = 50 * MBIT;
    s.rpg_min_rate_bps = MBIT;
    s.clamp_tgt_rate = 0;
    s.clamp_tgt_rate_after_time_inc = 1;
    s.rate_to_set_on_first_cnp_bps = 0;
    s.min_time_between_cnps_ns = 4 * US;
    s.np_window = NP_WINDOW_START;
    s.cnp_dscp = 48;
    s.cnp_802p_prio = 6;
    config
}

/// `hpcc`: `dcqcn` of HPCC's simulator (SIGCOMM'19; its `run.py`, `rdma-hw.cc` and `mix/config.txt`).
///
/// On a link of `link_bps` = k · 25 Gbit/s, R_AI, R_HAI, Kmin and Kmax grow with k. No CNP is suppressed:
/// there, the ACK of every marked packet carries the mark.
fn hpcc(link_bps: u64) -> Result<Config, ProfileError> {
    if link_bps < Profile::MIN_HPCC_RATE_BPS {
        return Err(ProfileError::TooSlow(link_bps));
    }
    let mut config = Config::DEFAULT;
    let s = &mut config.scalars;
    s.rp_variant = RP_VARIANT_FIRMWARE;
    s.dce_tcp_g = 1_020;
    s.dce_tcp_rtt_ns = US;
    s.initial_alpha_value = 1_024;
    s.rate_reduce_monitor_period_ns = 4 * US;
    s.rpg_time_reset_ns = 300 * US;
    s.rpg_byte_reset_bytes = 0;
    s.rpg_threshold = 1;
    s.rpg_ai_rate_bps = 5 * MBIT;
    s.rpg_hai_rate_bps = 50 * MBIT;
    s.rpg_min_rate_bps = 1_000 * MBIT;
    s.clamp_tgt_rate = 0;
    s.clamp_tgt_rate_after_time_inc = 1;
    s.min_time_between_cnps_ns = 0;
    scale(Scalars::SPECS, &["rpg_ai_rate", "rpg_hai_rate"], s, link_bps, HPCC_RATE_BPS);
    for wred in &mut config.wred {
        (wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm) = (100 * KB, 400 * KB, 200_000);
        scale(WredConfig::SPECS, &["kmin", "kmax"], wred, link_bps, HPCC_RATE_BPS);
    }
    Ok(config)
}

/// `irdma`: the congestion control defaults of Intel's irdma driver (its FreeBSD and out-of-tree sources).
///
/// T is 0x37 us and B 0x249f0 bytes there. R_AI and R_HAI are `paper`'s: the NIC counts in windows, which a
/// rate machine lacks. Its lowest rate, 0, is below the range here; other values are not published.
fn irdma() -> Config {
    let mut config = Config::DEFAULT;
    let s = &mut config.scalars;
    s.rp_variant = RP_VARIANT_FIRMWARE;
    s.rpg_threshold = 5;
    s.rpg_time_reset_ns = 55 * US;
    s.rpg_byte_reset_bytes = 150 * KB;
    s.rate_reduce_monitor_period_ns = 50 * US;
    s.rpg_min_dec_fac = 1;
    s.rpg_min_rate_bps = MIN_RATE_BPS;
    config
}

/// `lab` is `paper` dilated in time by s = 40 · sqrt(1 Gbit/s / link).
///
/// The timers are multiplied by s, and R_AI, R_HAI and the floor have the same share of the link as at 40
/// Gbit/s, each clamped to its range; bytes (Kmin, Kmax, the byte counter) are unchanged. Pmax is 10 % · s /
/// 40, at most 50 %.
///
/// The fluid model of DCQCN ("ECN or Delay", CoNEXT'16) is invariant if C·T, C·tau, C·tau', R_AI/C and B are constant.
/// With s = 40 a link of 1 Gbit/s therefore behaves like one of 40 Gbit/s: the same queue in bytes, and a loop that is
/// stable with 40 times the delay, which is typical of software. (With the paper's own values two flows on 1 Gbit/s
/// need a marking probability of 7.7 %, above Pmax, and the queue stays at Kmax.) On slower links the same dilation
/// would make convergence as slow as the link, many seconds, while the delay of a software loop grows less; the square
/// root is a compromise.
///
/// Pmax is 10 % at 1 Gbit/s: the model counts in packets of 1 KB, and with 4 KB a quarter as many pass in each CNP
/// interval, so the same signal takes four times the probability; the rest leaves room for more flows. On slower links
/// it grows with s: the delay of a queue grows with 1/link, but a period only with 1/sqrt(link). With a constant Pmax
/// the fixed point would be more and more periods of delay away, and rates would oscillate. With a growing Pmax, the
/// same delay in periods marks the same share of packets on every link down to 40 Mbit/s. `dcqcn-lab sim incast
/// --profile lab --loop-delay 1ms --mtu 1024B --timeout 1s --buffer 200KB --duration 60s --warm-up 15s` compares them:
/// with a constant Pmax, 16 senders fill the buffer on links up to 40 Mbit/s.
fn lab(link_bps: u64) -> Result<Config, ProfileError> {
    if link_bps > Profile::MAX_LAB_RATE_BPS {
        return Err(ProfileError::TooFast(link_bps));
    }
    let mut config = Config::DEFAULT;
    // s in millionths: 10^9 · 10^12 / 1 bit/s, below 2^70, needs 128 bits.
    let root = (u128::from(Profile::MAX_LAB_RATE_BPS) * 1_000_000_000_000 / u128::from(link_bps)).isqrt();
    let root_millionths = u64::try_from(root).unwrap_or(u64::MAX / LAB_DILATION);
    let s_millionths = LAB_DILATION * root_millionths;
    for wred in &mut config.wred {
        wred.pmax_ppm = LAB_PMAX_PPM;
        scale(WredConfig::SPECS, &["pmax"], wred, root_millionths, 1_000_000);
        wred.pmax_ppm = wred.pmax_ppm.min(LAB_MAX_PMAX_PPM);
    }
    scale(Scalars::SPECS, &TIMES, &mut config.scalars, s_millionths, 1_000_000);
    scale(Scalars::SPECS, &RATES, &mut config.scalars, link_bps, PAPER_RATE_BPS);
    Ok(config)
}

/// Multiplies the parameters `keys` by `numerator / denominator` (not 0), rounded to nearest, within their ranges.
fn scale<T>(specs: &[Spec<T>], keys: &[&str], values: &mut T, numerator: u64, denominator: u64) {
    let (numerator, denominator) = (u128::from(numerator), u128::from(denominator));
    for spec in specs.iter().filter(|spec| keys.contains(&spec.key)) {
        let scaled = (u128::from((spec.get)(values)) * numerator + denominator / 2) / denominator;
        let Allowed { min, max, .. } = spec.allowed;
        (spec.set)(values, u64::try_from(scaled).unwrap_or(u64::MAX).clamp(min, max));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lab_at_1g_is_paper_times_forty() {
        let s = Profile::Lab.config(Some(1_000_000_000)).unwrap().scalars;
        assert_eq!(s.min_time_between_cnps_ns, 2_000_000);
        assert_eq!((s.rpg_time_reset_ns, s.dce_tcp_rtt_ns), (2_200_000, 2_200_000));
        assert_eq!((s.rpg_ai_rate_bps, s.rpg_hai_rate_bps), (1_000_000, 5_000_000));
        assert_eq!(s.rpg_min_rate_bps, 250_000);
        assert_eq!(s.rpg_byte_reset_bytes, Scalars::DEFAULT.rpg_byte_reset_bytes);
        assert_eq!(Profile::Paper.config(None), Ok(Config::DEFAULT));
    }

    #[test]
    fn auto_is_lab_up_to_1_gbit_and_paper_above() {
        for (link_bps, profile) in [
            (None, Profile::Paper),
            (Some(0), Profile::Paper),
            (Some(200_000_000), Profile::Lab),
            (Some(1_000_000_000), Profile::Lab),
            (Some(1_000_000_001), Profile::Paper),
            (Some(100_000_000_000), Profile::Paper),
        ] {
            assert_eq!(Profile::Auto.for_link(link_bps), profile, "{link_bps:?}");
            assert_eq!(Profile::Auto.config(link_bps), profile.config(link_bps), "{link_bps:?}");
        }
        assert_eq!(Profile::Nvidia.for_link(Some(1)), Profile::Nvidia);
    }

    #[test]
    fn lab_marks_more_on_slower_links() {
        for (link_bps, pmax_ppm) in
            [(1_000_000_000, 100_000), (250_000_000, 200_000), (40_000_000, 500_000), (10_000_000, 500_000)]
        {
            let wred = Profile::Lab.config(Some(link_bps)).unwrap().wred[3];
            assert_eq!(wred.pmax_ppm, pmax_ppm, "{link_bps}");
            assert_eq!((wred.kmin_bytes, wred.kmax_bytes), (5_000, 200_000));
        }
    }

    #[test]
    fn lab_description_names_keys_and_links() {
        for key in TIMES.iter().chain(&RATES) {
            assert!(Spec::find(Scalars::SPECS, key).is_some(), "{key}");
        }
        assert_eq!(Profile::Lab.config(None), Err(ProfileError::NoRate("lab")));
        assert_eq!(Profile::Lab.config(Some(0)), Err(ProfileError::NoRate("lab")));
        let refused = Profile::Lab.config(Some(10_000_000_000)).unwrap_err().to_string();
        assert!(refused.contains("up to 1gbit, this one has 10gbit"), "{refused}");
        // A virtual interface's speed is its driver's default.
        assert!(refused.ends_with("use profile `paper`, or correct `link_rate`"), "{refused}");
    }

    #[test]
    fn hpcc_scales_with_link() {
        let config = Profile::Hpcc.config(Some(100_000_000_000)).unwrap();
        let s = config.scalars;
        assert_eq!((s.rpg_ai_rate_bps, s.rpg_hai_rate_bps), (20_000_000, 200_000_000));
        let wred = config.wred[3];
        assert_eq!((wred.kmin_bytes, wred.kmax_bytes, wred.pmax_ppm), (400_000, 1_600_000, 200_000));
        assert_eq!(Profile::Hpcc.config(None), Err(ProfileError::NoRate("hpcc")));
        let refused = Profile::Hpcc.config(Some(1_000_000_000)).unwrap_err().to_string();
        assert!(refused.contains("of 10gbit and more, this one has 1gbit"), "{refused}");
    }

    #[test]
    fn profiles_valid_on_their_links() {
        for &profile in Profile::value_variants() {
            let link_bps = if profile == Profile::Lab { 1_000_000_000 } else { 25_000_000_000 };
            let mut config = profile.config(Some(link_bps)).unwrap();
            assert_eq!(config.validate(), Ok(()), "{profile:?}");
            config.scalars.link_rate_bps = link_bps;
            assert_eq!(config.validate(), Ok(()), "{profile:?}");
        }
    }

    proptest! {
        #[test]
        fn every_lab_is_valid(link_bps in 100_000u64..=1_000_000_000) {
            let mut config = Profile::Lab.config(Some(link_bps)).unwrap();
            prop_assert_eq!(config.validate(), Ok(()));
            config.scalars.link_rate_bps = link_bps;
            prop_assert_eq!(config.validate(), Ok(()));
        }
    }
}
