//! The rtnetlink layer against the running kernel: topology, shaping, statistics, saving and restoring, in
//! network namespaces of its own.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::ops::Deref;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dcqcn_netlink::link::VethEnd;
use dcqcn_netlink::tc::{
    Batch, Handle, HtbClass, QdiscSpec, SavedQdisc, Shaper, Shaping, Stats, kernel_has_qdisc,
};
use dcqcn_netlink::{Error, Netlink, Netns, netns};
use dcqcn_tests::socket::PATIENCE;

const ROOT: Handle = Handle::new(1, 0);
const NEAR_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
const FAR_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

/// A namespace that is deleted at the end of its test, passed or failed.
struct Owned(Netns);

impl Deref for Owned {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Err(error) = Netns::delete(self.name()) {
            eprintln!("{error}");
        }
    }
}

/// Two namespaces joined by a veth pair, `near0` and `far0`, both up.
struct Pair {
    near: Owned,
    far: Owned,
    near_link: Netlink,
    near_index: u32,
}

impl Pair {
    fn new(test: &str) -> Result<Self> {
        let name = |end| format!("dcqcn-test-{}-{test}-{end}", std::process::id());
        let near = Owned(Netns::create(&name("near"))?);
        let far = Owned(Netns::create(&name("far"))?);
        let near_link = Netlink::connect_in(&near)?;
        near_link.add_veth(
            &VethEnd { name: "near0", netns: None, mac: Some([2, 0, 0, 0, 0, 1]) },
            &VethEnd { name: "far0", netns: Some(&far), mac: Some([2, 0, 0, 0, 0, 2]) },
        )?;
        let far_link = Netlink::connect_in(&far)?;
        let near_index = near_link.link("near0")?.index;
        let far_index = far_link.link("far0")?.index;
        near_link.set_up(near_index, true)?;
        far_link.set_up(far_index, true)?;
        near_link.add_address(near_index, NEAR_ADDRESS, 24)?;
        far_link.add_address(far_index, FAR_ADDRESS, 24)?;
        near_link.add_neighbour(near_index, FAR_ADDRESS, [2, 0, 0, 0, 0, 2])?;
        Ok(Self { near, far, near_link, near_index })
    }

    /// Sends UDP datagrams from `near` to `far`, as fast as the socket takes them.
    fn send(&self, count: usize, payload_bytes: usize) -> Result<()> {
        self.near.run(|| {
            let socket = UdpSocket::bind((NEAR_ADDRESS, 0))?;
            for _ in 0..count {
                socket.send_to(&vec![0; payload_bytes], (FAR_ADDRESS, 9))?;
            }
            Ok(())
        })?
    }

