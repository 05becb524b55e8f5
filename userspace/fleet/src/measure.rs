//! The measures of the gate: one table from which limits, reports, columns, the example file and the documentation derive.

use std::collections::{BTreeMap, VecDeque};

use dcqcn_control_api::{Counts, Health, QUEUE_BINS, QUEUE_PERCENT};
use serde::{Deserialize, Serialize};

/// Allowed deviation from the baseline: `times` the baseline, `plus` an amount.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limit {
    /// Factor on the baseline.
    pub(crate) times: f64,
    /// Amount added to it (subtracted where less is worse), in the unit of the measure.
    pub(crate) plus: u64,
}

/// How a measure is read.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// Events since the start of the window, compared per million data packets.
    Events(fn(&Counts) -> u64),
    /// Level over the window, compared as it is.
    Level(fn(&VecDeque<Health>) -> u64),
    /// Data packets a second; less is worse.
    Throughput,
}

/// A measure.
pub(crate) struct Measure {
    /// Its key in `[gate]`, in reports and in JSON.
    pub(crate) name: &'static str,
    /// Its unit, as messages print it.
    pub(crate) unit: &'static str,
    /// Its column in `dcqcn-fleet status`, if it has one.
    pub(crate) column: Option<&'static str>,
    /// Its default limit; none if it is off by default.
    pub(crate) limit: Option<Limit>,
    /// How it is read.
    pub(crate) source: Source,
}

const fn limit(times: f64, plus: u64) -> Option<Limit> {
    Some(Limit { times, plus })
}

/// Name of the measure of throughput.
pub(crate) const THROUGHPUT: &str = "throughput";

/// Standard error of a throughput that cannot be told, in thousandths: too few parts, or all packets in one of them.
pub(crate) const UNKNOWN_SPREAD: u64 = 1_000;

/// Every measure.
pub(crate) const MEASURES: &[Measure] = &[
    Measure {
        name: "marks",
        unit: "marked packets in a million",
        column: Some("MARKS/M"),
        limit: limit(1.5, 1_000),
        source: Source::Events(|counts| counts.marked_packets),
    },
    Measure {
        name: "cnps",
        unit: "CNPs sent and handled per million packets",
        column: Some("CNPS/M"),
        limit: limit(1.5, 1_000),
        source: Source::Events(|counts| counts.cnps_sent + counts.cnps_handled),
    },
    Measure {
        name: "drops",
        unit: "packets dropped by the data plane and the port's queues per million",
        column: Some("DROPS/M"),
        limit: limit(1.5, 10),
        source: Source::Events(|counts| counts.drops),
    },
    Measure {
        name: "interface_drops",
        unit: "packets dropped by the interface per million (unknown protocols included)",
        column: None,
        limit: None,
        source: Source::Events(|counts| counts.interface_drops),
    },
    Measure {
        name: "rdma_errors",
        unit: "retransmissions and time-outs of RDMA devices per million packets",
        column: None,
        limit: limit(1.5, 10),
        source: Source::Events(|counts| counts.rdma_errors),
    },
    Measure {
        name: "pauses",
        unit: "PFC frames received and sent per million packets",
        column: None,
        limit: limit(1.5, 1_000),
        source: Source::Events(|counts| counts.pauses_received + counts.pauses_sent),
    },
    Measure {
        name: "queue",
        unit: "percent of Kmax in the deepest queue on average",
        column: Some("QUEUE %"),
        limit: limit(1.5, 25),
        source: Source::Level(queue),
    },
    Measure {
        name: "queue_p99",
        unit: "percent of Kmax in the deepest queue in 1 of 100 samples",
        column: None,
        limit: limit(1.5, 50),
        source: Source::Level(queue_p99),
    },
    Measure {
        name: "floor",
        unit: "of 100 sending flows at their lowest rate",
        column: None,
        limit: limit(1.5, 20),
        source: Source::Level(floor),
    },
    Measure {
        name: THROUGHPUT,
        unit: "data packets a second",
        column: Some("PACKETS/S"),
        limit: limit(0.7, 0),
        source: Source::Throughput,
    },
];

