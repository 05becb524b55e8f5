//! Measures DCQCN for storage incasts, collectives, and storage next to TCP: target/measured/enough.md.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::lab::{Args, Lab, Page, Table, cells, find, table};
use xtask::workspace::Workspace;

const TABLES: &[Table<'_>] = &[
    ("storage", &storage),
    ("all-reduce-64", &|lab| collective(lab, "leaf-spine:4x16x16", "all-reduce", "64MB")),
    ("all-to-all-64", &|lab| collective(lab, "leaf-spine:4x16x16", "all-to-all", "64MB")),
    ("all-reduce-1024", &|lab| collective(lab, "leaf-spine:32x32x32", "all-reduce", "16MB")),
    ("tcp", &tcp),
];
/// Configurations: name and flags.
const ANSWERS: &[(&str, &str)] = &[
    ("PFC alone", "--control off"),
    ("DCQCN (NVIDIA's)", "--profile nvidia"),
    ("DCQCN (HPCC's)", "--profile hpcc"),
    ("receivers admit", "--control off --admission 512KB"),
    ("both", "--profile nvidia --admission 512KB"),
];
const STORAGE: &str =
    "fabric --topology leaf-spine:4x4x16 --workload hpcc:reads.txt --ack-class 6 --duration 100ms";
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
    let picture = format!("{STORAGE} --buffer 16MB --control off");
    let files = vec![("reads.txt".to_owned(), reads())];
    Page { name: "enough", files, tables: TABLES, pictures: &[("enough-storage.png", &picture)] }
        .write(workspace, args)
}

/// Reads of blocks, and unrelated flows, as a flow file of HPCC's format.
///
/// Host 0 reads from all targets at once, round after round. The targets are on all other leaves; every sixteenth host
/// sends 64 KB to the next leaf every 50 us.
fn reads() -> String {
    let mut flows: Vec<(u64, String)> = Vec::new();
    for start_ns in (0..u64::from(ROUNDS)).map(|round| round * ROUND_NS) {
        let targets = PER_LEAF..PER_LEAF + TARGETS;
        flows.extend(targets.map(|target| (start_ns, format!("{target} 0 3 100 {BLOCK_BYTES}"))));
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
    text
}

fn storage(lab: &Lab) -> Result<String> {
    let mut rows = Vec::new();
    for buffer in ["16MB", "512MB"] {
        for (name, flags) in ANSWERS {
            let run = lab.json(&format!("{STORAGE} --buffer {buffer} {flags}"))?;
            let values = cells(
                &run,
                "/fct_by_size/min_bytes=524288/fct/p50_ns:2M /fct_by_size/min_bytes=524288/fct/max_ns:2M \
                 /fct_by_size/min_bytes=65536/fct/slowdown_p50:1 /fct_by_size/min_bytes=65536/fct/slowdown_p99:1 \
                 /classes/class=3/max_queue_bytes:1M /classes/class=3/pauses:0 /classes/class=3/host_paused_ns:2M",
            )?;
            rows.push(format!("{buffer} | {name} | {values}"));
        }
    }
    let commands = [ANSWERS[0], ANSWERS[1]].map(|(_, flags)| format!("{STORAGE} --buffer 16MB {flags}"));
    let heading = "buffer |  | block p50, ms | **last block, ms** | others' slowdown p50 | **p99** | queue, MB | pauses | \
                   hosts paused, ms";
    Ok(table(&commands, heading, &rows))
}

fn collective(lab: &Lab, topology: &str, workload: &str, size: &str) -> Result<String> {
    let command = format!(
        "fabric --topology {topology} --workload {workload} --size {size} --placement random --buffer 16MB --ack-class 6"
    );
    let mut rows = Vec::new();
    let spray = "--profile nvidia --balance spray --recovery selective";
    for (name, flags) in ANSWERS.iter().chain(&[("DCQCN, sprayed", spray)]) {
        let run = lab.json(&format!("{command} {flags}"))?;
        find(&run, "/collectives/0").context("the collective did not complete")?;
        let values = cells(
            &run,
            "/collectives/0/time_ns:2M /collectives/0/median_ns:2M /collectives/0/first_ns:2M \
             /classes/class=3/max_queue_bytes:1M /classes/class=3/pauses:0 /transport/cnps_sent:0 \
             /transport/retransmitted_packets:0",
        )?;
        rows.push(format!("{name} | {values}"));
    }
    let heading =
        " | **time, ms** | median rank | first rank | queue, MB | pauses | CNPs | packets retransmitted";
    Ok(table(&[format!("{command} {}", ANSWERS[1].1)], heading, &rows))
}

/// Storage next to TCP on one port of 25 Gbit/s.
fn tcp(lab: &Lab) -> Result<String> {
    lab.swept(
        "coexist --duration 300ms --sweep tcp-law=cubic,dctcp --sweep classes=on,off",
        "classes, ECN, DCQCN | TCP | storage, Gbit/s | TCP, Gbit/s | block p50, ms | **block p99, ms** | storage packets dropped",
        "/at/classes:s /at/tcp-law:s /outcome/groups/0/goodput_bps:1G /outcome/groups/1/goodput_bps:1G \
         /outcome/groups/0/fct/p50_ns:2M? /outcome/groups/0/fct/p99_ns:2M? /outcome/groups/0/totals/dropped_packets:0",
    )
}
