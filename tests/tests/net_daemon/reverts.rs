//! Reverts of unconfirmed overrides.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use dcqcn_control_api::{Applied, Apply, ControlClient, Override, Release, Status, Verb};
use dcqcn_tests::command::dcqcn;
use dcqcn_tests::daemon::{Daemon, HOST, get};
use dcqcn_tests::host::{Host, Pair};
use dcqcn_tests::require;
use dcqcn_tests::retry::wait;

/// Sections that allow every remote change.
fn remote(dir: &Path) -> String {
    let dir = dir.display();
    format!("[control]\nsocket = '{dir}/control'\n[fleet]\nstate = '{dir}/fleet.json'\nallow = ['*']\n")
}

fn client(dir: &Path) -> ControlClient {
    ControlClient::new(&dir.join("control"), Duration::from_secs(20))
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

fn is_ready(client: &ControlClient) -> Result<()> {
    wait(|| {
        let status = client.request::<Status>(Verb::Status {});
        Ok(match status {
            Ok(status) if status.is_ready => Ok(()),
            other => Err(format!("{other:?}")),
        })
    })
}

fn run(host: &Host, words: &str) -> Result<()> {
    let mut command = dcqcn(words)?;
    let output = host.run(move || command.output())??;
    anyhow::ensure!(output.status.success(), "{words}: {output:?}");
    Ok(())
}

#[test]
fn failing_interface_blocks_no_other() -> Result<()> {
    require!("failing_interface_blocks_no_other");
    let pair = Pair::new("others")?;
    pair.also("a1", "b1")?;
    pair.a.netlink()?.set_up(pair.a.index("lo")?, true)?;
    run(&pair.a, "attach a1 --role switch")?;
    let dir = tempfile::tempdir()?;
    let file = format!("{HOST}[metrics]\nlisten = '127.0.0.1:9310'\n{}", remote(dir.path()));
    let file = file.replace("flows = 1024", "flows = 64");
    let mut daemon = Daemon::serving(&pair.a, &file, "a0")?;
    let client = client(dir.path());
    is_ready(&client)?;
    // The attachment itself is complete.
    let readiness = get(&pair.a, "127.0.0.1:9310", "/readyz")?;
    assert!(readiness.starts_with("HTTP/1.1 503") && readiness.contains("switch"), "{readiness}");
    client.request::<Applied>(over("2gbit", 2))?;
    assert_eq!(pair.a.link_rate_bps("a0")?, 2_000_000_000);
    // Based on the override, so it ends with it.
    run(&pair.a, "set a0 rpg_gd=12 --confirm 600s")?;
    wait(|| {
        let found = pair.a.attachment("a0")?.maps.params()?.config.scalars;
        let is_reverted = (found.link_rate_bps, found.rpg_gd) == (1_000_000_000, 11);
        Ok(if is_reverted { Ok(()) } else { Err(format!("{found:?}")) })
    })?;
    // The override is dropped after its parameters.
    wait(|| {
        let status: Status = client.request(Verb::Status {})?;
        let is_dropped = (&status.config, &status.overdue) == (&None, &None);
        Ok(if is_dropped { Ok(()) } else { Err(format!("{status:?}")) })
    })?;
    daemon.write(&file.replace("1gbit", "3gbit"))?;
    daemon.wait_for_log(&["\"reloaded\""])?;
    assert_eq!(pair.a.link_rate_bps("a0")?, 3_000_000_000);
    daemon.end()
}

#[test]
fn failed_revert_reports_its_retry() -> Result<()> {
    require!("failed_revert_reports_its_retry");
    let pair = Pair::new("retry")?;
    let dir = tempfile::tempdir()?;
    let file = format!("{HOST}{}", remote(dir.path())).replace("flows = 1024", "flows = 64");
    let mut daemon = Daemon::serving(&pair.a, &file, "a0")?;
    let client = client(dir.path());
    is_ready(&client)?;
    client.request::<Applied>(over("2gbit", 1))?;
    let lock = File::options().append(true).open(pair.a.journals()?.join("lock"))?;
    lock.lock()?;
    let status = |is_overdue: bool| {
        wait(|| {
            let status: Status = client.request(Verb::Status {})?;
            let is_there = status.overdue.is_some() == is_overdue;
            Ok(if is_there { Ok(status) } else { Err(format!("{status:?}")) })
        })
    };
    let overdue = status(true)?;
    assert!(overdue.confirm_within_s.is_some_and(|left_s| left_s > 0), "{overdue:?}");
    drop(lock);
    assert_eq!(status(false)?.confirm_within_s, None);
    daemon.end()
}

#[test]
fn override_of_an_empty_file_ends() -> Result<()> {
    require!("override_of_an_empty_file_ends");
    let pair = Pair::new("empty")?;
    let dir = tempfile::tempdir()?;
    let mut daemon = Daemon::start(&pair.a, &remote(dir.path()))?;
    let client = client(dir.path());
    is_ready(&client)?;
    let is_detached = || {
        wait(|| {
            let active: Option<Override> = client.request(Verb::Config {})?;
            let is_detached = active.is_none() && pair.a.attachment("a0").is_err();
            Ok(if is_detached { Ok(()) } else { Err(format!("{active:?}")) })
        })
    };
    client.request::<Applied>(over("2gbit", 1))?;
    pair.a.attachment("a0")?;
    is_detached()?;
    client.request::<Applied>(over("2gbit", 600))?;
    client.request::<Applied>(Verb::Release(Release::default()))?;
    is_detached()?;
    // The deadline passes while the daemon is down.
    client.request::<Applied>(over("2gbit", 1))?;
    daemon.child.kill()?;
    daemon.child.wait()?;
    pair.a.attachment("a0")?;
    std::thread::sleep(Duration::from_secs(1));
    daemon.again(&pair.a)?;
    is_ready(&client)?;
    is_detached()?;
    daemon.end()
}
