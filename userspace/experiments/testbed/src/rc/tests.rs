//! Both ends through a pipe that loses, repeats and reorders.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use proptest::prelude::*;

use super::*;

const TIMEOUT_NS: u64 = 1_000_000;

fn config(mtu_bytes: u32, window_packets: u32, ack_every_packets: u32) -> RequesterConfig {
    RequesterConfig {
        mtu_bytes,
        window_packets,
        ack_every_packets,
        timeout_ns: TIMEOUT_NS,
        first_psn: Psn::new(0x00ff_fff0),
        remote_address: 0x1000,
        rkey: 7,
        messages: Some(3),
    }
}

fn message(length: usize) -> Bytes {
    (0..length).map(|i| (i * 31 % 251) as u8).collect()
}

/// A one-way pipe: packets leave in order of an arrival time that jitters.
struct Pipe<T> {
    in_transit: BTreeMap<(u64, u64), T>,
    sequence: u64,
    impairment: Impairment,
}

#[derive(Clone, Copy, Debug)]
struct Impairment {
    loss_percent: u64,
    duplicate_percent: u64,
    jitter_ns: u64,
}

impl<T: Clone> Pipe<T> {
    fn new(impairment: Impairment) -> Self {
        Self { in_transit: BTreeMap::new(), sequence: 0, impairment }
    }

    fn push(&mut self, item: T, now_ns: u64, rng: &mut Rng) {
        let copies = 1 + u64::from(rng.u64(..100) < self.impairment.duplicate_percent);
        for _ in 0..copies {
            if rng.u64(..100) >= self.impairment.loss_percent {
                let arrival_ns = now_ns + 10_000 + rng.u64(..=self.impairment.jitter_ns);
                self.sequence += 1;
                self.in_transit.insert((arrival_ns, self.sequence), item.clone());
            }
        }
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.in_transit.keys().next().map(|key| key.0)
    }

    fn pop(&mut self, now_ns: u64) -> Option<T> {
        let entry = self.in_transit.first_entry()?;
        (entry.key().0 <= now_ns).then(|| entry.remove())
    }
}

/// Runs until the requester is complete. Returns the messages as the responder put them together.
fn run(
    config: RequesterConfig,
    message: &Bytes,
    impairment: Impairment,
    seed: u64,
) -> (Vec<Vec<u8>>, Requester, Responder) {
    // Seeded, so that a failing case can be shrunk and replayed.
    let mut rng = Rng::with_seed(seed);
    let mut responder = Responder::new(config.first_psn, config.mtu_bytes);
    let mut requester = Requester::new(config, message.clone());
    let (mut forward, mut back) = (Pipe::new(impairment), Pipe::new(impairment));
    let (mut received, mut memory) = (Vec::new(), BytesMut::zeroed(message.len()));
    let mut now_ns = 0;
    for _ in 0..2_000_000 {
        if requester.is_complete() {
            return (received, requester, responder);
        }
        while let Some(packet) = requester.next_packet() {
            requester.on_sent(&packet, now_ns);
            forward.push(packet, now_ns, &mut rng);
            now_ns += 100;
        }
        now_ns = [forward.next_arrival_ns(), back.next_arrival_ns(), requester.deadline_ns()]
            .into_iter()
            .flatten()
            .min()
            .expect("an incomplete requester has a packet under way or a timer running")
            .max(now_ns);
        while let Some(packet) = forward.pop(now_ns) {
            let WritePacket { segment, psn, ack_request, region, payload, retransmission: _ } = packet;
            let (verdict, reply) =
                responder.on_packet(segment, psn, ack_request, region, payload.len() as u32);
            if let Verdict::Delivered { offset_bytes } = verdict {
                let start = offset_bytes as usize;
                memory[start..start + payload.len()].copy_from_slice(&payload);
                if segment.ends_message() {
                    received.push(memory.to_vec());
                    memory.fill(0);
                }
            }
            if let Some(reply) = reply {
                back.push(reply, now_ns, &mut rng);
            }
        }
        while let Some(reply) = back.pop(now_ns) {
            match reply.kind {
                ReplyKind::Ack => requester.on_ack(reply.psn, now_ns),
                ReplyKind::NakSequence => requester.on_nak_sequence(reply.psn, now_ns),
            }
        }
        requester.on_timer(now_ns);
    }
    panic!("not complete after 2,000,000 steps: {requester:?}");
}

const CLEAN: Impairment = Impairment { loss_percent: 0, duplicate_percent: 0, jitter_ns: 0 };

#[test]
fn segments_first_middle_last_only() {
    let forms = |length: usize| {
        let mut requester =
            Requester::new(RequesterConfig { messages: Some(1), ..config(256, 64, 64) }, message(length));
        let mut forms = Vec::new();
        while let Some(packet) = requester.next_packet() {
            requester.on_sent(&packet, 0);
            assert_eq!(packet.region.is_some(), packet.segment.starts_message());
            assert_eq!(packet.ack_request, packet.segment.ends_message());
            forms.push((packet.segment, packet.payload.len()));
        }
        forms
    };
    assert_eq!(forms(1), [(Segment::Only, 1)]);
    assert_eq!(forms(256), [(Segment::Only, 256)]);
    assert_eq!(forms(257), [(Segment::First, 256), (Segment::Last, 1)]);
    assert_eq!(forms(768), [(Segment::First, 256), (Segment::Middle, 256), (Segment::Last, 256)]);
}

