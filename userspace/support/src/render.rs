//! Text output: tables, and numbers with three digits and a unit.

use std::fmt;

/// A number of things: `1 flow`, `2 flows`.
pub fn count(number: impl TryInto<u64>, noun: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    match noun.strip_suffix('y') {
        _ if number == 1 => format!("1 {noun}"),
        Some(stem) => format!("{number} {stem}ies"),
        None if noun.ends_with("ch") => format!("{number} {noun}es"),
        None => format!("{number} {noun}s"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table in plain text: columns two spaces apart, a heading above.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

/// Heading of a column, and the cell of a row in it.
pub type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

impl Table {
    /// A table of `rows`. Columns whose heading starts with `>` are numbers.
    pub fn of<T>(rows: impl IntoIterator<Item = T>, columns: &[Column<'_, T>]) -> Self {
        let mut table = Self::new(&columns.iter().map(|column| column.0).collect::<Vec<_>>());
        for row in rows {
            table.row(columns.iter().map(|(_, cell)| cell(&row)).collect::<Vec<_>>());
        }
        table
    }

    /// A table without rows. Columns whose heading starts with `>` are numbers.
    pub fn new(columns: &[&str]) -> Self {
        let column = |name: &&str| match name.strip_prefix('>') {
            Some(name) => (name.to_owned(), Align::Right),
            None => ((*name).to_owned(), Align::Left),
        };
        Self { columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: impl Into<Vec<String>>) {
        let cells = cells.into();
        debug_assert_eq!(cells.len(), self.columns.len(), "{cells:?}");
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: &str| text.chars().count();
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, (name, _))| {
                let cells = self.rows.iter().filter_map(|row| row.get(i));
                cells.map(|cell| width(cell)).chain([width(name)]).max().unwrap_or(0)
            })
            .collect();
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        for row in std::iter::once(&heading).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, (_, align)), &width) in row.iter().zip(&self.columns).zip(&widths) {
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Align::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

pub fn bps(bps: f64) -> String {
    scaled(bps, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s"])
}

/// A size in bytes, by powers of 1000 as queue thresholds are given.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, &["B", "KB", "MB", "GB", "TB"])
}

/// A time given in ns, in seconds without trailing zeros.
pub fn seconds(ns: u64) -> String {
    format!("{} s", ns as f64 / 1e9)
}

pub fn ns(ns: u64) -> String {
    const MINUTE_NS: u64 = 60_000_000_000;
    match ns / MINUTE_NS {
        0..2 => scaled(ns as f64, &["ns", "us", "ms", "s"]),
        minutes @ 2..120 => format!("{minutes} min"),
        minutes @ 120..2_880 => format!("{} h", minutes / 60),
        minutes => format!("{} days", minutes / 1_440),
    }
}

/// Three significant digits with a unit prefix that keeps the value below 1000.
fn scaled(value: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    let whole = value.fract() == 0.0 && value < 999.5;
    // 999.5 would print as 1000.
    while value >= 999.5
        && let Some(larger) = units.next()
    {
        value /= 1000.0;
        unit = larger;
    }
    let decimals = match value {
        _ if whole => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

/// Untrusted text without control characters, which could move a terminal's cursor.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_thing_is_singular() {
        assert_eq!([count(1_u8, "flow"), count(2_usize, "flow")], ["1 flow", "2 flows"]);
        assert_eq!([count(0_u64, "table entry"), count(3_u32, "switch")], ["0 table entries", "3 switches"]);
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([bps(200e6), bps(49_312_345.0), bps(0.0)], ["200 Mbit/s", "49.3 Mbit/s", "0 bit/s"]);
        assert_eq!([bytes(0), bytes(7), bytes(999_700), bytes(4_154)], ["0 B", "7 B", "1.00 MB", "4.15 KB"]);
        assert_eq!([ns(20_971_519), ns(119_000_000_000)], ["21.0 ms", "119 s"]);
        assert_eq!([ns(600_000_000_000), ns(7_200_000_000_000)], ["10 min", "2 h"]);
        assert_eq!(ns(u64::MAX), "213503 days");
    }

    #[test]
    fn column_width_is_that_of_widest_cell() {
        let mut table = Table::new(&["NAME", ">VALUE", "NOTE"]);
        assert!(table.is_empty());
        table.row(["µ".into(), "1".into(), String::new()]);
        table.row(["longer".into(), "1234567".into(), "x".into()]);
        let text = "NAME      VALUE  NOTE\nµ             1\nlonger  1234567  x\n";
        assert_eq!(table.to_string(), text);
    }
}
