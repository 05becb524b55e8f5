//! Pairs learned from connection management messages.

use super::*;

/// Connection identifiers of the two ends.
const IDS: [u32; 2] = [0x1111_1111, 0x2222_2222];
/// Offset of the message in a frame.
const MAD: usize = 14 + 20 + 8 + 12 + 8;
/// As host 1 sends it, and as host 2 does.
const FROM_1: CommIds = CommIds { local: IDS[0], remote: IDS[1] };
const FROM_2: CommIds = CommIds { local: IDS[1], remote: IDS[0] };

fn req() -> CmMessage {
    CmMessage::Req(dcqcn_frames::req(IDS[0], SENDER_QPN))
}

fn rep() -> CmMessage {
    CmMessage::Rep(Rep { comm_ids: FROM_2, local_qpn: RECEIVER_QPN, starting_psn: 1 })
}

fn receive(host: &mut MockHost, message: &CmMessage, is_back: bool) {
    let frame = cm(message, is_back);
    host.ingress_with(&params(|_| {}), &frame, PacketContext { linear_len: 14 + 20, ..HERE });
}

fn pair(qpn: u32, source: PairSource, host: u8) -> Pair {
    Pair { qpn, source: source as u32, addr: qp(host, 0).addr }
}

/// Pairs of both ends once they are connected.
fn known() -> [(QpId, Pair); 2] {
    [
        (qp(1, SENDER_QPN), pair(RECEIVER_QPN, PairSource::Cm, 2)),
        (qp(2, RECEIVER_QPN), pair(SENDER_QPN, PairSource::Cm, 1)),
    ]
}

fn connected() -> MockHost {
    let mut host = MockHost::new();
    receive(&mut host, &req(), false);
    receive(&mut host, &rep(), true);
    host
}

#[test]
fn req_and_rep_make_pair() {
    let mut host = MockHost::new();
    receive(&mut host, &req(), false);
    assert_eq!(host.announced_qpns, [(qp(1, IDS[0]), SENDER_QPN)].into());
    assert!(host.pairs.is_empty());
    assert_eq!(host.counted_once(), [Stat::RoceControl, Stat::CmMessages]);
    receive(&mut host, &rep(), true);
    assert_eq!(host.announced_qpns, [(qp(1, IDS[0]), SENDER_QPN), (qp(2, IDS[1]), RECEIVER_QPN)].into());
    assert_eq!(host.pairs, known().into());
    assert_eq!(host.counted_once(), [Stat::RoceControl, Stat::CmMessages, Stat::PairCm]);
    assert_eq!(host.kinds(), [EventKind::FlowPaired as u32; 2]);
    // Again: nothing new.
    receive(&mut host, &rep(), true);
    assert_eq!((&host.pairs, host.events.len()), (&known().into(), 2));
}

#[test]
fn unsolicited_rep_reveals_sender_only() {
    let mut host = MockHost::new();
    receive(&mut host, &rep(), true);
    assert_eq!((&host.announced_qpns, host.pairs.len()), (&[(qp(2, IDS[1]), RECEIVER_QPN)].into(), 0));
}

#[test]
fn other_messages_change_nothing() {
    let mra = CmMessage::Mra { comm_ids: FROM_1, message: 0, service_timeout: 1 };
    for message in [CmMessage::Rtu(FROM_1), mra] {
        let mut host = connected();
        host.take_counted();
        receive(&mut host, &message, false);
        assert_eq!(host.counted_once(), [Stat::RoceControl, Stat::CmMessages]);
        assert_eq!((&host.pairs, host.announced_qpns.len()), (&known().into(), 2));
    }
    // Of another class, version or method, or with an unknown attribute.
    for (at, value) in [(0, 9), (1, 9), (2, 9), (3, 9), (17, 0x19)] {
        let mut host = connected();
        host.take_counted();
        let mut frame = cm(&CmMessage::Dreq(Dreq { comm_ids: FROM_1, remote_qpn: RECEIVER_QPN }), false);
        frame[MAD + at] = value;
        host.ingress(&params(|_| {}), &frame);
        assert_eq!((host.counted_once(), &host.pairs), (vec![Stat::RoceControl], &known().into()));
    }
}

