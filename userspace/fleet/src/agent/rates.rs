//! Metrics of a host over the last minute, or since its configuration changed.

use crate::prelude::*;

const WINDOW_NS: u64 = 60_000_000_000;
/// Number of parts of the window for estimating the variance of a count.
const PARTS: usize = 12;

/// Sliding window of counter samples, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Window(VecDeque<Health>);

impl Window {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn add(&mut self, health: Health) {
        match self.0.back().map(|last| last.at_ns) {
            // A duplicate sample.
            Some(last) if last == health.at_ns => return,
            // The machine rebooted.
            Some(last) if last > health.at_ns => self.0.clear(),
            _ => {}
        }
        let from_ns = health.at_ns.saturating_sub(WINDOW_NS);
        self.0.push_back(health);
        while self.0.front().is_some_and(|first| first.at_ns < from_ns) {
            self.0.pop_front();
        }
    }

    pub(crate) fn rates(&self) -> Rates {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else {
            return Rates::default();
        };
        let packets = self.increments(|counts| counts.data_packets);
        let data_packets: u64 = packets.iter().sum();
        // Throughput is measured from the first packet on.
        let from = packets.iter().position(|count| *count > 0).unwrap_or(0);
        let span_ns = self.0.get(from).map_or(0, |sample| last.at_ns.saturating_sub(sample.at_ns));
        let (quiet_ms, gap_ms) = self.pauses(&packets);
        let spans = self.spans();
        let reading = |source: Source| match source {
            Source::Events(count) => {
                let counts = self.increments(count);
                let ratio = (dispersion(&counts, &spans).unwrap_or(1.0) * 100.0).clamp(100.0, 1e12);
                Reading { value: counts.iter().sum(), spread: ratio as u64 }
            }
            Source::Level(level) => Reading { value: level(&self.0), spread: 0 },
            Source::Throughput => {
                let per_s = u128::from(data_packets) * 1_000_000_000 / u128::from(span_ns.max(1));
                let own = packets.get(from..).unwrap_or_default();
                let own_spans = spans.get(from..).unwrap_or_default();
                // The variance of the sum is its mean times the dispersion.
                let error = |ratio: f64| (ratio.max(1.0) / data_packets.max(1) as f64).sqrt() * 1e3;
                let spread = dispersion(own, own_spans).map_or(UNKNOWN_SPREAD, |ratio| error(ratio) as u64);
                Reading { value: u64::try_from(per_s).unwrap_or(u64::MAX), spread }
            }
        };
        let mut of: BTreeMap<String, Reading> =
            MEASURES.iter().map(|measure| (measure.name.to_owned(), reading(measure.source))).collect();
        if data_packets == 0 {
            of.insert(THROUGHPUT.into(), Reading::default());
        }
        let known: Vec<u64> = last.interfaces.values().filter_map(|counts| counts.queue_pairs).collect();
        let queue_pairs = (!known.is_empty()).then(|| known.iter().sum());
        let window_ms = last.at_ns.saturating_sub(first.at_ns) / 1_000_000;
        Rates { window_ms, data_packets, quiet_ms, gap_ms, queue_pairs, of }
    }

    /// Increments of a counter between consecutive samples, summed over all interfaces.
    fn increments(&self, count: fn(&Counts) -> u64) -> Vec<u64> {
        let grown = |before: &Health, now: &Health| {
            let each = now.interfaces.iter().filter_map(|(name, now)| {
                // An interface that was attached or reattached in between has no previous value.
                let same = |before: &&Counts| before.attached_at_ns == now.attached_at_ns;
                let before = before.interfaces.get(name).filter(same)?;
                Some(count(now).saturating_sub(count(before)))
            });
            each.sum()
        };
        self.pairs().map(|(before, now)| grown(before, now)).collect()
    }

