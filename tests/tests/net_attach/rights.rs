//! Permissions, and locking.

use dcqcn_tests::prelude::*;

/// Directory of the journals.
const ROOT: &str = "/run/dcqcn";

fn mode(path: &Path) -> Result<u32> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o777)
}

#[test]
fn file_modes_ignore_umask() -> Result<()> {
    let lab = new_lab!();
    for mask in ["0", "077"] {
        let dcqcn = binary()?;
        let attach = "attach a0 --pacer none --flows 64 --set link_rate=1gbit";
        let line = format!("umask {mask} && exec {} {attach}", dcqcn.display());
        let status = lab.host.run(|| Command::new("sh").args(["-c", &line]).status())??;
        assert!(status.success());
        let dir = lab.host.journals()?;
        let found = [
            mode(Path::new(ROOT))?,
            mode(&Path::new(ROOT).join("bpf"))?,
            mode(&dir)?,
            mode(&dir.join("lock"))?,
            mode(&lab.host.journal("a0")?)?,
            mode(&lab.host.pins("a0")?)?,
            // Objects on a BPF file system are created with 0600 minus the mask.
            mode(&lab.host.pins("a0")?.join("PARAMS"))?,
        ];
        assert_eq!(found, [0o755, 0o700, 0o755, 0o600, 0o644, 0o700, 0o600], "umask {mask}: {found:?}");
        lab.ok("detach a0")?;
        assert!(!dir.exists(), "no state is left, not even the lock");
    }
    Ok(())
}

#[test]
fn lock_holder_reported_per_netns() -> Result<()> {
    require!();
    let (lab, other) = (Lab::new("held")?, Lab::new("free")?);
    lab.attach(&["a0"])?;
    let lock = lab.host.lock()?;
    other.attach(&["a0"])?;
    other.ok("set a0 rpg_ai_rate=20mbit")?;
    let refused = lab.expect_error(1, "set a0 rpg_ai_rate=20mbit")?;
    assert_contains(&refused, &format!("process {}", std::process::id()));
    assert_contains(&refused, "wait for it or stop it");
    // Readers do not wait.
    lab.prints("get a0 rpg_ai_rate", "40mbit")?;
    lab.prints("status", "attached")?;
    drop(lock);
    lab.ok("set a0 rpg_ai_rate=20mbit")?;
    lab.ok("detach a0")?;
    other.ok("detach a0").map(drop)
}

#[test]
fn broken_journal_affects_one_interface() -> Result<()> {
    let lab = new_lab!();
    lab.attach(&["a0", "b0"])?;
    for (text, why) in [("{", "EOF"), ("{}", "no format"), ("{\"format\": 99}", "format 99")] {
        fs::write(lab.host.journal("b0")?, text)?;
        let status = lab.expect_error(7, "status")?;
        assert_contains(&status, "b0: ");
        assert_contains(&status, why);
        assert_eq!(status.matches("cannot read the journal ").count(), 1, "{status}");
        lab.fails(1, "status b0", "cannot show b0")?;
        lab.prints("status a0", "attached")?;
        lab.ok("set a0 rpg_ai_rate=20mbit")?;
        lab.prints("get --all rpg_ai_rate", "20mbit")?;
        lab.ok("detach a0")?;
        lab.attach(&["a0"])?;
        lab.fails(1, "set b0 rpg_ai_rate=20mbit", why)?;
        lab.fails(1, "attach b0 --pacer none --set link_rate=1gbit", why)?;
        lab.fails(1, "detach b0", why)?;
    }
    fs::write(lab.host.journal("b0")?, "{}")?;
    lab.fails(1, "detach b0", "`dcqcn detach b0 --force`")?;
    lab.prints("detach b0 --force", "abandoned")?;
    lab.attach(&["b0"])?;
    lab.ok("detach --all").map(drop)
}

/// Programs and pacer stay; they are reported, and removed by `gc`, a new attachment, or `detach --force`.
#[test]
fn attachment_without_journal_is_removed() -> Result<()> {
    let lab = new_lab!("htb");
    let before = state(&lab.host, "a0")?;
    let attach = "attach a0 --pacer htb --flows 64 --set link_rate=1gbit";
    lab.ok(attach)?;
    fs::remove_file(lab.host.journal("a0")?)?;
    lab.fails(1, "status", "a0: programs are attached, but their journal is missing")?;
    lab.prints("gc", "its journal is missing")?;
    assert_eq!(state(&lab.host, "a0")?, before);
    lab.ok(attach)?;
    fs::remove_file(lab.host.journal("a0")?)?;
    lab.ok(attach)?;
    fs::write(lab.host.journal("a0")?, "{")?;
    lab.prints("detach a0 --force", "root qdisc htb dc00: of an attachment")?;
    assert_eq!(state(&lab.host, "a0")?, before);
    Ok(())
}

