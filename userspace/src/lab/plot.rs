//! Rate and queue depth over time, as SVG and PNG.
//!
//! The drawing code knows no file format: it is generic over plotters' backend.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::record::{BIN_NS, Binned, RunRecord, Sample};
use super::units;

/// Width of the picture, pixels.
const WIDTH: u32 = 1200;
/// Height of its title, pixels.
const TITLE_HEIGHT: u32 = 44;
/// Height of each chart, pixels. A run has two.
const CHART_HEIGHT: u32 = 270;
/// Goodput is averaged over this many bins, 50 ms: as long as a message takes at a fair share of a lab's link.
const RATE_BINS: usize = 5;
/// Name plotters knows the font by. SVG viewers use a font of their own in its place.
const FONT: &str = "sans-serif";
/// Colours that all kinds of colour vision tell apart (Okabe and Ito, "Color Universal Design", 2008), without yellow, which
/// is faint on white.
const FLOW_COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x00, 0x00),
];
const REAL_QUEUE: RGBColor = FLOW_COLOURS[0];
const VIRTUAL_QUEUE: RGBColor = FLOW_COLOURS[1];
const LIMIT: RGBColor = RGBColor(0x99, 0x99, 0x99);
const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
const AXIS: RGBColor = RGBColor(0x44, 0x44, 0x44);
/// Flows named in the legend; the others are drawn without a name.
const MAX_LEGEND_FLOWS: usize = 10;

/// A curve: seconds, and the unit of the axis.
type Curve = Vec<(f64, f64)>;

/// Writes `NAME.svg` and `NAME.png` into `directory`, which is made if need be. The runs are stacked in order.
///
/// # Errors
/// A file cannot be written.
pub fn write(directory: &Path, name: &str, title: &str, runs: &[&RunRecord]) -> Result<[PathBuf; 2]> {
    register_font()?;
    fs::create_dir_all(directory).with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let size = (WIDTH, TITLE_HEIGHT + CHART_HEIGHT * 2 * runs.len() as u32);
    let files = [directory.join(format!("{name}.svg")), directory.join(format!("{name}.png"))];
    let [svg, png] = &files;
    let failed = |file: &Path, error: &dyn std::fmt::Display| anyhow!("cannot write {}: {error}", file.display());
    draw(&SVGBackend::new(svg, size).into_drawing_area(), title, runs).map_err(|error| failed(svg, &error))?;
    draw(&BitMapBackend::new(png, size).into_drawing_area(), title, runs).map_err(|error| failed(png, &error))?;
    Ok(files)
}

/// Gives plotters a font: it has none, and to look for one on the machine needs C libraries.
fn register_font() -> Result<()> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let register =
        || plotters::style::register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT).is_ok();
    if *REGISTERED.get_or_init(register) { Ok(()) } else { Err(anyhow!("the embedded font cannot be read")) }
}

type Area<DB> = DrawingArea<DB, Shift>;
type Drawn<DB> = std::result::Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// Draws everything.
fn draw<DB: DrawingBackend>(area: &Area<DB>, title: &str, runs: &[&RunRecord]) -> Drawn<DB> {
    area.fill(&WHITE)?;
    let area = area.titled(title, (FONT, 24).into_font().color(&AXIS))?;
    for (run, area) in runs.iter().zip(area.split_evenly((runs.len(), 1))) {
        let (rates, queue) = area.split_vertically(CHART_HEIGHT);
        draw_rates(&rates, run)?;
        draw_queue(&queue, run)?;
    }
    area.present()
}

/// How a curve is drawn.
struct Line {
    label: Option<String>,
    curve: Curve,
    style: ShapeStyle,
    dashed: bool,
}

impl Line {
    fn solid(label: impl Into<String>, curve: Curve, colour: RGBColor, width: u32) -> Self {
        Self { label: Some(label.into()), curve, style: colour.stroke_width(width), dashed: false }
    }

