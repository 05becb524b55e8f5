//! HPCC's ns-3: DCQCN on their fat tree, slowdown by size.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::Judged;
use super::flows::{self, Flows, difference};
use super::matrix::Random;
use crate::lab::{Lab, number, table};

const STORED: &str = include_str!("hpcc.csv");
/// Number of flow sets.
const SETS: u64 = 1;
/// Hosts and topology: pods of four ToRs of 16 hosts and four switches above, each with a link to four cores.
const HOSTS: u32 = 320;
const TORS: u32 = 20;
const CORES: u32 = 16;
/// Time in which flows start; each host offers half of 100 Gbit/s.
const UNTIL_NS: u64 = 2_000_000;
const HOST_BYTES_PER_NS: f64 = 12.5 * 0.5;
/// Range of lengths, with a uniform logarithm.
const SHORTEST: f64 = 100.0;
const LONGEST: f64 = 30e6;

const OPTIONS: &str = "--topology file:fat.txt --mtu 1000B --header 38B --ack-every 1 --wred-by-rate on --buffer 32MB \
                       --profile hpcc --set wire_overhead=0 --set cnp_dscp=26";

fn flows_file(set: u64) -> String {
    format!("flows-{set}.txt")
}

/// Writes the topology and the flows, in HPCC's formats.
pub(super) fn write_all(directory: &Path) -> Result<()> {
    let write = |name: &str, text: String| {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write("fat.txt", topology())?;
    (1..=SETS).try_for_each(|set| write(&flows_file(set), flows(set)))
}

fn topology() -> String {
    let switches = 2 * TORS + CORES;
    let (tor, agg, core) = (HOSTS, HOSTS + TORS, HOSTS + 2 * TORS);
    let mut links = Vec::new();
    links.extend((0..HOSTS).map(|host| (host, tor + host / 16, 100)));
    for number in 0..TORS {
        let pod = number / 4 * 4;
        links.extend((0..4).map(|other| (tor + number, agg + pod + other, 400)));
    }
    for number in 0..TORS {
        links.extend((0..4).map(|other| (agg + number, core + number % 4 * 4 + other, 400)));
    }
    let mut text = format!("{} {switches} {}\n", HOSTS + switches, links.len());
    let names: Vec<String> = (HOSTS..HOSTS + switches).map(|switch| switch.to_string()).collect();
    text += &names.join(" ");
    text.push('\n');
    for (a, b, gbit) in links {
        let _ = writeln!(text, "{a} {b} {gbit}Gbps 1000ns 0.000000");
    }
    text
}

/// Flows at random times between random hosts.
fn flows(set: u64) -> String {
    let mut random = Random::new(1_000 + set);
    let mean_bytes = (LONGEST - SHORTEST) / (LONGEST / SHORTEST).ln();
    let count = f64::from(HOSTS) * HOST_BYTES_PER_NS * UNTIL_NS as f64 / mean_bytes;
    let mut starts: Vec<u64> = (0..count as u64).map(|_| random.below(UNTIL_NS)).collect();
    starts.sort_unstable();
    let mut text = format!("{}\n", starts.len());
    for start_ns in starts {
        let src = random.below(HOSTS.into());
        let dst = (src + 1 + random.below(u64::from(HOSTS) - 1)) % u64::from(HOSTS);
        let share = random.below(1_000_000) as f64 / 1e6;
        let bytes = SHORTEST * (LONGEST / SHORTEST).powf(share);
        // HPCC's simulator starts at 2 s.
        let start_ns = 2_000_000_000 + start_ns;
        let _ = writeln!(
            text,
            "{src} {dst} 3 100 {bytes:.0} {}.{:09}",
            start_ns / 1_000_000_000,
            start_ns % 1_000_000_000
        );
    }
    text
}

/// Slowdown of a band of sizes, or of all flows.
#[derive(Clone, Copy, Default)]
struct Band {
    /// Middle of the band, used as its name.
    bytes: f64,
    mean: f64,
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Band {
    fn of(fct: &Value, bytes: f64) -> Result<Self> {
        let figure = |name: &str| number(fct, &format!("/slowdown_{name}"));
        Ok(Self {
            bytes,
            mean: figure("mean")?,
            p50: figure("p50")?,
            p95: figure("p95")?,
            p99: figure("p99")?,
        })
    }

    /// Mean of the bands of several sets.
    fn mean(bands: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| bands.iter().map(figure).sum::<f64>() / bands.len().max(1) as f64;
        Self {
            bytes: of(|band| band.bytes),
            mean: of(|band| band.mean),
            p50: of(|band| band.p50),
            p95: of(|band| band.p95),
            p99: of(|band| band.p99),
        }
    }
}

/// Stored results of HPCC: `set,band,flows,starts,mean,p50,p95,p99`; band 10 is all flows.
fn kept(set: u64, band: usize) -> Result<(Flows, Band)> {
    let start = format!("{set},{band},");
    let line = STORED.lines().find_map(|line| line.strip_prefix(&start));
    let line = line.with_context(|| format!("no stored results of band {band} of set {set}"))?;
    let wrong = || format!("{start}{line}: expected flows, their checksum and four numbers");
    let mut cells = line.split(',');
    let flows = cells.next().zip(cells.next()).and_then(|(count, starts)| Flows::kept(count, starts));
    let numbers = cells.map(str::parse).collect::<Result<Vec<f64>, _>>().with_context(wrong)?;
    let &[mean, p50, p95, p99] = numbers.as_slice() else { anyhow::bail!(wrong()) };
    Ok((flows.with_context(wrong)?, Band { bytes: 0.0, mean, p50, p95, p99 }))
}

fn ours(lab: &Lab, set: u64) -> Result<Vec<Band>> {
    let options = format!("fabric {OPTIONS} --duration 3s --workload hpcc:{}", flows_file(set));
    let (run, flows) = flows::run(lab, &options)?;
    let (theirs, _) = kept(set, 10)?;
    Flows::of(&[flows]).ensure_same(theirs, &flows_file(set))?;
    let bands = run.pointer("/fct_by_size").and_then(Value::as_array).context("no bands of sizes")?;
    let all = run.pointer("/fct").context("no completion times")?;
    let band = |band: &Value| {
        let [min, max] = ["/min_bytes", "/max_bytes"].map(|end| number(band, end));
        Band::of(band.pointer("/fct").context("no completion times")?, (min? * max?).sqrt())
    };
    let mut bands = bands.iter().map(band).collect::<Result<Vec<_>>>()?;
    ensure!(bands.len() == 10, "{} size bands, expected 10", bands.len());
    bands.push(Band::of(all, 0.0)?);
    Ok(bands)
}

/// 320 hosts at half load.
pub(super) fn slowdown(lab: &Lab) -> Result<Judged> {
    let sets = (1..=SETS).map(|set| ours(lab, set)).collect::<Result<Vec<_>>>()?;
    let mut judged = Judged { table: String::new(), outside: Vec::new() };
    let mut rows = Vec::new();
    for band in 0..=10 {
        let own: Vec<Band> = sets.iter().filter_map(|bands| bands.get(band).copied()).collect();
        let own = Band::mean(&own);
        let theirs = (1..=SETS).map(|set| kept(set, band).map(|kept| kept.1)).collect::<Result<Vec<_>>>()?;
        let theirs = Band::mean(&theirs);
        let mut row = vec![if band == 10 { "**all**".to_owned() } else { format!("{:.1}", own.bytes / 1e3) }];
        for (name, own, theirs, bound) in [
            ("mean", own.mean, theirs.mean, 0.05),
            ("p50", own.p50, theirs.p50, 0.05),
            ("p95", own.p95, theirs.p95, 0.1),
            ("p99", own.p99, theirs.p99, 0.1),
        ] {
            let (text, outside) = difference(own, theirs, bound);
            if band == 10 && outside {
                judged.outside.push(format!("{name} of all {text}"));
            }
            row.extend([format!("{theirs:.2}"), format!("{own:.2}"), text]);
        }
        rows.push(row);
    }
    let heading = [
        "around, KB",
        "mean: ns-3",
        "ours",
        "**mean**",
        "p50: ns-3",
        "ours",
        "**p50**",
        "p95: ns-3",
        "ours",
        "**p95**",
        "p99: ns-3",
        "ours",
        "**p99**",
    ];
    let command = format!("fabric {OPTIONS} --duration 3s --workload hpcc:{}", flows_file(1));
    judged.table = table(&[&command], &heading, &rows);
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_offer_half_load() {
        let text = flows(1);
        let bytes: f64 =
            text.lines().skip(1).filter_map(|line| line.split(' ').nth(4)?.parse::<f64>().ok()).sum();
        let offered = bytes / f64::from(HOSTS) / UNTIL_NS as f64 / 12.5;
        assert!((0.4..0.6).contains(&offered), "{offered}");
        assert_eq!(text.lines().count() - 1, text.lines().next().unwrap().parse::<usize>().unwrap());
        assert_eq!(topology().lines().count(), 2 + 320 + 80 + 80);
    }
}
