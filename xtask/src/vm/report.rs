//! docs/measured/soft-roce.md: the tables of what was measured in the guest.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result};

use super::Finished;
use super::kernel::Series;
use crate::page;
use crate::run::header;
use crate::workspace::Workspace;

const PAGE: &str = "docs/measured/soft-roce.md";
/// The table of what ran where.
const KERNELS: &str = "kernels";

/// Writes the tables of what ran; those of scenarios that never did stay.
pub(super) fn write(workspace: &Workspace, finished: &[Finished]) -> Result<()> {
    let path = workspace.root().join(PAGE);
    let mut text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    for run in finished.iter().filter(|run| run.series == Series::V6_1) {
        if let Some(table) = measurements(run) {
            text = page::replace(PAGE, &text, &run.scenario, &table)?;
        }
    }
    text = page::replace(PAGE, &text, KERNELS, &kernels(finished))?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    header(format_args!("{PAGE} written"));
    Ok(())
}

/// What a scenario measured and what it was held to.
fn measurements(run: &Finished) -> Option<String> {
    let outcome = run.outcome.as_ref()?;
    let mut text = format!("Linux {}. {}\n\n", outcome.kernel, run.made.trim_end());
    if !outcome.rows.is_empty() {
        text += &page::table(&outcome.columns, &outcome.rows);
        text += "\n";
    }
    let heading = ["checked", "measured", "wanted"].map(str::to_owned);
    let rows: Vec<Vec<String>> = outcome
        .checks
        .iter()
        .map(|check| {
            let verdict = if check.ok { "" } else { "**failed** " };
            vec![check.what.clone(), format!("{verdict}{}", check.measured), check.wanted.clone()]
        })
        .collect();
    Some(text + &page::table(&heading, &rows))
}

/// A row for every scenario, a column for every kernel.
fn kernels(finished: &[Finished]) -> String {
    let mut columns: Vec<(Series, &str)> =
        finished.iter().filter_map(|run| Some((run.series, run.outcome.as_ref()?.kernel.as_str()))).collect();
    columns.sort_unstable();
    columns.dedup();
    let scenarios: BTreeSet<&str> = finished.iter().map(|run| run.scenario.as_str()).collect();
    let row = |scenario: &str| {
        let cell = |series: Series| {
            let run = finished.iter().find(|run| run.series == series && run.scenario == scenario);
            run.map_or_else(|| "not run".to_owned(), Finished::verdict)
        };
        std::iter::once(scenario.to_owned()).chain(columns.iter().map(|(series, _)| cell(*series))).collect()
    };
    let heading: Vec<String> = std::iter::once("scenario")
        .chain(columns.iter().map(|(_, release)| *release))
        .map(str::to_owned)
        .collect();
    page::table(&heading, &scenarios.into_iter().map(row).collect::<Vec<_>>())
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
        };
        let verdict = if ok { Ok(()) } else { Err("a check failed".into()) };
        let (scenario, made) = (scenario.into(), "Made by `x` at commit 1, 2026-01-01.\n".into());
        Finished { scenario, series, seconds: 33.3, outcome: Some(outcome), verdict, made }
    }

    #[test]
    fn failures_stand_out() {
        let text = measurements(&finished("incast", Series::V6_1, false)).unwrap();
        assert!(text.contains("| off |\n") && text.contains("| drops | **failed** 3 | 0 |\n"), "{text}");
    }

    #[test]
    fn kernels_are_columns() {
        let runs = [
            finished("incast", Series::V6_1, true),
            finished("incast", Series::V7, false),
            finished("read", Series::V6_1, true),
        ];
        let text = kernels(&runs);
        assert!(text.starts_with("| scenario | 6.1.0-test | 7.0-test |\n"), "{text}");
        assert!(text.contains("| incast | 1 of 1, 33 s | **failed**, 0 of 1, 33 s |\n"), "{text}");
        assert!(text.contains("| read | 1 of 1, 33 s | not run |\n"), "{text}");
    }

    #[test]
    fn the_page_has_a_place_for_what_ran_where() {
        let page = fs::read_to_string(Workspace::locate().unwrap().root().join(PAGE)).unwrap();
        page::replace(PAGE, &page, KERNELS, "").unwrap();
    }
}