    /// A horizontal line across the run.
    fn level(label: impl Into<String>, seconds: f64, level: f64, colour: RGBColor) -> Self {
        let curve = vec![(0.0, level), (seconds, level)];
        Self { label: Some(label.into()), curve, style: colour.stroke_width(1), dashed: true }
    }
}

fn draw_rates<DB: DrawingBackend>(area: &Area<DB>, run: &RunRecord) -> Drawn<DB> {
    let seconds = run.whole().seconds();
    let link_mbps = run.link_bps as f64 / 1e6;
    let mut lines = vec![Line::level(
        "fair share",
        seconds,
        link_mbps / (run.flows.len() + run.tcp_bytes.len()).max(1) as f64,
        LIMIT,
    )];
    for (index, (flow, colour)) in run.flows.iter().zip(FLOW_COLOURS.iter().cycle()).enumerate() {
        // Behind its goodput: what the flow's reaction point allows it.
        let limits = run.samples.iter().filter_map(|sample| rate_limit_mbps(sample, index));
        let limits = thin_out(limits, seconds, |values| values.iter().sum::<f64>() / values.len() as f64);
        if !limits.is_empty() {
            let style = colour.mix(0.35).stroke_width(1);
            lines.push(Line { label: None, curve: limits, style, dashed: false });
        }
        let mut line = Line::solid(&flow.name, rate_mbps(&flow.received.goodput_bytes), *colour, 2);
        line.label = line.label.filter(|_| index < MAX_LEGEND_FLOWS);
        lines.push(line);
    }
    for (index, bytes) in run.tcp_bytes.iter().enumerate() {
        let colour = if index % 2 == 0 { LIMIT } else { AXIS };
        lines.push(Line::solid(format!("TCP {index}"), rate_mbps(bytes), colour, 1));
    }
    let caption = match run.control {
        Some(_) => "DCQCN: goodput of each queue pair (faint: its rate limit)",
        None => "off: goodput of each queue pair",
    };
    draw_chart(area, caption, "Mb/s", seconds, link_mbps * 1.05, &lines)
}

fn draw_queue<DB: DrawingBackend>(area: &Area<DB>, run: &RunRecord) -> Drawn<DB> {
    let seconds = run.whole().seconds();
    let depth = |depth: fn(&Sample) -> Option<u64>| {
        let points = run.samples.iter().filter_map(|sample| {
            depth(sample).map(|bytes| (sample.at_ns as f64 / 1e9, bytes as f64 / 1e3))
        });
        thin_out(points, seconds, |values| values.iter().copied().fold(0.0, f64::max))
    };
    let mut lines = Vec::new();
    let virtual_queue = depth(|sample| sample.control.as_ref().map(|control| control.virtual_queue_bytes));
    if !virtual_queue.is_empty() {
        lines.push(Line::solid("virtual queue", virtual_queue, VIRTUAL_QUEUE, 1));
    }
    lines.push(Line::solid("real queue", depth(|sample| Some(sample.backlog_bytes)), REAL_QUEUE, 2));
    let mut top_kb = lines.iter().flat_map(|line| &line.curve).map(|point| point.1).fold(0.0, f64::max);
    let mut levels = vec![("buffer", run.buffer_bytes)];
    if let Some(thresholds) = run.control {
        levels = vec![("Kmin", thresholds.kmin_bytes), ("Kmax", thresholds.kmax_bytes)];
    }
    for (name, bytes) in levels {
        let level_kb = bytes as f64 / 1e3;
        top_kb = top_kb.max(level_kb);
        lines.push(Line::level(format!("{name} {}", units::bytes(bytes)), seconds, level_kb, AXIS));
    }
    let state = if run.control.is_some() { "DCQCN" } else { "off" };
    let caption = format!("{state}: depth of the bottleneck's RoCE queue (largest of each 10 ms)");
    draw_chart(area, &caption, "kB", seconds, top_kb.max(1.0) * 1.1, &lines)
}

