//! The `dcqcn` command as people call it; nothing here needs root.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn dcqcn(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dcqcn"));
    command.args(args);
    command
}

fn run(args: &[&str]) -> Output {
    dcqcn(args).output().expect("dcqcn starts")
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

#[test]
fn the_example_passes_the_check() {
    let example = run(&["config", "example"]);
    assert_eq!(example.status.code(), Some(0));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, &example.stdout).unwrap();
    let check = run(&["config", "check", file.path().to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}", stderr(&check));
    assert!(stdout(&check).ends_with("; it leaves everything at its default\n"));
}

#[test]
fn a_bad_file_is_refused_line_by_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, "rol = 'host'\n[parameters]\nrpg_ai_rat = '1mbit'\n").unwrap();
    let name = file.path().to_str().unwrap();
    let check = run(&["config", "check", name]);
    assert_eq!(check.status.code(), Some(1));
    let errors: Vec<&str> = stderr(&check).lines().collect();
    assert!(
        errors[0].starts_with(&format!("error: {name}:1: unknown key `rol`: did you mean `role`?")),
        "{errors:?}"
    );
    assert!(errors[1].starts_with(&format!("{name}:3: unknown parameter `rpg_ai_rat`")), "{errors:?}");
    assert_eq!(errors.len(), 2);

    let missing = run(&["config", "check", "/nonexistent/dcqcn.toml"]);
    assert_eq!(missing.status.code(), Some(1));
    let text =
        "error: cannot read /nonexistent/dcqcn.toml\n  because: No such file or directory (os error 2)\n";
    assert_eq!(stderr(&missing), text);
}

#[test]
fn wrong_usage_has_a_code_of_its_own() {
    for args in [&["set", "eth0"][..], &["set", "eth0", "rpg_ai_rate=fast"], &["detach"], &["nonsense"]] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn the_schema_and_the_example_are_json() {
    let schema: serde_json::Value = serde_json::from_slice(&run(&["config", "schema"]).stdout).unwrap();
    assert_eq!(schema["properties"]["parameters"]["properties"]["rpg_ai_rate"]["default"], "40mbit");
    let example: serde_json::Value =
        serde_json::from_slice(&run(&["config", "example", "--json"]).stdout).unwrap();
    assert!(example.as_array().unwrap().iter().any(|parameter| parameter["key"] == "wred.7.kmax"));
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

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let mut child =
        dcqcn(&["config", "example"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}
