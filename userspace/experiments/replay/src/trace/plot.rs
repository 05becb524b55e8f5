//! Rate, target and alpha over time, as a picture.
//!
//! Memory is bounded by the resolution of the picture, independent of the length of the trace.

use std::path::Path;

use dcqcn_support::plot::{self as plot, COLOURS, Chart, Curve, Line};

use super::Row;

/// Number of time intervals: twice the pixels of a picture.
const MAX_INTERVALS: usize = 4_096;

/// The curves of a trace, in bounded memory.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// In order of time, at most [`MAX_INTERVALS`].
    intervals: Vec<Interval>,
    start_ns: u64,
    /// log2 of an interval's length, ns.
    shift: u32,
}

#[derive(Clone, Copy, Debug)]
struct Interval {
    /// Number of the interval from the start of the trace.
    index: u64,
    first_ns: u64,
    last_ns: u64,
    rate_bps: Range,
    target_bps: Range,
    alpha: Range,
}

/// Values of a curve in a time interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    first: f64,
    least: f64,
    largest: f64,
    last: f64,
}

impl Range {
    const fn new(value: f64) -> Self {
        Self { first: value, least: value, largest: value, last: value }
    }

    const fn then(self, later: Self) -> Self {
        Self {
            first: self.first,
            least: self.least.min(later.least),
            largest: self.largest.max(later.largest),
            last: later.last,
        }
    }
}

impl Interval {
    const fn then(self, later: &Self) -> Self {
        Self {
            last_ns: later.last_ns,
            rate_bps: self.rate_bps.then(later.rate_bps),
            target_bps: self.target_bps.then(later.target_bps),
            alpha: self.alpha.then(later.alpha),
            ..self
        }
    }
}

/// Unit of an axis, chosen for short numbers.
struct Unit {
    label: &'static str,
    /// In ns, or in bit/s.
    size: f64,
}

impl Unit {
    fn of_time(span_ns: f64) -> Self {
        match span_ns {
            ..=10e3 => Self { label: "time from the first event, ns", size: 1.0 },
            ..=10e6 => Self { label: "time from the first event, us", size: 1e3 },
            ..=10e9 => Self { label: "time from the first event, ms", size: 1e6 },
            _ => Self { label: "time from the first event, s", size: 1e9 },
        }
    }

    fn of_rate(top_bps: f64) -> Self {
        if top_bps < 10e9 { Self { label: "Mbit/s", size: 1e6 } } else { Self { label: "Gbit/s", size: 1e9 } }
    }
}

impl Picture {
    pub(crate) fn push(&mut self, row: &Row) {
        if self.intervals.is_empty() {
            self.start_ns = row.t_ns;
        }
        let since_ns = row.t_ns.saturating_sub(self.start_ns);
        while since_ns >> self.shift >= MAX_INTERVALS as u64 {
            self.widen();
        }
        let interval = Interval {
            index: since_ns >> self.shift,
            first_ns: since_ns,
            last_ns: since_ns,
            rate_bps: Range::new(row.rate.rate_bps as f64),
            target_bps: Range::new(row.rate.target_bps as f64),
            alpha: Range::new(row.rate.alpha),
        };
        self.add(interval);
    }

    fn add(&mut self, interval: Interval) {
        match self.intervals.last_mut() {
            Some(last) if last.index == interval.index => *last = last.then(&interval),
            _ => self.intervals.push(interval),
        }
    }

    /// Merges pairs of intervals.
    fn widen(&mut self) {
        self.shift += 1;
        for interval in std::mem::take(&mut self.intervals) {
            self.add(Interval { index: interval.index / 2, ..interval });
        }
    }

