//! NP: CE-marked data is answered with CNPs, all other packets are not.

use dcqcn_common::layout::Pair as QpPair;
use dcqcn_common::wire::cnp;
use dcqcn_common::wire::udp::{self, Udp};
use dcqcn_support::clock::monotonic_ns;
use dcqcn_tests::host::datagram;
use dcqcn_tests::prelude::*;
use nix::sys::socket::{setsockopt, sockopt};

/// The maximum CNP interval, so that no test is too slow for it.
const CHANGES: [&str; 2] = ["link_rate=1gbit", "min_time_between_cnps=1s"];

fn ce() -> Roce {
    Roce { ecn: Ecn::CE, ..Roce::default() }
}

/// Makes host 2 answer `data`; panics unless the CNP equals `expected` and the data arrive unchanged.
fn answered(pair: &Pair, data: &Roce, expected: &[u8]) -> Result<()> {
    let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
    let frame = data.frame();
    a.send(&frame)?;
    let cnp = a.expect()?;
    assert_eq!(cnp, expected, "{data:?}");
    assert_eq!(b.expect()?, frame, "{data:?} arrives unchanged");
    Ok(())
}

#[test]
fn congested_host_answers_unmarked_data() -> Result<()> {
    let pair = new_pair!();
    pair.b.attach("b0", Role::Host, &["link_rate=1gbit", "np_host_congestion=on"])?;
    let _endpoint = pair.b.roce_socket("b0", 2)?;
    let a = pair.a.socket("a0")?;
    let data = Roce { ecn: Ecn::ECT0, ..Roce::default() };
    a.send(&data.frame())?;
    assert_eq!(a.receive(SILENCE)?, None, "not congested");
    let until_ns = monotonic_ns() + 60_000_000_000;
    pair.b.attachment("b0")?.maps.set_host_congested_until(until_ns)?;
    a.send(&data.frame())?;
    assert_eq!(a.expect()?, data.cnp(None, CNP_TOS));
    pair.b.attachment("b0")?.maps.set_host_congested_until(monotonic_ns())?;
    a.send(&data.frame())?;
    assert_eq!(a.receive(SILENCE)?, None, "expired");
    Ok(())
}

/// A user-space sender on a veth leaves its UDP checksum to the NIC, and so does the CNP made of its packet.
#[test]
fn cnp_of_user_space_data_has_valid_checksum() -> Result<()> {
    let pair = new_pair!();
    pair.b.attach("b0", Role::Host, &CHANGES)?;
    let (socket, _endpoint) = (pair.a.roce_socket("a0", 1)?, pair.b.roce_socket("b0", 2)?);
    setsockopt(&socket, sockopt::Ipv4Tos, &i32::from(Ecn::CE.apply(0)))?;
    // The checksum is completed before the packet leaves.
    pair.b.command("ethtool -K b0 tx off")?;
    let data = ce();
    socket.send_to(&data.frame()[data.bth()..], (Ipv4Addr::from(v4(2)), udp::ROCE_V2_PORT))?;
    let mut cnp = [0; 64];
    // The stack discards it if the checksum is wrong.
    let length = socket.recv(&mut cnp)?;
    assert_eq!((length, cnp[0]), (cnp::UDP_LEN - Udp::LEN, Opcode::CNP.0));
    Ok(())
}

#[test]
fn one_cnp_per_interval() -> Result<()> {
    let pair = new_pair!();
    pair.b.attach("b0", Role::Host, &CHANGES)?;
    let endpoint = pair.b.roce_socket("b0", 2)?;
    let data = ce();
    answered(&pair, &data, &data.cnp(None, CNP_TOS))?;
    assert_eq!(datagram(&endpoint)?, data.frame()[data.bth()..], "the receiver's socket gets the data");

    let a = pair.a.socket("a0")?;
    a.send(&Roce { psn: 8, ..data.clone() }.frame())?;
    assert_eq!(a.receive(SILENCE)?, None, "a second CNP within the interval");
    // Another QP has a separate interval.
    let other = Roce { dest_qpn: 0x12, ..data.clone() };
    a.send(&other.frame())?;
    assert_eq!(a.expect()?, other.cnp(None, CNP_TOS));
    thread::sleep(Duration::from_millis(1_100));
    a.send(&Roce { psn: 9, ..data.clone() }.frame())?;
    assert_eq!(a.expect()?, data.cnp(None, CNP_TOS));

    for (hook, stat, expected) in [
        (Hook::Ingress, Stat::NpEcnMarked, 4),
        (Hook::Ingress, Stat::NpCnpSuppressed, 1),
        (Hook::Egress, Stat::NpCnpSent, 3),
        (Hook::Egress, Stat::NpCnpHinted, 3),
        (Hook::Egress, Stat::NpCnpFailed, 0),
        // The clone is a CNP, and not counted as data that left.
        (Hook::Egress, Stat::RoceData, 0),
    ] {
        assert_eq!(pair.b.count("b0", hook, stat)?, expected, "{hook:?} {}", stat.label());
    }
    Ok(())
}

