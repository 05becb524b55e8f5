//! A requester and a responder over a lossy network, with the probe between them and the stack.

extern crate std;

pub(super) mod race;
mod rxe;

use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec::Vec;

use super::responder::{Answer, Arrival, OWN_NAK};
use super::*;

impl Requester {
    pub(super) fn on_request(&mut self, packet: &Request, now_ns: u64) -> bool {
        SharedRequester::new(self).on_request(packet, now_ns)
    }

    pub(super) fn on_response(&mut self, packet: &Response, now_ns: u64) -> bool {
        let requester = SharedRequester::new(self);
        let announces = requester.on_response(packet, now_ns);
        requester.drops(packet, now_ns);
        announces
    }

    /// Requests that leave at one time: opcode, PSN and bytes.
    fn send<const N: usize>(&mut self, now_ns: u64, requests: [(Opcode, u32, u32); N]) {
        for (opcode, psn, bytes) in requests {
            self.on_request(&request(opcode, psn, bytes), now_ns);
        }
    }

    /// READ responses that arrive at one time: opcode and PSN.
    fn receive<const N: usize>(&mut self, now_ns: u64, responses: [(Opcode, u32); N]) {
        for (opcode, psn) in responses {
            self.on_response(&read_response(opcode, psn), now_ns);
        }
    }

    /// [`Response::syndrome`] of a READ response with a correct ICRC, on Linux 6.12.
    fn read_syndrome(&mut self, opcode: Opcode, psn: u32) -> u32 {
        SharedRequester::new(self).syndrome_if_correct(opcode, psn, true)
    }

    /// A READ response with a correct ICRC.
    fn receive_correct(&mut self, opcode: Opcode, psn: u32) {
        let syndrome = self.read_syndrome(opcode, psn);
        self.on_response(&Response { syndrome, ..read_response(opcode, psn) }, 12 * MS);
    }

    fn drops(&mut self, packet: &Response, now_ns: u64) -> bool {
        let requester = SharedRequester::new(self);
        requester.on_response(packet, now_ns);
        requester.drops(packet, now_ns)
    }

    pub(super) fn on_answer(&mut self, packet: &Answer, now_ns: u64) -> bool {
        SharedRequester::new(self).on_answer(packet, now_ns)
    }

    pub(super) fn on_arrival(&mut self, packet: &Arrival, now_ns: u64) -> bool {
        SharedRequester::new(self).on_arrival(packet, now_ns)
    }
}

const READ: Opcode = Opcode::RC_RDMA_READ_REQUEST;
const SEND: Opcode = Opcode::RC_SEND_ONLY;
const WRITE_FIRST: Opcode = Opcode::RC_RDMA_WRITE_FIRST;
const WRITE_MIDDLE: Opcode = Opcode::RC_RDMA_WRITE_MIDDLE;
const WRITE_LAST: Opcode = Opcode::RC_RDMA_WRITE_LAST;
const WRITE_ONLY: Opcode = Opcode::RC_RDMA_WRITE_ONLY;
// READ responses.
const FIRST: Opcode = Opcode::RC_RDMA_READ_RESPONSE_FIRST;
const MIDDLE: Opcode = Opcode::RC_RDMA_READ_RESPONSE_MIDDLE;
const LAST: Opcode = Opcode::RC_RDMA_READ_RESPONSE_LAST;
const ONLY: Opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
const MS: u64 = 1_000_000;
const QPN: u32 = 0x11;
const RULES: Settings = Settings { floor_ns: 20 * MS, limit: 1, takes_naks_in_reads: false };
const MTU: u32 = 1_024;
const ACK: u8 = 0x1f;
const NAK: u8 = 0x60;
const RNR_NAK: u8 = 0x21;
const NONE: Sent = Sent { probes: 0, at_ns: 0 };
const ONE: Sent = Sent { probes: 1, at_ns: 31 * MS };
const UNLIMITED: Settings = Settings { limit: 0, ..RULES };
/// Linux 6.12, as opposed to 6.1.
const NEWER: Settings = Settings { takes_naks_in_reads: true, ..UNLIMITED };

fn request(opcode: Opcode, psn: u32, bytes: u32) -> Request {
    Request { opcode, psn, ack_request: true, bytes }
}

fn ack(psn: u32) -> Response {
    Response { opcode: Opcode::RC_ACKNOWLEDGE, psn, syndrome: 0x1f, own_qpn: QPN, udp_sport: 1 }
}

fn nak(psn: u32, syndrome: u32) -> Response {
    Response { syndrome, ..ack(psn) }
}

fn read_response(opcode: Opcode, psn: u32) -> Response {
    Response { opcode, syndrome: UNVERIFIED, ..ack(psn) }
}

/// A requester that has had a SEND with this PSN acknowledged after a millisecond.
fn acknowledged(psn: u32) -> Requester {
    let mut requester = Requester::NEW;
    assert!(requester.on_request(&request(SEND, psn, 0), MS));
    requester.on_response(&ack(psn), 2 * MS);
    assert_eq!(requester.acknowledged(), Some(plus(psn, 1)));
    assert_eq!(requester.action(RULES, 3 * MS, NONE, 0), Action::Idle);
    requester
}

/// [`acknowledged`], with these requests at 10 ms.
fn after_requests<const N: usize>(requests: [(Opcode, u32, u32); N]) -> Requester {
    let mut requester = acknowledged(9);
    requester.send(10 * MS, requests);
    requester
}

#[test]
fn lost_last_packet_is_probed_after_the_floor() {
    let mut requester = after_requests([(WRITE_FIRST, 10, MTU), (WRITE_LAST, 11, 0)]);
    assert_eq!(requester.action(RULES, 11 * MS, NONE, 0), Action::At(30 * MS));
    assert_eq!(requester.action(RULES, 30 * MS, NONE, 0), Action::Nak(10));
    // The responder has the first packet.
    requester.on_response(&ack(10), 12 * MS);
    assert_eq!(requester.action(RULES, 32 * MS, NONE, 0), Action::Nak(11));
    assert_eq!(requester.action(RULES, 32 * MS, ONE, 0), Action::At(71 * MS), "it backs off");
    assert_eq!(requester.action(RULES, 71 * MS, ONE, 0), Action::Idle, "one probe");
    assert_eq!(requester.action(UNLIMITED, 71 * MS, ONE, 0), Action::RnrNak(11));
    assert_eq!(requester.action(RULES, 40 * MS, NONE, 35 * MS), Action::At(55 * MS), "the pacer holds it");
}

