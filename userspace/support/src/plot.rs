//! Charts over time, as SVG and PNG.
//!
//! A picture is described as data ([`Chart`], [`Line`]); the drawing code is generic over plotters' backend, so it is
//! independent of the file format.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::file::{self, Replacement};

/// Width of the picture, in units that are pixels at scale 1.
const WIDTH: u32 = 1200;
const TITLE_HEIGHT: u32 = 48;
const CHART_HEIGHT: u32 = 270;
/// Margins of a chart: above the axes for the caption, left of them for labels, right of them for a legend of short
/// labels, below them for labels.
const TOP: u32 = 32;
const LEFT: u32 = 76;
const RIGHT: u32 = 150;
const BOTTOM: u32 = 42;
/// Part of the margin that stays empty, without which the axis description would be cut off.
const EDGE: u32 = 12;
const MAX_RIGHT: u32 = 360;
const LEGEND_STEP: u32 = 19;
/// Lines of a legend between two charts.
const LEGEND_LINES: usize = ((CHART_HEIGHT - TOP) / LEGEND_STEP) as usize;
/// Sizes of text: title, captions, everything else.
const TITLE_TEXT: u32 = 26;
const CAPTION_TEXT: u32 = 18;
const TEXT: u32 = 15;
const ROW_TEXT: u32 = 12;
/// Pixels per unit of the PNG, so that it is sharp on any screen. The SVG needs none.
const PNG_SCALE: u32 = 2;
/// Font name registered with plotters. SVG viewers use their own font.
const FONT: &str = "sans-serif";
/// Colours distinguishable with any colour vision (Okabe and Ito, "Color Universal Design", 2008), without yellow,
/// which is faint on white.
pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x00, 0x00),
];
pub const LEVEL: RGBColor = RGBColor(0x80, 0x80, 0x80);
pub const AXIS: RGBColor = RGBColor(0x44, 0x44, 0x44);
const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
pub const MAX_LEGEND: usize = 10;
/// Maximum number of points along an axis that the picture can show.
const MAX_POINTS: f64 = 1000.0;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot create the directory {}", .path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {reason}", .path.display())]
    Picture { path: PathBuf, reason: String },
    #[error("the embedded font cannot be read")]
    Font,
}

/// Points, in the units of the axes.
pub type Curve = Vec<(f64, f64)>;

#[derive(Clone, Debug)]
pub struct Line {
    /// Name in the legend; `None` omits it there.
    pub label: Option<String>,
    /// Points; those above the chart's top are drawn at the top.
    pub curve: Curve,
    pub colour: RGBAColor,
    /// Width; 1 is thin.
    pub width: u32,
    pub dashed: bool,
}

impl Line {
    pub fn new(label: impl Into<String>, curve: Curve, colour: RGBColor, width: u32) -> Self {
        Self { label: Some(label.into()), curve, colour: colour.to_rgba(), width, dashed: false }
    }

