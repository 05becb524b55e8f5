//! A NAK as a frame: the packet with which a responder requests retransmission (IBTA vol. 1, 9.7.5.2).

use core::array;

use super::bth::{Bth, BthRepr, Opcode};
use super::eth::{EtherType, Ethernet, EthernetRepr, MacAddr, VlanTag, VlanTagRepr};
use super::ext::{Aeth, AethRepr, Syndrome};
use super::icrc;
use super::ipv4::{Ipv4, Ipv4Repr};
use super::ipv6::{Ipv6, Ipv6Repr};
use super::udp::{self, Udp, UdpRepr};
use crate::flow::FlowId;
use crate::id::V4_MAPPED;

/// UDP length of a NAK, bytes.
const UDP_LEN: usize = Udp::LEN + Bth::LEN + Aeth::LEN + icrc::LEN;
/// Length of the longest frame, with a VLAN tag and IPv6, bytes.
pub const MAX_LEN: usize = Ethernet::LEN + VlanTag::LEN + Ipv6::LEN + UDP_LEN;

/// Fields of a NAK other than its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nak {
    /// The requester's QPN, 24 bits.
    pub dest_qpn: u32,
    /// The PSN to go back to, 24 bits.
    pub psn: u32,
    pub udp_sport: u16,
    /// DSCP and ECN.
    pub tos: u8,
    /// TPID of the VLAN tag, if the flow has one.
    pub tpid: EtherType,
    /// Priority in the VLAN tag, 0 to 7.
    pub pcp: u8,
    pub syndrome: Syndrome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Macs {
    pub dst: MacAddr,
    pub src: MacAddr,
}

/// Writes the NAK from the receiver of `flow` to its sender; returns the frame.
///
/// `None` if the flow has two VLAN tags, because the outer tag's protocol is unknown.
pub fn emit<'a>(
    out: &'a mut [u8; MAX_LEN],
    flow: &FlowId,
    Macs { dst, src }: Macs,
    nak: &Nak,
) -> Option<&'a [u8]> {
    let vid = u16::try_from(flow.receiver.vlan).ok().filter(|vid| *vid < 1 << 12)?;
    let is_v4 = matches!(flow.src, [0, 0, V4_MAPPED, _]);
    let network = if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 };
    let tag_len = if vid == 0 { 0 } else { VlanTag::LEN };
    let ethertype = if vid == 0 { network } else { nak.tpid };
    let (eth, rest) = out.split_first_chunk_mut()?;
    EthernetRepr { dst, src, ethertype }.emit(eth);
    let (tag, l3) = rest.split_at_mut(tag_len);
    if let Some(tag) = tag.first_chunk_mut() {
        VlanTagRepr { pcp: nak.pcp, dei: false, vid, ethertype: network }.emit(tag);
    }
    let (from, to) = (bytes(flow.receiver.addr), bytes(flow.src));
    let Nak { dest_qpn, psn, udp_sport, tos, syndrome, .. } = *nak;
    let ip_len = if is_v4 {
        let (Some(from), Some(to)) = (from.last_chunk(), to.last_chunk()) else { return None };
        Ipv4Repr::of_udp(tos, *from, *to, UDP_LEN as u16).emit(l3.first_chunk_mut()?);
        Ipv4::LEN
    } else {
        Ipv6Repr::of_udp(tos, from, to, UDP_LEN as u16).emit(l3.first_chunk_mut()?);
        Ipv6::LEN
    };
    let l3 = l3.get_mut(..ip_len + UDP_LEN)?;
    let (udp, rest) = l3.get_mut(ip_len..)?.split_first_chunk_mut()?;
    UdpRepr { src_port: udp_sport, dst_port: udp::ROCE_V2_PORT, length: UDP_LEN as u16, checksum: 0 }
        .emit(udp);
    let (bth, rest) = rest.split_first_chunk_mut()?;
    BthRepr::new(Opcode::RC_ACKNOWLEDGE, dest_qpn, psn).emit(bth);
    AethRepr { syndrome, msn: 0 }.emit(rest.first_chunk_mut()?);
    icrc::seal(l3)?;
    out.get(..Ethernet::LEN + tag_len + ip_len + UDP_LEN)
}

/// An address in wire order.
fn bytes(addr: [u32; 4]) -> [u8; 16] {
    array::from_fn(|at| addr[at / 4].to_ne_bytes()[at % 4])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::mapped;
    use crate::flow::QpId;
    use crate::wire::ext::NakCode;

    const MACS: Macs = Macs { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2] };
    const NAK: Nak = Nak {
        dest_qpn: 0x12,
        psn: 0x00ab_cdef,
        udp_sport: 49_152,
        tos: 0xc0,
        tpid: EtherType::QINQ,
        pcp: 6,
        syndrome: Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR),
    };

    #[test]
    fn nak_over_ipv4_and_ipv6_is_valid() {
        for (src, addr, vlan, l3) in [
            (mapped([10, 0, 0, 1]), mapped([10, 0, 0, 2]), 0, 14),
            (mapped([10, 0, 0, 1]), mapped([10, 0, 0, 2]), 7, 18),
            ([1, 2, 3, 4], [5, 6, 7, 8], 0, 14),
        ] {
            let flow = FlowId { src, receiver: QpId { addr, qpn: 9, vlan } };
            let mut out = [0; MAX_LEN];
            let frame = emit(&mut out, &flow, MACS, &NAK).unwrap();
            assert!(icrc::verify(&frame[l3..]));
            assert_eq!(frame[..12], [MACS.dst, MACS.src].concat());
            if vlan != 0 {
                assert_eq!(frame[12..16], [0x88, 0xa8, 0xc0, 7]);
            }
            let syndrome = if src[0] == 0 {
                icrc::syndrome_v4(frame[l3..].first_chunk().unwrap())
            } else {
                icrc::syndrome_v6(frame[l3..].first_chunk().unwrap())
            };
            assert_eq!(syndrome, Some(0x60));
        }
    }

    #[test]
    fn wrong_icrc_or_length_has_no_syndrome() {
        let flow = FlowId { src: mapped([1; 4]), receiver: QpId { addr: mapped([2; 4]), qpn: 9, vlan: 0 } };
        let mut out = [0; MAX_LEN];
        let frame = emit(&mut out, &flow, MACS, &NAK).unwrap();
        let good: [u8; 48] = *frame[14..].first_chunk().unwrap();
        assert_eq!(icrc::syndrome_v4(&good), Some(0x60));
        for at in (0..48).filter(|at| ![1, 8, 10, 11, 26, 27, 32].contains(at)) {
            let mut bad = good;
            bad[at] ^= 1;
            assert_eq!(icrc::syndrome_v4(&bad), None, "byte {at}");
        }
    }

    #[test]
    fn two_tags_are_rejected() {
        let flow = FlowId { src: [1; 4], receiver: QpId { addr: [2; 4], qpn: 9, vlan: 0x00_1002 } };
        assert_eq!(emit(&mut [0; MAX_LEN], &flow, MACS, &NAK), None);
    }
}
