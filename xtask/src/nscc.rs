//! Comparison of UEC's NSCC and DCQCN on one fabric, with the same flows: target/measured/nscc.md.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::lab::{Args, Lab, number, table};
use crate::page::{self, Measured};
use crate::run::header;
use crate::workspace::Workspace;

/// A table: its name on the page, the heading of its first column, and runs by the text of that column.
struct Question {
    name: &'static str,
    column: &'static str,
    runs: &'static [(&'static str, &'static str)],
}

const QUESTIONS: &[Question] = &[
    Question {
        name: "incast",
        column: "senders",
        runs: &[
            ("2", "--workload incast:2 --size 2MB"),
            ("8", "--workload incast:8 --size 2MB"),
            ("32", "--workload incast:32 --size 2MB"),
            ("127", "--workload incast:127 --size 2MB"),
        ],
    },
    Question {
        name: "permutation",
        column: "size",
        runs: &[
            ("100 KB", "--workload permutation --size 100KB"),
            ("2 MB", "--workload permutation --size 2MB"),
        ],
    },
    Question {
        name: "random",
        column: "load",
        runs: &[
            ("30 %", "--workload random --sizes sizes.txt --load 30% --until 5ms"),
            ("60 %", "--workload random --sizes sizes.txt --load 60% --until 5ms"),
        ],
    },
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

/// Configurations whose commands are shown.
const TRACE_SAMPLE: [&str; 2] = ["DCQCN (NVIDIA's), PFC", "NSCC, trimming"];

/// Runs everything and writes the tables.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let files = workspace.root().join("target/nscc");
    fs::create_dir_all(&files).with_context(|| format!("cannot create {}", files.display()))?;
    fs::write(files.join("sizes.txt"), SIZES).with_context(|| format!("cannot write {}", files.display()))?;
    let lab = Lab::new(workspace, args.binary.clone())?.within(&files);
    let mut measured = Measured::new("nscc");
    measured.add(page::ORIGIN, &page::origin(workspace, "cargo xtask nscc")?);
    let started = Instant::now();
    for (number, question) in QUESTIONS.iter().enumerate() {
        header(format_args!("{} ({} of {})", question.name, number + 1, QUESTIONS.len()));
        let table = answer(&lab, question).with_context(|| format!("question `{}`", question.name))?;
        eprintln!("{table}");
        measured.add(question.name, &table);
    }
    if !args.dry_run {
        measured.write(workspace)?;
    }
    header(format_args!("{} s", started.elapsed().as_secs()));
    Ok(())
}

fn answer(lab: &Lab, question: &Question) -> Result<String> {
    let (mut rows, mut commands) = (Vec::new(), Vec::new());
    for (what, workload) in question.runs {
        for (name, flags) in ANSWERS {
            let command = format!("fabric {FABRIC} {workload} {flags}");
            let run = lab.json(&command)?;
            ensure!(
                number(&run, "/unfinished_flows")? == 0.0,
                "`dcqcn-lab sim {command}`: not all flows are complete"
            );
            rows.push(vec![
                (*what).to_owned(),
                (*name).to_owned(),
                format!("{:.2}", number(&run, "/fct/slowdown_p50")?),
                format!("{:.2}", number(&run, "/fct/slowdown_p99")?),
                format!("{:.2}", number(&run, "/fct/max_ns")? / 1e6),
                format!("{:.0}", deepest(&run, 99)? / 1e3),
                format!("{:.0}", deepest(&run, 100)? / 1e3),
                format!("{:.0}", number(&run, "/transport/retransmitted_packets")?),
                format!("{:.0}", pauses(&run)),
            ]);
            if commands.len() < ANSWERS.len() {
                commands.push(command);
            }
        }
    }
    let heading = [
        question.column,
        "",
        "slowdown p50",
        "**p99**",
        "last flow, ms",
        "**queue p99, KB**",
        "max",
        "packets sent again",
        "pauses",
    ];
    let told = ANSWERS.iter().zip(&commands).filter(|((name, _), _)| TRACE_SAMPLE.contains(name));
    let commands: Vec<&str> = told.map(|(_, command)| command.as_str()).collect();
    Ok(table(&commands, &heading, &rows))
}

/// A percentile of samples of the deepest queue of all switches.
fn deepest(run: &Value, percent: usize) -> Result<f64> {
    let switches = run.pointer("/samples/switches").and_then(Value::as_array).context("no samples")?;
    let mut depths: Vec<u64> = Vec::new();
    for switch in switches {
        let own = switch.get("max_queue_bytes").and_then(Value::as_array).context("no depths")?;
        depths.resize(depths.len().max(own.len()), 0);
        for (deepest, own) in depths.iter_mut().zip(own) {
            *deepest = (*deepest).max(own.as_u64().context("a depth is not a number")?);
        }
    }
    depths.sort_unstable();
    let at = (depths.len() * percent).div_ceil(100).saturating_sub(1);
    depths.get(at).map(|&depth| depth as f64).context("no samples")
}

fn pauses(run: &Value) -> f64 {
    let classes = run.pointer("/classes").and_then(Value::as_array);
    classes.into_iter().flatten().filter_map(|class| class.get("pauses")?.as_f64()).sum()
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