    /// A dashed horizontal line at `level`, from 0 to `end`.
    pub fn level(label: impl Into<String>, end: f64, level: f64) -> Self {
        Self { dashed: true, ..Self::new(label, vec![(0.0, level), (end, level)], LEVEL, 1) }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Chart {
    pub caption: String,
    pub across: &'static str,
    pub up: &'static str,
    pub start: f64,
    pub end: f64,
    /// End of the vertical axis, which starts at 0.
    pub top: f64,
    /// Curves; later ones cover earlier ones.
    pub lines: Vec<Line>,
    pub cells: Vec<Cell>,
    pub marks: Marks,
    /// Names of rows, from the bottom, each one unit high; if empty, the vertical axis has numbers.
    pub rows: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub across: [f64; 2],
    pub up: [f64; 2],
    pub colour: RGBColor,
}

#[derive(Clone, Copy, Debug, Default)]
pub enum Marks {
    #[default]
    Value,
    /// Logarithmic: powers of ten, in bytes.
    Decades,
}

/// Colour of a fraction, 0 to 1: from white through yellow and red to black.
pub fn heat(share: f64) -> RGBColor {
    const STOPS: [[f64; 3]; 5] = [
        [255.0, 255.0, 255.0],
        [254.0, 217.0, 118.0],
        [240.0, 90.0, 40.0],
        [150.0, 0.0, 60.0],
        [20.0, 0.0, 20.0],
    ];
    let position = share.clamp(0.0, 1.0) * 4.0;
    let low = (position as usize).min(3);
    let part = position - low as f64;
    let [red, green, blue] =
        std::array::from_fn(|index| (STOPS[low][index] * (1.0 - part) + STOPS[low + 1][index] * part) as u8);
    RGBColor(red, green, blue)
}

/// Writes `NAME.svg` and `NAME.png` to `directory`, which is created if necessary. Charts are stacked in order.
pub fn write_both(
    directory: &Path,
    name: &str,
    title: &str,
    charts: &[Chart],
) -> Result<[PathBuf; 2], Error> {
    fs::create_dir_all(directory)
        .map_err(|source| Error::Directory { path: directory.to_owned(), source })?;
    let files = ["svg", "png"].map(|format| directory.join(format!("{name}.{format}")));
    for file in &files {
        write(file, title, charts)?;
    }
    Ok(files)
}

/// Writes one picture in the format of the name's extension, `.svg` or `.png`, replacing the file once complete. Charts
/// are stacked in order.
pub fn write(file: &Path, title: &str, charts: &[Chart]) -> Result<(), Error> {
    register_font()?;
    draw(file, title, charts)
        .map_err(|error| Error::Picture { path: file.to_owned(), reason: error.to_string() })
}

fn draw(file: &Path, title: &str, charts: &[Chart]) -> Result<(), Box<dyn std::error::Error>> {
    let right = right_margin(charts);
    let height = TITLE_HEIGHT + CHART_HEIGHT * charts.len() as u32;
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => {
            let mut text = String::new();
            {
                let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
                Canvas { area: &area, scale: 1, right }.draw(title, charts)?;
            }
            file::replace(file, text.as_bytes())?;
        }
        Some("png") => {
            let size = (WIDTH * PNG_SCALE, height * PNG_SCALE);
            let mut pixels = vec![0; size.0 as usize * size.1 as usize * 3];
            {
                let area = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
                Canvas { area: &area, scale: PNG_SCALE, right }.draw(title, charts)?;
            }
            let mut output = Replacement::create(file)?;
            write_png(&mut output, size, &pixels)?;
            output.finish()?;
        }
        _ => return Err("its name must end in .svg or .png".into()),
    }
    Ok(())
}

fn write_png(
    output: impl Write,
    (width, height): (u32, u32),
    pixels: &[u8],
) -> Result<(), png::EncodingError> {
    let mut encoder = png::Encoder::new(output, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()
}

/// Registers an embedded font: plotters has none, and finding one on the machine needs C libraries.
fn register_font() -> Result<(), Error> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let register = || {
        plotters::style::register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT).is_ok()
    };
    if *REGISTERED.get_or_init(register) { Ok(()) } else { Err(Error::Font) }
}

type Drawn<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

fn right_margin(charts: &[Chart]) -> u32 {
    let labels = charts.iter().flat_map(|chart| &chart.lines).filter_map(|line| line.label.as_ref());
    let longest = labels.map(|label| label.chars().count()).max().unwrap_or(0);
    u32::try_from(longest)
        .unwrap_or(u32::MAX)
        .saturating_mul(TEXT / 2 + 1)
        .saturating_add(44)
        .clamp(RIGHT, MAX_RIGHT)
}

/// A drawing area, its pixels per unit, and the right margin of its charts.
struct Canvas<'a, DB: DrawingBackend> {
    area: &'a DrawingArea<DB, Shift>,
    scale: u32,
    right: u32,
}

