//! Trimmed packets and stale ACKs at their receiver.

use super::*;

/// An ACK of host 2.
const REPLY: Roce = Roce {
    opcode: Opcode::RC_ACKNOWLEDGE,
    dest_qpn: SENDER_QPN,
    payload: 0,
    is_back: true,
    dst_mac: mac(1),
    ..DATA
};

const TAG: VlanTagRepr = VlanTagRepr { pcp: 3, dei: false, vid: 7, ethertype: EtherType::VLAN };

/// Host 2, which answers trimmed packets.
fn answers() -> Params {
    scalars(|s| (s.trim_nak, s.tail_loss_probe) = (1, TAIL_LOSS_PROBE_FORCE))
}

/// The identity of the QP of host 2 to host 1.
fn own() -> FlowId {
    FlowId { src: addr(false, 2), receiver: qp(1, SENDER_QPN) }
}

/// The headers of a packet, lengths unchanged.
fn trimmed(roce: &Roce) -> Vec<u8> {
    let mut bytes = roce.frame();
    bytes.truncate(bytes.len() - 4 - roce.payload);
    bytes
}

/// A packet with this PSN and a correct ICRC. The syndrome is part of an ACK only.
fn with_psn(roce: Roce, psn: u8) -> Vec<u8> {
    let mut bytes = roce.frame();
    (bytes[53], bytes[54]) = (psn, 0x1f);
    dcqcn_frames::seal(&mut bytes, roce.l3());
    bytes
}

/// Host 2, which has the pair of the QPs.
fn paired() -> MockHost {
    let mut host = MockHost::new();
    host.pairs.insert(qp(2, RECEIVER_QPN), Pair::new(SENDER_QPN, PairSource::Static));
    host
}

/// Host 2 after its ACK of the PSN of every packet here, 7, and a request that follows.
fn acknowledged(p: &Params) -> MockHost {
    let mut host = paired();
    // The first request shows this host's QPN; its ACK acknowledges what is before it.
    host.egress(p, &nak());
    host.ingress(p, &Roce { opcode: Opcode::RC_SEND_ONLY, ..DATA }.frame());
    host.now_ns += 2_000_000;
    host.egress(p, &nak());
    host.now_ns += 2_000_000;
    host.announced_requesters.clear();
    host.take_counted();
    host
}

/// The responder's NAK (PSN sequence error): all before PSN 7 has arrived.
fn nak() -> Vec<u8> {
    let mut bytes = REPLY.frame();
    bytes[54] = 0x60;
    bytes
}

#[test]
fn trimmed_request_is_consumed_and_announced() {
    let p = answers();
    let mut host = acknowledged(&p);
    let (verdict, outcome) = host.ingress(&p, &trimmed(&DATA));
    assert_eq!((verdict, outcome.clone_mark), (TcVerdict::Drop, Some(p.port.cnp_mark)));
    assert_eq!(host.counted_once(), [Stat::Trimmed]);
    assert_eq!(host.announced_requesters, [own()]);
    let rules = Settings { floor_ns: 20_000_000, limit: 1, takes_naks_in_reads: false };
    let requester = host.requesters[&own()];
    assert_eq!(requester.answer(rules, host.now_ns + 1_000_000_000, 0), Action::Nak(7));
    assert_eq!(requester.responder().macs(), Macs { dst: mac(1), src: mac(2) });
    // The NAK of the daemon.
    host.now_ns += 2_000_000;
    let (_, outcome) = host.egress_with(&p, &nak(), PacketContext { mark: p.port.cnp_mark, ..HERE });
    assert_eq!((outcome.bytes, outcome.mark), (nak(), 0));
    assert_eq!(host.requesters[&own()].answer(rules, host.now_ns + 1_000_000_000, 0), Action::Idle);
}

/// A macvlan's packets come from its own address, to which a probe must go.
#[test]
fn source_address_known_from_the_first_packet() {
    for first in [DATA.frame(), nak()] {
        let mut host = MockHost::new();
        host.egress(&answers(), &first);
        let requester = host.requesters.values().next().expect("a requester");
        assert_eq!(requester.mac(), first[6..12]);
    }
}

