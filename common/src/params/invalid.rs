//! Validation errors of a configuration.

use core::fmt;

use super::Unit;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Wred,
    Queue,
    Pfc,
    DscpToTc,
    TcToQueue,
}

impl Table {
    const fn name(self) -> &'static str {
        match self {
            Self::Wred => "wred",
            Self::Queue => "queue",
            Self::Pfc => "pfc",
            Self::DscpToTc => "dscp_to_tc",
            Self::TcToQueue => "tc_to_queue",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Of the port.
    Scalar(&'static str),
    /// In a row of a table: of a class, queue or priority.
    Row(Table, u8, &'static str),
    /// An entry of a table.
    Entry(Table, u8),
}

/// The first violation in a configuration, with value and allowed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// A value outside its range.
    Range { name: Name, value: u64, allowed: Allowed },
    /// Two values in the wrong order; `high` is in the row of `low`.
    Order { low: Name, low_value: u64, high: &'static str, high_value: u64, unit: Unit },
    /// The port has its own queues, and `priority_major` names the classes of another qdisc.
    TwoQdiscs { priority_major: u64 },
    /// A backlog that contains packets held by the pacer: marking them would keep their flows at the lowest rate.
    OwnBacklog,
    /// A rate the link cannot carry.
    AboveLink { key: &'static str, rate_bps: u64, link_rate_bps: u64 },
    /// A rate at the first CNP below the lowest rate.
    FirstBelowMin { first_rate_bps: u64, min_rate_bps: u64 },
    /// The `firmware` variant without a period between its cuts.
    NoCutPeriod { period_ns: u64 },
    /// Trimmed packets would queue behind the packets they replace.
    TrimmedClass { dscp: u64, tc: usize },
}

impl Name {
    /// The name without its table.
    const fn key(self) -> &'static str {
        match self {
            Self::Scalar(key) | Self::Row(_, _, key) => key,
            Self::Entry(table, _) => table.name(),
        }
    }

    /// The parameter `key` in the same row.
    pub const fn with_key(self, key: &'static str) -> Self {
        match self {
            Self::Row(table, row, _) => Self::Row(table, row, key),
            Self::Scalar(_) | Self::Entry(..) => Self::Scalar(key),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Scalar(key) => f.write_str(key),
            Self::Row(table, row, key) => write!(f, "{}.{row}.{key}", table.name()),
            Self::Entry(table, index) => write!(f, "{}.{index}", table.name()),
        }
    }
}

/// A value in its parameter's unit, formatted for people.
#[derive(Clone, Copy, Debug)]
pub struct Quantity(pub u64, pub Unit);

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value, unit) = *self;
        let scaled = |f: &mut fmt::Formatter<'_>, suffixes: [&str; 4]| {
            let scales = [1_000_000_000, 1_000_000, 1_000, 1];
            // With at most three decimals.
            let fits = |&scale: &u64| value >= scale && value % (scale / 1_000).max(1) == 0;
            let at = scales.iter().position(fits).unwrap_or(3);
            decimal(f, value, scales[at], suffixes[at])
        };
        match unit {
            Unit::Bytes => scaled(f, ["GB", "MB", "KB", "B"]),
            Unit::BitsPerSecond => scaled(f, ["gbit", "mbit", "kbit", "bit"]),
            Unit::Nanoseconds => scaled(f, ["s", "ms", "us", "ns"]),
            Unit::PartsPerMillion => decimal(f, value, 10_000, "%"),
            Unit::Count | Unit::OneOf(_) => write!(f, "{value}"),
            Unit::Switch => f.write_str(if value == 0 { "false" } else { "true" }),
            Unit::Choice(words) => match usize::try_from(value).ok().and_then(|i| words.get(i)) {
                Some(word) => f.write_str(word),
                None => write!(f, "{value}"),
            },
        }
    }
}

/// Writes `value / scale`, a power of ten, without trailing zeros.
fn decimal(f: &mut fmt::Formatter<'_>, value: u64, scale: u64, suffix: &str) -> fmt::Result {
    let (whole, mut rest, mut width) = (value / scale, value % scale, scale.ilog10() as usize);
    if rest == 0 {
        return write!(f, "{whole}{suffix}");
    }
    while rest % 10 == 0 {
        rest /= 10;
        width -= 1;
    }
    write!(f, "{whole}.{rest:0width$}{suffix}")
}

/// Allowed values of a parameter, formatted for people: `0B to 1GB`, `1us to 10s, or 0`, `10 or 31`, `none, fq, htb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    pub min: u64,
    /// Smallest value other than 0, if that is not `min` or its successor; else 0.
    pub min_nonzero: u64,
    pub max: u64,
    pub unit: Unit,
}

