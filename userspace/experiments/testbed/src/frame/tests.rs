use super::*;
use proptest::prelude::*;

fn path(v6: bool) -> Path {
    let addresses = if v6 {
        Addresses::V6 { src: [0xfd; 16], dst: [0xfe; 16] }
    } else {
        Addresses::V4 { src: [10, 0, 1, 2], dst: [10, 0, 0, 2] }
    };
    Path {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        addresses,
        udp_src_port: 0xc123,
        dscp: 26,
        ecn: Ecn::ECT0,
        dest_qpn: 0x1234,
    }
}

fn packet(segment: Segment, payload: Bytes) -> WritePacket {
    let length_bytes = payload.len() as u32;
    let region = RemoteRegion { virtual_address: 0x7000_0000_0000, rkey: 9, length_bytes };
    WritePacket {
        segment,
        psn: Psn::new(77),
        ack_request: true,
        region: segment.starts_message().then_some(region),
        payload,
        retransmission: false,
    }
}

#[test]
fn frame_lengths_match_wire() {
    let mut frame = BytesMut::new();
    path(false).write_request(&mut frame, &packet(Segment::Middle, message(4096)), 0);
    assert_eq!(frame.len(), 14 + 20 + 8 + 12 + 4096 + 4);
    path(true).write_request(&mut frame, &packet(Segment::First, message(4095)), 0);
    assert_eq!(frame.len(), 14 + 40 + 8 + 12 + 16 + 4096 + 4);
    assert!(frame.len() <= 4096 + MAX_OVERHEAD_BYTES);
    let reply = Reply { kind: ReplyKind::Ack, psn: Psn::new(1), msn: 2 };
    path(false).write_reply(&mut frame, &reply);
    assert_eq!(frame.len(), 14 + 20 + 8 + 12 + 4 + 4);
}

#[test]
fn damaged_frame_rejected_marked_accepted() {
    let mut frame = BytesMut::new();
    path(false).write_request(&mut frame, &packet(Segment::Only, message(100)), 5);
    frame[Ethernet::LEN + 1] = Ecn::CE.apply(frame[Ethernet::LEN + 1]);
    assert!(Received::parse(&frame).unwrap().ce);
    *frame.last_mut().unwrap() ^= 1;
    assert_eq!(Received::parse(&frame), Err(IgnoreReason::BadIcrc));
}

proptest! {
    #[test]
    fn request_round_trips(
        v6 in any::<bool>(),
        form in 0usize..4,
        length in 1usize..600,
        sent_at_ns in any::<u64>(),
    ) {
        let segment = [Segment::First, Segment::Middle, Segment::Last, Segment::Only][form];
        let packet = packet(segment, message(length));
        let mut frame = BytesMut::new();
        path(v6).write_request(&mut frame, &packet, sent_at_ns);
        // Ethernet padding changes nothing.
        frame.put_bytes(0, 20);
        prop_assert_eq!(Received::parse(&frame), Ok(Received {
            dst_mac: path(v6).dst_mac,
            dest_qpn: 0x1234,
            psn: packet.psn,
            ce: false,
            dscp: path(v6).dscp,
            body: Body::Write {
                segment,
                ack_request: true,
                region: packet.region,
                payload_bytes: length as u32,
                sent_at_ns: (length >= 8).then_some(sent_at_ns),
            },
        }));
    }

    #[test]
    fn reply_round_trips(v6 in any::<bool>(), nak in any::<bool>(), psn in any::<u32>()) {
        let (kind, body) = if nak {
            (ReplyKind::NakSequence, Body::NakSequence)
        } else {
            (ReplyKind::Ack, Body::Ack)
        };
        let psn = Psn::new(psn);
        let mut frame = BytesMut::new();
        path(v6).write_reply(&mut frame, &Reply { kind, psn, msn: 3 });
        let received = Received::parse(&frame).unwrap();
        prop_assert_eq!((received.psn, received.body), (psn, body));
    }

    #[test]
    fn random_bytes_rejected_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Received::parse(&bytes).is_err());
    }

    #[test]
    fn truncated_frame_rejected(v6 in any::<bool>(), keep in 0usize..130) {
        let mut frame = BytesMut::new();
        path(v6).write_request(&mut frame, &packet(Segment::Only, message(64)), 1);
        frame.truncate(keep.min(frame.len() - 1));
        prop_assert!(Received::parse(&frame).is_err());
    }
}
