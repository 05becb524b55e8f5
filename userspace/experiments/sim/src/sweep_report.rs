//! Report of a sweep: a row per run, as a table and as CSV.

use std::fmt;
use std::io::{self, Write};

use dcqcn_params::fluid::FixedPoint;
use dcqcn_support::render::{self, Table};
use serde::Serialize;
use serde_json::{Map, Value};

use super::presets::Setting;
use super::report::{Report, percent, size};
use crate::network::Fct;
use crate::star::Depth;

/// A sweep: settings that differ, and the report of each combination.
#[derive(Clone, Debug, Serialize)]
pub struct SweepReport<R> {
    pub runs: Vec<SweepRun<R>>,
}

/// One combination.
#[derive(Clone, Debug, Serialize)]
pub struct SweepRun<R> {
    pub at: Map<String, Value>,
    #[serde(flatten)]
    pub report: R,
}

impl<R> SweepRun<R> {
    pub fn new(settings: Vec<Setting>, report: R) -> Self {
        let at = settings.into_iter().map(|Setting { key, text }| (key, text.into()));
        Self { at: at.collect(), report }
    }
}

pub trait SweepRow: Sized + 'static {
    const COLUMNS: &'static [Column<Self>];
}

/// A value that does not exist.
pub(crate) const NAN: f64 = f64::NAN;

/// A column of the sweep's table and its CSV: both names, the raw value or [`NAN`], and its text.
pub(crate) type Column<R> = (&'static str, &'static str, fn(&R) -> f64, fn(f64) -> String);

pub(crate) fn count(value: f64) -> String {
    format!("{value}")
}

pub(crate) fn time(ns: f64) -> String {
    render::ns(ns.round() as u64)
}

fn queue(report: &Report, value: fn(&Depth) -> f64) -> f64 {
    report.roce_class().map_or(NAN, |class| value(&class.queue))
}

fn fct(report: &Report, value: fn(&Fct) -> u64) -> f64 {
    let fcts = report.groups(true).filter_map(|group| group.fct.as_ref());
    fcts.map(|fct| value(fct) as f64).fold(NAN, f64::max)
}

/// Queue of a model's fixed point; NaN if there is none.
fn model(point: Option<FixedPoint>) -> f64 {
    point.map_or(NAN, |point| point.queue_bytes)
}

/// NaN without TCP.
fn tcp_goodput(report: &Report) -> f64 {
    report.groups(false).next().map_or(NAN, |_| report.goodput_bps(false))
}

fn fluid_deviation(report: &Report) -> f64 {
    report.fluid_settled.map_or(NAN, |settled| settled.deviation_bytes / settled.mean_bytes)
}

