//! Unreadable records of hosts, deleted versions, and commands without a coordinator.

use dcqcn_tests::fleet::{Behaviour, QUICK, WAIT};
use dcqcn_tests::prelude::*;
use nix::sys::signal::kill;

const WATCHED: &str = "canary = 1\nwave = 3\nmax_unavailable = 3\nsoak = '3s'\npatience = '8s'";

#[test]
fn unreadable_record_affects_only_its_host() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 3)?;
    let long = "x".repeat(100_000);
    for (key, value) in [
        ("/dcqcn/hosts/g1/report", "{"),
        ("/dcqcn/hosts/g2/member", "7"),
        ("/dcqcn/hosts/g3/want", "[]"),
        ("/dcqcn/hosts/g4/report", long.as_str()),
        ("/dcqcn/hosts/g5/other/key", "x"),
    ] {
        fixture.etcd.ok(&["put", key, value])?;
    }
    fixture.apply(QUICK, "rpg_gd = 12")?;
    assert!(fixture.daemons.values().all(|daemon| daemon.name().as_deref() == Some("fleet 1")));
    let status = fixture.text(&["status"])?;
    assert_contains(&status, "cannot read /dcqcn/hosts/g1/report");
    assert_contains(&status, "has 100000 bytes");
    fixture.text(&["apply", &fixture.file(QUICK, "rpg_gd = 13")?])?;
    fixture.text(&["abort", "--wait"])?;
    fixture.text(&["forget", "g1"])?;
    assert!(!fixture.text(&["status"])?.contains("g1"));
    Ok(())
}

#[test]
fn deleted_version_number_is_not_reused() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 3)?;
    for gd in [11, 12, 13] {
        fixture.apply(QUICK, &format!("rpg_gd = {gd}"))?;
    }
    assert!(fixture.text(&["prune", "--keep", "1"])?.contains("2 versions deleted, 1 kept"));
    assert!(fixture.text(&["rollback", "3", "--dry-run"])?.contains("version 4"));
    for prefix in ["/dcqcn/versions/", "/dcqcn/outcomes/"] {
        fixture.etcd.ok(&["del", "--prefix", prefix])?;
    }
    assert!(fixture.apply(QUICK, "rpg_gd = 14")?.contains("version 4"));
    for daemon in fixture.daemons.values() {
        assert!(daemon.text().is_some_and(|text| text.contains("rpg_gd = 14")));
    }
    Ok(())
}

#[test]
fn prune_runs_during_a_rollout() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 1)?;
    for first in (1..=1_024).step_by(128) {
        let version = |number: u64| (format!("/dcqcn/versions/{number:010}"), "{}".to_owned());
        fixture.etcd.put(&(first..first + 128).map(version).collect::<Vec<_>>())?;
    }
    fixture.text(&["apply", &fixture.file(WATCHED, "rpg_gd = 12")?])?;
    let rollout = fixture.etcd.ok(&["get", "/dcqcn/rollout", "--print-value-only"])?;
    // A coordinator's clock, faster.
    let clock = || fixture.etcd.ok(&["put", "/dcqcn/rollout", rollout.trim_end()]).map(drop);
    let pruned = while_repeating([clock], || fixture.text(&["prune", "--keep", "1"]))?;
    assert!(pruned.contains("1024 versions deleted, 1 kept"), "{pruned}");
    Ok(())
}

#[test]
fn resume_and_abort_need_a_coordinator() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 2)?;
    let applied = fixture.run(&["apply", &fixture.file(WATCHED, "rpg_gd = 12")?])?;
    let warning = String::from_utf8_lossy(&applied.stderr).into_owned();
    assert!(applied.status.success() && warning.contains("no coordinator is running"), "{warning}");
    for command in ["resume", "abort"] {
        assert_contains(&fixture.expect_error(3, &[command])?, "no coordinator is running");
    }
    assert!(fixture.text(&["status"])?.contains("no coordinator is running"));
    Ok(())
}

/// The approval of the last wave ends the rollout: nothing is left for a coordinator.
#[test]
fn last_approval_needs_no_coordinator() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 1)?;
    let unjudged = WATCHED.replace("3s", "1s") + "\n[gate]\nmin_judged = 2";
    let mut command = fixture.command(&["apply", &fixture.file(&unjudged, "rpg_gd = 12")?])?;
    let apply = command.args(WAIT).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    fixture.wait("the rollout is paused", |status| Ok(status["rollout"]["is_paused"] == true))?;
    kill(Pid::from_raw(apply.id().cast_signed()), Signal::SIGINT)?;
    assert_eq!(apply.wait_with_output()?.status.code(), Some(1));
    assert_contains(&fixture.text(&["resume"])?, "done");
    assert!(!fixture.text(&["status"])?.contains("no coordinator is running"));
    Ok(())
}

