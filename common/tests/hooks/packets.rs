//! Packets between host 1 and host 2.

use super::*;

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// The QP of host 2 that data is for, and the sending QP of host 1.
pub(crate) const RECEIVER_QPN: u32 = 0x11;
pub(crate) const SENDER_QPN: u32 = 0x22;

/// A packet from host 1 to host 2, unless it is reversed.
#[derive(Clone, Copy)]
pub(crate) struct Roce {
    pub(crate) v6: bool,
    pub(crate) tag: Option<VlanTagRepr>,
    pub(crate) opcode: Opcode,
    pub(crate) dest_qpn: u32,
    pub(crate) source_qpn: u32,
    pub(crate) dscp: u8,
    pub(crate) ecn: Ecn,
    pub(crate) payload: usize,
    pub(crate) is_back: bool,
    pub(crate) dst_mac: [u8; 6],
}

pub(crate) const DATA: Roce = Roce {
    v6: false,
    tag: None,
    opcode: Opcode::RC_RDMA_WRITE_MIDDLE,
    dest_qpn: RECEIVER_QPN,
    source_qpn: SENDER_QPN,
    dscp: 26,
    ecn: Ecn::ECT0,
    payload: 1_000,
    is_back: false,
    dst_mac: mac(2),
};

pub(crate) const MARKED: Roce = Roce { ecn: Ecn::CE, ..DATA };
pub(crate) const ACK: Roce = Roce { opcode: Opcode::RC_ACKNOWLEDGE, payload: 0, ..DATA };
pub(crate) const REQUEST: Roce = Roce { opcode: Opcode::RC_RDMA_READ_REQUEST, payload: 0, ..DATA };
pub(crate) const NOT_ECT: Roce = Roce { ecn: Ecn::NOT_ECT, ..DATA };
/// Data of another flow.
pub(crate) const OTHER: Roce = Roce { dest_qpn: 0x77, ..DATA };
pub(crate) const DATAGRAM: Roce = Roce { opcode: Opcode::UD_SEND_ONLY, ..DATA };

/// The address of a host, as flows have it.
pub(crate) fn addr(is_v6: bool, host: u8) -> [u32; 4] {
    if is_v6 { words(v6(host)) } else { mapped(v4(host)) }
}

/// A QP of host `host`, over IPv4.
pub(crate) fn qp(host: u8, qpn: u32) -> QpId {
    QpId { addr: addr(false, host), qpn, vlan: 0 }
}

impl Roce {
    fn ends(&self) -> (u8, u8) {
        if self.is_back { (2, 1) } else { (1, 2) }
    }

    /// Identity of its flow at the reaction and notification point.
    pub(crate) fn id(&self) -> FlowId {
        let (src, dst) = self.ends();
        FlowId {
            src: addr(self.v6, src),
            receiver: QpId {
                addr: addr(self.v6, dst),
                qpn: self.dest_qpn,
                vlan: self.tag.map_or(0, |tag| tag.vid.into()),
            },
        }
    }

    /// Offset of the IP header.
    pub(crate) fn l3(&self) -> usize {
        Ethernet::LEN + if self.tag.is_some() { VlanTag::LEN } else { 0 }
    }

    fn link(&self, (src, dst): ([u8; 6], [u8; 6])) -> Vec<u8> {
        let tci = |tag: VlanTagRepr| u16::from(tag.pcp) << 13 | u16::from(tag.dei) << 12 | tag.vid;
        let tags: Vec<_> = self.tag.iter().map(|tag| (EtherType::VLAN, tci(*tag))).collect();
        frames::link(dst, src, &tags, self.v6)
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut body = vec![0x5a; self.opcode.ext_len()];
        if let Some(deth) = body.first_chunk_mut::<{ Deth::LEN }>().filter(|_| self.opcode.has_deth()) {
            DethRepr { q_key: 0x1111_1111, src_qpn: self.source_qpn }.emit(deth);
        }
        body.resize(body.len() + self.payload, 7);
        self.frame_of(&body)
    }

    /// With all bytes between BTH and ICRC.
    fn frame_of(&self, body: &[u8]) -> Vec<u8> {
        let link = self.link((mac(self.ends().0), self.dst_mac));
        let bth = BthRepr::new(self.opcode, self.dest_qpn, 7);
        frames::packet(link, self.v6, self.ends(), ecn::tos(self.dscp, self.ecn), bth, body)
    }

    /// The CNP by which its receiver answers it: `qpn` is the sender's QPN if known, else there is a hint.
    pub(crate) fn cnp(&self, qpn: Option<u32>) -> Vec<u8> {
        let (src, dst) = self.ends();
        let hint = if qpn.is_some() { cnp::NO_HINT } else { self.dest_qpn };
        let tos = ecn::tos(48, Ecn::NOT_ECT);
        let repr = CnpRepr { udp_sport: SPORT, dest_qpn: qpn.unwrap_or(0), hint, tos };
        frames::cnp_packet(self.link((mac(dst), mac(src))), self.v6, (dst, src), &repr)
    }
}

/// A message of connection management, from host 1 to host 2 or back.
pub(crate) fn cm(message: &CmMessage, is_back: bool) -> Vec<u8> {
    let deth = DethRepr { q_key: 0x8001_0000, src_qpn: QP_GSI }.bytes();
    let datagram = Roce { opcode: Opcode::UD_SEND_ONLY, dest_qpn: QP_GSI, is_back, ..DATA };
    datagram.frame_of(&[&deth[..], &message.datagram(7)].concat())
}
