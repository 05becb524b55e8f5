//! Tables measured in the guest: selected ones in docs/measured/soft-roce.md, all in target/measured/soft-roce.md.

use std::collections::BTreeMap;

use super::matrix::table;
use crate::prelude::*;
use xtask::page::{self, Measured};

const PAGE: &str = "soft-roce";
const COMMITTED: &str = "docs/measured/soft-roce.md";
const KERNELS: &str = "kernels";
const MATRIX: &str = "matrix";

/// Writes the tables of scenarios that ran; others are unchanged.
pub(super) fn write(workspace: &Workspace, finished: Vec<Finished>) -> Result<()> {
    let (matrix, finished): (Vec<_>, Vec<_>) = finished.into_iter().partition(table::is_matrix);
    let path = workspace.root().join(COMMITTED);
    let text = fs::read_to_string(&path)?;
    let mut measured = Measured::new(PAGE);
    measured.add(KERNELS, &kernels(&finished, page::between(COMMITTED, &text, KERNELS)?));
    if !matrix.is_empty() {
        measured.add(MATRIX, &table::table(&matrix));
    }
    for run in finished.iter().filter(|run| run.series == Series::V6_1) {
        if let Some((table, checks)) = measurements(run) {
            measured.add_with(&run.scenario, &table, &checks);
        }
    }
    measured.write(workspace)
}

/// The table of a scenario, and its checks.
fn measurements(run: &Finished) -> Option<(String, String)> {
    let outcome = run.outcome.as_ref()?;
    let passed = outcome.checks.iter().filter(|check| check.ok).count();
    let mut text =
        format!("Linux {}, {passed} of {} checks passed. {}", outcome.kernel, outcome.checks.len(), run.made);
    if !outcome.rows.is_empty() {
        text += "\n";
        let rows: Vec<_> = outcome.rows.iter().map(|row| row.join(" | ")).collect();
        text += &page::table(&outcome.columns.join(" | "), &rows);
    }
    let rows = outcome.checks.iter().map(|check| {
        let verdict = if check.ok { "" } else { "**failed** " };
        format!("{} | {verdict}{} | {}", check.what, check.measured, check.wanted)
    });
    Some((text, format!("\n{}", page::table("checked | measured | wanted", &rows.collect::<Vec<_>>()))))
}

/// A row for every scenario on x86_64, a column for every kernel. Entries of the table `before` stay if there is no
/// newer result for that kernel: this machine need not have run everything.
fn kernels(finished: &[Finished], before: &str) -> String {
    let finished: Vec<&Finished> =
        finished.iter().filter(|run| !run.scenario.ends_with(Arch::Aarch64.name())).collect();
    let known: Vec<Vec<&str>> = before.lines().map(cells).collect();
    let releases = known.first().map(|heading| heading.get(1..).unwrap_or_default()).unwrap_or_default();
    let mut columns: BTreeMap<Series, &str> =
        releases.iter().filter_map(|release| Some((Series::of(release)?, *release))).collect();
    columns
        .extend(finished.iter().filter_map(|run| Some((run.series, run.outcome.as_ref()?.kernel.as_str()))));
    let mut scenarios: Vec<&str> =
        known.iter().skip(2).filter_map(|row| row.first().copied()).filter(|name| !name.is_empty()).collect();
    let others: BTreeSet<&str> = finished.iter().map(|run| run.scenario.as_str()).collect();
    scenarios.extend(others.into_iter().filter(|name| !known.iter().any(|row| row.first() == Some(name))));
    let documented = |scenario: &str, release: &str| -> Option<String> {
        let column = releases.iter().position(|known| *known == release)? + 1;
        let row = known.iter().find(|row| row.first() == Some(&scenario))?;
        row.get(column).map(|cell| (*cell).to_owned())
    };
    let row = |scenario: &str| {
        let cell = |(series, release): (&Series, &&str)| {
            let run = finished.iter().find(|run| run.series == *series && run.scenario == scenario);
            run.map(|run| run.verdict())
                .or_else(|| documented(scenario, release))
                .unwrap_or_else(|| "not run".to_owned())
        };
        std::iter::once(scenario.to_owned()).chain(columns.iter().map(cell)).collect::<Vec<_>>().join(" | ")
    };
    let heading: Vec<&str> = std::iter::once("scenario").chain(columns.values().copied()).collect();
    page::table(&heading.join(" | "), &scenarios.into_iter().map(row).collect::<Vec<_>>())
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{Check, Outcome};
    use super::*;

    fn finished(scenario: &str, series: Series, ok: bool) -> Finished {
        let check = Check { what: "drops".into(), measured: "3".into(), wanted: "0".into(), ok };
        let outcome = Outcome {
            kernel: format!("{series}.0-test"),
            columns: vec!["run".into()],
            rows: vec![vec!["off".into()]],
            checks: vec![check],
            skipped: Vec::new(),
        };
        let verdict = if ok { Ok(()) } else { Err("a check failed".into()) };
        let (scenario, made) = (scenario.into(), "Made by `x` at commit 1, 2026-01-01.\n".into());
        Finished { scenario, series, seconds: 33.3, outcome: Some(outcome), verdict, made }
    }

    #[test]
    fn failures_are_marked_in_the_table() {
        let (table, checks) = measurements(&finished("incast", Series::V6_1, false)).unwrap();
        assert!(table.ends_with("| off |\n"), "{table}");
        assert!(table.contains(", 0 of 1 checks passed. Made by `x`"), "{table}");
        assert!(checks.contains("| drops | **failed** 3 | 0 |\n"), "{checks}");
    }

    #[test]
    fn kernels_are_columns() {
        let runs = [
            finished("incast", Series::V6_1, true),
            finished("incast", Series::V7, false),
            finished("read", Series::V6_1, true),
            finished("read-aarch64", Series::V6_12, true),
        ];
        let text = kernels(&runs, "");
        assert!(!text.contains("aarch64") && !text.contains("6.12"), "{text}");
        assert!(text.starts_with("| scenario | 6.1.0-test | 7.0-test |\n"), "{text}");
        assert!(text.contains("| incast | 1 of 1, 33 s | **failed**, 0 of 1, 33 s |\n"), "{text}");
        assert!(text.contains("| read | 1 of 1, 33 s | not run |\n"), "{text}");
    }

    #[test]
    fn sections_not_run_are_unchanged() {
        let before = "| scenario | 6.1.0-test | 6.12.1-other |\n| --- | --- | --- |\n| read | 9 of 9, 9 s | 8 of 8, 8 s |\n\
                      | incast | 7 of 7, 7 s | not run |\n";
        let text =
            kernels(&[finished("incast", Series::V6_1, true), finished("send", Series::V7, true)], before);
        assert_eq!(
            text,
            "| scenario | 6.1.0-test | 6.12.1-other | 7.0-test |\n| --- | --- | --- | --- |\n\
             | read | 9 of 9, 9 s | 8 of 8, 8 s | not run |\n| incast | 1 of 1, 33 s | not run | not run |\n\
             | send | not run | not run | 1 of 1, 33 s |\n"
        );
        // A new kernel has no results.
        let text = kernels(&[finished("incast", Series::V6_12, true)], before);
        assert!(text.contains("| read | 9 of 9, 9 s | not run |\n"), "{text}");
    }

    #[test]
    fn page_has_marker_for_environment() {
        let text = fs::read_to_string(Workspace::locate().unwrap().root().join(COMMITTED)).unwrap();
        page::between(COMMITTED, &text, KERNELS).unwrap();
    }
}
