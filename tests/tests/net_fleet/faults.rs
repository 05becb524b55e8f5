//! Faults during a rollout; `cargo xtask fleet` injects more, with more hosts, and measures them.

use std::time::Duration;

use anyhow::{Result, ensure};
use dcqcn_tests::fleet::{Behaviour, Etcd, FleetFixture};
use dcqcn_tests::require_installed;

const FAST: &str = "canary = 1\nwave = 2\nmax_unavailable = 2\nsoak = '1s'\npatience = '15s'";

#[test]
fn rollout_survives_killed_members() -> Result<()> {
    require_installed!("rollout_survives_killed_members", Etcd);
    let mut fixture = FleetFixture::new(3, 4)?;
    // In the middle of applying: slow enough to be hit.
    fixture.daemons["h002"].be(Behaviour::Slow(Duration::from_millis(500)));
    fixture.text(&["apply", &fixture.file(FAST, "rpg_gd = 12")?])?;
    let coordinator = fixture.coordinate()?;
    fixture.wait_for_daemons("a canary has the version", |host, daemon| {
        host != "h000" || daemon.name().is_some()
    })?;
    drop(coordinator);
    let leader = fixture.etcd.leader()?;
    fixture.etcd.kill(leader)?;
    let coordinator = fixture.coordinate()?;
    fixture.wait_for_daemons("the second wave began", |host, daemon| {
        host != "h001" || daemon.name().is_some()
    })?;
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

const QUICK: &str = "canary = 1\nwave = 3\nmax_unavailable = 3\nsoak = '0s'\npatience = '8s'";

#[test]
fn full_etcd_reported_then_resumes() -> Result<()> {
    require_installed!("full_etcd_reported_then_resumes", Etcd);
    let fixture = FleetFixture::with(Etcd::start(1, &["--quota-backend-bytes", "2097152"])?, 2)?;
    let apply = |gd: u8| {
        fixture.run(&["apply", &fixture.file(QUICK, &format!("rpg_gd = {gd}"))?, "--wait", "--tick", "100ms"])
    };
    ensure!(apply(12)?.status.success(), "the first version is not applied");
    let filler = "x".repeat(100_000);
    let mut tries = 0;
    while fixture.etcd.ctl(&["put", "much", &filler])?.status.success() {
        tries += 1;
        ensure!(tries < 200, "etcd does not become full");
    }
    let full = apply(13)?;
    let message = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(!full.status.success() && message.contains("etcd is full: `etcdctl compact`"), "{message}");
    assert!(fixture.daemons.values().all(|daemon| daemon.name().as_deref() == Some("fleet 1")));
    // The advice in its message.
    let status = fixture.etcd.ctl(&["get", "much", "--keys-only", "--write-out=fields"])?;
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    let revision = text.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap_or_default();
    for words in [&["del", "much"][..], &["compact", revision], &["defrag"], &["alarm", "disarm"]] {
        let done = fixture.etcd.ctl(words)?;
        assert!(
            done.status.success() || words[0] == "del",
            "{words:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
    let done = apply(13)?;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    fixture.wait_for_version(2)?;
    Ok(())
}
