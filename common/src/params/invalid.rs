//! Why a configuration is refused.

use core::fmt;

use super::{Spec, Unit};

/// The first thing wrong with a configuration: what, its value and what is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// A value outside its range; `tc` names the class of a per-class parameter.
    #[expect(missing_docs, reason = "the fields are the parameter's own")]
    Range { key: &'static str, tc: Option<usize>, value: u64, min: u64, max: u64, unit: Unit },
    /// Thresholds in the wrong order.
    #[expect(missing_docs, reason = "the fields are the parameters' own")]
    KminAboveKmax { tc: usize, kmin_bytes: u64, kmax_bytes: u64 },
    /// A rate the link cannot carry.
    #[expect(missing_docs, reason = "the fields are the parameters' own")]
    AboveLink { key: &'static str, rate_bps: u64, link_rate_bps: u64 },
    /// An entry of `dscp_to_tc` or `tc_to_queue` that names no class or queue.
    #[expect(missing_docs, reason = "the fields are the table's own")]
    Table { table: &'static str, index: usize, value: u8, max: usize },
    /// A byte counter that would fire several times in one packet.
    #[expect(missing_docs, reason = "the fields are the parameter's own")]
    ByteResetTooSmall { bytes: u64, min: u64 },
}

impl Invalid {
    /// `key` of `specs` is out of its range although [`Spec::min`] alone allows it (0 has a meaning of its own there).
    pub(super) fn range<T>(
        specs: &'static [Spec<T>],
        key: &'static str,
        value: u64,
        tc: Option<usize>,
    ) -> Self {
        let (max, unit) = Spec::find(specs, key).map_or((0, Unit::Count), |spec| (spec.max, spec.unit));
        let min = match unit {
            Unit::BitsPerSecond => super::MIN_RATE_BPS,
            _ => 1_000,
        };
        Self::Range { key, tc, value, min, max, unit }
    }
}

/// A value in its parameter's unit, as people write it.
#[derive(Clone, Copy, Debug)]
pub struct Quantity(pub u64, pub Unit);

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value, unit) = *self;
        let scaled = |f: &mut fmt::Formatter<'_>, steps: &[(u64, &str)]| {
            for &(scale, suffix) in steps {
                if value >= scale && value % (scale / 1_000).max(1) == 0 {
                    let (whole, rest) = (value / scale, value % scale);
                    if rest == 0 {
                        return write!(f, "{whole}{suffix}");
                    }
                    let mut digits = rest / (scale / 1_000).max(1);
                    let mut width = 3;
                    while digits % 10 == 0 {
                        digits /= 10;
                        width -= 1;
                    }
                    return write!(f, "{whole}.{digits:0width$}{suffix}");
                }
            }
            write!(f, "{value}{}", steps.last().map_or("", |step| step.1))
        };
        match unit {
            Unit::Bytes => scaled(f, &[(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "KB"), (1, "B")]),
            Unit::BitsPerSecond => {
                scaled(f, &[(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1_000, "kbit"), (1, "bit")])
            }
            Unit::Nanoseconds => scaled(f, &[(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")]),
            Unit::PartsPerMillion => {
                let (whole, mut rest, mut width) = (value / 10_000, value % 10_000, 4);
                if rest == 0 {
                    return write!(f, "{whole}%");
                }
                while rest % 10 == 0 {
                    rest /= 10;
                    width -= 1;
                }
                write!(f, "{whole}.{rest:0width$}%")
            }
            Unit::Count => write!(f, "{value}"),
            Unit::Switch => f.write_str(if value == 0 { "false" } else { "true" }),
            Unit::Choice(words) => match usize::try_from(value).ok().and_then(|i| words.get(i)) {
                Some(word) => f.write_str(word),
                None => write!(f, "{value}"),
            },
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Range { key, tc, value, min, max, unit } => {
                if let Some(tc) = tc {
                    write!(f, "wred.{tc}.")?;
                }
                let (value, min, max) = (Quantity(value, unit), Quantity(min, unit), Quantity(max, unit));
                write!(f, "{key} = {value} is out of range: allowed is {min} to {max}")
            }
            Self::KminAboveKmax { tc, kmin_bytes, kmax_bytes } => {
                let (kmin, kmax) = (Quantity(kmin_bytes, Unit::Bytes), Quantity(kmax_bytes, Unit::Bytes));
                write!(f, "wred.{tc}.kmin = {kmin} is above wred.{tc}.kmax = {kmax}: lower kmin or raise kmax")
            }
            Self::AboveLink { key, rate_bps, link_rate_bps } => {
                let rate = Quantity(rate_bps, Unit::BitsPerSecond);
                let link = Quantity(link_rate_bps, Unit::BitsPerSecond);
                write!(f, "{key} = {rate} is above the link's {link}: lower it, or set link_rate if that is wrong")
            }
            Self::Table { table, index, value, max } => {
                write!(f, "{table}.{index} = {value} is out of range: allowed is 0 to {max}")
            }
            Self::ByteResetTooSmall { bytes, min } => {
                let (bytes, min) = (Quantity(bytes, Unit::Bytes), Quantity(min, Unit::Bytes));
                write!(f, "rpg_byte_reset = {bytes} is too small: allowed is 0 (off) or {min} and more")
            }
        }
    }
}

impl core::error::Error for Invalid {}
