//! Compares parameters found by `dcqcn-lab tune` with presets on other traffic: target/measured/tune.md.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::lab::{Args, Lab, number};
use crate::page::{self, Measured};
use crate::run::header;
use crate::workspace::Workspace;

/// Names of the page's tables.
const TABLES: [&str; 4] = [page::ORIGIN, "traffic", "other", "searched"];

/// The fabric of all workloads: 16 hosts, not oversubscribed, buffers of a small switch.
const FABRIC: &str = "--topology leaf-spine:4x4x4 --buffer 8MB";
/// Workload of the search.
const TRAFFIC: &str = "--sizes mixed.txt --load 50% --until 4ms --also workload=incast:8,size=500KB";
/// Flow sizes, as `BYTES PERCENT` lines: mostly short, and mostly long.
const SIZES: [(&str, &str); 2] = [
    ("mixed.txt", "1000 0\n4000 40\n16000 60\n64000 75\n256000 88\n1000000 96\n4000000 100\n"),
    ("long.txt", "10000 0\n100000 20\n1000000 60\n8000000 100\n"),
];
/// Workloads outside the search: name and flags.
const OTHER: [(&str, &str); 6] = [
    ("load 30 %", "--sizes mixed.txt --load 30% --until 4ms"),
    ("load 80 %", "--sizes mixed.txt --load 80% --until 4ms"),
    ("long flows", "--sizes long.txt --load 50% --until 4ms"),
    ("incast of 15", "--workload incast:15 --size 500KB"),
    ("incast of 4, 5 MB", "--workload incast:4 --size 5MB"),
    ("permutation, 2 MB", "--workload permutation --size 2MB"),
];
/// Seeds of those workloads; the search and its second evaluation use others.
const SEEDS: [u32; 3] = [5_001, 5_002, 5_003];
/// Budgets of the searches.
const BUDGETS: [u32; 2] = [96, 24];
/// Number of searches per budget.
const REPEATS: u32 = 5;

/// Result of one search: its best candidate.
struct Found {
    flags: String,
    searched: f64,
    checked: f64,
    keeps_limits: bool,
}

/// Runs the searches, simulates the other workloads, and writes the tables.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let files = workspace.root().join("target/tune");
    fs::create_dir_all(&files).with_context(|| format!("cannot create {}", files.display()))?;
    for (name, text) in SIZES {
        let path = files.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let lab = Lab::new(workspace, args.binary.clone())?.within(&files);
    let mut others = Vec::new();
    let mut searched = Vec::new();
    for (number, budget) in BUDGETS.iter().enumerate() {
        header(format_args!("{budget} candidates"));
        let mut found = Vec::new();
        let mut presets = Vec::new();
        for seed in 1..=REPEATS {
            let report = lab.tune(&format!("{FABRIC} {TRAFFIC} --budget {budget} --search-seed {seed}"))?;
            let rows = report.pointer("/rows").and_then(Value::as_array).context("no rows")?;
            found.push(best(rows)?);
            presets = rows.iter().filter(|row| row["is_preset"] == Value::Bool(true)).cloned().collect();
        }
        if number == 0 {
            for preset in &presets {
                let name = preset["name"].as_str().context("no name")?;
                header(format_args!("preset {name}, other traffic"));
                let row = Found::new(preset)?;
                others.push(other_row(&lab, format!("preset `{name}`"), &[row.flags.as_str()])?);
                searched.push(searched_row(format!("preset `{name}`"), &[row]));
            }
        }
        let name = format!("{budget} candidates");
        header(format_args!("{name}, other traffic"));
        let flags: Vec<&str> = found.iter().map(|found| found.flags.as_str()).collect();
        others.push(other_row(&lab, name.clone(), &flags)?);
        searched.push(searched_row(name, &found));
    }
    let mut measured = Measured::new("tune");
    let traffic = [("searched", TRAFFIC)].into_iter().chain(OTHER);
    let traffic =
        traffic.map(|(name, flags)| vec![name.to_owned(), format!("`{FABRIC} {flags}`")]).collect::<Vec<_>>();
    let tables = [
        page::origin(workspace, "cargo xtask tune")?,
        table(&["traffic", "flags"], &traffic),
        table(
            &[&[""][..], &OTHER.map(|(name, _)| name), &["**all six**", "worst to best search", "pauses"]]
                .concat(),
            &others,
        ),
        table(
            &["", "slowdown searched", "with other seeds", "worst to best search", "beyond a limit"],
            &searched,
        ),
    ];
    for (name, table) in TABLES.iter().zip(tables) {
        eprintln!("{table}");
        measured.add(name, &table);
    }
    if args.dry_run { Ok(()) } else { measured.write(workspace) }
}

fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    page::table(&heading.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>(), rows)
}

impl Found {
    fn new(row: &Value) -> Result<Self> {
        Ok(Self {
            flags: row["flags"].as_str().context("no flags")?.to_owned(),
            searched: number(row, "/searched/slowdown")?,
            checked: number(row, "/checked/slowdown")?,
            keeps_limits: number(row, "/checked/excess")? == 0.0,
        })
    }
}

/// The first candidate among ordered rows.
fn best(rows: &[Value]) -> Result<Found> {
    let candidate = rows.iter().find(|row| row["is_preset"] == Value::Bool(false));
    Found::new(candidate.context("no candidate")?)
}

/// Results of one configuration on the other workloads: slowdown of each, and total pauses.
fn other_workloads(lab: &Lab, flags: &str) -> Result<(Vec<f64>, f64)> {
    let mut slowdowns = Vec::new();
    let mut pauses = 0.0;
    for (_, traffic) in OTHER {
        let mut logs = 0.0;
        for seed in SEEDS {
            let run =
                lab.json(&format!("fabric {FABRIC} {traffic} --duration 100ms --seed {seed} {flags}"))?;
            ensure!(
                number(&run, "/unfinished_flows")? == 0.0,
                "flows do not complete with {flags}, {traffic}"
            );
            logs += number(&run, "/fct/slowdown_p99")?.ln();
            for class in run["classes"].as_array().into_iter().flatten() {
                pauses += number(class, "/pauses")?;
            }
        }
        slowdowns.push((logs / SEEDS.len() as f64).exp());
    }
    Ok((slowdowns, pauses))
}

/// A row of the first table: medians over several searches.
fn other_row(lab: &Lab, name: String, configurations: &[&str]) -> Result<Vec<String>> {
    let all = configurations.iter().map(|flags| other_workloads(lab, flags)).collect::<Result<Vec<_>>>()?;
    let mut row = vec![name];
    for index in 0..OTHER.len() {
        row.push(format!("{:.1}", median(all.iter().map(|(slowdowns, _)| slowdowns[index]).collect())));
    }
    let mean = |slowdowns: &[f64]| {
        (slowdowns.iter().map(|one| one.ln()).sum::<f64>() / slowdowns.len() as f64).exp()
    };
    let means: Vec<f64> = all.iter().map(|(slowdowns, _)| mean(slowdowns)).collect();
    row.push(format!("**{:.2}**", median(means.clone())));
    row.push(range(&means));
    row.push(format!("{:.0}", median(all.iter().map(|(_, pauses)| *pauses).collect())));
    Ok(row)
}

fn searched_row(name: String, found: &[Found]) -> Vec<String> {
    let of = |figure: fn(&Found) -> f64| found.iter().map(figure).collect::<Vec<f64>>();
    let broken = found.iter().filter(|found| !found.keeps_limits).count();
    vec![
        name,
        format!("{:.2}", median(of(|found| found.searched))),
        format!("{:.2}", median(of(|found| found.checked))),
        range(&of(|found| found.checked)),
        format!("{broken} of {}", found.len()),
    ]
}

/// Maximum and minimum, if there are several.
fn range(values: &[f64]) -> String {
    if values.len() < 2 {
        return String::new();
    }
    let [least, most] =
        [values.iter().copied().fold(f64::INFINITY, f64::min), values.iter().copied().fold(0.0, f64::max)];
    format!("{most:.2} to {least:.2}")
}

/// Median of an odd number of values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_has_medians() {
        let found =
            |checked, keeps_limits| Found { flags: String::new(), searched: 1.0, checked, keeps_limits };
        let row = searched_row("x".to_owned(), &[found(3.0, true), found(9.0, false), found(4.0, true)]);
        assert_eq!(row, ["x", "1.00", "4.00", "9.00 to 3.00", "1 of 3"]);
    }
}