#[test]
fn interrupted_apply_is_not_a_coordinator() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 2)?;
    let mut command = fixture.command(&["apply", &fixture.file(WATCHED, "rpg_gd = 12")?])?;
    command.args(WAIT);
    let apply = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    fixture.wait_for_version_on("h000", 1)?;
    kill(Pid::from_raw(apply.id().cast_signed()), Signal::SIGINT)?;
    let output = apply.wait_with_output()?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && message.contains("no coordinator continues it"), "{message}");
    // Immediately: its key does not outlive it.
    fixture.expect_error(3, &["abort"])?;
    assert_contains(&fixture.expect_error(1, &["resume"])?, "cannot pause or resume version 1");
    fixture.text(&["abort", "--wait"])?;
    fixture.wait_for_daemons("both hosts are rolled back", |_, daemon| daemon.name().is_none()).map(drop)
}

#[test]
fn silent_canary_rolls_back() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 4)?;
    for (nature, words) in
        [(Behaviour::Silent, "has had no data packet"), (Behaviour::Half, "data packets per second")]
    {
        // Traffic to compare with, for five seconds on every host.
        fixture.wait("every host has traffic", |status| {
            let hosts = status["hosts"].as_array().map(Vec::as_slice).unwrap_or_default();
            let packets = |host: &Value| host["rates"]["data_packets"].as_u64().unwrap_or(0);
            Ok(hosts.iter().all(|host| packets(host) >= 50_000))
        })?;
        fixture.daemons["h000"].be(nature);
        assert_contains(&fixture.apply_error(WATCHED, "rpg_gd = 12")?, words);
        assert!(fixture.daemons.iter().skip(1).all(|(_, daemon)| daemon.names().is_empty()));
    }
    Ok(())
}

#[test]
fn apply_of_one_group_keeps_the_others() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 2)?;
    let path = fixture.file(QUICK, "rpg_gd = 12")?;
    let both = |gd: u32| {
        let group = |name: &str, host: &str| {
            format!(
                "[[group]]\nname = '{name}'\nhosts = ['{host}']\n[[group.interface]]\nname = 'eth*'\n\
                     [group.interface.parameters]\nrpg_gd = {gd}\n"
            )
        };
        fs::write(&path, format!("[rollout]\n{QUICK}\n{}{}", group("a", "h000"), group("b", "h001")))
    };
    both(12)?;
    fixture.text(&[&["apply", &path], &WAIT[..]].concat())?;
    let before = fixture.daemons["h001"].names();
    both(13)?;
    let refused = fixture.expect_error(1, &["apply", &path, "--group", "none"])?;
    assert_contains(&refused, "the file has no such group");
    fixture.text(&[&["apply", &path, "--group", "a"], &WAIT[..]].concat())?;
    let text = |host: &str| fixture.daemons[host].text().unwrap_or_default();
    assert!(text("h000").contains("rpg_gd = 13"), "{}", text("h000"));
    assert!(text("h001").contains("rpg_gd = 12"), "{}", text("h001"));
    assert_eq!(fixture.daemons["h001"].names(), before, "the other group's host got an order");
    Ok(())
}

/// As etcd's error for an unreadable rollout recommends.
#[test]
fn deleted_rollout_ends_its_wait() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 2)?;
    fixture.apply(QUICK, "rpg_gd = 12")?;
    let file = fixture.file(WATCHED, "rpg_gd = 13")?;
    let mut command = fixture.command_under(&["timeout", "60"], &["apply", &file])?;
    let mut waiting = Running(command.args(WAIT).stderr(Stdio::piped()).spawn()?);
    fixture.wait("the rollout is in progress", |status| Ok(status["rollout"]["is_over"] == false))?;
    fixture.etcd.ok(&["del", "/dcqcn/rollout"])?;
    let mut message = String::new();
    waiting.0.stderr.take().context("no pipe")?.read_to_string(&mut message)?;
    assert!(message.contains("the rollout of version 2 was deleted from etcd"), "{message}");
    assert_eq!(waiting.0.wait()?.code(), Some(1));
    Ok(())
}

#[test]
fn stopped_etcd_is_not_a_rejection() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 1)?;
    fixture.etcd.signal(0, Signal::SIGSTOP)?;
    let message = fixture.expect_error(1, &["status"]);
    fixture.etcd.signal(0, Signal::SIGCONT)?;
    assert_contains(&message?, "cannot reach etcd at");
    Ok(())
}

#[test]
fn unreachable_etcd_reported() -> Result<()> {
    let message = error_of(&mut dcqcn_fleet(&["status", "--etcd", "http://127.0.0.1:1"])?, 1)?;
    assert_contains(&message, "cannot reach etcd at http://127.0.0.1:1: no member responds");
    Ok(())
}
