//! Runs every example in the help of `sim`, and checks that it prints nonzero results.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const LAB: &str = env!("CARGO_BIN_EXE_dcqcn-lab");
const COMMANDS: [&str; 6] = ["", "incast", "staircase", "stability", "coexist", "fabric"];

/// A flow-size distribution, and a topology of eight hosts behind two switches, in HPCC's formats.
const SIZES: &str = "0 0\n10000 50\n100000 90\n1000000 100\n";
const TOPOLOGY: &str = "10 2 9\n8 9\n0 8 100Gbps 1us 0\n1 8 100Gbps 1us 0\n2 8 100Gbps 1us 0\n3 8 100Gbps 1us 0\n\
    4 9 100Gbps 1us 0\n5 9 100Gbps 1us 0\n6 9 100Gbps 1us 0\n7 9 100Gbps 1us 0\n8 9 400Gbps 1us 0\n";

fn shell(line: &str, directory: &Path) -> (bool, String, String) {
    let own = Path::new(LAB).parent().expect("the command is in a directory");
    let path = format!("{}:{}", own.display(), std::env::var("PATH").expect("PATH is set"));
    let out = Command::new("sh")
        .args(["-c", line])
        .env("PATH", path)
        .current_dir(directory)
        .output()
        .expect("sh starts");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (out.status.success(), text(&out.stdout), text(&out.stderr))
}

/// The lines of examples in a command's help.
fn examples(command: &str) -> Vec<String> {
    let (ok, help, _) = shell(&format!("dcqcn-lab sim {command} --help"), Path::new("/"));
    assert!(ok, "{command}");
    let (_, examples) = help.split_once("Examples:").expect("the help has examples");
    examples
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("dcqcn-lab sim"))
        .map(str::to_owned)
        .collect()
}

/// A shortened example: endless simulations are limited in time, and print JSON.
fn shortened(example: &str) -> String {
    let line = example.split(" | ").next().unwrap_or(example);
    let has_end = line.contains("--size") || line.contains("--duration") || line.contains("sim fabric");
    let short = if has_end || line.contains("sim example") {
        line.to_owned()
    } else {
        format!("{line} --duration 12ms --warm-up 4ms")
    };
    if line.contains("staircase") && !line.contains("--step") {
        return format!("{short} --step 2ms");
    }
    if short.contains("--step") {
        short.replace("--step 50ms", "--step 2ms").replace("250ms", "12ms")
    } else {
        short
    }
}

/// Every value of `key` below `value`.
fn find<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, inner)| {
            if name == key {
                found.push(inner);
            }
            find(inner, key, found);
        }),
        Value::Array(list) => list.iter().for_each(|inner| find(inner, key, found)),
        _ => {}
    }
}

/// The deficiency of a report of `line`, which must contain nonzero rates or times.
fn missing_values(line: &str, report: &Value) -> Option<&'static str> {
    let mut groups = Vec::new();
    find(report, "groups", &mut groups);
    let mut values = Vec::new();
    groups.iter().for_each(|groups| find(groups, "goodput_bps", &mut values));
    find(report, "mean_ns", &mut values);
    find(report, "hops", &mut values);
    if values.len() < 2 {
        return Some("too few metrics");
    }
    if !values.iter().all(|value| value.as_f64().is_some_and(|value| value > 0.0)) {
        return Some("a metric is zero");
    }
    // Simulations of messages report completion times.
    let mut times = Vec::new();
    find(report, "slowdown_p99", &mut times);
    let messages = line.contains("--size") && line.contains("incast");
    let slower = times.iter().any(|slowdown| slowdown.as_f64() > Some(1.0));
    (messages && !slower).then_some("no completion times")
}

/// The test below detects bad reports.
#[test]
fn zero_results_detected() {
    let line = "dcqcn-lab sim incast --flows 2 --size 4KB";
    let (ok, out, err) = shell(&format!("{line} --json"), Path::new("/"));
    assert!(ok, "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(missing_values(line, &report), None, "{out}");
    let (mut idle, mut silent) = (report.clone(), report);
    idle["outcome"]["groups"][0]["goodput_bps"] = 0.0.into();
    assert_eq!(missing_values(line, &idle), Some("a metric is zero"));
    silent["outcome"]["groups"][0]["fct"] = Value::Null;
    assert!(missing_values(line, &silent).is_some());
}

#[test]
fn excessive_warm_up_rejected() {
    let line = "dcqcn-lab sim incast --flows 2 --size 4KB --warm-up 2ms --duration 3ms";
    let (ok, _, err) = shell(line, Path::new("/"));
    assert!(!ok && err.contains("before the warm-up of 2ms ends"), "{err}");
}

#[test]
fn failed_run_of_sweep_costs_no_other() {
    let line = "dcqcn-lab sim incast --flows 2 --warm-up 2ms --duration 30ms --json --sweep size=4KB,4MB";
    let (ok, out, err) = shell(line, Path::new("/"));
    assert!(!ok && err.contains("run 1 of 2 failed: all flows end after"), "{err}");
    assert!(err.contains("incomplete: 1 of 2 runs completed"), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(1), "{out}");
}

#[test]
fn pfc_threshold_above_buffer_rejected() {
    let line = "dcqcn-lab sim incast --flows 8 --pfc on --buffer 500KB --control off --duration 3ms";
    let (ok, _, err) = shell(line, Path::new("/"));
    assert!(!ok && err.contains("XOFF of class 3, a frame below its queue's limit"), "{err}");
}

#[test]
fn help_examples_print_nonzero_results() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("WebSearch_distribution.txt"), SIZES).unwrap();
    fs::write(directory.path().join("fat.txt"), TOPOLOGY).unwrap();
    let mut ran = 0;
    for command in COMMANDS {
        let lines = examples(command);
        assert!(!lines.is_empty(), "sim {command} has no example");
        for example in lines {
            let line = shortened(&example);
            let prints = !line.ends_with("scenario.toml");
            let json = if prints && !line.contains("--json") { " --json" } else { "" };
            let (ok, out, err) = shell(&format!("{line}{json}"), directory.path());
            assert!(ok, "{line}: {err}");
            ran += 1;
            if !prints {
                continue;
            }
            let report: Value =
                serde_json::from_str(&out).unwrap_or_else(|error| panic!("{line}: {error}: {out}"));
            let wrong = missing_values(&line, &report);
            assert!(wrong.is_none(), "{line}: {wrong:?}: {out}");
        }
    }
    assert!(ran >= 20, "{ran} examples");
}
