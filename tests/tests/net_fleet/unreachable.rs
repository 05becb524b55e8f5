//! Unreachable hosts, and hosts with wrong clocks.

use dcqcn_control_api::lock_path;
use dcqcn_tests::fleet::{MockDaemon, WAIT, file, reporting_hosts};
use dcqcn_tests::prelude::*;

const ONE_AT_A_TIME: &str = "canary = 1\nwave = '100%'\nmax_unavailable = 1\nsoak = '0s'\npatience = '8s'";

fn output(host: &Host, words: &[&str]) -> Result<Output> {
    host.output(dcqcn_fleet(words)?)
}

#[test]
fn partitioned_host_keeps_config_then_follows() -> Result<()> {
    require!();
    require_installed!(Etcd);
    // etcd and h0 on one side of a wire, h1 on the other.
    let pair = Pair::new("apart")?;
    for (host, iface, number) in [(&pair.a, "a0", 1), (&pair.b, "b0", 2)] {
        host.add_v4(iface, number, 24)?;
        host.command("ip link set lo up")?;
    }
    let etcd = pair.a.run(|| Etcd::start_at(Ipv4Addr::new(10, 0, 0, 1)))??;
    let (dir, at) = (tempfile::tempdir()?, etcd.endpoints());
    let mut daemons = Vec::new();
    let mut agents = Vec::new();
    for (host, name) in [(&pair.a, "h0"), (&pair.b, "h1")] {
        let control = dir.path().join(name).display().to_string();
        daemons.push(MockDaemon::listen(&control)?);
        let words =
            ["agent", "--name", name, "--control", &control, "--every", "1s", "--ttl", "3s", "--etcd", &at];
        let mut command = dcqcn_fleet(&words)?;
        command.stdout(Stdio::null()).stderr(Stdio::null());
        agents.push(Running::spawn(host, command)?);
    }
    let status = || -> Result<Value> {
        let status = output(&pair.a, &["status", "--json", "--etcd", &at])?;
        Ok(serde_json::from_slice(&status.stdout)?)
    };
    let there = |count: usize| wait_value(status, |status| reporting_hosts(status) == count);
    let path = dir.path().join("fleet.toml").display().to_string();
    let apply = |gd: u8| {
        fs::write(&path, file(ONE_AT_A_TIME, &format!("rpg_gd = {gd}")))?;
        output(&pair.a, &[&["apply", &path, "--etcd", &at], &WAIT[..]].concat())
    };
    let wire = |is_up| pair.a.set_up("a0", is_up);
    let names = |index: usize| daemons[index].names();
    let version = |number: u32| Some(format!("fleet {number}"));

    there(2)?;
    ensure!(apply(11)?.status.success(), "the first version is not applied");
    wire(false)?;
    there(1)?;
    let message = apply(12)?;
    let text = String::from_utf8_lossy(&message.stdout).into_owned();
    ensure!(message.status.success() && text.contains("1 away"), "{text} {:?}", message.stderr);
    // The host keeps its configuration, and its agent runs.
    assert_eq!((names(0), names(1)), (vec![version(1), version(2)], vec![version(1)]));
    wire(true)?;
    let repaired = Instant::now();
    there(2)?;
    wait_value(|| Ok(names(1)), |names| names.last() == Some(&version(2)))?;
    eprintln!("{:.1} s from the wire to the version", repaired.elapsed().as_secs_f64());
    assert_eq!(names(1), [version(1), version(2)], "each once");
    Ok(())
}

/// Environment set by `faketime`, which is not used itself, as its child would survive a kill.
const FAKETIME: &str = "LD_PRELOAD=/usr/$LIB/faketime/libfaketime.so.1";

