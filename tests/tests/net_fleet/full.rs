//! An etcd that is full.

use anyhow::{Result, ensure};
use dcqcn_tests::fleet::{Etcd, FleetFixture};

const QUICK: &str = "canary = 1\nwave = 3\nmax_unavailable = 3\nsoak = '0s'\npatience = '8s'";

#[test]
fn full_etcd_reported_then_resumes() -> Result<()> {
    if !Etcd::available("full_etcd_reported_then_resumes") {
        return Ok(());
    }
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
    fixture.wait_for_daemons("every host has the version", |_, daemon| {
        daemon.name().as_deref() == Some("fleet 2")
    })?;
    Ok(())
}