/// Probes and NAKs have the same.
#[test]
fn tpid_known_from_the_first_packet() {
    let mut inside = Roce { tag: Some(TAG), ..DATA }.frame();
    let stripped = |stripped_tpid| PacketContext { stripped_vid: 7, stripped_tpid, ..HERE };
    let tpid = |frame: &[u8], context| {
        let mut host = MockHost::new();
        host.egress_with(&answers(), frame, context);
        host.requesters.values().next().expect("a requester").tpid()
    };
    assert_eq!(tpid(&inside, HERE), EtherType::VLAN);
    assert_eq!(tpid(&DATA.frame(), stripped(0x8100)), EtherType::VLAN);
    assert_eq!(tpid(&DATA.frame(), stripped(0x88a8)), EtherType::QINQ);
    inside[12..14].copy_from_slice(&[0x88, 0xa8]);
    assert_eq!(tpid(&inside, HERE), EtherType::QINQ);
}

#[test]
fn trimmed_packet_counts_as_marked() {
    let (p, mut host) = (answers(), MockHost::new());
    let clone = PacketContext { mark: p.port.cnp_mark, ..HERE };
    for (roce, counted) in [(DATA, vec![Stat::Trimmed]), (MARKED, vec![Stat::NpEcnMarked, Stat::Trimmed])] {
        host.now_ns += 1_000_000;
        let (verdict, outcome) = host.ingress(&p, &trimmed(&roce));
        assert_eq!((verdict, outcome.clone_mark), (TcVerdict::Pass, Some(p.port.cnp_mark)), "no known QP");
        assert_eq!(host.counted_once(), counted);
        let (verdict, outcome) = host.egress_with(&p, &trimmed(&roce), clone);
        assert_eq!((verdict, outcome.bytes), (TcVerdict::EnqueueAgain, roce.cnp(None)));
        host.take_counted();
    }
    // A datagram names its sender.
    let datagram = Roce { dest_qpn: 0x33, ..DATAGRAM };
    let (verdict, outcome) = host.ingress(&p, &trimmed(&datagram));
    assert_eq!((verdict, outcome.clone_mark), (TcVerdict::Pass, Some(p.port.cnp_mark)));
    let (_, outcome) = host.egress_with(&p, &trimmed(&datagram), clone);
    assert_eq!(outcome.bytes, datagram.cnp(Some(SENDER_QPN)));
    host.take_counted();
    // Not a clone.
    let (verdict, outcome) = host.egress(&p, &trimmed(&DATA));
    assert_eq!((verdict, outcome.bytes), (TcVerdict::Pass, trimmed(&DATA)));
    assert_eq!(host.counted_once(), [Stat::Trimmed]);
}

#[test]
fn unanswerable_trimmed_packet_passes() {
    let p = answers();
    let off = scalars(|s| s.tail_loss_probe = TAIL_LOSS_PROBE_FORCE);
    let group = Roce { dst_mac: [3, 0, 0, 0, 0, 2], ..DATA };
    let management = Roce { dest_qpn: 1, ..DATA };
    for (p, roce) in [(&off, DATA), (&p, DATAGRAM), (&p, group), (&p, OTHER), (&p, management), (&p, REPLY)] {
        let mut host = acknowledged(p);
        let (verdict, outcome) = host.ingress(p, &trimmed(&roce));
        assert_eq!((verdict, outcome.bytes), (TcVerdict::Pass, trimmed(&roce)));
        assert!(host.announced_requesters.is_empty());
    }
}

#[test]
fn trimmed_read_response_is_announced() {
    let p = answers();
    let mut host = paired();
    // A requester's first packet may be the rest of a READ.
    let mut first = Roce { opcode: Opcode::RC_SEND_ONLY, ..REPLY }.frame();
    first[53] = 6;
    let read = Roce { opcode: Opcode::RC_RDMA_READ_REQUEST, ..REPLY };
    for request in [first, read.frame()] {
        host.egress(&p, &request);
    }
    host.announced_requesters.clear();
    let response = Roce { opcode: Opcode::RC_RDMA_READ_RESPONSE_ONLY, ..DATA };
    let (verdict, _) = host.ingress(&p, &trimmed(&response));
    assert_eq!((verdict, &host.announced_requesters[..]), (TcVerdict::Drop, &[own()][..]));
}

