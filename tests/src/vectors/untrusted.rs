//! Packets of untrusted senders: forged ends and takeovers of connections, and unwanted CNPs.

use super::endpoints::management;
use super::parts::{ANSWERS, CNP_TOS, LEARNS, MARKS, START_US, THRESHOLDS, named, short, step, vector};
use super::{Step, Vector};
use crate::packets::{Dreq, Req};
use crate::prelude::*;

/// Only the peer of a connection can end it; the sender of the reply to a request is the peer.
pub(super) fn connections() -> Vector {
    let mut steps = Vec::new();
    let mut now_us = START_US;
    let (client, server, unrelated) = (1, 2, 3);
    for v6 in [false, true] {
        let (asks, replies, forges) = (0x0100_0001, 0x0200_0002, 0x0300_0003);
        let (asking_qpn, replying_qpn, forged_qpn) = (0x31_u32, 0x71_u32, 0x91_u32);
        let mut add = |about: &str, hook: &str, packet: &[u8]| {
            now_us += 100;
            steps.push(named(about, step(hook, now_us, packet)));
        };
        // A marked packet for the client: its CNP names the known sender.
        let marked =
            Roce { v6, src: server, dst: client, dest_qpn: asking_qpn, ecn: Ecn::CE, ..short() }.frame();
        let req = Req { service_id: 0x0000_0001_0106_4853, starting_psn: 5, ..req(asks, asking_qpn) };
        let comm_ids = |local, remote| CommIds { local, remote };
        let rep = Rep { comm_ids: comm_ids(replies, asks), local_qpn: replying_qpn, starting_psn: 6 };
        add("REQ", "egress", &management(v6, client, server, CmMessage::Req(req)));
        add("REP", "ingress", &management(v6, server, client, CmMessage::Rep(rep)));
        add("known", "ingress", &marked);
        let dreq = CmMessage::Dreq(Dreq { comm_ids: comm_ids(forges, asks), remote_qpn: asking_qpn });
        add("DREQ from an unknown sender", "ingress", &management(v6, unrelated, client, dreq));
        add("still known", "ingress", &marked);
        let drep = CmMessage::Drep(comm_ids(forges, asks));
        add("DREP from an unknown sender", "ingress", &management(v6, unrelated, client, drep));
        let rej = CmMessage::Rej { comm_ids: comm_ids(forges, asks), message: 1, reason: 28 };
        add("REJ from an unknown sender", "ingress", &management(v6, unrelated, client, rej));
        add("still known", "ingress", &marked);
        let rep = CmMessage::Rep(Rep { comm_ids: comm_ids(forges, asks), local_qpn: forged_qpn, ..rep });
        add("REP from an unknown sender", "ingress", &management(v6, unrelated, client, rep));
        add("the unknown sender is learned", "ingress", &marked);
        let dreq = |qpn| CmMessage::Dreq(Dreq { comm_ids: comm_ids(replies, asks), remote_qpn: qpn });
        add("DREQ from the previous peer", "ingress", &management(v6, server, client, dreq(asking_qpn)));
        add("the unknown sender is still known", "ingress", &marked);
        add("DREQ from the unknown sender", "ingress", &management(v6, unrelated, client, dreq(asking_qpn)));
        add("no pair is known", "ingress", &marked);
        // The server's QP is still paired with the client's.
        let to_server = Roce { v6, dest_qpn: replying_qpn, ecn: Ecn::CE, ..short() }.frame();
        add("the other half is known", "ingress", &to_server);
        add("DREQ from the client", "egress", &management(v6, client, server, dreq(replying_qpn)));
        add("no pair is known", "ingress", &to_server);
        // A datagram names its peer; no message ends that pair.
        let (opcode, source_qpn, dest_qpn) = (Opcode::UD_SEND_ONLY, asking_qpn, replying_qpn);
        let datagram = Roce { v6, opcode, source_qpn, dest_qpn, ..short() };
        add("datagram", "egress", &datagram.frame());
        add("learned from the datagram", "ingress", &marked);
        add("DREQ of a datagram's QP", "ingress", &management(v6, server, client, dreq(asking_qpn)));
        add("still known", "ingress", &marked);
        add("datagram to another", "egress", &Roce { dest_qpn: forged_qpn, ..datagram }.frame());
        add("the first pair is kept", "ingress", &marked);
    }
    vector("Connection management from unknown senders.", LEARNS, steps)
}

/// More marks than a port may answer.
pub(super) fn cnp_rate() -> Vector {
    let mut steps = Vec::new();
    let mut now_us = START_US;
    for (n, gap_us) in
        [0, 1, 1, 1, 1, 1_900, 90, 3, 1, 2_000, 1, 2_500, 100_000, 0, 0, 1, 2, 4_000].into_iter().enumerate()
    {
        now_us += gap_us;
        for (about, dest_qpn, ecn) in
            [("one flow", 7, Ecn::CE), ("another", 8 + n as u32 % 3, Ecn::CE), ("not marked", 7, Ecn::ECT0)]
        {
            let roce = Roce { v6: n % 2 == 1, dest_qpn, ecn, ..short() };
            steps.push(named(about, step("ingress", now_us, &roce.frame())));
        }
    }
    // A burst of two, then one every 5 ms.
    vector("A bound on the CNPs of a port.", &format!("{ANSWERS} cnp_rate=200"), steps)
}

