//! CP: which packets a port marks, and that it changes nothing else in them.

use dcqcn_common::layout::{BACKLOG_AGE_NS, CLASSES};
use dcqcn_common::wire::udp::ROCE_V2_PORT;
use dcqcn_common::wire::{icrc, ipv4};
use dcqcn_loader::backlog;
use dcqcn_tests::prelude::*;
use nix::sys::socket::{setsockopt, sockopt};

use crate::fast_cnp::Path;
use crate::{MARKING, fill};

/// The virtual queue of class 3 hardly drains: 125 bytes per millisecond.
const SLOW: &str = "wred.3.drain_rate=1mbit";

#[test]
fn link_rate_taken_from_shaper() -> Result<()> {
    let pair = new_pair!("tbf", "htb");
    let tbf = ["qdisc replace dev a0 root handle 1: tbf rate 200mbit burst 20000 limit 1000000"];
    let htb = [
        "qdisc replace dev a0 root handle 2: htb default 0x10",
        "class replace dev a0 parent 2: classid 2:10 htb rate 40mbit",
    ];
    for (shaper, lines, mbit, limit_bytes) in [("tbf", &tbf[..], 200, 1_000_000), ("htb", &htb, 40, 0)] {
        for line in lines {
            pair.a.command(&format!("tc {line}"))?;
        }
        let rate_bps = mbit * 1_000_000;
        let info = pair.a.attach("a0", Role::Switch, &[])?;
        let note = format!("link rate {mbit}mbit from the {shaper}");
        assert!(info.notes.iter().any(|noted| noted.starts_with(&note)), "{:?}", info.notes);
        assert_eq!(info.programs, ["egress"]);
        let config = pair.a.attachment("a0")?.maps.params()?.config;
        assert_eq!((config.wred[3].queue_limit_bytes, config.wred[5].queue_limit_bytes), (limit_bytes, 0));
        assert_eq!((config.scalars.link_rate_bps, config.drain_rate_bps(3)), (rate_bps, rate_bps));
        assert_eq!(config.scalars.wire_overhead_bytes, 0, "a shaper counts frames without overhead");
        pair.a.detach("a0")?;
        let root = pair.a.netlink()?.root_qdisc(pair.a.index("a0")?)?;
        assert_eq!(root.context("no shaper")?.kind, shaper);
    }
    Ok(())
}

/// The shaper's backlog decides, not the virtual queue.
#[test]
fn real_backlog_decides_marking() -> Result<()> {
    let pair = new_pair!("tbf");
    let (netlink, index) = (pair.a.netlink()?, pair.a.index("a0")?);
    // 125 bytes leave in a millisecond.
    let tbf = QdiscSpec::Tbf { rate_bps: 1_000_000, burst_bytes: 2_000, limit_bytes: 1_000_000 };
    netlink.replace_root(index, Handle::new(1, 0), &tbf)?;
    let source = ["link_rate=10gbit", "queue_source=backlog", "wred.3.kmin=10KB", "wred.3.kmax=10KB"];
    pair.a.attach("a0", Role::Switch, &source)?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let mut maps = pair.a.attachment("a0")?.maps;
    let frame = |psn| Roce { psn, ..Roce::default() };

    assert!(backlog::feed(&netlink, index, &mut maps)?, "queue_source is backlog");
    while_busy(20, || {
        // The sample of the previous attempt has expired.
        thread::sleep(Duration::from_nanos(BACKLOG_AGE_NS));
        for psn in 0..30 {
            a.send(&frame(psn).frame())?;
        }
        // The last sample was of an empty queue or has expired; in either case nothing is marked.
        assert!(backlog::feed(&netlink, index, &mut maps)?);
        a.send(&frame(30).frame())?;
        for psn in 0..30 {
            assert_eq!(b.expect()?, frame(psn).frame());
        }
        // Some 28 KB were queued at that sample, unless the queue had drained before; a sample expires after a while.
        ensure!(b.expect()? == Roce { ecn: Ecn::CE, ..frame(30) }.frame(), "some 28 KB were queued");
        Ok(())
    })?;

    thread::sleep(Duration::from_nanos(BACKLOG_AGE_NS));
    a.send(&frame(31).frame())?;
    assert_eq!(b.expect()?, frame(31).frame(), "the sample has expired");
    assert!(pair.a.count("a0", Hook::Egress, Stat::CpBacklogStale)? > 0);
    pair.a.set("a0", &["queue_source=virtual"])?;
    assert!(!backlog::feed(&netlink, index, &mut maps)?, "queue_source is virtual again");
    Ok(())
}

