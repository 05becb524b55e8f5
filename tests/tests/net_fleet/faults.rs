//! Faults during a rollout; `cargo xtask fleet` injects more, with more hosts, and measures them.

use dcqcn_tests::fleet::{Behaviour, QUICK};
use dcqcn_tests::prelude::*;
use dcqcn_tests::socket::http;

const FAST: &str = "canary = 1\nwave = 2\nmax_unavailable = 2\nsoak = '1s'\npatience = '15s'";

#[test]
fn rollout_survives_killed_members() -> Result<()> {
    require_installed!(Etcd);
    let mut fixture = FleetFixture::new(3, 4)?;
    // In the middle of applying: slow enough to be hit.
    fixture.daemons["h002"].be(Behaviour::Slow(Duration::from_millis(500)));
    fixture.text(&["apply", &fixture.file(FAST, "rpg_gd = 12")?])?;
    let coordinator = fixture.coordinate()?;
    fixture.wait_for_version_on("h000", 1)?;
    drop(coordinator);
    let leader = fixture.etcd.leader()?;
    fixture.etcd.kill(leader)?;
    let coordinator = fixture.coordinate()?;
    // The second wave has begun.
    fixture.wait_for_version_on("h001", 1)?;
    fixture.kill_agent("h002")?;
    fixture.begin_agent("h002")?;
    fixture.etcd.begin(leader)?;
    fixture.wait_for_end()?;
    drop(coordinator);
    fixture.wait_for_version(1)?;
    for daemon in fixture.daemons.values() {
        assert_eq!(daemon.names(), [Some("fleet 1".to_owned())], "once");
    }
    Ok(())
}

#[test]
fn coordinator_without_etcd_is_not_ready() -> Result<()> {
    require_installed!(Etcd);
    let mut fixture = FleetFixture::new(1, 1)?;
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.to_string();
    let mut command = fixture.command(&["coordinate", "--tick", "100ms", "--metrics", &address])?;
    let _coordinator = Running(command.spawn()?);
    let get = |path: &str| http(&address, &format!("GET {path} HTTP/1.1\r\nHost: fleet\r\n\r\n"));
    let ready = || Ok(get("/readyz").unwrap_or_default());
    wait_value(ready, |text| text.starts_with("HTTP/1.1 200"))?;
    fixture.etcd.kill(0)?;
    let text = wait_value(ready, |text| text.starts_with("HTTP/1.1 503"))?;
    assert_contains(&text, "etcd");
    assert_contains(&get("/metrics")?, "\ndcqcn_fleet_ready 0\n");
    assert_contains(&get("/healthz")?, "HTTP/1.1 200");
    fixture.etcd.begin(0)?;
    wait_value(ready, |text| text.starts_with("HTTP/1.1 200")).map(drop)
}

#[test]
fn full_etcd_reported_then_resumes() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::with(Etcd::start(1, &["--quota-backend-bytes", "2097152"])?, 2)?;
    fixture.apply(QUICK, "rpg_gd = 12")?;
    let filler = "x".repeat(100_000);
    let mut tries = 0;
    while fixture.etcd.ctl(&["put", "much", &filler])?.status.success() {
        tries += 1;
        ensure!(tries < 200, "etcd does not become full");
    }
    assert_contains(&fixture.apply_error(QUICK, "rpg_gd = 13")?, "etcd is full: `etcdctl compact`");
    assert!(fixture.daemons.values().all(|daemon| daemon.name().as_deref() == Some("fleet 1")));
    // The advice in its message.
    let _ = fixture.etcd.ctl(&["del", "much"])?;
    fixture.etcd.compact()?;
    fixture.etcd.ok(&["defrag"])?;
    fixture.etcd.ok(&["alarm", "disarm"])?;
    fixture.apply(QUICK, "rpg_gd = 13")?;
    fixture.wait_for_version(2).map(drop)
}
