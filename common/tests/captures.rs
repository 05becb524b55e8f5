//! Captures of Linux's soft-RoCE driver: every packet must be parsed completely.

mod frames;

use dcqcn_common::classify::QP_GSI;
use dcqcn_common::wire::{
    bth::{Bth, BthRepr, Opcode, Transport},
    cm::{Attribute, CommIds, Mad},
    ecn::Ecn,
    eth::{EtherType, Ethernet, EthernetRepr},
    ext::{Aeth, AethRepr, Deth, GSI_Q_KEY, NakCode, Reth, Syndrome},
    icrc,
    ipv4::{self, Ipv4, Ipv4Repr},
    udp::{self, Udp, UdpRepr},
};
use frames::frames;

/// A parsed packet over IPv4.
struct Packet<'a> {
    ip: Ipv4Repr,
    bth: BthRepr,
    /// The bytes after the BTH, without padding and ICRC.
    body: &'a [u8],
}

/// Parses a frame, and checks that emitting its headers gives the same bytes.
fn dissect(frame: &[u8]) -> Packet<'_> {
    let (eth, l3) = Ethernet::parse(frame).expect("an Ethernet header");
    assert_eq!(eth.ethertype(), EtherType::IPV4);
    assert_eq!(EthernetRepr::parse(eth).bytes(), *eth.as_bytes());

    let (ip, l4) = Ipv4::parse(l3).expect("an IPv4 header");
    assert_eq!(usize::from(ip.total_len()), l3.len());
    assert_eq!(ip.protocol(), udp::IP_PROTOCOL);
    assert!(ip.dont_fragment() && !ip.is_fragment());
    let ip_repr = Ipv4Repr::parse(ip).expect("no options, right checksum");
    assert_eq!(ip_repr.bytes(), *ip.as_bytes());

    let (udp, transport) = Udp::parse(l4).expect("a UDP header");
    assert_eq!((udp.dst_port(), udp.checksum()), (udp::ROCE_V2_PORT, 0));
    assert_eq!(usize::from(udp.length()), l4.len());
    assert_eq!(UdpRepr::parse(udp).bytes(), *udp.as_bytes());

    let (bth, rest) = Bth::parse(transport).expect("a BTH");
    let bth_repr = BthRepr::parse(bth);
    assert_eq!(bth_repr.bytes(), *bth.as_bytes());
    assert!(bth.opcode().is_known());

    let end = rest.len().checked_sub(usize::from(bth.pad_count()) + icrc::LEN).expect("padding and ICRC");
    assert!(bth.opcode().ext_len() <= end);
    Packet { ip: ip_repr, bth: bth_repr, body: &rest[..end] }
}

/// The opcodes of a capture's packets, in order.
fn opcodes(frames: &[Vec<u8>]) -> Vec<Opcode> {
    frames.iter().map(|frame| dissect(frame).bth.opcode).collect()
}

fn count(opcodes: &[Opcode], wanted: impl Fn(Opcode) -> bool) -> usize {
    opcodes.iter().filter(|&&opcode| wanted(opcode)).count()
}

#[test]
fn captured_icrcs_survive_mark_and_hop() {
    for (name, packets) in
        [("rc_cm_rping.pcap", 65), ("rc_read.pcap", 271), ("rc_write.pcap", 270), ("ud_send.pcap", 100)]
    {
        let frames = frames(name);
        assert_eq!(frames.len(), packets, "{name}");
        for (number, mut frame) in frames.into_iter().enumerate() {
            let l3 = &mut frame[Ethernet::LEN..];
            assert!(icrc::verify(l3), "{name}: packet {number}");

            let header = l3.first_chunk_mut::<{ Ipv4::LEN }>().unwrap();
            let ip = Ipv4Repr::parse(Ipv4::new(header)).unwrap();
            Ipv4Repr { tos: Ecn::CE.apply(ip.tos), ttl: ip.ttl - 1, ..ip }.emit(header);
            assert!(icrc::verify(l3), "{name}: packet {number}, marked");

            l3[Ipv4::LEN + Udp::LEN + 5] ^= 1;
            assert!(!icrc::verify(l3), "{name}: packet {number}, other queue pair");
            assert_eq!(icrc::seal(l3), Some(()));
            assert!(icrc::verify(l3), "{name}: packet {number}, sealed again");
        }
    }
}

#[test]
fn mark_checksum_incremental_equals_full() {
    for frame in frames("rc_write.pcap") {
        let (_, l3) = Ethernet::parse(&frame).unwrap();
        let (ip, _) = Ipv4::parse(l3).unwrap();
        let mut marked = *ip.as_bytes();
        let repr = Ipv4Repr::parse(ip).unwrap();
        Ipv4Repr { tos: Ecn::CE.apply(repr.tos), ..repr }.emit(&mut marked);
        let first_word = |tos: u8| u16::from_be_bytes([0x45, tos]);
        let updated = ipv4::checksum_update16(ip.checksum(), first_word(ip.tos()), first_word(marked[1]));
        assert_eq!(updated, Ipv4::new(&marked).checksum());
    }
}

