//! Qdiscs: counters, batches, and restoring.

use super::*;

#[test]
fn traffic_counted_in_its_class() -> Result<()> {
    require!("htb");
    let pair = Pair::new("counters")?;
    let (netlink, ifindex) = (&pair.near_link, pair.near_index);
    netlink.replace_root(ifindex, ROOT, &QdiscSpec::Htb { default_minor: 0x10, direct_qlen: 100 })?;
    netlink.replace_htb_class(ifindex, &class(0x10, 1_000_000_000))?;
    netlink.replace_htb_class(ifindex, &class(0x11, 1_000_000_000))?;
    assert_eq!(netlink.shaping(ifindex)?, None, "two top classes have no common rate");

    let before = netlink.class_stats(ifindex, Handle::new(1, 0x10))?;
    pair.send(50, 1000)?;
    // The last ones may still be queued in the shaper, whose timer may be late.
    let stats = || Ok(netlink.class_stats(ifindex, Handle::new(1, 0x10))?);
    let after = wait_value(stats, |after| after.packets >= before.packets + 50)?;
    // Ethernet, IPv4 and UDP headers: 42 bytes. The kernel may send multicast packets too.
    assert!(after.bytes >= before.bytes + 50 * 1042, "{after:?}");
    assert_eq!(netlink.class_stats(ifindex, Handle::new(1, 0x11))?.packets, 0);
    assert_eq!(netlink.classes(ifindex)?.len(), 2);

    netlink.delete_class(ifindex, Handle::new(1, 0x11))?;
    // 3000 bytes at 1 Gbit/s, in ticks of 64 ns.
    let shaper = Shaper::Htb { class: Handle::new(1, 0x10) };
    let expected = Shaping { shaper, rate_bps: 1_000_000_000, burst_ns: 24_000, limit_bytes: None };
    assert_eq!(netlink.shaping(ifindex)?, Some(expected));
    netlink.replace_htb_class(ifindex, &class(0x10, 50_000_000_000))?;
    let wide = netlink.classes(ifindex)?;
    assert_eq!(wide.first().and_then(|class| class.rate_bps), Some(50_000_000_000), "a rate of 64 bits");
    // Replacing a root by one with the same handle resets it.
    netlink.replace_root(ifindex, ROOT, &QdiscSpec::Htb { default_minor: 0, direct_qlen: 100 })?;
    assert!(netlink.classes(ifindex)?.is_empty());
    Ok(())
}

#[test]
fn full_buffer_shows_backlog_and_drops() -> Result<()> {
    require!("tbf", "htb");
    let pair = Pair::new("backlog")?;
    let (netlink, ifindex) = (&pair.near_link, pair.near_index);
    // At the root, 20 kbit/s: 40 datagrams take 17 s, the buffer holds less than half of them.
    let tbf = QdiscSpec::Tbf { rate_bps: 20_000, burst_bytes: 2000, limit_bytes: 16_000 };
    netlink.replace_root(ifindex, ROOT, &tbf)?;
    let of_limit = |limit_bytes| {
        Some(Shaping { shaper: Shaper::Tbf, rate_bps: 20_000, burst_ns: 800_000_000, limit_bytes })
    };
    assert_eq!(netlink.shaping(ifindex)?, of_limit(Some(16_000)));
    pair.send(40, 1000)?;
    let stats = netlink.qdisc_stats(ifindex, Handle::ROOT)?;
    assert!(stats.backlog_bytes > 5_000 && stats.backlog_bytes <= 16_000, "{stats:?}");
    assert!(stats.backlog_packets > 5 && stats.drops > 5 && stats.overlimits > 0, "{stats:?}");

    // Under a class, with a separate buffer.
    netlink.replace_root(ifindex, ROOT, &QdiscSpec::Htb { default_minor: 0x10, direct_qlen: 100 })?;
    netlink.replace_htb_class(ifindex, &class(0x10, 20_000))?;
    let leaf = Handle::new(1, 0x10);
    netlink.replace_qdisc(ifindex, leaf, Handle::new(0x10, 0), &QdiscSpec::Pfifo { limit: 8 })?;
    pair.send(40, 1000)?;
    let stats = netlink.qdisc_stats(ifindex, leaf)?;
    assert!(stats.backlog_packets > 2 && stats.backlog_packets <= 8 && stats.drops > 5, "{stats:?}");
    let error = netlink.qdisc_stats(ifindex, Handle::new(1, 0x77)).expect_err("no such class").to_string();
    assert!(error.contains("a0") && error.contains("1:77"), "{error}");
    Ok(())
}

