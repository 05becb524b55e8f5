//! Detection of regressions: compared with an earlier run, and with bounds for every machine.

use clap::ValueEnum as _;
use serde::Serialize;

use crate::report::{Metric, Report, Section};

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

/// Metrics checked by a test, relative to their references: the largest of ten quick runs, with a bound of [`SLACK`]
/// times that. In those ten, all under other load, the largest was up to 1.16 times the smallest. XDP is excluded: an
/// empty XDP program takes 7 ns, and the largest was up to 3 times the smallest.
const STABLE: [(&str, f64); 15] = [
    ("TCP, ingress", 1.29),
    ("TCP, egress", 1.29),
    ("RoCE unmarked, ingress", 1.68),
    ("RoCE unmarked, egress", 4.86),
    ("RoCE over IPv6, ingress", 1.70),
    ("RoCE over IPv6, egress", 5.12),
    ("RoCE with a VLAN tag, ingress", 1.70),
    ("RoCE with a VLAN tag, egress", 4.93),
    ("ACK, egress", 4.50),
    ("CP, not marked", 4.18),
    ("CP marks", 4.95),
    ("NP within the CNP interval", 4.50),
    ("NP makes a CNP: ingress, clone, egress", 3.12),
    ("RP paces a flow in recovery", 1.55),
    ("minimal pacer, same table", 3.38),
];
/// Another processor has other ratios: those of an AMD EPYC were up to 1.2 times these of an Intel Xeon.
const SLACK: f64 = 1.35;

pub(crate) fn beyond(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, largest) in STABLE {
        let bound = largest * SLACK;
        match report.metric(Section::Packets, name).and_then(|metric| report.ratio(metric)) {
            Some(ratio) if ratio <= bound => {}
            Some(ratio) => lines.push(format!("{name}: {ratio:.2} times its reference, bound {bound:.2}")),
            None => lines.push(format!("{name}: not measured")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Machine, VERSION};

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

    #[test]
    fn gate_reports_bound_exceeded_or_unmeasured() {
        let mut report = run(Vec::new());
        assert_eq!(beyond(&report).len(), STABLE.len());
        report.metrics.extend(STABLE.map(|(name, largest)| {
            Metric::new(Section::Packets, name, "ns", vec![10.0 * largest * 1.3]).against("base")
        }));
        assert_eq!(beyond(&report), Vec::<String>::new());
        let Some(metric) = report.metrics.last_mut() else { panic!("no metrics") };
        metric.low *= 1.1;
        assert!(beyond(&report).iter().all(|line| line.starts_with(STABLE[STABLE.len() - 1].0)));
        assert_eq!(beyond(&report).len(), 1);
    }
}