/// Requests that are queued behind this host's READ responses at times.
#[test]
fn varying_round_trip_delays_the_probe() {
    let (mut requester, mut at_ns) = (acknowledged(9), 10 * MS);
    for (psn, rtt_ns) in (10..).zip([2, 80, 2, 2, 60, 2, 2, 2, 2, 2, 2].map(|rtt| rtt * MS)) {
        requester.on_request(&request(SEND, psn, 0), at_ns);
        requester.on_response(&ack(psn), at_ns + rtt_ns);
        at_ns += 100 * MS;
    }
    requester.on_request(&request(SEND, 21, 0), at_ns);
    let Action::At(due_ns) = requester.action(RULES, at_ns + 20 * MS, NONE, 0) else { panic!("a probe") };
    assert!(due_ns - at_ns > 80 * MS, "{} ms", (due_ns - at_ns) / MS);
}

#[test]
fn no_probe_before_a_verified_ack() {
    let mut requester = Requester::NEW;
    requester.on_request(&request(SEND, 10, 0), MS);
    assert_eq!(requester.action(RULES, 20_000 * MS, NONE, 0), Action::Idle);
    requester.on_response(&Response { syndrome: UNVERIFIED, ..ack(10) }, 2 * MS);
    assert_eq!(requester.acknowledged(), None);
    requester.on_response(&ack(40), 2 * MS);
    assert_eq!(requester.acknowledged(), None, "of a packet that was never sent");
}

#[test]
fn lost_read_response_probed_beyond_the_read() {
    let mut requester = acknowledged(9);
    // Two READs of four responses, each followed by a SEND, show the path MTU.
    for first in [10, 15] {
        let at_ns = u64::from(first) * 100 * MS;
        requester.on_request(&request(READ, first, 4 * MTU), at_ns);
        assert_eq!(requester.action(RULES, at_ns + 50 * MS, NONE, 0), Action::Nak(first), "length unknown");
        requester
            .receive(at_ns, [(FIRST, first), (MIDDLE, first + 1), (MIDDLE, first + 2), (LAST, first + 3)]);
        requester.on_request(&request(SEND, first + 4, 0), at_ns);
        requester.on_response(&ack(first + 4), at_ns);
    }
    let at_ns = 3_000 * MS;
    requester.on_request(&request(READ, 20, 4 * MTU), at_ns);
    assert_eq!(requester.next(), 24);
    requester.on_response(&read_response(FIRST, 20), at_ns);
    assert_eq!(requester.action(RULES, at_ns + 19 * MS, NONE, 0), Action::At(at_ns + 20 * MS));
    assert_eq!(requester.action(RULES, at_ns + 20 * MS, NONE, 0), Action::Nak(24));
    // A gap is probed sooner, unless it is filled.
    requester.on_response(&read_response(MIDDLE, 22), at_ns);
    assert_eq!(requester.action(RULES, at_ns + 2 * MS, NONE, 0), Action::Nak(24));
    let recent = Sent { probes: 0, at_ns: at_ns - 10 * MS };
    assert_eq!(requester.action(RULES, at_ns + 2 * MS, recent, 0), Action::At(at_ns + 10 * MS), "too soon");
    requester.on_response(&read_response(MIDDLE, 21), at_ns);
    assert_eq!(requester.action(RULES, at_ns + 2 * MS, NONE, 0), Action::At(at_ns + 20 * MS));
}

/// A READ of four responses, of which the first has arrived, after READs that have shown the path MTU.
fn reading() -> Requester {
    let mut requester = acknowledged(9);
    requester.send(3 * MS, [(WRITE_FIRST, 10, MTU), (WRITE_LAST, 11, 0)]);
    requester.on_response(&ack(11), 4 * MS);
    requester.on_request(&request(READ, 12, 4 * MTU), 10 * MS);
    requester.on_response(&read_response(FIRST, 12), 11 * MS);
    assert_eq!(requester.next(), 16);
    requester
}

#[test]
fn trimmed_read_response_probed_after_earlier() {
    let trimmed = |psn| Response { syndrome: TRIMMED, ..read_response(MIDDLE, psn) };
    let mut requester = reading();
    for psn in [11, 16] {
        assert!(!requester.on_response(&trimmed(psn), 12 * MS), "not of this READ");
    }
    // The last two are trimmed, and overtake the one before them.
    assert!(requester.on_response(&trimmed(14), 12 * MS));
    assert!(!requester.on_response(&trimmed(15), 12 * MS));
    requester.on_response(&read_response(MIDDLE, 13), 14 * MS);
    assert_eq!(requester.action(RULES, 14 * MS, NONE, 0), Action::At(15 * MS));
    assert_eq!(requester.action(RULES, 15 * MS, NONE, 0), Action::Nak(16));
    // It is retransmitted.
    requester.on_response(&read_response(MIDDLE, 14), 16 * MS);
    assert_eq!(requester.action(RULES, 17 * MS, NONE, 0), Action::At(36 * MS));
}

#[test]
fn gaps_are_announced_once_per_millisecond() {
    let beyond = read_response(MIDDLE, 14);
    let missing = read_response(MIDDLE, 13);
    let last = read_response(LAST, 15);
    for (at_ns, announces) in [(12 * MS + 1, false), (13 * MS, true)] {
        let mut requester = reading();
        assert!(requester.on_response(&beyond, 12 * MS));
        assert!(!requester.on_response(&missing, 12 * MS));
        assert_eq!(requester.on_response(&last, at_ns), announces);
        assert_eq!(requester.action(RULES, 20 * MS, NONE, 0), Action::Nak(16));
    }
}

#[test]
fn probe_names_first_packet_that_may_be_lost() {
    for (requests, probe) in [
        // The WRITE does not acknowledge the READ.
        (&[(READ, 10, 100), (WRITE_ONLY, 11, 0)][..], 11),
        (&[(WRITE_ONLY, 10, 0), (READ, 11, 100)], 10),
        // Unseen packets count as sent.
        (&[(READ, 12, 100)], 10),
        // The PSN after a READ of unknown length does not show that a packet between them was not sent
        // unseen, nor which PSNs are within the READ.
        (&[(READ, 10, MTU), (SEND, 12, 0)], 10),
    ] {
        let mut requester = acknowledged(9);
        requests.iter().for_each(|request| requester.send(10 * MS, [*request]));
        assert_eq!(requester.action(RULES, 99 * MS, NONE, 0), Action::Nak(probe), "{requests:?}");
    }
}

