//! Detection of regressions: compared with an earlier run, and with bounds for every machine.

use clap::ValueEnum as _;
use serde::Serialize;

use crate::per_packet::{CLONE, COUNTED_TCP, MINIMAL_PACER, ROUTED};
use crate::report::{Metric, Report, Section};
use crate::{growth, links, tcp};

/// A metric that got worse by more than this, and by more than its own noise, is a regression.
const WORSE: f64 = 1.10;
/// A metric whose quartiles differ by more than this fraction cannot show a change of a tenth.
const NOISE: f64 = 0.10;
/// Maximum runs of a section before the result is final.
pub(crate) const MAX_RUNS: usize = 4;

/// Result of comparing a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// No worse than before.
    Kept,
    /// Too noisy, then or now.
    Unsure,
    Worse,
}

/// A metric of two runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Change {
    pub(crate) section: Section,
    pub(crate) name: String,
    /// Unit; "times" relative to its reference, if any.
    pub(crate) unit: String,
    pub(crate) old: f64,
    pub(crate) new: f64,
    pub(crate) ratio: f64,
    pub(crate) verdict: Verdict,
}

/// Value for comparison, and the relative distance of its quartiles.
///
/// As a machine's load varies, the value is relative to its reference in the same run, if there is one.
fn comparable(report: &Report, metric: &Metric) -> (f64, f64) {
    (report.ratio(metric).unwrap_or(metric.better()), ((metric.high - metric.low) / metric.median).abs())
}

fn change(old: &Report, new: &Report, then: &Metric) -> Change {
    let Some(now) = new.metric(then.section, &then.name) else {
        return Change {
            section: then.section,
            name: then.name.clone(),
            unit: then.unit.clone(),
            old: then.better(),
            new: f64::NAN,
            ratio: f64::NAN,
            verdict: Verdict::Unsure,
        };
    };
    let ((before, noise_then), (after, noise_now)) = (comparable(old, then), comparable(new, now));
    let ratio = after / before;
    let worse_by = if now.more_is_better { 1.0 / ratio } else { ratio };
    let noise = noise_then.max(noise_now);
    let verdict = if worse_by <= WORSE {
        Verdict::Kept
    } else if noise > NOISE && worse_by <= 1.0 + noise {
        Verdict::Unsure
    } else {
        Verdict::Worse
    };
    let unit = if new.ratio(now).is_some() { "times" } else { &now.unit };
    Change {
        section: now.section,
        name: now.name.clone(),
        unit: unit.to_owned(),
        old: before,
        new: after,
        ratio,
        verdict,
    }
}

/// Compares common sections with an earlier run, metric by metric; missing ones are inconclusive. Of several runs, the
/// best value of each metric and its reference is used, because disturbances only make a measurement slower.
pub(crate) fn compare(old: &Report, runs: &[Report]) -> Vec<Change> {
    let Some((first, more)) = runs.split_first() else {
        return Vec::new();
    };
    let mut best = first.clone();
    for metric in &mut best.metrics {
        for run in more {
            if let Some(other) = run.metric(metric.section, &metric.name)
                && (other.better() < metric.better()) != metric.more_is_better
            {
                *metric = other.clone();
            }
        }
    }
    let is_measured = |section| best.metrics.iter().any(|metric| metric.section == section);
    let known = old.metrics.iter().filter(|metric| is_measured(metric.section));
    known.map(|metric| change(old, &best, metric)).collect()
}

/// Sections to run again: with a regression, or inconclusive.
pub(crate) fn doubtful(changes: &[Change]) -> Vec<Section> {
    let is_doubtful = |section: &Section| {
        changes.iter().any(|change| change.section == *section && change.verdict != Verdict::Kept)
    };
    Section::value_variants().iter().copied().filter(is_doubtful).collect()
}

