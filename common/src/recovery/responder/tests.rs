use super::super::{Requester, Settings, SharedRequester};
use super::*;

const MS: u64 = 1_000_000;
const QPN: u32 = 0x33;
const RULES: Settings = Settings { floor_ns: 20 * MS, limit: 1, takes_naks_in_reads: false };
const ACK: u32 = 0x1f;
const SEQUENCE_NAK: u32 = 0x60;
const RNR_NAK: u32 = 0x3f;
const INVALID_REQUEST: u32 = 0x61;

fn answer(psn: u32, syndrome: u32) -> Answer {
    Answer { opcode: Opcode::RC_ACKNOWLEDGE, psn, syndrome }
}

fn read_response(psn: u32) -> Answer {
    Answer { opcode: Opcode::RC_RDMA_READ_RESPONSE_LAST, psn, syndrome: 0 }
}

fn request(psn: u32) -> Arrival {
    Arrival { opcode: Opcode::RC_SEND_ONLY, psn, is_trimmed: false, own_qpn: QPN, udp_sport: 7 }
}

fn trimmed(psn: u32) -> Arrival {
    Arrival { is_trimmed: true, ..request(psn) }
}

/// A QP whose responder has acknowledged the request with this PSN at 2 ms.
fn acknowledged(psn: u32) -> Requester {
    let mut qp = Requester::NEW;
    assert!(!qp.on_arrival(&request(psn), MS));
    assert!(qp.on_answer(&answer(psn, ACK), 2 * MS));
    qp
}

#[test]
fn trimmed_request_is_answered_after_silence() {
    let mut qp = acknowledged(9);
    assert!(qp.on_arrival(&trimmed(12), 3 * MS));
    assert!(!qp.on_arrival(&trimmed(13), 3 * MS), "one announcement");
    assert_eq!(qp.answer(RULES, 3 * MS, 0), Action::At(4 * MS));
    // What the trimmed packet has overtaken arrives.
    qp.on_answer(&answer(10, ACK), 4 * MS);
    assert_eq!(qp.answer(RULES, 4 * MS, 0), Action::At(5 * MS));
    assert_eq!(qp.answer(RULES, 5 * MS, 0), Action::Nak(11), "never the trimmed packet's PSN");
    assert_eq!(qp.responder().udp_sport(), 7);
    // Once.
    qp.on_answer(&answer(11, OWN_NAK), 5 * MS);
    assert_eq!(qp.answer(RULES, 99 * MS, 5 * MS), Action::Idle);
}

/// To a message that ends more than half of all PSNs later, the acknowledged PSN looks like a later one.
#[test]
fn request_far_ahead_is_of_another_qp() {
    for (ahead, answers) in
        [(MAX_IN_FLIGHT as u32 - 1, true), (MAX_IN_FLIGHT as u32, false), ((1 << 23) - 1, false)]
    {
        let mut qp = acknowledged(9);
        assert_eq!(qp.on_arrival(&trimmed(10 + ahead), 3 * MS), answers);
        assert_eq!(qp.answer(RULES, 99 * MS, 0), if answers { Action::Nak(10) } else { Action::Idle });
    }
}

#[test]
fn accepted_request_needs_no_nak() {
    let mut qp = acknowledged(9);
    assert!(qp.on_arrival(&trimmed(10), 3 * MS));
    qp.on_answer(&answer(10, ACK), 4 * MS);
    assert_eq!(qp.answer(RULES, 99 * MS, 0), Action::Idle);
    assert!(qp.on_arrival(&trimmed(11), 5 * MS));
    qp.on_answer(&read_response(12), 6 * MS);
    assert_eq!(qp.answer(RULES, 99 * MS, 0), Action::Idle, "a READ response acknowledges too");
}

#[test]
fn own_nak_of_the_gap_suffices_for_a_round_trip() {
    let mut qp = acknowledged(9);
    assert!(qp.on_arrival(&trimmed(11), 3 * MS));
    qp.on_answer(&answer(10, SEQUENCE_NAK), 4 * MS);
    assert_eq!(qp.answer(RULES, 99 * MS, 0), Action::Idle);
    // The retransmission is trimmed too, or still the first transmission.
    assert!(qp.on_arrival(&trimmed(10), 6 * MS));
    assert_eq!(qp.answer(RULES, 7 * MS, 0), Action::At(24 * MS));
    assert_eq!(qp.answer(RULES, 24 * MS, 0), Action::Nak(10));
    assert_eq!(qp.answer(RULES, 24 * MS, 23 * MS), Action::At(43 * MS), "the daemon's own limit");
}

/// Soft-RoCE ignores NAKs until its retransmission is acknowledged.
#[test]
fn repeated_trimming_ends_with_rnr_nak() {
    let unlimited = Settings { limit: 0, ..RULES };
    for own in [OWN_NAK, SEQUENCE_NAK] {
        let mut qp = acknowledged(9);
        assert!(qp.on_arrival(&trimmed(10), 3 * MS));
        assert_eq!(qp.answer(unlimited, 4 * MS, 0), Action::Nak(10));
        qp.on_answer(&answer(10, own), 4 * MS);
        assert_eq!(qp.answer(RULES, 99 * MS, 4 * MS), Action::Idle);
        assert!(qp.on_arrival(&trimmed(10), 50 * MS));
        assert_eq!(qp.answer(unlimited, 60 * MS, 4 * MS), Action::At(84 * MS));
        assert_eq!(qp.answer(unlimited, 84 * MS, 4 * MS), Action::RnrNak(10));
        qp.on_answer(&answer(10, OWN_NAK), 84 * MS);
        assert_eq!(qp.answer(unlimited, 85 * MS, 84 * MS), Action::At(244 * MS), "twice as long");
        let old_ns = 1_005 * MS;
        assert_eq!(qp.answer(unlimited, old_ns, 84 * MS), Action::Idle, "an ended QP");
        // Progress.
        qp.on_answer(&answer(10, ACK), 90 * MS);
        assert_eq!(qp.answer(unlimited, 999 * MS, 84 * MS), Action::Idle);
    }
}

