//! Unreadable records of hosts, deleted versions, and commands without a coordinator.

use std::io::Read as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use dcqcn_tests::command::{Running, dcqcn_fleet};
use dcqcn_tests::fleet::{Behaviour, Etcd, FleetFixture};
use dcqcn_tests::require_installed;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const QUICK: &str = "canary = 1\nwave = 3\nmax_unavailable = 3\nsoak = '0s'\npatience = '8s'";
const WATCHED: &str = "canary = 1\nwave = 3\nmax_unavailable = 3\nsoak = '3s'\npatience = '8s'";

fn apply(fixture: &FleetFixture, rollout: &str, parameters: &str) -> Result<String> {
    fixture.text(&["apply", &fixture.file(rollout, parameters)?, "--wait", "--tick", "100ms"])
}

fn put(fixture: &FleetFixture, key: &str, value: &str) -> Result<()> {
    let put = fixture.etcd.ctl(&["put", key, value])?;
    ensure!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    Ok(())
}

#[test]
fn unreadable_record_affects_only_its_host() -> Result<()> {
    require_installed!("unreadable_record_affects_only_its_host", Etcd);
    let fixture = FleetFixture::new(1, 3)?;
    let long = "x".repeat(100_000);
    for (key, value) in [
        ("/dcqcn/hosts/g1/report", "{"),
        ("/dcqcn/hosts/g2/member", "7"),
        ("/dcqcn/hosts/g3/want", "[]"),
        ("/dcqcn/hosts/g4/report", long.as_str()),
        ("/dcqcn/hosts/g5/other/key", "x"),
    ] {
        put(&fixture, key, value)?;
    }
    apply(&fixture, QUICK, "rpg_gd = 12")?;
    assert!(fixture.daemons.values().all(|daemon| daemon.name().as_deref() == Some("fleet 1")));
    let status = fixture.text(&["status"])?;
    assert!(
        status.contains("cannot read /dcqcn/hosts/g1/report") && status.contains("has 100000 bytes"),
        "{status}"
    );
    fixture.text(&["apply", &fixture.file(QUICK, "rpg_gd = 13")?])?;
    fixture.text(&["abort", "--wait"])?;
    fixture.text(&["forget", "g1"])?;
    assert!(!fixture.text(&["status"])?.contains("g1"));
    Ok(())
}

#[test]
fn deleted_version_number_is_not_reused() -> Result<()> {
    require_installed!("deleted_version_number_is_not_reused", Etcd);
    let fixture = FleetFixture::new(1, 3)?;
    for gd in [11, 12, 13] {
        apply(&fixture, QUICK, &format!("rpg_gd = {gd}"))?;
    }
    assert!(fixture.text(&["prune", "--keep", "1"])?.contains("2 versions deleted, 1 kept"));
    assert!(fixture.text(&["rollback", "3", "--dry-run"])?.contains("version 4"));
    for prefix in ["/dcqcn/versions/", "/dcqcn/outcomes/"] {
        let deleted = fixture.etcd.ctl(&["del", "--prefix", prefix])?;
        ensure!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    }
    assert!(apply(&fixture, QUICK, "rpg_gd = 14")?.contains("version 4"));
    for daemon in fixture.daemons.values() {
        assert!(daemon.text().is_some_and(|text| text.contains("rpg_gd = 14")));
    }
    Ok(())
}

#[test]
fn prune_runs_during_a_rollout() -> Result<()> {
    require_installed!("prune_runs_during_a_rollout", Etcd);
    let fixture = FleetFixture::new(1, 1)?;
    for first in (1..=1_024).step_by(128) {
        let version = |number: u64| (format!("/dcqcn/versions/{number:010}"), "{}".to_owned());
        fixture.etcd.put(&(first..first + 128).map(version).collect::<Vec<_>>())?;
    }
    ensure!(fixture.run(&["apply", &fixture.file(WATCHED, "rpg_gd = 12")?])?.status.success(), "not applied");
    let rollout = fixture.etcd.ctl(&["get", "/dcqcn/rollout", "--print-value-only"])?.stdout;
    let rollout = String::from_utf8(rollout)?;
    let is_over = AtomicBool::new(false);
    let pruned = thread::scope(|scope| {
        // A coordinator's clock, faster.
        let clock = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                put(&fixture, "/dcqcn/rollout", rollout.trim_end())?;
            }
            Ok::<_, anyhow::Error>(())
        });
        let pruned = fixture.text(&["prune", "--keep", "1"]);
        is_over.store(true, Ordering::Relaxed);
        clock.join().map_err(|_| anyhow::anyhow!("the clock panicked"))??;
        pruned
    })?;
    assert!(pruned.contains("1024 versions deleted, 1 kept"), "{pruned}");
    Ok(())
}

#[test]
fn resume_and_abort_need_a_coordinator() -> Result<()> {
    require_installed!("resume_and_abort_need_a_coordinator", Etcd);
    let fixture = FleetFixture::new(1, 2)?;
    let applied = fixture.run(&["apply", &fixture.file(WATCHED, "rpg_gd = 12")?])?;
    let warning = String::from_utf8_lossy(&applied.stderr).into_owned();
    assert!(applied.status.success() && warning.contains("no coordinator is running"), "{warning}");
    for command in ["resume", "abort"] {
        let output = fixture.run(&[command])?;
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(3) && message.contains("no coordinator is running"),
            "{message}"
        );
    }
    assert!(fixture.text(&["status"])?.contains("no coordinator is running"));
    Ok(())
}

