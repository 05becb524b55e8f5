//! Pairs learned from connection management, in both engines.

use dcqcn_common::classify::mapped;
use dcqcn_common::flow::QpId;
use dcqcn_common::layout::{Pair, PairSource};
use dcqcn_common::params::{Config, Scalars};
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Opcode;
use dcqcn_common::wire::cm::{CmMessage, CommIds, Dreq, Rej, Rep};
use dcqcn_replay::{Hook, Meta, State};
use dcqcn_tests::both::{Both, LO, count};
use dcqcn_tests::packets::{self, Roce, cm};

/// The requester, host 1, and the responder, host 2.
const A: (u8, u32, u32) = (1, 0x0a0a_0001, 0x11);
const B: (u8, u32, u32) = (2, 0x0b0b_0002, 0x23);

fn qp((host, _, qpn): (u8, u32, u32)) -> QpId {
    QpId { addr: mapped(packets::v4(host)), qpn, vlan: 0 }
}

fn request() -> Vec<u8> {
    cm(A.0, B.0, &CmMessage::Req(packets::req(A.1, A.2)))
}

/// The reply, for the responder's QP `qpn`.
fn reply(qpn: u32) -> Vec<u8> {
    let comm_ids = CommIds { local: B.1, remote: A.1 };
    cm(B.0, A.0, &CmMessage::Rep(Rep { comm_ids, local_qpn: qpn, starting_psn: 1 }))
}

/// Both engines without a flow.
struct Path(Both);

impl Path {
    fn load(test: &str) -> Option<Self> {
        Both::load(test, 8, &Config::DEFAULT).map(Self)
    }

    fn observe(&mut self, hook: Hook, frame: &[u8]) -> State {
        self.0.process(hook, 1_000, frame, &Meta { ingress_ifindex: LO, ..Meta::default() });
        self.0.state()
    }
}

fn pairs_of(first: QpId, second: QpId, source: PairSource) -> Vec<(QpId, Pair)> {
    let source = source as u32;
    let pair = |other: QpId| Pair { qpn: other.qpn, source, addr: other.addr };
    vec![(first, pair(second)), (second, pair(first))]
}

/// rping between two hosts with soft-RoCE, observed on the path.
#[test]
fn pair_lives_from_rep_to_dreq() {
    for hook in [Hook::Ingress, Hook::Egress] {
        let Some(mut path) = Path::load("pair_lives_from_rep_to_dreq") else { return };
        let mut known = Vec::new();
        for (_, frame) in packets::capture("rc_cm_rping.pcap") {
            let state = path.observe(hook, &frame);
            if known.last() != Some(&state.pairs) {
                known.push(state.pairs);
            }
        }
        let state = path.0.state();
        let [none, pairs, after] = &known[..] else { panic!("{known:?}") };
        assert!(none.is_empty() && after.is_empty(), "{known:?}");
        let [(first, pair), (second, back)] = pairs[..] else { panic!("{pairs:?}") };
        assert_eq!((pair.qpn, back.qpn), (second.qpn, first.qpn));
        assert!([pair, back].iter().all(|pair| pair.source == PairSource::Cm as u32));
        assert_ne!(first.addr, second.addr);
        // REQ, REP, RTU, DREQ, DREP.
        assert_eq!(count(&state, hook, Stat::CmMessages), 5);
        assert_eq!(count(&state, hook, Stat::PairCm), 1);
        let reported: Vec<_> = state.events.iter().map(|event| (event.id, event.values)).collect();
        let expected =
            [(first, pair), (second, back)].map(|(id, pair)| (id, [pair.qpn.into(), pair.source.into()]));
        assert!(reported.len() == 2 && expected.iter().all(|pair| reported.contains(pair)), "{reported:?}");
    }
}

#[test]
fn cm_in_both_directions_makes_pair() {
    let Some(mut host) = Path::load("cm_in_both_directions_makes_pair") else { return };
    assert!(host.observe(Hook::Egress, &request()).pairs.is_empty());
    let state = host.observe(Hook::Ingress, &reply(B.2));
    assert_eq!(state.pairs, pairs_of(qp(A), qp(B), PairSource::Cm));
    // A repetition, as after a lost RTU.
    let again = host.observe(Hook::Ingress, &reply(B.2));
    assert_eq!((again.pairs, again.events), (state.pairs, state.events));
    // The responder requests the end.
    let comm_ids = CommIds { local: B.1, remote: A.1 };
    let dreq = cm(B.0, A.0, &CmMessage::Dreq(Dreq { comm_ids, remote_qpn: A.2 }));
    assert!(host.observe(Hook::Ingress, &dreq).pairs.is_empty());
}