/// The kernel reads a packet's length before the hook replaces it.
#[test]
fn cnp_charged_at_own_length() -> Result<()> {
    let pair = new_pair!("tbf");
    let (netlink, index) = (pair.b.netlink()?, pair.b.index("b0")?);
    // It drops packets above the burst.
    let tbf = QdiscSpec::Tbf { rate_bps: 5_000_000, burst_bytes: 2_000, limit_bytes: 1_000_000 };
    netlink.replace_root(index, Handle::new(1, 0), &tbf)?;
    pair.b.attach("b0", Role::Host, &CHANGES)?;
    for (dest_qpn, payload) in [(0x61, 1_024), (0x62, 4_096)] {
        let data = Roce { dest_qpn, payload, ..ce() };
        answered(&pair, &data, &data.cnp(None, CNP_TOS))?;
    }
    let stats = netlink.root_qdisc(index)?.context("the tbf was replaced")?.stats;
    assert_eq!(stats.bytes, 2 * ce().cnp(None, CNP_TOS).len() as u64);
    let count = |stat| pair.b.count("b0", Hook::Egress, stat);
    assert_eq!((count(Stat::NpCnpSent)?, count(Stat::RoceCnp)?), (2, 0));
    Ok(())
}

/// A clone that no egress program turns into a CNP is a copy of the data packet, with the sender's MAC address.
#[test]
fn clones_stop_if_egress_does_not_see_them() -> Result<()> {
    let pair = new_pair!();
    pair.b.attach("b0", Role::Host, &CHANGES)?;
    let _endpoint = pair.b.roce_socket("b0", 2)?;
    fs::remove_file(pair.b.pins("b0")?.join("egress"))?;
    let a = pair.a.socket("a0")?;
    for dest_qpn in 2..=21 {
        a.send(&Roce { dest_qpn, ..ce() }.frame())?;
    }
    assert_eq!(a.drain()?.len(), 1);
    let count = |stat| pair.b.count("b0", Hook::Ingress, stat);
    assert_eq!((count(Stat::NpCloneUnseen)?, count(Stat::NpCnpLimited)?), (1, 19));
    Ok(())
}

/// The receiver's daemon has entered the pair of its kernel's QP; the sender has no daemon.
#[test]
fn cnp_of_kernel_pair_handled_without_daemon() -> Result<()> {
    let pair = new_pair!();
    pair.a.attach("a0", Role::Host, &CHANGES)?;
    pair.b.attach("b0", Role::Host, &CHANGES)?;
    let data = ce();
    let receiver = QpId { addr: mapped(v4(2)), qpn: data.dest_qpn, vlan: 0 };
    pair.b.attachment("b0")?.maps.set_pair(&receiver, &QpPair::new(0x22, PairSource::Rdma))?;
    let a = pair.a.socket("a0")?;
    a.send(&data.frame())?;
    let cnp = a.expect()?;
    let dest_qpn_at = data.bth() + 5;
    assert_eq!(cnp[dest_qpn_at..dest_qpn_at + 3], [0, 0, 0x22], "a NIC finds its QP");
    assert_eq!(pair.a.count("a0", Hook::Ingress, Stat::RpCnpHandled)?, 1);
    assert_eq!(pair.b.count("b0", Hook::Egress, Stat::NpCnpHinted)?, 0);
    Ok(())
}

#[test]
fn cnp_keeps_vlan_at_cnp_priority() -> Result<()> {
    let pair = new_pair!();
    pair.b.attach("b0", Role::Host, &CHANGES)?;
    // The kernel removes the outermost tag of a frame before TC; a second one stays in the frame.
    let (vlan, qinq) = (EtherType::VLAN, EtherType::QINQ);
    let cases = [
        (vec![(vlan, 0x6005)], vec![(vlan, 0xc005)]),
        (vec![(qinq, 0x7fff)], vec![(qinq, 0xdfff)]),
        (vec![(qinq, 0x2064), (vlan, 0x0007)], vec![(qinq, 0xc064), (vlan, 0xc007)]),
    ];
    let mut dest_qpn = 0x70;
    for v6 in [false, true] {
        for (tags, answer) in &cases {
            dest_qpn += 1;
            let data = Roce { tags: tags.clone(), v6, dest_qpn, ..ce() };
            let cnp = Roce { tags: answer.clone(), ..data.clone() }.cnp(None, CNP_TOS);
            answered(&pair, &data, &cnp)?;
        }
    }
    Ok(())
}

#[test]
fn vlan_device_or_parent_answers() -> Result<()> {
    let pair = new_pair!();
    let made = pair.b.command("ip link add link b0 name b0.5 type vlan id 5 egress-qos-map 0:3");
    let is_unknown = |error: &anyhow::Error| error.to_string().contains("Unknown device type");
    require_that!(!made.as_ref().is_err_and(is_unknown), "the kernel has no VLAN interfaces");
    made?;
    let sub = pair.b.index("b0.5")?;
    pair.b.netlink()?.set_up(sub, true)?;
    let tags = |tci| vec![(EtherType::VLAN, tci)];
    let data = Roce { tags: tags(0x6005), ..ce() };
    let untagged = Roce { tags: Vec::new(), ..data.clone() }.frame();

    // At the parent: the CNP has the frame's tag with another priority.
    pair.b.attach("b0", Role::Host, &CHANGES)?;
    let inside = pair.b.socket("b0.5")?;
    answered(&pair, &data, &Roce { tags: tags(0xc005), ..data.clone() }.cnp(None, CNP_TOS))?;
    assert_eq!(inside.expect()?, untagged);
    pair.b.detach("b0")?;

    // At the VLAN interface: frames have no tag, and the interface adds one with the priority of its map.
    pair.b.attach("b0.5", Role::Host, &CHANGES)?;
    answered(&pair, &data, &Roce { tags: tags(0x6005), ..data.clone() }.cnp(None, CNP_TOS))?;
    assert_eq!(inside.expect()?, untagged);
    assert_eq!(pair.b.count("b0.5", Hook::Egress, Stat::NpCnpSent)?, 1);
    Ok(())
}
