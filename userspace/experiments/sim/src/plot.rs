//! Rates and queue depth of a simulation over time.

use std::fs;
use std::path::{Path, PathBuf};

use dcqcn_support::plot::{
    self as plot, AXIS, COLOURS, Chart, Curve, LEVEL, Line, MAX_LEGEND, largest, mean, thin_out,
};
use dcqcn_support::render::{self, count};

use super::presets::roce_class;
use super::star::{Group, Star};
use crate::Error;
use crate::star::Series;

/// The files of `--plot PATH`: `PATH` itself if its name ends in a format, otherwise one of each.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.extension().is_some_and(|extension| extension == "svg" || extension == "png") {
        return vec![path.to_owned()];
    }
    // Not `with_extension`: a stem may contain a dot.
    let with = |extension: &str| PathBuf::from(format!("{}.{extension}", path.display()));
    vec![with("svg"), with("png")]
}

/// The value of `--plot`.
///
/// # Errors
/// The path is standard output, a directory or a device. Pictures are regular files, one per format.
pub fn path(text: &str) -> Result<PathBuf, String> {
    let is_special = fs::metadata(text).is_ok_and(|found| !found.is_file() && !found.is_dir());
    if text == "-" || text.ends_with('/') || is_special {
        return Err(format!("`{text}` is not a file: specify a name, as in `plots/run.svg`"));
    }
    Ok(text.into())
}

/// Draws `charts` into the files of `path`: one of each format, or that of its name.
pub(crate) fn draw(path: &Path, title: &str, charts: &[Chart]) -> Result<(), Error> {
    files(path)
        .into_iter()
        .try_for_each(|path| plot::write(&path, title, charts).map_err(|source| Error::Draw { path, source }))
}

pub fn write(path: &Path, title: &str, star: &Star, series: &Series) -> Result<(), Error> {
    let queues = (0..series.classes.len()).map(|at| queue(star, series, at));
    let charts: Vec<Chart> = [rates(star, series)].into_iter().chain(queues).collect();
    draw(path, title, &charts)
}

/// The horizontal axis: its name, how many ns its unit has, and its end.
pub(crate) fn time_axis(duration_ns: u64) -> (&'static str, f64, f64) {
    let (name, unit_ns) = match duration_ns {
        0..5_000_000 => ("time, us", 1e3),
        5_000_000..5_000_000_000 => ("time, ms", 1e6),
        _ => ("time, s", 1e9),
    };
    (name, unit_ns, duration_ns as f64 / unit_ns)
}

fn curve(
    series: &Series,
    values: &[u64],
    unit_ns: f64,
    unit: f64,
    end: f64,
    reduce: fn(&[f64]) -> f64,
) -> Curve {
    let points = series.t_ns.iter().zip(values);
    thin_out(points.map(|(t_ns, value)| (*t_ns as f64 / unit_ns, *value as f64 / unit)), end, reduce)
}

/// `curve` with each value up to the next point: between two samples, a rate is that of the first, not a ramp.
fn steps(curve: &[(f64, f64)]) -> Curve {
    let nexts = curve.iter().skip(1).map(|next| next.0).chain(curve.last().map(|last| last.0));
    curve.iter().zip(nexts).flat_map(|(&(from, value), to)| [(from, value), (to, value)]).collect()
}

/// The flows drawn and named in the legend, of `all`.
fn which(drawn: usize, named: usize, all: usize) -> String {
    let flows = match drawn < all {
        true => format!("the first {drawn} of {}", count(all, "RoCE flow")),
        false => "each RoCE flow".to_owned(),
    };
    let legend = if named < drawn { format!("; the legend names {named} of {drawn}") } else { String::new() };
    flows + &legend
}

/// The maximum; that from `from` on if a start at line rate would flatten everything after it.
fn top(lines: &[Line], from: f64) -> f64 {
    /// Part of the axis that the later curves need.
    const LEAST: f64 = 0.4;
    let points = || lines.iter().flat_map(|line| &line.curve);
    let all = points().map(|point| point.1).fold(0.0, f64::max);
    let later = points().filter(|point| point.0 >= from).map(|point| point.1).fold(0.0, f64::max);
    if later < LEAST * all { later } else { all }
}

