//! Completion times of messages, and how they compare with an empty network.

use crate::network::Fct;
use crate::network::ideal::{Framing, Hop, delivery_ns};
use dcqcn_support::statistics::Histogram;

use crate::{RoceGroup, Scenario};

/// What slowdowns are counted in: thousandths.
const SLOWDOWN_UNIT: f64 = 1_000.0;

/// Completion times of messages of one length.
#[derive(Clone, Debug, Default)]
pub(super) struct FctMeter {
    /// Time in an empty network.
    pub(super) ideal_ns: u64,
    histogram: Histogram,
    sum_ns: u128,
    slowdowns: Histogram,
    slowdown_sum: f64,
}

impl FctMeter {
    pub(super) fn new(ideal_ns: u64) -> Self {
        Self { ideal_ns, ..Self::default() }
    }

    pub(super) fn record(&mut self, time_ns: u64) {
        self.histogram.record(time_ns);
        self.sum_ns += u128::from(time_ns);
        let slowdown = time_ns as f64 / self.ideal_ns.max(1) as f64;
        self.slowdowns.record((slowdown * SLOWDOWN_UNIT).round() as u64);
        self.slowdown_sum += slowdown;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.histogram.merge(&other.histogram);
        self.sum_ns += other.sum_ns;
        self.slowdowns.merge(&other.slowdowns);
        self.slowdown_sum += other.slowdown_sum;
    }

    pub(super) fn summary(&self) -> Option<Fct> {
        let count = self.histogram.count();
        let slowdown = |percent| self.slowdowns.percentile(percent) as f64 / SLOWDOWN_UNIT;
        (count != 0).then(|| Fct {
            count,
            mean_ns: self.sum_ns as f64 / count as f64,
            p50_ns: self.histogram.percentile(50.0),
            p95_ns: self.histogram.percentile(95.0),
            p99_ns: self.histogram.percentile(99.0),
            max_ns: self.histogram.max(),
            slowdown_mean: self.slowdown_sum / count as f64,
            slowdown_p50: slowdown(50.0),
            slowdown_p95: slowdown(95.0),
            slowdown_p99: slowdown(99.0),
        })
    }
}

/// Time of a message of a group from its being posted to its acknowledgement, when nothing else is sent.
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
    let back_ns = scenario.reply_delay_ns + scenario.receiver_delay_ns + sender_delay_ns;
    delivery_ns(&path, framing, bytes) + back_ns
}
