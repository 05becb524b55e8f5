//! A report as text.

use std::fmt;

use dcqcn_params::fluid::{FixedPoint, SteadyState};
use dcqcn_params::word;
use dcqcn_support::render::{self, Column, Table, count};

use super::{Oscillation, Report, Stage, percent, size};
use crate::fabric::{FCT_HEADINGS, fct_cells};
use crate::network::Fct;
use crate::star::{ClassOutcome, FlowOutcome, GroupOutcome, Kind, Outcome};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { preset, outcome, .. } = self;
        writeln!(
            f,
            "{}: {} through {}, results of the last {}\n",
            word(preset),
            render::ns(outcome.duration_ns),
            render::bps(outcome.port_rate_bps as f64),
            render::ns(outcome.duration_ns - outcome.stats_from_ns)
        )?;
        self.write_groups(f)?;
        self.write_flows(f)?;
        writeln!(f)?;
        self.write_classes(f)?;
        writeln!(f)?;
        self.write_stages(f)?;
        self.write_rest(f)
    }
}

const MAX_FLOW_ROWS: usize = 12;

impl Report {
    fn write_groups(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |of: fn(&Fct) -> u64| {
            move |group: &&GroupOutcome| or_dash(group.fct.as_ref(), |fct| render::ns(of(fct)))
        };
        let slowdown = |of: fn(&Fct) -> f64| {
            move |group: &&GroupOutcome| or_dash(group.fct.as_ref(), |fct| format!("{:.2}", of(fct)))
        };
        let port_bps = self.outcome.port_rate_bps as f64;
        let columns: &[Column<'_, &GroupOutcome>] = &[
            ("GROUP", &|group| group.name.clone()),
            ("KIND", &|group| kind(group.kind).to_owned()),
            (">CLASS", &|group| group.class.to_string()),
            (">FLOWS", &|group| group.flows.to_string()),
            (">GOODPUT", &|group| render::bps(group.goodput_bps)),
            (">OF LINK", &|group| percent(group.goodput_bps / port_bps)),
            (">JAIN", &|group| format!("{:.3}", group.jain)),
            (">SENT", &|group| group.totals.sent_packets.to_string()),
            (">RETRANSMITTED", &|group| group.totals.retransmitted_packets.to_string()),
            (">DROPPED", &|group| group.totals.dropped_packets.to_string()),
            (">TIMEOUTS", &|group| group.totals.timeouts.to_string()),
            (">CNPS", &|group| group.totals.cnps.to_string()),
            (">MESSAGES", &|group| group.totals.messages.to_string()),
            (">FCT P50", &time(|fct| fct.p50_ns)),
            (">FCT P95", &time(|fct| fct.p95_ns)),
            (">FCT P99", &time(|fct| fct.p99_ns)),
            (">SLOWDOWN P50", &slowdown(|fct| fct.slowdown_p50)),
            (">P99", &slowdown(|fct| fct.slowdown_p99)),
        ];
        let table = Table::of(&self.outcome.groups, columns);
        write!(f, "{table}")?;
        let Outcome { unfinished_messages, not_started_messages, .. } = self.outcome;
        let left = [
            (unfinished_messages, "incomplete at the end"),
            (not_started_messages, "not started by the end"),
        ];
        for (messages, state) in left.into_iter().filter(|(messages, _)| *messages != 0) {
            writeln!(f, "\n{} {state}; increase --duration", count(messages, "message"))?;
        }
        self.write_sizes(f)
    }

