//! Processes killed at every step, and full disks.

use std::panic;

use dcqcn_tests::kill::{at_every_step, command, killed, ok, set_at_every_step, upgrade_at_every_step};
use dcqcn_tests::leftover::is_attached;
use dcqcn_tests::prelude::*;
use dcqcn_tests::skip::runnable;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// Runs a test with TCX, and with clsact as older kernels have it, at the same time. The number is added to that of its
/// flows, by which it finds its maps among all others.
fn on_both(test: &str, kinds: &[&str], run: fn(Tc, u32) -> Result<()>) -> Result<()> {
    if !runnable(test, kinds)? {
        return Ok(());
    }
    thread::scope(|scope| {
        let tcx = scope.spawn(|| run(Tc::Tcx, 0));
        run(Tc::Clsact, 1)?;
        tcx.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}

/// A lab, the state of its interface, and the command that attaches to it with this number of flows.
fn victim(name: &str, flows: u32) -> Result<(Lab, [String; 5], String)> {
    let lab = Lab::new(name)?;
    let before = state(&lab.host, "a0")?;
    Ok((lab, before, format!("attach a0 --pacer htb --flows {flows} --set link_rate=1gbit")))
}

#[test]
fn attach_killed_at_every_step() -> Result<()> {
    on_both(test_name!(), &["htb"], |tc, number| {
        let flows = 1_237 + number;
        let (lab, before, attach) = victim(&format!("ka{number}"), flows)?;
        let dir = lab.host.journals()?;
        let steps = at_every_step(
            &lab,
            tc,
            &attach,
            || Ok(()),
            |n| {
                // In turn: attached again, detached, cleaned up by `gc`, taken over by the daemon.
                if is_attached(&lab, "a0") {
                    complete(&lab, "a0")?;
                } else {
                    match n % 4 {
                        0 => ok(&lab, tc, &attach)?,
                        1 => _ = lab.run("detach a0")?,
                        2 => {
                            // The first steps of an attach may be those of a namespace that another test has removed.
                            let has_begun = lab.host.journal("a0")?.exists();
                            let freed = lab.ok("gc")?;
                            assert!(!has_begun || freed.contains("attaching it was interrupted"), "{freed}");
                        }
                        _ => attach_and_serve(&lab, tc, flows)?,
                    }
                }
                if dir.join(format!("{}.json", lab.host.index("a0")?)).exists() {
                    complete(&lab, "a0")?;
                    ensure!(tables(flows) == 1, "{} attachments", tables(flows));
                    lab.ok("detach a0")?;
                }
                assert_eq!(state(&lab.host, "a0")?, before);
                assert!(!dir.exists(), "{:?}", fs::read_dir(&dir)?.collect::<Vec<_>>());
                freed(flows)
            },
        )?;
        assert!(steps >= 12, "{steps} steps");
        Ok(())
    })
}

/// The daemon manages the interface.
fn attach_and_serve(lab: &Lab, tc: Tc, flows: u32) -> Result<()> {
    let file = lab.path("dcqcn.toml");
    let text = format!(
        "[[interface]]\nname = 'a0'\nrole = 'host'\npacer = 'htb'\nflows = {flows}\n[interface.parameters]\n\
         link_rate = '1gbit'\n"
    );
    fs::write(&file, text)?;
    let mut command = command(lab, tc, &format!("run --config {}", file.display()))?;
    command.stderr(Stdio::null());
    let mut daemon = Running::spawn(&lab.host, command)?;
    // A partial attachment has its listed parts, and no problems.
    wait_until("the interface is not managed", || Ok(is_attached(lab, "a0") && complete(lab, "a0").is_ok()))?;
    daemon.signal(Signal::SIGTERM)?;
    daemon.wait().map(drop)
}

#[test]
fn detach_killed_at_every_step() -> Result<()> {
    on_both(test_name!(), &["htb"], |tc, number| {
        let flows = 1_239 + number;
        let (lab, before, attach) = victim(&format!("kd{number}"), flows)?;
        let dir = lab.host.journals()?;
        let steps = at_every_step(
            &lab,
            tc,
            "detach a0",
            || ok(&lab, tc, &attach),
            |n| {
                match n % 3 {
                    0 if lab.host.journal("a0")?.exists() => _ = lab.ok("detach a0")?,
                    1 => {
                        ok(&lab, tc, &attach)?;
                        complete(&lab, "a0")?;
                        lab.ok("detach a0")?;
                    }
                    _ => _ = lab.ok("gc")?,
                }
                assert_eq!(state(&lab.host, "a0")?, before);
                // Killed with only the lock left to remove.
                lab.ok("gc")?;
                assert!(!lab.host.pins("a0")?.exists() && !lab.host.journal("a0")?.exists(), "{dir:?}");
                freed(flows)
            },
        )?;
        assert!(steps >= 6, "{steps} steps");
        Ok(())
    })
}

#[test]
fn set_and_upgrade_killed_at_every_step() -> Result<()> {
    on_both(test_name!(), &[], |tc, number| {
        let flows = 1_241 + number;
        let lab = Lab::new(&format!("ks{number}"))?;
        let before = state(&lab.host, "a0")?;
        let attach =
            format!("attach a0 --pacer none --flows {flows} --set link_rate=1gbit --set rpg_ai_rate=10mbit");
        ok(&lab, tc, &attach)?;
        let steps = set_at_every_step(&lab, tc, flows)?;
        assert!(steps >= 1, "{steps} steps");
        let steps = upgrade_at_every_step(&lab, tc, flows)?;
        assert!(steps >= 5, "{steps} steps");
        lab.ok("detach a0")?;
        assert_eq!(state(&lab.host, "a0")?, before);
        freed(flows)
    })
}

/// The daemon is killed at each of its steps: while it starts, takes over, and activates another file.
#[test]
fn reload_killed_at_every_step() -> Result<()> {
    on_both(test_name!(), &["htb"], |tc, number| {
        let flows = 1_253 + number;
        let lab = Lab::new(&format!("kr{number}"))?;
        let before = [state(&lab.host, "a0")?, state(&lab.host, "b0")?];
        // First both interfaces, then one of them with another rate.
        let one = |mbit: u32| {
            format!(
                "[[interface]]\nname = 'a0'\npacer = 'htb'\nflows = {flows}\n[interface.parameters]\nlink_rate = '1gbit'\n\
                 rpg_ai_rate = '{mbit}mbit'\n"
            )
        };
        let both = format!("{}[[interface]]\nname = 'b0'\nrole = 'switch'\nflows = {flows}\n", one(10));
        let start = |n: Option<u32>| -> Result<Daemon> {
            let number = n.map(|n| n.to_string()).unwrap_or_default();
            let abort = n.map(|_| ("DCQCN_TEST_ABORT", number.as_str()));
            let clsact = (tc == Tc::Clsact).then_some(("DCQCN_TEST_CLSACT", "1"));
            let environment: Vec<_> = abort.into_iter().chain(clsact).collect();
            Daemon::start_with(&lab.host, &both, &["--log-format", "json"], &environment)
        };
        let serves_both = |daemon: &mut Daemon| -> Result<()> {
            ["a0", "b0"].iter().try_for_each(|iface| {
                daemon.wait_for_log(&[
                    "task started",
                    &format!("\"iface\":\"{iface}\""),
                    "\"task\":\"events\"",
                ])
            })
        };
        let has =
            |mbit: u32| lab.ok("get a0 rpg_ai_rate").is_ok_and(|text| text.contains(&format!("{mbit}mbit")));
        for n in 1.. {
            // Killed at its n-th step, if it has that many.
            let mut daemon = start(Some(n))?;
            let reloaded = serves_both(&mut daemon)
                .and_then(|()| daemon.write(&one(20)))
                .and_then(|()| daemon.wait_for_log(&["\"reloaded\""]));
            let is_over = reloaded.is_ok() && daemon.process.0.try_wait()?.is_none();
            if is_over {
                daemon.end()?;
            } else {
                let status = daemon.process.0.wait()?;
                let killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
                ensure!(killed, "step {n}: {status}: {reloaded:?}");
            }
            // The next daemon manages both, and reloads.
            let mut daemon = start(None)?;
            serves_both(&mut daemon).with_context(|| format!("killed at step {n}"))?;
            for iface in ["a0", "b0"] {
                complete(&lab, iface).with_context(|| format!("killed at step {n}"))?;
            }
            ensure!(has(10), "killed at step {n}: {}", lab.ok("get a0 rpg_ai_rate")?);
            let attachments = |number: usize| {
                // Maps are freed a moment after their last user.
                wait_value(|| Ok(tables(flows)), |found| *found == number)
                    .with_context(|| format!("killed at step {n}"))
            };
            attachments(2)?;
            daemon.write(&one(20))?;
            daemon.wait_for_log(&["\"reloaded\""]).with_context(|| format!("killed at step {n}"))?;
            daemon.end()?;
            ensure!(has(20), "killed at step {n}: {}", lab.ok("get a0 rpg_ai_rate")?);
            attachments(1)?;
            // The maximum frame of a veth depends on its peer's program, and a0 still has one.
            assert_eq!(state(&lab.host, "b0")?[1..], before[1][1..], "killed at step {n}");
            if is_over {
                eprintln!("{tc:?}: {} steps", n - 1);
                ensure!(n > 8, "{n} steps");
                break;
            }
        }
        lab.ok("detach a0")?;
        assert_eq!(state(&lab.host, "a0")?, before[0]);
        freed(flows)
    })
}

/// A file system of a few pages over the directory of a host's journals.
struct SmallFilesystem(PathBuf);

impl SmallFilesystem {
    fn mount(lab: &Lab, bytes: u32) -> Result<Self> {
        let dir = lab.host.journals()?;
        fs::create_dir_all(&dir)?;
        let options = format!("size={bytes},mode=0755");
        mount(Some("tmpfs"), &dir, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))?;
        Ok(Self(dir))
    }

    fn resize(&self, bytes: u32) -> Result<()> {
        let options = format!("size={bytes}");
        Ok(mount(None::<&str>, &self.0, None::<&str>, MsFlags::MS_REMOUNT, Some(options.as_str()))?)
    }
}

impl Drop for SmallFilesystem {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn full_disk_leaves_no_residue() -> Result<()> {
    require!("htb");
    const FLOWS: u32 = 1_243;
    let (lab, before, attach) = victim("full", FLOWS)?;
    // Space for one journal, but not for its replacement.
    let disk = SmallFilesystem::mount(&lab, 4_096)?;
    lab.fails(1, &attach, "No space left on device")?;
    assert_eq!(state(&lab.host, "a0")?, before);
    assert!(!lab.host.journal("a0")?.exists() && !lab.host.pins("a0")?.exists());
    freed(FLOWS)?;
    disk.resize(65_536)?;
    lab.ok(&attach)?;
    // Nothing more can be written.
    let junk = disk.0.join("junk");
    let _ = fs::write(&junk, vec![0; 1 << 20]);
    lab.ok("detach a0")?;
    assert_eq!(state(&lab.host, "a0")?, before);
    fs::remove_file(&junk)?;
    freed(FLOWS)?;
    // Full and killed.
    lab.ok(&attach)?;
    let _ = fs::write(&junk, vec![0; 1 << 20]);
    for n in [1, 2, 3] {
        killed(&lab, Tc::Tcx, "detach a0", n)?;
        if !lab.host.journal("a0")?.exists() {
            break;
        }
    }
    fs::remove_file(&junk)?;
    lab.ok(&attach)?;
    complete(&lab, "a0")?;
    lab.ok("detach a0")?;
    assert_eq!(state(&lab.host, "a0")?, before);
    freed(FLOWS)
}

/// The values are restored before the journal is written, so the audit log has them although the write fails.
#[test]
fn overdue_change_reverted_on_full_disk() -> Result<()> {
    let lab = new_lab!();
    let disk = SmallFilesystem::mount(&lab, 65_536)?;
    lab.ok("attach a0 --pacer none --flows 64 --set link_rate=1gbit --set rpg_ai_rate=10mbit")?;
    lab.ok("set a0 --confirm 1s rpg_ai_rate=20mbit")?;
    let junk = disk.0.join("junk");
    let _ = fs::write(&junk, vec![0; 1 << 20]);
    thread::sleep(Duration::from_millis(1_500));
    for _ in 0..2 {
        lab.prints("get a0 rpg_ai_rate", "10mbit")?;
    }
    fs::remove_file(&junk)?;
    lab.ok("get a0 rpg_ai_rate")?;
    let log = lab.ok("log a0")?;
    assert_eq!(log.lines().filter(|line| line.contains("reverted")).count(), 1, "{log}");
    lab.ok("set a0 rpg_ai_rate=30mbit")?;
    lab.ok("detach a0").map(drop)
}
