//! Compares parameters found by `dcqcn-lab tune` with presets on other traffic: target/measured/tune.md.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::lab::{Args, Lab, Page, Table, list, number, text};
use crate::run::header;
use crate::{page, workspace::Workspace};

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
    let files = SIZES.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    let traffic = |_: &Lab| {
        let rows = [("searched", TRAFFIC)].into_iter().chain(OTHER);
        let rows = rows.map(|(name, flags)| format!("{name} | `{FABRIC} {flags}`"));
        Ok(page::table("traffic | flags", &rows.collect::<Vec<_>>()))
    };
    let tables: [Table<'_>; 2] = [("traffic", &traffic), ("searches", &searches)];
    Page { name: "tune", files, tables: &tables, pictures: &[] }.write(workspace, args)
}

/// Results on other traffic, and on the traffic of the searches.
fn searches(lab: &Lab) -> Result<String> {
    let (mut others, mut searched) = (Vec::new(), Vec::new());
    let mut add = |name: &str, found: &[Found]| {
        header(format_args!("{name}, other traffic"));
        others.push(other_row(lab, name, found)?);
        searched.push(searched_row(name, found));
        anyhow::Ok(())
    };
    for (number, budget) in BUDGETS.iter().enumerate() {
        header(format_args!("{budget} candidates"));
        let (mut found, mut presets) = (Vec::new(), Vec::new());
        for seed in 1..=REPEATS {
            let report = lab.tune(&format!("{FABRIC} {TRAFFIC} --budget {budget} --search-seed {seed}"))?;
            // Ordered: the first candidate is the best.
            let rows = list(&report, "/rows").to_vec();
            let candidate = rows.iter().find(|row| row["is_preset"] == Value::Bool(false));
            found.push(Found::new(candidate.context("no candidate")?)?);
            presets = rows;
        }
        for preset in presets.iter().filter(|row| number == 0 && row["is_preset"] == Value::Bool(true)) {
            add(&format!("preset `{}`", text(preset, "name")), &[Found::new(preset)?])?;
        }
        add(&format!("{budget} candidates"), &found)?;
    }
    let heading = format!(
        " | {} | **all six** | worst to best search | pauses",
        OTHER.map(|(name, _)| name).join(" | ")
    );
    let last = " | slowdown searched | with other seeds | worst to best search | beyond a limit";
    Ok(format!("{}\n{}", page::table(&heading, &others), page::table(last, &searched)))
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

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|one| one.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// Results of one configuration on the other workloads: slowdown of each, and total pauses.
fn other_workloads(lab: &Lab, flags: &str) -> Result<(Vec<f64>, f64)> {
    let (mut slowdowns, mut pauses) = (Vec::new(), 0.0);
    for (_, traffic) in OTHER {
        let mut of_seeds = Vec::new();
        for seed in SEEDS {
            let run =
                lab.complete(&format!("fabric {FABRIC} {traffic} --duration 100ms --seed {seed} {flags}"))?;
            of_seeds.push(number(&run, "/fct/slowdown_p99")?);
            for class in list(&run, "/classes") {
                pauses += number(class, "/pauses")?;
            }
        }
        slowdowns.push(geometric_mean(&of_seeds));
    }
    Ok((slowdowns, pauses))
}

/// A row of the first table: medians over several searches.
fn other_row(lab: &Lab, name: &str, found: &[Found]) -> Result<String> {
    let all = found.iter().map(|found| other_workloads(lab, &found.flags)).collect::<Result<Vec<_>>>()?;
    let mut row = name.to_owned();
    for index in 0..OTHER.len() {
        row += &format!(" | {:.1}", median(all.iter().map(|(slowdowns, _)| slowdowns[index]).collect()));
    }
    let means: Vec<f64> = all.iter().map(|(slowdowns, _)| geometric_mean(slowdowns)).collect();
    let pauses = median(all.iter().map(|(_, pauses)| *pauses).collect());
    Ok(row + &format!(" | **{:.2}** | {} | {pauses:.0}", median(means.clone()), range(&means)))
}

fn searched_row(name: &str, found: &[Found]) -> String {
    let of = |metric: fn(&Found) -> f64| found.iter().map(metric).collect::<Vec<f64>>();
    let checked = of(|found| found.checked);
    let broken = found.iter().filter(|found| !found.keeps_limits).count();
    let (searched, range) = (median(of(|found| found.searched)), range(&checked));
    format!("{name} | {searched:.2} | {:.2} | {range} | {broken} of {}", median(checked), found.len())
}

/// Maximum and minimum, if there are several.
fn range(values: &[f64]) -> String {
    if values.len() < 2 {
        return String::new();
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    format!("{:.2} to {least:.2}", values.iter().copied().fold(0.0, f64::max))
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
        let row = searched_row("x", &[found(3.0, true), found(9.0, false), found(4.0, true)]);
        assert_eq!(row, "x | 1.00 | 4.00 | 9.00 to 3.00 | 1 of 3");
    }
}