impl SweepRow for Report {
    const COLUMNS: &'static [Column<Self>] = &[
        (">GOODPUT", "roce_goodput_bps", |r| r.goodput_bps(true), render::bps),
        (">OF LINK", "roce_link_share", |r| r.goodput_bps(true) / r.outcome.port_rate_bps as f64, percent),
        (">TCP", "tcp_goodput_bps", tcp_goodput, render::bps),
        (">JAIN", "roce_jain", Report::jain, |value| format!("{value:.3}")),
        (">QUEUE", "queue_mean_bytes", |r| queue(r, |q| q.mean_bytes), size),
        (">FLUID", "model_queue_bytes", |r| model(r.fixed_point), size),
        (">EVENTS", "cycle_model_queue_bytes", |r| model(r.cycle_fixed_point), size),
        (">DEVIATION", "queue_deviation_bytes", |r| queue(r, |q| q.deviation_bytes), size),
        (">P50", "queue_p50_bytes", |r| queue(r, |q| q.p50_bytes as f64), size),
        (">P99", "queue_p99_bytes", |r| queue(r, |q| q.p99_bytes as f64), size),
        (">MAX", "queue_max_bytes", |r| queue(r, |q| q.max_bytes as f64), size),
        (">DEV/MEAN", "queue_deviation_share", |r| r.oscillation.map_or(NAN, |o| o.queue_variation), percent),
        (">FLUID DEV/MEAN", "fluid_queue_deviation_share", fluid_deviation, percent),
        (
            ">SWING",
            "rate_swing_link_share",
            |r| r.oscillation.and_then(|o| o.rate_swing).unwrap_or(NAN),
            percent,
        ),
        (">BUSY", "link_utilisation", |r| r.outcome.link_utilisation, percent),
        (
            ">MARKED",
            "roce_marked_packets",
            |r| r.roce_class().map_or(NAN, |c| c.marked_packets as f64),
            count,
        ),
        (">CNPS", "roce_cnps", |r| r.total(|c| c.cnps), count),
        (">DROPPED", "roce_dropped_packets", |r| r.total(|c| c.dropped_packets), count),
        (">RESENT", "roce_retransmitted_packets", |r| r.total(|c| c.retransmitted_packets), count),
        (">PAUSES", "pauses", |r| r.outcome.classes.iter().map(|class| class.pauses as f64).sum(), count),
        (">FCT P50", "fct_p50_ns", |r| fct(r, |fct| fct.p50_ns), time),
        (">FCT P95", "fct_p95_ns", |r| fct(r, |fct| fct.p95_ns), time),
        (">FCT P99", "fct_p99_ns", |r| fct(r, |fct| fct.p99_ns), time),
        (">FAIR AFTER", "convergence_ns", |r| r.outcome.convergence_ns.map_or(NAN, |ns| ns as f64), time),
    ];
}

impl<R: SweepRow> SweepReport<R> {
    fn keys(&self) -> Vec<&str> {
        let first = self.runs.first();
        first.map_or_else(Vec::new, |run| run.at.keys().map(String::as_str).collect())
    }

    /// Columns with a value in some run. Drops are always included, since their absence is informative.
    fn columns(&self) -> Vec<&'static Column<R>> {
        let rare = ["roce_retransmitted_packets", "pauses", "not_started_flows"];
        let shown = |(_, csv, value, _): &&Column<R>| {
            let mut values = self.runs.iter().map(|run| value(&run.report));
            let least = if rare.contains(csv) { 1.0 } else { f64::MIN };
            values.any(|value| value >= least)
        };
        R::COLUMNS.iter().filter(shown).collect()
    }

    /// Writes a line per run: the settings that differ, then raw values, with units in the names; empty if there is
    /// none.
    pub fn write_csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let keys = self.keys();
        let names: Vec<&str> = keys.iter().copied().chain(R::COLUMNS.iter().map(|column| column.1)).collect();
        writeln!(out, "{}", names.join(","))?;
        for SweepRun { at, report } in &self.runs {
            let settings =
                keys.iter().map(|key| at.get(*key).and_then(Value::as_str).unwrap_or_default().to_owned());
            let values = R::COLUMNS.iter().map(|(_, _, value, _)| match value(report) {
                value if value.is_finite() => value.to_string(),
                _ => String::new(),
            });
            let cells: Vec<String> = settings.chain(values).collect();
            writeln!(out, "{}", cells.join(","))?;
        }
        Ok(())
    }
}

impl<R: SweepRow> fmt::Display for SweepReport<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys();
        let columns = self.columns();
        let headings: Vec<String> = keys.iter().map(|key| format!(">{key}")).collect();
        let headings: Vec<&str> =
            headings.iter().map(String::as_str).chain(columns.iter().map(|column| column.0)).collect();
        let mut table = Table::new(&headings);
        for SweepRun { at, report } in &self.runs {
            let settings =
                keys.iter().map(|key| at.get(*key).and_then(Value::as_str).unwrap_or_default().to_owned());
            let values = columns.iter().map(|(_, _, value, text)| match value(report) {
                value if value.is_finite() => text(value),
                _ => "-".to_owned(),
            });
            table.row(settings.chain(values).collect::<Vec<_>>());
        }
        write!(f, "{table}")
    }
}
