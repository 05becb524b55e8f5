//! Rates and queue depth of a lab's runs over time, as SVG and PNG.

use std::path::{Path, PathBuf};

use dcqcn_support::plot::{
    AXIS, COLOURS, Chart, Curve, Error, LEVEL, Line, MAX_LEGEND, largest, mean, thin_out, write_both,
};
use dcqcn_support::render;
use plotters::style::{Color, RGBColor};

use super::record::{BIN_NS, Binned, RunRecord, Sample};

/// Bins for averaging goodput, 50 ms: the time of a message at a fair share of a lab's link.
const RATE_BINS: usize = 5;
const REAL_QUEUE: RGBColor = COLOURS[0];
const VIRTUAL_QUEUE: RGBColor = COLOURS[1];

const NAMED_TCP: usize = 2;

/// Writes `NAME.svg` and `NAME.png` to `directory`, which is created if necessary. The runs are stacked in order.
pub(crate) fn write(
    directory: &Path,
    name: &str,
    title: &str,
    runs: &[RunRecord],
) -> Result<[PathBuf; 2], Error> {
    let charts: Vec<Chart> = runs.iter().flat_map(|run| [rates(run), queue(run)]).collect();
    write_both(directory, name, title, &charts)
}

fn chart(run: &RunRecord, caption: String, up: &'static str, top: f64, lines: Vec<Line>) -> Chart {
    Chart { caption, across: "time, s", up, end: run.whole().seconds(), top, lines, ..Chart::default() }
}

fn rates(run: &RunRecord) -> Chart {
    let seconds = run.whole().seconds();
    let link_mbps = run.link_bps as f64 / 1e6;
    let mut lines = Vec::new();
    let named = MAX_LEGEND - run.tcp_bytes.len().min(NAMED_TCP);
    for (index, (flow, colour)) in run.flows.iter().zip(COLOURS.iter().cycle()).enumerate() {
        // Behind its goodput: the rate allowed by the flow's reaction point.
        let limits = run.samples.iter().filter_map(|sample| rate_limit_mbps(sample, index));
        let curve = thin_out(limits, seconds, mean);
        lines.push(Line { label: None, curve, colour: colour.mix(0.4), width: 1, dashed: false });
        let goodput = Line::new(&flow.name, rate_mbps(&flow.received.goodput_bytes), *colour, 2);
        let label = goodput.label.filter(|_| index < named);
        lines.push(Line { label, ..goodput });
    }
    for (index, bytes) in run.tcp_bytes.iter().enumerate() {
        let colour = if index % 2 == 0 { LEVEL } else { AXIS };
        let line = Line::new(format!("TCP {index}"), rate_mbps(bytes), colour, 1);
        let label = line.label.filter(|_| index < NAMED_TCP);
        lines.push(Line { label, ..line });
    }
    let fair_mbps = run.roce_bps as f64 / 1e6 / run.flows.len().max(1) as f64;
    lines.push(Line::level("fair share", seconds, fair_mbps));
    let caption = match run.control {
        Some(_) => "DCQCN: goodput of each QP, with its allowed rate in a light colour",
        None => "Off: goodput of each QP",
    };
    let flows = run.flows.len();
    let legend = if named < flows { format!("; the legend names {named} of {flows}") } else { String::new() };
    chart(run, format!("{caption}{legend}"), "Mbit/s", link_mbps * 1.1, lines)
}

fn queue(run: &RunRecord) -> Chart {
    let seconds = run.whole().seconds();
    let curve = |depth: fn(&Sample) -> Option<u64>| {
        let point = |sample: &Sample| Some((sample.at_ns as f64 / 1e9, depth(sample)? as f64 / 1e3));
        thin_out(run.samples.iter().filter_map(point), seconds, largest)
    };
    let mut lines = vec![Line::new("real", curve(|sample| Some(sample.backlog_bytes)), REAL_QUEUE, 2)];
    // The real queue never exceeds the buffer, so all runs have this scale. A virtual queue has no buffer, and may be
    // deeper.
    let mut levels = vec![("buffer", run.buffer_bytes, LEVEL)];
    if let Some(thresholds) = run.control {
        let depth = |sample: &Sample| sample.control.as_ref()?.virtual_queue_bytes;
        let virtual_queue = curve(depth);
        if !virtual_queue.is_empty() {
            lines.push(Line::new("virtual", virtual_queue, VIRTUAL_QUEUE, 1));
        }
        levels.extend([
            ("Kmin", thresholds.kmin_bytes, COLOURS[4]),
            ("Kmax", thresholds.kmax_bytes, COLOURS[3]),
        ]);
    }
    let top_kb = levels.iter().map(|level| level.1).max().unwrap_or(1) as f64 * 1.1 / 1e3;
    for (name, bytes, colour) in levels {
        let label = format!("{name}, {}", render::bytes(bytes));
        lines.push(Line { colour: colour.into(), ..Line::level(label, seconds, bytes as f64 / 1e3) });
    }
    let state = if run.control.is_some() { "DCQCN" } else { "Off" };
    let caption = format!("{state}: depth of the bottleneck's RoCE queue, the maximum of each interval");
    chart(run, caption, "KB", top_kb, lines)
}

fn rate_limit_mbps(sample: &Sample, flow: usize) -> Option<(f64, f64)> {
    let limit_bps = (*sample.control.as_ref()?.rates_bps.get(flow)?)?;
    Some((sample.at_ns as f64 / 1e9, limit_bps as f64 / 1e6))
}

/// A byte counter as a rate, Mbit/s, at the middle of each of [`RATE_BINS`] intervals.
fn rate_mbps(bytes: &Binned) -> Curve {
    let bins: Vec<_> = bytes.iter().collect();
    let stretch = |bins: &[(u64, u64)]| {
        let start_ns = bins.first().map_or(0, |bin| bin.0);
        let bytes: u64 = bins.iter().map(|bin| bin.1).sum();
        let length_ns = bins.len() as u64 * BIN_NS;
        ((start_ns + length_ns / 2) as f64 / 1e9, bytes as f64 * 8e3 / length_ns as f64)
    };
    bins.chunks(RATE_BINS).map(stretch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_becomes_rate() {
        let mut bytes = Binned::new(100_000_000);
        for ms in 0..100 {
            bytes.add(ms * 1_000_000, 1250);
        }
        assert_eq!(rate_mbps(&bytes), [(0.025, 10.0), (0.075, 10.0)]);
    }
}
