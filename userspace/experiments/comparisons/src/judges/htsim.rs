//! Ultra Ethernet's htsim: incasts through one switch, permutations on two tiers.

use anyhow::Result;

use super::flows::{self, Flows, stored};
use super::matrix::{PERMUTATIONS, STARTS, incast_file, incasts, permutation_file};
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

/// Means over the runs of one case: the columns of the stored results.
#[derive(Clone, Copy)]
pub(super) struct Means([f64; 6]);

impl Means {
    /// Mean, p50, p99 and maximum of completion times in microseconds, and CNPs.
    const NAMES: [&str; 5] = ["mean", "p50", "p99", "last", "CNPs"];

    pub(super) const fn mean_us(self) -> f64 {
        self.0[0]
    }

    pub(super) const fn last_us(self) -> f64 {
        self.0[3]
    }

    const fn cnps(self) -> f64 {
        self.0[4]
    }

    pub(super) const fn queue_mb(self) -> f64 {
        self.0[5] / 1e6
    }
}

/// Our results, averaged over `workloads`, and their flows.
pub(super) fn ours(lab: &Lab, options: &str, workloads: &[String]) -> Result<(Flows, Means)> {
    let (mut means, mut all) = ([0.0; 6], Vec::new());
    for workload in workloads {
        let (report, flows) = flows::run(lab, &format!("fabric {workload} {options}"))?;
        for (mean, (path, unit)) in means.iter_mut().zip([
            ("/fct/mean_ns", 1e3),
            ("/fct/p50_ns", 1e3),
            ("/fct/p99_ns", 1e3),
            ("/fct/max_ns", 1e3),
            ("/transport/cnps_sent", 1.0),
            ("/ports/0/max_queue_bytes", 1.0),
        ]) {
            *mean += number(&report, path)? / unit / workloads.len() as f64;
        }
        all.push(flows);
    }
    Ok((Flows::of(&all), Means(means)))
}

/// htsim's stored results in `csv` for the same flows.
pub(super) fn theirs(csv: &str, case: &str, variant: &str, flows: Flows) -> Result<Means> {
    let (theirs, means) = stored(csv, &format!("{case},{variant}"))?;
    flows.ensure_same(theirs, &format!("{case}, {variant}"))?;
    Ok(Means(means))
}

/// Cells `theirs, ours, difference`.
pub(super) fn comparison_row(lab: &Lab, name: &str, ours: f64, theirs: f64, bound: f64) -> String {
    format!("{theirs:.0} | {ours:.0} | {}", lab.verdict_row(name, ours, theirs, bound))
}

pub(super) fn files(senders: u32, bytes: u64) -> Vec<String> {
    (1..=STARTS).map(|start| format!("--workload htsim:{}", incast_file(senders, bytes, start))).collect()
}

/// N senders to one receiver, with DCQCN only.
pub(super) fn incast(lab: &Lab) -> Result<String> {
    let options = format!("--topology leaf-spine:1x0x130 --threshold 2GB {COMMON} {DCQCN}");
    let mut rows = Vec::new();
    for (senders, bytes) in incasts() {
        let case = format!("incast-{senders}-{bytes}");
        let (flows, own) = ours(lab, &options, &files(senders, bytes))?;
        let mut row =
            format!("{senders} | {} | {:.0} | {:.0}", bytes / 1_000_000, own.mean_us(), own.last_us());
        let retimed = theirs(STORED, &case, RETIMED, flows)?;
        for (theirs, bound) in [(retimed, 0.05), (theirs(STORED, &case, REPAIRED, flows)?, f64::INFINITY)] {
            row += &format!(
                " | {:.0} | {:.0} | {} | {}",
                theirs.mean_us(),
                theirs.last_us(),
                lab.verdict_row(&case, own.mean_us(), theirs.mean_us(), bound),
                lab.verdict_row(&case, own.last_us(), theirs.last_us(), bound)
            );
        }
        row += &format!(" | {:.0} / {:.0}", own.cnps(), retimed.cnps());
        rows.push(row + &format!(" | {:.1} / {:.1}", own.queue_mb(), retimed.queue_mb()));
    }
    let command = format!("fabric --workload htsim:{} {options}", incast_file(2, 2_000_000, 1));
    let heading = "N | MB | ours: mean | last | htsim, re-timed: mean | last | **mean** | **last** | htsim: mean | last | \
                   mean | last | CNPs | queue, MB";
    Ok(table(&[command], heading, &rows))
}