    /// The output of `tc` in `near`.
    fn tc(&self, arguments: &str) -> Result<String> {
        let output = self
            .near
            .run(|| Command::new("tc").args(arguments.split_whitespace()).output())?
            .context("tc")?;
        ensure!(output.status.success(), "tc {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// A class below the root with the same rate and ceiling.
fn class(minor: u16, rate_bps: u64) -> HtbClass {
    HtbClass {
        parent: ROOT,
        handle: Handle::new(1, minor),
        rate_bps,
        ceil_bps: rate_bps,
        burst_bytes: 3000,
        cburst_bytes: 3000,
        quantum_bytes: 1600,
        priority: 0,
    }
}

/// Whether the test can run; says why if not.
fn runnable(test: &str, kinds: &[&str]) -> Result<bool> {
    for kind in ["pfifo"].iter().chain(kinds) {
        let reason = match kernel_has_qdisc(kind) {
            Ok(true) => continue,
            Ok(false) => format!("the kernel has no {kind}"),
            Err(error) if error_kind(&error) == Some(io::ErrorKind::PermissionDenied) => {
                "needs root".to_owned()
            }
            Err(error) => return Err(error.into()),
        };
        eprintln!("SKIPPED {test}: {reason}");
        return Ok(false);
    }
    Ok(true)
}

fn error_kind(error: &Error) -> Option<io::ErrorKind> {
    error.errno().map(|errno| io::Error::from(errno).kind())
}

/// As [`runnable`], for tests that compare with `tc`.
fn runnable_with_tc(test: &str, kinds: &[&str]) -> Result<bool> {
    if Command::new("tc").arg("-Version").output().is_err() {
        eprintln!("SKIPPED {test}: there is no `tc` (iproute2)");
        return Ok(false);
    }
    runnable(test, kinds)
}

#[test]
fn namespaces_are_created_entered_listed_and_deleted() -> Result<()> {
    if !runnable("namespaces_are_created_entered_listed_and_deleted", &[])? {
        return Ok(());
    }
    let prefix = format!("dcqcn-test-{}-names", std::process::id());
    let name = format!("{prefix}-a");
    let netns = Netns::create(&name)?;
    assert!(Netns::create(&name).is_err(), "a taken name is refused");
    assert_eq!(Netns::list(&prefix)?, [name.as_str()]);

    let outside = netns::current_inode()?;
    {
        let _inside = netns.enter()?;
        assert_eq!(netns::current_inode()?, netns.inode()?);
    }
    assert_eq!(netns::current_inode()?, outside, "dropping the guard leaves the namespace");
    assert_eq!(netns.run(netns::current_inode)??, netns.inode()?);
    assert_ne!(netns.inode()?, outside);

    Netns::delete(&name)?;
    assert!(Netns::list(&prefix)?.is_empty());
    assert!(Netns::open(&name).is_err());
    Ok(())
}

#[test]
fn links_are_made_and_described() -> Result<()> {
    if !runnable("links_are_made_and_described", &[])? {
        return Ok(());
    }
    let pair = Pair::new("links")?;
    let netlink = &pair.near_link;
    let near = netlink.link("near0")?;
    assert_eq!(near.kind.as_deref(), Some("veth"));
    assert_eq!(near.mac, Some([2, 0, 0, 0, 0, 1]));
    assert!(near.up && near.is_virtual());
    assert_eq!(near.peer, Some(Netlink::connect_in(&pair.far)?.link("far0")?.index));

    let bridge = netlink.add_bridge("br0")?;
    netlink.set_master(near.index, Some(bridge))?;
    netlink.set_mtu(near.index, 4200)?;
    netlink.set_mac(near.index, [2, 0, 0, 0, 0, 9])?;
    let near = netlink.link_by_index(near.index)?;
    assert_eq!((near.master, near.mtu, near.mac), (Some(bridge), 4200, Some([2, 0, 0, 0, 0, 9])));
    netlink.set_master(near.index, None)?;
    netlink.set_up(near.index, false)?;
    let near = netlink.link_by_index(near.index)?;
    assert!(near.master.is_none() && !near.up);

    let error = netlink.link("naer0").expect_err("no such interface");
    assert!(
        matches!(&error, Error::UnknownInterface { nearest: Some(name), .. } if name == "near0"),
        "{error}"
    );
    let error = netlink.set_mtu(near.index, 1).expect_err("too small an MTU").to_string();
    assert!(error.contains("near0") && error.contains("MTU 1"), "{error}");

    netlink.delete_link(near.index)?;
    let names: Vec<_> = netlink.links()?.into_iter().map(|link| link.name).collect();
    assert_eq!(names, ["lo", "br0"]);
    Ok(())
}

#[test]
fn ipv6_addresses_are_usable_at_once() -> Result<()> {
    if !runnable("ipv6_addresses_are_usable_at_once", &[])? {
        return Ok(());
    }
    let pair = Pair::new("ipv6")?;
    let address: IpAddr = "fd77::1".parse()?;
    match pair.near_link.add_address(pair.near_index, address, 64) {
        Err(error) if error_kind(&error) == Some(io::ErrorKind::Unsupported) => {
            eprintln!("SKIPPED ipv6_addresses_are_usable_at_once: the kernel has no IPv6");
            return Ok(());
        }
        result => result?,
    }
    pair.near_link.add_neighbour(pair.near_index, "fd77::2".parse()?, [2, 0, 0, 0, 0, 2])?;
    pair.near.run(|| UdpSocket::bind((address, 0)))?.context("the address is still tentative")?;
    Ok(())
}

#[test]
fn traffic_shows_in_the_counters_of_its_class() -> Result<()> {
    if !runnable("traffic_shows_in_the_counters_of_its_class", &["htb"])? {
        return Ok(());
    }
    let pair = Pair::new("counters")?;
    let (netlink, ifindex) = (&pair.near_link, pair.near_index);
    netlink.replace_root(ifindex, ROOT, &QdiscSpec::Htb { default_minor: 0x10, direct_qlen: 100 })?;
    netlink.replace_htb_class(ifindex, &class(0x10, 1_000_000_000))?;
    netlink.replace_htb_class(ifindex, &class(0x11, 1_000_000_000))?;
    assert_eq!(netlink.shaping(ifindex)?, None, "two top classes have no single rate");

    let before = netlink.class_stats(ifindex, Handle::new(1, 0x10))?;
    pair.send(50, 1000)?;
    // The shaper may still hold the last of them: its timer runs when the machine finds the time.
    let until = Instant::now() + PATIENCE;
    let mut after = netlink.class_stats(ifindex, Handle::new(1, 0x10))?;
    while after.packets < before.packets + 50 && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
        after = netlink.class_stats(ifindex, Handle::new(1, 0x10))?;
    }
    // Ethernet, IPv4 and UDP headers: 42 bytes. The kernel may add multicast of its own.
    assert!(after.packets >= before.packets + 50, "{after:?}");
    assert!(after.bytes >= before.bytes + 50 * 1042, "{after:?}");
    assert_eq!(netlink.class_stats(ifindex, Handle::new(1, 0x11))?.packets, 0);
    assert_eq!(netlink.classes(ifindex)?.len(), 2);

    netlink.delete_class(ifindex, Handle::new(1, 0x11))?;
    // 3000 bytes at 1 Gb/s, in ticks of 64 ns.
    let shaper = Shaper::Htb { class: Handle::new(1, 0x10) };
    assert_eq!(
        netlink.shaping(ifindex)?,
        Some(Shaping { shaper, rate_bps: 1_000_000_000, burst_ns: 24_000 })
    );
    netlink.replace_htb_class(ifindex, &class(0x10, 50_000_000_000))?;
    let wide = netlink.classes(ifindex)?;
    assert_eq!(wide.first().and_then(|class| class.rate_bps), Some(50_000_000_000), "a rate of 64 bits");
    // Replacing a root by one of the same handle starts afresh.
    netlink.replace_root(ifindex, ROOT, &QdiscSpec::Htb { default_minor: 0, direct_qlen: 100 })?;
    assert!(netlink.classes(ifindex)?.is_empty());
    Ok(())
}

#[test]
fn a_full_buffer_shows_as_backlog_and_drops() -> Result<()> {
    if !runnable("a_full_buffer_shows_as_backlog_and_drops", &["tbf", "htb"])? {
        return Ok(());
    }
    let pair = Pair::new("backlog")?;
    let (netlink, ifindex) = (&pair.near_link, pair.near_index);
    // At the root, 20 kb/s: 40 datagrams take 17 s, the buffer holds less than half of them.
    let tbf = QdiscSpec::Tbf { rate_bps: 20_000, burst_bytes: 2000, limit_bytes: 16_000 };
    netlink.replace_root(ifindex, ROOT, &tbf)?;
    let shaping = Shaping { shaper: Shaper::Tbf, rate_bps: 20_000, burst_ns: 800_000_000 };
    assert_eq!(netlink.shaping(ifindex)?, Some(shaping));
    pair.send(40, 1000)?;
    let stats = netlink.qdisc_stats(ifindex, Handle::ROOT)?;
    assert!(stats.backlog_bytes > 5_000 && stats.backlog_bytes <= 16_000, "{stats:?}");
    assert!(stats.backlog_packets > 5 && stats.drops > 5 && stats.overlimits > 0, "{stats:?}");

    // Under a class, with a buffer of its own.
    netlink.replace_root(ifindex, ROOT, &QdiscSpec::Htb { default_minor: 0x10, direct_qlen: 100 })?;
    netlink.replace_htb_class(ifindex, &class(0x10, 20_000))?;
    let leaf = Handle::new(1, 0x10);
    netlink.replace_qdisc(ifindex, leaf, Handle::new(0x10, 0), &QdiscSpec::Pfifo { limit: 8 })?;
    pair.send(40, 1000)?;
    let stats = netlink.qdisc_stats(ifindex, leaf)?;
    assert!(stats.backlog_packets > 2 && stats.backlog_packets <= 8 && stats.drops > 5, "{stats:?}");
    let error = netlink.qdisc_stats(ifindex, Handle::new(1, 0x77)).expect_err("no such class").to_string();
    assert!(error.contains("near0") && error.contains("1:77"), "{error}");
    Ok(())
}

#[test]
fn a_batch_changes_many_classes_and_names_the_refused() -> Result<()> {
    if !runnable("a_batch_changes_many_classes_and_names_the_refused", &["htb"])? {
        return Ok(());
    }
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
        anyhow::bail!("the unknown classes were not refused");
    };
    let refused: Vec<_> = failed.iter().map(|(handle, _)| *handle).collect();
    assert_eq!((total, refused), (4, vec![Handle::new(1, 0x7777), Handle::new(1, 0x7778)]));
    assert_eq!(netlink.classes(ifindex)?.len(), usize::from(CLASSES) - 1, "the others were made");
    netlink.commit(Batch::new(ifindex))?;
    Ok(())
}

#[test]
fn our_requests_and_those_of_tc_end_in_the_same_configuration() -> Result<()> {
    if !runnable_with_tc("our_requests_and_those_of_tc_end_in_the_same_configuration", &["htb", "tbf"])? {
        return Ok(());
    }
    let pair = Pair::new("golden")?;
    let (netlink, ifindex) = (&pair.near_link, pair.near_index);
    let cases = [
        (
            "tbf rate 100mbit burst 12500 limit 250000",
            QdiscSpec::Tbf { rate_bps: 100_000_000, burst_bytes: 12_500, limit_bytes: 250_000 },
        ),
        (
            "tbf rate 40gbit burst 1000000 limit 2500000",
            QdiscSpec::Tbf { rate_bps: 40_000_000_000, burst_bytes: 1_000_000, limit_bytes: 2_500_000 },
        ),
        ("bfifo limit 4242", QdiscSpec::Bfifo { limit_bytes: 4242 }),
        ("pfifo limit 42", QdiscSpec::Pfifo { limit: 42 }),
    ];
    for (arguments, spec) in cases {
        pair.tc(&format!("qdisc replace dev near0 root handle 1: {arguments}"))?;
        let theirs = netlink.root_qdisc(ifindex)?.context("root")?;
        netlink.delete_root(ifindex)?;
        netlink.replace_root(ifindex, ROOT, &spec)?;
        let ours = netlink.root_qdisc(ifindex)?.context("root")?;
        assert_eq!((ours.kind, ours.handle, ours.options), (theirs.kind, theirs.handle, theirs.options));
        netlink.delete_root(ifindex)?;
    }

    let shown = |pair: &Pair| -> Result<String> {
        Ok(pair.tc("-d qdisc show dev near0")? + &pair.tc("-d class show dev near0")?)
    };
    pair.tc("qdisc add dev near0 root handle 1: htb default 0x10 direct_qlen 77")?;
    pair.tc("class add dev near0 parent 1: classid 1:10 htb rate 1gbit ceil 2gbit \
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
fn the_root_qdisc_comes_back_as_it_was() -> Result<()> {
    if !runnable_with_tc("the_root_qdisc_comes_back_as_it_was", &["htb", "tbf"])? {
        return Ok(());
    }
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
            pair.tc(&format!("qdisc replace dev near0 root {setup}"))?;
        }
        let show = || pair.tc("-j -d qdisc show dev near0");
        let before = show()?;
        let saved = netlink.save_qdisc(ifindex, Handle::ROOT)?;
        assert_eq!(saved.is_default(), setup.is_none());
        assert_eq!(show()?, before, "saving changes nothing");
        // What was saved survives being written down, as it does between two runs of the controller.
        let saved: SavedQdisc = serde_json::from_str(&serde_json::to_string(&saved)?)?;
        netlink.replace_root(ifindex, ROOT, &QdiscSpec::Htb { default_minor: 0x10, direct_qlen: 100 })?;
        netlink.replace_htb_class(ifindex, &class(0x10, 1_000_000_000))?;
        netlink.set_tx_queue_len(ifindex, 5)?;
        netlink.restore_qdisc(ifindex, Handle::ROOT, ("htb", ROOT), &saved)?;
        assert_eq!(show()?, before, "{saved}");
        assert_eq!(netlink.link("near0")?.tx_queue_len, saved.tx_queue_len);
        pair.send(3, 100)?;
        let seen = |stats: Stats| (stats.packets, stats.backlog_packets);
        let sent = seen(netlink.qdisc_stats(ifindex, Handle::ROOT)?);
        netlink.restore_qdisc(ifindex, Handle::ROOT, ("htb", ROOT), &saved)?;
        assert_eq!(show()?, before, "restoring twice is harmless");
        assert_eq!(seen(netlink.qdisc_stats(ifindex, Handle::ROOT)?), sent, "what is there is left running");
        assert!(setup.is_none() || sent.0 >= 3, "{sent:?}");
    }
    Ok(())
}

#[test]
fn what_could_not_come_back_is_refused() -> Result<()> {
    if !runnable_with_tc("what_could_not_come_back_is_refused", &["htb", "tbf"])? {
        return Ok(());
    }
    let pair = Pair::new("refuse")?;
    let (netlink, ifindex) = (&pair.near_link, pair.near_index);
    let refusal = || -> Result<String> {
        let error = netlink.save_qdisc(ifindex, Handle::ROOT).err().context("saved")?;
        ensure!(matches!(error, Error::NotRestorable { .. }), "{error}");
        Ok(error.to_string())
    };

    pair.tc("qdisc add dev near0 root handle 5: htb")?;
    pair.tc("class add dev near0 parent 5: classid 5:1 htb rate 1gbit")?;
    let message = refusal()?;
    assert!(
        ["near0", "htb", "5:", "classes: 1", "--pacer none"].iter().all(|part| message.contains(part)),
        "{message}"
    );

    pair.tc("qdisc replace dev near0 root handle 6: tbf rate 1mbit burst 2000 limit 9000")?;
    pair.tc("qdisc add dev near0 parent 6:1 handle 7: pfifo limit 5")?;
    let message = refusal()?;
    assert!(message.contains("pfifo 7:"), "{message}");

    pair.tc("qdisc replace dev near0 root handle 9: stab overhead 24 linklayer ethernet pfifo limit 5")?;
    let message = refusal()?;
    assert!(message.contains("size table"), "{message}");
    Ok(())
}

#[test]
fn unknown_kinds_are_told_from_known_ones() -> Result<()> {
    if !runnable("unknown_kinds_are_told_from_known_ones", &[])? {
        return Ok(());
    }
    let outside = netns::current_inode()?;
    assert!(!kernel_has_qdisc("nosuchqdisc")?);
    assert!(kernel_has_qdisc("pfifo")?);
    assert_eq!(netns::current_inode()?, outside, "the caller stays where it is");
    Ok(())
}