fn rates(star: &Star, series: &Series) -> Chart {
    let (across, unit_ns, end) = time_axis(series.t_ns.last().copied().unwrap_or(star.duration_ns));
    let gbps = |values: &[u64]| steps(&curve(series, values, unit_ns, 1e9, end, mean));
    let mut lines = Vec::new();
    // Leaves room for TCP and the fair share.
    let named = MAX_LEGEND - 3;
    // For a RoCE flow its rate, which DCQCN controls; for TCP the goodput of the group.
    let flows = series.flows.iter().filter(|flow| star.groups[flow.index as usize].is_roce());
    // Without black, as TCP is grey and dark grey.
    for ((index, flow), colour) in flows.enumerate().zip(COLOURS[..6].iter().cycle()) {
        let values = if star.control { &flow.rate_bps } else { &flow.goodput_bps };
        let line = Line::new(&flow.name, gbps(values), *colour, 1);
        let label = line.label.filter(|_| index < named);
        lines.push(Line { label, ..line });
    }
    for (index, group) in series.groups.iter().enumerate().skip(star.roce().count()) {
        let colour = if index % 2 == 0 { LEVEL } else { AXIS };
        lines.push(Line::new(format!("{}, all", group.name), gbps(&group.goodput_bps), colour, 2));
    }
    let link = star.port_rate_bps as f64 / 1e9;
    if star.groups.iter().all(|group| group.is_roce() && group.after.is_none()) {
        lines.extend(fair_share(star, link, end, unit_ns));
    }
    let top = top(&lines, star.stats_from_ns as f64 / unit_ns);
    let what = if star.control { "rate" } else { "goodput" };
    let drawn = series.flows.iter().filter(|flow| star.groups[flow.index as usize].is_roce()).count();
    let which = which(drawn, named, star.roce_flows() as usize);
    let others = if star.groups.len() > star.roce().count() { ", goodput of TCP" } else { "" };
    let caption = format!("{what} of {which}{others}");
    Chart { caption, across, up: "Gbit/s", end, top: top * 1.05, lines, ..Chart::default() }
}

/// The share of each flow in `link`, by the number of flows that have started and not stopped; none while
/// there are none.
fn fair_share(star: &Star, link: f64, end: f64, unit_ns: f64) -> Vec<Line> {
    let changes = |group: &Group| {
        let flows = i64::from(group.flows);
        [Some((group.start_ns, flows)), group.stop_ns.map(|stop_ns| (stop_ns, -flows))].into_iter().flatten()
    };
    let mut changes: Vec<(u64, i64)> = star.groups.iter().flat_map(changes).collect();
    changes.sort_unstable();
    let (mut flows, mut spans) = (0, Vec::<Curve>::new());
    for (index, &(from_ns, change)) in changes.iter().enumerate() {
        flows += change;
        let from = from_ns as f64 / unit_ns;
        let to = changes.get(index + 1).map_or(end, |next| (next.0 as f64 / unit_ns).min(end));
        if flows <= 0 || from >= to {
            continue;
        }
        let share = link / flows as f64;
        let span = [(from, share), (to, share)];
        match spans.last_mut().filter(|curve| curve.last().is_some_and(|last| last.0 >= from)) {
            Some(curve) => curve.extend(span),
            None => spans.push(span.into()),
        }
    }
    let line = |(index, curve): (usize, Curve)| {
        let line = Line { dashed: true, ..Line::new("fair share", curve, LEVEL, 1) };
        Line { label: line.label.filter(|_| index == 0), ..line }
    };
    spans.into_iter().enumerate().map(line).collect()
}