/// The READ may be the rest of another. That a smaller path MTU would explain the PSN after it does not make
/// SENDs that were sent unseen a part of it.
#[test]
fn known_path_mtu_limits_read_that_may_be_a_rest() {
    let mut requester = after_requests([(WRITE_FIRST, 10, MTU), (WRITE_LAST, 11, 0)]);
    requester.on_response(&ack(11), 10 * MS);
    requester.send(10 * MS, [(READ, 13, 4 * MTU), (READ, 21, 4 * MTU)]);
    let mut forged = requester;
    forged.on_response(&ack(12), 11 * MS);
    forged.on_response(&read_response(ONLY, 18), 11 * MS);
    assert_eq!(forged.action(RULES, 99 * MS, NONE, 0), Action::Nak(13));
    requester.on_response(&ack(17), 11 * MS);
    assert_eq!(requester.action(RULES, 99 * MS, NONE, 0), Action::Nak(18));
}

#[test]
fn busy_or_ended_qp_probed_later() {
    let mut requester = after_requests([(SEND, 10, 0)]);
    let mut busy = requester;
    busy.on_response(&nak(10, 0x3f), 11 * MS);
    assert_eq!(busy.action(RULES, 100 * MS, NONE, 0), Action::At(512_520_000), "RNR NAK, 491.52 ms");
    requester.on_response(&nak(10, 0x61), 11 * MS);
    assert_eq!(requester.action(RULES, 100 * MS, NONE, 0), Action::At(10_011 * MS), "NAK, invalid request");
}

#[test]
fn lost_retransmission_is_probed_by_rnr_nak() {
    let mut requester = after_requests([(READ, 10, 100), (SEND, 11, 0)]);
    assert_eq!(requester.action(UNLIMITED, 99 * MS, NONE, 0), Action::Nak(11));
    assert_eq!(requester.action(UNLIMITED, 99 * MS, ONE, 0), Action::RnrNak(10), "first missing response");
    // The responder's own NAK has started a retransmission.
    requester.on_response(&nak(10, 0x60), 11 * MS);
    assert_eq!(requester.action(UNLIMITED, 99 * MS, NONE, 0), Action::RnrNak(10));
    assert_eq!(requester.action(RULES, 99 * MS, NONE, 0), Action::Idle, "the stack ignores a NAK");
    requester.on_response(&read_response(ONLY, 10), 12 * MS);
    assert_eq!(requester.action(UNLIMITED, 99 * MS, NONE, 0), Action::Nak(11));
}

/// Linux 6.1 ends the QP if an ACK or NAK names the next response of a READ.
#[test]
fn next_response_of_a_read_is_not_named() {
    let requester = reading();
    assert_eq!(requester.action(UNLIMITED, 99 * MS, ONE, 0), Action::Nak(16));
    assert_eq!(requester.action(NEWER, 99 * MS, ONE, 0), Action::RnrNak(13));
    // The path MTU is unknown, and the programs may not have seen all responses.
    let mut requester = after_requests([(READ, 10, 4 * MTU)]);
    requester.on_response(&read_response(FIRST, 10), 11 * MS);
    assert_eq!(requester.action(NEWER, 99 * MS, NONE, 0), Action::Nak(10), "unanswered");
    let mut followed = requester;
    followed.on_request(&request(SEND, 14, 0), 12 * MS);
    requester.on_request(&request(READ, 12, 2 * MTU), 12 * MS);
    requester.on_request(&request(READ, 13, MTU), 13 * MS);
    requester.on_request(&request(SEND, 14, 0), 14 * MS);
    for requester in [followed, requester] {
        assert_eq!(requester.action(UNLIMITED, 99 * MS, NONE, 0), Action::Nak(10));
        assert_eq!(requester.action(UNLIMITED, 99 * MS, ONE, 0), Action::RnrNak(10));
    }
}

/// soft-RoCE discards the responses of later READs. The request that it retransmits shows which one it awaits.
#[test]
fn later_read_does_not_hide_lost_response() {
    let read = |psn, packets| request(READ, psn, packets * MTU);
    let first = |psn| read_response(FIRST, psn);
    let last = |psn| read_response(LAST, psn);
    // All responses of the second READ are lost, or the last one of the first.
    for (missing, end) in [(16, 18), (15, 16)] {
        let mut requester = reading();
        requester.on_request(&read(16, 2), 11 * MS);
        requester.on_request(&read(18, 2), 11 * MS);
        for psn in [13, 14] {
            requester.on_response(&read_response(MIDDLE, psn), 12 * MS);
        }
        if missing == 16 {
            requester.on_response(&last(15), 12 * MS);
        }
        requester.on_response(&first(end), 13 * MS);
        requester.on_request(&read(missing, end - missing), 13 * MS);
        requester.on_request(&read(end, 2), 13 * MS);
        requester.on_response(&first(end), 14 * MS);
        requester.on_response(&last(end + 1), 14 * MS);
        assert_eq!(requester.action(NEWER, 33 * MS, NONE, 0), Action::At(34 * MS), "is retransmitted");
        assert_eq!(requester.action(NEWER, 34 * MS, NONE, 0), Action::RnrNak(missing));
        assert_eq!(requester.action(RULES, 34 * MS, NONE, 0), Action::Idle, "the stack ignores a NAK");
        let older = if missing == 16 { Action::RnrNak(16) } else { Action::Nak(20) };
        assert_eq!(requester.action(UNLIMITED, 34 * MS, NONE, 0), older);
        // It has arrived, but not been seen.
        requester.on_request(&request(SEND, 20, 0), 1_000 * MS);
        requester.on_response(&ack(20), 1_001 * MS);
        assert_eq!(requester.read_next, missing);
        requester.on_request(&request(SEND, 21, 0), 1_014 * MS);
        requester.on_response(&ack(21), 1_014 * MS);
        assert_eq!(requester.action(RULES, 9_999 * MS, NONE, 0), Action::Nak(22));
        requester.on_response(&first(18), 1_015 * MS);
        assert_eq!(requester.read_next, 19);
    }
}