/// The kernel numbers qdiscs without a handle from 8001: on, and reaches the pacer's after 23,552 of them.
#[test]
fn foreign_qdisc_with_our_handle_is_kept() -> Result<()> {
    let lab = new_lab!("htb");
    lab.host.command("tc qdisc add dev a0 root handle dc00: htb default 10")?;
    lab.host.command("tc class add dev a0 parent dc00: classid dc00:10 htb rate 50mbit")?;
    let before = state(&lab.host, "a0")?;
    lab.attach(&["a0"])?;
    lab.ok("detach a0")?;
    assert_eq!(state(&lab.host, "a0")?, before);
    Ok(())
}

#[test]
fn lost_journal_kept_by_other_commands() -> Result<()> {
    require!();
    let (lab, other) = (Lab::new("lost-kept")?, Lab::new("lost-other")?);
    lab.attach(&["a0"])?;
    fs::remove_file(lab.host.journal("a0")?)?;
    // Without a journal in its namespace.
    other.ok("gc")?;
    lab.fails(1, "status", "a0: programs are attached")?;
    lab.attach(&["b0"])?;
    lab.fails(7, "status", "a0: programs are attached")?;
    lab.ok("detach b0")?;
    other.ok("gc")?;
    // Nothing is left to serve a removed interface.
    let pins = lab.host.pins("a0")?;
    assert!(pins.exists());
    lab.host.command("ip link del a0")?;
    other.ok("gc")?;
    assert!(!pins.exists());
    Ok(())
}

/// Only some steps could be undone.
#[test]
fn detach_without_capabilities_changes_nothing() -> Result<()> {
    let lab = new_lab!();
    lab.attach(&["a0"])?;
    let before = state(&lab.host, "a0")?;
    for action in ["detach a0", "gc"] {
        let line = format!("setpriv --bounding-set -all --inh-caps -all {} {action}", binary()?.display());
        let mut command = Command::new("sh");
        let output = lab.host.run(|| command.args(["-c", &line]).output())??;
        assert!(!output.status.success(), "{action}");
        assert_contains(&String::from_utf8(output.stderr)?, "CAP_NET_ADMIN");
    }
    assert_eq!(state(&lab.host, "a0")?, before);
    lab.prints("status", "attached")?;
    lab.ok("detach a0").map(drop)
}

#[test]
fn directory_as_journal_names_the_fix() -> Result<()> {
    let lab = new_lab!();
    lab.attach(&["b0"])?;
    let path = lab.host.journal("a0")?;
    fs::create_dir(&path)?;
    let attach = "attach a0 --pacer none --flows 64 --set link_rate=1gbit";
    for line in [attach, "detach a0", "detach a0 --force"] {
        let refused = lab.expect_error(1, line)?;
        assert_contains(&refused, &format!("{} is a directory", path.display()));
        assert_contains(&refused, "rm -r");
    }
    lab.fails(7, "status", "is a directory")?;
    fs::remove_dir(&path)?;
    lab.ok(attach)?;
    lab.ok("detach --all").map(drop)
}

#[test]
fn dry_run_in_named_netns_changes_nothing() -> Result<()> {
    let lab = new_lab!("htb");
    let before = state(&lab.host, "a0")?;
    let report_text = lab.ok("attach a0 --pacer htb --set link_rate=1gbit --dry-run")?;
    for step in
        ["would attach to a0 as host, pacer htb", "at root by htb dc00:", "attach the program of egress"]
    {
        assert_contains(&report_text, step);
    }
    assert!(lab.json("attach a0 --pacer htb --set link_rate=1gbit --dry-run")?["steps"].is_array());
    assert_eq!(state(&lab.host, "a0")?, before);
    assert!(!lab.host.journals()?.exists());

    // From outside.
    let netns = lab.host.netns.name();
    let outside = |line: &str| output_of(&mut dcqcn(&format!("-n {netns} {line}"))?);
    outside("attach a0 --pacer none --flows 64 --set link_rate=1gbit")?;
    lab.prints("status", "attached")?;
    assert_contains(&outside("status a0")?, "egress on a0");
    outside("detach a0")?;
    Ok(())
}
