//! `status` reports the kernel's state.

use std::fs::Permissions;
use std::os::unix::process::CommandExt as _;

use aya::programs::tc::TcAttachType;
use dcqcn_common::layout::Mode;
use dcqcn_loader::dataplane;
use dcqcn_tests::prelude::*;

/// Runs the command on a host as an unprivileged user.
fn unprivileged(lab: &Lab, line: &str) -> Result<Output> {
    const UNPRIVILEGED_UID: u32 = 65_534;
    // A directory from which any user may run it.
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
    let dcqcn = directory.path().join("dcqcn");
    fs::copy(binary()?, &dcqcn)?;
    let mut command = Command::new(&dcqcn);
    command.args(line.split_whitespace()).uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
    lab.host.output(command)
}

#[test]
fn unprivileged_command_names_capabilities() -> Result<()> {
    let lab = new_lab!();
    let refused = |line: &str| -> Result<()> {
        let output = unprivileged(&lab, line)?;
        let error = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(1), "{line}: {error}");
        assert!(error.contains("CAP_DAC_OVERRIDE") && error.contains("run it as root"), "{line}: {error}");
        Ok(())
    };
    lab.ok("attach a0 --pacer none --flows 64 --set link_rate=1gbit")?;
    for command in ["status", "get", "counters", "flows", "flows pair list", "queues", "monitor", "events"] {
        refused(&format!("{command} a0"))?;
    }
    for line in ["status", "get --all", "monitor", "events"] {
        refused(line)?;
    }
    lab.ok("detach a0").map(drop)
}

/// Without access to the pins, `status` must not report them missing.
#[test]
fn unprivileged_status_reports_no_fault() -> Result<()> {
    let lab = new_lab!();
    lab.ok("attach a0 --pacer none --flows 64 --set link_rate=1gbit")?;
    let unprivileged = |line: &str| unprivileged(&lab, line);
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

/// Standard output and error of a script with `$dcqcn` and its own BPF file system, as in a container that shares
/// only `/run/dcqcn` with its node.
fn in_sandbox(lab: &Lab, script: &str) -> Result<String> {
    let script = format!(
        "exec 2>&1; mkdir -p -m 0755 /run/dcqcn; mkdir -p -m 0700 /run/dcqcn/bpf
         mount -t bpf bpf /run/dcqcn/bpf
         {script}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-euc", &script]);
    command.env("dcqcn", binary()?);
    let output = lab.host.output(command)?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{}: {text}", output.status);
    Ok(text)
}

#[test]
fn read_only_file_system_names_the_fix() -> Result<()> {
    let lab = new_lab!();
    let text = in_sandbox(
        &lab,
        "$dcqcn attach a0 --pacer none --flows 64 --set link_rate=1gbit
         mount -o remount,ro /run/dcqcn/bpf
         ! $dcqcn status
         ! $dcqcn get a0
         ! $dcqcn attach b0 --pacer none --set link_rate=1gbit
         mount -o remount,rw /run/dcqcn/bpf
         $dcqcn detach a0",
    )?;
    let fix = "/run/dcqcn/bpf is mounted read-only: `mount -o remount,rw /run/dcqcn/bpf`";
    assert_eq!(text.matches(fix).count(), 3, "{text}");
    assert!(!text.contains("not found"), "{text}");
    Ok(())
}

#[test]
fn unmounted_file_system_names_the_fix() -> Result<()> {
    let lab = new_lab!();
    // The kernel detaches the programs shortly after the unmount.
    let text = in_sandbox(
        &lab,
        "$dcqcn attach a0 --pacer none --flows 64 --set link_rate=1gbit
         while mountpoint -q /run/dcqcn/bpf; do umount /run/dcqcn/bpf; done
         for try in $(seq 100); do
             $dcqcn get a0 2>&1 | grep -q 'cannot manage a0' || break
             sleep 0.1
         done
         ! $dcqcn get a0
         $dcqcn status a0
         $dcqcn attach a0 --pacer none --flows 64 --set link_rate=1gbit
         $dcqcn detach a0",
    )?;
    assert_contains(&text, "no BPF file system is mounted at /run/dcqcn/bpf");
    assert_contains(&text, "maps: /run/dcqcn/bpf is not mounted");
    assert!(!text.contains("not found"), "{text}");
    Ok(())
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
