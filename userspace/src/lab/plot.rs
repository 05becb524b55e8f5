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
use crate::render;

/// Width of the picture, in units that are pixels at scale 1.
const WIDTH: u32 = 1200;
/// Height of its title.
const TITLE_HEIGHT: u32 = 48;
/// Height of each chart. A run has two.
const CHART_HEIGHT: u32 = 270;
/// Room in a chart: above the axes for the caption, left of them for their labels, right of them for the legend, below
/// them for labels.
const TOP: u32 = 32;
const LEFT: u32 = 76;
const RIGHT: u32 = 150;
const BOTTOM: u32 = 42;
/// Of the room left, what stays empty: half of the axis description would be cut off.
const EDGE: u32 = 12;
/// Distance between the lines of a legend.
const LEGEND_STEP: u32 = 19;
/// Sizes of text: title, captions, everything else.
const TITLE_TEXT: u32 = 26;
const CAPTION_TEXT: u32 = 18;
const TEXT: u32 = 15;
/// Pixels per unit of the PNG, so that it is sharp on any screen. The SVG needs none.
const PNG_SCALE: u32 = 2;
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
const LEVEL: RGBColor = RGBColor(0x80, 0x80, 0x80);
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
pub fn write(directory: &Path, name: &str, title: &str, runs: &[RunRecord]) -> Result<[PathBuf; 2]> {
    register_font()?;
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let height = TITLE_HEIGHT + CHART_HEIGHT * 2 * runs.len() as u32;
    let [svg, png] = ["svg", "png"].map(|format| directory.join(format!("{name}.{format}")));
    let failed =
        |file: &Path, error: &dyn std::fmt::Display| anyhow!("cannot write {}: {error}", file.display());

    let area = SVGBackend::new(&svg, (WIDTH, height)).into_drawing_area();
    Canvas { area: &area, scale: 1 }.draw(title, runs).map_err(|error| failed(&svg, &error))?;
    drop(area);
    let size = (WIDTH * PNG_SCALE, height * PNG_SCALE);
    let area = BitMapBackend::new(&png, size).into_drawing_area();
    Canvas { area: &area, scale: PNG_SCALE }.draw(title, runs).map_err(|error| failed(&png, &error))?;
    drop(area);
    Ok([svg, png])
}

/// Gives plotters a font: it has none, and to look for one on the machine needs C libraries.
fn register_font() -> Result<()> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let register = || {
        plotters::style::register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT).is_ok()
    };
    if *REGISTERED.get_or_init(register) { Ok(()) } else { Err(anyhow!("the embedded font cannot be read")) }
}

type Drawn<DB> = std::result::Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// A curve and how it is drawn.
struct Line {
    /// What the legend calls it; `None` leaves it out there.
    label: Option<String>,
    curve: Curve,
    style: ShapeStyle,
    dashed: bool,
}

/// Something to draw on, and how many pixels a unit of it has.
struct Canvas<'a, DB: DrawingBackend> {
    area: &'a DrawingArea<DB, Shift>,
    scale: u32,
}