#[test]
fn batch_error_lists_rejected_classes() -> Result<()> {
    require!("htb");
    const CLASSES: u16 = 300;
    let pair = Pair::new("batch")?;
    let (netlink, ifindex) = (&pair.near_link, pair.near_index);
    netlink.replace_root(ifindex, ROOT, &QdiscSpec::Htb { default_minor: 0, direct_qlen: 100 })?;
    let batch_of = |count: u16, rate_bps: u64| {
        let mut batch = Batch::new(ifindex);
        (1..=count).for_each(|minor| batch.replace_htb_class(&class(minor, rate_bps)));
        batch
    };
    netlink.commit(batch_of(CLASSES, 10_000_000))?;
    assert_eq!(netlink.classes(ifindex)?.len(), usize::from(CLASSES));

    netlink.commit(batch_of(100, 20_000_000))?;
    let changed = netlink.classes(ifindex)?.iter().filter(|class| class.rate_bps > Some(19_000_000)).count();
    assert_eq!(changed, 100);

    let mut batch = Batch::new(ifindex);
    batch.delete_class(Handle::new(1, 0x7777));
    batch.delete_class(Handle::new(1, 1));
    batch.delete_class(Handle::new(1, 0x7778));
    batch.replace_htb_class(&class(2, 1_000_000));
    let Err(Error::Batch { total, failed, .. }) = netlink.commit(batch) else {
        bail!("the unknown classes were not refused");
    };
    let refused: Vec<_> = failed.iter().map(|(handle, _)| *handle).collect();
    assert_eq!((total, refused), (4, vec![Handle::new(1, 0x7777), Handle::new(1, 0x7778)]));
    assert_eq!(netlink.classes(ifindex)?.len(), usize::from(CLASSES) - 1, "the other classes were created");
    netlink.commit(Batch::new(ifindex))?;
    Ok(())
}

/// Another process may replace it after it was read.
#[test]
fn root_with_another_handle_is_not_removed() -> Result<()> {
    require!();
    let pair = Pair::new("handle")?;
    let (netlink, ifindex) = (&pair.near_link, pair.near_index);
    pair.tc("qdisc add dev a0 root handle 9: pfifo limit 42")?;
    let refused = netlink.delete_root(ifindex, ROOT).expect_err("another handle").to_string();
    assert!(refused.contains("delete the root qdisc 1:"), "{refused}");
    assert_eq!(netlink.root_qdisc(ifindex)?.context("root")?.handle, Handle::new(9, 0));
    Ok(netlink.delete_root(ifindex, Handle::new(9, 0))?)
}

#[test]
fn netlink_requests_equal_tc() -> Result<()> {
    require!("htb", "tbf");
    let pair = Pair::new("golden")?;
    let (netlink, ifindex) = (&pair.near_link, pair.near_index);
    let tbf = |rate_bps, burst_bytes, limit_bytes| QdiscSpec::Tbf { rate_bps, burst_bytes, limit_bytes };
    let cases = [
        ("tbf rate 100mbit burst 12500 limit 250000", tbf(100_000_000, 12_500, 250_000)),
        ("tbf rate 40gbit burst 1000000 limit 2500000", tbf(40_000_000_000, 1_000_000, 2_500_000)),
        ("bfifo limit 4242", QdiscSpec::Bfifo { limit_bytes: 4242 }),
        ("pfifo limit 42", QdiscSpec::Pfifo { limit: 42 }),
    ];
    for (arguments, spec) in cases {
        pair.tc(&format!("qdisc replace dev a0 root handle 1: {arguments}"))?;
        let theirs = netlink.root_qdisc(ifindex)?.context("root")?;
        netlink.delete_root(ifindex, ROOT)?;
        netlink.replace_root(ifindex, ROOT, &spec)?;
        let ours = netlink.root_qdisc(ifindex)?.context("root")?;
        assert_eq!((ours.kind, ours.handle, ours.options), (theirs.kind, theirs.handle, theirs.options));
        netlink.delete_root(ifindex, ROOT)?;
    }

    let shown = |pair: &Pair| -> Result<String> {
        Ok(pair.tc("-d qdisc show dev a0")? + &pair.tc("-d class show dev a0")?)
    };
    pair.tc("qdisc add dev a0 root handle 1: htb default 0x10 direct_qlen 77")?;
    pair.tc("class add dev a0 parent 1: classid 1:10 htb rate 1gbit ceil 2gbit \
         burst 125000 cburst 250000 quantum 3000 prio 3")?;
    let theirs = shown(&pair)?;
    netlink.replace_root(ifindex, ROOT, &QdiscSpec::Htb { default_minor: 0x10, direct_qlen: 77 })?;
    netlink.replace_htb_class(
        ifindex,
        &HtbClass {
            ceil_bps: 2_000_000_000,
            burst_bytes: 125_000,
            cburst_bytes: 250_000,
            quantum_bytes: 3000,
            priority: 3,
            ..class(0x10, 1_000_000_000)
        },
    )?;
    assert_eq!(without_counter(&shown(&pair)?), without_counter(&theirs));
    Ok(())
}

