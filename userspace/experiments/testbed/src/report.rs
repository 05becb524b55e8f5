//! Metrics of a run, and a table that compares runs.

use std::fmt;

use dcqcn_support::render;
use dcqcn_support::statistics::jain_index;
use dcqcn_support::statistics::{Histogram, rank};
use serde::Serialize;

use super::config::IncastConfig;
use super::record::{ControlSample, RunRecord, Sample, Window};

/// Maximum number of flows with separate rows; more are summarised by the slowest and the fastest.
const MAX_FLOW_ROWS: usize = 16;

/// An incast, run in one or several modes.
#[derive(Clone, Debug, Serialize)]
pub struct IncastReport {
    pub config: IncastConfig,
    pub runs: Vec<RunReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// Whether the data plane was attached.
    pub control: bool,
    /// Metrics without the warm-up.
    pub steady: WindowMetrics,
    pub whole: WindowMetrics,
    /// Fraction of the machine's CPU time that was busy, 0 to 1. Near 1, the metrics reflect the machine rather than
    /// the network.
    pub cpu_share: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct WindowMetrics {
    pub seconds: f64,
    pub flows: Vec<FlowMetrics>,
    /// Payload delivered by all RoCE flows, bit/s.
    pub goodput_bps: f64,
    /// Goodput as a share of the bottleneck's rate, 0 to 1. Headers take 1 to 2 % at an MTU of 4096.
    pub link_share: f64,
    /// Jain's fairness index of the flows' goodput: 1 if all are equal, 1/n if one flow has everything.
    pub jain_index: f64,
    pub drops: u64,
    /// Data packets sent, retransmissions included.
    pub packets_sent: u64,
    pub retransmissions: u64,
    pub timeouts: u64,
    pub naks: u64,
    /// Data packets that reached the receiver with a CE mark.
    pub ce_received: u64,
    /// Counters of the data plane; `None` without it.
    pub control: Option<ControlCounters>,
    /// Depth of the bottleneck's RoCE queue, bytes.
    pub queue_bytes: Quantiles,
    /// One-way delay of RoCE data packets, ns.
    pub delay_ns: Quantiles,
    pub tcp_goodput_bps: Vec<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct FlowMetrics {
    pub name: String,
    pub goodput_bps: f64,
    pub retransmissions: u64,
    pub timeouts: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct ControlCounters {
    pub ce_marks: u64,
    pub cnps_sent: u64,
    pub cnps_handled: u64,
    pub cnps_ignored: u64,
    /// Depth of the switch's virtual queue for RoCE, bytes; `None` if it marks by the real one.
    pub virtual_queue_bytes: Option<Quantiles>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

impl Quantiles {
    /// The distribution of a list of values; zeros if it is empty.
    pub(crate) fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let at = |percent| {
            let rank = rank(values.len() as u64, percent);
            usize::try_from(rank - 1).ok().and_then(|index| values.get(index)).copied().unwrap_or(0)
        };
        Self { p50: at(50.0), p99: at(99.0), max: at(100.0) }
    }
}

impl From<&Histogram> for Quantiles {
    fn from(histogram: &Histogram) -> Self {
        Self { p50: histogram.percentile(50.0), p99: histogram.percentile(99.0), max: histogram.max() }
    }
}

impl From<&RunRecord> for RunReport {
    fn from(record: &RunRecord) -> Self {
        Self {
            control: record.control.is_some(),
            steady: WindowMetrics::of(record, record.steady()),
            whole: WindowMetrics::of(record, record.whole()),
            cpu_share: record.cpu_share,
        }
    }
}

impl WindowMetrics {
    /// Metrics of a run inside `window`, which is the whole run or the run without its warm-up.
    fn of(record: &RunRecord, window: Window) -> Self {
        let per_second = |bytes: u64| bytes as f64 * 8.0 / window.seconds();
        let flows: Vec<_> = record
            .flows
            .iter()
            .map(|flow| FlowMetrics {
                name: flow.name.clone(),
                goodput_bps: per_second(flow.received.goodput_bytes.sum(window)),
                retransmissions: flow.sent.retransmissions.sum(window),
                timeouts: flow.sent.timeouts.sum(window),
            })
            .collect();
        let mut delays = Histogram::default();
        for flow in &record.flows {
            delays.merge(&flow.received.delay_after_ns);
            if window.contains(0) {
                delays.merge(&flow.received.delay_warm_up_ns);
            }
        }
        let goodputs: Vec<_> = flows.iter().map(|flow| flow.goodput_bps).collect();
        let goodput_bps = goodputs.iter().sum();
        let samples: Vec<_> = record.samples.iter().filter(|sample| window.contains(sample.at_ns)).collect();
        let sent = |count: fn(&super::record::SentRecord) -> &super::record::Binned| {
            record.flows.iter().map(|flow| count(&flow.sent).sum(window)).sum()
        };
        Self {
            seconds: window.seconds(),
            goodput_bps,
            link_share: goodput_bps / record.link_bps as f64,
            jain_index: jain_index(&goodputs),
            drops: increase(record, &samples, |sample| sample.drops),
            packets_sent: sent(|sent| &sent.packets),
            retransmissions: sent(|sent| &sent.retransmissions),
            timeouts: sent(|sent| &sent.timeouts),
            naks: sent(|sent| &sent.naks),
            ce_received: record.flows.iter().map(|flow| flow.received.ce_packets.sum(window)).sum(),
            control: ControlCounters::of(record, &samples),
            queue_bytes: Quantiles::of(samples.iter().map(|sample| sample.backlog_bytes).collect()),
            delay_ns: Quantiles::from(&delays),
            tcp_goodput_bps: record.tcp_bytes.iter().map(|bytes| per_second(bytes.sum(window))).collect(),
            flows,
        }
    }
}

impl ControlCounters {
    fn of(record: &RunRecord, samples: &[&Sample]) -> Option<Self> {
        record.control?;
        let increase = |count: fn(&ControlSample) -> u64| {
            increase(record, samples, |sample| sample.control.as_ref().map_or(0, count))
        };
        let depths = samples.iter().filter_map(|sample| sample.control.as_ref()?.virtual_queue_bytes);
        let depths: Vec<u64> = depths.collect();
        Some(Self {
            ce_marks: increase(|control| control.ce_marks),
            cnps_sent: increase(|control| control.cnps_sent),
            cnps_handled: increase(|control| control.cnps_handled),
            cnps_ignored: increase(|control| control.cnps_ignored),
            virtual_queue_bytes: (!depths.is_empty()).then(|| Quantiles::of(depths)),
        })
    }
}

/// Increase of a counter over `samples`, which end with the last of the run. It starts at the last sample before them,
/// or at zero if they start with the run.
fn increase(record: &RunRecord, samples: &[&Sample], count: impl Fn(&Sample) -> u64) -> u64 {
    let Some((first, last)) = samples.first().zip(samples.last()) else { return 0 };
    let before = record.samples.iter().take_while(|sample| sample.at_ns < first.at_ns).last();
    count(last).saturating_sub(before.map_or(0, count))
}

impl fmt::Display for IncastReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, runs } = self;
        writeln!(f, "{config}\n")?;
        let steady = format!("after the first {}", render::seconds(config.warm_up_ns));
        let steady_columns = runs.iter().map(|run| &run.steady);
        let columns: Vec<_> = steady_columns.chain(runs.iter().map(|run| &run.whole)).collect();
        let rows = rows(&columns);

        let label_width = rows.iter().map(|row| row.label.len()).max().unwrap_or(0);
        // Wide enough for any value, and for the headings over all runs together.
        let width = 11.max(steady.len().div_ceil(runs.len().max(1)));
        write!(f, "{:label_width$}", "")?;
        let part_width = ((width + 2) * runs.len()).saturating_sub(2);
        for title in [&steady, "whole run"] {
            write!(f, "  {title:>part_width$}")?;
        }
        write!(f, "\n{:label_width$}", "")?;
        for run in runs.iter().chain(runs) {
            write!(f, "  {:>width$}", if run.control { "DCQCN" } else { "off" })?;
        }
        writeln!(f)?;
        for Row { label, cells } in rows {
            write!(f, "{label:label_width$}")?;
            for cell in cells {
                write!(f, "  {cell:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

struct Row {
    label: String,
    cells: Vec<String>,
}

/// The table, a cell per column.
fn rows(columns: &[&WindowMetrics]) -> Vec<Row> {
    let row = |label: &str, cell: &dyn Fn(&WindowMetrics) -> String| Row {
        label: label.to_owned(),
        cells: columns.iter().map(|metrics| cell(metrics)).collect(),
    };
    let controlled = |label: &str, cell: fn(&ControlCounters) -> String| {
        row(label, &|metrics| metrics.control.as_ref().map_or_else(|| "-".to_owned(), cell))
    };
    let virtual_queue = |label: &str, of: fn(&Quantiles) -> u64| {
        row(label, &|metrics| {
            let quantiles = metrics.control.as_ref().and_then(|control| control.virtual_queue_bytes.as_ref());
            quantiles.map_or_else(|| "-".to_owned(), |quantiles| render::bytes(of(quantiles)))
        })
    };
    let mut rows = flow_rows(columns);
    rows.extend([
        row("RoCE goodput, total", &|metrics| render::bps(metrics.goodput_bps)),
        row("  share of the link", &|metrics| format!("{:.1} %", metrics.link_share * 100.0)),
        row("Jain's fairness index", &|metrics| format!("{:.3}", metrics.jain_index)),
    ]);
    let tcp_flows = columns.iter().map(|metrics| metrics.tcp_goodput_bps.len()).max().unwrap_or(0);
    for flow in 0..tcp_flows {
        rows.push(row(&format!("TCP goodput, flow {flow}"), &|metrics| {
            render::bps(metrics.tcp_goodput_bps.get(flow).copied().unwrap_or(0.0))
        }));
    }
    rows.extend([
        row("bottleneck drops, packets", &|metrics| metrics.drops.to_string()),
        row("retransmissions, packets", &|metrics| metrics.retransmissions.to_string()),
        row("  by timeout, times", &|metrics| metrics.timeouts.to_string()),
        row("  by NAK, times", &|metrics| metrics.naks.to_string()),
        controlled("CE marks", |control| control.ce_marks.to_string()),
        controlled("CNPs sent", |control| control.cnps_sent.to_string()),
        controlled("CNPs handled", |control| control.cnps_handled.to_string()),
        row("queue, p50", &|metrics| render::bytes(metrics.queue_bytes.p50)),
        row("queue, p99", &|metrics| render::bytes(metrics.queue_bytes.p99)),
        row("queue, max", &|metrics| render::bytes(metrics.queue_bytes.max)),
        virtual_queue("virtual queue, p50", |quantiles| quantiles.p50),
        virtual_queue("virtual queue, p99", |quantiles| quantiles.p99),
        virtual_queue("virtual queue, max", |quantiles| quantiles.max),
        row("one-way delay, p50", &|metrics| delay(metrics, |quantiles| quantiles.p50)),
        row("one-way delay, p99", &|metrics| delay(metrics, |quantiles| quantiles.p99)),
    ]);
    rows
}

/// A delay; `-` if no packet was measured.
fn delay(metrics: &WindowMetrics, of: impl Fn(&Quantiles) -> u64) -> String {
    match metrics.delay_ns {
        Quantiles { max: 0, .. } => "-".to_owned(),
        ref quantiles => render::ns(of(quantiles)),
    }
}

/// The goodput of each flow, or of the slowest and the fastest of many.
fn flow_rows(columns: &[&WindowMetrics]) -> Vec<Row> {
    let goodputs =
        |metrics: &WindowMetrics| metrics.flows.iter().map(|flow| flow.goodput_bps).collect::<Vec<_>>();
    let row = |label: String, cell: &dyn Fn(&[f64]) -> f64| Row {
        label,
        cells: columns.iter().map(|metrics| render::bps(cell(&goodputs(metrics)))).collect(),
    };
    let flows = columns.first().map_or(&[][..], |metrics| &metrics.flows);
    if flows.len() > MAX_FLOW_ROWS {
        return vec![
            row("RoCE goodput, slowest flow".to_owned(), &|all| all.iter().copied().fold(f64::MAX, f64::min)),
            row("RoCE goodput, fastest flow".to_owned(), &|all| all.iter().copied().fold(0.0, f64::max)),
        ];
    }
    let one = |(index, flow): (usize, &FlowMetrics)| {
        row(format!("RoCE goodput, {}", flow.name), &|all| all.get(index).copied().unwrap_or(0.0))
    };
    flows.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests;
