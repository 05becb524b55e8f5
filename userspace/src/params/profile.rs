//! Named sets of parameters.

use clap::ValueEnum;
use dcqcn_common::params::{Config, Quantity, Scalars, Spec, Unit};
use serde::{Deserialize, Serialize};

/// A named set of parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// The parameters of the DCQCN paper, for links of 10 to 100 Gb/s.
    #[default]
    Paper,
    /// The paper's dynamics slowed down to a link of 1 Gb/s or less.
    Lab,
}

/// Why a profile says nothing for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The profile depends on a rate that is not known.
    #[error(
        "profile `lab` depends on the link's rate, which is not known: set it, as in `link_rate=200mbit`"
    )]
    NoRate,
    /// The link is too fast for it.
    #[error(
        "profile `lab` is for links up to {}, this one has {}: use profile `paper`",
        Quantity(Profile::MAX_LAB_RATE_BPS, Unit::BitsPerSecond), Quantity(*.0, Unit::BitsPerSecond)
    )]
    TooFast(u64),
}

/// The link the paper's parameters were chosen for (DCQCN, SIGCOMM'15, section 5: 40 Gb/s).
const PAPER_RATE_BPS: u64 = 40_000_000_000;
/// Pmax of `lab`: 10 %.
const LAB_PMAX_PPM: u64 = 100_000;
/// s on the fastest link of `lab`.
const LAB_DILATION: u64 = 40;
/// Times: T, tau, tau' and the shortest time between cuts grow as the link shrinks.
const TIMES: [&str; 4] =
    ["min_time_between_cnps", "rpg_time_reset", "rate_reduce_monitor_period", "dce_tcp_rtt"];
/// Rates: R_AI, R_HAI and the lowest rate shrink with the link.
const RATES: [&str; 3] = ["rpg_ai_rate", "rpg_hai_rate", "rpg_min_rate"];

impl Profile {
    /// Fastest link `lab` is for. Above it the paper's own parameters serve: at 10 Gb/s two flows still have their fixed
    /// point on the linear part of the marking curve, at 1 Gb/s no more.
    pub const MAX_LAB_RATE_BPS: u64 = 1_000_000_000;

    /// Its parameters for a link of `link_bps`.
    ///
    /// `paper` is [`Config::DEFAULT`] on every link.
    ///
    /// `lab` is `paper` dilated in time by s = 40 · sqrt(1 Gb/s / link): the timers are multiplied by s, R_AI, R_HAI and the floor have
    /// the same share of the link as on 40 Gb/s, each kept within its range; bytes (Kmin, Kmax, the byte counter) stay.
    ///
    /// The fluid model of DCQCN ("ECN or Delay", CoNEXT'16) is invariant if C·T, C·tau, C·tau', R_AI/C and B are kept.
    /// With s = 40 a link of 1 Gb/s then behaves as one of 40 Gb/s does: the same queue in bytes, and a loop that is
    /// stable with 40 times the delay, which is what a loop in software has. (With the paper's own numbers two flows on
    /// 1 Gb/s need a marking probability of 7.7 %, above Pmax, and the queue sits at Kmax.) On slower links the same
    /// dilation would make convergence as slow as the link, many seconds, while the delay of a loop in software grows
    /// less; the square root is between the two. Measured with `dcqcn lab incast` (10 s, the first 2 s left out):
    ///
    /// | link, senders | share of the link | Jain | drops | queue p99 |
    /// |---|---|---|---|---|
    /// | 1 Gb/s, 4 | 92 % | 0.999 | 59 | 162 KB |
    /// | 200 Mb/s, 4 | 98 % | 0.993 | 0 | 125 KB |
    /// | 200 Mb/s, 16 | 95 % | 1.000 | 0 | 262 KB |
    /// | 100 Mb/s, 2 | 97 % | 0.999 | 0 | 62 KB |
    /// | 40 Mb/s, 4 | 96 % | 0.991 | 0 | 191 KB |
    ///
    /// Pmax is 10 %: the model counts in packets of 1 KB, and with 4 KB ones a quarter as many pass in each
    /// CNP interval, so that the same signal takes four times the probability; the rest is room for more flows.
    ///
    /// # Errors
    /// `lab` needs to know the rate, and that it is at most 1 Gb/s.
    pub fn config(self, link_bps: Option<u64>) -> Result<Config, ProfileError> {
        let mut config = Config::DEFAULT;
        if self == Self::Paper {
            return Ok(config);
        }
        let link_bps = link_bps.filter(|bps| *bps != 0).ok_or(ProfileError::NoRate)?;
        if link_bps > Self::MAX_LAB_RATE_BPS {
            return Err(ProfileError::TooFast(link_bps));
        }
        for wred in &mut config.wred {
            wred.pmax_ppm = LAB_PMAX_PPM;
        }
        // s in millionths: 10^9 · 10^12 / 1 bit/s, below 2^70, is why 128 bits.
        let root = (u128::from(Self::MAX_LAB_RATE_BPS) * 1_000_000_000_000 / u128::from(link_bps)).isqrt();
        let s_millionths = LAB_DILATION * u64::try_from(root).unwrap_or(u64::MAX / LAB_DILATION);
        for spec in Scalars::SPECS {
            if TIMES.contains(&spec.key) {
                scale(spec, &mut config.scalars, s_millionths, 1_000_000);
            } else if RATES.contains(&spec.key) {
                scale(spec, &mut config.scalars, link_bps, PAPER_RATE_BPS);
            }
        }
        Ok(config)
    }
}

/// Multiplies a parameter by `numerator / denominator` (not 0), rounded to nearest, within its range.
fn scale(spec: &Spec<Scalars>, scalars: &mut Scalars, numerator: u64, denominator: u64) {
    let (numerator, denominator) = (u128::from(numerator), u128::from(denominator));
    let scaled = (u128::from((spec.get)(scalars)) * numerator + denominator / 2) / denominator;
    (spec.set)(scalars, u64::try_from(scaled).unwrap_or(u64::MAX).clamp(spec.min, spec.max));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lab_at_1_gbit_is_the_paper_forty_times_slower() {
        let s = Profile::Lab.config(Some(1_000_000_000)).unwrap().scalars;
        assert_eq!(s.min_time_between_cnps_ns, 2_000_000);
        assert_eq!((s.rpg_time_reset_ns, s.dce_tcp_rtt_ns), (2_200_000, 2_200_000));
        assert_eq!((s.rpg_ai_rate_bps, s.rpg_hai_rate_bps), (1_000_000, 5_000_000));
        assert_eq!(s.rpg_min_rate_bps, 250_000);
        assert_eq!(s.rpg_byte_reset_bytes, Scalars::DEFAULT.rpg_byte_reset_bytes);
        assert_eq!(Profile::Paper.config(None), Ok(Config::DEFAULT));
    }

    #[test]
    fn lab_names_keys_that_exist_and_the_links_it_is_for() {
        for key in TIMES.iter().chain(&RATES) {
            assert!(Spec::find(Scalars::SPECS, key).is_some(), "{key}");
        }
        assert_eq!(Profile::Lab.config(None), Err(ProfileError::NoRate));
        assert_eq!(Profile::Lab.config(Some(0)), Err(ProfileError::NoRate));
        let refused = Profile::Lab.config(Some(10_000_000_000)).unwrap_err().to_string();
        assert!(refused.contains("up to 1gbit, this one has 10gbit"), "{refused}");
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
