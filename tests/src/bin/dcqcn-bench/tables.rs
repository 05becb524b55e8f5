//! The report for people: on the terminal, and as the tables and the plot of docs/measured/performance.md.

use clap::ValueEnum as _;
use dcqcn_params::word;
use dcqcn_support::plot::{COLOURS, Chart, Curve, Line, Marks, write};
use dcqcn_support::render::Table;
use dcqcn_tests::prelude::*;

use crate::gate::{Change, Verdict};
use crate::growth::{ALONE, BURSTS, CPUS, CPUS_LOW, FLOWS, QPS, name};
use crate::links::EVERYTHING;
use crate::live::OURS as INLINE_SENT;
use crate::per_packet::{
    AT_WIRE_RATE, CNP_AT_RP, CNP_MADE, MARKS, MINIMAL_PACER, PACED, ROUTED, TCP, UNMARKED,
};
use crate::report::{BUDGET_NS, Machine, Metric, Report, Section, Target};
use crate::scale::{LARGE, scrape};
use crate::tcp;

pub(crate) fn targets(report: &Report) -> Vec<Target> {
    let ns = |name: &str| report.metric(Section::Packets, name);
    let mut targets = Vec::new();
    let mut at_most = |what: String, bound: f64, measured: Option<f64>| {
        targets.extend(measured.map(|measured| Target { what, bound, measured, kept: measured <= bound }));
    };
    let added = |section, name: &str| {
        let metric = report.metric(section, name)?;
        Some(metric.better() * (1.0 - report.ratio(metric)?.recip()))
    };
    let ratio = |section, name: &str| report.metric(section, name).and_then(|metric| report.ratio(metric));
    for name in TCP {
        at_most(format!("{name}: ns added to the empty program"), 1.5, added(Section::Packets, name));
    }
    let of_host = [UNMARKED[0], AT_WIRE_RATE];
    let together: Option<f64> = of_host.iter().map(|name| Some(ns(name)?.better())).sum();
    let empty: Option<f64> = of_host
        .iter()
        .map(|name| ns(name).and_then(|metric| Some(metric.better() / report.ratio(metric)?)))
        .sum();
    let both = together.zip(empty).map(|(together, empty)| together / empty);
    let both_hooks = "RoCE unmarked, both hooks, link at its own rate: times the two empty programs";
    at_most(both_hooks.into(), 1.9, both);
    for (name, bound) in [(AT_WIRE_RATE, 2.5), (UNMARKED[1], 3.2), (MARKS, 3.5), (ROUTED, 2.5)] {
        at_most(format!("{name}: times the empty program"), bound, ratio(Section::Packets, name));
    }
    at_most(format!("{PACED}: times the {MINIMAL_PACER}"), 1.15, ratio(Section::Packets, PACED));
    let inline = ratio(Section::Live, INLINE_SENT).map(f64::recip);
    // Each packet reads the clock, so that the virtual queue of a single CPU is exact.
    at_most(format!("{INLINE_SENT}: times the bare redirect"), 1.8, inline);
    at_most(format!("{CNP_MADE}, ns"), 1_500.0, ns(CNP_MADE).map(Metric::better));
    for name in CNP_AT_RP {
        at_most(format!("{name}, ns"), 100.0, ns(name).map(Metric::better));
    }
    at_most(format!("{BURSTS}: times {ALONE}"), 1.2, ratio(Section::Growth, BURSTS));
    let uniform = name("uniform", 65_536);
    at_most(format!("{uniform}: ns added to one QP"), 60.0, added(Section::Growth, &uniform));
    let control = |name: &str| Some(report.metric(Section::Control, name)?.better());
    at_most(format!("{LARGE}, ms"), 1_000.0, control(LARGE));
    at_most(format!("{}, ms", scrape(128)), 1_000.0, control(&scrape(128)));
    let mut at_least = |what: String, bound: f64, measured: Option<f64>| {
        let what = format!("{what} (at least)");
        targets.extend(measured.map(|measured| Target { what, bound, measured, kept: measured >= bound }));
    };
    at_least(format!("{}: times one", CPUS[1]), 1.6, ratio(Section::Cpus, CPUS[1]));
    at_least(format!("{}: times one", CPUS_LOW[1]), 1.6, ratio(Section::Cpus, CPUS_LOW[1]));
    at_least(format!("{}: times {}", FLOWS[1], FLOWS[0]), 1.0 / 1.3, ratio(Section::Cpus, FLOWS[1]));
    at_least(format!("{EVERYTHING}: times nothing attached"), 0.88, ratio(Section::Links, EVERYTHING));
    for name in tcp::attached() {
        at_least(format!("TCP, {name}: times nothing attached"), 0.97, ratio(Section::Tcp, &name));
    }
    targets
}