/// One chart: axes, lines and legend.
fn draw_chart<DB: DrawingBackend>(
    area: &Area<DB>,
    caption: &str,
    unit: &str,
    seconds: f64,
    top: f64,
    lines: &[Line],
) -> Drawn<DB> {
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 17).into_font().color(&AXIS))
        .margin(8)
        .margin_right(150)
        .x_label_area_size(38)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..seconds, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc("time, s")
        .y_desc(unit)
        .x_labels(11)
        .y_labels(6)
        .x_label_formatter(&|x| tick(*x))
        .y_label_formatter(&|y| tick(*y))
        .max_light_lines(0)
        .bold_line_style(GRID)
        .axis_style(AXIS)
        .label_style((FONT, 14).into_font().color(&AXIS))
        .axis_desc_style((FONT, 15).into_font().color(&AXIS))
        .draw()?;
    for Line { label, curve, style, dashed } in lines {
        let points = curve.iter().copied();
        let drawn = if *dashed {
            chart.draw_series(DashedLineSeries::new(points, 6, 4, *style))?
        } else {
            chart.draw_series(LineSeries::new(points, *style))?
        };
        if let Some(label) = label {
            let style = *style;
            drawn.label(label).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::Coordinate(WIDTH as i32 - 64 - 16 - 140, 0))
        .legend_area_size(24)
        .label_font((FONT, 14).into_font().color(&AXIS))
        .draw()?;
    Ok(())
}

/// A number at an axis, without needless zeros.
fn tick(value: f64) -> String {
    format!("{:.2}", value).trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The rate a flow's reaction point allows at a sample, Mb/s.
fn rate_limit_mbps(sample: &Sample, flow: usize) -> Option<(f64, f64)> {
    let limit_bps = (*sample.control.as_ref()?.rates_bps.get(flow)?)?;
    Some((sample.at_ns as f64 / 1e9, limit_bps as f64 / 1e6))
}

/// A byte counter as a rate, Mb/s, at the middle of each stretch of [`RATE_BINS`].
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

/// Reduces a curve to one point per stretch of 1/1000 of the time, more than which the picture cannot show.
fn thin_out(points: impl Iterator<Item = (f64, f64)>, seconds: f64, reduce: fn(&[f64]) -> f64) -> Curve {
    let stretch = |time: f64| (time / seconds * 1000.0) as u64;
    let mut thin = Curve::new();
    let mut values = Vec::new();
    let mut start = None;
    for (time, value) in points {
        if let Some(begun) = start.replace(start.unwrap_or(time))
            && stretch(begun) != stretch(time)
        {
            thin.push((begun, reduce(&values)));
            values.clear();
            start = Some(time);
        }
        values.push(value);
    }
    thin.extend(start.map(|time| (time, reduce(&values))));
    thin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_peaks() {
        let points = (0..100_000).map(|i| (f64::from(i) / 1e4, if i == 77_777 { 9.0 } else { 1.0 }));
        let thin = thin_out(points, 10.0, |values| values.iter().copied().fold(0.0, f64::max));
        assert!((999..=1001).contains(&thin.len()), "{}", thin.len());
        assert_eq!(thin.iter().filter(|point| point.1 == 9.0).count(), 1);
        assert!(thin_out(std::iter::empty(), 1.0, |_| 0.0).is_empty());
    }

    #[test]
    fn a_counter_becomes_a_rate() {
        let mut bytes = Binned::new(100_000_000);
        for ms in 0..100 {
            bytes.add(ms * 1_000_000, 1250);
        }
        assert_eq!(rate_mbps(&bytes), [(0.025, 10.0), (0.075, 10.0)]);
    }

    #[test]
    fn ticks_are_short() {
        assert_eq!((tick(10.0), tick(2.5), tick(0.0)), ("10".to_owned(), "2.5".to_owned(), "0".to_owned()));
    }
}
