//! Meter of a queue: its depth over time, and its traffic.

use dcqcn_support::statistics::Histogram;
use serde::Serialize;

/// Depth of a queue, weighted by time.
///
/// Percentiles are at most 1 in 32 too large, mean and maximum exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Depth {
    pub mean_bytes: f64,
    pub deviation_bytes: f64,
    pub p50_bytes: u64,
    pub p99_bytes: u64,
    pub max_bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ClassMeter {
    pub(crate) depth: DepthMeter,
    pub(crate) tx_packets: u64,
    pub(crate) tx_bytes: u64,
    paused_since_ns: Option<u64>,
    paused_ns: u64,
}

impl ClassMeter {
    pub(crate) fn pause(&mut self, now_ns: u64, pause: bool) {
        self.paused_ns = self.paused_ns(now_ns);
        self.paused_since_ns = pause.then_some(now_ns);
    }

    pub(crate) fn paused_ns(&self, now_ns: u64) -> u64 {
        self.paused_ns + self.paused_since_ns.map_or(0, |since_ns| now_ns - since_ns)
    }
}

/// Accumulates how long a queue had which depth.
#[derive(Clone, Debug, Default)]
pub(crate) struct DepthMeter {
    since_ns: u64,
    bytes: u64,
    max_bytes: u64,
    recent_max_bytes: u64,
    time_ns: u64,
    byte_ns: u128,
    byte2_ns: u128,
    histogram: Histogram,
}

impl DepthMeter {
    #[inline]
    pub(crate) fn change(&mut self, now_ns: u64, bytes: u64) {
        let time_ns = now_ns - self.since_ns;
        if time_ns != 0 {
            self.since_ns = now_ns;
            self.time_ns += time_ns;
            let byte_ns = u128::from(self.bytes) * u128::from(time_ns);
            self.byte_ns += byte_ns;
            self.byte2_ns += byte_ns * u128::from(self.bytes);
            self.histogram.record_many(self.bytes, time_ns);
        }
        self.bytes = bytes;
        self.max_bytes = self.max_bytes.max(bytes);
        self.recent_max_bytes = self.recent_max_bytes.max(bytes);
    }

    pub(crate) fn reset(&mut self, now_ns: u64) {
        let bytes = self.bytes;
        *self =
            Self { since_ns: now_ns, bytes, max_bytes: bytes, recent_max_bytes: bytes, ..Self::default() };
    }

    pub(crate) fn end(&mut self, now_ns: u64) {
        self.change(now_ns.max(self.since_ns), self.bytes);
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Greatest depth since the last call.
    pub(crate) const fn take_recent_max(&mut self) -> u64 {
        let max_bytes = self.recent_max_bytes;
        self.recent_max_bytes = self.bytes;
        max_bytes
    }

    /// Statistics up to the last change.
    pub(crate) fn summary(&self) -> Depth {
        if self.time_ns == 0 {
            return Depth::default();
        }
        let time_ns = self.time_ns as f64;
        let mean_bytes = self.byte_ns as f64 / time_ns;
        let variance = self.byte2_ns as f64 / time_ns - mean_bytes * mean_bytes;
        Depth {
            mean_bytes,
            deviation_bytes: variance.max(0.0).sqrt(),
            p50_bytes: self.histogram.percentile(50.0),
            p99_bytes: self.histogram.percentile(99.0),
            max_bytes: self.max_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_weighted_by_time() {
        let mut meter = DepthMeter::default();
        meter.change(1_000, 7);
        meter.reset(2_000);
        meter.change(2_100, 20);
        meter.change(2_100, 10);
        meter.change(2_400, 0);
        meter.change(2_500, 0);
        let depth = meter.summary();
        // 7 for 100 ns, 10 for 300, 0 for 100; 20 for no time.
        assert!((depth.mean_bytes - 7.4).abs() < 1e-9, "{depth:?}");
        assert!((depth.deviation_bytes - (69.8_f64 - 54.76).sqrt()).abs() < 1e-9, "{depth:?}");
        assert_eq!((depth.p50_bytes, depth.p99_bytes, depth.max_bytes), (10, 10, 20));
        assert_eq!((meter.take_recent_max(), meter.take_recent_max()), (20, 0));
    }
}
