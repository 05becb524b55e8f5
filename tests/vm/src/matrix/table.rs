//! Results of the matrix: those of several runs of the same NIC and kernels, and their table.

use super::TITLE;
use crate::prelude::*;
use crate::scenario::Outcome;
use xtask::page;

/// The situation of a check, a row or a skipped part: `NAME: ...`, `NAME, ...`, `NAME`.
fn situation(text: &str) -> &str {
    text.split([':', ',']).next().unwrap_or_default()
}

fn of_row(row: &[String]) -> &str {
    row.first().map(String::as_str).unwrap_or_default()
}

/// Adds the situations of an earlier run that did not run again.
pub(super) fn merge(earlier: Finished, mut now: Finished, names: &[String]) -> Finished {
    let (Some(before), Some(outcome)) = (earlier.outcome, now.outcome.as_mut()) else {
        return now;
    };
    let is_older = |name: &str| !names.iter().any(|again| again == name) && name != "ran to its end";
    outcome.rows.extend(before.rows.into_iter().filter(|row| is_older(of_row(row))));
    outcome.checks.extend(before.checks.into_iter().filter(|check| is_older(situation(&check.what))));
    outcome.skipped.extend(before.skipped.into_iter().filter(|skip| is_older(situation(skip))));
    now.seconds += earlier.seconds;
    if now.verdict.is_ok() && outcome.checks.iter().any(|check| !check.ok) {
        now.verdict = Err("a check of an earlier run failed".into());
    }
    now
}

/// Whether a result is of the matrix.
pub(crate) fn is_matrix(run: &Finished) -> bool {
    run.scenario.starts_with(TITLE)
}

pub(crate) fn table(finished: &[Finished]) -> String {
    let heading = "NIC, kernels | passed | skipped | TCP ratio | goodput off, Mbit/s | with dcqcn | CNPs handled of sent | \
                   retries | CPU of sender and receiver off | with dcqcn | from a mark | commit, date";
    let mut runs: Vec<&Finished> = finished.iter().filter(|run| is_matrix(run)).collect();
    runs.sort_by(|a, b| a.scenario.cmp(&b.scenario));
    let rows: Vec<String> = runs.into_iter().filter_map(row).collect();
    page::table(heading, &rows)
}

fn row(run: &Finished) -> Option<String> {
    let outcome = run.outcome.as_ref()?;
    let all: BTreeSet<&str> = outcome.checks.iter().map(|check| situation(&check.what)).collect();
    let failed: BTreeSet<&str> =
        outcome.checks.iter().filter(|check| !check.ok).map(|check| situation(&check.what)).collect();
    let mut passed = format!("{} of {}", all.len() - failed.len(), all.len());
    if !failed.is_empty() {
        passed += &format!(", not {}", Vec::from_iter(failed).join(", "));
    }
    let skipped: BTreeSet<&str> = outcome.skipped.iter().map(|skip| situation(skip)).collect();
    let (off, on) = (incast(outcome, "off"), incast(outcome, "dcqcn"));
    let cell = |row: Option<&Vec<String>>, index: usize| {
        row.and_then(|row| row.get(index)).cloned().unwrap_or_else(|| "-".into())
    };
    let text = |name| outcome.rows.iter().find(|row| of_row(row) == name).and_then(|row| row.get(1));
    let ratio = text("tcp").and_then(|text| text.split_once("ratio ")).map_or("-", |(_, ratio)| ratio);
    let made = run.made.split_once("commit ").map_or("", |(_, made)| made.trim().trim_end_matches('.'));
    let cells = [
        run.scenario
            .trim_start_matches(TITLE)
            .trim_start_matches('-')
            .replace("-6.", ", 6.")
            .replace("-7", ", 7"),
        passed,
        if skipped.is_empty() { "-".into() } else { Vec::from_iter(skipped).join(", ") },
        ratio.to_owned(),
        cell(off, 2),
        cell(on, 2),
        format!("{} of {}", cell(on, 5), cell(on, 4)),
        cell(on, 7),
        cell(off, 8),
        cell(on, 8),
        text("reaction").map_or("-", String::as_str).to_owned(),
        made.to_owned(),
    ];
    Some(cells.join(" | "))
}

/// The row of the first situation with this text.
fn incast<'a>(outcome: &'a Outcome, what: &str) -> Option<&'a Vec<String>> {
    outcome.rows.iter().find(|row| of_row(row) == "incast" && row.get(1).is_some_and(|cell| cell == what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Check;

    fn run(rows: &[&[&str]], checks: &[(&str, bool)]) -> Finished {
        let check = |(what, ok): &(&str, bool)| Check {
            what: (*what).into(),
            measured: "1".into(),
            wanted: "0".into(),
            ok: *ok,
        };
        Finished {
            scenario: "between-e1000e-6.1+7".into(),
            series: Series::V6_1,
            seconds: 10.0,
            outcome: Some(Outcome {
                kernel: "6.1.0".into(),
                columns: Vec::new(),
                rows: rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect(),
                checks: checks.iter().map(check).collect(),
                skipped: vec!["queues: one".into()],
            }),
            verdict: Ok(()),
            made: "Made by `x` at commit abc, 2026-01-01.\n".into(),
        }
    }

    #[test]
    fn earlier_situations_stay_repeated_replaced() {
        let before =
            run(&[&["incast", "off"], &["vlan", "old"]], &[("incast: x", true), ("vlan, tags: x", false)]);
        let now = run(&[&["vlan", "new"]], &[("vlan: x", true)]);
        let merged = merge(before, now, &["vlan".to_owned(), "queues".to_owned()]);
        let outcome = merged.outcome.unwrap();
        assert_eq!(outcome.rows, [["vlan", "new"], ["incast", "off"]]);
        assert_eq!((outcome.checks.len(), outcome.skipped.len()), (2, 1));
        assert!(merged.verdict.is_ok());
    }

    #[test]
    fn failures_and_ratio_in_row() {
        let tcp = ["tcp", "attached 9, detached 10 Mbit/s, ratio 0.90"];
        let on = ["incast", "dcqcn", "13.6", "400", "343", "319", "0", "2", "21 %"];
        let reaction = ["reaction", "1.0 ms to the CNP"];
        let text =
            table(&[run(&[&tcp, &on, &reaction], &[("incast: x", true), ("link, carrier: x", false)])]);
        let row = text.lines().nth(2).unwrap();
        assert_eq!(
            row,
            "| e1000e, 6.1+7 | 1 of 2, not link | queues | 0.90 | - | 13.6 | 319 of 343 | 2 | - | 21 % | 1.0 ms to the CNP | abc, 2026-01-01 |"
        );
    }
}