/// Everything, as text.
pub(crate) fn text(report: &Report) -> String {
    let mut text = String::new();
    for &section in Section::value_variants() {
        let metrics: Vec<&Metric> =
            report.metrics.iter().filter(|metric| metric.section == section).collect();
        if metrics.is_empty() {
            continue;
        }
        let mut table = Table::new(&[
            &word(&section).to_uppercase(),
            ">MEDIAN",
            "UNIT",
            ">QUARTILES",
            ">RATIO",
            "AGAINST",
            ">OF 327 ns",
        ]);
        for metric in metrics {
            table.row(cells(report, metric));
        }
        text += &format!("{table}\n");
    }
    let mut table = Table::new(&["TARGET", ">BOUND", ">MEASURED", "KEPT"]);
    for Target { what, bound, measured, kept } in &report.targets {
        let kept = if *kept { "yes" } else { "no" };
        table.row([what.clone(), digits(*bound), digits(*measured), kept.to_owned()]);
    }
    text + &table.to_string()
}

fn cells(report: &Report, metric: &Metric) -> [String; 7] {
    let is_packet = metric.section == Section::Packets;
    [
        metric.name.clone(),
        digits(metric.median),
        metric.unit.clone(),
        format!("{}-{}", digits(metric.low), digits(metric.high)),
        report.ratio(metric).map_or_else(String::new, |ratio| format!("{ratio:.2}")),
        metric.against.clone().unwrap_or_default(),
        if is_packet { format!("{:.1} %", metric.median / BUDGET_NS * 100.0) } else { String::new() },
    ]
}

/// Writes the tables of docs/measured/performance.md, a file for each section, and the plot.
pub(crate) fn pages(report: &Report, directory: &Path) -> Result<()> {
    let write_page = |name: &str, text: String| {
        let path = directory.join(format!("{name}.md"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let machine = &report.machine;
    let (kind, plural) =
        (if machine.is_virtual { "virtual " } else { "" }, if machine.cpus == 1 { "" } else { "s" });
    let Machine { cpu, cpus, kernel, .. } = machine;
    let run =
        format!("{cpus} {kind}CPU{plural} ({cpu}), Linux {kernel}. The run took {:.0} s.\n", report.seconds);
    write_page("machine", run)?;
    let mut targets = markdown(&["target", "bound", "measured", "kept"]);
    for Target { what, bound, measured, kept } in &report.targets {
        let kept = if *kept { "yes" } else { "**no**" };
        targets += &line(&[what, &digits(*bound), &digits(*measured), kept]);
    }
    write_page("targets", targets)?;
    for &section in Section::value_variants() {
        let with_budget = section == Section::Packets;
        let mut heading = vec!["what", "median", "unit", "quartiles", "ratio", "to"];
        heading.extend(with_budget.then_some("of 327 ns"));
        let mut table = markdown(&heading);
        for metric in report.metrics.iter().filter(|metric| metric.section == section) {
            let cells = cells(report, metric);
            let shown = if with_budget { cells.len() } else { cells.len() - 1 };
            table += &line(&cells.iter().take(shown).map(String::as_str).collect::<Vec<_>>());
        }
        write_page(&word(&section), table)?;
    }
    plot(report, &directory.join("performance-qps.svg"))
}

fn markdown(heading: &[&str]) -> String {
    line(heading) + &line(&vec!["---"; heading.len()])
}

fn line(cells: &[&str]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn plot(report: &Report, file: &Path) -> Result<()> {
    let curve = |distribution: &str| -> Curve {
        let point = |&qps: &u32| {
            // All distributions share one row for a single QP.
            let name = if qps == 1 { ALONE.to_owned() } else { name(distribution, qps) };
            Some((f64::from(qps).log10(), report.metric(Section::Growth, &name)?.median))
        };
        QPS.iter().filter_map(point).collect()
    };
    let lines: Vec<Line> = ["uniform", "Zipf"]
        .into_iter()
        .zip(COLOURS)
        .map(|(distribution, colour)| Line::new(distribution, curve(distribution), colour, 2))
        .collect();
    let top = lines.iter().flat_map(|line| &line.curve).map(|point| point.1).fold(0.0, f64::max);
    let chart = Chart {
        caption: "egress, RP: a packet of a random queue pair".into(),
        across: "queue pairs, log10",
        up: "ns per packet",
        start: 0.0,
        end: 6.0,
        top: top * 1.1,
        lines,
        cells: Vec::new(),
        marks: Marks::Value,
        rows: Vec::new(),
    };
    Ok(write(file, "Nanoseconds per packet as queue pairs grow", &[chart])?)
}

/// A number with its significant digits only.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub(crate) fn changes(changes: &[Change]) -> String {
    let verdict = |change: &&Change| match change.verdict {
        Verdict::Kept => "",
        Verdict::Unsure => "inconclusive: too noisy",
        Verdict::Worse => "WORSE",
    };
    let table = Table::of(
        changes,
        &[
            ("COMPARED", &|change| change.name.clone()),
            (">OLD", &|change| digits(change.old)),
            (">NEW", &|change| digits(change.new)),
            ("UNIT", &|change| change.unit.clone()),
            (">RATIO", &|change| format!("{:.2}", change.ratio)),
            ("", &|change| verdict(change).to_owned()),
        ],
    );
    table.to_string()
}