/// Metrics of programs checked by a test, the program that each is compared with, and the largest ratio known: of a
/// published run on an AMD EPYC, and of three quick runs on a Xeon, TCP's rounded up.
///
/// The bound is [`SLACK`] times that. The reference does comparable work: the empty program took 8 ns on the Xeon and
/// 35 on the EPYC, unmarked RoCE at egress 117 and 118. XDP is excluded, whose reference is an empty program.
const PROGRAMS: [(&str, &str, f64); 15] = [
    ("TCP, ingress", COUNTED_TCP, 1.25),
    ("TCP, egress", COUNTED_TCP, 1.25),
    ("RoCE unmarked, ingress", MINIMAL_PACER, 0.63),
    ("RoCE unmarked, egress", MINIMAL_PACER, 1.86),
    ("RoCE over IPv6, ingress", MINIMAL_PACER, 0.63),
    ("RoCE over IPv6, egress", MINIMAL_PACER, 1.91),
    ("RoCE with a VLAN tag, ingress", MINIMAL_PACER, 0.65),
    ("RoCE with a VLAN tag, egress", MINIMAL_PACER, 1.93),
    ("ACK, egress", MINIMAL_PACER, 1.59),
    ("CP, not marked", MINIMAL_PACER, 1.53),
    ("CP marks", MINIMAL_PACER, 1.58),
    ("NP within the CNP interval", MINIMAL_PACER, 1.96),
    (ROUTED, MINIMAL_PACER, 1.96),
    ("NP makes a CNP: ingress, clone, egress", CLONE, 3.12),
    ("RP paces a flow in recovery", MINIMAL_PACER, 1.77),
];
/// With cold caches: the largest of four quick runs next to compilers, which use the shared cache. The largest of five
/// quick runs under other load were 1.53 and 2.62.
const COLD: [(&str, f64); 2] = [
    ("one packet by itself, host, ingress, cold caches: p50", 4.31),
    ("one packet by itself, host, egress, cold caches: p50", 5.17),
];
/// Throughput relative to references: the smallest of five quick runs under other load, and of published ones. Two CPUs
/// with Kmin 5 KB are excluded: they had 0.85 to 1.89 times the throughput of one.
const CPUS: [(&str, f64); 2] = [(growth::CPUS[1], 1.83), (growth::FLOWS[1], 0.92)];
const LINKS: [(&str, f64); 5] = [
    ("host at the sender (RP)", 0.82),
    ("host at the receiver (NP)", 0.96),
    (links::CP, 0.90),
    (links::EVERYTHING, 0.87),
    (links::EVERYTHING_4K, 0.91),
];
/// TCP next to an attachment: the smallest of all complete runs, without TSO. Single rounds of 50 ms had 0.74 to 1.50.
const TCP: f64 = 0.81;
/// Another processor has other ratios: those of an AMD EPYC were up to 1.2 times these of an Intel Xeon.
const SLACK: f64 = 1.35;
/// Largest spread that a bound of throughput allows for. XDP on the receive path leaves 0.29 of TCP's throughput, which
/// the bound must detect whatever the spread: 0.81 / 1.35 / 1.5 is 0.4.
const MAX_SPREAD: f64 = 0.5;

struct Bound {
    section: Section,
    name: String,
    /// The metric's own reference if `None`.
    against: Option<&'static str>,
    /// The worst ratio known.
    worst: f64,
}

