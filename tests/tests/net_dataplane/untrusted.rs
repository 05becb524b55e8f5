//! Untrusted packets: those of a process, a forger or a neighbour do not harm a QP.

use dcqcn_common::wire::udp;
use dcqcn_tests::prelude::*;

const CHANGES: [&str; 3] = ["link_rate=1gbit", "rpg_time_reset=0ns", "min_time_between_cnps=1s"];

/// An unprivileged process sends packets like a QP's data. Verified to work: 200 packets were charged to it.
#[test]
fn socket_traffic_not_charged_to_qp() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Host, &CHANGES)?;
    pair.a.add_v4("a0", 1, 24)?;
    pair.b.add_v4("b0", 2, 24)?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let data = Roce::default();
    a.send(&data.frame())?;
    b.send(&data.cnp(None, CNP_TOS))?;
    a.expect()?;
    b.drain()?;
    let before = pair.a.find_flow("a0", &data)?;
    assert!(before.is_some_and(|flow| flow.hot.machine.active != 0), "{before:?}");

    // Everything behind the UDP header is the process's own.
    let frame = data.frame();
    let forged = frame[data.bth()..].to_vec();
    let mut sprayed = forged.clone();
    let socket = pair.a.run(|| UdpSocket::bind((Ipv4Addr::from(v4(1)), 0)))??;
    for qpn in 0..200u32 {
        socket.send_to(&forged, (Ipv4Addr::from(v4(2)), udp::ROCE_V2_PORT))?;
        sprayed[5..8].copy_from_slice(&(0x1000 + qpn).to_be_bytes()[1..]);
        socket.send_to(&sprayed, (Ipv4Addr::from(v4(2)), udp::ROCE_V2_PORT))?;
    }
    assert_eq!(Bth::LEN, 12, "the QPN is at offset 5");
    // Both halves of a forged handshake.
    let request = req(1, 0x11);
    let comm_ids = CommIds { local: 2, remote: 1 };
    for made_up in [
        cm(1, 2, &CmMessage::Req(request)),
        cm(1, 2, &CmMessage::Rep(Rep { comm_ids, local_qpn: 0x23, starting_psn: 1 })),
    ] {
        socket.send_to(&made_up[data.bth()..], (Ipv4Addr::from(v4(2)), udp::ROCE_V2_PORT))?;
    }
    assert_eq!(pair.a.count("a0", Hook::Egress, Stat::CmMessages)?, 0, "no pair is learned from them");
    assert_eq!(pair.a.count("a0", Hook::Egress, Stat::RpFromProcess)?, 402);
    assert_eq!(pair.a.find_flow("a0", &data)?, before, "nothing moved");
    assert_eq!(pair.a.count("a0", Hook::Egress, Stat::RpFlowNew)?, 1, "no flow was inserted");
    // The packets are delivered, as without dcqcn.
    assert!(!b.drain()?.is_empty());
    Ok(())
}

/// Frames for another host, as a promiscuous interface receives them, and for a group.
#[test]
fn other_host_data_not_answered() -> Result<()> {
    let pair = new_pair!();
    pair.b.attach("b0", Role::Host, &CHANGES)?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let ce = |psn| Roce { ecn: Ecn::CE, psn, ..Roce::default() };
    let mut for_another = ce(1).frame();
    for_another[5] ^= 0x77;
    let mut multicast = ce(2).frame();
    multicast[..6].copy_from_slice(&[0x01, 0x00, 0x5e, 1, 1, 1]);
    let mut broadcast = ce(3).frame();
    broadcast[..6].copy_from_slice(&[0xff; 6]);
    for frame in [&for_another, &multicast, &broadcast] {
        a.send(frame)?;
        b.expect()?;
    }
    assert_eq!(a.drain()?, [] as [Vec<u8>; 0], "no CNP is sent");
    assert_eq!(pair.b.count("b0", Hook::Ingress, Stat::NpNotForHost)?, 3);
    // A box in front of the receivers answers for them, but not for a group.
    pair.b.set("b0", &["np_other_host=on"])?;
    for frame in [&multicast, &broadcast, &for_another] {
        a.send(frame)?;
        b.expect()?;
    }
    assert_eq!(a.drain()?.len(), 1);
    assert_eq!(pair.b.count("b0", Hook::Ingress, Stat::NpNotForHost)?, 5);
    Ok(())
}

/// A router: packets that it forwards have its Ethernet address.
#[test]
fn forwarded_data_not_answered() -> Result<()> {
    let pair = new_pair!();
    pair.b.attach("b0", Role::Host, &CHANGES)?;
    for (setting, value) in [
        ("ipv6/conf/b0/disable_ipv6", "0"),
        ("ipv6/conf/b0/forwarding", "1"),
        ("ipv4/conf/b0/forwarding", "1"),
    ] {
        pair.b.run(|| fs::write(format!("/proc/sys/net/{setting}"), value))??;
    }
    pair.b.command("ip address add 10.0.0.2/24 dev b0")?;
    pair.b.command("ip address add fd00::2/64 dev b0 nodad")?;
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let answers = |packet: &Roce| -> Result<usize> {
        a.send(&packet.frame())?;
        b.expect()?;
        let cnp = packet.cnp(None, CNP_TOS);
        Ok(a.drain()?.iter().filter(|frame| frame.len() == cnp.len()).count())
    };
    let own = |dest_qpn, v6| Roce { ecn: Ecn::CE, dest_qpn, v6, ..Roce::default() };
    let other_host = |dest_qpn, v6| Roce { dst: 77, ..own(dest_qpn, v6) };
    for v6 in [false, true] {
        let before = pair.b.count("b0", Hook::Ingress, Stat::NpNotForHost)?;
        assert_eq!(answers(&own(0x31, v6))?, 1, "its own are, IPv6 {v6}");
        assert_eq!(answers(&other_host(0x32, v6))?, 0, "IPv6 {v6}");
        assert_eq!(pair.b.count("b0", Hook::Ingress, Stat::NpNotForHost)?, before + 1);
    }
    // A box in front of the receivers, where that is requested.
    pair.b.set("b0", &["np_other_host=on"])?;
    assert_eq!(answers(&other_host(0x33, false))?, 1);
    Ok(())
}
