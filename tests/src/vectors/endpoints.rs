//! Endpoints: fast CNPs, and connections that are set up and closed.

use dcqcn_common::classify::QP_GSI;
use dcqcn_common::wire::cm::{Attribute, Mad};
use dcqcn_common::wire::ext::Deth;

use super::parts::{
    ANSWERS, CNP_TOS, LEARNS, MARKS, START_US, THRESHOLDS, named, other, short, step, vector,
};
use super::{Step, Vector};
use crate::packets::{Dreq, Req, seal};
use crate::prelude::*;

/// A switch answers its own marks, unless a host behind the port sent the packet.
pub(super) fn cnp_fast() -> Vector {
    let mut steps = Vec::new();
    let mut pairs = Vec::new();
    let mut dest_qpn = 0x200;
    let mut now_us = START_US;
    let mut add = |about: &str, depth_packets: u64, is_forwarded: bool, roce: &Roce| {
        now_us += 7;
        let step = named(about, step("egress", now_us, &roce.frame()));
        steps.push(Step { depth_packets, is_forwarded, ..step });
    };
    for v6 in [false, true] {
        for tags in [vec![], vec![(EtherType::VLAN, 0x1009)]] {
            dest_qpn += 1;
            let data = Roce { v6, tags, dest_qpn, ..short() };
            add("not marked", 8, true, &data);
            add("marked: the hint", 73, true, &data);
            add("within the interval", 73, true, &data);
            add("another flow", 73, true, &Roce { dest_qpn: dest_qpn + 0x100, ..data.clone() });
            add("sent by the host itself", 73, false, &Roce { dest_qpn: dest_qpn + 0x200, ..data.clone() });
            add("came marked", 73, true, &Roce { ecn: Ecn::CE, dest_qpn: dest_qpn + 0x300, ..data.clone() });
            add("not ECT", 73, true, &Roce { ecn: Ecn::NOT_ECT, dest_qpn: dest_qpn + 0x400, ..data.clone() });
            add("no data", 73, true, &Roce { opcode: Opcode::RC_ACKNOWLEDGE, ..data.clone() });
            let datagram = Roce { opcode: Opcode::UD_SEND_ONLY, dest_qpn: dest_qpn + 0x500, ..data.clone() };
            add("a datagram names its sender", 73, true, &datagram);
            let known = Roce { dest_qpn: dest_qpn + 0x600, ..data.clone() };
            add("sender known", 73, true, &known);
            pairs.push(other(v6, known.dst, known.dest_qpn, 0x00ab_cdef));
        }
    }
    let more = "wred.3.pmax=0 fast_cnp=on min_time_between_cnps=50us cnp_dscp=46";
    let settings = format!("{MARKS} {THRESHOLDS} {more}");
    Vector { pairs, ..vector("A congestion point that answers the packets it marks.", &settings, steps) }
}

/// A mark within a CNP interval is answered after the interval, at the flow's next packet.
pub(super) fn cnp_window() -> Vector {
    let mut steps = Vec::new();
    let mut now_us = START_US;
    for v6 in [false, true] {
        let data = Roce { v6, ..short() };
        let marked = Roce { ecn: Ecn::CE, ..data.clone() };
        let other = Roce { dest_qpn: 0x12, ..data.clone() };
        for (about, gap_us, roce) in [
            ("nothing is pending", 0, &data),
            ("marked", 1, &marked),
            ("nothing is pending within the interval", 1, &data),
            ("nothing is pending after the interval", 60, &data),
            ("marked again", 1, &marked),
            ("within the interval", 10, &marked),
            ("not over", 1, &data),
            ("another flow", 50, &other),
            ("an ACK", 0, &Roce { opcode: Opcode::RC_ACKNOWLEDGE, ..data.clone() }),
            ("over", 0, &data),
            ("once", 1, &data),
            ("within the next interval", 20, &marked),
            ("after the interval, and marked", 40, &marked),
            ("once", 60, &data),
            ("within the interval", 0, &marked),
            ("within the interval", 1, &marked),
            ("long after", 999_999, &data),
            ("within the interval", 10, &marked),
            ("too long after", 1_000_000, &data),
            ("too long after for every packet", 1, &data),
            ("after the interval, and marked", 1, &marked),
        ] {
            now_us += gap_us;
            steps.push(named(about, step("ingress", now_us, &roce.frame())));
        }
        now_us += 3_000_000;
    }
    vector("Marks within the interval of a CNP.", &format!("{ANSWERS} np_window=both"), steps)
}

/// A packet from one general services interface to another.
fn management_packet(payload: usize) -> Roce {
    Roce { opcode: Opcode::UD_SEND_ONLY, dest_qpn: QP_GSI, source_qpn: QP_GSI, payload, ..short() }
}

/// The packet of a connection management message from host `src` to host `dst`.
pub(super) fn management(v6: bool, src: u8, dst: u8, message: CmMessage) -> Vec<u8> {
    let roce = Roce { v6, src, dst, ..management_packet(Mad::LEN) };
    let mut frame = roce.frame();
    let mad = message.datagram(0x1122_3344_5566_7788);
    frame[roce.bth() + Bth::LEN + Deth::LEN..][..Mad::LEN].copy_from_slice(&mad);
    seal(&mut frame, roce.l3());
    frame
}

