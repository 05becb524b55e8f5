//! `status` reports the kernel's state.

use std::fs::Permissions;
use std::os::unix::process::CommandExt as _;

use aya::programs::tc::TcAttachType;
use dcqcn_common::layout::Mode;
use dcqcn_loader::dataplane;
use dcqcn_tests::prelude::*;

/// Without access to the pins, `status` must not report them missing.
#[test]
fn unprivileged_status_reports_no_fault() -> Result<()> {
    const UNPRIVILEGED_UID: u32 = 65_534;
    let lab = new_lab!();
    lab.attach(&["a0"])?;
    // A directory from which any user may run it.
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
    let dcqcn = directory.path().join("dcqcn");
    fs::copy(binary()?, &dcqcn)?;
    let unprivileged = |words: &str| {
        let mut command = Command::new(&dcqcn);
        command.args(words.split_whitespace()).uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
        lab.host.output(command)
    };
    let output = unprivileged("status a0 --json")?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let status = &report["attachments"][0];
    assert_eq!((&status["problems"], &status["parts"]), (&json!([]), &json!([])));
    assert!(status["unread"].as_str().is_some_and(|why| why.contains("Permission denied")), "{status}");
    assert_contains(&String::from_utf8(unprivileged("status")?.stdout)?, "unreadable");
    let output = unprivileged("doctor --json")?;
    let findings = String::from_utf8(output.stdout)?;
    assert!(findings.contains("\"unread\"") && !findings.contains("program-missing"), "{findings}");
    lab.ok("detach a0").map(drop)
}

#[test]
fn status_verifies_every_part() -> Result<()> {
    let lab = new_lab!("htb");
    lab.host.command("tc qdisc add dev a0 root handle 7: pfifo limit 77")?;
    lab.ok("attach a0 --pacer htb --flows 64 --set link_rate=1gbit")?;
    let status = lab.json("status a0")?;
    let status = &status["attachments"][0];
    let parts = status["parts"].as_array().context("no parts")?;
    let names: Vec<_> = parts.iter().filter_map(|part| part["name"].as_str()).collect();
    assert_eq!(names, ["maps", "pacer", "egress", "ingress"]);
    for part in parts.iter().filter(|part| !["maps", "pacer"].contains(&part["name"].as_str().unwrap_or("")))
    {
        assert!(part["program_id"].as_u64().is_some_and(|id| id != 0), "{part}");
        assert!(part["link_id"].as_u64().is_some_and(|id| id != 0), "{part}");
        assert_eq!(part["problem"], Value::Null);
    }
    let text = status.to_string();
    assert!(!text.contains("\"steps\"") && !text.contains("saved"), "{text}");
    assert_eq!(status["state"], "attached");
    // A hook that lost its program, one at a time.
    for hook in ["ingress", "egress"] {
        fs::remove_file(lab.host.pins("a0")?.join(hook))?;
        has_problem(&lab, "a0", &format!("{hook}: expected, not found"))?;
    }
    lab.prints("status", "INCOMPLETE")?;
    for upgrade in ["upgrade a0", "upgrade --all --dry-run"] {
        lab.fails(1, upgrade, "a0 lacks some of its programs: egress: expected, not found")?;
    }
    // Nothing runs: attaching starts over.
    lab.ok("attach a0 --pacer htb --flows 64 --set link_rate=1gbit")?;
    complete(&lab, "a0")?;
    lab.ok("detach a0").map(drop)
}

#[test]
fn our_programs_run_first() -> Result<()> {
    let lab = new_lab!();
    // Another application's programs, at both hooks.
    let sizes = Sizes { rp_flows: 8, np_flows: 8 };
    let mut theirs = dataplane::load(Programs::Plain, sizes, Mode::Host, None, &PROGRAMS[1..])?;
    for (name, hook) in [(PROGRAMS[1], TcAttachType::Ingress), (PROGRAMS[2], TcAttachType::Egress)] {
        let program = dataplane::classifier(&mut theirs, name)?;
        lab.host.run(|| program.attach("a0", hook))??;
    }
    let report_text = lab.ok("attach a0 --pacer none --flows 64 --set link_rate=1gbit")?;
    assert_contains(&report_text, "egress: runs before dcqcn_egress (program ");
    assert_contains(&report_text, "ingress: runs before dcqcn_ingress (program ");
    let status = lab.json("status a0")?;
    for (part, hook) in [("egress", TcAttachType::Egress), ("ingress", TcAttachType::Ingress)] {
        let (_, chain) = lab.host.run(|| SchedClassifier::query_tcx("a0", hook))??;
        assert_eq!(chain.len(), 2);
        let parts = status["attachments"][0]["parts"].as_array().context("no parts")?;
        let ours = parts.iter().find(|found| found["name"] == part).context("no such part")?;
        assert_eq!(ours["program_id"], chain[0].id());
    }
    lab.ok("detach a0").map(drop)
}

/// Operating on an interface without attachment leaves no state, not even its lock.
#[test]
fn rejected_attach_leaves_nothing() -> Result<()> {
    let lab = new_lab!();
    for command in ["set a0 wred.3.pmax=2%", "get a0", "upgrade a0", "detach a0", "confirm a0"] {
        lab.fails(3, command, "a0 is not attached")?;
        assert!(!lab.host.journals()?.exists(), "{command}");
    }
    Ok(())
}
