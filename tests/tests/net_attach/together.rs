//! Several interfaces attached concurrently, as the daemon does.

use aya::maps::MapData;
use dcqcn_common::layout::SIBLINGS;
use dcqcn_loader::attach::{Options, attach_all};
use dcqcn_loader::dataplane::SHARED;
use dcqcn_tests::prelude::*;

/// Concurrent commands reuse the maps that another has created.
#[test]
fn parallel_attaches_share_maps() -> Result<()> {
    let lab = new_lab!();
    let names: Vec<String> = (0..6).map(|number| format!("d{number}")).collect();
    for name in &names {
        lab.host.command(&format!("ip link add {name} type veth peer name far-{name}"))?;
        lab.host.command(&format!("ip link set {name} up"))?;
    }
    let request = |name: &String| request(name, Role::Host, &["link_rate=1gbit"]);
    let requests = names.iter().map(request).collect::<Result<Vec<_>>>()?;
    for _ in 0..3 {
        lab.host
            .run(|| attach_all(&requests, Options::default()))??
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        for shared in SHARED {
            let id = |name: &String| -> Result<u32> {
                Ok(MapData::from_pin(lab.host.pins(name)?.join(shared))?.info()?.id())
            };
            let ids = names.iter().map(id).collect::<Result<Vec<_>>>()?;
            ensure!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{shared}: {ids:?}");
        }
        lab.ok("detach --all")?;
    }
    Ok(())
}

/// As at a limit of tasks: no thread can have such a stack.
#[test]
fn attach_without_threads_is_refused() -> Result<()> {
    let lab = new_lab!();
    let line = "attach a0 b0 --pacer none --flows 64 --profile paper --set link_rate=1gbit";
    let refused = lab.host.output(dcqcn_with(line, &[("RUST_MIN_STACK", "1000000000000000000")])?)?;
    let error = String::from_utf8(refused.stderr)?;
    ensure!(refused.status.code() == Some(1) && !error.contains("panicked"), "{}: {error}", refused.status);
    lab.prints("status", "no interface is attached")
}

/// Only a host's program needs an entry of `SIBLINGS`.
#[test]
fn refused_requests_use_no_sibling_slot() -> Result<()> {
    let lab = new_lab!("htb");
    let names: Vec<String> = (0..=SIBLINGS).map(|number| format!("d{number}")).collect();
    for name in &names {
        lab.host.command(&format!("ip link add {name} type veth peer name far-{name}"))?;
    }
    let mut requests = names
        .iter()
        .map(|name| request(name, Role::Host, &["link_rate=1gbit"]))
        .collect::<Result<Vec<_>>>()?;
    for settings in requests.iter_mut().take(SIBLINGS as usize).map(|request| &mut request.settings) {
        (settings.pacer, settings.flows) = (Some(PacerChoice::Htb), Some(40_000));
    }
    requests[0] = request("d0", Role::Switch, &["link_rate=1gbit"])?;
    let mut results = lab.host.run(|| attach_all(&requests, Options::default()))??;
    let notes = results.pop().context("a result")??.notes;
    assert!(!notes.iter().any(|note| note.starts_with("CNPs for flows of")), "{notes:?}");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    lab.ok("detach --all").map(drop)
}

#[test]
fn pattern_attaches_missing_interfaces() -> Result<()> {
    let lab = new_lab!();
    let options = "--pacer none --flows 64 --set link_rate=1gbit";
    lab.ok(&format!("attach a0 {options}"))?;
    lab.prints(&format!("attach [ab]0 {options}"), "attached to b0")?;
    lab.fails(1, &format!("attach [ab]0 {options}"), "no unattached interface matches")?;
    lab.ok("detach b0")?;
    lab.fails(1, &format!("attach b* x* {options}"), "cannot attach x*: it matches no Ethernet interface")?;
    lab.host.command("ip link property add dev b0 altname port7")?;
    lab.prints(&format!("attach port* {options}"), "attached to b0")?;
    lab.ok("detach b0")?;
    // Partial success: a0 was attached already, b0 was not.
    lab.fails(7, &format!("attach a0 b0 {options}"), "already attached")?;
    assert_eq!(lab.host.attached()?.len(), 2);
    lab.fails(1, "detach x*", "the pattern x* matches no attached interface")?;
    lab.ok("detach a* b0")?;
    assert_eq!(lab.host.attached()?.len(), 0);
    Ok(())
}

#[test]
fn slow_link_is_attached_with_profile_lab() -> Result<()> {
    let lab = new_lab!();
    let attach = "attach a0 --profile auto --pacer none --flows 64";
    lab.ok(&format!("{attach} --set link_rate=200mbit"))?;
    assert_eq!(lab.json("status a0")?["attachments"][0]["profile"], "lab");
    // Defaults are chosen only when attaching: a later link_rate changes no other parameter.
    lab.ok("set a0 link_rate=10gbit")?;
    lab.prints("get a0 wred.3.pmax", "22")?;
    lab.ok("detach a0")?;
    lab.ok(&format!("{attach} --set link_rate=10gbit"))?;
    lab.prints("status a0", "paper")?;
    lab.prints("get a0 wred.3.pmax", "1%")?;
    lab.ok("detach a0").map(drop)
}
