//! Data of a run: counters over time, from which all metrics and plots are derived.

use dcqcn_common::layout::{CLASSES, DSCPS};
use dcqcn_support::statistics::Histogram;

/// Width of the bins of counters, ns.
pub(crate) const BIN_NS: u64 = 10_000_000;

/// A counter over time: increments per bin of `BIN_NS` since the start of the run.
#[derive(Clone, Debug)]
pub struct Binned {
    bins: Vec<u64>,
}

impl Binned {
    /// Zero over a run of `duration_ns`.
    pub(crate) fn new(duration_ns: u64) -> Self {
        // A run takes minutes at most: thousands of bins.
        Self { bins: vec![0; duration_ns.div_ceil(BIN_NS).max(1) as usize] }
    }

    /// Adds `amount` at `at_ns` after the start. Increments after the end are ignored.
    pub(crate) fn add(&mut self, at_ns: u64, amount: u64) {
        if let Some(bin) = usize::try_from(at_ns / BIN_NS).ok().and_then(|bin| self.bins.get_mut(bin)) {
            *bin += amount;
        }
    }

    pub(crate) fn sum(&self, window: Window) -> u64 {
        self.iter().filter(|(start_ns, _)| window.contains(*start_ns)).map(|(_, amount)| amount).sum()
    }

    /// All bins: start in ns, amount.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.bins.iter().enumerate().map(|(bin, amount)| (bin as u64 * BIN_NS, *amount))
    }
}

/// A part of the run: ns since its start, end exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub start_ns: u64,
    pub end_ns: u64,
}

impl Window {
    pub(crate) const fn contains(self, at_ns: u64) -> bool {
        self.start_ns <= at_ns && at_ns < self.end_ns
    }

    pub(crate) fn seconds(self) -> f64 {
        self.end_ns.saturating_sub(self.start_ns) as f64 / 1e9
    }
}

/// Data of one QP, from both ends.
#[derive(Clone, Debug)]
pub struct FlowRecord {
    pub name: String,
    pub received: ReceivedRecord,
    pub sent: SentRecord,
}

/// Data of a flow's receiving end.
#[derive(Clone, Debug)]
pub struct ReceivedRecord {
    /// Payload bytes delivered in order.
    pub goodput_bytes: Binned,
    pub ce_packets: Binned,
    /// One-way delay of data packets up to the end of the warm-up, ns.
    pub delay_warm_up_ns: Histogram,
    /// One-way delay of data packets after the warm-up, ns.
    pub delay_after_ns: Histogram,
}

impl ReceivedRecord {
    pub(crate) fn new(duration_ns: u64) -> Self {
        Self {
            goodput_bytes: Binned::new(duration_ns),
            ce_packets: Binned::new(duration_ns),
            delay_warm_up_ns: Histogram::default(),
            delay_after_ns: Histogram::default(),
        }
    }
}

/// Data of a flow's sending end.
#[derive(Clone, Debug)]
pub struct SentRecord {
    /// Data packets sent, retransmissions included.
    pub packets: Binned,
    pub retransmissions: Binned,
    pub timeouts: Binned,
    /// NAKs that caused a retransmission.
    pub naks: Binned,
}

#[derive(Clone, Debug)]
pub struct Answers {
    pub acks_by_dscp: [u64; DSCPS],
    pub cnps_by_dscp: [u64; DSCPS],
    /// PFC frames with XOFF.
    pub pauses: u64,
}

impl Answers {
    pub(crate) const NONE: Self = Self { acks_by_dscp: [0; DSCPS], cnps_by_dscp: [0; DSCPS], pauses: 0 };

    pub(crate) fn add(&mut self, other: &Self) {
        self.acks_by_dscp.iter_mut().zip(other.acks_by_dscp).for_each(|(all, more)| *all += more);
        self.cnps_by_dscp.iter_mut().zip(other.cnps_by_dscp).for_each(|(all, more)| *all += more);
        self.pauses += other.pauses;
    }
}

impl SentRecord {
    pub(crate) fn new(duration_ns: u64) -> Self {
        let zero = Binned::new(duration_ns);
        Self { packets: zero.clone(), retransmissions: zero.clone(), timeouts: zero.clone(), naks: zero }
    }
}

/// A sample of the bottleneck and of the data plane.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Time, ns since the start of the run.
    pub at_ns: u64,
    /// Backlog of the bottleneck's RoCE queue, bytes, from the kernel.
    pub backlog_bytes: u64,
    /// Packets the bottleneck's RoCE queue has dropped since the start of the run.
    pub drops: u64,
    /// State of the data plane; `None` without control.
    pub control: Option<ControlSample>,
}

/// Sample of the data plane's maps. Counters start at the start of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControlSample {
    /// Depth of the switch's virtual queue for RoCE, bytes; `None` if it marks by the real one.
    pub virtual_queue_bytes: Option<u64>,
    /// Current rate of each flow's reaction point, in the order of the flows, bit/s; `None` while it has no limit.
    pub rates_bps: Vec<Option<u64>>,
    pub ce_marks: u64,
    pub cnps_sent: u64,
    /// CNPs that took effect at the senders' reaction points.
    pub cnps_handled: u64,
    pub cnps_ignored: u64,
    /// RoCE packets sent by the switch's ports to the senders, by traffic class, where counted.
    pub returned: [u64; CLASSES],
}

/// The switch's marking thresholds for RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Queue depth up to which no packet is marked, bytes.
    pub kmin_bytes: u64,
    /// Queue depth above which every packet is marked, bytes.
    pub kmax_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct RunRecord {
    /// The marking thresholds of the data plane; `None` if it was not attached.
    pub control: Option<Thresholds>,
    pub senders: usize,
    pub link_bps: u64,
    /// Guaranteed rate of its RoCE queue, bit/s.
    pub roce_bps: u64,
    /// Buffer of that queue, bytes.
    pub buffer_bytes: u64,
    pub duration_ns: u64,
    /// Start-up excluded from the steady state, ns.
    pub warm_up_ns: u64,
    pub flows: Vec<FlowRecord>,
    pub tcp_bytes: Vec<Binned>,
    /// Bytes of all RoCE frames at the receiver, layer 2.
    pub roce_bytes: Binned,
    /// Bytes of the flooder's frames at the receiver, layer 2.
    pub flood_bytes: Binned,
    pub answers: Answers,
    pub samples: Vec<Sample>,
    /// CPU time of the machine, as a fraction (0 to 1).
    pub cpu_share: f64,
}

impl RunRecord {
    pub(crate) const fn whole(&self) -> Window {
        Window { start_ns: 0, end_ns: self.duration_ns }
    }

    pub(crate) const fn steady(&self) -> Window {
        Window { start_ns: self.warm_up_ns, end_ns: self.duration_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_add_up_within_window() {
        let mut binned = Binned::new(25_000_000);
        for at_ns in [0, 9_999_999, 10_000_000, 24_999_999, 30_000_000, u64::MAX] {
            binned.add(at_ns, 1);
        }
        assert_eq!(binned.iter().collect::<Vec<_>>(), [(0, 2), (10_000_000, 1), (20_000_000, 1)]);
        assert_eq!(binned.sum(Window { start_ns: 10_000_000, end_ns: u64::MAX }), 2);
        assert_eq!(binned.sum(Window { start_ns: 0, end_ns: 10_000_000 }), 2);
    }
}
