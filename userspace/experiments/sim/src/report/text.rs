//! A report as text.

use std::fmt;

use dcqcn_params::fluid::{FixedPoint, SteadyState};
use dcqcn_support::render::{self, Table};

use super::{Oscillation, Report, Stage, percent, size};
use crate::fabric::fct_cells;
use crate::outcome::Kind;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { preset, outcome, .. } = self;
        writeln!(
            f,
            "{preset}: {} through {}, results of the last {}\n",
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

/// Maximum number of flows with a line each.
const MAX_FLOW_ROWS: usize = 12;

impl Report {
    fn write_groups(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&[
            "GROUP",
            "KIND",
            ">CLASS",
            ">FLOWS",
            ">GOODPUT",
            ">OF LINK",
            ">JAIN",
            ">SENT",
            ">RETRANSMITTED",
            ">DROPPED",
            ">TIMEOUTS",
            ">CNPS",
            ">MESSAGES",
            ">FCT P50",
            ">FCT P95",
            ">FCT P99",
            ">SLOWDOWN P50",
            ">P99",
        ]);
        for group in &self.outcome.groups {
            let fct = |text: fn(&crate::network::Fct) -> u64| {
                or_dash(group.fct.as_ref(), |fct| render::ns(text(fct)))
            };
            table.row([
                group.name.clone(),
                match group.kind {
                    Kind::Roce => "RoCE",
                    Kind::Cubic => "CUBIC",
                    Kind::Dctcp => "DCTCP",
                }
                .to_owned(),
                group.class.to_string(),
                group.flows.to_string(),
                render::bps(group.goodput_bps),
                percent(group.goodput_bps / self.outcome.port_rate_bps as f64),
                format!("{:.3}", group.jain),
                group.totals.sent_packets.to_string(),
                group.totals.retransmitted_packets.to_string(),
                group.totals.dropped_packets.to_string(),
                group.totals.timeouts.to_string(),
                group.totals.cnps.to_string(),
                group.totals.messages.to_string(),
                fct(|fct| fct.p50_ns),
                fct(|fct| fct.p95_ns),
                fct(|fct| fct.p99_ns),
                or_dash(group.fct.as_ref(), |fct| format!("{:.2}", fct.slowdown_p50)),
                or_dash(group.fct.as_ref(), |fct| format!("{:.2}", fct.slowdown_p99)),
            ]);
        }
        write!(f, "{table}")?;
        if self.outcome.unfinished_messages != 0 {
            writeln!(
                f,
                "\n{} messages incomplete at the end; increase --duration",
                self.outcome.unfinished_messages
            )?;
        }
        self.write_sizes(f)
    }

    /// Completion times by message length, if there are several lengths.
    fn write_sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = [
            "\nGROUP",
            ">SIZE",
            ">MESSAGES",
            ">FCT P50",
            ">P95",
            ">P99",
            ">MAX",
            ">SLOWDOWN P50",
            ">P95",
            ">P99",
        ];
        let mut table = Table::new(&headings);
        let rows = self
            .outcome
            .groups
            .iter()
            .flat_map(|group| group.fct_by_size.iter().map(move |row| (group, row)));
        let mut any = false;
        for (group, row) in rows {
            let Some(fct) = &row.fct else { continue };
            any = true;
            table.row(
                [group.name.clone(), render::bytes(row.bytes)]
                    .into_iter()
                    .chain(fct_cells(fct))
                    .collect::<Vec<_>>(),
            );
        }
        if any { write!(f, "{table}") } else { Ok(()) }
    }

    /// Each flow; if there are many, the slowest and the fastest.
    fn write_flows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flows = &self.outcome.flows;
        let mut table = Table::new(&["\nFLOW", ">GOODPUT", ">CNPS", ">RETRANSMITTED", ">RATE AT THE END"]);
        let mut sorted: Vec<_> = flows.iter().collect();
        if flows.len() > MAX_FLOW_ROWS {
            sorted.sort_by(|a, b| a.goodput_bps.total_cmp(&b.goodput_bps));
            let (slowest, fastest) = (sorted.first().copied(), sorted.last().copied());
            sorted = slowest.into_iter().chain(fastest).collect();
        }
        for flow in sorted {
            table.row([
                flow.name.clone(),
                render::bps(flow.goodput_bps),
                flow.counters.cnps.to_string(),
                flow.counters.retransmitted_packets.to_string(),
                render::bps(flow.rate_bps as f64),
            ]);
        }
        if flows.len() > MAX_FLOW_ROWS {
            write!(f, "\nslowest and fastest flow:")?;
        }
        write!(f, "{table}")
    }

    fn write_classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&[
            ">CLASS",
            ">QUEUE MEAN",
            ">DEVIATION",
            ">P50",
            ">P99",
            ">MAX",
            ">MARKED",
            ">DROPPED",
            ">PAUSES",
            ">PAUSED FOR",
            ">OF BYTES",
        ]);
        for class in &self.outcome.classes {
            table.row([
                class.class.to_string(),
                size(class.queue.mean_bytes),
                size(class.queue.deviation_bytes),
                render::bytes(class.queue.p50_bytes),
                render::bytes(class.queue.p99_bytes),
                render::bytes(class.queue.max_bytes),
                class.marked_packets.to_string(),
                class.dropped_packets.to_string(),
                class.pauses.to_string(),
                render::ns(class.paused_ns),
                percent(class.tx_share),
            ]);
        }
        write!(f, "{table}")
    }

    fn write_stages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stages.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(&["STAGE", ">FLOWS", ">JAIN", "GOODPUT OF EACH, SECOND HALF"]);
        for Stage { from_ns, to_ns, goodput_bps, jain } in &self.stages {
            let goodputs: Vec<String> = goodput_bps.iter().map(|bps| render::bps(*bps)).collect();
            table.row([
                format!("{} to {}", render::ns(*from_ns), render::ns(*to_ns)),
                goodput_bps.len().to_string(),
                format!("{jain:.3}"),
                goodputs.join(", "),
            ]);
        }
        writeln!(f, "{table}")
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
        let speed = self.hops_per_second / 1e6;
        writeln!(
            f,
            "simulated {hops:.2} million packet hops in {:.2} s: {speed:.2} million/s",
            self.wall_seconds
        )
    }
}

fn or_dash<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}