#[test]
fn read_behind_acknowledged_data_is_named() {
    let mut requester = after_requests([(READ, 10, 100)]);
    for psn in [11, 12] {
        requester.on_request(&request(SEND, psn, 0), 10 * MS);
        requester.on_response(&ack(psn), 11 * MS);
    }
    requester.on_request(&request(READ, 10, 100), 12 * MS);
    assert_eq!(requester.action(UNLIMITED, 99 * MS, NONE, 0), Action::RnrNak(10));
    // The stack repeats what follows.
    requester.on_request(&request(SEND, 11, 0), 12 * MS);
    assert_eq!(requester.acknowledged(), Some(11));
    assert_eq!(requester.action(NEWER, 99 * MS, NONE, 0), Action::RnrNak(10));
    requester.on_response(&ack(11), 13 * MS);
    requester.on_response(&read_response(ONLY, 10), 14 * MS);
    assert_eq!(requester.action(NEWER, 99 * MS, NONE, 0), Action::Idle);
}

/// The ACK of the SEND after them was lost. The stack has accepted their responses, unless these were corrupt.
#[test]
fn reads_answered_before_data_are_skipped() {
    let unlimited = Settings { limit: 0, ..RULES };
    let probes = |probes| Sent { probes, at_ns: 31 * MS };
    let answered = |opcode| {
        let mut requester = acknowledged(9);
        for (psn, opcode) in [(10, Opcode::RC_SEND_ONLY), (11, opcode), (12, Opcode::RC_SEND_ONLY)] {
            requester.on_request(&request(opcode, psn, 100), 10 * MS);
        }
        requester.on_response(&ack(10), 11 * MS);
        requester.on_response(&read_response(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 11), 11 * MS);
        requester
    };
    let requester = answered(Opcode::RC_RDMA_READ_REQUEST);
    assert_eq!(requester.action(RULES, 99 * MS, NONE, 0), Action::Nak(12));
    assert_eq!(requester.action(unlimited, 99 * MS, probes(1), 0), Action::RnrNak(12));
    assert_eq!(requester.action(unlimited, 999 * MS, probes(2), 0), Action::RnrNak(11));
    // Partly answered: Linux 6.1 takes no NAK within the READ, but one behind it.
    let mut requester = acknowledged(9);
    let read = (12, Opcode::RC_RDMA_READ_REQUEST, 3 * MTU);
    for (psn, opcode, bytes) in [(10, Opcode::RC_SEND_FIRST, MTU), (11, SEND, 0), read, (15, SEND, 0)] {
        requester.on_request(&request(opcode, psn, bytes), 10 * MS);
    }
    requester.on_response(&ack(11), 11 * MS);
    requester.on_response(&read_response(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 12), 11 * MS);
    assert_eq!(requester.action(RULES, 99 * MS, NONE, 0), Action::Nak(15));
    assert_eq!(requester.action(unlimited, 99 * MS, probes(1), 0), Action::Nak(15));
    let newer = Settings { takes_naks_in_reads: true, ..unlimited };
    assert_eq!(requester.action(newer, 99 * MS, probes(1), 0), Action::RnrNak(13));
    // That response was forged.
    assert_eq!(answered(Opcode::RC_SEND_ONLY).action(RULES, 99 * MS, NONE, 0), Action::Nak(11));
}

#[test]
fn read_response_acknowledges_data() {
    let mut requester = after_requests([(WRITE_FIRST, 10, MTU), (WRITE_LAST, 11, 0), (READ, 12, 40 * MTU)]);
    requester.send(10 * MS, [(WRITE_ONLY, 52, 0), (READ, 53, 0)]);
    requester.receive(11 * MS, [(FIRST, 12)]);
    assert_eq!(requester.acknowledged(), Some(10), "the ICRC may be wrong");
    assert_eq!(requester.read_syndrome(FIRST, 12), VERIFIED | 12);
    requester.send(10 * MS, [(READ, 54, 40 * MTU)]);
    assert_eq!(requester.read_syndrome(FIRST, 12), VERIFIED | 12, "far back");
    requester.receive_correct(ONLY, 53);
    assert_eq!(requester.acknowledged(), Some(53));
    assert_eq!(requester.read_syndrome(ONLY, 53), UNVERIFIED, "nothing before it");
    let mut requester = after_requests([(WRITE_FIRST, 10, MTU), (WRITE_LAST, 11, 0), (READ, 12, 40 * MTU)]);
    requester.receive_correct(FIRST, 12);
    assert_eq!(requester.acknowledged(), Some(12));
    // The WRITE that may be lost, not the acknowledged one, which the stack would ignore.
    requester.receive(11 * MS, [(LAST, 51)]);
    requester.send(12 * MS, [(WRITE_ONLY, 52, 0)]);
    assert_eq!(requester.action(NEWER, 1_000 * MS, NONE, 0), Action::Nak(52));
}

#[test]
fn connection_that_only_reads_is_probed() {
    let mut requester = Requester::NEW;
    requester.send(MS, [(READ, 10, 0), (READ, 11, 0), (READ, 12, 0)]);
    requester.receive_correct(ONLY, 10);
    requester.receive_correct(ONLY, 11);
    assert_eq!((requester.acknowledged(), requester.own_qpn()), (Some(11), QPN));
    assert_eq!(requester.action(RULES, 1_000 * MS, NONE, 0), Action::Nak(13));
}

/// Among READs alone, no PSN looks like one half of all PSNs ahead.
#[test]
fn late_response_acknowledges_nothing_later() {
    let mut requester = acknowledged(99);
    for psn in 100..140 {
        requester.send(10 * MS, [(READ, psn, 64)]);
    }
    requester.send(10 * MS, [(READ, 140, 8 * MTU), (SEND, 148, 0)]);
    requester.receive(11 * MS, [(ONLY, 139)]);
    requester.on_response(&ack(148), 11 * MS);
    requester.send(12 * MS, [(SEND, 149, 0), (READ, 150, 64)]);
    requester.receive_correct(ONLY, 139);
    assert_eq!(requester.acknowledged(), Some(149));
    assert_eq!(requester.action(NEWER, 1_000 * MS, NONE, 0), Action::Nak(149));
}

