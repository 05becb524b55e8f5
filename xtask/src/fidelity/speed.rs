//! Speed of simulations.

use std::fs;
use std::path::Path;

use super::*;

const FABRIC_HEADING: [&str; 6] =
    ["fabric", "cores", "packet hops, millions", "time, s", "million hops/s", "memory, MB"];

pub(super) fn flows(lab: &Lab) -> Result<String> {
    const LINK_BPS: u64 = 100_000_000_000;
    let mut rows = Vec::new();
    let command = |flows: &str, rate: &str| {
        format!(
            "incast --link 100g --flows {flows} --sender-link {rate} --kmin 400KB --kmax 1600KB --pmax 20% \
             --set rpg_min_rate=1mbit --duration 300ms"
        )
    };
    for flows in [2u64, 10, 100, 1_000, 10_000] {
        // 1.2 times the fair share, so that the offered load is the same for all.
        let rate = (LINK_BPS / flows * 6 / 5).to_string();
        let run = lab.json(&command(&flows.to_string(), &rate))?;
        rows.push(vec![
            flows.to_string(),
            format!("{:.2}", number(&run, "/outcome/counters/hops")? / 1e6),
            format!("{:.2}", number(&run, "/wall_seconds")?),
            format!("{:.1}", number(&run, "/hops_per_second")? / 1e6),
        ]);
    }
    let heading = ["flows", "packet hops, millions", "time on one core, s", "million hops/s"];
    Ok(table(&[&command("100", "1.2g")], &heading, &rows) + &processor())
}

/// The processor according to Linux, and the number of cores.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = cores();
    format!("\nProcessor: {}, {cores} cores.\n", name.map_or("unknown", |(_, name)| name))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A row of one run, and its results without timing.
fn row(lab: &Lab, name: &str, options: &str, threads: usize) -> Result<(Vec<String>, Value)> {
    let mut run = lab.json(&format!("{options} --threads {threads}"))?;
    let row = vec![
        name.to_owned(),
        threads.to_string(),
        format!("{:.1}", number(&run["work"], "/hops")? / 1e6),
        format!("{:.1}", number(&run, "/wall_seconds")?),
        format!("{:.1}", number(&run, "/hops_per_second")? / 1e6),
        format!("{:.0}", number(&run, "/peak_memory_bytes")? / 1e6),
    ];
    let report = run.as_object_mut().context("a report is an object")?;
    for own in ["wall_seconds", "hops_per_second", "peak_memory_bytes"] {
        report.remove(own);
    }
    Ok((row, run))
}

/// Runs a fabric on one core and on all, and ensures that the results are the same.
fn rows(lab: &Lab, name: &str, options: &str) -> Result<Vec<Vec<String>>> {
    let (one, report) = row(lab, name, options, 1)?;
    let (all, other) = row(lab, name, options, cores())?;
    ensure!(report == other, "the result on {} cores differs from that on one: {options}", cores());
    Ok(vec![one, all])
}

pub(super) fn fabric(lab: &Lab) -> Result<String> {
    let small = "fabric --topology leaf-spine:4x4x16 --size 1MB --load 50% --until 40ms";
    let large = "fabric --topology leaf-spine:32x32x32 --size 1MB --load 50% --until 4ms";
    let mut all = rows(lab, "64 hosts, 8 switches", small)?;
    all.extend(rows(lab, "1,024 hosts, 64 switches", large)?);
    Ok(table(&[large], &FABRIC_HEADING, &all) + &processor())
}

/// 100 ms of 1,024 hosts, with a third party's distribution of sizes.
pub(super) fn websearch(lab: &Lab, sizes: &Path) -> Result<String> {
    let sizes = sizes.canonicalize().with_context(|| format!("cannot find {}", sizes.display()))?;
    let command = |sizes: &str| {
        format!(
            "fabric --topology leaf-spine:32x32x32 --sizes {sizes} --load 50% --until 100ms --duration 100ms"
        )
    };
    let path = sizes.to_str().context("the file's name is not UTF-8")?;
    let (row, report) = row(lab, "1,024 hosts, 64 switches", &command(path), cores())?;
    let [flows, left] = ["/flows", "/unfinished_flows"].map(|figure| number(&report, figure));
    let note = format!("\n{} flows, {} of them incomplete.\n", flows?, left?);
    Ok(table(&[&command("WebSearch_distribution.txt")], &FABRIC_HEADING, &[row]) + &note + &processor())
}