impl<DB: DrawingBackend> Canvas<'_, DB> {
    fn draw(&self, title: &str, charts: &[Chart]) -> Drawn<DB> {
        self.area.fill(&WHITE)?;
        self.text(title, LEFT, 12, TITLE_TEXT)?;
        let (_, below) = self.area.split_vertically(TITLE_HEIGHT * self.scale);
        for (chart, area) in charts.iter().zip(below.split_evenly((charts.len().max(1), 1))) {
            Canvas { area: &area, scale: self.scale, right: self.right }.chart(chart)?;
        }
        self.area.present()
    }

    fn chart(&self, chart: &Chart) -> Drawn<DB> {
        let Self { area, scale, right } = *self;
        let Chart { caption, across, up, start, end, top, lines, cells, marks, rows } = chart;
        let (end, top) = (positive(*end), positive(*top));
        let unit = if up.is_empty() { String::new() } else { format!(" {up}") };
        let mut chart = ChartBuilder::on(area)
            .margin_top(TOP * scale)
            .margin_right(right * scale)
            .margin_left(EDGE * scale)
            .x_label_area_size(BOTTOM * scale)
            .y_label_area_size((LEFT - EDGE) * scale)
            .build_cartesian_2d(*start..end, 0.0..top)?;
        chart
            .configure_mesh()
            .x_desc(*across)
            .y_desc(*up)
            .x_labels(marks.count(*start, end))
            .y_labels(if rows.is_empty() { 6 } else { 0 })
            .x_label_formatter(&|x| marks.text(*x))
            .y_label_formatter(&|y| if rows.is_empty() { tick(*y) } else { String::new() })
            .max_light_lines(0)
            .bold_line_style(GRID.stroke_width(scale))
            .axis_style(AXIS.stroke_width(scale))
            .set_all_tick_mark_size(4 * scale)
            .label_style((FONT, TEXT * scale).into_font().color(&AXIS))
            .axis_desc_style((FONT, TEXT * scale).into_font().color(&AXIS))
            .draw()?;
        let corners = |cell: &Cell| {
            let [[left, right], [low, high]] = [cell.across, cell.up];
            Rectangle::new([(left, low), (right.min(end), high.min(top))], cell.colour.filled())
        };
        chart.draw_series(cells.iter().map(corners))?;
        self.names(rows)?;
        let style = |line: &Line| line.colour.stroke_width(line.width * scale);
        for line in lines {
            let points = line.curve.iter().map(|(time, value)| (*time, value.min(top)));
            if line.dashed {
                chart.draw_series(DashedLineSeries::new(points, 7 * scale, 5 * scale, style(line)))?;
            } else {
                chart.draw_series(LineSeries::new(points, style(line)))?;
            }
        }
        let peak = lines.iter().flat_map(|line| &line.curve).map(|point| point.1).fold(0.0, f64::max);
        let beyond =
            if peak > top { format!("; up to {}{unit}, beyond the axis", tick(peak)) } else { String::new() };
        self.text(&format!("{caption}{beyond}"), LEFT, 8, CAPTION_TEXT)?;
        self.legend(lines)
    }

    /// The legend, up to the space available.
    fn legend(&self, lines: &[Line]) -> Drawn<DB> {
        let Self { area, scale, right } = *self;
        let labelled: Vec<_> = lines.iter().filter_map(|line| Some((line.label.as_ref()?, line))).collect();
        let shown = if labelled.len() > LEGEND_LINES { LEGEND_LINES - 1 } else { labelled.len() };
        let (x, y) = (WIDTH - right + 12, |row: u32| TOP + row * LEGEND_STEP);
        for ((label, line), row) in labelled.iter().take(shown).zip(0..) {
            let y = y(row);
            if line.curve.is_empty() {
                // A colour of the cells; white needs a border.
                let corners = [self.at(x, y + 2), self.at(x + 20, y + 12)];
                area.draw(&Rectangle::new(corners, line.colour.filled()))?;
                area.draw(&Rectangle::new(corners, LEVEL.stroke_width(scale)))?;
            } else {
                let dashes: &[(u32, u32)] = if line.dashed { &[(0, 8), (12, 20)] } else { &[(0, 20)] };
                for (start, end) in dashes {
                    let stroke = [self.at(x + start, y + 7), self.at(x + end, y + 7)];
                    let style = line.colour.stroke_width(line.width * scale);
                    area.draw(&PathElement::new(stroke, style))?;
                }
            }
            self.text(label, x + 28, y, TEXT)?;
        }
        match labelled.len() - shown {
            0 => Ok(()),
            more => self.text(&format!("and {more} more"), x + 28, y(shown as u32), TEXT),
        }
    }

    /// Names of rows, up to the space available.
    fn names(&self, rows: &[String]) -> Drawn<DB> {
        let height = CHART_HEIGHT - TOP - BOTTOM;
        let count = rows.len().max(1) as u32;
        let every = (ROW_TEXT * count).div_ceil(height).max(1);
        for (row, name) in (0..count).zip(rows).filter(|(row, _)| row % every == 0) {
            let middle = TOP + height - (2 * row + 1) * height / (2 * count);
            self.text(name, EDGE + ROW_TEXT, middle.saturating_sub(ROW_TEXT / 2), ROW_TEXT)?;
        }
        Ok(())
    }

    /// Writes `text` with its upper left corner at (`x`, `y`).
    fn text(&self, text: &str, x: u32, y: u32, size: u32) -> Drawn<DB> {
        let style = (FONT, size * self.scale).into_font().color(&AXIS);
        self.area.draw(&Text::new(text.to_owned(), self.at(x, y), style))
    }

    fn at(&self, x: u32, y: u32) -> (i32, i32) {
        ((x * self.scale) as i32, (y * self.scale) as i32)
    }
}

