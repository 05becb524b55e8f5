//! Frames to classify.

use dcqcn_common::wire::bth::{Bth, BthRepr, Opcode};
use dcqcn_common::wire::eth::{EtherType, Ethernet, EthernetRepr};
use dcqcn_common::wire::icrc;
use dcqcn_common::wire::ipv4::{Ipv4, Ipv4Repr};
use dcqcn_common::wire::ipv6::{Ipv6, Ipv6Repr};
use dcqcn_common::wire::udp::{self, Udp, UdpRepr};

pub(crate) const QPN: u32 = 0x0012_3456;
pub(crate) const TOS: u8 = 0x6a;
pub(crate) const SRC_V4: [u8; 4] = [10, 0, 0, 1];
pub(crate) const DST_V4: [u8; 4] = [10, 0, 0, 2];
pub(crate) const SRC_V6: [u8; 16] = *b"\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01";
pub(crate) const DST_V6: [u8; 16] = *b"\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02";

/// UDP to ICRC, with `body` between BTH and ICRC.
pub(crate) fn segment(opcode: Opcode, qpn: u32, body: &[u8]) -> Vec<u8> {
    let length = (Udp::LEN + Bth::LEN + body.len() + icrc::LEN) as u16;
    let udp = UdpRepr { src_port: 0xc000, dst_port: udp::ROCE_V2_PORT, length, checksum: 0 }.bytes();
    let bth = BthRepr::new(opcode, qpn, 7).bytes();
    [&udp[..], &bth, body, &[0; icrc::LEN]].concat()
}

pub(crate) fn ethernet(ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let header = EthernetRepr { dst: [2; 6], src: [4; 6], ethertype }.bytes();
    [&header[..], payload].concat()
}

pub(crate) fn over_v4(segment: &[u8]) -> Vec<u8> {
    let repr = Ipv4Repr { id: 1, ..Ipv4Repr::of_udp(TOS, SRC_V4, DST_V4, segment.len() as u16) };
    ethernet(EtherType::IPV4, &[&repr.bytes()[..], segment].concat())
}

pub(crate) fn over_v6(segment: &[u8]) -> Vec<u8> {
    let repr =
        Ipv6Repr { flow_label: 0x0001_2345, ..Ipv6Repr::of_udp(TOS, SRC_V6, DST_V6, segment.len() as u16) };
    ethernet(EtherType::IPV6, &[&repr.bytes()[..], segment].concat())
}

/// A data packet over IPv4 and one over IPv6.
pub(crate) fn data() -> [Vec<u8>; 2] {
    let segment = segment(Opcode::RC_RDMA_WRITE_MIDDLE, QPN, &[0x55; 64]);
    [over_v4(&segment), over_v6(&segment)]
}

/// Puts tags of these TPIDs in, the outermost first.
pub(crate) fn tagged(frame: &[u8], tpids: &[u16]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for tpid in tpids.iter().rev() {
        let [high, low] = tpid.to_be_bytes();
        frame.splice(12..12, [high, low, 0x60, 0x05]);
    }
    frame
}

/// Overwrites bytes.
pub(crate) fn patched(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

// Where things are in an untagged frame.
pub(crate) const L3: usize = Ethernet::LEN;
pub(crate) const UDP_V4: usize = L3 + Ipv4::LEN;
pub(crate) const UDP_V6: usize = L3 + Ipv6::LEN;
