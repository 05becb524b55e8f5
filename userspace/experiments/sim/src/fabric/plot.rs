//! Pictures of a fabric: slowdown by size, depths of queues over switches and time, pauses over time.

use std::path::Path;

use dcqcn_support::plot::{COLOURS, Cell, Chart, Curve, Line, Marks, heat, largest, mean, thin_out};
use dcqcn_support::render::{self, count};

use super::report::FabricReport;
use crate::Error;
use crate::network::{Fct, Samples, SwitchSamples};
use crate::plot::{draw, time_axis};

/// Number of switches drawn: those with the deepest queues.
const ROWS: usize = 32;
/// Steps of the legend of depths.
const STEPS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

pub fn write_picture(path: &Path, report: &FabricReport) -> Result<(), Error> {
    let (hosts, switches) = (count(report.hosts, "host"), count(report.switches, "switch"));
    let title = format!("{hosts}, {switches}: {}", count(report.flows, "flow"));
    let mut charts = vec![slowdown(report)];
    if let Some(samples) = &report.outcome.samples {
        charts.push(depths(report, samples));
        charts.push(pauses(report, samples));
    }
    draw(path, &title, &charts)
}

/// A point per band of sizes, in its middle.
fn slowdown(report: &FabricReport) -> Chart {
    let middle = |min: u64, max: u64| (min as f64).max(1.0).log10().midpoint((max as f64).max(1.0).log10());
    let of = |name: &str, fct: &Fct| match name {
        "p50" => fct.slowdown_p50,
        "p95" => fct.slowdown_p95,
        _ => fct.slowdown_p99,
    };
    let lines = ["p50", "p95", "p99"].into_iter().zip(COLOURS).map(|(name, colour)| {
        let curve: Curve = report
            .outcome
            .fct_by_size
            .iter()
            .map(|band| (middle(band.min_bytes, band.max_bytes), of(name, &band.fct)))
            .collect();
        // A point alone would be invisible.
        let curve = match curve.as_slice() {
            [(bytes, value)] => vec![(bytes - 0.05, *value), (bytes + 0.05, *value)],
            _ => curve,
        };
        Line::new(name, curve, colour, 2)
    });
    let lines: Vec<Line> = lines.collect();
    let points = || lines.iter().flat_map(|line| &line.curve);
    let start = points().map(|point| point.0).fold(f64::INFINITY, f64::min).floor();
    let start = if start.is_finite() { start } else { 0.0 };
    let end = points().map(|point| point.0).fold(start + 1.0, f64::max).ceil();
    let top = points().map(|point| point.1).fold(1.0, f64::max) * 1.05;
    Chart {
        caption: "slowdown by size: completion time relative to an empty fabric".to_owned(),
        across: "size",
        up: "slowdown",
        start,
        end,
        top,
        lines,
        marks: Marks::Decades,
        ..Chart::default()
    }
}

fn deepest(switch: &SwitchSamples) -> u32 {
    switch.max_queue_bytes.iter().copied().max().unwrap_or(0)
}

fn depths(report: &FabricReport, samples: &Samples) -> Chart {
    let (across, unit_ns, end) = time_axis(report.outcome.duration_ns);
    let mut switches: Vec<&SwitchSamples> = samples.switches.iter().collect();
    switches.sort_by_key(|switch| std::cmp::Reverse(deepest(switch)));
    let all = switches.len();
    switches.truncate(ROWS);
    // In the fabric's order, the first on top.
    let order = |switch: &SwitchSamples| samples.switches.iter().position(|own| own.switch == switch.switch);
    switches.sort_by_key(|switch| std::cmp::Reverse(order(switch)));
    let most = switches.iter().map(|switch| deepest(switch)).max().unwrap_or(0).max(1);
    let step = samples.interval_ns as f64 / unit_ns;
    let mut cells = Vec::new();
    for (row, switch) in switches.iter().enumerate() {
        let depths = switch.max_queue_bytes.iter().enumerate();
        let curve =
            thin_out(depths.map(|(index, depth)| (index as f64 * step, f64::from(*depth))), end, largest);
        let ends = curve.iter().skip(1).map(|point| point.0).chain([end]);
        for ((from, depth), to) in curve.iter().zip(ends).filter(|((_, depth), _)| *depth > 0.0) {
            let up = [row as f64, row as f64 + 1.0];
            cells.push(Cell { across: [*from, to], up, colour: heat(depth / f64::from(most)) });
        }
    }
    let legend = STEPS.iter().rev().map(|share| {
        let bytes = (f64::from(most) * share) as u64;
        Line::new(render::bytes(bytes), Curve::new(), heat(*share), 10)
    });
    let which = if all > ROWS { format!(", the {ROWS} deepest of {all} switches") } else { String::new() };
    Chart {
        caption: format!("queue: the deepest port of each switch{which}"),
        across,
        up: "",
        end,
        top: switches.len() as f64,
        lines: legend.collect(),
        cells,
        rows: switches.iter().map(|switch| switch.switch.clone()).collect(),
        ..Chart::default()
    }
}

fn pauses(report: &FabricReport, samples: &Samples) -> Chart {
    let (across, unit_ns, end) = time_axis(report.outcome.duration_ns);
    let interval_ns = samples.interval_ns as f64;
    let intervals = samples.switches.first().map_or(0, |switch| switch.paused_ns.len());
    let of_switches = |index: usize| {
        samples.switches.iter().filter_map(|switch| switch.paused_ns.get(index)).sum::<u64>() as f64
    };
    let of_hosts = |index: usize| samples.hosts_paused_ns.get(index).copied().unwrap_or(0) as f64;
    let curve = |of: &dyn Fn(usize) -> f64| {
        let points =
            (0..intervals).map(|index| (index as f64 * interval_ns / unit_ns, of(index) / interval_ns));
        thin_out(points, end, mean)
    };
    let lines = vec![
        Line::new("of switches", curve(&of_switches), COLOURS[0], 1),
        Line::new("of hosts", curve(&of_hosts), COLOURS[1], 1),
    ];
    let top = lines.iter().flat_map(|line| &line.curve).map(|point| point.1).fold(1.0, f64::max) * 1.05;
    let caption = "paused ports, averaged over each interval".to_owned();
    Chart { caption, across, up: "ports", end, top, lines, ..Chart::default() }
}
