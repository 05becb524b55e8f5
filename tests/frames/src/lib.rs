//! RoCEv2 frames for tests: Ethernet, tags, IP, UDP, BTH, extension headers, payload, ICRC.

#![expect(missing_docs, reason = "not an API: a name that says it all needs no comment")]

mod cm;

pub use cm::{CmMessage, Dreq, Rep, Req};
use dcqcn_common::classify::QP_GSI;
use dcqcn_common::wire::bth::{Bth, BthRepr, Opcode};
use dcqcn_common::wire::cm::Mad;
use dcqcn_common::wire::ecn::{self, Ecn};
use dcqcn_common::wire::eth::{EtherType, Ethernet, EthernetRepr, MacAddr, VlanTag, VlanTagRepr};
use dcqcn_common::wire::ext::{Deth, DethRepr};
use dcqcn_common::wire::ipv4::{CHECKSUM_AT, Ipv4, Ipv4Repr, header_checksum};
use dcqcn_common::wire::ipv6::{Ipv6, Ipv6Repr};
use dcqcn_common::wire::udp::{self, Udp, UdpRepr};
use dcqcn_common::wire::{cnp, icrc};

/// TOS of the CNPs that the programs make: DSCP 48, Not-ECT.
pub const CNP_TOS: u8 = ecn::tos(48, Ecn::NOT_ECT);

/// UDP source port of data.
pub const SPORT: u16 = 0xc123;

/// A packet from host `src` to host `dst`.
#[derive(Clone, Debug)]
pub struct Roce {
    /// TPID and TCI of each tag, from the outermost.
    pub tags: Vec<(EtherType, u16)>,
    /// IPv6, not IPv4.
    pub v6: bool,
    /// Last byte of the sender's address.
    pub src: u8,
    /// Last byte of the receiver's address.
    pub dst: u8,
    /// DSCP, below 64.
    pub dscp: u8,
    /// ECN field.
    pub ecn: Ecn,
    pub opcode: Opcode,
    /// Receiver's QPN.
    pub dest_qpn: u32,
    /// Sender's QPN, in the DETH of a datagram.
    pub source_qpn: u32,
    pub psn: u32,
    /// Bytes after the extension headers.
    pub payload: usize,
}

impl Default for Roce {
    fn default() -> Self {
        Self {
            tags: Vec::new(),
            v6: false,
            src: 1,
            dst: 2,
            dscp: 26,
            ecn: Ecn::ECT0,
            opcode: Opcode::RC_RDMA_WRITE_MIDDLE,
            dest_qpn: 0x11,
            source_qpn: 0x22,
            psn: 7,
            payload: 1_024,
        }
    }
}

/// MAC address of host `host`.
pub const fn mac(host: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, host]
}

/// IPv4 address of host `host`.
pub const fn v4(host: u8) -> [u8; 4] {
    [10, 0, 0, host]
}

/// IPv6 address of host `host`.
pub const fn v6(host: u8) -> [u8; 16] {
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]
}

impl Roce {
    /// Offset of the IP header.
    pub fn l3(&self) -> usize {
        Ethernet::LEN + VlanTag::LEN * self.tags.len()
    }

    /// Offset of the BTH.
    pub fn bth(&self) -> usize {
        self.l3() + if self.v6 { Ipv6::LEN } else { Ipv4::LEN } + Udp::LEN
    }

    /// The frame, with correct checksum and ICRC.
    pub fn frame(&self) -> Vec<u8> {
        let bth = BthRepr { ack_request: true, ..BthRepr::new(self.opcode, self.dest_qpn, self.psn) };
        let mut body = vec![0x5a; self.opcode.ext_len()];
        if self.opcode.has_deth() && !self.opcode.has_rdeth() {
            let deth = DethRepr { q_key: 0x1111_1111, src_qpn: self.source_qpn };
            if let Some(header) = body.first_chunk_mut::<{ Deth::LEN }>() {
                deth.emit(header);
            }
        }
        body.extend((0..self.payload).map(|i| i as u8));
        packet(self.link(), self.v6, (self.src, self.dst), ecn::tos(self.dscp, self.ecn), bth, &body)
    }

    /// The frame with this syndrome in its AETH.
    pub fn with_syndrome(&self, syndrome: u8) -> Vec<u8> {
        let mut out = self.frame();
        if let Some(byte) = out.get_mut(self.bth() + Bth::LEN) {
            *byte = syndrome;
        }
        seal(&mut out, self.l3());
        out
    }

