//! The `dcqcn-lab` command as people call it; nothing here needs root.

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
fn a_replay_is_a_line_of_json_for_each_packet() {
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures/rc_write.pcap");
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
