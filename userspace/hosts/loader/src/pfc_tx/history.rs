//! Samples of the bytes received for a port's queues, by ingress port.

use std::collections::{BTreeMap, VecDeque};

use dcqcn_common::layout::{CLASSES, IngressBytes};

/// Samples stored per queue; samples without arrivals are not counted.
///
/// At one per millisecond, one second of arrivals.
const HISTORY: usize = 1_000;

/// Bytes received for one queue up to one sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sample {
    by_port: BTreeMap<u32, u64>,
    total: u64,
}

impl Sample {
    fn of(&self, ifindex: u32) -> u64 {
        // A port counted separately only since then had no bytes before.
        self.by_port.get(&ifindex).copied().unwrap_or(0)
    }
}

/// Share of a queue's backlog that arrived on one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Lower bound, bytes.
    pub(super) bytes: u64,
    /// Whether `bytes` is the whole share: no packet in the queue is older than the history.
    pub(super) is_complete: bool,
}

/// Samples by queue, newest at the back.
#[derive(Debug, Default)]
pub(super) struct History([VecDeque<Sample>; CLASSES]);

impl History {
    /// Adds a sample of the enabled queues; `enabled` has one bit per queue.
    pub(super) fn push(&mut self, enabled: u8, ingress: &BTreeMap<u32, IngressBytes>) {
        for (queue, samples) in self.0.iter_mut().enumerate() {
            if enabled >> queue & 1 == 0 {
                samples.clear();
                continue;
            }
            let bytes = |ingress: &IngressBytes| ingress.get(queue).copied().unwrap_or(0);
            let by_port: BTreeMap<u32, u64> =
                ingress.iter().map(|(ifindex, ingress)| (*ifindex, bytes(ingress))).collect();
            let sample = Sample { total: by_port.values().sum(), by_port };
            // A long-stalled queue must not lose the history of its backlog.
            if samples.back() == Some(&sample) {
                continue;
            }
            if samples.len() == HISTORY {
                samples.pop_front();
            }
            samples.push_back(sample);
        }
    }

    /// Forgets a removed port; if its index is reused, the new port starts at zero.
    pub(super) fn forget(&mut self, ifindex: u32) {
        for sample in self.0.iter_mut().flatten() {
            sample.total -= sample.by_port.remove(&ifindex).unwrap_or(0);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.iter_mut().for_each(VecDeque::clear);
    }

    /// A queue's backlog of `depth_bytes`: the last `depth_bytes` of all arrivals.
    pub(super) fn backlog(&self, queue: usize, depth_bytes: u64) -> Backlog<'_> {
        let Some((samples, last)) = self.0.get(queue).and_then(|samples| Some((samples, samples.back()?)))
        else {
            return Backlog { span: None, is_complete: depth_bytes == 0 };
        };
        let then = last.total.checked_sub(depth_bytes);
        let mut after = last;
        for before in samples.iter().rev() {
            if let Some(then) = then.filter(|then| before.total <= *then) {
                let late_bytes = then - before.total;
                return Backlog { span: Some(Span { before, late_bytes, after, last }), is_complete: true };
            }
            after = before;
        }
        // The rest cannot be attributed any more.
        Backlog { span: Some(Span { before: after, late_bytes: 0, after, last }), is_complete: false }
    }
}

/// Arrivals that make up a queue's backlog.
pub(super) struct Backlog<'a> {
    /// `None` without samples.
    span: Option<Span<'a>>,
    is_complete: bool,
}

/// The arrivals from `late_bytes` after sample `before` to sample `last`; `after` follows `before`.
struct Span<'a> {
    before: &'a Sample,
    late_bytes: u64,
    after: &'a Sample,
    last: &'a Sample,
}