/// Both ends of a QP are reset and start at PSN 0 again, with or without a READ.
#[test]
fn reset_qp_acknowledges_nothing_of_the_earlier() {
    for first in [SEND, READ, Opcode::RC_FETCH_ADD] {
        for at_ns in [MS, 60_000 * MS] {
            let mut requester = acknowledged(99);
            requester.send(at_ns, [(first, 0, 100)]);
            for psn in 1..=100 {
                requester.send(at_ns, [(SEND, psn, 0)]);
            }
            let named = if first == READ { 1 } else { 0 };
            assert_eq!(requester.acknowledged(), Some(named), "{first:?}");
            for settings in [UNLIMITED, NEWER] {
                let action = requester.action(settings, at_ns + 20_000 * MS, NONE, 0);
                assert!(
                    matches!(action, Action::Nak(0 | 1) | Action::RnrNak(0 | 1)),
                    "{first:?}: {action:?}"
                );
            }
        }
    }
}

/// soft-RoCE sends at most 128 PSNs beyond the one that it awaits.
#[test]
fn packet_far_ahead_shows_that_read_was_answered() {
    let mut requester = acknowledged(9);
    let read = request(Opcode::RC_RDMA_READ_REQUEST, 10, 100);
    requester.on_request(&read, 10 * MS);
    requester.on_response(&read_response(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 10), 11 * MS);
    // Retransmitted before the response was processed; the responder does not answer it again.
    requester.on_request(&read, 11 * MS);
    for psn in 11..=266 {
        requester.on_request(&request(Opcode::RC_SEND_ONLY, psn, 0), 12 * MS);
        requester.on_response(&ack(psn), 13 * MS);
    }
    assert_eq!((requester.read_next, requester.retrying), (10, AWAITS_READ));
    requester.on_request(&request(Opcode::RC_SEND_ONLY, 267, 0), 14 * MS);
    assert_eq!((requester.read_next, requester.retrying), (11, 0));
    assert_eq!(requester.action(RULES, 99 * MS, NONE, 0), Action::Nak(267));
}

/// Each NAK restarts the stack's own timer of seconds.
#[test]
fn vain_probes_leave_the_stack_time() {
    let requester = after_requests([(SEND, 10, 0)]);
    let at_ns = 9_000 * MS;
    let next = |probes| requester.action(UNLIMITED, at_ns, Sent { probes, at_ns }, 0);
    assert_eq!(next(3), Action::At(at_ns + 160 * MS));
    for probes in [4, 5, 100] {
        assert_eq!(next(probes), Action::At(at_ns + 10_000 * MS));
    }
    // Until its timer expires, not if a probe makes it retransmit.
    let timed_out = |sent_ms, probes| {
        let mut requester = requester;
        requester.on_request(&request(SEND, 10, 0), sent_ms * MS);
        requester.has_timed_out(Sent { probes, at_ns })
    };
    assert!(timed_out(13_300, 4) && !timed_out(9_010, 4) && !timed_out(13_300, 3));
}

#[test]
fn reused_psns_or_qpns_reset_requester() {
    let mut requester = acknowledged(1_000);
    requester.send(10 * MS, [(SEND, 500, 0), (SEND, 501, 0)]);
    assert_eq!(requester.acknowledged(), Some(500));
    assert_eq!(requester.action(RULES, 20_000 * MS, NONE, 0), Action::Nak(500));
    // Late, of the earlier QP.
    requester.on_response(&ack(1_000), 11 * MS);
    assert_eq!(requester.acknowledged(), Some(500));
    let mut requester = acknowledged(1_000);
    requester.on_response(&Response { own_qpn: QPN + 1, ..ack(1_000) }, 10 * MS);
    requester.on_request(&request(SEND, 1_001, 0), 10 * MS);
    assert_eq!(requester.acknowledged(), None);
}

/// During a retransmission, a late response to another own QP does not acknowledge what precedes the next request.
#[test]
fn response_to_another_qp_acknowledges_nothing() {
    let other = Response { own_qpn: QPN + 1, ..ack(5) };
    let mut requester = after_requests([(SEND, 10, 0), (SEND, 11, 0), (SEND, 12, 0), (SEND, 13, 0)]);
    requester.send(12 * MS, [(SEND, 10, 0)]);
    requester.on_response(&other, 12 * MS);
    requester.send(12 * MS, [(SEND, 11, 0), (SEND, 12, 0), (SEND, 13, 0)]);
    assert_eq!(requester.acknowledged(), None);
    assert_eq!(requester.action(UNLIMITED, 9_999 * MS, NONE, 0), Action::Idle);
    requester.on_response(&ack(9), 13 * MS);
    assert_eq!(requester.action(UNLIMITED, 9_999 * MS, NONE, 0), Action::Nak(10));
}

/// READs use PSNs without acknowledgements: after 2^23, comparisons with those of the last SEND are reversed.
/// Without a verified ACK of the earlier QP, the first request of the new one looks like a retransmission.
#[test]
fn psn_far_behind_starts_another_qp() {
    let mut requester = Requester::NEW;
    requester.on_request(&request(Opcode::RC_FETCH_ADD, 0xff_fffa, 0), MS);
    requester.on_request(&request(SEND, 0x81_9616, 0), 10 * MS);
    requester.on_response(&nak(0x81_9616, NAK.into()), 11 * MS);
    assert_eq!(requester.action(UNLIMITED, 99 * MS, NONE, 0), Action::RnrNak(0x81_9616));
    // Of the earlier QP.
    let mut requester = Requester::NEW;
    requester.on_request(&request(SEND, 0xff_fffa, 0), MS);
    requester.on_response(&ack(0x81_9616), 2 * MS);
    assert_eq!(requester.acknowledged(), None);
}