/// Senders of 2 MB each to one receiver, and the comparison with case `name` in `csv`.
pub(super) fn incast_rows(
    lab: &Lab,
    csv: &str,
    name: &str,
    options: &str,
    bound: f64,
) -> Result<Vec<(u32, String)>> {
    let row = |(senders, bytes)| {
        let case = format!("{name}-{senders}-{bytes}");
        let (flows, own) = ours(lab, options, &files(senders, bytes))?;
        let theirs = theirs(csv, &case, REPAIRED, flows)?;
        let means = comparison_row(lab, &case, own.mean_us(), theirs.mean_us(), bound);
        let last = comparison_row(lab, &case, own.last_us(), theirs.last_us(), bound);
        Ok((senders, format!("{means} | {last} | {:.2} / {:.2}", own.queue_mb(), theirs.queue_mb())))
    };
    incasts().filter(|(_, bytes)| *bytes == 2_000_000).map(row).collect()
}

/// N senders to one receiver, with PFC only.
pub(super) fn pfc(lab: &Lab) -> Result<String> {
    let options =
        format!("--topology leaf-spine:1x0x130 --control off --threshold 200KB --xon-offset 40KB {COMMON}");
    let rows = incast_rows(lab, STORED, "pfc", &options, 0.01)?;
    let rows: Vec<String> = rows.iter().map(|(senders, row)| format!("{senders} | 2 | {row}")).collect();
    let command = format!("fabric --workload htsim:{} {options}", incast_file(2, 2_000_000, 1));
    let heading =
        "N | MB | htsim: mean | ours: mean | **mean** | htsim: last | ours: last | **last** | queue, MB";
    Ok(table(&[command], heading, &rows))
}

/// Permutations of 128 hosts on 16 leaves and 8 spines.
pub(super) fn permutation(lab: &Lab) -> Result<String> {
    let pfc = format!("--control off --threshold 200KB --xon-offset 40KB {COMMON}");
    let dcqcn = format!("--threshold 1600KB --xon-offset 320KB {DCQCN} {COMMON}");
    let modes = [("PFC", "permutation-pfc", pfc), ("DCQCN and PFC", "permutation-dcqcn", dcqcn)];
    permutations(lab, STORED, &modes)
}

/// The permutations in several modes, each with name, case in `csv`, and options besides the topology.
pub(super) fn permutations(lab: &Lab, csv: &str, modes: &[(&str, &str, String)]) -> Result<String> {
    let (mut rows, mut commands) = (Vec::new(), Vec::new());
    for (name, case, options) in modes {
        let options = format!("--topology leaf-spine:16x8x8 {options}");
        let workload = |seed| format!("--workload htsim:{} --seed {seed}", permutation_file(seed));
        let (flows, own) = ours(lab, &options, &(1..=PERMUTATIONS).map(workload).collect::<Vec<_>>())?;
        let theirs = theirs(csv, case, REPAIRED, flows)?;
        for ((metric, own), theirs) in Means::NAMES.iter().zip(own.0).zip(theirs.0) {
            if theirs != 0.0 {
                let values = comparison_row(lab, &format!("{case} {metric}"), own, theirs, 0.05);
                rows.push(format!("{name} | {metric} | {values}"));
            }
        }
        commands.push(format!("fabric --workload htsim:{} --seed 1 {options}", permutation_file(1)));
    }
    Ok(table(&commands, " |  | htsim | ours | **difference**", &rows))
}
