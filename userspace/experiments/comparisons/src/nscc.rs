//! Comparison of UEC's NSCC and DCQCN on one fabric, with the same flows: target/measured/nscc.md.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::lab::{Args, Lab, Page, Table, cells, list, number, table};
use xtask::workspace::Workspace;

/// Tables: the heading of the first column, and workloads by the text of that column.
const TABLES: &[Table<'_>] = &[
    ("incast", &|lab| {
        let workload = |senders| (senders, format!("--workload incast:{senders} --size 2MB"));
        comparison_table(lab, "senders", &["2", "8", "32", "127"].map(workload))
    }),
    ("permutation", &|lab| {
        let workload =
            |size: &'static str| (size, format!("--workload permutation --size {}", size.replace(' ', "")));
        comparison_table(lab, "size", &["100 KB", "2 MB"].map(workload))
    }),
    ("random", &|lab| {
        let workload = |load: &'static str| {
            let share = load.replace(' ', "");
            (load, format!("--workload random --sizes sizes.txt --load {share} --until 5ms"))
        };
        comparison_table(lab, "load", &["30 %", "60 %"].map(workload))
    }),
];

/// 128 hosts at 100 Gbit/s, 1 us a link, not oversubscribed.
const FABRIC: &str = "--topology leaf-spine:8x16x16 --duration 200ms --sample 10us --ack-class 6";
/// Bytes and percent: half single packets, one in seven longer than 200 KB.
const SIZES: &str = "32 0\n1000 50\n200000 85\n3000000 100\n";
/// Configurations: name and flags. A queue of one round trip (9.4 us) if it trims.
const ANSWERS: &[(&str, &str)] = &[
    ("DCQCN (NVIDIA's), PFC", "--profile nvidia"),
    ("DCQCN (HPCC's), PFC", "--profile hpcc"),
    (
        "DCQCN (NVIDIA's), trimming",
        "--profile nvidia --pfc off --trim 6 --threshold 117KB --recovery selective --ack-every 1",
    ),
    ("NSCC, PFC", "--control nscc --set wred.3.kmin=23KB --set wred.3.kmax=94KB --set wred.3.pmax=100%"),
    (
        "NSCC, trimming",
        "--control nscc --pfc off --trim 6 --threshold 117KB --set wred.3.kmin=23KB --set wred.3.kmax=94KB \
         --set wred.3.pmax=100%",
    ),
    ("DCQCN (NVIDIA's), PFC, sprayed", "--profile nvidia --recovery selective --balance spray --ack-every 1"),
    (
        "NSCC, trimming, sprayed",
        "--control nscc --pfc off --trim 6 --threshold 117KB --set wred.3.kmin=23KB --set wred.3.kmax=94KB \
         --set wred.3.pmax=100% --balance spray",
    ),
];
const SHOWN: [&str; 2] = ["DCQCN (NVIDIA's), PFC", "NSCC, trimming"];

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let files = vec![("sizes.txt".to_owned(), SIZES.to_owned())];
    Page { name: "nscc", files, tables: TABLES, pictures: &[] }.write(workspace, args)
}

fn comparison_table(lab: &Lab, column: &str, workloads: &[(&str, String)]) -> Result<String> {
    let (mut rows, mut commands) = (Vec::new(), Vec::new());
    for (number, (what, workload)) in workloads.iter().enumerate() {
        for (name, flags) in ANSWERS {
            let command = format!("fabric {FABRIC} {workload} {flags}");
            let run = lab.complete(&command)?;
            rows.push(format!(
                "{what} | {name} | {} | {:.0} | {:.0} | {} | {:.0}",
                cells(&run, "/fct/slowdown_p50:2 /fct/slowdown_p99:2 /fct/max_ns:2M")?,
                deepest(&run, 99)? / 1e3,
                deepest(&run, 100)? / 1e3,
                cells(&run, "/transport/retransmitted_packets:0")?,
                list(&run, "/classes").iter().filter_map(|class| class.get("pauses")?.as_f64()).sum::<f64>()
            ));
            if number == 0 && SHOWN.contains(name) {
                commands.push(command);
            }
        }
    }
    let heading = format!(
        "{column} |  | slowdown p50 | **p99** | last flow, ms | **queue p99, KB** | max | packets retransmitted | pauses"
    );
    Ok(table(&commands, &heading, &rows))
}

/// A percentile of samples of the deepest queue of all switches.
fn deepest(run: &Value, percent: usize) -> Result<f64> {
    let mut depths: Vec<f64> = Vec::new();
    for switch in list(run, "/samples/switches") {
        let own = list(switch, "/max_queue_bytes");
        depths.resize(depths.len().max(own.len()), 0.0);
        for (deepest, own) in depths.iter_mut().zip(own) {
            *deepest = deepest.max(number(own, "")?);
        }
    }
    depths.sort_by(f64::total_cmp);
    depths.get((depths.len() * percent).div_ceil(100).saturating_sub(1)).copied().context("no samples")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deepest_queue_over_all_switches() {
        let run = serde_json::json!({"samples": {"switches": [
            {"max_queue_bytes": [1, 5, 2]}, {"max_queue_bytes": [3, 0]},
        ]}});
        assert_eq!(deepest(&run, 100).unwrap(), 5.0);
        assert_eq!(deepest(&run, 50).unwrap(), 3.0);
        assert!(deepest(&serde_json::json!({}), 99).is_err());
    }
}