    /// Writes the picture, as SVG or PNG according to the name.
    pub fn write(&self, file: &Path, title: &str) -> Result<(), plot::Error> {
        let span_ns = self.intervals.last().map_or(0, |interval| interval.last_ns) as f64;
        let largest = |interval: &Interval| interval.rate_bps.largest.max(interval.target_bps.largest);
        let top_bps = self.intervals.iter().map(largest).fold(0.0, f64::max);
        let (time, rate) = (Unit::of_time(span_ns), Unit::of_rate(top_bps));
        let end = span_ns / time.size;
        let curve = |values: fn(&Interval) -> Range, unit: f64| self.curve(values, time.size, unit);
        let rates = Chart {
            caption: "Rates of the flow".into(),
            across: time.label,
            up: rate.label,
            end,
            top: top_bps / rate.size * 1.1,
            lines: vec![
                Line::new("target", curve(|interval| interval.target_bps, rate.size), COLOURS[1], 1),
                Line::new("rate", curve(|interval| interval.rate_bps, rate.size), COLOURS[0], 2),
            ],
            ..Chart::default()
        };
        let alpha = Chart {
            caption: "Alpha: estimate of congestion".into(),
            across: time.label,
            up: "alpha",
            end,
            top: 1.1,
            lines: vec![Line::new("alpha", curve(|interval| interval.alpha, 1.0), COLOURS[2], 2)],
            ..Chart::default()
        };
        plot::write(file, title, &[rates, alpha])
    }

    /// A step curve: values hold until the next. Times are in `unit_ns`, values in `unit`.
    fn curve(&self, values: fn(&Interval) -> Range, unit_ns: f64, unit: f64) -> Curve {
        let mut curve = Curve::new();
        let mut before = None;
        for interval in &self.intervals {
            let Range { first, least, largest, last } = values(interval);
            let (start, end) = (interval.first_ns as f64 / unit_ns, interval.last_ns as f64 / unit_ns);
            curve.extend(before.map(|value| (start, value)));
            curve.extend([first, least, largest].map(|value| (start, value / unit)));
            curve.push((end, last / unit));
            before = Some(last / unit);
        }
        curve.dedup();
        curve
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_telemetry::RateRow;

    use super::*;

    fn row(t_ns: u64, rate_bps: u64) -> Row {
        Row {
            t_ns,
            event: "sample",
            rate: RateRow { rate_bps, target_bps: 40_000_000_000, alpha: 0.5, time_stage: 0, byte_stage: 0 },
            departure_ns: None,
        }
    }

    #[test]
    fn short_trace_unchanged() {
        let mut picture = Picture::default();
        for (t_ns, rate_bps) in [(1_000_000, 40_000_000_000), (1_050_000, 20_000_000_000), (1_050_000, 10)] {
            picture.push(&row(t_ns, rate_bps));
        }
        let curve = picture.curve(|interval| interval.rate_bps, 1e3, 1e9);
        assert_eq!(
            curve,
            [(0.0, 40.0), (50.0, 40.0), (50.0, 20.0), (50.0, 1e-8), (50.0, 20.0), (50.0, 1e-8)]
        );
    }

    #[test]
    fn long_trace_keeps_extremes() {
        let mut picture = Picture::default();
        let gap_ns = |i: u64| i * i * 1_000;
        for i in 0..200_000 {
            picture.push(&row(gap_ns(i), if i == 123_456 { 7 } else { 1_000 + i }));
        }
        assert!(picture.intervals.len() <= MAX_INTERVALS, "{}", picture.intervals.len());
        assert!(picture.intervals.len() > MAX_INTERVALS / 4, "{}", picture.intervals.len());
        let curve = picture.curve(|interval| interval.rate_bps, 1.0, 1.0);
        assert!(curve.is_sorted_by(|a, b| a.0 <= b.0));
        assert_eq!(curve.iter().filter(|point| point.1 == 7.0).count(), 1);
        assert_eq!(curve.last(), Some(&(gap_ns(199_999) as f64, 200_999.0)));
    }

    #[test]
    fn any_trace_can_be_drawn() {
        let directory = tempfile::tempdir().unwrap();
        let mut picture = Picture::default();
        for t_ns in [0, 5, u64::MAX] {
            for name in ["x.svg", "x.png"] {
                picture.write(&directory.path().join(name), "a title").unwrap();
            }
            picture.push(&row(t_ns, 1));
        }
        assert!(picture.write(&directory.path().join("x.pdf"), "").is_err());
    }
}
