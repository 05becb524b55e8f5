//! Reverts of unconfirmed overrides.

use dcqcn_control_api::{Applied, Apply, Override, Release, Status, Verb};
use dcqcn_tests::prelude::*;

/// Sections that allow every remote change.
fn remote() -> String {
    format!("{CONTROL}[fleet]\nstate = 'DIR/fleet.json'\nallow = ['*']\n")
}

/// An override of `a0`.
fn over(rate: &str, confirm_within_s: u64) -> Verb {
    Verb::Apply(Apply {
        name: "1".into(),
        text: format!(
            "[[interface]]\nname = 'a0'\nrole = 'host'\npacer = 'none'\nflows = 64\n[interface.parameters]\n\
             link_rate = '{rate}'\n"
        ),
        by: String::new(),
        why: String::new(),
        confirm_within_s: Some(confirm_within_s),
        over: None,
    })
}

#[test]
fn failing_interface_blocks_no_other() -> Result<()> {
    let pair = new_pair!();
    pair.also("a1", "b1")?;
    pair.a.set_up("lo", true)?;
    pair.a.dcqcn("attach a1 --role switch", 0)?;
    let file = format!("{HOST}{METRICS}{}", remote());
    let file = file.replace("flows = 1024", "flows = 64");
    let mut daemon = Daemon::serving(&pair.a, &file, "a0")?;
    let client = daemon.client()?;
    // The attachment itself is complete.
    let readiness = scrape(&pair.a, "/readyz")?;
    assert!(readiness.starts_with("HTTP/1.1 503") && readiness.contains("switch"), "{readiness}");
    client.request::<Applied>(over("2gbit", 2))?;
    assert_eq!(pair.a.link_rate_bps("a0")?, 2_000_000_000);
    // Based on the override, so it ends with it.
    pair.a.dcqcn("set a0 rpg_gd=12 --confirm 600s", 0)?;
    let scalars = || Ok(pair.a.attachment("a0")?.maps.params()?.config.scalars);
    wait_value(scalars, |found| (found.link_rate_bps, found.rpg_gd) == (1_000_000_000, 11))?;
    // The override is dropped after its parameters.
    let status = || Ok(client.request::<Status>(Verb::Status {})?);
    wait_value(status, |status| (&status.config, &status.overdue) == (&None, &None))?;
    daemon.write(&file.replace("1gbit", "3gbit"))?;
    daemon.wait_for_log(&["\"reloaded\""])?;
    assert_eq!(pair.a.link_rate_bps("a0")?, 3_000_000_000);
    daemon.end()
}

#[test]
fn failed_revert_reports_its_retry() -> Result<()> {
    let pair = new_pair!();
    let file = format!("{HOST}{}", remote()).replace("flows = 1024", "flows = 64");
    let mut daemon = Daemon::serving(&pair.a, &file, "a0")?;
    let client = daemon.client()?;
    client.request::<Applied>(over("2gbit", 1))?;
    let lock = pair.a.lock()?;
    let status = |is_overdue: bool| {
        let status = || Ok(client.request::<Status>(Verb::Status {})?);
        wait_value(status, |status| status.overdue.is_some() == is_overdue)
    };
    let overdue = status(true)?;
    assert!(overdue.confirm_within_s.is_some_and(|left_s| left_s > 0), "{overdue:?}");
    drop(lock);
    assert_eq!(status(false)?.confirm_within_s, None);
    daemon.end()
}

#[test]
fn override_of_an_empty_file_ends() -> Result<()> {
    let pair = new_pair!();
    let mut daemon = Daemon::start(&pair.a, &remote())?;
    let client = daemon.client()?;
    let is_detached = || {
        let config = || Ok(client.request::<Option<Override>>(Verb::Config {})?);
        wait_value(config, |active| active.is_none() && pair.a.attachment("a0").is_err())
    };
    client.request::<Applied>(over("2gbit", 1))?;
    pair.a.attachment("a0")?;
    is_detached()?;
    client.request::<Applied>(over("2gbit", 600))?;
    client.request::<Applied>(Verb::Release(Release::default()))?;
    is_detached()?;
    // The deadline passes while the daemon is down.
    client.request::<Applied>(over("2gbit", 1))?;
    daemon.kill()?;
    pair.a.attachment("a0")?;
    thread::sleep(Duration::from_secs(1));
    daemon.again(&pair.a)?;
    daemon.client()?;
    is_detached()?;
    daemon.end()
}