#[test]
fn unsolicited_rep_and_rej_make_no_pair() {
    let Some(mut path) = Path::load("unsolicited_rep_and_rej_make_no_pair") else { return };
    assert!(path.observe(Hook::Ingress, &reply(B.2)).pairs.is_empty());
    path.observe(Hook::Ingress, &request());
    assert!(!path.observe(Hook::Ingress, &reply(B.2)).pairs.is_empty());
    // The requester rejects the reply.
    let comm_ids = CommIds { local: A.1, remote: B.1 };
    let reject = cm(A.0, B.0, &CmMessage::Rej(Rej { comm_ids, message: 1, reason: 28 }));
    assert!(path.observe(Hook::Ingress, &reject).pairs.is_empty());
}

/// The QP of a connection that ended unseen is used by the next one.
#[test]
fn later_connection_replaces_pair() {
    let Some(mut path) = Path::load("later_connection_replaces_pair") else { return };
    path.observe(Hook::Ingress, &request());
    path.observe(Hook::Ingress, &reply(B.2));
    let state = path.observe(Hook::Ingress, &reply(0x24));
    let at_a = state.pairs.iter().find(|(id, _)| *id == qp(A)).map(|(_, pair)| pair.qpn);
    assert_eq!(at_a, Some(0x24));
    assert_eq!(
        count(&state, Hook::Ingress, Stat::PairConflict),
        0,
        "a changed pair of the same source is not a conflict"
    );
}

#[test]
fn trusted_source_takes_precedence() {
    let Some(mut path) = Path::load("trusted_source_takes_precedence") else { return };
    let static_pair = Pair::new(0x77, PairSource::Static);
    path.0.set_pair(&qp(A), &static_pair);
    let guessed = Pair::new(0x78, PairSource::Datagram);
    path.0.set_pair(&qp(B), &guessed);
    path.observe(Hook::Ingress, &request());
    let state = path.observe(Hook::Ingress, &reply(B.2));
    let of = |id: QpId| state.pairs.iter().find(|(known, _)| *known == id).map(|(_, pair)| *pair);
    assert_eq!(of(qp(A)), Some(static_pair), "the static pair takes precedence");
    assert_eq!(
        of(qp(B)),
        Some(Pair { qpn: A.2, source: PairSource::Cm as u32, addr: qp(A).addr }),
        "a learned pair does not"
    );
    assert_eq!(count(&state, Hook::Ingress, Stat::PairConflict), 2);
    // Messages do not end such a pair.
    let comm_ids = CommIds { local: B.1, remote: A.1 };
    let dreq = cm(B.0, A.0, &CmMessage::Dreq(Dreq { comm_ids, remote_qpn: A.2 }));
    let state = path.observe(Hook::Ingress, &dreq);
    assert!(state.pairs.contains(&(qp(A), static_pair)), "{:?}", state.pairs);
}

/// A third host forges the end of a connection between two others.
#[test]
fn third_party_cannot_remove_pair() {
    let Some(mut path) = Path::load("third_party_cannot_remove_pair") else { return };
    path.observe(Hook::Ingress, &request());
    let known = path.observe(Hook::Ingress, &reply(B.2)).pairs;
    let dreq = Dreq { comm_ids: CommIds { local: B.1, remote: A.1 }, remote_qpn: A.2 };
    assert_eq!(path.observe(Hook::Ingress, &cm(3, A.0, &CmMessage::Dreq(dreq))).pairs, known);
    assert!(path.observe(Hook::Ingress, &cm(B.0, A.0, &CmMessage::Dreq(dreq))).pairs.is_empty());
}

/// Forged connections evict real ones slowly at most.
#[test]
fn pair_learning_rate_limited() {
    let Some(mut path) = Path::load("pair_learning_rate_limited") else { return };
    let datagram = |n: u32| Roce { opcode: Opcode::UD_SEND_ONLY, source_qpn: 0x100 + n, ..Roce::default() };
    path.0.set_config(&Config {
        scalars: Scalars { link_rate_bps: 1_000_000_000, ..Config::DEFAULT.scalars },
        ..Config::DEFAULT
    });
    for n in 0..9_000 {
        path.0.process(Hook::Egress, 1_000, &datagram(n).frame(), &Meta::default());
    }
    // Which entries remain is up to the kernel's tables.
    let counters = path.0.counters();
    assert_eq!(counters[Hook::Egress.slot()].stat[Stat::PairLimited as usize], 9_000 - 8_192);
}

/// Messages truncated at every length, or of another class: nothing is learned.
#[test]
fn invalid_message_makes_no_pair() {
    let Some(mut path) = Path::load("invalid_message_makes_no_pair") else { return };
    let request = request();
    let whole = request.len();
    for len in (14..whole).step_by(7) {
        path.observe(Hook::Ingress, &request[..len]);
        path.observe(Hook::Egress, &request[..len]);
    }
    for at in [62, 63, 64, 65] {
        let mut other = request.clone();
        other[at] ^= 0x40;
        path.observe(Hook::Ingress, &other);
    }
    let state = path.observe(Hook::Ingress, &reply(B.2));
    assert!(state.pairs.is_empty());
    // Only the reply counts; a request truncated within its ICRC is complete in all parsed fields.
    assert_eq!(count(&state, Hook::Ingress, Stat::CmMessages), 1);
}
