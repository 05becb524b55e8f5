//! Parsing of quantities: `100KB`, `1.5MB`, `40mbit`, `55us`, `1%`.
//!
//! Values are exact or rejected; no floats are used.

use std::fmt::Display;
use std::ops::RangeInclusive;

use dcqcn_common::params::{Allowed, Quantity, Unit};

use super::key::did_you_mean;

/// A text that is not a quantity of its unit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` {problem}{}", self.hint())]
pub struct QuantityError {
    text: String,
    problem: Problem,
    unit: Unit,
}

impl QuantityError {
    /// The allowed words with the nearest one, or the syntax.
    fn hint(&self) -> String {
        let words: &[&str] = match self.unit {
            Unit::Choice(words) => words,
            Unit::Switch => &["true", "false"],
            unit => return format!(": {}", expected(unit)),
        };
        format!(" {}{}", words.join(", "), did_you_mean(&self.text, words))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} = {} is out of range: {allowed}", Quantity(*value, allowed.unit))]
pub struct OutOfRange {
    what: String,
    value: u64,
    allowed: Allowed,
}

/// Checks that `value`, a number of `what`, is in its range.
pub fn in_range(
    what: impl Into<String>,
    value: u64,
    allowed: RangeInclusive<u64>,
    unit: Unit,
) -> Result<(), OutOfRange> {
    is_allowed(what, value, Allowed { min: *allowed.start(), min_nonzero: 0, max: *allowed.end(), unit })
}

/// Checks that `value`, a number of `what`, is allowed.
pub(crate) fn is_allowed(what: impl Into<String>, value: u64, allowed: Allowed) -> Result<(), OutOfRange> {
    if allowed.contains(value) { Ok(()) } else { Err(OutOfRange { what: what.into(), value, allowed }) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("is not a number with a unit")]
    Syntax,
    #[error("is not a number")]
    NotNumber,
    #[error("is negative")]
    Negative,
    #[error("has no unit")]
    NoUnit,
    #[error("has the wrong unit")]
    WrongUnit,
    #[error("is ambiguous, tc(8) reads `bps` as bytes per second")]
    Bps,
    #[error("is in bytes per second")]
    BytesPerSecond,
    #[error("is not a whole number of {0}")]
    NotWhole(&'static str),
    #[error("is too large")]
    TooLarge,
    #[error("is not one of")]
    Word,
}

/// Base units in one unit called `suffix`, in lower case. Times and fractions need a unit: NVIDIA's tools use
/// microseconds for the same parameters, and 1 may mean 1 % or 100 %.
fn base_units(unit: Unit, suffix: &str) -> Option<u64> {
    const BIT_PER_S: [&str; 3] = ["bit/s", "b/s", "bit"];
    Some(match (unit, suffix) {
        (Unit::Bytes, _) => match suffix.strip_suffix('b').unwrap_or(suffix) {
            "" => 1,
            "k" => 1_000,
            "ki" => 1 << 10,
            "m" => 1_000_000,
            "mi" => 1 << 20,
            "g" => 1_000_000_000,
            "gi" => 1 << 30,
            _ => return None,
        },
        (Unit::BitsPerSecond, _) => {
            match BIT_PER_S.iter().find_map(|base| suffix.strip_suffix(*base)).unwrap_or(suffix) {
                "" => 1,
                "k" => 1_000,
                "m" => 1_000_000,
                "g" => 1_000_000_000,
                _ => return None,
            }
        }
        (Unit::Nanoseconds, "ns") | (Unit::PartsPerMillion, "ppm") | (Unit::Count | Unit::OneOf(_), "") => 1,
        (Unit::Nanoseconds, "us" | "µs" | "μs") => 1_000,
        (Unit::Nanoseconds, "ms") => 1_000_000,
        (Unit::Nanoseconds, "s") => 1_000_000_000,
        (Unit::Nanoseconds, "m" | "min") => 60_000_000_000,
        (Unit::Nanoseconds, "h") => 3_600_000_000_000,
        (Unit::PartsPerMillion, "%") => 10_000,
        _ => return None,
    })
}

/// Parses `text` as a quantity of `unit`, in its base unit (bytes, bit/s, ns, ppm, the word's index).
pub fn parse(text: &str, unit: Unit) -> Result<u64, QuantityError> {
    parse_from(text, unit, 0)
}

/// As [`parse`]; a number without a unit must be at least `min_bare`, or 0.
pub(crate) fn parse_from(text: &str, unit: Unit, min_bare: u64) -> Result<u64, QuantityError> {
    let (text, refused) = (text.trim(), |problem| QuantityError { text: text.to_owned(), problem, unit });
    let base = match unit {
        Unit::Bytes => "bytes",
        Unit::BitsPerSecond => "bits per second",
        Unit::Nanoseconds => "nanoseconds",
        Unit::PartsPerMillion => "parts per million",
        Unit::Count | Unit::OneOf(_) => "units",
        Unit::Switch => {
            return match text.to_ascii_lowercase().as_str() {
                "true" | "on" | "1" => Ok(1),
                "false" | "off" | "0" => Ok(0),
                _ => Err(refused(Problem::Word)),
            };
        }
        Unit::Choice(words) => {
            let index = words.iter().position(|word| word.eq_ignore_ascii_case(text));
            return index.map(|index| index as u64).ok_or_else(|| refused(Problem::Word));
        }
    };
    if unit == Unit::BitsPerSecond && text.ends_with("B/s") {
        return Err(refused(Problem::BytesPerSecond));
    }
    if text.starts_with('-') {
        return Err(refused(Problem::Negative));
    }
    // Then it has no unit.
    let is_count = matches!(unit, Unit::Count | Unit::OneOf(_));
    let parts = match decimal(text) {
        Err(Problem::Syntax) if is_count => return Err(refused(Problem::NotNumber)),
        // `1h 30m`, `90 seconds`: humantime's grammar, for anything other than a number with one of the units above.
        Err(problem) if unit == Unit::Nanoseconds => {
            return humantime_ns(text).ok_or_else(|| refused(problem));
        }
        parts => parts.map_err(refused)?,
    };
    let (mantissa, decimals, suffix) = parts;
    if mantissa == 0 && suffix.is_empty() {
        return Ok(0);
    }
    let scale = base_units(unit, &suffix);
    if scale.is_none()
        && unit == Unit::Nanoseconds
        && let Some(ns) = humantime_ns(text)
    {
        return Ok(ns);
    }
    let scale = scale.ok_or_else(|| {
        refused(match suffix.as_str() {
            "" => Problem::NoUnit,
            "bps" | "kbps" | "mbps" | "gbps" if unit == Unit::BitsPerSecond => Problem::Bps,
            _ if is_count => Problem::NotNumber,
            _ => Problem::WrongUnit,
        })
    })?;
    // MAX_DIGITS limits the decimals: 10^28 fits.
    let scaled = mantissa.checked_mul(scale.into()).ok_or_else(|| refused(Problem::TooLarge))?;
    let divisor = 10u128.pow(decimals);
    if scaled % divisor != 0 {
        return Err(refused(Problem::NotWhole(base)));
    }
    if suffix.is_empty() && scaled / divisor < min_bare.into() {
        return Err(refused(Problem::NoUnit));
    }
    u64::try_from(scaled / divisor).map_err(|_| refused(Problem::TooLarge))
}

/// Parses a time in humantime's grammar.
fn humantime_ns(text: &str) -> Option<u64> {
    u64::try_from(humantime::parse_duration(text).ok()?.as_nanos()).ok()
}

/// Maximum digits of a number: 10^28 fits 128 bits.
const MAX_DIGITS: usize = 28;

/// Splits `1.50MB` into 150, two decimals and `mb`.
fn decimal(text: &str) -> Result<(u128, u32, String), Problem> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return Err(Problem::Syntax),
        Some(parts) => parts,
        None => (number, ""),
    };
    if whole.is_empty() || fraction.contains('.') {
        return Err(Problem::Syntax);
    }
    if whole.len() + fraction.len() > MAX_DIGITS {
        return Err(Problem::TooLarge);
    }
    let digits = whole.bytes().chain(fraction.bytes());
    let mantissa = digits.fold(0u128, |sum, digit| sum * 10 + u128::from(digit - b'0'));
    Ok((mantissa, fraction.len() as u32, suffix.trim_start().to_lowercase()))
}