/// End of an axis, which must have a positive length.
fn positive(end: f64) -> f64 {
    if end.is_finite() && end > 0.0 { end } else { 1.0 }
}

impl Marks {
    /// Maximum number of labels from `start` to `end`.
    fn count(self, start: f64, end: f64) -> usize {
        match self {
            Self::Value => 11,
            Self::Decades => (end - start).round().clamp(0.0, 14.0) as usize + 1,
        }
    }

    fn text(self, value: f64) -> String {
        const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
        match self {
            Self::Value => tick(value),
            Self::Decades if (value - value.round()).abs() > 1e-6 => String::new(),
            Self::Decades => {
                let decade = value.round().clamp(0.0, 14.0) as usize;
                format!("1{} {}", "0".repeat(decade % 3), UNITS[decade / 3])
            }
        }
    }
}

fn tick(value: f64) -> String {
    format!("{:.2}", value).trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Reduces a curve to one point per 1/1000 of the axis up to `end`, the resolution of the picture.
pub fn thin_out(points: impl Iterator<Item = (f64, f64)>, end: f64, reduce: fn(&[f64]) -> f64) -> Curve {
    let stretch = |time: f64| (time / end * MAX_POINTS) as u64;
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

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Largest of non-negative values, for [`thin_out`].
pub fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_peaks() {
        let points = (0..100_000).map(|i| (f64::from(i) / 1e4, if i == 77_777 { 9.0 } else { 1.0 }));
        let thin = thin_out(points, 10.0, largest);
        assert!((999..=1001).contains(&thin.len()), "{}", thin.len());
        assert_eq!(thin.iter().filter(|point| point.1 == 9.0).count(), 1);
        assert!(thin_out(std::iter::empty(), 1.0, mean).is_empty());
    }

    #[test]
    fn ticks_are_short() {
        assert_eq!((tick(10.0), tick(2.5), tick(0.0)), ("10".to_owned(), "2.5".to_owned(), "0".to_owned()));
    }

    #[test]
    fn decade_labels_and_heat_colours() {
        let texts = [0.0, 2.0, 3.0, 7.0, 2.5].map(|value| Marks::Decades.text(value));
        assert_eq!(texts, ["1 B", "100 B", "1 KB", "10 MB", ""]);
        assert_eq!((heat(0.0), heat(1.0), heat(7.0)), (WHITE, RGBColor(20, 0, 20), heat(1.0)));
        assert_eq!(heat(0.5), RGBColor(240, 90, 40));
    }

    #[test]
    fn long_legend_ends_with_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.svg");
        let line = |number| Line::new(format!("line {number}"), vec![(0.0, 1.0), (1.0, 2.0)], COLOURS[0], 2);
        for (number, last) in
            [(LEGEND_LINES, format!("line {}", LEGEND_LINES - 1)), (40, "and 29 more".into())]
        {
            let chart =
                Chart { end: 1.0, top: 2.0, lines: (0..number).map(line).collect(), ..Chart::default() };
            write(&path, "t", &[chart]).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            let at_end = text.rsplit("<text").next().unwrap();
            assert!(at_end.contains(&last), "{at_end}");
        }
    }

    #[test]
    fn margin_fits_longest_label() {
        let margin = |label: &str| {
            right_margin(&[Chart { lines: vec![Line::level(label, 1.0, 1.0)], ..Chart::default() }])
        };
        assert_eq!(margin("Kmin, 5.00 KB"), RIGHT);
        assert!(margin("storage-readers.12, all") > 200);
        assert_eq!(margin(&"x".repeat(1_000)), MAX_RIGHT);
    }

    #[test]
    fn values_beyond_axis_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.svg");
        let lines = vec![Line::new("a", vec![(0.0, 1.0), (1.0, 12.0)], COLOURS[0], 2)];
        for (top, is_beyond) in [(12.0, false), (2.0, true)] {
            let lines = lines.clone();
            let chart = Chart { caption: "c".into(), up: "KB", end: 1.0, top, lines, ..Chart::default() };
            write(&path, "t", &[chart]).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(text.contains("c; up to 12 KB, beyond the axis"), is_beyond);
        }
    }

    #[test]
    fn picture_replaces_file_once_complete() {
        let directory = tempfile::tempdir().unwrap();
        for format in ["svg", "png"] {
            let [path, old] = ["x", "old"].map(|name| directory.path().join(format!("{name}.{format}")));
            fs::write(&path, "old").unwrap();
            // Another name of the same file.
            fs::hard_link(&path, &old).unwrap();
            write(&path, "t", &[]).unwrap();
            assert_eq!(fs::read(&old).unwrap(), b"old", "{format}");
            assert_ne!(fs::read(&path).unwrap(), b"old", "{format}");
        }
    }

    #[test]
    fn picture_format_follows_extension() {
        let directory = tempfile::tempdir().unwrap();
        let line = Line::new("a", vec![(0.0, 1.0), (1.0, 2.0)], COLOURS[0], 2);
        let lines = vec![line, Line::level("b", 1.0, 0.5)];
        // An empty axis is drawn too.
        let cells = vec![Cell { across: [0.0, 0.5], up: [0.0, 1.0], colour: heat(0.3) }];
        let rows = vec!["row".to_owned()];
        let (caption, across, up) = ("c".into(), "time, s", "KB");
        let chart = Chart { caption, across, up, end: 1.0, lines, cells, rows, ..Chart::default() };
        let [svg, png] =
            write_both(&directory.path().join("new"), "x", "t", &[chart.clone(), chart]).unwrap();
        assert!(fs::read_to_string(svg).unwrap().contains("<svg"));
        assert!(fs::read(png).unwrap().starts_with(b"\x89PNG"));
        let refused = write(Path::new("x.pdf"), "t", &[]).unwrap_err().to_string();
        assert!(refused.contains("must end in .svg or .png"), "{refused}");
    }
}