#[test]
fn only_qp1_datagrams_are_management() {
    let like = |opcode, dest_qpn| {
        let mut frame = cm(&req(), false);
        frame[42] = opcode;
        frame[47..50].copy_from_slice(&[0, 0, dest_qpn]);
        frame
    };
    let is_read = |frame: &[u8]| {
        let mut host = MockHost::new();
        host.ingress(&params(|_| {}), frame);
        host.count_of(Stat::CmMessages) == 1
    };
    assert!(is_read(&like(0x64, 1)));
    assert!(!is_read(&like(0x64, 2)) && !is_read(&like(0x64, 0)), "of another QP");
    assert!(!is_read(&like(0x65, 1)), "with immediate data");
    assert!(!is_read(&like(0x04, 1)), "of a connection");
}

#[test]
fn dreq_removes_pair() {
    let dreq = CmMessage::Dreq(Dreq { comm_ids: FROM_1, remote_qpn: RECEIVER_QPN });
    let rej = CmMessage::Rej { comm_ids: FROM_1, message: 1, reason: 28 };
    for message in [dreq, CmMessage::Drep(FROM_1), rej] {
        let mut host = connected();
        receive(&mut host, &message, false);
        assert!(host.pairs.is_empty(), "{message:?}");
    }
    for message in [CmMessage::Drep(FROM_2), CmMessage::Rej { comm_ids: FROM_2, message: 1, reason: 28 }] {
        let mut host = connected();
        receive(&mut host, &message, true);
        assert!(host.pairs.is_empty(), "{message:?}");
    }
}

#[test]
fn third_party_cannot_remove_pair() {
    let dreq = CmMessage::Dreq(Dreq { comm_ids: FROM_1, remote_qpn: RECEIVER_QPN });
    let own = qp(2, RECEIVER_QPN);
    // Another host's, or from a more trusted source.
    for stored in [pair(SENDER_QPN, PairSource::Cm, 3), pair(SENDER_QPN, PairSource::Static, 1)] {
        let mut host = MockHost::new();
        host.pairs.insert(own, stored);
        receive(&mut host, &dreq, false);
        assert_eq!(host.pairs, [(own, stored)].into());
    }
    // The reverse pair has been replaced by now, or was not learned from messages.
    for stored in [pair(0x77, PairSource::Cm, 2), pair(RECEIVER_QPN, PairSource::Static, 2)] {
        let mut host = connected();
        host.pairs.insert(qp(1, SENDER_QPN), stored);
        receive(&mut host, &dreq, false);
        assert_eq!(host.pairs, [(qp(1, SENDER_QPN), stored)].into());
    }
}

#[test]
fn more_trusted_pair_source_wins() {
    let id = qp(1, SENDER_QPN);
    let learn = |qpn, source| {
        let mut host = MockHost::new();
        host.pairs.insert(id, pair(qpn, source, 2));
        receive(&mut host, &req(), false);
        receive(&mut host, &rep(), true);
        (host.pairs[&id], host.count_of(Stat::PairConflict))
    };
    let heard = pair(RECEIVER_QPN, PairSource::Cm, 2);
    for source in [PairSource::Static, PairSource::Rdma] {
        assert_eq!(learn(RECEIVER_QPN, source), (pair(RECEIVER_QPN, source, 2), 0));
        assert_eq!(learn(0x77, source), (pair(0x77, source, 2), 1));
    }
    // A QP may be connected to another one later.
    assert_eq!(learn(0x77, PairSource::Cm), (heard, 0));
    assert_eq!(learn(RECEIVER_QPN, PairSource::Datagram), (heard, 0));
    assert_eq!(learn(0x77, PairSource::Datagram), (heard, 1));
}

#[test]
fn pair_learning_is_rate_limited() {
    let datagram = DATAGRAM.frame();
    for (ahead_ns, is_learned) in [(LEARNING.burst_ns, true), (LEARNING.burst_ns + 1, false)] {
        let mut host = MockHost::new();
        host.set_time(Time::PAIRS, host.now_ns + ahead_ns);
        host.egress(&params(|_| {}), &datagram);
        assert_eq!((host.pairs.len(), host.events.len()), (usize::from(is_learned), usize::from(is_learned)));
        assert_eq!(host.count_of(Stat::PairLimited), u64::from(!is_learned));
    }
}