    fn spans(&self) -> Vec<u64> {
        self.pairs().map(|(before, now)| now.at_ns.saturating_sub(before.at_ns)).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = (&Health, &Health)> {
        self.0.iter().zip(self.0.iter().skip(1))
    }

    /// Time since the last packet, and the longest pause between packets, in milliseconds.
    fn pauses(&self, packets: &[u64]) -> (u64, u64) {
        let ends: Vec<u64> = self.0.iter().skip(1).map(|sample| sample.at_ns).collect();
        let begin = self.0.front().map_or(0, |first| first.at_ns);
        let busy: Vec<u64> =
            packets.iter().zip(&ends).filter(|(count, _)| **count > 0).map(|(_, end)| *end).collect();
        let last = busy.last().copied().unwrap_or(begin);
        let quiet_ns = ends.last().map_or(0, |end| end.saturating_sub(last));
        let gap_ns =
            busy.iter().zip(busy.iter().skip(1)).map(|(a, b)| b.saturating_sub(*a)).max().unwrap_or(0);
        (quiet_ns / 1_000_000, gap_ns / 1_000_000)
    }
}

/// Variance-to-mean ratio of the counts in the parts of a window; 1 for independent events.
///
/// The expected count of a part is proportional to its duration, so irregular sampling adds no variance.
/// Returns `None` for fewer than three parts, or without events.
fn dispersion(counts: &[u64], spans: &[u64]) -> Option<f64> {
    let size = counts.len().div_ceil(PARTS).max(1);
    let sums = |all: &[u64]| -> Vec<f64> {
        all.rchunks_exact(size).map(|part| part.iter().map(|one| *one as f64).sum()).collect()
    };
    let (parts, times) = (sums(counts), sums(spans));
    let (total, time): (f64, f64) = (parts.iter().sum(), times.iter().sum());
    if parts.len() < 3 || total <= 0.0 || time <= 0.0 {
        return None;
    }
    let off = |(part, own): (&f64, &f64)| (part - total * own / time).powi(2);
    let squares: f64 = parts.iter().zip(&times).map(off).sum();
    let mean = total / parts.len() as f64;
    Some(squares / (parts.len() - 1) as f64 / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(at_s: u64, attached_at_ns: u64, data_packets: u64, marked_packets: u64) -> Health {
        let counts = Counts { attached_at_ns, data_packets, marked_packets, ..Counts::default() };
        let interfaces = [("eth0".into(), counts)].into();
        Health { at_ns: at_s * 1_000_000_000, interfaces, failing: Vec::new() }
    }

    /// Samples at these times, with packets since the start.
    fn sampled(samples: impl IntoIterator<Item = (u64, u64)>) -> Window {
        let mut window = Window::default();
        for (second, packets) in samples {
            window.add(health(second, 7, packets, packets / 100));
        }
        window
    }

    #[test]
    fn window_of_a_minute_restarts_on_change() {
        assert_eq!(Window::default().rates(), Rates::default());
        let mut window = sampled((0..=100).map(|second| (second, second * 1_000)));
        let rates = window.rates();
        assert_eq!((rates.window_ms, rates.data_packets), (60_000, 60_000));
        assert_eq!(rates.value("marks"), Some(10_000));
        assert_eq!(rates.of[THROUGHPUT], Reading { value: 1_000, spread: 4 });
        window.clear();
        window.add(health(101, 7, 101_000, 1_010));
        assert_eq!(window.rates().data_packets, 0);
        window.add(health(102, 7, 102_000, 1_030));
        assert_eq!((window.rates().data_packets, window.rates().value("marks")), (1_000, Some(20_000)));
    }

    #[test]
    fn reattached_interface_has_no_increment() {
        let mut window = Window::default();
        window.add(health(10, 7, 5_000, 5_000));
        window.add(health(11, 8, 10, 1));
        assert_eq!((window.rates().data_packets, window.rates().value("marks")), (0, Some(0)));
        window.add(health(1, 8, 20, 1));
        assert_eq!(window.rates().window_ms, 0, "another boot");
    }

    #[test]
    fn rates_ignore_time_before_traffic() {
        let samples = [(0, 0), (10, 0), (11, 500), (12, 1_000), (15, 1_500), (16, 2_000), (20, 2_000)];
        let rates = sampled(samples).rates();
        assert_eq!((rates.quiet_ms, rates.gap_ms), (4_000, 3_000));
        assert_eq!(rates.value(THROUGHPUT), Some(200), "2,000 packets in 10 s");
    }

    #[test]
    fn burst_dispersion_is_its_event_count() {
        let minute = [5_000_000_000; 12];
        assert_eq!(dispersion(&[0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0], &minute), Some(60.0));
        assert!(dispersion(&[5; 60], &[1_000_000_000; 60]).is_some_and(|ratio| ratio < 0.1));
        assert!(dispersion(&[1, 1], &[1, 1]).is_none());
    }

    #[test]
    fn irregular_sampling_adds_no_dispersion() {
        let window = sampled([0, 1, 2, 10, 11, 30, 31].map(|second| (second, second * 1_000)));
        assert_eq!(window.rates().of[THROUGHPUT], Reading { value: 1_000, spread: 5 });
    }

    #[test]
    fn spread_of_two_parts_is_unknown() {
        let window = sampled((0..3).map(|second| (second, second * 1_000)));
        assert_eq!(window.rates().of[THROUGHPUT], Reading { value: 1_000, spread: UNKNOWN_SPREAD });
    }
}
