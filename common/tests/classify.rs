//! The classifier on whole frames: every packet of the captures, one frame of each kind that a network may hold, and
//! arbitrary bytes.

mod frames;

use dcqcn_common::{
    classify::{Frame, Kind, Roce, classify, mapped, words},
    flow::QpId,
    stats::Stat,
    wire::{
        bth::{Bth, BthRepr, Opcode},
        ecn::Ecn,
        eth::{EtherType, Ethernet, EthernetRepr},
        ext::{Deth, DethRepr},
        icrc,
        ipv4::{Ipv4, Ipv4Repr},
        ipv6::{Ipv6, Ipv6Repr},
        udp::{self, Udp, UdpRepr},
    },
};
use proptest::prelude::*;

/// A frame in one piece.
struct Bytes<'a>(&'a [u8]);

impl Frame for Bytes<'_> {
    fn frame_len(&self) -> u32 {
        self.0.len() as u32
    }
    fn header<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        self.0.get(at..)?.first_chunk()
    }
}

fn kind(frame: &[u8]) -> Result<Kind, Stat> {
    classify(&mut Bytes(frame)).map(|roce| roce.kind())
}

const QPN: u32 = 0x0012_3456;
const TOS: u8 = 0x6a;
const SRC_V4: [u8; 4] = [10, 0, 0, 1];
const DST_V4: [u8; 4] = [10, 0, 0, 2];
const SRC_V6: [u8; 16] = *b"\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01";
const DST_V6: [u8; 16] = *b"\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02";

/// UDP to ICRC, with `body` between BTH and ICRC.
fn segment(opcode: Opcode, qpn: u32, body: &[u8]) -> Vec<u8> {
    let length = Udp::LEN + Bth::LEN + body.len() + icrc::LEN;
    let mut bytes = vec![0; length];
    let (udp, rest) = bytes.split_first_chunk_mut().unwrap();
    let repr = UdpRepr { src_port: 0xc000, dst_port: udp::ROCE_V2_PORT, length: length as u16, checksum: 0 };
    repr.emit(udp);
    let (bth, rest) = rest.split_first_chunk_mut().unwrap();
    BthRepr::new(opcode, qpn, 7).emit(bth);
    rest[..body.len()].copy_from_slice(body);
    bytes
}

fn ethernet(ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; Ethernet::LEN];
    EthernetRepr { dst: [2; 6], src: [4; 6], ethertype }.emit(frame.first_chunk_mut().unwrap());
    frame.extend_from_slice(payload);
    frame
}

fn over_v4(segment: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; Ipv4::LEN];
    let repr = Ipv4Repr {
        tos: TOS,
        total_len: (Ipv4::LEN + segment.len()) as u16,
        id: 1,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: udp::IP_PROTOCOL,
        src: SRC_V4,
        dst: DST_V4,
    };
    repr.emit(packet.first_chunk_mut().unwrap());
    packet.extend_from_slice(segment);
    ethernet(EtherType::IPV4, &packet)
}

fn over_v6(segment: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; Ipv6::LEN];
    let repr = Ipv6Repr {
        traffic_class: TOS,
        flow_label: 0x0001_2345,
        payload_len: segment.len() as u16,
        next_header: udp::IP_PROTOCOL,
        hop_limit: 64,
        src: SRC_V6,
        dst: DST_V6,
    };
    repr.emit(packet.first_chunk_mut().unwrap());
    packet.extend_from_slice(segment);
    ethernet(EtherType::IPV6, &packet)
}

/// A data packet over IPv4 and one over IPv6.
fn data() -> [Vec<u8>; 2] {
    let segment = segment(Opcode::RC_RDMA_WRITE_MIDDLE, QPN, &[0x55; 64]);
    [over_v4(&segment), over_v6(&segment)]
}

/// Puts tags of these TPIDs in, the outermost first.
fn tagged(frame: &[u8], tpids: &[u16]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for tpid in tpids.iter().rev() {
        let [high, low] = tpid.to_be_bytes();
        frame.splice(12..12, [high, low, 0x60, 0x05]);
    }
    frame
}

/// Overwrites bytes.
fn patched(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

// Where things are in an untagged frame.
const L3: usize = Ethernet::LEN;
const UDP_V4: usize = L3 + Ipv4::LEN;
const UDP_V6: usize = L3 + Ipv6::LEN;

/// What facts of the standard say of an opcode, written down apart from the code under test.
fn expected(opcode: u8, qpn: u32) -> Result<Kind, Stat> {
    let data = match opcode {
        0x81 => return Ok(Kind::Cnp),
        // SEND and WRITE of RC, UC, RD, XRC; RC's and XRC's SEND with invalidate; UD's SEND; READ responses.
        0x00..=0x0b | 0x20..=0x2b | 0x40..=0x4b | 0xa0..=0xab => true,
        0x16 | 0x17 | 0xb6 | 0xb7 | 0x64 | 0x65 => true,
        0x0d..=0x10 | 0x4d..=0x50 | 0xad..=0xb0 => true,
        // READ requests, acknowledgements, atomics, RESYNC, FLUSH, ATOMIC WRITE, InfiniBand's own CNP.
        0x0c | 0x4c | 0xac | 0x11..=0x14 | 0x51..=0x54 | 0xb1..=0xb4 | 0x55 | 0x1c | 0x1d | 0x5c | 0x80 => false,
        _ => return Err(Stat::UnknownBth),
    };
    Ok(if data && qpn > 1 { Kind::Data } else { Kind::Control })
}

#[test]
fn captured_packets_are_what_their_opcode_says() {
    for (name, data, control) in
        [("rc_cm_rping.pcap", None, None), ("rc_read.pcap", None, None), ("rc_write.pcap", None, None), ("ud_send.pcap", Some(100), Some(0))]
    {
        let mut counted = [0, 0];
        for (number, frame) in frames::frames(name).iter().enumerate() {
            // All of it is IPv4 without tags.
            let bth = UDP_V4 + Udp::LEN;
            let qpn = u32::from_be_bytes([0, frame[bth + 5], frame[bth + 6], frame[bth + 7]]);
            let roce = classify(&mut Bytes(frame)).unwrap_or_else(|stat| panic!("{name} {number}: {}", stat.label()));
            assert_eq!(Ok(roce.kind()), expected(frame[bth], qpn), "{name} {number}");
            assert_eq!((roce.l3, roce.v6, roce.bth()), (L3, false, bth), "{name} {number}");
            assert_eq!((roce.opcode.0, roce.dest_qpn, roce.tos), (frame[bth], qpn, frame[L3 + 1]), "{name} {number}");
            counted[usize::from(roce.kind() == Kind::Control)] += 1;
        }
        assert!(data.is_none_or(|n| n == counted[0]) && control.is_none_or(|n| n == counted[1]), "{name}: {counted:?}");
    }
}
