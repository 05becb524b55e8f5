//! Report of a fabric, as text, as JSON, and as a row of a sweep's table.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use dcqcn_params::word;
use dcqcn_support::render::{self, Column, Table, count};
use serde::Serialize;
use serde_json::{Map, Value};

use super::FabricSetup;
use crate::RunCost;
use crate::network::{
    ClassOutcome, CollectiveOutcome, Fct, FctBand, FlowOutcome, Outcome, PortOutcome, Scenario,
};
use crate::report::{parameters, size};
use crate::sweep_report::{Column as SweepColumn, NAN, SweepRow, count as number, time};

/// Number of ports listed: those with the deepest queues.
const PORT_ROWS: usize = 8;

/// Results of one simulation.
#[derive(Clone, Debug, Serialize)]
pub struct FabricReport {
    /// Settings, raw, with their unit in the name; `null`: none.
    pub settings: Map<String, Value>,
    /// DCQCN parameters that differ from the profile, as text.
    pub parameters: Map<String, Value>,
    pub hosts: u32,
    pub switches: u32,
    pub links: usize,
    /// Flows of the workload, without computations.
    pub flows: usize,
    /// Flows that started and were not complete at the end.
    pub unfinished_flows: usize,
    pub not_started_flows: usize,
    /// Computations, starts and ends of collectives that were not complete at the end.
    pub unfinished_computations: usize,
    #[serde(flatten)]
    pub outcome: Outcome,
    pub run: RunCost,
}

/// Flows between hosts: the others are computations, and start and end of collectives.
fn sent(flows: &[FlowOutcome]) -> impl Iterator<Item = &FlowOutcome> {
    flows.iter().filter(|flow| flow.src != flow.dst)
}

impl FabricReport {
    pub fn new(setup: &FabricSetup, scenario: &Scenario, outcome: Outcome, wall: Duration) -> Self {
        let left = |has_started: bool| {
            let is_left =
                |flow: &&FlowOutcome| flow.fct_ns.is_none() && flow.start_ns.is_some() == has_started;
            sent(&outcome.flows).filter(is_left).count()
        };
        Self {
            settings: setup.settings(scenario),
            parameters: parameters(&setup.changes),
            hosts: scenario.topology.hosts,
            switches: scenario.topology.switches,
            links: scenario.topology.links.len(),
            flows: sent(&outcome.flows).count(),
            unfinished_flows: left(true),
            not_started_flows: left(false),
            unfinished_computations: outcome
                .flows
                .iter()
                .filter(|flow| flow.src == flow.dst && flow.fct_ns.is_none())
                .count(),
            run: RunCost::new(outcome.work.hops, wall),
            outcome,
        }
    }
}

/// Writes a line per flow between hosts: `flow,src,dst,bytes,start_ns,fct_ns,ideal_ns`.
pub fn write_flows(file: &mut dyn Write, flows: &[FlowOutcome]) -> io::Result<()> {
    writeln!(file, "flow,src,dst,bytes,start_ns,fct_ns,ideal_ns")?;
    let text = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    for (number, flow) in sent(flows).enumerate() {
        let FlowOutcome { src, dst, bytes, start_ns, fct_ns, ideal_ns } = *flow;
        writeln!(file, "{number},{src},{dst},{bytes},{},{},{ideal_ns}", text(start_ns), text(fct_ns))?;
    }
    Ok(())
}

fn slowdown(value: f64) -> String {
    format!("{value:.2}")
}

fn band(row: &FctBand) -> String {
    let [min, max] = [row.min_bytes, row.max_bytes].map(render::bytes);
    if row.min_bytes == row.max_bytes { min } else { format!("{min} to {max}") }
}

fn fct_row(name: String, fct: &Fct) -> Vec<String> {
    [name].into_iter().chain(fct_cells(fct)).collect()
}

/// Headings of [`fct_cells`] after the count.
pub(crate) const FCT_HEADINGS: [&str; 7] =
    [">FCT P50", ">P95", ">P99", ">MAX", ">SLOWDOWN P50", ">P95", ">P99"];

/// Count, FCT p50, p95, p99 and maximum, slowdown p50, p95 and p99.
pub(crate) fn fct_cells(fct: &Fct) -> [String; 8] {
    [
        fct.count.to_string(),
        render::ns(fct.p50_ns),
        render::ns(fct.p95_ns),
        render::ns(fct.p99_ns),
        render::ns(fct.max_ns),
        slowdown(fct.slowdown_p50),
        slowdown(fct.slowdown_p95),
        slowdown(fct.slowdown_p99),
    ]
}

