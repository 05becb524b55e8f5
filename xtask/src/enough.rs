//! Measures DCQCN for storage incasts, collectives, and storage next to TCP: target/measured/enough.md.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::lab::{Args, Lab, number, optional, table};
use crate::page::{self, Measured};
use crate::run::header;
use crate::workspace::Workspace;

type Question = fn(&Lab) -> Result<String>;

const QUESTIONS: &[(&str, Question)] = &[
    ("storage", storage),
    ("all-reduce-64", |lab| collective(lab, "leaf-spine:4x16x16", "all-reduce", "64MB")),
    ("all-to-all-64", |lab| collective(lab, "leaf-spine:4x16x16", "all-to-all", "64MB")),
    ("all-reduce-1024", |lab| collective(lab, "leaf-spine:32x32x32", "all-reduce", "16MB")),
    ("tcp", tcp),
];
/// Configurations: name and flags.
const ANSWERS: &[(&str, &str)] = &[
    ("PFC alone", "--control off"),
    ("DCQCN (NVIDIA's)", "--profile nvidia"),
    ("DCQCN (HPCC's)", "--profile hpcc"),
    ("receivers admit", "--control off --admission 512KB"),
    ("both", "--profile nvidia --admission 512KB"),
];
const PICTURE: &str = "enough-storage.png";
/// Numbers of reading clients, targets per client, and bytes per target.
const TARGETS: u32 = 32;
const BLOCK_BYTES: u64 = 512 * 1_024;
/// Hosts of the storage fabric, and of a leaf.
const HOSTS: u32 = 64;
const PER_LEAF: u32 = 16;
/// Rounds of reads, and the interval between them.
const ROUNDS: u32 = 8;
const ROUND_NS: u64 = 1_600_000;

/// Runs everything and writes the tables and a picture.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let files = workspace.root().join("target/enough");
    fs::create_dir_all(&files).with_context(|| format!("cannot create {}", files.display()))?;
    write_reads(&files)?;
    let lab = Lab::new(workspace, args.binary.clone())?.within(&files);
    let mut measured = Measured::new("enough");
    measured.add(page::ORIGIN, &page::origin(workspace, "cargo xtask enough")?);
    let started = Instant::now();
    for (number, (name, question)) in QUESTIONS.iter().enumerate() {
        header(format_args!("{name} ({} of {})", number + 1, QUESTIONS.len()));
        let table = question(&lab).with_context(|| format!("question `{name}`"))?;
        eprintln!("{table}");
        measured.add(name, &table);
    }
    if !args.dry_run {
        let picture = Measured::beside(workspace, PICTURE)?;
        lab.draw(&format!("{} --buffer 16MB --control off", storage_command()), &picture)?;
        measured.write(workspace)?;
    }
    header(format_args!("{} s", started.elapsed().as_secs()));
    Ok(())
}

