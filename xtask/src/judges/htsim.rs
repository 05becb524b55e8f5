//! Ultra Ethernet's htsim: incasts through one switch, permutations on two tiers.

use anyhow::Result;
use serde_json::Value;

use super::Judged;
use super::data::{Means, find};
use super::flows::{self, Flows, difference};
use super::matrix::{INCASTS, PERMUTATIONS, STARTS, incast_file, permutation_file};
use crate::lab::{Lab, number, table};

const STORED: &str = include_str!("htsim.csv");
/// Unmodified, except for faults that prevent it from running.
pub(super) const REPAIRED: &str = "repaired";
/// A variant that paces the remaining debt of a flow at the current rate.
const RETIMED: &str = "retimed";

/// htsim's packets and constants. CNPs are in the data's class, as it has only one.
const COMMON: &str =
    "--mtu 4000B --header 64B --ack-every 1 --duration 3s --buffer 4GB --set wire_overhead=0";
const DCQCN: &str = "--profile paper --set rpg_threshold=6 --set rpg_ai_rate=5gbit --set rpg_byte_reset=10GB \
                     --set rpg_min_rate=10mbit --set cnp_dscp=26 --set wred.3.kmin=195936B --set wred.3.kmax=195936B \
                     --set wred.3.pmax=100%";

fn means(report: &Value) -> Result<Means> {
    let us = |figure: &str| number(report, &format!("/fct/{figure}")).map(|ns| ns / 1e3);
    Ok(Means {
        mean_us: us("mean_ns")?,
        p50_us: us("p50_ns")?,
        p99_us: us("p99_ns")?,
        last_us: us("max_ns")?,
        cnps: number(report, "/transport/cnps_sent")?,
        max_queue_bytes: number(report, "/ports/0/max_queue_bytes")?,
    })
}

/// Our results, averaged over `workloads`, and their flows.
pub(super) fn ours(lab: &Lab, options: &str, workloads: &[String]) -> Result<(Flows, Means)> {
    let (mut means, mut all) = (Vec::new(), Vec::new());
    for workload in workloads {
        let (report, flows) = flows::run(lab, &format!("fabric {workload} {options}"))?;
        means.push(self::means(&report)?);
        all.push(flows);
    }
    Ok((Flows::of(&all), Means::mean(&means)))
}

/// htsim's stored results in `kept` for the same flows.
pub(super) fn theirs(kept: &str, case: &str, variant: &str, flows: Flows) -> Result<Means> {
    let (theirs, means) = find(kept, case, variant)?;
    flows.ensure_same(theirs, &format!("{case}, {variant}"))?;
    Ok(means)
}

/// Rows of a table, and results out of bounds.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) rows: Vec<Vec<String>>,
    outside: Vec<String>,
}

impl Rows {
    pub(super) fn judged(self, commands: &[&str], heading: &[&str]) -> Judged {
        Judged { table: table(commands, heading, &self.rows), outside: self.outside }
    }

    /// Cells `theirs, ours, difference`.
    pub(super) fn compare(&mut self, name: &str, ours: f64, theirs: f64, bound: f64) -> Vec<String> {
        let (text, outside) = difference(ours, theirs, bound);
        if outside {
            self.outside.push(format!("{name} {text}"));
        }
        vec![format!("{theirs:.0}"), format!("{ours:.0}"), text]
    }
}

pub(super) fn files(senders: u32, bytes: u64) -> Vec<String> {
    (1..=STARTS).map(|start| format!("--workload htsim:{}", incast_file(senders, bytes, start))).collect()
}

