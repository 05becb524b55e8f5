//! Frames to classify.

use dcqcn_common::wire::bth::{BthRepr, Opcode};
use dcqcn_common::wire::eth::{EtherType, Ethernet, EthernetRepr};
use dcqcn_common::wire::ipv4::Ipv4;
use dcqcn_common::wire::ipv6::Ipv6;
use dcqcn_frames::{link, mac, packet};

pub(crate) const QPN: u32 = 0x0012_3456;
pub(crate) const TOS: u8 = 0x6a;
pub(crate) const SRC_V4: [u8; 4] = dcqcn_frames::v4(1);
pub(crate) const DST_V4: [u8; 4] = dcqcn_frames::v4(2);
pub(crate) const SRC_V6: [u8; 16] = dcqcn_frames::v6(1);
pub(crate) const DST_V6: [u8; 16] = dcqcn_frames::v6(2);

/// A packet from host 1 to host 2, with `body` between BTH and ICRC.
pub(crate) fn build(v6: bool, opcode: Opcode, qpn: u32, body: &[u8]) -> Vec<u8> {
    let bth = BthRepr::new(opcode, qpn, 7);
    packet(link(mac(2), mac(1), &[], v6), v6, (1, 2), TOS, bth, body)
}

pub(crate) fn ethernet(ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let header = EthernetRepr { dst: mac(2), src: mac(1), ethertype }.bytes();
    [&header[..], payload].concat()
}

/// A data packet over IPv4 and one over IPv6.
pub(crate) fn data() -> [Vec<u8>; 2] {
    [false, true].map(|v6| build(v6, Opcode::RC_RDMA_WRITE_MIDDLE, QPN, &[0x55; 64]))
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
