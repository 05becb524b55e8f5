//! Report of a sweep: a row per run, as a table and as CSV.

use std::fmt;
use std::io::{self, Write};

use dcqcn_support::render::{self, Table};
use serde::Serialize;
use serde_json::{Map, Value};

use super::outcome::{Depth, Kind};
use super::presets::Setting;
use super::report::{Report, percent, size};
use crate::network::Fct;

/// A sweep: settings that differ, and the report of each combination.
#[derive(Clone, Debug, Serialize)]
pub struct SweepReport {
    /// The runs, in order.
    pub runs: Vec<SweepRun>,
}

/// One combination.
#[derive(Clone, Debug, Serialize)]
pub struct SweepRun {
    /// Settings, as text.
    pub at: Map<String, Value>,
    /// Results.
    #[serde(flatten)]
    pub report: Report,
}

impl SweepRun {
    /// The run at `settings`.
    pub fn new(settings: &[Setting], report: Report) -> Self {
        let at = settings.iter().map(|Setting { key, text }| (key.clone(), text.as_str().into()));
        Self { at: at.collect(), report }
    }
}

/// A column of the sweep's table and its CSV.
struct Column {
    heading: &'static str,
    csv: &'static str,
    /// Raw value; NaN if there is none.
    value: fn(&Report) -> f64,
    text: fn(f64) -> String,
}

fn count(value: f64) -> String {
    format!("{value}")
}

fn time(ns: f64) -> String {
    render::ns(ns.round() as u64)
}

fn queue(report: &Report, value: fn(&Depth) -> f64) -> f64 {
    report.roce_class().map_or(f64::NAN, |class| value(&class.queue))
}

fn fct(report: &Report, value: fn(&Fct) -> u64) -> f64 {
    let roce = report.outcome.groups.iter().filter(|group| group.kind == Kind::Roce);
    roce.filter_map(|group| group.fct.as_ref()).map(|fct| value(fct) as f64).fold(f64::NAN, f64::max)
}

const COLUMNS: &[Column] = &[
    Column {
        heading: ">GOODPUT",
        csv: "roce_goodput_bps",
        value: |r| r.goodput_bps(true),
        text: render::bps,
    },
    Column {
        heading: ">OF LINK",
        csv: "roce_link_share",
        value: |r| r.goodput_bps(true) / r.outcome.port_rate_bps as f64,
        text: percent,
    },
    Column {
        heading: ">TCP",
        csv: "tcp_goodput_bps",
        value: |r| if r.has(false) { r.goodput_bps(false) } else { f64::NAN },
        text: render::bps,
    },
    Column { heading: ">JAIN", csv: "roce_jain", value: Report::jain, text: |value| format!("{value:.3}") },
    Column { heading: ">QUEUE", csv: "queue_mean_bytes", value: |r| queue(r, |q| q.mean_bytes), text: size },
    Column {
        heading: ">FLUID",
        csv: "model_queue_bytes",
        value: |r| r.fixed_point.map_or(f64::NAN, |point| point.queue_bytes),
        text: size,
    },
    Column {
        heading: ">EVENTS",
        csv: "cycle_model_queue_bytes",
        value: |r| r.cycle_fixed_point.map_or(f64::NAN, |point| point.queue_bytes),
        text: size,
    },
    Column {
        heading: ">DEVIATION",
        csv: "queue_deviation_bytes",
        value: |r| queue(r, |q| q.deviation_bytes),
        text: size,
    },
    Column {
        heading: ">P50",
        csv: "queue_p50_bytes",
        value: |r| queue(r, |q| q.p50_bytes as f64),
        text: size,
    },
    Column {
        heading: ">P99",
        csv: "queue_p99_bytes",
        value: |r| queue(r, |q| q.p99_bytes as f64),
        text: size,
    },
    Column {
        heading: ">MAX",
        csv: "queue_max_bytes",
        value: |r| queue(r, |q| q.max_bytes as f64),
        text: size,
    },
    Column {
        heading: ">DEV/MEAN",
        csv: "queue_deviation_share",
        value: |r| r.oscillation.map_or(f64::NAN, |o| o.queue_variation),
        text: percent,
    },
    Column {
        heading: ">FLUID DEV/MEAN",
        csv: "fluid_queue_deviation_share",
        value: |r| r.fluid_settled.map_or(f64::NAN, |s| s.deviation_bytes / s.mean_bytes),
        text: percent,
    },
    Column {
        heading: ">SWING",
        csv: "rate_swing_link_share",
        value: |r| r.oscillation.and_then(|o| o.rate_swing).unwrap_or(f64::NAN),
        text: percent,
    },
    Column {
        heading: ">BUSY",
        csv: "link_utilisation",
        value: |r| r.outcome.link_utilisation,
        text: percent,
    },
    Column {
        heading: ">MARKED",
        csv: "roce_marked_packets",
        value: |r| r.roce_class().map_or(f64::NAN, |class| class.marked_packets as f64),
        text: count,
    },
    Column { heading: ">CNPS", csv: "roce_cnps", value: |r| r.total(|g| g.totals.cnps) as f64, text: count },
    Column {
        heading: ">DROPPED",
        csv: "roce_dropped_packets",
        value: |r| r.total(|g| g.totals.dropped_packets) as f64,
        text: count,
    },
    Column {
        heading: ">RESENT",
        csv: "roce_retransmitted_packets",
        value: |r| r.total(|g| g.totals.retransmitted_packets) as f64,
        text: count,
    },
    Column {
        heading: ">PAUSES",
        csv: "pauses",
        value: |r| r.outcome.classes.iter().map(|class| class.pauses as f64).sum(),
        text: count,
    },
    Column { heading: ">FCT P50", csv: "fct_p50_ns", value: |r| fct(r, |fct| fct.p50_ns), text: time },
    Column { heading: ">FCT P95", csv: "fct_p95_ns", value: |r| fct(r, |fct| fct.p95_ns), text: time },
    Column { heading: ">FCT P99", csv: "fct_p99_ns", value: |r| fct(r, |fct| fct.p99_ns), text: time },
    Column {
        heading: ">FAIR AFTER",
        csv: "convergence_ns",
        value: |r| r.outcome.convergence_ns.map_or(f64::NAN, |ns| ns as f64),
        text: time,
    },
];

