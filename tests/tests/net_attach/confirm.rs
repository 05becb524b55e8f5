//! Changes that are reverted unless confirmed, with processes killed in the meantime.

use std::os::unix::process::ExitStatusExt as _;

use dcqcn_support::clock::boottime_ns;
use dcqcn_tests::leftover::waiters;
use dcqcn_tests::prelude::*;
use nix::sys::signal::kill;

const ATTACH: &str = "attach a0 --pacer none --flows 64 --set link_rate=1gbit --set rpg_ai_rate=10mbit";

/// A lab with `a0` attached.
fn lab(test: &str) -> Result<Lab> {
    let lab = Lab::new(test)?;
    lab.ok(ATTACH)?;
    Ok(lab)
}

/// The active value of the parameter, read without a command, which would revert an overdue change.
fn ai_rate_mbit(lab: &Lab) -> Result<u64> {
    Ok(lab.host.attachment("a0")?.maps.params()?.config.scalars.rpg_ai_rate_bps / 1_000_000)
}

fn no_waiter_left(lab: &Lab) -> Result<()> {
    wait_value(|| waiters(&lab.host), Vec::is_empty).map(drop)
}

fn kill_waiter(lab: &Lab) -> Result<()> {
    let found = waiters(&lab.host)?;
    ensure!(found.len() == 1, "{found:?}");
    found.into_iter().try_for_each(|pid| kill(pid, Signal::SIGKILL))?;
    no_waiter_left(lab)
}

