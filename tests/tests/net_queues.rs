//! Queues on a port: shares, depths, drops, live changes, and what was there before comes back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Config, QUEUES_MAJOR};
use dcqcn_control::backlog;
use dcqcn_netlink::tc::{Handle, Stats, kernel_has_qdisc};
use dcqcn_params::{QueuesChoice, Role};
use dcqcn_plane::queues;
use dcqcn_tests::host::{Pair, request};
use dcqcn_tests::lab::{Lab, says};
use dcqcn_tests::packets::{CNP_TOS, Roce};
use dcqcn_tests::skip::runnable;
use dcqcn_tests::socket::PATIENCE;

/// DSCP 26 goes to queue 3 and DSCP 0 to queue 0 as they always do; here DSCP 10 goes to queue 1.
const MAPS: [&str; 2] = ["dscp_to_tc.10=1", "tc_to_queue.1=1"];
/// The port, and so many bytes that all queues together are to have sent before shares are reckoned.
const RATE: &str = "20mbit";
const ENOUGH_BYTES: u64 = 4_000_000;
/// Senders to each queue: what they have in it together lasts while a busy machine lets none of them run.
const SENDERS: usize = 6;

/// A frame that is not RoCE, of a DSCP.
fn other(dscp: u8) -> Vec<u8> {
    let roce = Roce { dscp, ..Roce::default() };
    let (mut frame, port) = (roce.frame(), roce.l3() + 22);
    frame[port..port + 2].copy_from_slice(&5_001_u16.to_be_bytes());
    frame
}

fn stats(pair: &Pair, config: &Config) -> Result<[Stats; CLASSES]> {
    let index = pair.a.index("a0")?;
    Ok(queues::stats(&pair.a.netlink()?, index, config)?.map(Option::unwrap_or_default))
}

/// Host 1 behind a token bucket, with queues; `None` if the kernel lacks what that takes.
fn port(test: &str, choice: QueuesChoice) -> Result<Option<Pair>> {
    let kind = if choice == QueuesChoice::Ets { "ets" } else { "htb" };
    if !runnable(test, &["tbf", kind])? {
        return Ok(None);
    }
    let pair = Pair::with_mtu(test, 1_500)?;
    pair.a.command(&format!("tc qdisc add dev a0 root handle 7: tbf rate {RATE} burst 64k limit 1m"))?;
    let mut request = request("a0", Role::Switch, &MAPS)?;
    request.settings.queues = Some(choice);
    let info = pair.a.attach_as(&request)?;
    assert_eq!(info.queues, kind);
    Ok(Some(pair))
}

/// What part of the port each of the queues 0, 1 and 3 gets while all of them always have something to send.
fn shares(pair: &Pair, kind: &str) -> Result<[f64; 3]> {
    let config = pair.a.attachment("a0")?.maps.params()?.config;
    let stop = AtomicBool::new(false);
    let frames = [other(0), other(10), Roce::default().frame()];
    let mut senders = Vec::new();
    for frame in frames.iter().cycle().take(SENDERS * frames.len()) {
        senders.push((pair.a.socket("a0")?, frame));
    }
    let counted = thread::scope(|scope| {
        for (socket, frame) in &senders {
            let stop = &stop;
            // The send buffer is full before the queue is, and the sender waits: nothing is dropped.
            scope.spawn(move || while !stop.load(Ordering::Relaxed) && socket.send(frame).is_ok() {});
        }
        let counted = count(pair, &config);
        stop.store(true, Ordering::Relaxed);
        counted
    })?;
    let all: u64 = counted.iter().sum();
    let shares = counted.map(|bytes| bytes as f64 / all as f64);
    eprintln!("{kind}: queues 0, 1 and 3 share {shares:.3?} of {all} bytes");
    Ok(shares)
}

/// Bytes that queues 0, 1 and 3 send from the time on at which something waits in each of them.
fn count(pair: &Pair, config: &Config) -> Result<[u64; 3]> {
    let until = Instant::now() + PATIENCE;
    let of = |stats: &[Stats; CLASSES]| [stats[0], stats[1], stats[3]];
    let begun = loop {
        let now = of(&stats(pair, config)?);
        if now.iter().all(|queue| queue.backlog_packets > 20) {
            break now;
        }
        ensure!(Instant::now() < until, "the queues do not fill: {now:?}");
    };
    loop {
        thread::sleep(Duration::from_millis(20));
        let now = of(&stats(pair, config)?);
        ensure!(now.iter().all(|queue| queue.drops == 0), "{now:?}");
        let sent = [0, 1, 2].map(|queue| now[queue].bytes - begun[queue].bytes);
        if sent.iter().sum::<u64>() >= ENOUGH_BYTES {
            return Ok(sent);
        }
        ensure!(Instant::now() < until, "the port does not send: {sent:?}");
    }
}

