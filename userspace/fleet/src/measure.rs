//! The metrics of the gate: one table, from which limits, reports, columns and the example file derive.

use dcqcn_control_api::{QUEUE_BINS, QUEUE_PERCENT};

use crate::prelude::*;

/// Limit relative to the baseline: `times` the baseline, `plus` an amount.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limit {
    pub(crate) times: f64,
    /// Amount added (subtracted where less is worse), in the unit of the metric.
    pub(crate) plus: u64,
}

#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// Events in the window, compared per million data packets.
    Events(fn(&Counts) -> u64),
    /// Level over the window, compared directly.
    Level(fn(&VecDeque<Health>) -> u64),
    /// Data packets per second; less is worse.
    Throughput,
}

pub(crate) struct Measure {
    /// Key in `[gate]`, in reports and in JSON.
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// Column in `dcqcn-fleet status`, if any.
    pub(crate) column: Option<&'static str>,
    /// Default limit; `None` if disabled by default.
    pub(crate) limit: Option<Limit>,
    pub(crate) source: Source,
}

const fn limit(times: f64, plus: u64) -> Option<Limit> {
    Some(Limit { times, plus })
}

const fn measure(
    name: &'static str,
    column: Option<&'static str>,
    limit: Option<Limit>,
    source: Source,
    unit: &'static str,
) -> Measure {
    Measure { name, unit, column, limit, source }
}

pub(crate) const THROUGHPUT: &str = "throughput";

/// [`Reading::spread`] of a throughput whose standard error is unknown: too few parts, or all packets in one of them.
pub(crate) const UNKNOWN_SPREAD: u64 = 1_000;

#[rustfmt::skip]
pub(crate) const MEASURES: &[Measure] = &[
    measure("marks", Some("MARKS/M"), limit(1.5, 1_000), Source::Events(|counts| counts.marked_packets),
        "marked packets per million"),
    measure("cnps", Some("CNPS/M"), limit(1.5, 1_000), Source::Events(|counts| counts.cnps_sent + counts.cnps_handled),
        "CNPs sent and handled per million packets"),
    measure("drops", Some("DROPS/M"), limit(1.5, 10), Source::Events(|counts| counts.drops),
        "packets dropped by the data plane and the port's queues per million"),
    measure("interface_drops", None, None, Source::Events(|counts| counts.interface_drops),
        "packets dropped by the interface per million (unknown protocols included)"),
    measure("rdma_errors", None, limit(1.5, 10), Source::Events(|counts| counts.rdma_errors),
        "retransmissions and timeouts of RDMA devices per million packets"),
    measure("pauses", None, limit(1.5, 1_000), Source::Events(|counts| counts.pauses_received + counts.pauses_sent),
        "PFC frames received and sent per million packets"),
    measure("queue", Some("QUEUE %"), limit(1.5, 25), Source::Level(queue),
        "percent of Kmax in the deepest queue on average"),
    measure("queue_p99", None, limit(1.5, 50), Source::Level(queue_p99),
        "percent of Kmax in the deepest queue (99th percentile)"),
    measure("floor", None, limit(1.5, 20), Source::Level(floor), "percent of sending flows at their lowest rate"),
    measure(THROUGHPUT, Some("PACKETS/S"), limit(0.7, 0), Source::Throughput, "data packets per second"),
];

pub(crate) fn find(name: &str) -> Option<&'static Measure> {
    MEASURES.iter().find(|measure| measure.name == name)
}

pub(crate) fn default_limits() -> BTreeMap<String, Limit> {
    MEASURES.iter().filter_map(|measure| Some((measure.name.to_owned(), measure.limit?))).collect()
}

pub(crate) fn example() -> String {
    let line = |measure: &Measure| {
        let value = match measure.limit {
            Some(Limit { times, plus }) => format!("{{ times = {times:?}, plus = {plus} }}"),
            None => "false".into(),
        };
        let (name, unit) = (measure.name, measure.unit);
        format!("  {:<46} # {unit}\n", format!("{name} = {value}"))
    };
    MEASURES.iter().map(line).collect()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Reading {
    /// Event count, level, or data packets per second.
    pub(crate) value: u64,
    /// Events: variance-to-mean ratio of the counts in equal parts of the window, in percent, at least 100.
    /// Throughput: standard error in thousandths of the value. Level: 0.
    pub(crate) spread: u64,
}

/// Average depth of the deepest queue, in percent of its Kmax.
fn queue(samples: &VecDeque<Health>) -> u64 {
    let percent =
        |counts: &Counts| counts.queue_bytes.saturating_mul(100).checked_div(counts.kmax_bytes).unwrap_or(0);
    let deepest = |health: &Health| health.interfaces.values().map(percent).max().unwrap_or(0);
    let sum = samples.iter().map(deepest).fold(0, u64::saturating_add);
    sum.checked_div(samples.len() as u64).unwrap_or(0)
}

/// 99th percentile of the depth of the deepest queue, in percent of its Kmax, over the samples of the data plane.
fn queue_p99(samples: &VecDeque<Health>) -> u64 {
    let mut bins = [0; QUEUE_BINS];
    let (Some(first), Some(last)) = (samples.front(), samples.back()) else { return 0 };
    for (name, now) in &last.interfaces {
        let same = |before: &&Counts| before.attached_at_ns == now.attached_at_ns;
        let Some(before) = first.interfaces.get(name).filter(same) else { continue };
        for (bin, now) in now.queue_samples.iter().enumerate().take(QUEUE_BINS) {
            let before = before.queue_samples.get(bin).copied().unwrap_or(0);
            // A smaller counter was reset: the interface was reattached, or the daemon restarted.
            bins[bin] += now.checked_sub(before).unwrap_or(*now);
        }
    }
    percentile(&bins)
}

/// 99th percentile of a histogram. The last bucket has no upper bound and is taken as twice the bound before it.
fn percentile(samples: &[u64; QUEUE_BINS]) -> u64 {
    let total: u64 = samples.iter().sum();
    let mut seen = 0;
    for (count, bound) in samples.iter().zip(QUEUE_PERCENT) {
        seen += count;
        if seen * 100 >= total * 99 {
            return if total == 0 { 0 } else { bound };
        }
    }
    QUEUE_PERCENT.last().map_or(0, |last| 2 * last)
}

/// Average percentage of active flows at their lowest rate, over the samples with active flows.
fn floor(samples: &VecDeque<Health>) -> u64 {
    let percent = |health: &Health| {
        let sum = |of: fn(&Counts) -> u64| health.interfaces.values().map(of).sum::<u64>();
        (sum(|counts| counts.flows_at_floor) * 100).checked_div(sum(|counts| counts.active_flows))
    };
    let known: Vec<u64> = samples.iter().filter_map(percent).collect();
    known.iter().sum::<u64>().checked_div(known.len() as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_of_queue_samples() {
        assert_eq!(percentile(&[0; QUEUE_BINS]), 0);
        let mut samples = [0; QUEUE_BINS];
        (samples[0], samples[9]) = (990, 10);
        assert_eq!(percentile(&samples), 10);
        samples[9] = 11;
        assert_eq!(percentile(&samples), 100);
        samples[QUEUE_BINS - 1] = 1_000;
        assert_eq!(percentile(&samples), 600);
    }

    #[test]
    fn metrics_have_distinct_names() {
        let names: BTreeSet<_> = MEASURES.iter().map(|measure| measure.name).collect();
        assert_eq!(names.len(), MEASURES.len());
        assert!(!default_limits().contains_key("interface_drops"));
        assert!(example().contains("interface_drops = false"), "{}", example());
    }
}