#[test]
fn half_of_all_psns_ahead_is_not_acknowledged() {
    const HALF: u32 = 1 << 23;
    let mut requester = after_requests([(SEND, plus(10, HALF - 1), 0)]);
    assert_eq!(requester.acknowledged(), None);
    // The probe must not name the packet after it.
    requester.on_request(&request(READ, plus(10, HALF), 1), 10 * MS);
    assert_eq!(requester.action(RULES, 20_000 * MS, NONE, 0), Action::Idle);
    // An idle requester stays so when NAKs acknowledge READs.
    let mut requester = acknowledged(9);
    for step in 1..=3 {
        let psn = plus(10, step * (HALF / 2));
        requester.next = psn;
        requester.read_next = psn;
        requester.reads_end = psn;
        requester.on_response(&nak(psn, NAK.into()), 3 * MS);
        assert_eq!(requester.acknowledged(), Some(psn));
        assert_eq!(requester.action(RULES, 20_000 * MS, NONE, 0), Action::Idle, "{step}");
    }
}

/// A PSN beyond it would complete it.
#[test]
fn atomic_write_and_flush_are_not_skipped() {
    for opcode in [Opcode::RC_ATOMIC_WRITE, Opcode::RC_FLUSH] {
        let mut requester = after_requests([(opcode, 10, 8)]);
        assert_eq!(requester.action(RULES, 50 * MS, NONE, 0), Action::Nak(10), "{opcode:?}");
        requester.on_request(&request(READ, 11, 100), 10 * MS);
        assert_eq!(requester.action(RULES, 50 * MS, NONE, 0), Action::Nak(10), "{opcode:?}");
    }
}

/// Soft-RoCE after Linux 6.1 ends a QP that receives an ACK before the next response of a READ.
#[test]
fn ack_before_a_read_response_is_dropped() {
    // The READ uses 12 to 15; the first response has arrived.
    let mut requester = reading();
    for (psn, syndrome, drops) in [(11, 0x1f, true), (11, 0x60, false), (11, 0x21, false), (16, 0x1f, false)]
    {
        assert_eq!(requester.drops(&nak(psn, syndrome), 12 * MS), drops, "{psn} {syndrome:#x}");
    }
    // The stack may still process that response, unless it has had the time.
    requester.on_request(&request(WRITE_LAST, 11, 0), 13 * MS);
    assert!(requester.drops(&ack(11), 14 * MS));
    requester.on_request(&request(WRITE_LAST, 11, 0), 200 * MS);
    assert!(!requester.drops(&ack(11), 201 * MS));
    assert!(requester.drops(&ack(10), 201 * MS));
    // A corrupt response beyond all requests.
    requester.on_response(&read_response(ONLY, 1 << 20), 202 * MS);
    assert!(!requester.drops(&ack(11), 202 * MS));
    // The first packet seen may follow others.
    let mut requester = Requester::NEW;
    requester.on_request(&request(READ, 10, 100), MS);
    assert!(!requester.drops(&ack(9), 2 * MS));
    let trimmed = Response { syndrome: TRIMMED, ..read_response(MIDDLE, 13) };
    let mut requester = reading();
    requester.on_response(&read_response(LAST, 15), 12 * MS);
    assert!(!requester.drops(&trimmed, 12 * MS));
    // PSNs wrap, however long ago the last READ was.
    let mut requester = reading();
    for psn in (16..1 << 24).step_by(1 << 20) {
        requester.on_request(&request(SEND, psn, 0), 20 * MS);
        assert!(!requester.drops(&ack(psn), 20 * MS), "{psn}");
    }
}

/// With a QP timeout of 14, 67 ms, each retransmission would be answered by an ACK that is dropped.
#[test]
fn corrupt_response_makes_acks_stale_once() {
    let mut requester = after_requests([(SEND, 10, 0)]);
    requester.receive(11 * MS, [(LAST, 500)]);
    for (retry_ms, drops) in [(78, true), (145, false), (212, false)] {
        requester.send(retry_ms * MS, [(SEND, 10, 0)]);
        assert_eq!(requester.drops(&ack(10), (retry_ms + 1) * MS), drops, "{retry_ms}");
    }
}

#[test]
fn probe_delay_grows_with_round_trip() {
    let mut requester = acknowledged(9);
    for psn in 10..60 {
        let at_ns = u64::from(psn) * 1_000 * MS;
        requester.on_request(&request(SEND, psn, 0), at_ns);
        requester.on_response(&ack(psn), at_ns + 40 * MS);
    }
    assert!((38 * MS..=40 * MS).contains(&requester.srtt_ns()), "{}", requester.srtt_ns());
    requester.on_request(&request(SEND, 60, 0), 100_000 * MS);
    let Action::At(due_ns) = requester.action(RULES, 100_001 * MS, NONE, 0) else {
        panic!("it is not due");
    };
    assert!((100_150 * MS..=100_200 * MS).contains(&due_ns), "{due_ns}");
}

#[test]
fn requester_is_announced_once_per_interval() {
    let mut requester = Requester::NEW;
    let send = |requester: &mut Requester, psn, at_ns| requester.on_request(&request(SEND, psn, 0), at_ns);
    assert!(send(&mut requester, 1, ANNOUNCE_NS));
    assert!(!send(&mut requester, 2, ANNOUNCE_NS + 1));
    assert!(requester.is_announced_again(2 * ANNOUNCE_NS));
    assert!(send(&mut requester, 3, 2 * ANNOUNCE_NS));
    SharedRequester::new(&mut requester).on_announcement_lost();
    assert!(send(&mut requester, 4, 2 * ANNOUNCE_NS + 2));
}

/// A message of the model: PSNs `first..end`.
#[derive(Clone, Copy, Debug)]
struct Message {
    is_read: bool,
    first: u64,
    end: u64,
}

/// Soft-RoCE's requester (drivers/infiniband/sw/rxe/rxe_comp.c of Linux 6.1 and 6.12): `check_psn` and `check_ack`.
#[derive(Debug, Default)]
struct Stack {
    /// Linux 6.12.
    takes_naks_in_reads: bool,
    /// A READ is partly answered (`comp.opcode`).
    is_in_read: bool,
    /// A probe or a NAK of `dcqcn run` has ended the QP.
    has_ended: bool,
    /// An ACK has overwritten `comp.opcode` during a READ: its next response ends the QP.
    has_lost_place: bool,
    /// That has happened.
    has_ended_in_read: bool,
    /// `started_retry`.
    is_retrying: bool,
    messages: Vec<Message>,
    /// Messages completed.
    completed: usize,
    /// The PSN that the completer expects.
    expected: u64,
    /// The next packet to send.
    next: u64,
}

impl Stack {
    fn oldest(&self) -> Option<Message> {
        self.messages.get(self.completed).copied()
    }

