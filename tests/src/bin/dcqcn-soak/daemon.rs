//! Faults of the daemon of an interface, and of commands that change it. They must not affect packets.

use std::os::unix::process::ExitStatusExt as _;

use dcqcn_tests::leftover::waiters;
use dcqcn_tests::prelude::*;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::kill;

use crate::fixture::{SoakFixture, file};
use crate::{Fault, fault};

pub(crate) const FAULTS: &[Fault] = &[
    fault("daemon killed", daemon_killed),
    fault("daemon ended", daemon_ended),
    fault("daemon killed while it starts", |fixture, random| {
        fixture.daemon.end()?;
        fixture.daemon.again(&fixture.pair.a)?;
        thread::sleep(Duration::from_millis(random.u64(0..60)));
        daemon_killed(fixture, random)
    }),
    fault("daemon stopped for a while", |fixture, random| {
        fixture.daemon.signal(Signal::SIGSTOP)?;
        thread::sleep(Duration::from_millis(random.u64(10..500)));
        fixture.daemon.signal(Signal::SIGCONT)
    }),
    fault("file emptied", |fixture, _| {
        fs::write(fixture.daemon.file(), "")?;
        // A file must be stable for a second to count as complete.
        thread::sleep(Duration::from_millis(2_500));
        Ok(fs::write(fixture.daemon.file(), file())?)
    }),
    fault("file removed", |fixture, _| {
        fs::remove_file(fixture.daemon.file())?;
        fixture.daemon.signal(Signal::SIGHUP)?;
        thread::sleep(Duration::from_millis(500));
        Ok(fs::write(fixture.daemon.file(), file())?)
    }),
    fault("bad file and SIGHUP", |fixture, random| {
        let text = file();
        // Truncated anywhere, or with an invalid part.
        let cut = random.usize(1..text.len() - 40);
        let bad = if random.bool() {
            format!("{}\nx =", text.get(..cut).unwrap_or_default())
        } else {
            text + "rpg = 1\n"
        };
        fs::write(fixture.daemon.file(), bad)?;
        reload(fixture, "reload rejected; configuration unchanged")?;
        fs::write(fixture.daemon.file(), file())?;
        reload(fixture, "reloaded")
    }),
    fault("file changed and changed back", |fixture, random| {
        let mbit = random.u32(11..90);
        fs::write(fixture.daemon.file(), file().replace("10mbit", &format!("{mbit}mbit")))?;
        reload(fixture, "reloaded")?;
        ensure!(
            fixture.ok("get a0 rpg_ai_rate")?.contains(&format!("{mbit}mbit")),
            "the new file is not active"
        );
        fs::write(fixture.daemon.file(), file())?;
        reload(fixture, "reloaded")
    }),
    fault("set killed", |fixture, random| {
        killed(fixture, "set a0 rpg_ai_rate=20mbit rpg_hai_rate=200mbit", random.u32(1..4))?;
        reload(fixture, "reloaded")
    }),
    // Killed after the first of its steps, it leaves a change that is reverted later.
    fault("unconfirmed change killed", |fixture, random| {
        killed(fixture, "set a0 --confirm 1s rpg_ai_rate=20mbit", random.u32(1..6))?;
        wait_value(|| Ok(fixture.pair.a.run(attach::pending)??.len()), |waiting| *waiting == 0)?;
        wait_until_recovered(fixture)
    }),
    fault("waiter of an unconfirmed change killed", |fixture, random| {
        fixture.ok("set a0 --confirm 1s rpg_ai_rate=20mbit")?;
        if random.bool() {
            kill_waiters(fixture)?;
        }
        wait_until_recovered(fixture)
    }),
    fault("waiter and daemon of an unconfirmed change killed", |fixture, random| {
        fixture.ok("set a0 --confirm 1s rpg_ai_rate=20mbit")?;
        kill_waiters(fixture)?;
        fixture.daemon.kill()?;
        thread::sleep(Duration::from_millis(random.u64(0..1_500)));
        again(fixture)?;
        wait_until_recovered(fixture)
    }),
    fault("upgrade killed", |fixture, random| {
        let object = fixture.pair.a.attachment("a0")?.info.object;
        fixture.pair.a.make_outdated("a0")?;
        killed(fixture, "upgrade a0", random.u32(1..8))?;
        fixture.ok("upgrade a0")?;
        let found = fixture.pair.a.attachment("a0")?.info.object;
        ensure!(found == object, "not upgraded");
        Ok(())
    }),
    fault("200 clients that send no request", |fixture, _| {
        let connect = || -> Result<Vec<TcpStream>> {
            (0..200)
                .map(|_| {
                    let mut stream = TcpStream::connect("127.0.0.1:9310")?;
                    stream.write_all(b"G")?;
                    Ok(stream)
                })
                .collect()
        };
        let clients = fixture.pair.a.run(connect)??;
        ensure!(scrape(&fixture.pair.a, "/metrics")?.contains("dcqcn_interface_served"), "no metrics");
        drop(clients);
        Ok(())
    }),
    fault("lock held for a while", |fixture, random| {
        let lock = fixture.pair.a.lock()?;
        let mut command = fixture.command("set a0 rpg_ai_rate=10mbit")?;
        let mut child = fixture.pair.a.run(|| command.stdout(Stdio::null()).spawn())??;
        thread::sleep(Duration::from_millis(random.u64(50..800)));
        drop(lock);
        ensure!(child.wait()?.success(), "set does not wait for the lock");
        Ok(())
    }),
    fault("no space for the audit log", |fixture, _| {
        let directory = tempfile::tempdir()?;
        mount(Some("tmpfs"), directory.path(), Some("tmpfs"), MsFlags::empty(), Some("size=4096"))?;
        // More than the limit.
        let _ = fs::write(directory.path().join("junk"), [0; 8_192]);
        let set = |value: &str| -> Result<()> {
            let mut command = fixture.command(&format!("set a0 rpg_ai_rate={value}"))?;
            command.env("DCQCN_AUDIT", directory.path());
            fixture.pair.a.run(|| output_of(&mut command))?.map(drop)
        };
        let done = set("20mbit").and_then(|()| set("10mbit"));
        umount2(directory.path(), MntFlags::MNT_DETACH)?;
        done
    }),
    fault("broken journal of another interface", |fixture, random| {
        let path = fixture.pair.a.journals()?.join("999999.json");
        let texts = ["", "{", "{}", "{\"format\":7}", "\0\0"];
        fs::write(&path, texts.get(random.usize(..texts.len())).copied().unwrap_or_default())?;
        let done = fixture.fails("status", 7).and_then(|_| fixture.ok("set a0 rpg_ai_rate=10mbit")).map(drop);
        fs::remove_file(path)?;
        done
    }),
    fault("interfaces added and removed", |fixture, random| {
        let names = ["a5", "a6"];
        appear(fixture, &names)?;
        // While they are being attached, or afterwards.
        if random.bool() {
            thread::sleep(Duration::from_millis(random.u64(0..800)));
        } else {
            let served = |metrics: &str| {
                names.iter().all(|name| metrics.contains(&format!("served{{interface=\"{name}\"}} 1")))
            };
            wait_value(|| scrape(&fixture.pair.a, "/metrics"), |metrics| served(metrics))?;
        }
        disappear(fixture, &names)
    }),
    fault("daemon ended while interfaces are added", |fixture, random| {
        let names = ["a7", "a8", "a9"];
        appear(fixture, &names)?;
        thread::sleep(Duration::from_millis(random.u64(0..1_500)));
        if random.bool() {
            daemon_ended(fixture, random)?;
        } else {
            daemon_killed(fixture, random)?;
        }
        disappear(fixture, &names)
    }),
    // As after a boot at which the address appears later than the daemon.
    fault("address of metrics removed", |fixture, _| {
        fixture.daemon.kill()?;
        fixture.pair.a.command("ip address delete 127.0.0.1/8 dev lo")?;
        again(fixture)?;
        fixture.daemon.wait_for_log(&["cannot serve metrics; retrying"])?;
        fixture.pair.a.command("ip address add 127.0.0.1/8 dev lo")?;
        fixture.daemon.wait_for_log(&["serving metrics", "127.0.0.1:9310"])
    }),
    fault("reader of monitor exited", |fixture, _| {
        let line = format!("{} monitor --interval 100ms | head -n 1 >/dev/null", binary()?.display());
        let mut command = Command::new("sh");
        command.args(["-c", &line]);
        let status = fixture.pair.a.run(|| command.status())??;
        ensure!(status.success(), "{status}");
        Ok(())
    }),
];