/// A packet to and from group addresses, and to a host.
fn multicast_frames(roce: &Roce) -> Vec<(&'static str, Vec<u8>)> {
    let mut frames = Vec::new();
    for (about, at, value) in [
        ("to a group's MAC address", 0, 0x33),
        ("to all", 0, 0xff),
        ("from a group's MAC address", 6, 0x03),
        ("to a host", 0, 0x02),
    ] {
        let mut frame = roce.frame();
        frame[at] = value;
        frames.push((about, frame));
    }
    let (l3, len) = (roce.l3(), if roce.v6 { 16 } else { 4 });
    let (src, dst) = if roce.v6 { (l3 + 8, l3 + 24) } else { (l3 + 12, l3 + 16) };
    let group = if roce.v6 { [0xff, 0x02] } else { [239, 1] };
    let loopback = if roce.v6 { [0, 0] } else { [127, 0] };
    for (about, at, first, last) in [
        ("to a group's IP address", dst, group, 1),
        ("from a group's IP address", src, group, 1),
        ("from the loopback address", src, loopback, 1),
        ("to the unspecified address", dst, [0, 0], 0),
    ] {
        let mut frame = roce.frame();
        frame[at..at + len].fill(0);
        frame[at..at + 2].copy_from_slice(&first);
        frame[at + len - 1] = last;
        frames.push((about, frame));
    }
    frames
}

/// No CNP has a group address as its source.
pub(super) fn cnp_group() -> Vector {
    let mut steps = Vec::new();
    for v6 in [false, true] {
        for tags in [vec![], vec![(EtherType::VLAN, 9)]] {
            for ecn in [Ecn::CE, Ecn::ECT0] {
                let roce = Roce { v6, tags: tags.clone(), ecn, ..short() };
                let frames = multicast_frames(&roce).into_iter();
                steps.extend(frames.map(|(about, frame)| named(about, step("ingress", START_US, &frame))));
            }
        }
    }
    vector("Frames of groups, marked and not.", ANSWERS, steps)
}

/// No CNP of a congestion point has a group address as its source either.
pub(super) fn cnp_fast_group() -> Vector {
    let mut steps = Vec::new();
    for v6 in [false, true] {
        for (about, frame) in multicast_frames(&Roce { v6, ..short() }) {
            let step = named(about, step("egress", START_US, &frame));
            steps.push(Step { depth_packets: 73, is_forwarded: true, ..step });
        }
    }
    let more = "wred.3.pmax=0 fast_cnp=on min_time_between_cnps=50us";
    vector("Frames of groups, marked here.", &format!("{MARKS} {THRESHOLDS} {more}"), steps)
}

/// Tenants of one port have separate flows, CNP intervals and pairs, even with equal addresses and QPNs.
pub(super) fn vlans() -> Vector {
    let mut steps = Vec::new();
    let mut now_us = START_US;
    let mut add = |about: &str, hook: &str, packet: &[u8]| {
        now_us += 1;
        steps.push(named(about, step(hook, now_us, packet)));
    };
    let (vlan, qinq) = (EtherType::VLAN, EtherType::QINQ);
    let tags: [(&str, &[(EtherType, u16)]); 5] = [
        ("no tag", &[]),
        ("VLAN 10", &[(vlan, 10)]),
        ("VLAN 20", &[(vlan, 20)]),
        ("VLAN 10 in 20", &[(qinq, 20), (vlan, 10)]),
        ("a priority tag", &[(vlan, 0x6000)]),
    ];
    for v6 in [false, true] {
        for (about, tags) in tags {
            let roce = Roce { v6, tags: tags.to_vec(), ..short() };
            add(&format!("{about}: sent"), "egress", &roce.frame());
        }
        for (about, tags) in tags {
            let roce = Roce { v6, tags: tags.to_vec(), ..short() };
            add(&format!("{about}: marked"), "ingress", &Roce { ecn: Ecn::CE, ..roce.clone() }.frame());
            let cnp = roce.cnp(None, CNP_TOS);
            add(&format!("{about}: CNP"), "ingress", &cnp);
        }
        let other = Roce { v6, tags: vec![(vlan, 30)], ..short() };
        add("VLAN 30: a CNP that matches several flows", "ingress", &other.cnp(None, CNP_TOS));
        let only = Roce { v6, tags: vec![(vlan, 40)], dest_qpn: 0x77, ..short() };
        add("VLAN 40: sent", "egress", &only.frame());
        let other = Roce { dest_qpn: 0x77, ..other };
        add("VLAN 30: a CNP that matches one flow", "ingress", &other.cnp(None, CNP_TOS));
        let (source_qpn, opcode) = (0x55, Opcode::UD_SEND_ONLY);
        let datagram = Roce { v6, opcode, source_qpn, dest_qpn: 0x99, tags: vec![(vlan, 10)], ..short() };
        add("VLAN 10: datagram", "egress", &datagram.frame());
        let back = Roce { v6, src: 2, dst: 1, dest_qpn: source_qpn, ecn: Ecn::CE, ..short() };
        for (about, id) in [("VLAN 10", 10), ("VLAN 20", 20)] {
            let tags = vec![(vlan, id)];
            add(&format!("{about}: marked"), "ingress", &Roce { tags: tags.clone(), ..back.clone() }.frame());
            let cnp = Roce { tags, ..datagram.clone() }.cnp(Some(source_qpn), CNP_TOS);
            add(&format!("{about}: CNP for the datagram's QP"), "ingress", &cnp);
        }
    }
    let settings = "link_rate=1gbit min_time_between_cnps=50us";
    vector("Equal addresses and QPNs in several VLANs.", settings, steps)
}
