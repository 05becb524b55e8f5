//! All operations of QPs over links that lose, duplicate, corrupt and reorder packets, without and with the tail-loss probe.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::super::command::{Background, sh};
use super::super::lab::{Lab, Options, count, rxe};
use super::super::perftest::ECT;
use super::super::report::Report;
use super::mixed::{PATH, PROGRAM, results};

const HOSTS: [u8; 2] = [1, 2];
/// The program's QPs retry without limit.
const ATTACH: &str = "attach {} --pacer none --flows 1024 --set link_rate=1gbit --set tail_loss_probe=force \
     --set tail_loss_probe_limit=0";
/// Impairments of netem, alone and together.
const IMPAIRMENTS: [&str; 7] = [
    "loss 1%",
    "reorder 1%",
    "duplicate 1%",
    "corrupt 1%",
    "loss 0.01% reorder 0.01% duplicate 0.01% corrupt 0.01%",
    "loss 0.1% reorder 0.1% duplicate 0.1% corrupt 0.1%",
    "loss 5% reorder 5% duplicate 5% corrupt 5%",
];
const SETTLING: u32 = 1;
/// One expiry of soft-RoCE's timer, 4.3 s, must not decide the result.
const COUNTED: u32 = 20;
/// Longest time without a completion with the probe: soft-RoCE's timer of 4.3 s twice, as its first retransmission may be
/// lost too, or half as long again as without the probe.
const LONGEST_MS: f64 = 10_000.0;

pub(super) fn run(report: &mut Report) -> Result<()> {
    fs::write(PATH, PROGRAM).context(PATH)?;
    let lab = Lab::new(HOSTS[1], &Options::default())?;
    sh("modprobe sch_netem")?;
    let mut all_off = Vec::new();
    for netem in IMPAIRMENTS {
        let results = measure(&lab, netem)?;
        row(report, netem, "off", &results, 0);
        let (failed, longest_ms) = (number(&results, "failed")?, number(&results, "longest_ms")?);
        all_off.push((failed as f64, longest_ms as f64));
    }
    for host in HOSTS {
        lab.on_host(host, ATTACH)?;
    }
    let _daemon = Background::start("dcqcn run h1 h2")?;
    for (netem, (failed_off, longest_off_ms)) in IMPAIRMENTS.into_iter().zip(all_off) {
        let before = probes(&lab)?;
        let results = measure(&lab, netem)?;
        row(report, netem, "probe", &results, probes(&lab)? - before);
        report.equals(&format!("{netem}, probe: wrong bytes"), wrong(&results)?, 0);
        let failed = number(&results, "failed")? as f64;
        report.at_most(&format!("{netem}, probe: failed operations, as without"), failed, failed_off);
        let longest_ms = number(&results, "longest_ms")? as f64;
        let bound_ms = LONGEST_MS.max(1.5 * longest_off_ms);
        report.at_most(&format!("{netem}, probe: longest without a completion, ms"), longest_ms, bound_ms);
    }
    Ok(())
}

/// Runs the program while both links are impaired.
fn measure(lab: &Lab, netem: &str) -> Result<Value> {
    for host in HOSTS {
        // A netem qdisc that is replaced by another keeps impairments that the other does not name.
        lab.root(host, "pfifo")?;
        lab.root(host, &format!("netem limit 10000 delay 2ms {netem}"))?;
    }
    let [near, far] = [lab.gid_index(HOSTS[0])?, lab.gid_index(HOSTS[1])?];
    let end = format!("{}:{near}:{}:{far}", rxe(HOSTS[0]), rxe(HOSTS[1]));
    let line = format!("python3 {PATH} {SETTLING} {COUNTED} {ECT} {end} {end}");
    results(&mut Background::start(&line)?)
}

/// Probes of both hosts.
fn probes(lab: &Lab) -> Result<u64> {
    HOSTS.iter().map(|host| count(&lab.on_host(*host, "counters {}")?, "tail_loss_probes")).sum()
}

/// Wrong answers, except those of atomics: soft-RoCE completes a retransmitted one without its result, without `dcqcn` too.
fn wrong(results: &Value) -> Result<u64> {
    let atomics =
        ["fetch_add", "compare_swap"].iter().filter_map(|kind| results["wrong_by_kind"][*kind].as_u64());
    Ok(number(results, "wrong")? - atomics.sum::<u64>())
}

fn number(results: &Value, name: &str) -> Result<u64> {
    results[name].as_u64().with_context(|| format!("no `{name}` in {results}"))
}

fn row(report: &mut Report, netem: &str, what: &str, results: &Value, probes: u64) {
    let operations = results["operations"].as_object().into_iter().flatten();
    let operations: u64 = operations.filter_map(|(_, count)| count.as_u64()).sum();
    report.record([
        ("netem", netem.to_owned()),
        ("", what.to_owned()),
        ("operations", operations.to_string()),
        ("longest without one, ms", results["longest_ms"].to_string()),
        ("wrong", results["wrong_by_kind"].to_string()),
        ("failed", results["failed"].to_string()),
        ("pending", results["pending"].to_string()),
        ("probes", probes.to_string()),
    ]);
}