#[test]
fn clean_pipe_needs_no_recovery() {
    let message = message(10_000);
    let (received, requester, responder) = run(config(256, 16, 8), &message, CLEAN, 1);
    assert_eq!(received, vec![message.to_vec(); 3]);
    let stats = requester.stats();
    assert_eq!((stats.packets_retransmitted, stats.timeouts, stats.naks), (0, 0, 0));
    assert_eq!(stats.bytes_acknowledged, 30_000);
    assert_eq!(stats.messages_completed, 3);
    assert_eq!(stats.packets_sent, responder.stats().packets_delivered);
    assert!(responder.stats().acks_sent < stats.packets_sent / 4, "acknowledgements are coalesced");
}

#[test]
fn gap_causes_one_nak_one_rewind() {
    let mut requester = Requester::new(config(256, 8, 8), message(256 * 8));
    let mut responder = Responder::new(config(256, 8, 8).first_psn, 256);
    let mut replies = Vec::new();
    while let Some(packet) = requester.next_packet() {
        requester.on_sent(&packet, 0);
        if packet.psn != Psn::new(0x00ff_fff2) {
            let (_, reply) =
                responder.on_packet(packet.segment, packet.psn, packet.ack_request, packet.region, 256);
            replies.extend(reply);
        }
    }
    assert_eq!(replies, [Reply { kind: ReplyKind::NakSequence, psn: Psn::new(0x00ff_fff2), msn: 0 }]);
    requester.on_nak_sequence(replies[0].psn, 5);
    let again = requester.next_packet().unwrap();
    assert_eq!((again.psn, again.retransmission, again.ack_request), (Psn::new(0x00ff_fff2), true, true));
    assert_eq!(requester.stats().bytes_acknowledged, 512);
}

#[test]
fn lost_ack_repaired_by_duplicate() {
    let mut requester =
        Requester::new(RequesterConfig { messages: Some(1), ..config(256, 8, 8) }, message(256));
    let mut responder = Responder::new(config(256, 8, 8).first_psn, 256);
    let packet = requester.next_packet().unwrap();
    requester.on_sent(&packet, 0);
    let mut deliver = |packet: &WritePacket| {
        responder.on_packet(packet.segment, packet.psn, packet.ack_request, packet.region, 256)
    };
    assert_eq!(deliver(&packet).0, Verdict::Delivered { offset_bytes: 0 });
    assert!(requester.next_packet().is_none());
    requester.on_timer(TIMEOUT_NS - 1);
    assert!(requester.next_packet().is_none(), "not before the timeout");
    requester.on_timer(TIMEOUT_NS);
    let again = requester.next_packet().unwrap();
    assert!(again.retransmission);
    requester.on_sent(&again, TIMEOUT_NS);
    let (verdict, reply) = deliver(&again);
    assert_eq!(verdict, Verdict::Duplicate);
    requester.on_ack(reply.unwrap().psn, TIMEOUT_NS + 1);
    assert!(requester.is_complete());
    assert_eq!(requester.deadline_ns(), None);
}

#[test]
fn answers_to_unsent_packets_are_ignored() {
    let mut requester = Requester::new(config(256, 8, 8), message(256 * 8));
    let packet = requester.next_packet().unwrap();
    requester.on_sent(&packet, 0);
    for psn in [packet.psn.plus(1), packet.psn.plus(1000), packet.psn.previous()] {
        requester.on_ack(psn, 1);
        requester.on_nak_sequence(psn, 1);
    }
    assert_eq!(requester.in_flight_packets(), 1);
    assert_eq!(requester.stats(), RequesterStats { packets_sent: 1, ..RequesterStats::default() });
}

#[test]
fn invalid_opcode_sequence_rejected() {
    let first_psn = Psn::new(9);
    let region = Some(RemoteRegion { virtual_address: 0, rkey: 0, length_bytes: 600 });
    let refused = |segment, region, payload_bytes| {
        let mut responder = Responder::new(first_psn, 256);
        responder.on_packet(segment, first_psn, true, region, payload_bytes).0 == Verdict::Invalid
    };
    assert!(refused(Segment::Middle, None, 256), "no message in progress");
    assert!(refused(Segment::First, None, 256), "no RETH");
    assert!(refused(Segment::First, region, 255), "short of a full packet");
    assert!(refused(Segment::Only, region, 600), "more than the MTU");
    assert!(refused(Segment::Only, region, 256), "less than the message");
    assert!(!refused(Segment::First, region, 256));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every message arrives completely, once and in order, for any behaviour of the pipe.
    #[test]
    fn always_completes_exactly_once_in_order(
        seed in any::<u64>(),
        first_psn in any::<u32>(),
        length in 1usize..6_000,
        mtu_exponent in 5u32..=9,
        window_packets in 1u32..40,
        ack_every_packets in 1u32..64,
        loss_percent in 0u64..25,
        duplicate_percent in 0u64..20,
        jitter_ns in 0u64..5_000,
    ) {
        let message = message(length);
        let config = RequesterConfig {
            first_psn: Psn::new(first_psn),
            ..config(1 << mtu_exponent, window_packets, ack_every_packets)
        };
        let impairment = Impairment { loss_percent, duplicate_percent, jitter_ns };
        let (received, requester, responder) = run(config, &message, impairment, seed);
        prop_assert_eq!(&received, &vec![message.to_vec(); 3]);
        prop_assert_eq!(requester.stats().bytes_acknowledged, 3 * length as u64);
        prop_assert_eq!(requester.stats().messages_completed, 3);
        prop_assert_eq!(responder.stats().bytes_delivered, 3 * length as u64);
        prop_assert_eq!(responder.stats().invalid, 0);
        prop_assert!(requester.stats().packets_sent >= responder.stats().packets_delivered);
    }
}
