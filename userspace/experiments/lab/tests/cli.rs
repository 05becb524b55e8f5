//! Invocations of the `dcqcn-lab` command that need no root.

use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dcqcn-lab")).args(args).output().expect("dcqcn-lab starts")
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

#[test]
fn replay_prints_json_line_per_packet() {
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/captures/rc_write.pcap");
    let capture = capture.to_str().unwrap();
    let replay = run(&["replay", capture, "--hook", "egress", "--set", "link_rate=10mbit", "--json"]);
    assert_eq!(replay.status.code(), Some(0), "{}", stderr(&replay));
    let lines: Vec<serde_json::Value> =
        stdout(&replay).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, packets) = lines.split_last().unwrap();
    assert_eq!(summary["packets"], packets.len());
    assert!(packets.iter().any(|packet| packet["marked"] == true));
    assert_eq!(stderr(&replay), "");
}

/// A run takes minutes: an unwritable report is found before.
#[test]
fn unwritable_report_found_before_the_run() {
    let refused = run(&["qualify", "--junit", "/nonexistent/report.xml"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(stdout(&refused), "");
    assert!(stderr(&refused).contains("cannot write /nonexistent/report.xml"), "{}", stderr(&refused));
}

#[test]
fn wrong_usage_leaves_old_report() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.xml");
    std::fs::write(&report, "<old/>").unwrap();
    let refused = run(&["qualify", "--window", "0", "--junit", report.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert_eq!(std::fs::read_to_string(&report).unwrap(), "<old/>");
}

#[test]
fn flag_with_effect_in_one_run_accepted() {
    for flags in
        ["--reordering 8 --sweep recovery=go-back-n,selective", "--admission-turn 8KB --admission 64KB"]
    {
        let line = format!("sim fabric --workload incast:2 --size 4KB {flags}");
        let done = run(&line.split(' ').collect::<Vec<_>>());
        assert!(done.status.success(), "{}", stderr(&done));
    }
}

#[test]
fn option_out_of_range_is_wrong_usage() {
    for (line, expected) in [
        ("qualify --window 0", "window = 0 is out of range: 1 to 1000000"),
        ("incast --senders 251", "senders = 251 is out of range: 1 to 250"),
        ("tune --budget 0", "budget = 0 is out of range: 1 to 10000"),
        ("qualify --duration 1ms", "duration = 1ms is out of range"),
        ("incast --link 1kbit", "link = 1kbit is out of range"),
        ("incast --mtu 1000", "is not an InfiniBand MTU"),
        ("qualify --against eth1", "--against needs at least two ports"),
        ("qualify --against eth1,eth1", "--against lists eth1 twice"),
        ("sim fabric --duration 1ns", "duration = 1ns is out of range"),
        ("sim fabric --workload incast:100000", "incast:100000 is out of range"),
        ("sim fabric --workload incast:2 --topology leaf-spine:0x1x1", "is out of range"),
        ("sim fabric --workload incast:2 --fault 1ms,down,x,y", "no node `x`"),
        ("sim fabric --workload incast:2 --buffer 10KB", "the buffer of 10KB is too small for leaf0"),
        ("sim fabric --workload incast:2 --control nscc --recovery go-back-n", "use selective recovery"),
        ("sim fabric --sweep seed=1,2 --plot x", "--plot is for one run and this sweep has 2"),
        ("sim fabric --sweep seed=1 --csv x", "--csv is for one run and this sweep has 1"),
        ("tune --control off", "only DCQCN can be tuned"),
        ("sim fabric --load 20% --workload incast:2", "--load has no effect: it needs --workload random"),
        ("sim fabric --admission-turn 64KB", "--admission-turn has no effect: it needs --admission"),
        ("sim incast --set fast_cnp=on", "fast_cnp has no effect"),
        ("tune --set fast_cnp=on", "fast_cnp has no effect"),
        ("tune --also load", "`load` is not KEY=VALUE"),
        ("sim incast --size 1MB --block 16KB", "more than one of size, block and flow-sizes"),
        ("replay x.pcap --hook egress --out - --json", "omit one"),
        ("sim incast --csv - --json", "omit one"),
        ("sim fabric --csv - --json", "omit one"),
        ("sim incast --plot -", "is not a file"),
        ("sim fabric --plot /dev/full", "is not a file"),
        ("sim incast --xoff 1MB", "--xoff has no effect: it needs --pfc on"),
        ("sim incast --sweep xoff=1MB,2MB", "--xoff has no effect: it needs --pfc on"),
        ("sim fabric --control off --set rpg_ai_rate=1gbit", "rpg_ai_rate has no effect"),
        ("sim fabric --control off --profile paper", "--profile has no effect"),
        ("sim incast --control off --profile nvidia", "--profile has no effect"),
    ] {
        let refused = run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(refused.status.code(), Some(2), "{line}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(expected), "{line}: {}", stderr(&refused));
    }
}

#[test]
fn replay_writes_capture_to_stdout() {
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/captures/rc_write.pcap");
    let capture = capture.to_str().unwrap();
    let replay = run(&["replay", capture, "--hook", "egress", "--out", "-"]);
    assert_eq!(replay.status.code(), Some(0), "{}", stderr(&replay));
    // Magic number of pcap with nanoseconds.
    assert_eq!(replay.stdout.first_chunk(), Some(&0xa1b2_3c4d_u32.to_ne_bytes()));
    assert!(!stderr(&replay).is_empty() && !Path::new("-").exists());
}

#[test]
fn equal_seeds_differ_only_in_run() {
    for line in
        ["sim incast --flows 2 --duration 1ms --json", "sim fabric --workload incast:2 --size 4KB --json"]
    {
        let results = || {
            let done = run(&line.split(' ').collect::<Vec<_>>());
            let mut report: serde_json::Value = serde_json::from_str(stdout(&done)).unwrap();
            assert!(report.as_object_mut().unwrap().remove("run").unwrap()["wall_seconds"].is_f64());
            report.to_string()
        };
        assert_eq!(results(), results(), "{line}");
    }
}

#[test]
fn csv_on_stdout_is_alone() {
    for line in
        ["sim incast --flows 2 --duration 1ms --csv -", "sim fabric --workload incast:2 --size 4KB --csv -"]
    {
        let done = run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(done.status.code(), Some(0), "{line}: {}", stderr(&done));
        let lines: Vec<&str> = stdout(&done).lines().collect();
        let commas = lines[0].matches(',').count();
        assert!(lines.len() > 2 && lines.iter().all(|line| line.matches(',').count() == commas), "{line}");
        assert!(!stderr(&done).is_empty(), "{line}");
    }
}

#[test]
fn fabric_flags_documented() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/fabric.md");
    let page = std::fs::read_to_string(page).unwrap();
    let help = run(&["sim", "fabric", "--help"]);
    let flags: Vec<&str> = stdout(&help)
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--"))
        .filter_map(|line| line.split([' ', '[']).next())
        .collect();
    assert!(flags.len() > 40, "{flags:?}");
    let missing: Vec<_> = flags.iter().filter(|flag| !page.contains(&format!("--{flag}"))).collect();
    assert!(missing.is_empty(), "docs/reference/fabric.md does not name {missing:?}");
}

#[test]
fn input_that_is_no_file_rejected() {
    for line in [
        "sim /dev/zero",
        "sim incast --flow-sizes /dev/zero",
        "sim fabric --workload hpcc:/dev/urandom",
        "sim fabric --workload simai:/dev",
        "sim fabric --topology file:/dev/zero",
        "sim fabric --sizes /dev/zero",
        "p4 check /dev/zero",
    ] {
        let refused = run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(refused.status.code(), Some(1), "{line}");
        assert!(stderr(&refused).contains("specify a regular file or pipe"), "{line}: {}", stderr(&refused));
    }
}