/// A chart per class: TCP fills its queue, with which RoCE's would be flat.
fn queue(star: &Star, series: &Series, at: usize) -> Chart {
    let (class, colour) = (&series.classes[at], COLOURS[at % COLOURS.len()]);
    let (across, unit_ns, end) = time_axis(series.t_ns.last().copied().unwrap_or(star.duration_ns));
    let deepest = class.max_queue_bytes.iter().copied().max().unwrap_or(0);
    let (up, unit) = if deepest < 10_000_000 { ("KB", 1e3) } else { ("MB", 1e6) };
    let depths = curve(series, &class.max_queue_bytes, unit_ns, unit, end, largest);
    let mut lines = vec![Line::new(format!("class {}", class.name), depths, colour, 1)];
    let deepest = top(&lines, star.stats_from_ns as f64 / unit_ns);
    let marked = roce_class(star);
    let wred = star.config.wred.get(usize::from(marked)).filter(|wred| wred.ecn != 0);
    let wred = wred.filter(|_| class.index == u32::from(marked));
    let mut top = deepest;
    // Colours of the last classes, which are drawn solid.
    let levels = wred
        .iter()
        .flat_map(|wred| [("Kmin", wred.kmin_bytes, COLOURS[4]), ("Kmax", wred.kmax_bytes, COLOURS[3])]);
    for (name, bytes, colour) in levels {
        let level = bytes as f64 / unit;
        // A threshold far above the queue would flatten it.
        if level <= 2.0 * deepest {
            let line = Line::level(format!("{name}, {}", render::bytes(bytes)), end, level);
            lines.push(Line { colour: colour.into(), ..line });
            top = top.max(level);
        }
    }
    let caption =
        format!("depth of the bottleneck's queue of class {}, the maximum of each interval", class.name);
    Chart { caption, across, up, end, top: top * 1.05, lines, ..Chart::default() }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::Config;

    use super::*;

    #[test]
    fn rates_drawn_as_steps() {
        assert_eq!(steps(&[(0.0, 5.0), (1.0, 2.0)]), [(0.0, 5.0), (1.0, 5.0), (1.0, 2.0), (1.0, 2.0)]);
        assert_eq!(steps(&[]), Curve::new());
    }

    #[test]
    fn plot_path_must_be_a_file() {
        for text in ["-", "/dev/full", "plots/"] {
            assert!(path(text).unwrap_err().contains("is not a file"), "{text}");
        }
        assert_eq!(path("a/b"), Ok(PathBuf::from("a/b")));
    }

    #[test]
    fn fair_share_follows_active_flows() {
        let mut star = Star::new(1_000_000_000, Config::DEFAULT);
        star.groups = [(0, 2, None), (10, 1, Some(30)), (20, 1, None)]
            .into_iter()
            .map(|(start_ns, flows, stop_ns)| Group { start_ns, stop_ns, ..Group::roce("g", flows) })
            .collect();
        let lines = fair_share(&star, 12.0, 40.0, 1.0);
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        let steps = [
            (0.0, 6.0),
            (10.0, 6.0),
            (10.0, 4.0),
            (20.0, 4.0),
            (20.0, 3.0),
            (30.0, 3.0),
            (30.0, 4.0),
            (40.0, 4.0),
        ];
        assert_eq!(line.curve, steps);
        star.groups = vec![Group { start_ns: 10, ..Group::roce("late", 3) }];
        assert_eq!(fair_share(&star, 12.0, 40.0, 1.0)[0].curve, [(10.0, 4.0), (40.0, 4.0)]);
    }

    #[test]
    fn caption_counts_omitted_flows() {
        assert_eq!(which(4, 7, 4), "each RoCE flow");
        assert_eq!(which(16, 7, 40), "the first 16 of 40 RoCE flows; the legend names 7 of 16");
        assert_eq!(which(9, 7, 9), "each RoCE flow; the legend names 7 of 9");
    }

    #[test]
    fn plot_path_selects_format() {
        assert_eq!(files(Path::new("a.svg")), [PathBuf::from("a.svg")]);
        assert_eq!(files(Path::new("p/a.png")), [PathBuf::from("p/a.png")]);
        assert_eq!(files(Path::new("a.5")), [PathBuf::from("a.5.svg"), PathBuf::from("a.5.png")]);
    }
}
