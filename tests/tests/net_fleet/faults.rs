//! Faults during a rollout; `cargo xtask fleet` injects more, with more hosts, and measures them.

use std::time::Duration;

use anyhow::Result;
use dcqcn_tests::fleet::{Behaviour, Etcd, FleetFixture};

const FAST: &str = "canary = 1\nwave = 2\nmax_unavailable = 2\nsoak = '1s'\npatience = '15s'";

#[test]
fn rollout_survives_killed_members() -> Result<()> {
    if !Etcd::available("rollout_survives_killed_members") {
        return Ok(());
    }
    let mut fixture = FleetFixture::new(3, 4)?;
    // In the middle of applying: slow enough to be hit.
    fixture.daemons["h002"].be(Behaviour::Slow(Duration::from_millis(500)));
    fixture.text(&["apply", &fixture.file(FAST, "rpg_gd = 12")?])?;
    let mut coordinator = fixture.command(&["coordinate", "--tick", "100ms"])?.spawn()?;
    fixture.wait_for_daemons("a canary has the version", |host, daemon| {
        host != "h000" || daemon.name().is_some()
    })?;
    coordinator.kill()?;
    coordinator.wait()?;
    let leader = fixture.etcd.leader()?;
    fixture.etcd.kill(leader)?;
    let mut coordinator = fixture.command(&["coordinate", "--tick", "100ms"])?.spawn()?;
    fixture.wait_for_daemons("the second wave began", |host, daemon| {
        host != "h001" || daemon.name().is_some()
    })?;
    fixture.kill_agent("h002")?;
    fixture.begin_agent("h002")?;
    fixture.etcd.begin(leader)?;
    let done = fixture.wait("the rollout is complete", |status| Ok(status["rollout"]["is_over"] == true));
    coordinator.kill()?;
    coordinator.wait()?;
    done?;
    fixture.wait_for_daemons("every host has the version", |_, daemon| {
        daemon.name().as_deref() == Some("fleet 1")
    })?;
    for daemon in fixture.daemons.values() {
        assert_eq!(daemon.names(), [Some("fleet 1".to_owned())], "once");
    }
    Ok(())
}