/// The cases of the kernel's own tests of ets, one after the other on a port that is up.
fn the_shares_are_the_weights(test: &str, choice: QueuesChoice) -> Result<()> {
    let Some(pair) = port(test, choice)? else {
        return Ok(());
    };
    let near = |found: [f64; 3], wanted: [f64; 3]| {
        let within = |(found, wanted): (f64, f64)| (found / wanted - 1.0).abs() < 0.05;
        assert!(found.into_iter().zip(wanted).all(within), "{found:?} and not {wanted:?}");
    };
    near(shares(&pair, "3300/3300/3300")?, [1.0 / 3.0; 3]);
    pair.a.set("a0", &["queue.3.weight=50", "queue.1.weight=35", "queue.0.weight=15"])?;
    near(shares(&pair, "5000/3500/1500")?, [0.15, 0.35, 0.50]);
    pair.a.set("a0", &["queue.3.scheduler=strict"])?;
    let [.., strict] = shares(&pair, "queue 3 strict")?;
    assert!(strict > 0.95, "{strict}");
    Ok(())
}

#[test]
fn the_shares_are_the_weights_on_ets() -> Result<()> {
    the_shares_are_the_weights("the_shares_are_the_weights_on_ets", QueuesChoice::Ets)
}

#[test]
fn the_shares_are_the_weights_on_htb() -> Result<()> {
    the_shares_are_the_weights("the_shares_are_the_weights_on_htb", QueuesChoice::Htb)
}

/// A frame of any kind goes to the queue of its DSCP, and one without to that of DSCP 0.
#[test]
fn every_packet_has_a_queue() -> Result<()> {
    let Some(pair) = port("every_packet_has_a_queue", QueuesChoice::Auto)? else {
        return Ok(());
    };
    let config = pair.a.attachment("a0")?.maps.params()?.config;
    let tag = |roce: Roce| Roce { tags: vec![(dcqcn_common::wire::eth::EtherType::VLAN, 5)], ..roce };
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
        ("ARP", arp, 0),
    ] {
        let before = stats(&pair, &config)?;
        pair.a.socket("a0")?.send(&frame)?;
        let until = Instant::now() + PATIENCE;
        while stats(&pair, &config)?[queue].packets == before[queue].packets {
            ensure!(Instant::now() < until, "{what} does not leave by queue {queue}");
        }
    }
    Ok(())
}

/// The depth that marking goes by is the queue's own, and a full queue drops and counts.
#[test]
fn depth_and_drops_are_the_queue_s_own() -> Result<()> {
    let Some(pair) = port("depth_and_drops_are_the_queue_s_own", QueuesChoice::Auto)? else {
        return Ok(());
    };
    pair.a.command("tc qdisc change dev a0 root handle 7: tbf rate 200kbit burst 2k limit 1m")?;
    pair.a.set("a0", &["wred.3.queue_limit=20KB", "wred.3.kmin=5KB", "wred.3.kmax=5KB"])?;
    let (socket, index) = (pair.a.socket("a0")?, pair.a.index("a0")?);
    socket.limit_send_buffer(1 << 20)?;
    let mut maps = pair.a.attachment("a0")?.maps;
    let config = maps.params()?.config;
    let frame = Roce::default().frame();
    for _ in 0..60 {
        // The socket is told of a drop at its own interface.
        let _ = socket.send(&frame);
    }
    let waiting = stats(&pair, &config)?;
    assert!((15_000..=20_000).contains(&waiting[3].backlog_bytes), "{waiting:?}");
    assert!(waiting[3].drops >= 30 && waiting[0].drops == 0, "{waiting:?}");
    assert!(backlog::feed(&pair.a.netlink()?, index, &mut maps)?, "queues go by their backlog");
    let told = maps.backlogs()?;
    assert!((10_000..=20_000).contains(&told[3].bytes) && told[0].bytes == 0, "{told:?}");
    // Room again: the limit is one that can be changed while packets wait.
    pair.a.set("a0", &["wred.3.queue_limit=200KB"])?;
    let drops = stats(&pair, &config)?[3].drops;
    socket.send(&frame)?;
    assert_eq!(stats(&pair, &config)?[3].drops, drops);
    Ok(())
}

