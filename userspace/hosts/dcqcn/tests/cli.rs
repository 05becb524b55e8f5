//! Invocations of the `dcqcn` command that need no root.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
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
fn example_passes_check() {
    let example = run(&["config", "example"]);
    assert_eq!(example.status.code(), Some(0));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, &example.stdout).unwrap();
    let check = run(&["config", "check", file.path().to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}", stderr(&check));
    assert!(stdout(&check).contains("all at their defaults"));
}

#[test]
fn bad_file_rejected_line_by_line() {
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
fn check_refuses_what_attach_refuses() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let name = file.path().to_str().unwrap();
    let entries = ["queues = 'auto'", "xdp_mode = 'skb'", "pacer = 'htb'\nflows = 40000"];
    let entries = entries.map(|keys| format!("[[interface]]\nname = 'eth0'\n{keys}\n"));
    fs::write(&file, entries.concat()).unwrap();
    let check = run(&["config", "check", name]);
    assert_eq!(check.status.code(), Some(1));
    let expected =
        [":1: queues = \"auto\" and pacer", ":4: xdp_mode = \"skb\" is for", ":7: flows = 40000 is out of"];
    for (line, expected) in stderr(&check).lines().zip(expected) {
        assert!(line.contains(&format!("{name}{expected}")), "{line}");
    }
    assert_eq!(stderr(&check).lines().count(), 3, "{}", stderr(&check));
    // Valid with `attach --role switch`.
    fs::write(&file, "queues = 'auto'\n").unwrap();
    assert!(stderr(&run(&["config", "check", name])).contains("both replace the root qdisc"));
    assert!(!stderr(&run(&["attach", "nosuch0", "--config", name])).contains("root qdisc"));
}

#[test]
fn dry_run_reports_each_failing_interface() {
    let output = run(&["attach", "nosuch0", "nosuch1", "--dry-run"]);
    assert_eq!(output.status.code(), Some(1));
    for name in ["nosuch0", "nosuch1"] {
        assert!(stderr(&output).contains(name), "{}", stderr(&output));
    }
}

#[test]
fn interface_named_twice_attached_once() {
    let output = run(&["attach", "nosuch0", "nosuch0", "--dry-run"]);
    assert_eq!(stderr(&output).matches("nosuch0").count(), 1, "{}", stderr(&output));
}

#[test]
fn parameter_without_interface_named() {
    let output = run(&["get", "rpg_ai_rate"]);
    assert_eq!(output.status.code(), Some(1));
    let text = "error: rpg_ai_rate is a parameter: specify an interface before it, as in `dcqcn get eth0 rpg_ai_rate`\n";
    assert_eq!(stderr(&output), text);
}

#[test]
fn invalid_log_filter_reported() {
    for filter in [&b"loud"[..], b"\xff"] {
        let mut command = dcqcn(&["config", "profile", "list"]);
        let output = command.env("DCQCN_LOG", OsStr::from_bytes(filter)).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(stderr(&output).contains("is ignored: "), "{}", stderr(&output));
    }
}

#[test]
fn run_without_file_suggests_next_step() {
    let output = run(&["run", "--config", "/nonexistent/dcqcn.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.starts_with("error: cannot read /nonexistent/dcqcn.toml: it does not exist; create it"),
        "{text}"
    );
}

#[test]
fn usage_error_has_own_exit_code() {
    for args in [&["set", "eth0"][..], &["set", "eth0", "rpg_ai_rate=fast"], &["detach"], &["nonsense"]] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
    let apply = &["config", "apply", "x.toml"][..];
    for (args, command) in [(&["set", "eth0"][..], "set"), (&["get"], "get"), (apply, "config apply")] {
        let output = run(args);
        assert!(stderr(&output).contains(&format!("Usage: dcqcn {command} ")), "{}", stderr(&output));
    }
}

#[test]
fn narrow_help_has_whole_examples() {
    let example =
        "\n  dcqcn attach eth1 --role switch --queues --set queue.3.weight=20 --set queue.0.weight=10\n";
    for args in [["attach", "--help"], ["help", "attach"]] {
        let help = dcqcn(&args).env("COLUMNS", "60").output().unwrap();
        assert_eq!(help.status.code(), Some(0));
        assert!(stdout(&help).contains(example), "{}", stdout(&help));
        assert!(!stdout(&help).contains('\u{a0}'));
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let failed = dcqcn(&["--help"]).stdout(full).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr(&failed).contains("cannot write standard output"), "{}", stderr(&failed));
}

#[test]
fn json_without_effect_rejected() {
    for args in [&["--json", "run", "--config", "/nonexistent"][..], &["top", "--json"]] {
        let refused = run(args);
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains("has no JSON output; omit --json"), "{}", stderr(&refused));
    }
}

#[test]
fn schema_and_example_are_json() {
    let schema: serde_json::Value = serde_json::from_slice(&run(&["config", "schema"]).stdout).unwrap();
    assert_eq!(schema["properties"]["parameters"]["properties"]["rpg_ai_rate"]["default"], "40mbit");
    let example: serde_json::Value =
        serde_json::from_slice(&run(&["config", "example", "--json"]).stdout).unwrap();
    assert_eq!(example["json_version"], 1);
    let parameters = example["parameters"].as_array().unwrap();
    let kmax = parameters.iter().find(|parameter| parameter["key"] == "wred.7.kmax").unwrap();
    assert_eq!((&kmax["default_text"], &kmax["allowed"]), (&"200KB".into(), &"0B to 1GB".into()));
}

#[test]
fn closed_reader_is_not_an_error() {
    let mut child =
        dcqcn(&["config", "example"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}

#[test]
fn ecnconfig_name_accepts_sonic_flags() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("ecnconfig");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_dcqcn"), &link).unwrap();
    let help = Command::new(&link).arg("--help").output().unwrap();
    assert!(stdout(&help).contains("-p PROFILE [-gmin N]"), "{help:?}");
    let wrong = Command::new(&link).args(["-p", "eth1:8", "-gmin", "1"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("as in `eth1:3`"));
    let none = Command::new(&link).output().unwrap();
    assert!(stderr(&none).contains("<-l|-p PROFILE|-q QUEUES>") && stderr(&none).ends_with('\n'), "{none:?}");
}

#[test]
fn package_has_manuals_and_completions() {
    let directory = tempfile::tempdir().unwrap();
    let written = run(&["generate", "man", directory.path().to_str().unwrap()]);
    assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
    for page in ["man1/dcqcn.1", "man1/dcqcn-attach.1", "man5/dcqcn.toml.5", "man7/dcqcn-parameters.7"] {
        assert!(directory.path().join(page).is_file(), "{page}");
    }
    for (page, has_json) in [("dcqcn-run", false), ("dcqcn-status", true)] {
        let text = fs::read_to_string(directory.path().join(format!("man1/{page}.1"))).unwrap();
        assert_eq!(text.contains("\\-\\-json"), has_json, "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["generate", "completions", shell]);
        assert!(stdout(&script).contains("COMPLETE"), "{shell}");
    }
    assert!(stderr(&run(&["generate", "completions", "tcsh"])).contains("supported shells are bash"));
}

#[test]
fn completion_offers_links_and_parameters() {
    let offered = |words: &[&str]| {
        let mut command = dcqcn(&["--"]);
        command.args(words).env("COMPLETE", "fish");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output).to_owned()
    };
    assert!(offered(&["dcqcn", "status", "l"]).lines().any(|line| line.starts_with("lo")));
    assert!(offered(&["dcqcn", "set", "lo", "rpg_ai"]).contains("rpg_ai_rate="));
}