/// An ACK that was overtaken by the READ response behind it.
#[test]
fn stale_ack_is_dropped() {
    let p = scalars(|s| s.tail_loss_probe = TAIL_LOSS_PROBE_FORCE);
    let off = params(|_| {});
    let ack = with_psn(ACK, 7);
    let response = with_psn(Roce { opcode: Opcode::RC_RDMA_READ_RESPONSE_FIRST, ..DATA }, 8);
    for (p, verdict) in [(&p, TcVerdict::Drop), (&off, TcVerdict::Pass)] {
        let mut host = paired();
        for (opcode, psn) in [(Opcode::RC_SEND_ONLY, 7), (Opcode::RC_RDMA_READ_REQUEST, 8)] {
            host.egress(p, &with_psn(Roce { opcode, ..REPLY }, psn));
        }
        assert_eq!(host.ingress(p, &ack).0, TcVerdict::Pass);
        assert_eq!(host.ingress(p, &response).0, TcVerdict::Pass);
        host.take_counted();
        assert_eq!(host.ingress(p, &ack).0, verdict);
        assert_eq!(host.count_of(Stat::AckStale), u64::from(verdict == TcVerdict::Drop));
    }
}

/// The stack awaits the atomic that it has requested again, and discards a corrupt answer.
#[test]
fn corrupt_atomic_answer_is_no_progress() {
    let p = scalars(|s| s.tail_loss_probe = TAIL_LOSS_PROBE_FORCE);
    let mut host = paired();
    for (opcode, psn) in [(Opcode::RC_SEND_ONLY, 7), (Opcode::RC_FETCH_ADD, 8), (Opcode::RC_FETCH_ADD, 8)] {
        host.egress(&p, &with_psn(Roce { opcode, ..REPLY }, psn));
        host.ingress(&p, &with_psn(ACK, 7));
    }
    let answer = with_psn(Roce { opcode: Opcode::RC_ATOMIC_ACKNOWLEDGE, ..DATA }, 8);
    let mut corrupt = answer.clone();
    corrupt[57] ^= 1;
    for (bytes, progress, invalid) in [(&corrupt, (8, 8), 1), (&answer, (8, 9), 0)] {
        host.take_counted();
        assert_eq!(host.ingress(&p, bytes).0, TcVerdict::Pass);
        assert_eq!(host.requesters[&own()].progress(), progress);
        assert_eq!(host.count_of(Stat::AckInvalid), invalid);
    }
}

/// The peer invalidates memory that host 2 registers. A retransmission would repeat registrations behind the first
/// request.
#[test]
fn invalidating_send_holds_the_probe() {
    let p = scalars(|s| s.tail_loss_probe = TAIL_LOSS_PROBE_FORCE);
    let settings = Settings { floor_ns: 0, limit: 0, takes_naks_in_reads: true };
    for (opcode, is_held) in [
        (Opcode::RC_SEND_ONLY, false),
        (Opcode::RC_SEND_ONLY_WITH_INVALIDATE, true),
        (Opcode::RC_SEND_LAST_WITH_INVALIDATE, true),
    ] {
        let mut host = paired();
        for psn in [7, 8] {
            host.egress(&p, &with_psn(Roce { opcode: Opcode::RC_SEND_ONLY, ..REPLY }, psn));
            host.ingress(&p, &with_psn(ACK, 7));
        }
        assert_eq!(host.ingress(&p, &Roce { opcode, ..DATA }.frame()).0, TcVerdict::Pass);
        let last_ns = host.now_ns;
        let action = |host: &MockHost, after_ns| {
            host.requesters[&own()].action(settings, last_ns + after_ns, Sent::default(), 0)
        };
        assert_eq!(action(&host, 2_000_000_000), Action::Nak(8), "nothing behind it");
        host.egress(&p, &with_psn(Roce { opcode: Opcode::RC_SEND_ONLY, ..REPLY }, 9));
        let expected = if is_held { Action::At(last_ns + 60_000_000_000) } else { Action::Nak(8) };
        assert_eq!(action(&host, 2_000_000_000), expected, "{opcode:?}");
        assert_eq!(action(&host, 60_000_000_000), Action::Nak(8));
    }
}

/// Only responses are verified: the PSN of a request is one of the peer's, and its payload is long.
#[test]
fn icrc_of_request_is_not_verified() {
    let p = answers();
    let with_psn = |roce: Roce, psn| {
        let mut bytes = roce.frame();
        bytes[53] = psn;
        bytes
    };
    let mut host = acknowledged(&p);
    for psn in [8, 9] {
        host.egress(&p, &with_psn(Roce { opcode: Opcode::RC_FETCH_ADD, ..REPLY }, psn));
    }
    host.take_counted();
    for psn in 6..10 {
        host.ingress(&p, &with_psn(Roce { opcode: Opcode::RC_SEND_ONLY, ..DATA }, psn));
    }
    assert_eq!(host.count_of(Stat::AckInvalid), 0);
}