impl fmt::Display for FabricReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}, {}, {}: {} in {}\n",
            count(self.hosts, "host"),
            count(self.switches, "switch"),
            count(self.links, "link"),
            count(self.flows, "flow"),
            render::ns(self.outcome.duration_ns)
        )?;
        let left = [
            (self.unfinished_flows, "incomplete at the end"),
            (self.not_started_flows, "not started by the end"),
        ];
        for (flows, state) in left.into_iter().filter(|(flows, _)| *flows != 0) {
            writeln!(f, "{flows} of {} {state}; increase --duration\n", count(self.flows, "flow"))?;
        }
        // Otherwise they wait for flows.
        if left.iter().all(|(flows, _)| *flows == 0) && self.unfinished_computations != 0 {
            let computations = count(self.unfinished_computations, "computation");
            writeln!(f, "{computations} incomplete at the end; increase --duration\n")?;
        }
        let mut table = Table::new(&[&["SIZE", ">FLOWS"], &FCT_HEADINGS[..]].concat());
        for row in self.outcome.fct_by_size.iter().filter(|_| self.outcome.fct_by_size.len() > 1) {
            table.row(fct_row(band(row), &row.fct));
        }
        if let Some(fct) = &self.outcome.fct {
            table.row(fct_row("all".to_owned(), fct));
        }
        writeln!(f, "{table}")?;
        self.write_collectives(f)?;
        self.write_classes(f)?;
        self.write_ports(f)?;
        let t = &self.outcome.transport;
        writeln!(
            f,
            "{}, {} of them retransmitted; {} marked; {}; {}; {}",
            count(t.data_packets, "data packet"),
            t.retransmitted_packets,
            t.marked_packets,
            count(t.cnps_handled, "CNP"),
            count(t.naks, "NAK"),
            count(t.timeouts, "timeout")
        )?;
        if t.probes != 0 {
            writeln!(f, "{}", count(t.probes, "tail-loss probe"))?;
        }
        if t.storms != 0 {
            writeln!(f, "{} detected by watchdogs", count(t.storms, "pause storm"))?;
        }
        writeln!(
            f,
            "{:.1} M hops simulated in {:.1} s: {:.1} M per second",
            self.outcome.work.hops as f64 / 1e6,
            self.run.wall_seconds,
            self.run.hops_per_second / 1e6
        )
    }
}

impl FabricReport {
    fn write_collectives(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.outcome.collectives.is_empty() {
            return Ok(());
        }
        let mut slowest: Vec<&CollectiveOutcome> = self.outcome.collectives.iter().collect();
        slowest.sort_by_key(|collective| std::cmp::Reverse(collective.time_ns));
        let columns: &[Column<'_, &CollectiveOutcome>] = &[
            ("SLOWEST COLLECTIVES", &|collective| word(&collective.collective)),
            (">BYTES", &|collective| render::bytes(collective.bytes)),
            (">RANKS", &|collective| collective.ranks.to_string()),
            (">TIME", &|collective| render::ns(collective.time_ns)),
            (">MEDIAN RANK", &|collective| render::ns(collective.median_ns)),
            (">FIRST RANK", &|collective| render::ns(collective.first_ns)),
            ("LAST", &|collective| collective.last_host.clone()),
        ];
        writeln!(f, "{}", Table::of(slowest.into_iter().take(PORT_ROWS), columns))
    }

    fn write_classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: &[Column<'_, &ClassOutcome>] = &[
            (">CLASS", &|class| class.class.to_string()),
            (">DEEPEST QUEUE", &|class| render::bytes(class.max_queue_bytes)),
            (">MARKED", &|class| class.marked_packets.to_string()),
            (">DROPPED", &|class| class.dropped_packets.to_string()),
            (">LOST", &|class| class.lost_packets.to_string()),
            (">TRIMMED", &|class| class.trimmed_packets.to_string()),
            (">BY WATCHDOG", &|class| class.storm_dropped_packets.to_string()),
            (">PAUSES", &|class| class.pauses.to_string()),
            (">SWITCHES PAUSED FOR", &|class| render::ns(class.switch_paused_ns)),
            (">HOSTS PAUSED FOR", &|class| render::ns(class.host_paused_ns)),
        ];
        writeln!(f, "{}", Table::of(&self.outcome.classes, columns))
    }

    fn write_ports(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |paused_ns: u64| paused_ns as f64 / self.outcome.duration_ns.max(1) as f64 * 100.0;
        let columns: &[Column<'_, &PortOutcome>] = &[
            ("DEEPEST PORTS", &|port| port.switch.clone()),
            ("TO", &|port| port.peer.clone()),
            (">QUEUE", &|port| render::bytes(port.max_queue_bytes)),
            (">SENT", &|port| render::bytes(port.tx_bytes)),
            (">OF LINK TIME PAUSED", &|port| format!("{:.1} %", share(port.paused_ns))),
        ];
        let deepest = self.outcome.ports.iter().take(PORT_ROWS).filter(|port| port.max_queue_bytes != 0);
        writeln!(f, "{}", Table::of(deepest, columns))
    }
}

fn fct(report: &FabricReport, value: fn(&Fct) -> f64) -> f64 {
    report.outcome.fct.as_ref().map_or(NAN, value)
}

fn sum(report: &FabricReport, value: fn(&ClassOutcome) -> u64) -> f64 {
    report.outcome.classes.iter().map(value).sum::<u64>() as f64
}