/// The kernel reads a packet's length before the hook trims it.
#[test]
fn trimmed_packet_charged_at_own_length() -> Result<()> {
    require!("tbf");
    let path = Path::new("cp-trim")?;
    path.bridge()?;
    let (netlink, index) = (path.switch.netlink()?, path.switch.index("r1")?);
    let tbf = QdiscSpec::Tbf { rate_bps: 100_000_000, burst_bytes: 10_000, limit_bytes: 1_000_000 };
    netlink.replace_root(index, Handle::new(1, 0), &tbf)?;
    let trims = [SLOW, "link_rate=1gbit", "wred.3.queue_limit=4KB", "trim_dscp_value=10", "dscp_to_tc.10=5"];
    path.switch.attach("r1", Role::Switch, &trims)?;
    let (s, d) = (path.sender.socket("s0")?, path.receiver.socket("d0")?);
    let mut bytes = 0;
    for psn in 0..20 {
        s.send(&Roce { psn, ..Roce::default() }.frame())?;
        bytes += d.expect()?.len() as u64;
    }
    let count = |stat| path.switch.count("r1", Hook::Egress, stat);
    assert!(count(Stat::CpTrimmed)? > 10);
    assert_eq!((count(Stat::RoceData)?, count(Stat::Trimmed)?), (20, 0), "each is counted once");
    assert_eq!(netlink.root_qdisc(index)?.context("the tbf was replaced")?.stats.bytes, bytes);
    Ok(())
}

/// A forwarded buffer of several packets, which the kernel cuts behind the hook: one mark and one departure for all.
#[test]
fn gso_packet_marked_and_paced_as_a_whole() -> Result<()> {
    const SEGMENTS: u64 = 8;
    require!("htb");
    let path = Path::new("cp-gso")?;
    path.bridge()?;
    let (sender, switch) = (&path.sender, &path.switch);
    switch.command("ethtool -K r1 tx-udp-segmentation off")?;
    let changes = [&["link_rate=1gbit", "cp_enable=on"], &MARKING[..]].concat();
    let mut request = request("r1", Role::Host, &changes)?;
    request.settings.pacer = Some(PacerChoice::Htb);
    switch.attach_as(&request)?;
    let (s, d) = (sender.socket("s0")?, path.receiver.socket("d0")?);
    sender.add_v4("s0", 1, 24)?;
    sender.add_neighbour("s0", 2, false)?;
    let socket = sender.run(|| UdpSocket::bind((Ipv4Addr::from(v4(1)), 0)))??;
    // Without it, the sender answers CNPs with ICMP.
    let _receiver = sender.run(|| UdpSocket::bind((Ipv4Addr::from(v4(1)), ROCE_V2_PORT)))??;
    let data = Roce::default();
    let segment = |psn: u64| Roce { psn: psn as u32, ..data.clone() }.frame().split_off(data.bth());
    let super_packet = (0..SEGMENTS).map(segment).collect::<Vec<_>>().concat();
    let segment_bytes = super_packet.len() as u64 / SEGMENTS;
    setsockopt(&socket, sockopt::Ipv4Tos, &i32::from(data.ecn.apply(data.dscp << 2)))?;
    setsockopt(&socket, sockopt::UdpGsoSegment, &i32::try_from(segment_bytes)?)?;
    // ECN field of each packet that arrives.
    let arrive = || -> Result<Vec<u8>> {
        socket.send_to(&super_packet, (Ipv4Addr::from(v4(2)), ROCE_V2_PORT))?;
        let arrived = d.expect_all(SEGMENTS as usize)?;
        for (psn, frame) in (0..).zip(&arrived) {
            assert_eq!(frame.get(data.bth()..), Some(&segment(psn)[..]));
        }
        Ok(arrived.iter().filter_map(|frame| Some(frame.get(data.l3() + 1)? & Ecn::CE.bits())).collect())
    };
    let count = |stat| switch.count("r1", Hook::Egress, stat);

    assert_eq!(arrive()?, [Ecn::ECT0.bits(); SEGMENTS as usize], "an empty queue marks nothing");
    assert_eq!(switch.flow("r1", &data)?.hot.packets, SEGMENTS);
    fill(&s, &d, &Roce { ecn: Ecn::NOT_ECT, dest_qpn: 0x77, ..data.clone() }.frame())?;
    d.send(&data.cnp(None, CNP_TOS))?;
    assert_eq!(s.expect()?, data.cnp(None, CNP_TOS));
    let before = [Stat::RoceData, Stat::CpEcnMarked, Stat::RpPaced].map(count);
    assert_eq!(arrive()?, [Ecn::CE.bits(); SEGMENTS as usize]);
    for (stat, before) in [Stat::RoceData, Stat::CpEcnMarked, Stat::RpPaced].into_iter().zip(before) {
        assert_eq!(count(stat)? - before?, SEGMENTS, "{}", stat.label());
    }
    assert_eq!(switch.flow("r1", &data)?.hot.packets, 2 * SEGMENTS);
    assert_eq!(count(Stat::GsoPackets)?, 2, "buffers, not packets");
    Ok(())
}

