//! Figures as people write them.

/// A rate.
pub(super) fn bps(bps: f64) -> String {
    scaled(bps, &["b/s", "kb/s", "Mb/s", "Gb/s"])
}

/// A size, in powers of 1000 as queue thresholds are given.
pub(super) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, &["B", "kB", "MB", "GB"])
}

/// A duration given in ns.
pub(super) fn ns(ns: u64) -> String {
    scaled(ns as f64, &["ns", "us", "ms", "s"])
}

/// A duration given in ns, in seconds with no needless digit.
pub(super) fn seconds(ns: u64) -> String {
    format!("{} s", ns as f64 / 1e9)
}

/// Three significant digits and the unit that keeps them before the point.
fn scaled(value: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    // 999.5 would print as 1000.
    while value >= 999.5
        && let Some(larger) = units.next()
    {
        value /= 1000.0;
        unit = larger;
    }
    let decimals = match value {
        v if v == 0.0 || v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        assert_eq!(bps(200e6), "200 Mb/s");
        assert_eq!(bps(49_312_345.0), "49.3 Mb/s");
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999_700), "1.00 MB");
        assert_eq!(bytes(4_154), "4.15 kB");
        assert_eq!(ns(20_971_519), "21.0 ms");
        assert_eq!(seconds(2_500_000_000), "2.5 s");
        assert_eq!(ns(8_000_000_000_000), "8000 s");
    }
}