    /// After a NAK: ignored while another retransmission is under way.
    fn retry(&mut self) {
        if !core::mem::replace(&mut self.is_retrying, true) {
            self.go_back();
        }
    }

    fn go_back(&mut self) {
        if let Some(oldest) = self.oldest() {
            self.expected = self.expected.max(oldest.first);
            self.next = self.expected;
        }
    }

    fn end(&self) -> u64 {
        self.messages.last().map_or(0, |message| message.end)
    }

    fn complete(&mut self, message: Message) {
        self.completed += 1;
        (self.is_in_read, self.has_lost_place) = (false, false);
        self.expected = self.expected.max(message.end);
        self.next = self.next.max(self.expected);
    }

    /// Completes the SENDs and WRITEs before `psn`, and returns the message that uses it; retries a READ before it.
    fn message_at(&mut self, psn: u64) -> Option<Message> {
        loop {
            let oldest = self.oldest()?;
            if psn < oldest.end {
                return Some(oldest);
            }
            if oldest.is_read {
                self.retry();
                return None;
            }
            self.complete(oldest);
        }
    }

    /// An ACK, a NAK or an RNR NAK, by syndrome. `is_ours`: of `dcqcn run`.
    fn on_ack(&mut self, psn: u64, syndrome: u8, is_ours: bool) {
        let Some(oldest) = self.message_at(psn) else { return };
        let is_early = psn < self.expected && !(self.is_in_read && self.takes_naks_in_reads);
        if is_early || psn > self.expected && oldest.is_read {
            return;
        }
        if self.is_in_read && !self.takes_naks_in_reads {
            self.has_ended |= is_ours;
        } else if syndrome == RNR_NAK {
            self.go_back();
        } else if syndrome == NAK {
            self.expected = self.expected.max(psn);
            self.retry();
        } else if !oldest.is_read {
            self.advance(psn, oldest);
        } else if self.is_in_read {
            self.has_lost_place = true;
        }
    }

    fn on_read_response(&mut self, psn: u64) {
        if let Some(oldest) = self.message_at(psn)
            && oldest.is_read
            && psn == self.expected.max(oldest.first)
        {
            self.has_ended_in_read |= self.has_lost_place;
            self.next = self.next.max(psn + 1);
            self.advance(psn, oldest);
        }
    }