impl Allowed {
    pub fn contains(self, value: u64) -> bool {
        let is_listed = match self.unit {
            Unit::OneOf(numbers) => numbers.contains(&value),
            _ => true,
        };
        let is_in_gap = value != 0 && value < self.min_nonzero;
        (self.min..=self.max).contains(&value) && !is_in_gap && is_listed
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, min_nonzero, max, unit } = *self;
        match unit {
            Unit::Switch => f.write_str("true, false"),
            Unit::Choice(words) => list(f, words, ", "),
            Unit::OneOf(numbers) => list(f, numbers, " or "),
            _ if min_nonzero != 0 => {
                write!(f, "{} to {}, or 0", Quantity(min_nonzero, unit), Quantity(max, unit))
            }
            _ => write!(f, "{} to {}", Quantity(min, unit), Quantity(max, unit)),
        }
    }
}

fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T], separator: &str) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        let before = if index == 0 { "" } else { separator };
        write!(f, "{before}{item}")?;
    }
    Ok(())
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Range { name, value, allowed } => {
                write!(f, "{name} = {} is out of range: {allowed}", Quantity(value, allowed.unit))
            }
            Self::Order { low, low_value, high, high_value, unit } => {
                let (below, above, high) = (low.key(), high, low.with_key(high));
                let (low_value, high_value) = (Quantity(low_value, unit), Quantity(high_value, unit));
                write!(f, "{low} = {low_value} is above {high} = {high_value}: lower {below} or raise {above}")
            }
            Self::TwoQdiscs { priority_major } => write!(
                f,
                "priority_major = {priority_major} names the classes of another qdisc than the port's queues: set it to 0, or \
                 attach without --queues"
            ),
            Self::OwnBacklog => f.write_str(
                "queue_source = backlog counts the packets that the pacer holds as congestion: set queue_source to virtual, or \
                 attach with --pacer none",
            ),
            Self::AboveLink { key, rate_bps, link_rate_bps } => {
                let rate = Quantity(rate_bps, Unit::BitsPerSecond);
                let link = Quantity(link_rate_bps, Unit::BitsPerSecond);
                write!(
                    f,
                    "{key} = {rate} is above the link's {link}: lower it, or set link_rate if that is wrong"
                )
            }
            Self::FirstBelowMin { first_rate_bps, min_rate_bps } => {
                let first = Quantity(first_rate_bps, Unit::BitsPerSecond);
                let min = Quantity(min_rate_bps, Unit::BitsPerSecond);
                write!(
                    f,
                    "rate_to_set_on_first_cnp = {first} is below rpg_min_rate = {min}: raise it, set it to 0 (off) or lower rpg_min_rate"
                )
            }
            Self::NoCutPeriod { period_ns } => {
                let period = Quantity(period_ns, Unit::Nanoseconds);
                write!(
                    f,
                    "rate_reduce_monitor_period = {period} is too short for rp_variant = firmware: set 1us or more"
                )
            }
            Self::TrimmedClass { dscp, tc } => write!(
                f,
                "trim_dscp_value = {dscp} belongs to class {tc}, whose packets are trimmed (wred.{tc}.queue_limit): set \
                 dscp_to_tc.{dscp} to a class of its own"
            ),
        }
    }
}

impl core::error::Error for Invalid {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::format;
    use std::string::{String, ToString};

    #[test]
    fn quantities_have_readable_units() {
        for (value, unit, text) in [
            (0, Unit::Bytes, "0B"),
            (999, Unit::Bytes, "999B"),
            (1_000, Unit::Bytes, "1KB"),
            (1_030, Unit::Bytes, "1.03KB"),
            (200_000, Unit::Bytes, "200KB"),
            (1_048_576, Unit::Bytes, "1048.576KB"),
            (1_500_000, Unit::Bytes, "1.5MB"),
            (10_000_000_000, Unit::Bytes, "10GB"),
            (0, Unit::BitsPerSecond, "0bit"),
            (40_000_000, Unit::BitsPerSecond, "40mbit"),
            (2_500_000_000, Unit::BitsPerSecond, "2.5gbit"),
            (800_000_000_000, Unit::BitsPerSecond, "800gbit"),
            (1_000_000_001, Unit::BitsPerSecond, "1000000.001kbit"),
            (55_000, Unit::Nanoseconds, "55us"),
            (2_000_000, Unit::Nanoseconds, "2ms"),
            (1_001_000_000, Unit::Nanoseconds, "1.001s"),
            (4_005, Unit::Nanoseconds, "4.005us"),
            (0, Unit::PartsPerMillion, "0%"),
            (10_000, Unit::PartsPerMillion, "1%"),
            (1, Unit::PartsPerMillion, "0.0001%"),
            (125_500, Unit::PartsPerMillion, "12.55%"),
            (1_000_000, Unit::PartsPerMillion, "100%"),
            (31, Unit::Count, "31"),
            (0, Unit::Switch, "false"),
            (1, Unit::Switch, "true"),
            (1, Unit::Choice(&["qp", "peer"]), "peer"),
            (2, Unit::Choice(&["qp", "peer"]), "2"),
            (u64::MAX, Unit::Choice(&["qp", "peer"]), "18446744073709551615"),
        ] {
            assert_eq!(Quantity(value, unit).to_string(), text);
        }
    }