fn collectives(report: &FabricReport, value: fn(&[u64]) -> u64) -> f64 {
    let times: Vec<u64> = report.outcome.collectives.iter().map(|collective| collective.time_ns).collect();
    if times.is_empty() { NAN } else { value(&times) as f64 }
}

impl SweepRow for FabricReport {
    const COLUMNS: &'static [SweepColumn<Self>] = &[
        (">FLOWS", "flows", |r| r.flows as f64, number),
        (">LEFT", "unfinished_flows", |r| r.unfinished_flows as f64, number),
        (">NOT STARTED", "not_started_flows", |r| r.not_started_flows as f64, number),
        (">FCT P50", "fct_p50_ns", |r| fct(r, |fct| fct.p50_ns as f64), time),
        (">P95", "fct_p95_ns", |r| fct(r, |fct| fct.p95_ns as f64), time),
        (">P99", "fct_p99_ns", |r| fct(r, |fct| fct.p99_ns as f64), time),
        (">MAX", "fct_max_ns", |r| fct(r, |fct| fct.max_ns as f64), time),
        (">SLOWDOWN P50", "slowdown_p50", |r| fct(r, |fct| fct.slowdown_p50), slowdown),
        (">P95", "slowdown_p95", |r| fct(r, |fct| fct.slowdown_p95), slowdown),
        (">P99", "slowdown_p99", |r| fct(r, |fct| fct.slowdown_p99), slowdown),
        (
            ">QUEUE",
            "max_queue_bytes",
            |r| r.outcome.classes.iter().map(|class| class.max_queue_bytes).max().unwrap_or(0) as f64,
            size,
        ),
        (">DROPPED", "dropped_packets", |r| sum(r, |class| class.dropped_packets), number),
        (">PAUSES", "switch_pauses", |r| sum(r, |class| class.pauses), number),
        (">CNPS", "cnps_handled", |r| r.outcome.transport.cnps_handled as f64, number),
        (
            ">COLLECTIVE MEAN",
            "collective_mean_ns",
            |r| collectives(r, |times| times.iter().sum::<u64>() / times.len() as u64),
            time,
        ),
        (">MAX", "collective_max_ns", |r| collectives(r, |t| t.iter().copied().max().unwrap_or(0)), time),
    ];
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::fabric::setup;
    use crate::network::Simulation as _;
    use crate::network::workload::Wait;

    #[test]
    fn csv_omits_computations() {
        let flow = |dst| FlowOutcome { src: 1, dst, bytes: 9, start_ns: Some(5), fct_ns: None, ideal_ns: 7 };
        let mut csv = Vec::new();
        write_flows(&mut csv, &[flow(1), flow(2)]).unwrap();
        let text = String::from_utf8(csv).unwrap();
        assert_eq!(text, "flow,src,dst,bytes,start_ns,fct_ns,ideal_ns\n0,1,2,9,5,,7\n");
    }

    #[test]
    fn incomplete_computation_reported() {
        let setup = setup("--topology leaf-spine:1x0x4 --workload incast:3 --size 1MB --duration 10ms");
        let mut scenario = setup.scenario().unwrap();
        let after = scenario.workload.compute(0, 10_000_000);
        scenario.workload.after(after, 0, Wait::Delivered);
        let report = |scenario: &Scenario| {
            let outcome = scenario.run(1, &mut |_| ControlFlow::Continue(())).unwrap();
            FabricReport::new(&setup, scenario, outcome, Duration::ZERO)
        };
        let incomplete = report(&scenario);
        assert_eq!((incomplete.unfinished_flows, incomplete.unfinished_computations), (0, 1));
        assert!(incomplete.to_string().contains("1 computation incomplete at the end; "), "{incomplete}");
        scenario.duration_ns = 20_000_000;
        assert_eq!(report(&scenario).unfinished_computations, 0);
    }

    #[test]
    fn late_flow_not_started_rather_than_incomplete() {
        let setup = setup("--topology leaf-spine:1x0x4 --workload incast:3 --size 1MB --duration 100us");
        let mut scenario = setup.scenario().unwrap();
        let late = scenario.workload.flow(1, 0, 3, 1_000, 100_000);
        scenario.workload.flow(1, 0, 3, 1_000, 100_001);
        let after = scenario.workload.flow(1, 2, 3, 1_000, 0);
        scenario.workload.after(after, late, Wait::Acknowledged);
        let outcome = scenario.run(1, &mut |_| ControlFlow::Continue(())).unwrap();
        let starts: Vec<_> = outcome.flows.iter().map(|flow| flow.start_ns).collect();
        assert_eq!(starts, [Some(0), Some(0), Some(0), Some(100_000), None, None]);
        let report = FabricReport::new(&setup, &scenario, outcome, Duration::ZERO);
        assert_eq!((report.flows, report.unfinished_flows, report.not_started_flows), (6, 4, 2));
        let text = report.to_string();
        for line in ["4 of 6 flows incomplete at the end; ", "2 of 6 flows not started by the end; "] {
            assert!(text.contains(line), "{text}");
        }
    }
}