impl Backlog<'_> {
    /// Share that arrived on a port.
    pub(super) fn share(&self, ifindex: u32) -> Share {
        let bytes = self.span.as_ref().map_or(0, |Span { before, late_bytes, after, last }| {
            let ingress = after.of(ifindex).saturating_sub(before.of(ifindex));
            // Interpolate: between two samples all ports are assumed to be evenly mixed.
            let late = u128::from(ingress) * u128::from(*late_bytes)
                / u128::from(after.total.saturating_sub(before.total).max(1));
            let sent_before = before.of(ifindex) + u64::try_from(late).unwrap_or(ingress);
            last.of(ifindex).saturating_sub(sent_before)
        });
        Share { bytes, is_complete: self.is_complete }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: u8 = 0xff;

    fn sample(ports: &[(u32, u64)]) -> BTreeMap<u32, IngressBytes> {
        let ingress = |bytes| {
            let mut ingress = IngressBytes::default();
            ingress[3] = bytes;
            ingress
        };
        ports.iter().map(|(ifindex, bytes)| (*ifindex, ingress(*bytes))).collect()
    }

    fn share(history: &History, ifindex: u32, depth_bytes: u64) -> Share {
        history.backlog(3, depth_bytes).share(ifindex)
    }

    fn shares(history: &History, depth_bytes: u64) -> (u64, u64, bool) {
        let (one, two) = (share(history, 1, depth_bytes), share(history, 2, depth_bytes));
        assert_eq!(one.is_complete, two.is_complete);
        (one.bytes, two.bytes, one.is_complete)
    }

    #[test]
    fn backlog_is_latest_ingress() {
        let mut history = History::default();
        assert_eq!(shares(&history, 0), (0, 0, true));
        assert_eq!(shares(&history, 100), (0, 0, false));
        history.push(ALL, &sample(&[(1, 1_000), (2, 1_000)]));
        history.push(ALL, &sample(&[(1, 1_000), (2, 4_000)]));
        history.push(ALL, &sample(&[(1, 1_500), (2, 4_500)]));
        // The last 1000 bytes are half from each port, the 3000 before them from the second.
        assert_eq!(shares(&history, 1_000), (500, 500, true));
        assert_eq!(shares(&history, 2_000), (500, 1_500, true));
        assert_eq!(shares(&history, 4_000), (500, 3_500, true));
        // More than the history covers, and more than ever arrived.
        assert_eq!(shares(&history, 5_000), (500, 3_500, false));
        assert_eq!(shares(&history, 9_000), (500, 3_500, false));
        assert_eq!(share(&history, 3, 1_000), Share { bytes: 0, is_complete: true });
    }

    #[test]
    fn stalled_queue_keeps_history() {
        let mut history = History::default();
        history.push(ALL, &sample(&[(1, 0), (2, 0)]));
        history.push(ALL, &sample(&[(1, 800), (2, 200)]));
        for busy in 0..3 * HISTORY as u64 {
            let mut ingress = sample(&[(1, 800), (2, 200)]);
            ingress.values_mut().for_each(|ingress| ingress[0] = busy);
            history.push(ALL, &ingress);
        }
        assert_eq!(shares(&history, 1_000), (800, 200, true));
    }

    #[test]
    fn disabled_queue_has_no_history() {
        let mut history = History::default();
        history.push(1 << 3, &sample(&[(1, 0), (2, 0)]));
        history.push(1 << 3, &sample(&[(1, 800), (2, 200)]));
        assert_eq!(history.0.each_ref().map(VecDeque::len), [0, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!(shares(&history, 1_000), (800, 200, true));
        // Samples from before a gap would be mixed with those after it.
        history.push(1 << 4, &sample(&[(1, 900), (2, 900)]));
        history.push(1 << 3, &sample(&[(1, 1_000), (2, 2_000)]));
        assert_eq!(shares(&history, 1_000), (0, 0, false));
    }

    #[test]
    fn ports_change_during_backlog() {
        let mut history = History::default();
        history.push(ALL, &sample(&[(1, 5_000), (2, 0)]));
        history.push(ALL, &sample(&[(1, 5_600), (2, 400)]));
        // A third port is counted separately, and has arrivals.
        history.push(ALL, &sample(&[(1, 5_600), (2, 400), (3, 0)]));
        history.push(ALL, &sample(&[(1, 5_600), (2, 400), (3, 500)]));
        assert_eq!(shares(&history, 1_500), (600, 400, true));
        assert_eq!(share(&history, 3, 1_500).bytes, 500);
        // The first port is removed: its backlog is taken for older bytes.
        history.forget(1);
        history.push(ALL, &sample(&[(2, 450), (3, 500)]));
        assert_eq!(share(&history, 2, 50), Share { bytes: 50, is_complete: true });
        assert_eq!(share(&history, 1, 50).bytes, 0);
    }

    proptest! {
        /// Compares with a queue of single bytes, each with its ingress port.
        #[test]
        fn shares_match_real_queue(
            steps in prop::collection::vec((0u64..50, 0u64..50, 0usize..120), 1..60),
        ) {
            let mut history = History::default();
            let mut queue: VecDeque<u32> = VecDeque::new();
            let mut totals = [0_u64; 2];
            history.push(ALL, &sample(&[(1, 0), (2, 0)]));
            for (one, two, leave) in steps {
                // Arrivals of the two ports between samples.
                queue.extend(std::iter::repeat_n(1, one as usize).chain(std::iter::repeat_n(2, two as usize)));
                totals = [totals[0] + one, totals[1] + two];
                queue.drain(..leave.min(queue.len()));
                history.push(ALL, &sample(&[(1, totals[0]), (2, totals[1])]));
                let waits = |port| queue.iter().filter(|of| **of == port).count() as u64;
                let depth = queue.len() as u64;
                let (one, two, is_complete) = shares(&history, depth);
                prop_assert!(is_complete);
                // Exact except for arrivals between two samples, whose order is unknown.
                prop_assert!(one.abs_diff(waits(1)) <= 50 && two.abs_diff(waits(2)) <= 50);
                prop_assert!((one + two).abs_diff(depth) <= 1);
            }
        }
    }
}
