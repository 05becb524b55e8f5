//! Versions, rollouts, operators.

use std::process::Child;

use dcqcn_tests::fleet::{Behaviour, Clock, QUICK, WAIT};
use dcqcn_tests::prelude::*;

/// As fast as metrics allow: agents sample four times a second.
const FAST: &str = "canary = 1\nwave = 3\nmax_unavailable = 3\nsoak = '1500ms'\npatience = '8s'";

fn apply<'a>(file: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["apply", file], &WAIT[..], more].concat()
}

#[test]
fn good_change_completes_bad_rolls_back() -> Result<()> {
    require_installed!(Etcd);
    let mut fixture = FleetFixture::new(1, 5)?;
    let good = fixture.file(FAST, "rpg_gd = 12")?;
    let plan = fixture.text(&["apply", &good, "--dry-run"])?;
    assert!(plan.contains("version 1, first: h000\nversion 1, wave 1: h001, h002, h003\n"), "{plan}");
    assert_contains(&plan, "all: eth* parameters.rpg_gd");
    assert_contains(&fixture.text(&["history"])?, "no version yet");
    let message = fixture.text(&apply(&good, &["--why", "a first try"]))?;
    assert!(message.contains("version 1 is active: 5 hosts changed"), "{message}");
    for daemon in fixture.daemons.values() {
        assert_eq!(daemon.names(), [Some("fleet 1".to_owned())]);
        assert!(daemon.text().is_some_and(|text| text.contains("rpg_gd = 12")));
    }

    // Worse than before, and than unchanged hosts: only the canary was changed.
    let message = fixture.apply_error(FAST, "rpg_gd = 15")?;
    for words in [
        "version 2 was rolled back: h000 has ",
        "marked packets per million",
        "on 4 unchanged hosts ",
        "; limit ",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert_eq!(fixture.daemons["h000"].names().last(), Some(&Some("fleet 1".to_owned())));
    assert!(fixture.daemons.iter().skip(1).all(|(_, daemon)| daemon.names().len() == 1));

    // Rejected by one host's own bounds: all hosts roll back.
    fixture.daemons["h003"].be(Behaviour::Refuses);
    let refused = fixture.apply_error(FAST, "rpg_gd = 13")?;
    assert_contains(&refused, "h003 rejects version 3: this host's own bounds");
    fixture.wait_for_version(1)?;
    fixture.daemons["h003"].be(Behaviour::Good);

    // A host that returns after the rollout, and a new host.
    fixture.kill_agent("h004")?;
    fixture.wait("the host is away", |status| Ok(dcqcn_tests::fleet::reporting_hosts(status) == 4))?;
    let message = fixture.apply(FAST, "rpg_gd = 14")?;
    assert!(message.contains("4 hosts changed, 1 away"), "{message}");
    assert_eq!(fixture.daemons["h004"].name().as_deref(), Some("fleet 1"), "no change without an agent");
    fixture.begin_agent("h004")?;
    fixture.add("h005")?;
    fixture.wait_for_daemons("the returned host has the version", |host, daemon| {
        host == "h005" || daemon.name().as_deref() == Some("fleet 4")
    })?;
    let coordinator = fixture.coordinate()?;
    fixture.wait_for_version(4)?;
    drop(coordinator);

    // A change of a host by another client is detected.
    fixture.daemons["h001"].forget();
    fixture.wait_for_version(4)?;

    let history = fixture.text(&["history"])?;
    for words in ["a first try", "done", "rolled back", "h003 rejects version 3"] {
        assert!(history.contains(words), "{words}: {history}");
    }
    let difference = fixture.text(&["diff", "1", "4"])?;
    assert!(difference.contains("all: eth* parameters.rpg_gd  12  14"), "{difference}");
    assert!(fixture.text(&["status"])?.contains("healthy"));
    Ok(())
}

#[test]
fn one_rollout_at_a_time() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 3)?;
    fixture.apply(QUICK, "rpg_gd = 12")?;
    // No coordinator runs yet.
    fixture.text(&["apply", &fixture.file(FAST, "rpg_gd = 13")?])?;
    let second = fixture.expect_error(1, &["apply", &fixture.file(QUICK, "rpg_gd = 14")?])?;
    assert_contains(&second, "the rollout of version 2 by ");
    fixture.text(&["pause"])?;
    let coordinator = fixture.coordinate()?;
    thread::sleep(Duration::from_secs(1));
    assert!(fixture.daemons.values().all(|daemon| daemon.name().as_deref() == Some("fleet 1")));
    fixture.text(&["resume"])?;
    fixture.wait_for_version_on("h000", 2)?;
    fixture.text(&["abort", "--why", "a mistake"])?;
    fixture.wait_for_end()?;
    drop(coordinator);
    fixture.wait_for_version(1)?;
    assert!(fixture.text(&["history"])?.contains(": a mistake"));
    fixture.expect_error(1, &["abort"])?;
    fixture.text(&[&["rollback", "0"], &WAIT[..]].concat())?;
    fixture.wait_for_daemons("each host uses its own file", |_, daemon| daemon.name().is_none()).map(drop)
}