/// Reads of blocks, and unrelated flows, as a flow file of HPCC's format.
///
/// Host 0 reads from all targets at once, round after round. The targets are on all other leaves; every sixteenth host
/// sends 64 KB to the next leaf every 50 us.
fn write_reads(directory: &Path) -> Result<()> {
    let mut flows: Vec<(u64, String)> = Vec::new();
    for round in 0..u64::from(ROUNDS) {
        let start_ns = round * ROUND_NS;
        flows.extend(
            (PER_LEAF..PER_LEAF + TARGETS)
                .map(|target| (start_ns, format!("{target} 0 3 100 {BLOCK_BYTES}"))),
        );
    }
    for start_ns in (0..u64::from(ROUNDS) * ROUND_NS).step_by(50_000) {
        for leaf in 1..HOSTS / PER_LEAF {
            let (src, dst) = (leaf * PER_LEAF + 15, (leaf + 1) * PER_LEAF % HOSTS + 14);
            flows.push((start_ns, format!("{src} {dst} 3 100 65536")));
        }
    }
    flows.sort_by_key(|flow| flow.0);
    let mut text = format!("{}\n", flows.len());
    for (start_ns, flow) in flows {
        let _ = writeln!(text, "{flow} {}.{:09}", start_ns / 1_000_000_000, start_ns % 1_000_000_000);
    }
    let path = directory.join("reads.txt");
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn storage_command() -> String {
    "fabric --topology leaf-spine:4x4x16 --workload hpcc:reads.txt --ack-class 6 --duration 100ms".to_owned()
}

/// The band of flows of this size.
fn band(run: &Value, bytes: u64, figure: &str) -> Result<f64> {
    let bands = run.pointer("/fct_by_size").and_then(Value::as_array).context("no bands of sizes")?;
    let of = bands.iter().find(|band| optional(band, "/min_bytes") == Some(bytes as f64));
    number(of.context("no such size")?, &format!("/fct/{figure}"))
}

/// Results of the flows' class.
fn class(run: &Value, figure: &str) -> Result<f64> {
    let classes = run.pointer("/classes").and_then(Value::as_array).context("no classes")?;
    let of = classes.iter().find(|class| optional(class, "/class") == Some(3.0));
    number(of.context("no class 3")?, &format!("/{figure}"))
}

fn storage(lab: &Lab) -> Result<String> {
    let mut rows = Vec::new();
    let command = storage_command();
    for buffer in ["16MB", "512MB"] {
        for (name, flags) in ANSWERS {
            let run = lab.json(&format!("{command} --buffer {buffer} {flags}"))?;
            rows.push(vec![
                buffer.to_owned(),
                (*name).to_owned(),
                format!("{:.2}", band(&run, BLOCK_BYTES, "p50_ns")? / 1e6),
                format!("{:.2}", band(&run, BLOCK_BYTES, "max_ns")? / 1e6),
                format!("{:.1}", band(&run, 65_536, "slowdown_p50")?),
                format!("{:.1}", band(&run, 65_536, "slowdown_p99")?),
                format!("{:.1}", class(&run, "max_queue_bytes")? / 1e6),
                format!("{:.0}", class(&run, "pauses")?),
                format!("{:.2}", class(&run, "host_paused_ns")? / 1e6),
            ]);
        }
    }
    let heading = [
        "buffer",
        "",
        "block p50, ms",
        "**last block, ms**",
        "others' slowdown p50",
        "**p99**",
        "queue, MB",
        "pauses",
        "hosts paused, ms",
    ];
    let commands: Vec<String> =
        ANSWERS.iter().take(2).map(|(_, flags)| format!("{command} --buffer 16MB {flags}")).collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    Ok(table(&commands, &heading, &rows))
}

fn collective(lab: &Lab, topology: &str, workload: &str, size: &str) -> Result<String> {
    let command = format!(
        "fabric --topology {topology} --workload {workload} --size {size} --placement random --buffer 16MB --ack-class 6"
    );
    let mut rows = Vec::new();
    let spray = "--profile nvidia --balance spray --recovery selective";
    for (name, flags) in ANSWERS.iter().chain(&[("DCQCN, sprayed", spray)]) {
        let run = lab.json(&format!("{command} {flags}"))?;
        let collective = run.pointer("/collectives/0").context("the collective did not complete")?;
        let ms =
            |figure: &str| number(collective, &format!("/{figure}")).map(|ns| format!("{:.2}", ns / 1e6));
        rows.push(vec![
            (*name).to_owned(),
            ms("time_ns")?,
            ms("median_ns")?,
            ms("first_ns")?,
            format!("{:.1}", class(&run, "max_queue_bytes")? / 1e6),
            format!("{:.0}", class(&run, "pauses")?),
            format!("{:.0}", number(&run, "/transport/cnps_sent")?),
            format!("{:.0}", number(&run, "/transport/retransmitted_packets")?),
        ]);
    }
    let heading = [
        "",
        "**time, ms**",
        "median rank",
        "first rank",
        "queue, MB",
        "pauses",
        "CNPs",
        "packets sent again",
    ];
    Ok(table(&[&format!("{command} {}", ANSWERS[1].1)], &heading, &rows))
}

/// Storage next to TCP on one port of 25 Gbit/s.
fn tcp(lab: &Lab) -> Result<String> {
    let command = "coexist --duration 300ms --sweep tcp-law=cubic,dctcp --sweep classes=on,off";
    let runs = lab.sweep(command)?;
    let row = |run: &Value| {
        let at =
            |key: &str| run.pointer(&format!("/at/{key}")).and_then(Value::as_str).unwrap_or("-").to_owned();
        let group = |index: u32, figure: &str| number(run, &format!("/outcome/groups/{index}/{figure}"));
        let ms = |ns: Result<f64>| ns.map_or_else(|_| "-".to_owned(), |ns| format!("{:.2}", ns / 1e6));
        Ok(vec![
            at("classes"),
            at("tcp-law"),
            format!("{:.1}", group(0, "goodput_bps")? / 1e9),
            format!("{:.1}", group(1, "goodput_bps")? / 1e9),
            ms(group(0, "fct/p50_ns")),
            ms(group(0, "fct/p99_ns")),
            format!("{:.0}", group(0, "totals/dropped_packets")?),
        ])
    };
    let rows = runs.iter().map(row).collect::<Result<Vec<_>>>()?;
    let heading = [
        "classes, ECN, DCQCN",
        "TCP",
        "storage, Gb/s",
        "TCP, Gb/s",
        "block p50, ms",
        "**block p99, ms**",
        "storage packets dropped",
    ];
    Ok(table(&[command], &heading, &rows))
}
