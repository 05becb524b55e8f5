//! Parsers of whole numbers on the command line, whose errors have the option's name and range.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Parser of a number in `allowed`.
pub fn number<T>(
    name: &'static str,
    allowed: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: Clone + Display + FromStr + PartialOrd + Send + Sync + 'static,
{
    let range = format!("{} to {}", allowed.start(), allowed.end());
    move |text: &str| parse(name, text, &range, |value| allowed.contains(value))
}

/// Parser of a number without an upper limit.
pub fn at_least<T>(
    name: &'static str,
    least: T,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: Clone + Display + FromStr + PartialOrd + Send + Sync + 'static,
{
    let range = format!("{least} or more");
    move |text: &str| parse(name, text, &range, |value| *value >= least)
}

fn parse<T: FromStr>(
    name: &str,
    text: &str,
    range: &str,
    is_allowed: impl Fn(&T) -> bool,
) -> Result<T, String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(value) if is_allowed(&value) => Ok(value),
        _ if is_number => Err(format!("{name} = {text} is out of range: {range}")),
        _ => Err(format!("{name} = `{text}` is not a whole number: write {range}")),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    #[test]
    fn errors_have_name_and_range() {
        let parse = number("dscp", 0u8..=63);
        assert_eq!((parse("0"), parse("63")), (Ok(0), Ok(63)));
        for text in ["64", "-1", "256", "99999999999999999999"] {
            assert_eq!(parse(text), Err(format!("dscp = {text} is out of range: 0 to 63")));
        }
        for text in ["", "-", "x", "1.5", "0x10"] {
            assert_eq!(parse(text), Err(format!("dscp = `{text}` is not a whole number: write 0 to 63")));
        }
        let parse = at_least("count", NonZeroUsize::MIN);
        assert_eq!(parse("7").map(NonZeroUsize::get), Ok(7));
        assert_eq!(parse("0"), Err("count = 0 is out of range: 1 or more".to_owned()));
    }
}