/// The words of `tc`'s output but for HTB's count of packets that named no class, which is not configuration.
fn without_counter(shown: &str) -> Vec<&str> {
    let mut words: Vec<&str> = shown.split_whitespace().collect();
    if let Some(at) = words.iter().position(|word| *word == "direct_packets_stat") {
        words.remove(at + 1);
    }
    words
}

#[test]
fn root_qdisc_restored() -> Result<()> {
    require!("htb", "tbf");
    let pair = Pair::new("restore")?;
    let (netlink, ifindex) = (&pair.near_link, pair.near_index);
    let configured = [
        None,
        Some("handle 9: tbf rate 100mbit burst 12500 limit 250000"),
        Some("handle 8002: tbf rate 40gbit burst 1000000 limit 2500000 peakrate 41gbit minburst 3000"),
        Some("handle 9: bfifo limit 4242"),
        Some("handle a: pfifo limit 42"),
    ];
    for setup in configured {
        if let Some(setup) = setup {
            pair.tc(&format!("qdisc replace dev a0 root {setup}"))?;
        }
        let show = || pair.tc("-j -d qdisc show dev a0");
        let before = show()?;
        let saved = netlink.save_qdisc(ifindex, Handle::ROOT)?;
        assert_eq!(saved.is_default(), setup.is_none());
        assert_eq!(show()?, before, "saving changes nothing");
        // The saved state survives serialization, as between two runs of the daemon.
        let saved: SavedQdisc = serde_json::from_str(&serde_json::to_string(&saved)?)?;
        netlink.replace_root(ifindex, ROOT, &QdiscSpec::Htb { default_minor: 0x10, direct_qlen: 100 })?;
        netlink.replace_htb_class(ifindex, &class(0x10, 1_000_000_000))?;
        // A qdisc that another tool configured in the meantime.
        netlink.set_tx_queue_len(ifindex, 5)?;
        netlink.restore_qdisc(ifindex, Handle::ROOT, ("htb", ROOT), &saved)?;
        assert_eq!(show()?, before, "{saved}");
        assert_eq!(netlink.link("a0")?.tx_queue_len, 5);
        netlink.set_tx_queue_len(ifindex, saved.tx_queue_len)?;
        pair.send(3, 100)?;
        let seen = |stats: Stats| (stats.packets, stats.backlog_packets);
        let sent = seen(netlink.qdisc_stats(ifindex, Handle::ROOT)?);
        netlink.restore_qdisc(ifindex, Handle::ROOT, ("htb", ROOT), &saved)?;
        assert_eq!(show()?, before, "restoring twice is harmless");
        assert_eq!(seen(netlink.qdisc_stats(ifindex, Handle::ROOT)?), sent, "the qdisc is replaced");
        assert!(setup.is_none() || sent.0 >= 3, "{sent:?}");
    }
    Ok(())
}

#[test]
fn unrestorable_qdisc_rejected() -> Result<()> {
    require!("htb", "tbf");
    let pair = Pair::new("refuse")?;
    let (netlink, ifindex) = (&pair.near_link, pair.near_index);
    let refusal = || -> Result<String> {
        let error = netlink.save_qdisc(ifindex, Handle::ROOT).err().context("saved")?;
        ensure!(matches!(error, Error::NotRestorable { .. }), "{error}");
        Ok(error.to_string())
    };

    pair.tc("qdisc add dev a0 root handle 5: htb")?;
    pair.tc("class add dev a0 parent 5: classid 5:1 htb rate 1gbit")?;
    let message = refusal()?;
    let parts = ["a0", "htb", "5:", "classes: 1", "--pacer none"];
    assert!(parts.iter().all(|part| message.contains(part)), "{message}");

    pair.tc("qdisc replace dev a0 root handle 6: tbf rate 1mbit burst 2000 limit 9000")?;
    pair.tc("qdisc add dev a0 parent 6:1 handle 7: pfifo limit 5")?;
    let message = refusal()?;
    assert!(message.contains("pfifo 7:"), "{message}");

    pair.tc("qdisc replace dev a0 root handle 9: stab overhead 24 linklayer ethernet pfifo limit 5")?;
    let message = refusal()?;
    assert!(message.contains("size table"), "{message}");
    Ok(())
}

#[test]
fn unknown_qdisc_kinds_distinguished() -> Result<()> {
    require!();
    let outside = netns::current_inode()?;
    assert!(!kernel_has_qdisc("nosuchqdisc")?);
    assert!(kernel_has_qdisc("pfifo")?);
    assert_eq!(netns::current_inode()?, outside, "the caller stays in its namespace");
    Ok(())
}
