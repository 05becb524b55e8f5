//! Meter of the depth of a queue over time, and the time of a message without other traffic.

use dcqcn_support::statistics::Histogram;

use crate::network::ideal::{Framing, Hop, delivery_ns};
use crate::{Depth, RoceGroup, Scenario};

/// Accumulates how long a queue had which depth.
#[derive(Clone, Debug, Default)]
pub(super) struct DepthMeter {
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
    /// Sets the current depth.
    #[inline]
    pub(super) fn change(&mut self, now_ns: u64, bytes: u64) {
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

    /// Resets the statistics.
    pub(super) fn reset(&mut self, now_ns: u64) {
        let bytes = self.bytes;
        *self =
            Self { since_ns: now_ns, bytes, max_bytes: bytes, recent_max_bytes: bytes, ..Self::default() };
    }

    /// Greatest depth since the last call.
    pub(super) const fn take_recent_max(&mut self) -> u64 {
        let max_bytes = self.recent_max_bytes;
        self.recent_max_bytes = self.bytes;
        max_bytes
    }

    /// Statistics up to the last change.
    pub(super) fn summary(&self) -> Depth {
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

/// Time from posting a message of a group to its acknowledgement, without other traffic.
pub(super) fn ideal_ns(scenario: &Scenario, group: &RoceGroup, bytes: u64) -> u64 {
    let sender_delay_ns = group.sender_delay_ns.unwrap_or(scenario.sender_delay_ns);
    let path = [
        Hop { rate_bps: scenario.sender_rate_bps, delay_ns: sender_delay_ns },
        Hop { rate_bps: scenario.port_rate_bps, delay_ns: scenario.receiver_delay_ns },
    ];
    let framing = Framing {
        payload_bytes: group.payload_bytes.into(),
        header_bytes: u64::from(group.header_bytes) + scenario.config.scalars.wire_overhead_bytes,
    };
    let back_ns = scenario.receiver_delay_ns + sender_delay_ns;
    delivery_ns(&path, framing, bytes) + back_ns
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
