//! HPCC's ns-3: DCQCN on their fat tree, slowdown by size.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::flows::{self, Flows, stored};
use super::matrix::Random;
use crate::lab::{Lab, find, list, number, table};

const STORED: &str = include_str!("hpcc.csv");
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

const FLOWS: &str = "flows-1.txt";

/// The topology and the flows, in HPCC's formats.
pub(super) fn files() -> [(String, String); 2] {
    [("fat.txt".to_owned(), topology()), (FLOWS.to_owned(), flows())]
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
fn flows() -> String {
    let mut random = Random::new(1_001);
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

/// Results by size, and their bounds for all flows.
const METRICS: [(&str, f64); 4] = [("mean", 0.05), ("p50", 0.05), ("p95", 0.1), ("p99", 0.1)];

/// 320 hosts at half load: slowdown of ten bands of sizes, and of all flows.
pub(super) fn slowdown(lab: &Lab) -> Result<String> {
    let command = format!("fabric {OPTIONS} --duration 3s --workload hpcc:{FLOWS}");
    let (run, flows) = flows::run(lab, &command)?;
    let all = find(&run, "/fct").context("no completion times")?;
    let bands = list(&run, "/fct_by_size");
    ensure!(bands.len() == 10, "{} size bands, expected 10", bands.len());
    let mut own: Vec<(String, &Value)> = Vec::new();
    for band in bands {
        // The middle of the band.
        let bytes = (number(band, "/min_bytes")? * number(band, "/max_bytes")?).sqrt();
        own.push((format!("{:.1}", bytes / 1e3), &band["fct"]));
    }
    own.push(("**all**".to_owned(), all));
    let mut rows = Vec::new();
    for (band, (mut row, fct)) in own.into_iter().enumerate() {
        // HPCC's: `set,band,flows,starts,mean,p50,p95,p99`.
        let (theirs, values) = stored::<4>(STORED, &format!("1,{band}"))?;
        let is_all = band == bands.len();
        if is_all {
            Flows::of(std::slice::from_ref(&flows)).ensure_same(theirs, FLOWS)?;
        }
        for ((metric, bound), theirs) in METRICS.into_iter().zip(values) {
            let own = number(fct, &format!("/slowdown_{metric}"))?;
            let bound = if is_all { bound } else { f64::INFINITY };
            let difference = lab.verdict_row(&format!("{metric} of all"), own, theirs, bound);
            row += &format!(" | {theirs:.2} | {own:.2} | {difference}");
        }
        rows.push(row);
    }
    let heading = "around, KB | mean: ns-3 | ours | **mean** | p50: ns-3 | ours | **p50** | p95: ns-3 | ours | **p95** | \
                   p99: ns-3 | ours | **p99**";
    Ok(table(&[command], heading, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_offer_half_load() {
        let text = flows();
        let bytes: f64 =
            text.lines().skip(1).filter_map(|line| line.split(' ').nth(4)?.parse::<f64>().ok()).sum();
        let offered = bytes / f64::from(HOSTS) / UNTIL_NS as f64 / 12.5;
        assert!((0.4..0.6).contains(&offered), "{offered}");
        assert_eq!(text.lines().count() - 1, text.lines().next().unwrap().parse::<usize>().unwrap());
        assert_eq!(topology().lines().count(), 2 + 320 + 80 + 80);
    }
}