    /// `psn` of the oldest message is acknowledged or answered.
    fn advance(&mut self, psn: u64, oldest: Message) {
        self.is_retrying = false;
        self.is_in_read = oldest.is_read;
        self.expected = psn + 1;
        if self.expected == oldest.end {
            self.complete(oldest);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Safety and progress under loss, trimming, forgery, delay, reordering and unseen packets, whenever
    /// probes and NAKs are sent.
    ///
    /// No SEND completes that the responder has not accepted, no READ without all of its responses, no QP
    /// ends by a probe, none by an ACK if the programs see all packets, and everything completes in the end.
    /// No NAK names a PSN beyond those accepted.
    #[test]
    fn only_accepted_messages_complete(
        start in any::<u32>(),
        kinds in proptest::collection::vec((any::<bool>(), 1u64..6), 1..40),
        lost in proptest::collection::vec(0u8..6, 0..600),
        probes in proptest::collection::vec(any::<bool>(), 0..200),
        unseen in proptest::collection::vec(0u8..20, 0..100),
        trims in proptest::collection::vec(any::<bool>(), 0..200),
        naks in proptest::collection::vec(any::<bool>(), 0..200),
        forged in proptest::collection::vec((0u8..8, -4i64..12), 0..200),
        passes in proptest::collection::vec(0u8..12, 0..600),
        late in proptest::collection::vec(any::<bool>(), 0..200),
        swaps in proptest::collection::vec(0u8..10, 0..600),
        waits in proptest::collection::vec(any::<bool>(), 0..600),
        (takes_naks_in_reads, sees_all) in any::<(bool, bool)>(),
        (step_ms, attached_ms) in (prop_oneof![Just(1u64), Just(1_000)], 1u64..20),
    ) {
        let psn = |packet: u64| Psn24(start).at(packet);
        let mut stack = Stack { takes_naks_in_reads, ..Stack::default() };
        let (mut requester, mut accepted, mut now_ns) = (Requester::NEW, 0u64, MS);
        // The QP of the other host.
        let mut far = Requester::NEW;
        let (mut lost, mut probes, mut unseen) = (lost.into_iter(), probes.into_iter(), unseen.into_iter());
        let (mut trims, mut naks, mut forged) = (trims.into_iter(), naks.into_iter(), forged.into_iter());
        let (mut passes, mut late, mut arriving) = (passes.into_iter(), late.into_iter(), Vec::new());
        let (mut swaps, mut last_data) = (swaps.into_iter(), 0);
        let (mut waits, mut queue) = (waits.into_iter(), VecDeque::new());
        let attached_ms = if sees_all { 0 } else { attached_ms };
        let mut kinds = VecDeque::from(kinds);
        let mut responded = Vec::<u64>::new();
        let (mut idle, mut sent) = (0, NONE);
        for _ in 0..20_000 {
            now_ns += step_ms * MS;
            let is_attached = now_ns > attached_ms * MS;
            if stack.next == stack.end() && stack.messages.len() - stack.completed < 4
                && let Some((is_read, packets)) = kinds.pop_front()
            {
                let first = stack.end();
                stack.messages.push(Message { is_read, first, end: first + packets });
            }
            let mut responses = Vec::new();
            let acknowledge = Opcode::RC_ACKNOWLEDGE;
            let message = stack.messages.iter().find(|message| stack.next < message.end).copied();
            if let Some(message) = message {
                idle = 0;
                let at = stack.next;
                let (packet, used) = if message.is_read {
                    let packets = (message.end - at) as u32;
                    (request(READ, psn(at), packets * MTU), message.end)
                } else {
                    let opcode = match (at == message.first, at + 1 == message.end) {
                        (true, true) => WRITE_ONLY,
                        (true, false) => WRITE_FIRST,
                        (false, false) => WRITE_MIDDLE,
                        (false, true) => WRITE_LAST,
                    };
                    let bytes = if at + 1 == message.end { 0 } else { MTU };
                    (request(opcode, psn(at), bytes), at + 1)
                };
                stack.next = used;
                if is_attached && (unseen.next() != Some(0) || sees_all) {
                    requester.on_request(&packet, now_ns);
                }
                let mut arrival = Arrival {
                    opcode: SEND,
                    psn: psn(at),
                    is_trimmed: false,
                    own_qpn: QPN,
                    udp_sport: 1,
                };
                if lost.next() == Some(0) {
                    arrival.is_trimmed = true;
                    if !message.is_read && trims.next() == Some(true) {
                        far.on_arrival(&arrival, now_ns);
                    }
                } else {
                    if message.is_read || at == message.first {
                        far.on_arrival(&arrival, now_ns);
                    }
                    if at > accepted {
                        responses.push((accepted, acknowledge, NAK));
                    } else if message.is_read {
                        accepted = accepted.max(used);
                        responses.extend((at..used).map(|packet| (packet, read_opcode(packet, at, used), ACK)));
                    } else {
                        // A repeated one is answered for the last one (`duplicate_request` of rxe_resp.c).
                        last_data = last_data.max(at);
                        accepted = accepted.max(used);
                        responses.push((last_data, acknowledge, ACK));
                    }
                }
            } else {
                idle += 1;
            }
            for (packet, opcode, syndrome) in responses {
                if unseen.next() != Some(0) {
                    far.on_answer(&Answer { opcode, psn: psn(packet), syndrome: syndrome.into() }, now_ns + 1);
                }
                if lost.next() != Some(0) {
                    arriving.push((packet, opcode, syndrome));
                } else if opcode != acknowledge && trims.next() == Some(true) {
                    let trimmed = Response { syndrome: TRIMMED, ..read_response(opcode, psn(packet)) };
                    requester.on_response(&trimmed, now_ns);
                }
            }
            let is_late = late.next() == Some(true);
            if arriving.len() > 1 && swaps.next() == Some(0) {
                arriving.swap(0, 1);
            }
            for (packet, opcode, syndrome) in if is_late { Vec::new() } else { core::mem::take(&mut arriving) } {
                // 0: the programs do not see it, 1: the stack does not.
                let passes = passes.next();
                let is_read = opcode != acknowledge;
                let word = match is_read {
                    true => SharedRequester::new(&mut requester).syndrome_if_correct(opcode, psn(packet), takes_naks_in_reads),
                    false => syndrome.into(),
                };
                let response = nak(psn(packet), word);
                if is_attached
                    && (passes != Some(0) || sees_all)
                    && requester.drops(&Response { opcode, ..response }, now_ns)
                {
                    continue;
                }
                if passes != Some(1) || sees_all && !is_read {
                    queue.push_back((packet, is_read, syndrome));
                }
            }
            // The stack processes them later than the programs, and may retransmit before that.
            while (step_ms != 1 || waits.next() != Some(true))
                && let Some((packet, is_read, syndrome)) = queue.pop_front()
            {
                if is_read {
                    responded.push(packet);
                    stack.on_read_response(packet);
                } else {
                    stack.on_ack(packet, syndrome, false);
                }
            }
            if let Some((kind @ 0..3, ahead)) = forged.next() {
                let packet = accepted.saturating_add_signed(ahead);
                let own_qpn = if kind == 0 { QPN + 1 } else { QPN };
                let (psn, is_trimmed) = (psn(packet), kind != 1);
                let arrival = Arrival { opcode: SEND, psn, is_trimmed, own_qpn, udp_sport: 1 };
                far.on_arrival(&arrival, now_ns + 2);
            }
            // At any time: what matters is the PSN.
            let rules = Settings { limit: 0, floor_ns: 0, takes_naks_in_reads };
            let packet_of = |psn24: u32, near: u64| {
                near.checked_add_signed(i64::from(distance(psn(near), psn24))).unwrap_or(0)
            };
            if naks.next() == Some(true)
                && let action = far.answer(rules, now_ns + 900 * MS, 0)
                && let Action::Nak(named) | Action::RnrNak(named) = action
            {
                let syndrome = if let Action::Nak(_) = action { NAK } else { RNR_NAK };
                let packet = packet_of(named, accepted);
                prop_assert!(packet <= accepted, "NAK of {packet}, {accepted} accepted");
                far.on_answer(&Answer { opcode: Opcode::RC_ACKNOWLEDGE, psn: named, syndrome: OWN_NAK }, now_ns + 3);
                if lost.next() != Some(0) {
                    requester.on_response(&nak(named, syndrome.into()), now_ns);
                    stack.on_ack(packet, syndrome, true);
                }
            }
            if probes.next() == Some(true) {
                let (probe, syndrome) = match requester.action(rules, now_ns + 20_000 * MS, sent, 0) {
                    Action::Nak(psn) => (psn, NAK),
                    Action::RnrNak(psn) => (psn, RNR_NAK),
                    _ => continue,
                };
                sent.probes = (sent.probes + 1) % 3;
                stack.on_ack(packet_of(probe, accepted.max(stack.end())), syndrome, true);
            }
            prop_assert!(!stack.has_ended, "{requester:?} named {}", stack.expected);
            if stack.has_ended_in_read {
                prop_assert!(!sees_all, "{requester:?} let an ACK pass");
                return Ok(());
            }
            for message in &stack.messages[..stack.completed] {
                if message.is_read {
                    prop_assert!((message.first..message.end).all(|packet| responded.contains(&packet)));
                } else {
                    prop_assert!(message.end <= accepted, "{message:?} completed, {accepted} accepted");
                }
            }
            if idle > 5 {
                // The stack's own timer.
                stack.go_back();
            }
            if kinds.is_empty() && stack.completed == stack.messages.len() {
                break;
            }
        }
        prop_assert_eq!(stack.completed, stack.messages.len());
    }
}

/// Opcode of the response `packet` to a READ of `first..end`, which may be the rest of another.
fn read_opcode(packet: u64, first: u64, end: u64) -> Opcode {
    match (packet == first, packet + 1 == end) {
        (true, true) => ONLY,
        (true, false) => FIRST,
        (false, false) => MIDDLE,
        (false, true) => LAST,
    }
}

/// PSNs counted from this one.
struct Psn24(u32);

impl Psn24 {
    fn at(&self, packet: u64) -> u32 {
        plus(self.0, packet as u32)
    }
}