#[test]
fn busy_or_ended_responder_gets_no_nak() {
    for (syndrome, from_ns) in [(RNR_NAK, 505_520_000), (INVALID_REQUEST, 10_004 * MS)] {
        let mut qp = acknowledged(9);
        qp.on_answer(&answer(10, syndrome), 4 * MS);
        assert!(qp.on_arrival(&trimmed(11), 5 * MS));
        assert_eq!(qp.answer(RULES, 99 * MS, 0), Action::At(from_ns));
    }
}

/// Linux 6.1 ends the QP if a NAK names the next response of a READ.
#[test]
fn next_response_of_a_read_is_not_named() {
    let mut qp = acknowledged(9);
    let first = Answer { opcode: Opcode::RC_RDMA_READ_RESPONSE_FIRST, psn: 10, syndrome: 0 };
    qp.on_answer(&first, 4 * MS);
    assert!(qp.on_arrival(&trimmed(14), 5 * MS));
    assert_eq!(qp.answer(RULES, 99 * MS, 0), Action::Nak(10));
    let mut unknown = Requester::NEW;
    unknown.on_answer(&first, 4 * MS);
    assert!(!unknown.on_arrival(&trimmed(14), 5 * MS));
}

#[test]
fn unknown_responder_gets_no_nak() {
    let mut qp = Requester::NEW;
    assert!(!qp.on_arrival(&trimmed(10), MS));
    assert_eq!(qp.answer(RULES, 99 * MS, 0), Action::Idle);
    qp.on_answer(&answer(9, OWN_NAK), 2 * MS);
    assert!(!qp.on_arrival(&trimmed(10), 3 * MS), "no packet of the responder");
}

#[test]
fn old_state_gets_no_nak() {
    for (at_ns, is_answered) in [(1_002 * MS, true), (1_002 * MS + 1, false)] {
        assert_eq!(acknowledged(9).on_arrival(&trimmed(10), at_ns), is_answered);
    }
}

#[test]
fn contradicting_request_invalidates_nak() {
    let other_qpn = Arrival { own_qpn: QPN + 1, ..trimmed(10) };
    for contradiction in [request(9), trimmed(9), other_qpn] {
        let mut qp = acknowledged(9);
        assert!(qp.on_arrival(&trimmed(11), 3 * MS));
        assert!(!qp.on_arrival(&contradiction, 3 * MS));
        assert_eq!(qp.answer(RULES, 99 * MS, 0), Action::Idle);
        assert!(!qp.on_arrival(&Arrival { own_qpn: contradiction.own_qpn, ..trimmed(11) }, 4 * MS));
        qp.on_answer(&answer(20, OWN_NAK), 5 * MS);
        assert_eq!(qp.answer(RULES, 99 * MS, 0), Action::Idle, "a NAK by the daemon shows nothing");
        // A new connection starts elsewhere.
        qp.on_answer(&answer(5, ACK), 6 * MS);
        assert!(qp.on_arrival(&Arrival { own_qpn: contradiction.own_qpn, ..trimmed(7) }, 7 * MS));
        assert_eq!(qp.answer(RULES, 99 * MS, 0), Action::Nak(6));
    }
}

#[test]
fn repeated_read_response_is_no_progress() {
    let mut qp = acknowledged(9);
    qp.on_answer(&read_response(12), 3 * MS);
    qp.on_answer(&read_response(10), 4 * MS);
    assert!(qp.on_arrival(&trimmed(14), 5 * MS));
    assert_eq!(qp.answer(RULES, 99 * MS, 0), Action::Nak(13));
}

/// However many trimmed packets are forged: at most one NAK per `tail_loss_probe_floor`.
#[test]
fn flood_of_trimmed_packets_bounded_by_floor() {
    let mut qp = acknowledged(9);
    let (mut naks, mut announced, mut sent_ns) = (0, 0, 0);
    for us in 0..1_000_000 {
        let now_ns = 3 * MS + us * 1_000;
        announced += u64::from(qp.on_arrival(&trimmed(10 + us as u32 % 1_000), now_ns));
        if let Action::Nak(psn) = qp.answer(RULES, now_ns, sent_ns) {
            assert_eq!(psn, 10);
            (naks, sent_ns) = (naks + 1, now_ns);
            qp.on_answer(&answer(psn, OWN_NAK), now_ns);
        }
    }
    assert_eq!((naks, announced), (50, 51));
}

#[test]
fn macs_are_those_of_the_reply() {
    let mut qp = acknowledged(9);
    SharedRequester::new(&mut qp).set_macs(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    assert_eq!(qp.responder().macs(), Macs { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2] });
}