fn bounds() -> Vec<Bound> {
    let of = |section, rows: &[(&str, f64)]| -> Vec<Bound> {
        rows.iter()
            .map(|&(name, worst)| Bound { section, name: name.to_owned(), against: None, worst })
            .collect()
    };
    let programs = PROGRAMS.map(|(name, against, worst)| Bound {
        section: Section::Packets,
        name: name.to_owned(),
        against: Some(against),
        worst,
    });
    let tcp = tcp::attached().map(|name| Bound { section: Section::Tcp, name, against: None, worst: TCP });
    [
        programs.into(),
        of(Section::Live, &COLD),
        of(Section::Cpus, &CPUS),
        of(Section::Links, &LINKS),
        tcp.collect(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Sum of the relative distances of the quartiles of a metric and its reference, at most [`MAX_SPREAD`].
///
/// A throughput depends on where the scheduler puts sender and receiver, which the better quartiles do not average out.
fn spread(report: &Report, metric: &Metric) -> f64 {
    let base = metric.against.as_ref().and_then(|name| report.metric(metric.section, name));
    let spread = |metric: &Metric| ((metric.high - metric.low) / metric.median).abs();
    [Some(metric), base].into_iter().flatten().map(spread).sum::<f64>().min(MAX_SPREAD)
}

/// Metrics of these sections beyond their bounds, and those without a value that were not skipped.
pub(crate) fn beyond(report: &Report, sections: &[Section]) -> Vec<(Section, String)> {
    let line = |bound: &Bound| {
        let Bound { section, name, against, worst } = bound;
        let Some(metric) = report.metric(*section, name) else {
            // Two CPUs that never ran at the same time are skipped as a whole.
            let is_excused = |what: &str| what == name || *section == Section::Cpus && what.contains("CPU");
            let is_skipped = report.skipped.iter().any(|skipped| is_excused(&skipped.what));
            return (!is_skipped).then(|| format!("{name}: not measured"));
        };
        let metric = &match against {
            Some(base) => metric.clone().against(*base),
            None => metric.clone(),
        };
        let Some(ratio) = report.ratio(metric) else {
            return Some(format!("{name}: its reference was not measured"));
        };
        let (is_kept, bound) = if metric.more_is_better {
            let least = worst / SLACK / (1.0 + spread(report, metric));
            (ratio >= least, least)
        } else {
            (ratio <= worst * SLACK, worst * SLACK)
        };
        (!is_kept).then(|| format!("{name}: {ratio:.2} times its reference, bound {bound:.2}"))
    };
    let checked = bounds().into_iter().filter(|bound| sections.contains(&bound.section));
    checked.filter_map(|bound| Some((bound.section, line(&bound)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Machine, Skipped, VERSION};

    /// A run with a metric whose reference is 10 ns.
    fn run(rounds: Vec<f64>) -> Report {
        let machine = Machine { cpu: "x".into(), cpus: 1, is_virtual: false, kernel: "6.1".into() };
        let metrics = vec![
            Metric::new(Section::Packets, "base", "ns", vec![10.0]),
            Metric::new(Section::Packets, "a", "ns", rounds).against("base"),
        ];
        let (skipped, targets) = (Vec::new(), Vec::new());
        Report { version: VERSION, machine, quick: true, seconds: 0.0, metrics, skipped, targets }
    }

    fn verdict(old: Vec<f64>, runs: Vec<Vec<f64>>) -> Verdict {
        let runs: Vec<Report> = runs.into_iter().map(run).collect();
        compare(&run(old), &runs).last().unwrap().verdict
    }

    #[test]
    fn gate_fails_beyond_ten_percent() {
        assert_eq!(verdict(vec![100.0], vec![vec![112.0]]), Verdict::Worse);
        assert_eq!(verdict(vec![100.0], vec![vec![109.0]]), Verdict::Kept);
        assert_eq!(verdict(vec![100.0], vec![vec![50.0]]), Verdict::Kept);
    }

    #[test]
    fn gate_reports_noise_that_hides_changes() {
        let noisy = vec![100.0, 115.0, 140.0];
        assert_eq!(verdict(vec![100.0], vec![noisy.clone()]), Verdict::Unsure);
        assert_eq!(verdict(vec![50.0], vec![noisy.clone()]), Verdict::Worse, "above the noise");
        assert_eq!(verdict(vec![100.0], vec![noisy, vec![101.0]]), Verdict::Kept, "the best run is used");
    }

    #[test]
    fn gate_discounts_common_slowdown() {
        let slower = |report: &mut Report| {
            report.metrics.iter_mut().for_each(|metric| {
                (metric.low, metric.median, metric.high) =
                    (metric.low * 3.0, metric.median * 3.0, metric.high * 3.0)
            });
        };
        let (old, mut new) = (run(vec![100.0]), run(vec![100.0]));
        slower(&mut new);
        let changes = compare(&old, &[new]);
        assert_eq!(changes.last().unwrap().verdict, Verdict::Kept);
    }

    #[test]
    fn gate_uses_best_baseline() {
        let mut disturbed = run(vec![120.0]);
        disturbed.metrics[0].low = 12.0;
        let changes = compare(&run(vec![100.0]), &[run(vec![120.0]), disturbed]);
        assert_eq!(changes.last().unwrap().verdict, Verdict::Worse);
    }

    #[test]
    fn gate_reports_missing_rows() {
        let mut less = run(vec![100.0]);
        less.metrics.truncate(1);
        let changes = compare(&run(vec![100.0]), &[less]);
        assert_eq!(changes.iter().map(|change| change.verdict).max(), Some(Verdict::Unsure));
    }

    #[test]
    fn doubtful_sections_are_rerun() {
        assert_eq!(doubtful(&compare(&run(vec![100.0]), &[run(vec![200.0])])), [Section::Packets]);
        assert_eq!(doubtful(&compare(&run(vec![100.0]), &[run(vec![100.0])])), []);
    }

    const fn is_rate(section: Section) -> bool {
        matches!(section, Section::Cpus | Section::Links | Section::Tcp)
    }

    /// A run with every metric of the gate: that much worse than the worst known, and with this spread.
    fn bounded_run(worse_by: f64, spread: f64) -> Report {
        let mut report = run(Vec::new());
        report.metrics.clear();
        for section in Section::value_variants() {
            let base = Metric::new(*section, "base", "", vec![10.0]);
            report.metrics.push(Metric { more_is_better: is_rate(*section), ..base });
        }
        for base in [CLONE, COUNTED_TCP, MINIMAL_PACER] {
            report.metrics.push(Metric::new(Section::Packets, base, "", vec![10.0]));
        }
        for Bound { section, name, worst, .. } in bounds() {
            let is_rate = is_rate(section);
            let value = if is_rate { 10.0 * worst / worse_by } else { 10.0 * worst * worse_by };
            let metric = Metric::new(section, name, "", vec![value]).against("base");
            let (low, high) = if is_rate { (value * (1.0 - spread), value) } else { (value, value) };
            report.metrics.push(Metric { more_is_better: is_rate, low, high, ..metric });
        }
        report
    }

    fn lines(report: &Report) -> Vec<String> {
        beyond(report, Section::value_variants()).into_iter().map(|(_, line)| line).collect()
    }

    #[test]
    fn gate_reports_bound_exceeded_or_unmeasured() {
        let number = bounds().len();
        assert_eq!(lines(&run(Vec::new())).len(), number);
        assert_eq!(lines(&bounded_run(1.3, 0.0)), Vec::<String>::new());
        assert_eq!(lines(&bounded_run(1.4, 0.0)).len(), number);
        let mut report = bounded_run(1.3, 0.0);
        let exceeded = &PROGRAMS[PROGRAMS.len() - 1].0;
        for metric in report.metrics.iter_mut().filter(|metric| metric.name == *exceeded) {
            metric.low *= 1.1;
        }
        assert_eq!(lines(&report).len(), 1);
        assert!(lines(&report)[0].starts_with(exceeded), "{:?}", lines(&report));
    }

    #[test]
    fn gate_allows_throughput_its_spread() {
        let rates = |report: &Report| beyond(report, &[Section::Tcp, Section::Links, Section::Cpus]).len();
        assert_eq!(rates(&bounded_run(1.6, 0.25)), 0);
        assert_eq!(rates(&bounded_run(1.6, 0.1)), bounds().len() - PROGRAMS.len() - COLD.len());
        // Whatever the spread, an attachment that costs TCP its offloads is found.
        let mut report = bounded_run(TCP / 0.29, 0.9);
        assert_eq!(beyond(&report, &[Section::Tcp]).len(), tcp::attached().count());
        // The reference's spread counts too, but costs per packet have no such allowance.
        report = bounded_run(1.6, 0.0);
        for base in report.metrics.iter_mut().filter(|metric| metric.name == "base") {
            base.low *= 0.75;
        }
        assert_eq!(rates(&report), 0);
        assert!(!beyond(&bounded_run(1.6, 0.25), &[Section::Packets]).is_empty());
    }

    #[test]
    fn gate_checks_selected_and_measured_sections() {
        let mut report = bounded_run(2.0, 0.0);
        assert!(beyond(&report, &[Section::Cpus]).iter().all(|(section, _)| *section == Section::Cpus));
        assert_eq!(beyond(&report, &[Section::Cpus]).len(), CPUS.len());
        report.metrics.retain(|metric| metric.section != Section::Cpus);
        let skip = |(what, _): (&str, f64)| Skipped { what: what.to_owned(), why: "one CPU".to_owned() };
        report.skipped = CPUS.into_iter().map(skip).collect();
        assert!(beyond(&report, &[Section::Cpus]).is_empty());
    }

    #[test]
    fn comparison_includes_every_section() {
        let changes = compare(&bounded_run(1.0, 0.0), &[bounded_run(1.2, 0.0)]);
        for section in bounds().into_iter().map(|bound| bound.section) {
            let mut of_section = changes.iter().filter(|change| change.section == section);
            assert!(of_section.any(|change| change.verdict == Verdict::Worse), "{section:?}");
        }
    }
}