    /// The frame cut to its headers, with its IP length adjusted or all lengths kept.
    pub fn trimmed(&self, keeps_lengths: bool) -> Vec<u8> {
        let mut out = self.frame();
        out.truncate(self.bth() + Bth::LEN + self.opcode.ext_len());
        if !keeps_lengths {
            let (l3, len) = (self.l3(), out.len() - self.l3());
            if self.v6 {
                out[l3 + 4..][..2].copy_from_slice(&((len - Ipv6::LEN) as u16).to_be_bytes());
            } else {
                out[l3 + 2..][..2].copy_from_slice(&(len as u16).to_be_bytes());
                let sum = out[l3..].first_chunk().map_or(0, header_checksum);
                out[l3 + CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
            }
        }
        out
    }

    fn link(&self) -> Vec<u8> {
        link(mac(self.dst), mac(self.src), &self.tags, self.v6)
    }

    /// The receiver's CNP for the packet, built by the library: with a hint unless the sender's QPN is known.
    pub fn cnp(&self, sender_qpn: Option<u32>, tos: u8) -> Vec<u8> {
        let repr = cnp::CnpRepr {
            udp_sport: SPORT,
            dest_qpn: sender_qpn.unwrap_or(0),
            hint: if sender_qpn.is_some() { cnp::NO_HINT } else { self.dest_qpn },
            tos,
        };
        let back = link(mac(self.src), mac(self.dst), &self.tags, self.v6);
        cnp_packet(back, self.v6, (self.dst, self.src), &repr)
    }
}

/// Ethernet header and tags before an IP packet.
pub fn link(dst: MacAddr, src: MacAddr, tags: &[(EtherType, u16)], v6: bool) -> Vec<u8> {
    let inner = if v6 { EtherType::IPV6 } else { EtherType::IPV4 };
    let types: Vec<_> = tags.iter().map(|(tpid, _)| *tpid).chain([inner]).collect();
    let mut out = Vec::new();
    let eth = EthernetRepr { dst, src, ethertype: types[0] };
    out.extend(eth.bytes());
    for ((_, tci), &ethertype) in tags.iter().zip(&types[1..]) {
        let (pcp, dei, vid) = ((tci >> 13) as u8, tci & 0x1000 != 0, tci & 0x0fff);
        out.extend(VlanTagRepr { pcp, dei, vid, ethertype }.bytes());
    }
    out
}

/// The RoCEv2 packet from host `hosts.0` to host `hosts.1` behind a link header; `body` is between BTH and ICRC.
pub fn packet(mut out: Vec<u8>, v6: bool, hosts: (u8, u8), tos: u8, bth: BthRepr, body: &[u8]) -> Vec<u8> {
    let l3 = out.len();
    let length = (Udp::LEN + Bth::LEN + body.len() + icrc::LEN) as u16;
    if v6 {
        let (src, dst) = (self::v6(hosts.0), self::v6(hosts.1));
        let ip = Ipv6Repr { flow_label: 0x1234, ..Ipv6Repr::of_udp(tos, src, dst, length) };
        out.extend(ip.bytes());
    } else {
        let ip = Ipv4Repr { id: 0x77, ..Ipv4Repr::of_udp(tos, v4(hosts.0), v4(hosts.1), length) };
        out.extend(ip.bytes());
    }
    let udp = UdpRepr { src_port: SPORT, dst_port: udp::ROCE_V2_PORT, length, checksum: 0 };
    out.extend(udp.bytes());
    out.extend(bth.bytes());
    out.extend(body);
    out.extend([0; icrc::LEN]);
    seal(&mut out, l3);
    out
}

/// A CNP from host `hosts.0` to host `hosts.1` behind a link header, built by the library.
pub fn cnp_packet(mut link: Vec<u8>, v6: bool, hosts: (u8, u8), repr: &cnp::CnpRepr) -> Vec<u8> {
    let (src, dst) = hosts;
    if v6 {
        let mut ip = [0; cnp::V6_LEN];
        cnp::emit_v6(&mut ip, self::v6(src), self::v6(dst), repr);
        link.extend(ip);
    } else {
        let mut ip = [0; cnp::V4_LEN];
        cnp::emit_v4(&mut ip, v4(src), v4(dst), repr);
        link.extend(ip);
    }
    link
}

/// Computes the ICRC of the packet whose IP header is at `l3`.
pub fn seal(frame: &mut [u8], l3: usize) {
    assert_eq!(icrc::seal(&mut frame[l3..]), Some(()), "too short for an ICRC");
}

/// Rewrites the ECN field of a frame without tags, and its IPv4 checksum.
pub fn set_ecn(frame: &mut [u8], ecn: Ecn) {
    let Some((_, l3)) = frame.split_at_mut_checked(Ethernet::LEN) else { return };
    let Some(header) = l3.first_chunk_mut::<{ Ipv4::LEN }>() else { return };
    if let Some(ip) = Ipv4Repr::parse(Ipv4::new(header)) {
        Ipv4Repr { tos: ecn.apply(ip.tos), ..ip }.emit(header);
    }
}

/// A connection request as sent by `rping`, from identifier `local_comm_id` and QP `local_qpn`.
pub const fn req(local_comm_id: u32, local_qpn: u32) -> Req {
    Req { local_comm_id, service_id: 0x0106_1b58, local_qpn, starting_psn: 1 }
}

/// A connection management message from host `src` to host `dst`, from QP1 to QP1.
pub fn cm(src: u8, dst: u8, message: &CmMessage) -> Vec<u8> {
    let (opcode, dest_qpn, payload) = (Opcode::UD_SEND_ONLY, QP_GSI, Mad::LEN);
    let datagram = Roce { src, dst, opcode, dest_qpn, payload, ..Roce::default() };
    let mut frame = datagram.frame();
    frame[datagram.bth() + Bth::LEN + Deth::LEN..][..Mad::LEN].copy_from_slice(&message.datagram(7));
    seal(&mut frame, datagram.l3());
    frame
}