/// Starts the next daemon, and waits until it has taken `a0` over.
fn again(fixture: &mut SoakFixture) -> Result<()> {
    fixture.daemon.again(&fixture.pair.a)?;
    fixture.daemon.wait_for_log(&["taken over", "\"iface\":\"a0\""])
}

fn daemon_killed(fixture: &mut SoakFixture, _: &mut fastrand::Rng) -> Result<()> {
    fixture.daemon.kill()?;
    again(fixture)
}

fn daemon_ended(fixture: &mut SoakFixture, _: &mut fastrand::Rng) -> Result<()> {
    fixture.daemon.end()?;
    again(fixture)
}

/// Reloads, and waits until the log reports it.
fn reload(fixture: &mut SoakFixture, expected: &str) -> Result<()> {
    fs::write(fixture.daemon.log(), "")?;
    fixture.daemon.signal(Signal::SIGHUP)?;
    fixture.daemon.wait_for_log(&[expected])
}

/// Runs a command that is killed at its `n`-th step, if it has that many.
fn killed(fixture: &SoakFixture, line: &str, n: u32) -> Result<()> {
    let step = n.to_string();
    let command = fixture.command_with(line, &[("DCQCN_TEST_ABORT", step.as_str())])?;
    let output = fixture.pair.a.output(command)?;
    let is_expected = output.status.success() || output.status.signal() == Some(9);
    ensure!(is_expected, "dcqcn {line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn wait_until_recovered(fixture: &SoakFixture) -> Result<()> {
    let rate_bps = || Ok(fixture.pair.a.attachment("a0")?.maps.params()?.config.scalars.rpg_ai_rate_bps);
    wait_value(rate_bps, |bps| *bps == 10_000_000).map(drop)
}

/// Kills the processes on this host that wait to revert a change, as `kill -9` does.
fn kill_waiters(fixture: &SoakFixture) -> Result<()> {
    for pid in waiters(&fixture.pair.a)? {
        // Fails if the process has exited.
        let _ = kill(pid, Signal::SIGKILL);
    }
    Ok(())
}

fn appear(fixture: &SoakFixture, names: &[&str]) -> Result<()> {
    let netlink = fixture.pair.a.netlink()?;
    names.iter().try_for_each(|name| add_veth(&netlink, name, &name.replace('a', "far")))
}

fn disappear(fixture: &SoakFixture, names: &[&str]) -> Result<()> {
    let netlink = fixture.pair.a.netlink()?;
    names.iter().try_for_each(|name| Ok(netlink.delete_link(netlink.link(name)?.index)?))
}