#[test]
fn interrupted_apply_is_not_a_coordinator() -> Result<()> {
    require_installed!("interrupted_apply_is_not_a_coordinator", Etcd);
    let fixture = FleetFixture::new(1, 2)?;
    let words = ["apply", &fixture.file(WATCHED, "rpg_gd = 12")?, "--wait", "--tick", "100ms"];
    let mut command = fixture.command(&words)?;
    let apply = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    fixture.wait_for_daemons("the canary has the version", |host, daemon| {
        host != "h000" || daemon.name().is_some()
    })?;
    kill(Pid::from_raw(apply.id().cast_signed()), Signal::SIGINT)?;
    let output = apply.wait_with_output()?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && message.contains("no coordinator continues it"), "{message}");
    // Immediately: its key does not outlive it.
    assert_eq!(fixture.run(&["abort"])?.status.code(), Some(3));
    let resumed = fixture.run(&["resume"])?;
    let message = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert!(
        resumed.status.code() == Some(1) && message.contains("cannot pause or resume version 1"),
        "{message}"
    );
    fixture.text(&["abort", "--wait"])?;
    fixture.wait_for_daemons("both hosts are rolled back", |_, daemon| daemon.name().is_none())?;
    Ok(())
}

#[test]
fn silent_canary_rolls_back() -> Result<()> {
    require_installed!("silent_canary_rolls_back", Etcd);
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
        let output =
            fixture.run(&["apply", &fixture.file(WATCHED, "rpg_gd = 12")?, "--wait", "--tick", "100ms"])?;
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && message.contains(words), "{message}");
        assert!(fixture.daemons.iter().skip(1).all(|(_, daemon)| daemon.names().is_empty()));
    }
    Ok(())
}

#[test]
fn apply_of_one_group_keeps_the_others() -> Result<()> {
    require_installed!("apply_of_one_group_keeps_the_others", Etcd);
    let fixture = FleetFixture::new(1, 2)?;
    let path = fixture.file(QUICK, "rpg_gd = 12")?;
    let both = |gd: u32| {
        let group = |name: &str, host: &str| {
            format!(
                "[[group]]\nname = '{name}'\nhosts = ['{host}']\n[[group.interface]]\nname = 'eth*'\n\
                     [group.interface.parameters]\nrpg_gd = {gd}\n"
            )
        };
        std::fs::write(&path, format!("[rollout]\n{QUICK}\n{}{}", group("a", "h000"), group("b", "h001")))
    };
    both(12)?;
    fixture.text(&["apply", &path, "--wait", "--tick", "100ms"])?;
    let before = fixture.daemons["h001"].names();
    both(13)?;
    let output = fixture.run(&["apply", &path, "--group", "none"])?;
    assert!(String::from_utf8_lossy(&output.stderr).contains("the file has no such group"));
    fixture.text(&["apply", &path, "--group", "a", "--wait", "--tick", "100ms"])?;
    let text = |host: &str| fixture.daemons[host].text().unwrap_or_default();
    assert!(text("h000").contains("rpg_gd = 13"), "{}", text("h000"));
    assert!(text("h001").contains("rpg_gd = 12"), "{}", text("h001"));
    assert_eq!(fixture.daemons["h001"].names(), before, "the other group's host got an order");
    Ok(())
}

/// As etcd's error for an unreadable rollout recommends.
#[test]
fn deleted_rollout_ends_its_wait() -> Result<()> {
    require_installed!("deleted_rollout_ends_its_wait", Etcd);
    let fixture = FleetFixture::new(1, 2)?;
    apply(&fixture, QUICK, "rpg_gd = 12")?;
    let file = fixture.file(WATCHED, "rpg_gd = 13")?;
    let mut command =
        fixture.command_under(&["timeout", "60"], &["apply", &file, "--wait", "--tick", "100ms"])?;
    let mut waiting = Running(command.stderr(Stdio::piped()).spawn()?);
    fixture.wait("the rollout is in progress", |status| Ok(status["rollout"]["is_over"] == false))?;
    fixture.etcd.ctl(&["del", "/dcqcn/rollout"])?;
    let mut message = String::new();
    waiting.0.stderr.take().context("no pipe")?.read_to_string(&mut message)?;
    assert!(message.contains("the rollout of version 2 was deleted from etcd"), "{message}");
    assert_eq!(waiting.0.wait()?.code(), Some(1));
    Ok(())
}

#[test]
fn stopped_etcd_is_not_a_rejection() -> Result<()> {
    require_installed!("stopped_etcd_is_not_a_rejection", Etcd);
    let fixture = FleetFixture::new(1, 1)?;
    fixture.etcd.signal(0, Signal::SIGSTOP)?;
    let output = fixture.run(&["status"])?;
    fixture.etcd.signal(0, Signal::SIGCONT)?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && message.contains("cannot reach etcd at"), "{message}");
    Ok(())
}

#[test]
fn unreachable_etcd_reported() -> Result<()> {
    let output = dcqcn_fleet(&["status", "--etcd", "http://127.0.0.1:1"])?.output()?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "cannot reach etcd at http://127.0.0.1:1: no member responds";
    assert!(output.status.code() == Some(1) && message.contains(expected), "{message}");
    Ok(())
}