impl SweepReport {
    fn keys(&self) -> Vec<&str> {
        let first = self.runs.first();
        first.map_or_else(Vec::new, |run| run.at.keys().map(String::as_str).collect())
    }

    /// Columns with a value in some run. Drops are always included, since their absence is informative.
    fn columns(&self) -> Vec<&'static Column> {
        let rare = ["roce_retransmitted_packets", "pauses"];
        let shown = |column: &&Column| {
            let mut values = self.runs.iter().map(|run| (column.value)(&run.report));
            let least = if rare.contains(&column.csv) { 1.0 } else { f64::MIN };
            values.any(|value| value >= least)
        };
        COLUMNS.iter().filter(shown).collect()
    }

    /// Writes a line per run: the settings that differ, then raw values, with units in the names; empty if there is
    /// none.
    pub fn write_csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let keys = self.keys();
        let names: Vec<&str> = keys.iter().copied().chain(COLUMNS.iter().map(|column| column.csv)).collect();
        writeln!(out, "{}", names.join(","))?;
        for SweepRun { at, report } in &self.runs {
            let settings =
                keys.iter().map(|key| at.get(*key).and_then(Value::as_str).unwrap_or_default().to_owned());
            let values = COLUMNS.iter().map(|column| match (column.value)(report) {
                value if value.is_finite() => value.to_string(),
                _ => String::new(),
            });
            let cells: Vec<String> = settings.chain(values).collect();
            writeln!(out, "{}", cells.join(","))?;
        }
        Ok(())
    }
}

impl fmt::Display for SweepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys();
        let columns = self.columns();
        let headings: Vec<String> = keys.iter().map(|key| format!(">{key}")).collect();
        let headings: Vec<&str> =
            headings.iter().map(String::as_str).chain(columns.iter().map(|column| column.heading)).collect();
        let mut table = Table::new(&headings);
        for SweepRun { at, report } in &self.runs {
            let settings =
                keys.iter().map(|key| at.get(*key).and_then(Value::as_str).unwrap_or_default().to_owned());
            let values = columns.iter().map(|column| match (column.value)(report) {
                value if value.is_finite() => (column.text)(value),
                _ => "-".to_owned(),
            });
            table.row(settings.chain(values).collect::<Vec<_>>());
        }
        write!(f, "{table}")
    }
}