/// Syntax of a quantity of `unit`, as an instruction.
pub fn expected(unit: Unit) -> String {
    match unit {
        Unit::Bytes => "write bytes, as in `100KB`, `64KiB` or `1500B` (K = 1000, Ki = 1024)".to_owned(),
        Unit::BitsPerSecond => "write a rate, as in `40mbit`, `2.5gbit` or `100g`".to_owned(),
        Unit::Nanoseconds => "write a time, as in `55us`, `2ms` or `1s`".to_owned(),
        Unit::PartsPerMillion => "write a percentage, as in `1%` or `0.5%`".to_owned(),
        Unit::Count => "write a whole number".to_owned(),
        Unit::Switch => "write `true` or `false` (or `on`, `off`)".to_owned(),
        Unit::OneOf(numbers) => one_of(numbers),
        Unit::Choice(words) => one_of(words),
    }
}

fn one_of<T: Display>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
    format!("write one of {}", values.join(", "))
}

/// Parses a rate in bit/s, for the command line.
pub fn parse_rate_bps(text: &str) -> Result<u64, QuantityError> {
    parse(text, Unit::BitsPerSecond)
}

/// Parses a time in ns, for the command line. A bare number is rejected; `1h 30m` is accepted.
pub fn parse_time_ns(text: &str) -> Result<u64, QuantityError> {
    parse(text, Unit::Nanoseconds)
}