/// Waits until the time to confirm is over, or no change is pending.
fn overdue(lab: &Lab) -> Result<()> {
    while lab.host.run(attach::pending)??.iter().any(|(_, pending)| !pending.is_overdue(boottime_ns())) {
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn is(lab: &Lab, mbit: u64) -> Result<()> {
    wait_value(|| ai_rate_mbit(lab), |found| *found == mbit).map(drop)
}

#[test]
fn unconfirmed_change_reverted() -> Result<()> {
    require!();
    let lab = lab("cback")?;
    let printed = lab.ok("set a0 --confirm 1s rpg_ai_rate=20mbit rpg_hai_rate=150mbit")?;
    assert_contains(&printed, "rpg_ai_rate: 10mbit -> 20mbit");
    assert_contains(&printed, "reverted in 1 s, unless you run `dcqcn confirm a0`");
    is(&lab, 10)?;
    no_waiter_left(&lab)?;
    let log = lab.ok("log a0")?;
    assert_contains(&log, "rpg_ai_rate (to be confirmed in 1 s)");
    assert_contains(&log, "rpg_hai_rate (reverted)");
    lab.fails(1, "confirm a0", "no change is pending on a0")?;
    lab.fails(3, "confirm b0", "b0 is not attached")?;
    ensure!(lab.json("status a0")?["attachments"][0]["pending"].is_null(), "nothing waits");
    lab.ok("detach a0").map(drop)
}

#[test]
fn confirmed_change_persists() -> Result<()> {
    require!();
    let lab = lab("cstay")?;
    lab.ok("set a0 --confirm 60s rpg_ai_rate=20mbit")?;
    let status = lab.json("status a0")?;
    assert_eq!(status["attachments"][0]["pending"]["former"][0]["value"], "10mbit", "{status}");
    lab.prints("status", "unless you run `dcqcn confirm a0`")?;
    // Without a difference it restarts the deadline.
    lab.prints("set a0 --confirm 90s rpg_ai_rate=20mbit", "reverted in 90 s, unless")?;
    lab.prints("confirm", "a0: confirmed rpg_ai_rate")?;
    no_waiter_left(&lab)?;
    assert_eq!(ai_rate_mbit(&lab)?, 20);
    lab.prints("log a0", "rpg_ai_rate (confirmed)")?;
    lab.ok("set a0 --confirm 60s rpg_ai_rate=21mbit")?;
    assert_eq!(lab.ok("confirm a0 a0")?, "a0: confirmed rpg_ai_rate\n");
    no_waiter_left(&lab)?;
    // A change without effect starts no waiting process.
    lab.ok("set a0 --confirm 60s rpg_ai_rate=21mbit")?;
    no_waiter_left(&lab)?;
    lab.expect_error(1, "confirm").map(drop)
}

#[test]
fn confirm_continues_after_a_failed_write() -> Result<()> {
    require!();
    let lab = lab("cdisk")?;
    lab.ok(&ATTACH.replace("a0", "b0"))?;
    lab.ok("set a0 b0 --confirm 60s rpg_ai_rate=20mbit")?;
    // Where a0's new journal is written first.
    let blocked = lab.host.journal("a0")?.with_extension("new");
    fs::create_dir(&blocked)?;
    let output = lab.run("confirm a0 b0")?;
    assert_eq!(output.status.code(), Some(7));
    assert_contains(&String::from_utf8(output.stdout)?, "b0: confirmed rpg_ai_rate");
    assert_contains(
        &String::from_utf8(output.stderr)?,
        "the change on a0 is not confirmed and reverts at its deadline: ",
    );
    fs::remove_dir(&blocked)?;
    lab.fails(1, "confirm b0", "no change is pending on b0")?;
    lab.ok("confirm a0 --revert")?;
    assert_eq!(ai_rate_mbit(&lab)?, 10);
    no_waiter_left(&lab)?;
    lab.ok("detach a0 b0").map(drop)
}

#[test]
fn deadline_independent_of_time_namespace() -> Result<()> {
    require!();
    let lab = lab("ctime")?;
    lab.ok("set a0 --confirm 60s rpg_ai_rate=20mbit")?;
    let mut command = Command::new("unshare");
    command.args(["--time", "--fork", "--boottime", "86400", "--monotonic", "86400"]).arg(binary()?);
    command.args(["confirm", "a0"]).env("DCQCN_AUDIT", lab.path("audit"));
    lab.host.run(|| output_of(&mut command))??;
    assert_eq!(ai_rate_mbit(&lab)?, 20);
    lab.ok("detach a0").map(drop)
}

/// Without CAP_SYS_PTRACE only the shell leads to the mount namespace with the pins, and it exits before the deadline.
#[test]
fn waiter_in_private_mounts_reverts() -> Result<()> {
    require!();
    let lab = lab("cmount")?;
    let change = "while mountpoint -q /run/dcqcn/bpf; do umount /run/dcqcn/bpf; done
                  $dcqcn set a0 --confirm 1s rpg_ai_rate=20mbit";
    let script = format!("unshare --mount sh -euc '{change}'; exit $?");
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace", "sh", "-c", &script]);
    command.env("dcqcn", binary()?).env("DCQCN_AUDIT", lab.path("audit"));
    let output = lab.host.output(command)?;
    assert!(output.status.success(), "{output:?}");
    is(&lab, 10)?;
    no_waiter_left(&lab)?;
    lab.ok("detach a0").map(drop)
}

#[test]
fn pending_change_blocks_others() -> Result<()> {
    require!();
    let lab = lab("cref")?;
    lab.ok("set a0 --confirm 60s rpg_ai_rate=20mbit")?;
    lab.fails(1, "set a0 rpg_ai_rate=30mbit", "`dcqcn confirm a0` keeps it")?;
    assert_eq!(ai_rate_mbit(&lab)?, 20);
    lab.ok("set a0 --confirm 60s rpg_ai_rate=40mbit rpg_hai_rate=300mbit")?;
    assert_eq!(ai_rate_mbit(&lab)?, 40);
    // The value before the first change.
    lab.ok("confirm a0 --revert")?;
    assert_eq!(ai_rate_mbit(&lab)?, 10);
    no_waiter_left(&lab)?;
    lab.ok("set a0 rpg_ai_rate=30mbit")?;
    // A pending change does not prevent detaching, and ends with its attachment.
    lab.ok("set a0 --confirm 60s rpg_ai_rate=20mbit")?;
    assert_eq!(ai_rate_mbit(&lab)?, 20);
    lab.ok("detach a0")?;
    no_waiter_left(&lab)?;
    lab.ok(ATTACH)?;
    assert_eq!(ai_rate_mbit(&lab)?, 10);
    lab.ok("detach a0").map(drop)
}

#[test]
fn killed_waiter_reverts_change() -> Result<()> {
    require!();
    let lab = lab("ckill")?;
    // Reverted by the next command, of any kind.
    for next in ["get a0 rpg_ai_rate", "gc", "status", "confirm a0"] {
        lab.ok("set a0 --confirm 1s rpg_ai_rate=20mbit")?;
        kill_waiter(&lab)?;
        overdue(&lab)?;
        assert_eq!(ai_rate_mbit(&lab)?, 20, "no process could revert it");
        let output = lab.run(next)?;
        assert_contains(&String::from_utf8(output.stderr)?, "change not confirmed in time; reverted");
        assert_eq!(ai_rate_mbit(&lab)?, 10, "{next}");
    }
    // Reverted by the daemon.
    let file = "[[interface]]\nname = 'a0'\nflows = 64\npacer = 'none'\n[interface.parameters]\nlink_rate = '1gbit'\n\
                rpg_ai_rate = '10mbit'\n";
    let mut daemon = Daemon::start(&lab.host, file)?;
    daemon.wait_for_log(&["taken over"])?;
    lab.ok("set a0 --confirm 1s rpg_ai_rate=20mbit")?;
    kill_waiter(&lab)?;
    daemon.wait_for_log(&["change not confirmed in time; reverted", "20mbit -> 10mbit"])?;
    is(&lab, 10)?;
    // A reload is rejected in the meantime, and accepted afterwards.
    lab.ok("set a0 --confirm 60s rpg_ai_rate=20mbit")?;
    daemon.write(&file.replace("10mbit", "11mbit"))?;
    daemon.wait_for_log(&["reload rejected; configuration unchanged", "dcqcn confirm a0"])?;
    lab.ok("confirm a0 --revert")?;
    daemon.signal(Signal::SIGHUP)?;
    is(&lab, 11)?;
    daemon.end()
}

#[test]
fn pending_change_killed_at_every_step() -> Result<()> {
    require!();
    let lab = lab("csteps")?;
    for n in 1..20 {
        let step = n.to_string();
        let abort = [("DCQCN_TEST_ABORT", step.as_str())];
        let mut command = dcqcn_with("set a0 --confirm 1s rpg_ai_rate=20mbit", &abort)?;
        command.env("DCQCN_AUDIT", lab.path("audit"));
        let output = lab.host.output(command)?;
        let is_killed = output.status.signal() == Some(9);
        ensure!(is_killed || output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The waiting process inherits the variable and kills itself at its own steps, so that no process remains.
        overdue(&lab)?;
        lab.ok("gc")?;
        assert_eq!(ai_rate_mbit(&lab)?, 10, "step {n}");
        ensure!(lab.host.run(attach::pending)??.is_empty(), "step {n}");
        if !is_killed {
            ensure!(n > 2, "{n} steps");
            return lab.ok("detach a0").map(drop);
        }
    }
    bail!("the command does not complete")
}

#[test]
fn file_applied_atomically() -> Result<()> {
    require!();
    let lab = lab("capply")?;
    let file = lab.path("file.toml");
    let apply = |options: &str| format!("config apply {} {options}", file.display());
    fs::write(&file, "[parameters]\nlink_rate = '1gbit'\nrpg_ai_rate = '20mbit'\n")?;
    lab.prints(&apply("a0 --dry-run"), "rpg_ai_rate: 10mbit -> 20mbit")?;
    assert_eq!(ai_rate_mbit(&lab)?, 10);
    lab.ok(&apply("a0 --confirm 1s"))?;
    is(&lab, 10)?;
    lab.ok(&apply("a0"))?;
    assert_eq!(ai_rate_mbit(&lab)?, 20);
    fs::write(&file, "role = 'switch'\n[parameters]\nrpg_ai_rate = '30mbit'\n")?;
    lab.fails(1, &apply("a0"), "cannot become switch in place")?;
    let text =
        "[[interface]]\nname = 'a*'\n[interface.parameters]\nlink_rate = '1gbit'\nrpg_ai_rate = '40mbit'\n";
    fs::write(&file, text)?;
    lab.ok(&apply("--all"))?;
    assert_eq!(ai_rate_mbit(&lab)?, 40);
    fs::write(&file, "[[interface]]\nname = 'c*'\n")?;
    lab.fails(1, &apply("a0"), "matches a0; add one")?;
    lab.fails(1, &apply("--all"), "does not name any attached interface")?;
    lab.ok("detach a0").map(drop)
}