/// Two operators apply the same file in the same millisecond: their versions are equal, and one of them
/// begins a rollout.
#[test]
fn simultaneous_applies_begin_one_rollout() -> Result<()> {
    require_installed!(Etcd, Clock);
    let fixture = FleetFixture::new(1, 3)?;
    let clock = Clock::new()?;
    for (round, gd) in (1_usize..=5).zip([11, 12, 13, 14, 15]) {
        let file = fixture.file(QUICK, &format!("rpg_gd = {gd}"))?;
        clock.set(&format!("2026-01-0{round} 12:00:00"))?;
        let program = [&clock.program()[..], &["timeout", "60"]].concat();
        let spawn = || -> Result<Child> { Ok(fixture.command_under(&program, &apply(&file, &[]))?.spawn()?) };
        let mut both = [spawn()?, spawn()?];
        let codes = [both[0].wait()?.code(), both[1].wait()?.code()];
        // The slower one finds the rollout in progress or over.
        let is_right = codes.contains(&Some(0)) && codes.iter().all(|code| [Some(0), Some(1)].contains(code));
        assert!(is_right, "{codes:?}");
        fixture.wait_for_daemons("every host has the version", |_, daemon| {
            daemon.text().is_some_and(|text| text.contains(&format!("rpg_gd = {gd}")))
        })?;
        // Of two rollouts the second would order again.
        assert!(fixture.daemons.values().all(|daemon| daemon.names().len() == round), "round {round}");
    }
    Ok(())
}

/// Outputs that cannot be written, like those of `2>&1 | head -1` once `head` has exited.
#[test]
fn unwritable_output_does_not_stop_rollout() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 3)?;
    let full = || File::options().write(true).open("/dev/full");
    let quick = "canary = 1\nwave = 1\nmax_unavailable = 1\nsoak = '0s'\npatience = '8s'";
    let file = fixture.file(quick, "rpg_gd = 12")?;
    // The rollout completes, although neither plan nor outcome can be printed.
    let applied = fixture.command(&apply(&file, &[]))?.stdout(full()?).stderr(full()?).status()?;
    assert_eq!(applied.code(), Some(1));
    fixture.wait_for_version(1)?;
    let mut coordinate = fixture.command(&["coordinate", "--tick", "100ms"])?;
    let mut coordinator = Running(coordinate.stderr(full()?).spawn()?);
    let mut serve = fixture.command(&["serve", "--listen", "127.0.0.1:0", "--control", "/nonexistent"])?;
    let mut page = Running(serve.stderr(full()?).spawn()?);
    fixture.text(&["apply", &fixture.file(quick, "rpg_gd = 13")?])?;
    fixture.wait_for_version(2)?;
    assert_eq!((coordinator.0.try_wait()?, page.0.try_wait()?), (None, None));
    Ok(())
}

#[test]
fn rejected_rollback_is_retried() -> Result<()> {
    require_installed!(Etcd);
    let fixture = FleetFixture::new(1, 3)?;
    let rollout = "canary = 1\nwave = 3\nmax_unavailable = 3\nsoak = '5s'\npatience = '4s'";
    let quick = rollout.replace("'5s'", "'0s'");
    fixture.apply(&quick, "rpg_gd = 12")?;
    fixture.text(&["apply", &fixture.file(rollout, "rpg_gd = 13")?])?;
    let coordinator = fixture.coordinate()?;
    let host = &fixture.daemons["h000"];
    fixture.wait_for_version_on("h000", 2)?;
    host.be(Behaviour::Refuses);
    fixture.text(&["abort"])?;
    fixture.wait_for_end()?;
    drop(coordinator);
    let status = fixture.status()?.to_string();
    for words in ["h000 cannot roll back to version 1: this host's own bounds", "still retrying: 1 host"] {
        assert!(status.contains(words), "{words}: {status}");
    }
    // Applying the same file again retries the reverted host, as reverts do not count as a difference.
    let plan = fixture.text(&["apply", &fixture.file(&quick, "rpg_gd = 12")?, "--dry-run"])?;
    assert_eq!(plan, "version 3, first: h000\n");
    host.be(Behaviour::Good);
    fixture.wait_for_version(1)?;
    assert_eq!(host.names(), ["fleet 1", "fleet 2", "fleet 1"].map(|name| Some(name.to_owned())));
    fixture.wait("h000 has version 1 again", |status| Ok(status["hosts"][0]["has"] == 1))?;
    Ok(())
}