#[test]
fn what_was_there_comes_back_and_what_is_chosen_is_told() -> Result<()> {
    if !runnable("what_was_there_comes_back_and_what_is_chosen_is_told", &["htb", "tbf"])? {
        return Ok(());
    }
    let lab = Lab::new("queues")?;
    let shown = || lab.host.command("tc -d qdisc show dev a0");
    for root in [None, Some("tc qdisc add dev a0 root handle 7: tbf rate 20mbit burst 20k limit 1m")] {
        root.map_or(Ok(String::new()), |line| lab.host.command(line))?;
        let before = shown()?;
        let attach =
            "attach a0 --role switch --queues --flows 64 --set link_rate=20mbit --set queue.3.weight=7";
        says(&lab.ok(&format!("{attach} --dry-run"))?, "dc03: at");
        assert_eq!(shown()?, before, "a rehearsal changes nothing");
        let told = lab.ok(attach)?;
        let kind = if kernel_has_qdisc("ets")? { "ets" } else { "htb" };
        says(&told, &format!("queues {kind}"));
        assert!(shown()?.contains(&format!("{kind} dc03:")), "{}", shown()?);
        let status = lab.json("status a0")?;
        let attachment = &status["attachments"][0];
        assert_eq!((&attachment["queues"], &attachment["problems"]), (&kind.into(), &serde_json::json!([])));
        let report = lab.json("queues a0")?;
        let row = report["queues"].as_array().and_then(|rows| rows.iter().find(|row| row["queue"] == 3));
        let row = row.with_context(|| report.to_string())?;
        assert_eq!((&row["scheduler"], &row["weight"]), (&"dwrr".into(), &7.into()));
        says(&lab.ok("get a0 queue.3.weight queue_source queues")?, kind);
        says(&lab.refused(2, "set a0 queues=none")?, "queues cannot be set");
        says(&lab.refused(1, "set a0 priority_major=1")?, "names the classes of another qdisc");
        // The file it is saved to says all of it.
        let file = lab.path("saved.toml");
        lab.ok(&format!("config show a0 --out {}", file.display()))?;
        says(&lab.ok(&format!("config diff a0 --config {}", file.display()))?, "agrees");
        says(&lab.ok("detach a0")?, "of a0 is again");
        assert_eq!(shown()?, before);
        lab.ok(&format!("attach a0 --config {}", file.display()))?;
        assert!(shown()?.contains(&format!("{kind} dc03:")), "{}", shown()?);
        lab.ok("detach a0")?;
        assert_eq!(shown()?, before);
    }
    lab.host.command("tc qdisc replace dev a0 root handle 9: htb")?;
    says(
        &lab.refused(1, "attach a0 --role switch --queues --flows 64")?,
        "has the classes of htb 9: already",
    );
    lab.host.command("tc qdisc del dev a0 root")?;
    let host = "attach a0 --queues --pacer htb --flows 64 --set link_rate=1gbit";
    says(&lab.refused(1, host)?, "want the same place");
    Ok(())
}

#[test]
fn queues_that_somebody_took_away_are_missed() -> Result<()> {
    if !runnable("queues_that_somebody_took_away_are_missed", &["htb"])? {
        return Ok(());
    }
    let lab = Lab::new("taken")?;
    lab.ok("attach a0 --role switch --queues=htb --flows 64 --set link_rate=20mbit")?;
    lab.host.command("tc qdisc del dev a0 root")?;
    let status = lab.ok("status a0")?;
    says(&status, "queues: expected htb dc03: at root");
    // What there is no queue for changes all the same.
    lab.ok("set a0 queue.3.weight=9")?;
    assert_eq!(lab.json("queues a0")?["queues"], serde_json::json!([]));
    lab.ok("detach a0")?;
    let index = lab.host.index("a0")?;
    let is_ours = |qdisc: &dcqcn_netlink::tc::Qdisc| qdisc.handle == Handle::new(QUEUES_MAJOR, 0);
    assert!(!lab.host.netlink()?.qdiscs(index)?.iter().any(is_ours));
    Ok(())
}
