//! Queues on a port: shares, depths, drops, live changes, and restoring the previous state.

use dcqcn_common::params::QUEUES_MAJOR;
use dcqcn_loader::backlog;
use dcqcn_params::QueuesChoice;
use dcqcn_tests::prelude::*;
use dcqcn_tests::queues::{CASES, other, port, shares, shares_match, stats};

/// The cases of the kernel's own tests of ets, one after the other on a port that is up.
fn check_shares(test: &str, choice: QueuesChoice) -> Result<()> {
    let Some(pair) = port(test, choice)? else { return Ok(()) };
    for (name, changes, expected) in CASES {
        pair.a.set("a0", changes)?;
        let found = shares(&pair)?;
        eprintln!("{name}: queues 0, 1 and 3 have {found:.3?}");
        assert!(shares_match(choice, found, expected), "{name}: {found:?}, expected {expected:?}");
    }
    Ok(())
}

#[test]
fn ets_shares_follow_weights() -> Result<()> {
    check_shares("ets_shares_follow_weights", QueuesChoice::Ets)
}

#[test]
fn htb_shares_follow_weights() -> Result<()> {
    check_shares("htb_shares_follow_weights", QueuesChoice::Htb)
}

/// Frames go to the queue of their DSCP, frames without one to that of DSCP 0, and the host's own ARP to the first
/// queue.
#[test]
fn every_packet_has_queue() -> Result<()> {
    let Some(pair) = port("every_packet_has_queue", QueuesChoice::Auto)? else { return Ok(()) };
    let config = pair.a.attachment("a0")?.maps.params()?.config;
    let tag = |roce: Roce| Roce { tags: vec![(EtherType::VLAN, 5)], ..roce };
    let first = config.bands().iter().position(|band| *band == 0).context("no queue is served first")?;
    let mut arp = other(10);
    arp[12..14].copy_from_slice(&0x0806_u16.to_be_bytes());
    let v6 = Roce { v6: true, dscp: 10, ..Roce::default() };
    let mut v6_other = v6.frame();
    v6_other[v6.l3() + 42..v6.l3() + 44].copy_from_slice(&5_001_u16.to_be_bytes());
    for (what, frame, queue) in [
        ("RoCE", Roce::default().frame(), 3),
        ("RoCE behind a tag", tag(Roce::default()).frame(), 3),
        ("a CNP", Roce::default().cnp(None, CNP_TOS), 6),
        ("UDP", other(10), 1),
        ("UDP over IPv6", v6_other, 1),
        ("UDP of a DSCP of no class", other(33), 0),
        ("ARP", arp, first),
    ] {
        let before = stats(&pair, &config)?;
        pair.a.socket("a0")?.send(&frame)?;
        let what = format!("{what} does not leave by queue {queue}");
        wait_until(&what, || Ok(stats(&pair, &config)?[queue].packets != before[queue].packets))?;
    }
    Ok(())
}

/// Marking uses the depth of the queue itself, and a full queue drops and counts.
#[test]
fn depth_and_drops_are_per_queue() -> Result<()> {
    let Some(pair) = port("depth_and_drops_are_per_queue", QueuesChoice::Auto)? else { return Ok(()) };
    pair.a.command("tc qdisc change dev a0 root handle 7: tbf rate 200kbit burst 2k limit 1m")?;
    pair.a.set("a0", &["wred.3.queue_limit=20KB", "wred.3.kmin=5KB", "wred.3.kmax=5KB"])?;
    let (socket, index) = (pair.a.socket("a0")?, pair.a.index("a0")?);
    socket.limit_send_buffer(1 << 20)?;
    let mut maps = pair.a.attachment("a0")?.maps;
    let config = maps.params()?.config;
    let frame = Roce::default().frame();
    for _ in 0..60 {
        // The socket gets an error for a drop at its own interface.
        let _ = socket.send(&frame);
    }
    let waiting = stats(&pair, &config)?;
    assert!((15_000..=20_000).contains(&waiting[3].backlog_bytes), "{waiting:?}");
    assert!(waiting[3].drops >= 30 && waiting[0].drops == 0, "{waiting:?}");
    assert!(backlog::feed(&pair.a.netlink()?, index, &mut maps)?, "marking uses the queues' backlog");
    let printed = maps.backlogs()?;
    assert!((10_000..=20_000).contains(&printed[3].bytes) && printed[0].bytes == 0, "{printed:?}");
    // The limit can be raised while packets are queued.
    pair.a.set("a0", &["wred.3.queue_limit=200KB"])?;
    let drops = stats(&pair, &config)?[3].drops;
    socket.send(&frame)?;
    assert_eq!(stats(&pair, &config)?[3].drops, drops);
    Ok(())
}