#[test]
fn writes_are_data_acks_are_not() {
    let frames = frames("rc_write.pcap");
    let opcodes = opcodes(&frames);
    let first = count(&opcodes, |opcode| opcode == Opcode::RC_RDMA_WRITE_FIRST);
    let last = count(&opcodes, |opcode| opcode == Opcode::RC_RDMA_WRITE_LAST);
    assert!(first > 0 && first.abs_diff(last) <= 1);
    assert!(count(&opcodes, |opcode| opcode == Opcode::RC_ACKNOWLEDGE) > 0);

    for frame in &frames {
        let Packet { bth, body, .. } = dissect(frame);
        assert!(bth.opcode.is_of(Transport::Rc));
        assert_eq!(bth.opcode.is_data(), !bth.opcode.is_response());
        let payload = body.len() - bth.opcode.ext_len();
        match bth.opcode {
            Opcode::RC_RDMA_WRITE_FIRST => {
                let (reth, _) = Reth::parse(body).unwrap();
                assert_eq!((reth.dma_len(), payload), (4096, 1024));
            }
            Opcode::RC_RDMA_WRITE_MIDDLE | Opcode::RC_RDMA_WRITE_LAST => assert_eq!(payload, 1024),
            Opcode::RC_ACKNOWLEDGE => {
                let (aeth, rest) = Aeth::parse(body).unwrap();
                assert!(rest.is_empty());
                check_aeth(aeth);
            }
            other => panic!("unexpected {}", other.name()),
        }
    }
}

/// An acknowledgement, or the NAK of a lost packet, whose emission gives the same bytes.
fn check_aeth(aeth: Aeth<'_>) {
    let repr = AethRepr::parse(aeth);
    assert!(matches!(repr.syndrome, Syndrome::Ack { .. } | Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR)));
    let mut bytes = [0; Aeth::LEN];
    repr.emit(&mut bytes);
    assert_eq!(bytes, *aeth.as_bytes());
}

#[test]
fn read_responses_are_data_in_reverse() {
    let frames = frames("rc_read.pcap");
    let opcodes = opcodes(&frames);
    assert!(count(&opcodes, |opcode| opcode == Opcode::RC_RDMA_READ_REQUEST) > 0);
    assert!(count(&opcodes, Opcode::is_read_response) > 0);

    for frame in &frames {
        let Packet { ip, bth, body } = dissect(frame);
        let requester_sent = ip.src == [10, 0, 0, 1];
        if bth.opcode == Opcode::RC_RDMA_READ_REQUEST {
            assert!(requester_sent && !bth.opcode.is_data());
            let (reth, rest) = Reth::parse(body).unwrap();
            assert_eq!(reth.dma_len(), 4096);
            assert!(rest.is_empty());
        } else {
            assert!(!requester_sent && bth.opcode.is_data() && bth.opcode.is_response());
            if bth.opcode.has_aeth() {
                check_aeth(Aeth::parse(body).unwrap().0);
            }
            assert_eq!(body.len() - bth.opcode.ext_len(), 1024);
        }
    }
}

#[test]
fn datagrams_name_their_sender() {
    for frame in frames("ud_send.pcap") {
        let Packet { bth, body, .. } = dissect(&frame);
        assert_eq!(bth.opcode, Opcode::UD_SEND_ONLY);
        assert!(bth.opcode.is_data() && bth.opcode.has_deth());
        let (deth, payload) = Deth::parse(body).unwrap();
        assert_eq!((deth.q_key(), deth.src_qpn()), (0x1111_1111, 0x19));
        assert_eq!(payload.len(), 1024);
    }
}

#[test]
fn cm_reveals_both_qps() {
    let frames = frames("rc_cm_rping.pcap");
    let mut messages = Vec::new();
    let mut data_to = Vec::new();
    for frame in &frames {
        let Packet { ip, bth, body } = dissect(frame);
        if !bth.opcode.is_of(Transport::Ud) {
            data_to.push((ip.dst, bth.dest_qpn));
            continue;
        }
        assert_eq!(bth.dest_qpn, QP_GSI);
        let (deth, datagram) = Deth::parse(body).unwrap();
        assert_eq!((deth.q_key(), deth.src_qpn()), (GSI_Q_KEY, QP_GSI));
        let (mad, rest) = Mad::parse(datagram).unwrap();
        assert!(rest.is_empty());
        messages.push((ip.src, mad));
    }

    let client = [10, 0, 0, 1];
    let server = [10, 0, 0, 2];
    let kinds: Vec<_> = messages.iter().map(|(src, mad)| (*src, mad.attribute())).collect();
    let expected = [
        (client, Attribute::REQ),
        (server, Attribute::REP),
        (client, Attribute::RTU),
        (client, Attribute::DREQ),
        (server, Attribute::DREP),
    ];
    assert_eq!(kinds, expected);
    let [req, rep, rtu, dreq, drep] = [0, 1, 2, 3, 4].map(|at| CommIds::parse(messages[at].1));
    assert_eq!((rep.remote, rtu), (req.local, CommIds { local: req.local, remote: rep.local }));
    assert_eq!((dreq, drep), (rtu, CommIds { local: rtu.remote, remote: rtu.local }));
    let (client_qpn, server_qpn) = (messages[0].1.req_qpn(), messages[1].1.rep_qpn());
    assert_eq!(messages[3].1.dreq_qpn(), server_qpn);

    // The messages must match the connection's packets.
    assert!(data_to.contains(&(client, client_qpn)) && data_to.contains(&(server, server_qpn)));
    for (dst, qpn) in data_to {
        assert_eq!(qpn, if dst == client { client_qpn } else { server_qpn });
    }
}