/// N senders to one receiver, with DCQCN only.
pub(super) fn incast(lab: &Lab) -> Result<Judged> {
    let options = format!("--topology leaf-spine:1x0x130 --threshold 2GB {COMMON} {DCQCN}");
    let mut rows = Rows::default();
    for (senders, bytes) in INCASTS {
        let case = format!("incast-{senders}-{bytes}");
        let (flows, own) = ours(lab, &options, &files(senders, bytes))?;
        let (repaired, retimed) =
            (theirs(STORED, &case, REPAIRED, flows)?, theirs(STORED, &case, RETIMED, flows)?);
        let mut row = vec![senders.to_string(), format!("{}", bytes / 1_000_000)];
        row.push(format!("{:.0}", own.mean_us));
        row.push(format!("{:.0}", own.last_us));
        for (theirs, bound) in [(retimed, 0.05), (repaired, f64::INFINITY)] {
            row.extend([format!("{:.0}", theirs.mean_us), format!("{:.0}", theirs.last_us)]);
            for (own, theirs) in [(own.mean_us, theirs.mean_us), (own.last_us, theirs.last_us)] {
                let (text, outside) = difference(own, theirs, bound);
                if outside {
                    rows.outside.push(format!("{case} {text}"));
                }
                row.push(text);
            }
        }
        row.push(format!("{:.0} / {:.0}", own.cnps, retimed.cnps));
        row.push(format!("{:.1} / {:.1}", own.max_queue_bytes / 1e6, retimed.max_queue_bytes / 1e6));
        rows.rows.push(row);
    }
    let command = format!(
        "fabric --workload htsim:{} --topology leaf-spine:1x0x130 --threshold 2GB {COMMON} {DCQCN}",
        incast_file(2, 2_000_000, 1)
    );
    let heading = [
        "N",
        "MB",
        "ours: mean",
        "last",
        "htsim, re-timed: mean",
        "last",
        "**mean**",
        "**last**",
        "htsim: mean",
        "last",
        "mean",
        "last",
        "CNPs",
        "queue, MB",
    ];
    Ok(rows.judged(&[&command], &heading))
}

/// N senders to one receiver, with PFC only.
pub(super) fn pfc(lab: &Lab) -> Result<Judged> {
    let options =
        format!("--topology leaf-spine:1x0x130 --control off --threshold 200KB --xon-offset 40KB {COMMON}");
    let mut rows = Rows::default();
    for (senders, bytes) in INCASTS.into_iter().filter(|(_, bytes)| *bytes == 2_000_000) {
        let case = format!("pfc-{senders}-{bytes}");
        let (flows, own) = ours(lab, &options, &files(senders, bytes))?;
        let theirs = theirs(STORED, &case, REPAIRED, flows)?;
        let mut row = vec![senders.to_string(), format!("{}", bytes / 1_000_000)];
        row.extend(rows.compare(&case, own.mean_us, theirs.mean_us, 0.01));
        row.extend(rows.compare(&case, own.last_us, theirs.last_us, 0.01));
        row.push(format!("{:.2} / {:.2}", own.max_queue_bytes / 1e6, theirs.max_queue_bytes / 1e6));
        rows.rows.push(row);
    }
    let command = format!("fabric --workload htsim:{} {options}", incast_file(2, 2_000_000, 1));
    let heading = [
        "N",
        "MB",
        "htsim: mean",
        "ours: mean",
        "**mean**",
        "htsim: last",
        "ours: last",
        "**last**",
        "queue, MB",
    ];
    Ok(rows.judged(&[&command], &heading))
}

/// Permutations of 128 hosts on 16 leaves and 8 spines.
pub(super) fn permutation(lab: &Lab) -> Result<Judged> {
    let pfc = format!("--control off --threshold 200KB --xon-offset 40KB {COMMON}");
    let dcqcn = format!("--threshold 1600KB --xon-offset 320KB {DCQCN} {COMMON}");
    permutations(
        lab,
        STORED,
        &[("PFC", "permutation-pfc", pfc), ("DCQCN and PFC", "permutation-dcqcn", dcqcn)],
    )
}

/// The permutations in several modes, each with name, case in the table `kept`, and options besides the topology.
pub(super) fn permutations(lab: &Lab, kept: &str, ways: &[(&str, &str, String)]) -> Result<Judged> {
    let mut rows = Rows::default();
    let mut commands = Vec::new();
    for (name, case, options) in ways {
        let options = format!("--topology leaf-spine:16x8x8 {options}");
        let workloads: Vec<String> = (1..=PERMUTATIONS)
            .map(|seed| format!("--workload htsim:{} --seed {seed}", permutation_file(seed)))
            .collect();
        let (flows, own) = ours(lab, &options, &workloads)?;
        let theirs = theirs(kept, case, REPAIRED, flows)?;
        for (figure, own, theirs) in [
            ("mean", own.mean_us, theirs.mean_us),
            ("p50", own.p50_us, theirs.p50_us),
            ("p99", own.p99_us, theirs.p99_us),
            ("last", own.last_us, theirs.last_us),
            ("CNPs", own.cnps, theirs.cnps),
        ] {
            if theirs != 0.0 {
                let mut row = vec![(*name).to_owned(), figure.to_owned()];
                row.extend(rows.compare(&format!("{case} {figure}"), own, theirs, 0.05));
                rows.rows.push(row);
            }
        }
        commands.push(format!("fabric --workload htsim:{} --seed 1 {options}", permutation_file(1)));
    }
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    Ok(rows.judged(&commands, &["", "", "htsim", "ours", "**difference**"]))
}