    /// The number that a text denotes, computed from its decimal digits.
    fn read(text: &str, suffixes: &[(&str, u32)]) -> Option<u128> {
        let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%');
        let (_, power) = suffixes.iter().find(|(suffix, _)| *suffix == &text[number.len()..])?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let missing = (*power as usize).checked_sub(fraction.len())?;
        format!("{whole}{fraction}{}", String::from_iter(std::iter::repeat_n('0', missing))).parse().ok()
    }

    proptest! {
        #[test]
        fn quantities_round_trip_exactly(value: u64, shift in 0u32..64, zeros in 0u32..12) {
            let value = (value >> shift) / 10u64.pow(zeros) * 10u64.pow(zeros);
            for (unit, suffixes) in [
                (Unit::Bytes, &[("B", 0), ("KB", 3), ("MB", 6), ("GB", 9)][..]),
                (Unit::BitsPerSecond, &[("bit", 0), ("kbit", 3), ("mbit", 6), ("gbit", 9)]),
                (Unit::Nanoseconds, &[("ns", 0), ("us", 3), ("ms", 6), ("s", 9)]),
                (Unit::PartsPerMillion, &[("%", 4)]),
                (Unit::Count, &[("", 0)]),
            ] {
                let text = Quantity(value, unit).to_string();
                prop_assert_eq!(read(&text, suffixes), Some(u128::from(value)), "{}", text);
                // Shortest form: no trailing zero in a fraction.
                let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%');
                prop_assert!(!digits.contains('.') || !digits.ends_with(['0', '.']), "{}", text);
            }
        }
    }

    #[test]
    fn error_names_key_value_and_range() {
        let range = |name, value, min, max, unit| {
            let allowed = Allowed { min, min_nonzero: 0, max, unit };
            Invalid::Range { name, value, allowed }
        };
        let kmax = |name| range(name, 2_000_000_000, 0, 1_000_000_000, Unit::Bytes);
        let rates = Allowed { min: 0, min_nonzero: 100_000, max: 800_000_000_000, unit: Unit::BitsPerSecond };
        let order = |low, low_value, high, high_value, unit| Invalid::Order {
            low,
            low_value,
            high,
            high_value,
            unit,
        };
        let row = |table, key| Name::Row(table, 3, key);
        let rate = |key| Invalid::AboveLink { key, rate_bps: 40_000_000_000, link_rate_bps: 1_000_000_000 };
        for (invalid, message) in [
            (kmax(Name::Scalar("kmax")), "kmax = 2GB is out of range: 0B to 1GB"),
            (
                Invalid::Range { name: Name::Scalar("link_rate"), value: 1_000, allowed: rates },
                "link_rate = 1kbit is out of range: 100kbit to 800gbit, or 0",
            ),
            (kmax(row(Table::Wred, "kmax")), "wred.3.kmax = 2GB is out of range: 0B to 1GB"),
            (
                order(row(Table::Wred, "kmin"), 400_000, "kmax", 200_000, Unit::Bytes),
                "wred.3.kmin = 400KB is above wred.3.kmax = 200KB: lower kmin or raise kmax",
            ),
            (
                rate("rpg_max_rate"),
                "rpg_max_rate = 40gbit is above the link's 1gbit: lower it, or set link_rate if that is wrong",
            ),
            (
                order(
                    Name::Scalar("rpg_min_rate"),
                    501_000_000,
                    "rpg_max_rate",
                    500_000_000,
                    Unit::BitsPerSecond,
                ),
                "rpg_min_rate = 501mbit is above rpg_max_rate = 500mbit: lower rpg_min_rate or raise rpg_max_rate",
            ),
            (
                range(Name::Entry(Table::DscpToTc, 26), 8, 0, 7, Unit::Count),
                "dscp_to_tc.26 = 8 is out of range: 0 to 7",
            ),
            (
                Invalid::FirstBelowMin { first_rate_bps: 1_000_000, min_rate_bps: 10_000_000 },
                "rate_to_set_on_first_cnp = 1mbit is below rpg_min_rate = 10mbit: raise it, set it to 0 (off) or lower rpg_min_rate",
            ),
            (
                range(row(Table::Queue, "scheduler"), 2, 0, 1, Unit::Choice(&["strict", "dwrr"])),
                "queue.3.scheduler = 2 is out of range: strict, dwrr",
            ),
            (
                range(Name::Scalar("alpha_bits"), 20, 10, 31, Unit::OneOf(&[10, 31])),
                "alpha_bits = 20 is out of range: 10 or 31",
            ),
            (
                Invalid::NoCutPeriod { period_ns: 0 },
                "rate_reduce_monitor_period = 0ns is too short for rp_variant = firmware: set 1us or more",
            ),
            (
                order(row(Table::Pfc, "xon"), 9_000, "xoff", 8_000, Unit::Bytes),
                "pfc.3.xon = 9KB is above pfc.3.xoff = 8KB: lower xon or raise xoff",
            ),
        ] {
            assert_eq!(invalid.to_string(), message);
        }
    }
}