#[test]
fn mark_changes_ecn_and_checksum_only() -> Result<()> {
    let pair = new_pair!();
    let mark_all =
        |tc: usize| ["kmin=0B", "kmax=0B", "drain_rate=100kbit"].map(|set| format!("wred.{tc}.{set}"));
    let changes: Vec<_> = (0..CLASSES).flat_map(mark_all).chain(["link_rate=1gbit".to_owned()]).collect();
    pair.a.attach("a0", Role::Switch, &changes.iter().map(String::as_str).collect::<Vec<_>>())?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    for dscp in [0, 26, 48] {
        let frame = Roce { dscp, ..Roce::default() }.frame();
        a.send(&frame)?;
        assert_eq!(b.expect()?, frame, "an empty queue marks nothing");
        fill(&a, &b, &Roce { dscp, ecn: Ecn::NOT_ECT, ..Roce::default() }.frame())?;
    }
    let mut data: Vec<_> = (0..64).map(|dscp| Roce { dscp, ..Roce::default() }).collect();
    data.extend((0..64).map(|dscp| Roce { dscp, v6: true, ecn: Ecn::ECT1, ..Roce::default() }));
    for tags in [vec![(EtherType::VLAN, 0x6005)], vec![(EtherType::QINQ, 0x6005), (EtherType::VLAN, 7)]] {
        data.extend([false, true].map(|v6| Roce { tags: tags.clone(), v6, ..Roce::default() }));
    }
    // ACKs and READ requests fill queues as data does, and are marked likewise; marked packets are not marked again.
    data.push(Roce { opcode: Opcode::RC_ACKNOWLEDGE, payload: 0, ..Roce::default() });
    data.push(Roce { ecn: Ecn::CE, ..Roce::default() });
    data.push(Roce { payload: 4_096, ..Roce::default() });
    for sent in &data {
        a.send(&sent.frame())?;
        let arrived = b.expect()?;
        assert_eq!(arrived, Roce { ecn: Ecn::CE, ..sent.clone() }.frame(), "{sent:?}");
        // The builder is the reference; but check the important bytes separately.
        let l3 = &arrived[sent.l3()..];
        assert!(icrc::verify(l3));
        if let (false, Some(header)) = (sent.v6, l3.first_chunk()) {
            assert!(ipv4::Ipv4::new(header).checksum_ok());
        }
    }
    assert_eq!(pair.a.count("a0", Hook::Egress, Stat::CpEcnMarked)?, data.len() as u64 - 1);
    Ok(())
}