/// REQ, REP and the end of a connection at every hook that reads them, and the QPs that CNPs name in between.
pub(super) fn connections() -> Vector {
    let mut steps = Vec::new();
    let mut now_us = START_US;
    let (client, server) = (1, 2);
    for (v6, ends) in [(false, Attribute::DREQ), (true, Attribute::DREP), (false, Attribute::REJ)] {
        let (asks, replies) = (0x0100_0001, 0x0200_0002);
        let (asking_qpn, replying_qpn) = (0x31_u32, 0x71_u32);
        let comm_ids = |local, remote| CommIds { local, remote };
        let data = Roce { v6, dest_qpn: replying_qpn, ..short() };
        let mut add = |about: &str, hook: &str, packet: &[u8]| {
            now_us += 100;
            steps.push(named(about, step(hook, now_us, packet)));
        };
        let back = Roce { src: server, dst: client, dest_qpn: asking_qpn, ..data.clone() };
        add("data before the connection", "egress", &data.frame());
        add("marked before the connection", "ingress", &Roce { ecn: Ecn::CE, ..back.clone() }.frame());
        let req = Req { service_id: 0x0000_0001_0106_4853, starting_psn: 5, ..req(asks, asking_qpn) };
        add("REQ", "egress", &management(v6, client, server, CmMessage::Req(req)));
        let mra = CmMessage::Mra { comm_ids: comm_ids(replies, asks), message: 0, service_timeout: 5 };
        add("MRA", "ingress", &management(v6, server, client, mra));
        add("marked before the reply", "ingress", &Roce { ecn: Ecn::CE, ..back.clone() }.frame());
        let rep = Rep { comm_ids: comm_ids(replies, asks), local_qpn: replying_qpn, starting_psn: 6 };
        let unrelated = Rep { comm_ids: comm_ids(replies, asks + 1), ..rep };
        add("REP without a REQ", "ingress", &management(v6, server, client, CmMessage::Rep(unrelated)));
        add("REP", "ingress", &management(v6, server, client, CmMessage::Rep(rep)));
        add("REP again", "ingress", &management(v6, server, client, CmMessage::Rep(rep)));
        let rtu = CmMessage::Rtu(comm_ids(asks, replies));
        add("RTU", "egress", &management(v6, client, server, rtu));
        add("marked: the sender is known", "ingress", &Roce { ecn: Ecn::CE, ..back.clone() }.frame());
        add("data", "egress", &data.frame());
        add("CNP that names the host's QP", "ingress", &data.cnp(Some(asking_qpn), CNP_TOS));
        let mut cut = management(v6, server, client, CmMessage::Rep(rep));
        cut.truncate(cut.len() - 8);
        add("cut short", "ingress", &cut);
        let other = Dreq { comm_ids: comm_ids(replies, asks), remote_qpn: asking_qpn + 1 };
        let short = Roce { v6, src: server, dst: client, ..management_packet(251) };
        add("too short for a message", "ingress", &short.frame());
        add("DREQ for another QP", "ingress", &management(v6, server, client, CmMessage::Dreq(other)));
        add("still known", "ingress", &Roce { ecn: Ecn::CE, ..back.clone() }.frame());
        let (about, hook, message) = match ends {
            Attribute::DREQ => {
                let dreq = Dreq { comm_ids: comm_ids(asks, replies), remote_qpn: replying_qpn };
                ("DREQ", "egress", management(v6, client, server, CmMessage::Dreq(dreq)))
            }
            Attribute::DREP => {
                let drep = CmMessage::Drep(comm_ids(replies, asks));
                ("DREP", "ingress", management(v6, server, client, drep))
            }
            _ => {
                let rej = CmMessage::Rej { comm_ids: comm_ids(asks, replies), message: 1, reason: 28 };
                ("REJ", "egress", management(v6, client, server, rej))
            }
        };
        add(about, hook, &message);
        add("marked after the connection", "ingress", &Roce { ecn: Ecn::CE, ..back.clone() }.frame());
        add("CNP that names an unknown QP", "ingress", &data.cnp(Some(asking_qpn), CNP_TOS));
        // Datagrams name both ends; messages are more trusted.
        let datagram =
            Roce { opcode: Opcode::UD_SEND_ONLY, source_qpn: 0x55, dest_qpn: 0x99, ..data.clone() };
        add("datagram", "egress", &datagram.frame());
        add("CNP that names the datagram's QP", "ingress", &datagram.cnp(Some(0x55), CNP_TOS));
        let req = Req { local_qpn: 0x55, ..req };
        add("REQ of the datagram's QP", "egress", &management(v6, client, server, CmMessage::Req(req)));
        add("REP to it", "ingress", &management(v6, server, client, CmMessage::Rep(rep)));
        add("CNP after it", "ingress", &data.cnp(Some(0x55), CNP_TOS));
        let dreq = Dreq { comm_ids: comm_ids(asks, replies), remote_qpn: replying_qpn };
        add("DREQ of it", "egress", &management(v6, client, server, CmMessage::Dreq(dreq)));
    }
    vector("Pairs learned from connection management.", LEARNS, steps)
}