#[test]
fn clock_skew_changes_nothing() -> Result<()> {
    require_installed!(Etcd);
    require_that!(find_program("faketime").is_some(), "no faketime on PATH (Debian: faketime)");
    let mut fixture = FleetFixture::new(1, 3)?;
    for (host, shift) in [("h000", "+7m"), ("h001", "-9m"), ("h002", "-20y")] {
        fixture.kill_agent(host)?;
        fixture.begin_agent_under(&["env", FAKETIME, &format!("FAKETIME={shift}")], host)?;
    }
    // Without the library their clocks would not differ, and nothing would be tested.
    let year = |shift: &str| -> Result<String> {
        let message =
            Command::new("env").args([FAKETIME, &format!("FAKETIME={shift}"), "date", "+%Y"]).output()?;
        Ok(String::from_utf8_lossy(&message.stdout).trim().to_owned())
    };
    ensure!(year("-20y")? != year("+0")?, "{FAKETIME} does nothing here");
    fixture.wait("all hosts report again", |status| Ok(reporting_hosts(status) == 3))?;
    let rollout = "canary = 1\nwave = 1\nmax_unavailable = 1\nsoak = '1s'\npatience = '20s'";
    fixture.text(&["apply", &fixture.file(rollout, "rpg_gd = 12")?])?;
    // Two coordinators whose clocks differ by a day continue each other's steps.
    let mut coordinators = Vec::new();
    for shift in ["+1d", "-3m"] {
        let words = ["coordinate", "--tick", "100ms"];
        let clock = ["env", FAKETIME, &format!("FAKETIME={shift}")];
        coordinators.push(Running(fixture.command_under(&clock, &words)?.spawn()?));
    }
    let took = fixture.wait_for_end()?;
    fixture.wait_for_version(1)?;
    for daemon in fixture.daemons.values() {
        assert_eq!(daemon.names(), [Some("fleet 1".to_owned())], "once");
    }
    // Three waves of a second each: other clocks caused no delay.
    ensure!(took < Duration::from_secs(30), "{took:?}");
    Ok(())
}

#[test]
fn duplicate_agents_reported() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 2)?;
    let of = |status: &Value, host: &str| -> String {
        let hosts = status["hosts"].as_array().into_iter().flatten();
        hosts.filter(|found| found["host"] == host).map(Value::to_string).collect()
    };
    let complaint = "another agent reports as h000 too";
    ensure!(!fixture.status()?.to_string().contains(complaint), "each host has one agent");
    let words = ["agent", "--look", "250ms", "--every", "1s", "--ttl", "3s", "--name", "h000"];
    let other = Running(fixture.command(&words)?.args(["--control", "/nonexistent/control"]).spawn()?);
    fixture.wait("h000 reports it", |status| Ok(of(status, "h000").contains(complaint)))?;
    ensure!(!of(&fixture.status()?, "h001").contains(complaint), "the other host is healthy");
    drop(other);
    fixture.wait("the complaint is cleared", |status| Ok(!status.to_string().contains(complaint)))?;
    Ok(())
}

#[test]
fn second_agent_of_a_daemon_exits() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 0)?;
    let dir = tempfile::tempdir()?;
    let control = dir.path().join("control");
    let _daemon = MockDaemon::listen(&control)?;
    fs::write(lock_path(&control), "")?;
    let agent = |program: &[&str], name: &str| -> Result<Command> {
        let words = ["agent", "--every", "1s", "--ttl", "3s", "--name", name];
        let mut command = fixture.command_under(program, &words)?;
        command.arg("--control").arg(&control);
        Ok(command)
    };
    let mut first = Running(agent(&[], "h1")?.spawn()?);
    fixture.wait("h1 reports", |status| Ok(status["hosts"][0]["host"] == "h1"))?;
    let message = error_of(agent(&["timeout", "60"], "h2")?.stderr(Stdio::piped()), 1)?;
    assert_contains(&message, "another agent controls the daemon at");
    ensure!(!fixture.status()?.to_string().contains("h2"), "only the first one reports");
    // Its successor.
    first.kill()?;
    let _second = Running(agent(&[], "h2")?.spawn()?);
    fixture.wait("h2 reports", |status| Ok(status.to_string().contains("\"h2\"")))?;
    Ok(())
}

#[test]
fn agent_has_the_name_of_its_machine() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 0)?;
    // Hides `/proc/sys`, as `ProcSubset=pid` in the units does.
    let script = |name: &str| {
        format!(
            "hostname {name} && mount -t proc -o subset=pid proc /proc && exec timeout --foreground 60 \"$@\""
        )
    };
    let command = |name: &str| {
        let program = ["unshare", "--mount", "--uts", "sh", "-c", &script(name), "sh"];
        let words = ["agent", "--control", "/nonexistent/control", "--every", "20s", "--ttl", "10min"];
        fixture.command_under(&program, &words)
    };
    assert_contains(&error_of(command("localhost")?.stderr(Stdio::piped()), 1)?, "--name");
    let mut agent = Running(command("st7.example")?.spawn()?);
    fixture.wait("the host reports", |status| Ok(status["hosts"][0]["host"] == "st7.example"))?;
    // etcd without TLS closes a connection with little traffic at the third ping that is too early.
    thread::sleep(Duration::from_secs(15));
    let log = fs::read_to_string(fixture.log())?;
    ensure!(!log.contains("protocol error"), "{log}");
    // Process 1 of a container, without a handler, would ignore the signal.
    agent.signal(Signal::SIGTERM)?;
    let ended = agent.wait()?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}