/// Parses a number of bytes, for the command line.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    parse(text, Unit::Bytes)
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::Quantity;
    use proptest::prelude::*;

    use super::*;

    const WORDS: Unit = Unit::Choice(&["qp", "peer", "port"]);
    const UNITS: [Unit; 8] = [
        Unit::Bytes,
        Unit::BitsPerSecond,
        Unit::Nanoseconds,
        Unit::PartsPerMillion,
        Unit::Count,
        Unit::OneOf(&[10, 31]),
        Unit::Switch,
        WORDS,
    ];

    #[test]
    fn human_quantities_parsed() {
        for (text, unit, value) in [
            ("100KB", Unit::Bytes, 100_000),
            ("1.5MB", Unit::Bytes, 1_500_000),
            ("64KiB", Unit::Bytes, 65_536),
            ("64Ki", Unit::Bytes, 65_536),
            ("1048576", Unit::Bytes, 1_048_576),
            ("0.5KiB", Unit::Bytes, 512),
            ("40mbit", Unit::BitsPerSecond, 40_000_000),
            ("25gbit", Unit::BitsPerSecond, 25_000_000_000),
            ("40g", Unit::BitsPerSecond, 40_000_000_000),
            ("2.5 Gb/s", Unit::BitsPerSecond, 2_500_000_000),
            ("55us", Unit::Nanoseconds, 55_000),
            ("1.5µs", Unit::Nanoseconds, 1_500),
            (" 2ms ", Unit::Nanoseconds, 2_000_000),
            ("0", Unit::Nanoseconds, 0),
            ("1%", Unit::PartsPerMillion, 10_000),
            ("0.5%", Unit::PartsPerMillion, 5_000),
            ("7ppm", Unit::PartsPerMillion, 7),
            ("1020", Unit::Count, 1_020),
            ("on", Unit::Switch, 1),
            ("False", Unit::Switch, 0),
            ("peer", WORDS, 1),
            ("1m", Unit::Nanoseconds, 60_000_000_000),
            ("1.5min", Unit::Nanoseconds, 90_000_000_000),
            ("2h", Unit::Nanoseconds, 7_200_000_000_000),
            ("18446744073709551615", Unit::Bytes, u64::MAX),
        ] {
            assert_eq!(parse(text, unit), Ok(value), "{text}");
        }
    }

    #[test]
    fn bad_quantities_rejected_with_reason() {
        for (text, unit, reason) in [
            ("55", Unit::Nanoseconds, "has no unit: write a time, as in `55us`"),
            ("1", Unit::PartsPerMillion, "has no unit: write a percentage"),
            ("40mbps", Unit::BitsPerSecond, "ambiguous"),
            ("5GB/s", Unit::BitsPerSecond, "is in bytes per second: write a rate, as in `40mbit`"),
            ("40us", Unit::Bytes, "has the wrong unit: write bytes, as in `100KB`"),
            ("1.5", Unit::Bytes, "is not a whole number of bytes"),
            ("0.3ns", Unit::Nanoseconds, "is not a whole number of nanoseconds"),
            ("0.00001%", Unit::PartsPerMillion, "is not a whole number of parts per million"),
            ("18446744073709551616", Unit::Bytes, "is too large"),
            ("99999999999999999999999999999999999999999", Unit::Bytes, "is too large"),
            ("", Unit::Bytes, "is not a number"),
            ("-1", Unit::Count, "is negative: write a whole number"),
            ("-5mbit", Unit::BitsPerSecond, "is negative: write a rate"),
            ("fast", Unit::Count, "is not a number: write a whole number"),
            ("0x5", Unit::Count, "is not a number: write a whole number"),
            ("fast", Unit::OneOf(&[10, 31]), "is not a number: write one of `10`, `31`"),
            ("31x", Unit::OneOf(&[10, 31]), "is not a number: write one of `10`, `31`"),
            ("1.", Unit::Bytes, "is not a number"),
            (".5KB", Unit::Bytes, "is not a number"),
            ("1.2.3KB", Unit::Bytes, "is not a number"),
            ("both", WORDS, "is not one of qp, peer, port"),
            ("2", Unit::Switch, "is not one of true, false"),
        ] {
            let message = parse(text, unit).unwrap_err().to_string();
            assert!(message.contains(reason), "{text}: {message}");
        }
    }

    #[test]
    fn time_needs_unit() {
        assert_eq!(parse_time_ns("20ms"), Ok(20_000_000));
        for (text, seconds) in
            [("1h 30m", 5_400), ("1h30m", 5_400), ("90 seconds", 90), ("2min", 120), ("7d", 604_800)]
        {
            assert_eq!(parse_time_ns(text), Ok(seconds * 1_000_000_000), "{text}");
        }
        for text in ["10", "0.5", "1h -3m", "1x", "x1", "99999999999999d"] {
            assert!(parse_time_ns(text).unwrap_err().to_string().contains(&format!("`{text}`")), "{text}");
        }
        let refused = parse_time_ns("10").unwrap_err().to_string();
        assert_eq!(refused, "`10` has no unit: write a time, as in `55us`, `2ms` or `1s`");
    }

    proptest! {
        #[test]
        fn arbitrary_text_parsed_or_rejected(text in "\\PC{0,12}", tail in "[0-9.]{0,40}[kmgbitus%/]{0,5}") {
            for unit in UNITS {
                let _ = parse(&text, unit);
                let _ = parse(&tail, unit);
                let _ = parse(&format!("{text}{tail}"), unit);
            }
        }

        #[test]
        fn printed_quantities_round_trip(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            for unit in &UNITS[..6] {
                prop_assert_eq!(parse(&Quantity(value, *unit).to_string(), *unit), Ok(value));
            }
        }
    }
}