#[test]
fn previous_qdisc_restored_choice_reported() -> Result<()> {
    let lab = new_lab!("htb", "tbf");
    let shown = || lab.host.command("tc -d qdisc show dev a0");
    for root in [None, Some("tc qdisc add dev a0 root handle 7: tbf rate 20mbit burst 20k limit 1m")] {
        root.map_or(Ok(String::new()), |line| lab.host.command(line))?;
        let before = shown()?;
        let attach =
            "attach a0 --role switch --queues --flows 64 --set link_rate=20mbit --set queue.3.weight=7";
        lab.prints(&format!("{attach} --dry-run"), "dc03:")?;
        assert_eq!(shown()?, before, "a dry run changes nothing");
        let printed = lab.ok(attach)?;
        let kind = if kernel_has_qdisc("ets")? { "ets" } else { "htb" };
        assert_contains(&printed, &format!("queues {kind}"));
        assert!(shown()?.contains(&format!("{kind} dc03:")), "{}", shown()?);
        let status = lab.json("status a0")?;
        let attachment = &status["attachments"][0];
        assert_eq!((&attachment["queues"], &attachment["problems"]), (&kind.into(), &json!([])));
        let report = lab.json("queues a0")?;
        let row = report["queues"].as_array().and_then(|rows| rows.iter().find(|row| row["queue"] == 3));
        let row = row.with_context(|| report.to_string())?;
        assert_eq!((&row["scheduler"], &row["weight"]), (&"dwrr".into(), &7.into()));
        lab.prints("get a0 queue.3.weight queue_source queues", kind)?;
        lab.fails(2, "set a0 queues=none", "queues cannot be set")?;
        lab.fails(1, "set a0 priority_major=1", "names the classes of another qdisc")?;
        // The saved file has all of it.
        let file = lab.path("saved.toml");
        lab.ok(&format!("config show a0 --out {}", file.display()))?;
        lab.prints(&format!("config diff a0 --config {}", file.display()), "matches")?;
        lab.prints("detach a0", "of a0 restored")?;
        assert_eq!(shown()?, before);
        lab.ok(&format!("attach a0 --config {}", file.display()))?;
        assert!(shown()?.contains(&format!("{kind} dc03:")), "{}", shown()?);
        lab.ok("detach a0")?;
        assert_eq!(shown()?, before);
    }
    lab.host.command("tc qdisc replace dev a0 root handle 9: htb")?;
    lab.fails(1, "attach a0 --role switch --queues --flows 64", "already has classes (htb 9:)")?;
    lab.host.command("tc qdisc del dev a0 root")?;
    let host = "attach a0 --queues --pacer htb --flows 64 --set link_rate=1gbit";
    lab.fails(1, host, "both replace the root qdisc")
}

#[test]
fn removed_queues_reported() -> Result<()> {
    let lab = new_lab!("htb");
    lab.ok("attach a0 --role switch --queues=htb --flows 64 --set link_rate=20mbit")?;
    lab.host.command("tc qdisc del dev a0 root")?;
    lab.prints("status a0", "queues: expected htb dc03: at root")?;
    // Parameters without a queue change all the same.
    lab.ok("set a0 queue.3.weight=9")?;
    assert_eq!(lab.json("queues a0")?["queues"], json!([]));
    lab.ok("detach a0")?;
    let index = lab.host.index("a0")?;
    let is_ours = |qdisc: &dcqcn_netlink::tc::Qdisc| qdisc.handle == Handle::new(QUEUES_MAJOR, 0);
    assert!(!lab.host.netlink()?.qdiscs(index)?.iter().any(is_ours));
    Ok(())
}
