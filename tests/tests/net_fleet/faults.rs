//! Faults during a rollout; `cargo xtask fleet` injects more, with more hosts, and measures them.

use std::time::Duration;

use anyhow::Result;
use dcqcn_tests::fleet::{Etcd, Nature, Site};

const FAST: &str = "canary = 1\nwave = 2\nmax_unavailable = 2\nsoak = '1s'\npatience = '15s'";

#[test]
fn rollout_survives_killed_members() -> Result<()> {
    if !Etcd::available("rollout_survives_killed_members") {
        return Ok(());
    }
    let mut site = Site::new(3, 4)?;
    // In the middle of applying: slow enough to be hit.
    site.daemons["h002"].be(Nature::Slow(Duration::from_millis(500)));
    site.text(&["apply", &site.file(FAST, "rpg_gd = 12")?])?;
    let mut coordinator = site.command(&["coordinate", "--tick", "100ms"])?.spawn()?;
    site.settle("a canary has the version", |host, daemon| host != "h000" || daemon.name().is_some())?;
    coordinator.kill()?;
    coordinator.wait()?;
    let leader = site.etcd.leader()?;
    site.etcd.kill(leader)?;
    let mut coordinator = site.command(&["coordinate", "--tick", "100ms"])?.spawn()?;
    site.settle("the second wave began", |host, daemon| host != "h001" || daemon.name().is_some())?;
    site.kill_agent("h002")?;
    site.begin_agent("h002")?;
    site.etcd.begin(leader)?;
    let done = site.wait("the rollout is complete", |status| Ok(status["rollout"]["is_over"] == true));
    coordinator.kill()?;
    coordinator.wait()?;
    done?;
    site.settle("every host has the version", |_, daemon| daemon.name().as_deref() == Some("fleet 1"))?;
    for daemon in site.daemons.values() {
        assert_eq!(daemon.names(), [Some("fleet 1".to_owned())], "once");
    }
    Ok(())
}