    /// Completion times by message length, if there are several lengths.
    fn write_sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.outcome.groups.iter();
        let rows = groups.flat_map(|group| group.fct_by_size.iter().map(move |row| (group, row)));
        let mut table = Table::new(&[&["\nGROUP", ">SIZE", ">MESSAGES"], &FCT_HEADINGS[..]].concat());
        for (group, row) in rows {
            let Some(fct) = &row.fct else { continue };
            let cells = [group.name.clone(), render::bytes(row.bytes)].into_iter().chain(fct_cells(fct));
            table.row(cells.collect::<Vec<_>>());
        }
        if table.is_empty() { Ok(()) } else { write!(f, "{table}") }
    }

    /// Each flow; if there are many, the slowest and the fastest.
    fn write_flows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flows = &self.outcome.flows;
        let mut sorted: Vec<_> = flows.iter().collect();
        if flows.len() > MAX_FLOW_ROWS {
            sorted.sort_by(|a, b| a.goodput_bps.total_cmp(&b.goodput_bps));
            let (slowest, fastest) = (sorted.first().copied(), sorted.last().copied());
            sorted = slowest.into_iter().chain(fastest).collect();
        }
        let columns: &[Column<'_, &FlowOutcome>] = &[
            ("\nFLOW", &|flow| flow.name.clone()),
            (">GOODPUT", &|flow| render::bps(flow.goodput_bps)),
            (">CNPS", &|flow| flow.counters.cnps.to_string()),
            (">RETRANSMITTED", &|flow| flow.counters.retransmitted_packets.to_string()),
            (">RATE AT THE END", &|flow| render::bps(flow.rate_bps as f64)),
        ];
        let table = Table::of(sorted, columns);
        if flows.len() > MAX_FLOW_ROWS {
            write!(f, "\nslowest and fastest flow:")?;
        }
        write!(f, "{table}")
    }

    fn write_classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: &[Column<'_, &ClassOutcome>] = &[
            (">CLASS", &|class| class.class.to_string()),
            (">QUEUE MEAN", &|class| size(class.queue.mean_bytes)),
            (">DEVIATION", &|class| size(class.queue.deviation_bytes)),
            (">P50", &|class| render::bytes(class.queue.p50_bytes)),
            (">P99", &|class| render::bytes(class.queue.p99_bytes)),
            (">MAX", &|class| render::bytes(class.queue.max_bytes)),
            (">MARKED", &|class| class.marked_packets.to_string()),
            (">DROPPED", &|class| class.dropped_packets.to_string()),
            (">PAUSES", &|class| class.pauses.to_string()),
            (">PAUSED FOR", &|class| render::ns(class.paused_ns)),
            (">OF BYTES", &|class| percent(class.tx_share)),
        ];
        write!(f, "{}", Table::of(&self.outcome.classes, columns))
    }

    fn write_stages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stages.is_empty() {
            return Ok(());
        }
        let goodputs =
            |stage: &&Stage| stage.goodput_bps.iter().map(|bps| render::bps(*bps)).collect::<Vec<_>>();
        let columns: &[Column<'_, &Stage>] = &[
            ("STAGE", &|stage| format!("{} to {}", render::ns(stage.from_ns), render::ns(stage.to_ns))),
            (">FLOWS", &|stage| stage.goodput_bps.len().to_string()),
            (">JAIN", &|stage| format!("{:.3}", stage.jain)),
            ("GOODPUT OF EACH, SECOND HALF", &|stage| goodputs(stage).join(", ")),
        ];
        writeln!(f, "{}", Table::of(&self.stages, columns))
    }

    fn write_rest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { outcome, fixed_point, cycle_fixed_point, fluid_settled, oscillation, .. } = self;
        write!(f, "link busy {}", percent(outcome.link_utilisation))?;
        if let Some(converged_ns) = outcome.convergence_ns {
            write!(f, "; fair {} after the last start", render::ns(converged_ns))?;
        }
        writeln!(f)?;
        for (name, point) in [("fluid model", fixed_point), ("event by event", cycle_fixed_point)] {
            let Some(FixedPoint { marking_probability, queue_bytes, beyond_pmax }) = point else { continue };
            let p = marking_probability * 100.0;
            let queue = size(*queue_bytes);
            if *beyond_pmax {
                writeln!(
                    f,
                    "{name}: p* = {p:.3} % is above Pmax, so the queue oscillates around Kmax = {queue}"
                )?;
            } else {
                writeln!(f, "{name}: p* = {p:.3} %, queue {queue}")?;
            }
        }
        if let Some(SteadyState { mean_bytes, deviation_bytes }) = fluid_settled {
            let (mean, share) = (size(*mean_bytes), percent(deviation_bytes / mean_bytes));
            writeln!(f, "fluid model over time: queue {mean}, deviating by {share} of that")?;
        }
        if let Some(Oscillation { queue_variation, rate_swing, .. }) = oscillation {
            write!(f, "standard deviation of the queue: {} of its mean", percent(*queue_variation))?;
            match rate_swing {
                Some(swing) => writeln!(f, "; swing of the sum of rates: {} of the link", percent(*swing))?,
                None => writeln!(f)?,
            }
        }
        let hops = outcome.counters.hops as f64 / 1e6;
        let speed = self.run.hops_per_second / 1e6;
        writeln!(
            f,
            "simulated {hops:.2} million packet hops in {:.2} s: {speed:.2} million/s",
            self.run.wall_seconds
        )
    }
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Roce => "RoCE",
        Kind::Cubic => "CUBIC",
        Kind::Dctcp => "DCTCP",
    }
}

fn or_dash<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}