#[test]
fn full_queue_drops_not_ect_if_enabled() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Switch, &[&["link_rate=1gbit"], &MARKING[..]].concat())?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let not_ect = Roce { ecn: Ecn::NOT_ECT, ..Roce::default() }.frame();
    fill(&a, &b, &not_ect)?;
    pair.a.set("a0", &["drop_not_ect=on"])?;
    // The socket gets an error, as for any drop at its own interface.
    assert!(a.send(&not_ect).is_err());
    let cnp = Roce::default().cnp(None, CNP_TOS);
    a.send(&cnp)?;
    assert_eq!(b.drain()?, [cnp]);
    assert_eq!(pair.a.count("a0", Hook::Egress, Stat::CpNotEctDropped)?, 1);
    // A class that does not mark at all.
    pair.a.set("a0", &["wred.3.ecn=off"])?;
    let frame = Roce::default().frame();
    a.send(&frame)?;
    assert_eq!(b.expect()?, frame);
    Ok(())
}

/// Between the thresholds the share of marked packets is the probability of the paper.
#[test]
fn half_probability_marks_half() -> Result<()> {
    const PACKETS: u32 = 4_000;
    let pair = new_pair!();
    // A buffer of 100 KB that stays full, where the probability reaches Pmax.
    let limit = ["wred.3.queue_limit=100KB", "wred.3.kmin=0B", "wred.3.kmax=100KB", "wred.3.pmax=50%"];
    pair.a.attach("a0", Role::Switch, &[&["link_rate=1gbit", SLOW], &limit[..]].concat())?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let frame = Roce::default().frame();
    for _ in 0..200 {
        a.send(&frame)?;
    }
    b.expect_all(200)?;
    let before = pair.a.count("a0", Hook::Egress, Stat::CpEcnMarked)?;
    let mut arrived = Vec::new();
    // In rounds, so that the kernel's queue for the receiver does not overflow.
    for _ in 0..PACKETS / 100 {
        for _ in 0..100 {
            a.send(&frame)?;
        }
        arrived.extend(b.expect_all(100)?);
    }
    let marked = Roce { ecn: Ecn::CE, ..Roce::default() }.frame();
    let share = arrived.iter().filter(|arrived| **arrived == marked).count();
    assert!(arrived.iter().all(|arrived| *arrived == marked || *arrived == frame));
    assert_eq!(share as u64, pair.a.count("a0", Hook::Egress, Stat::CpEcnMarked)? - before);
    // The queue is at most two frames short of its limit, so p is 0.489 to 0.5. Five standard deviations of a
    // binomial distribution around that are passed once in 10^6 runs.
    let deviation = 5.0 * (0.25 / f64::from(PACKETS)).sqrt();
    let share = share as f64 / f64::from(PACKETS);
    eprintln!("marked {:.1} % where 50 % are expected", 100.0 * share);
    assert!((0.489 - deviation..0.5 + deviation).contains(&share), "{share}");
    Ok(())
}

/// Frames of 8 KB, which TC sees in pages.
#[test]
fn jumbo_frames_are_marked_answered_and_counted() -> Result<()> {
    require!();
    let pair = Pair::with_mtu("jumbo", 9_000)?;
    let marking = [&["link_rate=1gbit", "cp_enable=on"], &MARKING[..]].concat();
    pair.a.attach("a0", Role::Host, &marking)?;
    pair.b.attach("b0", Role::Host, &["link_rate=1gbit"])?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let first = Roce { payload: 8_192, ..Roce::default() };
    a.send(&first.frame())?;
    assert_eq!(b.expect()?, first.frame(), "an empty queue marks nothing");
    fill(&a, &b, &Roce { ecn: Ecn::NOT_ECT, ..Roce::default() }.frame())?;
    let mut dest_qpn = 0x20;
    for v6 in [false, true] {
        for tags in [vec![], vec![(EtherType::VLAN, 0xc005)]] {
            dest_qpn += 1;
            let data = Roce { v6, tags, dest_qpn, ..first.clone() };
            a.send(&data.frame())?;
            assert_eq!(b.expect()?, Roce { ecn: Ecn::CE, ..data.clone() }.frame(), "{data:?}");
            assert_eq!(a.expect()?, data.cnp(None, CNP_TOS), "{data:?}");
        }
    }
    assert_eq!(pair.b.count("b0", Hook::Ingress, Stat::RoceData)?, 5 + 45);
    assert_eq!(pair.b.count("b0", Hook::Ingress, Stat::NpEcnMarked)?, 4);
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::RpCnpHandled)?, 4);
    Ok(())
}