impl Measure {
    /// Whether less of it is worse.
    pub(crate) const fn is_less_worse(&self) -> bool {
        matches!(self.source, Source::Throughput)
    }
}

/// The measure of that name.
pub(crate) fn find(name: &str) -> Option<&'static Measure> {
    MEASURES.iter().find(|measure| measure.name == name)
}

/// The limits that apply unless a file changes them.
pub(crate) fn default_limits() -> BTreeMap<String, Limit> {
    MEASURES.iter().filter_map(|measure| Some((measure.name.to_owned(), measure.limit?))).collect()
}

/// The measures as the lines of `[gate]` in the example file.
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

/// One measure of one host: its value, and how much it scatters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Reading {
    /// Events counted, the level, or data packets a second.
    pub(crate) value: u64,
    /// Of events: variance of the counts of equal parts of the window over their mean, in percent, at least 100. Of throughput:
    /// standard error in thousandths of the value. Of a level: 0.
    pub(crate) spread: u64,
}

/// The deepest queue of each sample, in percent of its Kmax, on average.
fn queue(samples: &VecDeque<Health>) -> u64 {
    let percent =
        |counts: &Counts| counts.queue_bytes.saturating_mul(100).checked_div(counts.kmax_bytes).unwrap_or(0);
    let deepest = |health: &Health| health.interfaces.values().map(percent).max().unwrap_or(0);
    let sum = samples.iter().map(deepest).fold(0, u64::saturating_add);
    sum.checked_div(samples.len() as u64).unwrap_or(0)
}

/// Percent of Kmax below which the deepest queue was in 99 of 100 samples of the data plane.
fn queue_p99(samples: &VecDeque<Health>) -> u64 {
    let mut looks = [0; QUEUE_BINS];
    let (Some(first), Some(last)) = (samples.front(), samples.back()) else { return 0 };
    for (name, now) in &last.interfaces {
        let same = |before: &&Counts| before.attached_at_ns == now.attached_at_ns;
        let Some(before) = first.interfaces.get(name).filter(same) else { continue };
        for (place, now) in now.queue_samples.iter().enumerate().take(QUEUE_BINS) {
            let before = before.queue_samples.get(place).copied().unwrap_or(0);
            // A counter that went back was reset: an interface attached again, or a new controller.
            looks[place] += now.checked_sub(before).unwrap_or(*now);
        }
    }
    percentile(&looks)
}

/// The last bucket has no bound, and counts as twice the one before.
fn percentile(looks: &[u64; QUEUE_BINS]) -> u64 {
    let total: u64 = looks.iter().sum();
    let mut seen = 0;
    for (count, bound) in looks.iter().zip(QUEUE_PERCENT) {
        seen += count;
        if seen * 100 >= total * 99 {
            return if total == 0 { 0 } else { bound };
        }
    }
    QUEUE_PERCENT.last().map_or(0, |last| 2 * last)
}

/// Flows at the lowest rate, of a hundred that send, on average of the samples in which some did.
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
        let mut looks = [0; QUEUE_BINS];
        (looks[0], looks[9]) = (990, 10);
        assert_eq!(percentile(&looks), 10);
        looks[9] = 11;
        assert_eq!(percentile(&looks), 100);
        looks[QUEUE_BINS - 1] = 1_000;
        assert_eq!(percentile(&looks), 600);
    }

    #[test]
    fn measures_have_distinct_names() {
        let names: std::collections::BTreeSet<_> = MEASURES.iter().map(|measure| measure.name).collect();
        assert_eq!(names.len(), MEASURES.len());
        assert!(!default_limits().contains_key("interface_drops"));
        assert!(example().contains("interface_drops = false"), "{}", example());
    }
}