impl<DB: DrawingBackend> Canvas<'_, DB> {
    /// Draws everything.
    fn draw(&self, title: &str, runs: &[RunRecord]) -> Drawn<DB> {
        self.area.fill(&WHITE)?;
        self.text(title, LEFT, 12, TITLE_TEXT)?;
        let (_, charts) = self.area.split_vertically(TITLE_HEIGHT * self.scale);
        for (run, area) in runs.iter().zip(charts.split_evenly((runs.len(), 1))) {
            let (rates, queue) = area.split_vertically(CHART_HEIGHT * self.scale);
            Canvas { area: &rates, scale: self.scale }.draw_rates(run)?;
            Canvas { area: &queue, scale: self.scale }.draw_queue(run)?;
        }
        self.area.present()
    }

    fn draw_rates(&self, run: &RunRecord) -> Drawn<DB> {
        let seconds = run.whole().seconds();
        let link_mbps = run.link_bps as f64 / 1e6;
        let mut lines = Vec::new();
        for (index, (flow, colour)) in run.flows.iter().zip(FLOW_COLOURS.iter().cycle()).enumerate() {
            // Behind its goodput: what the flow's reaction point allows it.
            let limits = run.samples.iter().filter_map(|sample| rate_limit_mbps(sample, index));
            let limits = thin_out(limits, seconds, |rates| rates.iter().sum::<f64>() / rates.len() as f64);
            let faint = colour.mix(0.4).stroke_width(self.scale);
            lines.push(Line { label: None, curve: limits, style: faint, dashed: false });
            let style = colour.stroke_width(2 * self.scale);
            let label = (index < MAX_LEGEND_FLOWS).then(|| flow.name.clone());
            lines.push(Line { label, curve: rate_mbps(&flow.received.goodput_bytes), style, dashed: false });
        }
        for (index, bytes) in run.tcp_bytes.iter().enumerate() {
            let style = if index % 2 == 0 { LEVEL } else { AXIS }.stroke_width(self.scale);
            let label = Some(format!("TCP {index}"));
            lines.push(Line { label, curve: rate_mbps(bytes), style, dashed: false });
        }
        let fair_mbps = run.roce_bps as f64 / 1e6 / run.flows.len().max(1) as f64;
        lines.push(self.level("fair share", seconds, fair_mbps));
        let caption = match run.control {
            Some(_) => "DCQCN: goodput of each queue pair, and faintly the rate it is allowed",
            None => "Off: goodput of each queue pair",
        };
        self.draw_chart(caption, "Mb/s", seconds, link_mbps * 1.1, &lines)
    }

    fn draw_queue(&self, run: &RunRecord) -> Drawn<DB> {
        let seconds = run.whole().seconds();
        let curve = |depth: fn(&Sample) -> Option<u64>| {
            let points = run.samples.iter().filter_map(|sample| {
                depth(sample).map(|bytes| (sample.at_ns as f64 / 1e9, bytes as f64 / 1e3))
            });
            thin_out(points, seconds, |depths| depths.iter().copied().fold(0.0, f64::max))
        };
        let line = |label: &str, curve, colour: RGBColor, width| Line {
            label: Some(label.to_owned()),
            curve,
            style: colour.stroke_width(width * self.scale),
            dashed: false,
        };
        let mut lines = vec![line("real", curve(|sample| Some(sample.backlog_bytes)), REAL_QUEUE, 2)];
        // The real queue never exceeds the buffer, so with this all runs have one scale.
        let mut levels = vec![("buffer", run.buffer_bytes)];
        if let Some(thresholds) = run.control {
            let depth = |sample: &Sample| sample.control.as_ref().map(|control| control.virtual_queue_bytes);
            lines.push(line("virtual", curve(depth), VIRTUAL_QUEUE, 1));
            levels.extend([("Kmin", thresholds.kmin_bytes), ("Kmax", thresholds.kmax_bytes)]);
        }
        let top_kb = levels.iter().map(|level| level.1).max().unwrap_or(1) as f64 * 1.1 / 1e3;
        for (name, bytes) in levels {
            let label = format!("{name}, {}", render::bytes(bytes));
            lines.push(self.level(&label, seconds, bytes as f64 / 1e3));
        }
        let state = if run.control.is_some() { "DCQCN" } else { "Off" };
        let caption = format!("{state}: depth of the bottleneck's RoCE queue, the largest of each stretch");
        self.draw_chart(&caption, "kB", seconds, top_kb, &lines)
    }

    /// A dashed horizontal line across the run.
    fn level(&self, label: &str, seconds: f64, level: f64) -> Line {
        let curve = vec![(0.0, level), (seconds, level)];
        Line { label: Some(label.to_owned()), curve, style: LEVEL.stroke_width(self.scale), dashed: true }
    }

    /// One chart: caption, axes, lines and legend.
    fn draw_chart(&self, caption: &str, unit: &str, seconds: f64, top: f64, lines: &[Line]) -> Drawn<DB> {
        let Self { area, scale } = *self;
        let mut chart = ChartBuilder::on(area)
            .margin_top(TOP * scale)
            .margin_right(RIGHT * scale)
            .margin_left(EDGE * scale)
            .x_label_area_size(BOTTOM * scale)
            .y_label_area_size((LEFT - EDGE) * scale)
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
            .bold_line_style(GRID.stroke_width(scale))
            .axis_style(AXIS.stroke_width(scale))
            .set_all_tick_mark_size(4 * scale)
            .label_style((FONT, TEXT * scale).into_font().color(&AXIS))
            .axis_desc_style((FONT, TEXT * scale).into_font().color(&AXIS))
            .draw()?;
        for Line { curve, style, dashed, .. } in lines {
            // A virtual queue may be deeper than the buffer: it has none.
            let points = curve.iter().map(|(time, value)| (*time, value.min(top)));
            if *dashed {
                chart.draw_series(DashedLineSeries::new(points, 7 * scale, 5 * scale, *style))?;
            } else {
                chart.draw_series(LineSeries::new(points, *style))?;
            }
        }
        self.text(caption, LEFT, 8, CAPTION_TEXT)?;
        let labelled = lines.iter().filter_map(|line| line.label.as_ref().map(|label| (label, line)));
        for ((label, line), row) in labelled.zip(0..) {
            let (x, y) = (WIDTH - RIGHT + 12, TOP + row * LEGEND_STEP);
            let dashes: &[(u32, u32)] = if line.dashed { &[(0, 8), (12, 20)] } else { &[(0, 20)] };
            for (start, end) in dashes {
                let stroke = [self.at(x + start, y + 7), self.at(x + end, y + 7)];
                area.draw(&PathElement::new(stroke, line.style))?;
            }
            self.text(label, x + 28, y, TEXT)?;
        }
        Ok(())
    }

    /// Writes `text` with its upper left corner at (`x`, `y`).
    fn text(&self, text: &str, x: u32, y: u32, size: u32) -> Drawn<DB> {
        self.area.draw(&Text::new(
            text.to_owned(),
            self.at(x, y),
            (FONT, size * self.scale).into_font().color(&AXIS),
        ))
    }

    /// Where a point is, in pixels. All are far inside 31 bits.
    fn at(&self, x: u32, y: u32) -> (i32, i32) {
        ((x * self.scale) as i32, (y * self.scale) as i32)
    }
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
