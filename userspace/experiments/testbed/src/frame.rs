//! Whole RoCEv2 frames as sent by a NIC: Ethernet, IPv4 or IPv6, UDP, BTH, extension header, payload, ICRC.

use bytes::{BufMut, Bytes, BytesMut};
use dcqcn_common::wire::bth::{Bth, BthRepr, Opcode};
use dcqcn_common::wire::ecn::{self, Ecn};
use dcqcn_common::wire::eth::{EtherType, Ethernet, EthernetRepr, MacAddr};
use dcqcn_common::wire::ext::{Aeth, AethRepr, NakCode, Reth, RethRepr, Syndrome};
use dcqcn_common::wire::icrc;
use dcqcn_common::wire::ipv4::{self, Ipv4, Ipv4Repr};
use dcqcn_common::wire::ipv6::{self, Ipv6, Ipv6Repr};
use dcqcn_common::wire::udp::{self, Udp, UdpRepr};

use super::rc::{Psn, RemoteRegion, Reply, ReplyKind, Segment, WritePacket};

/// Bytes at the start of a payload with the send time. Shorter payloads have none.
const STAMP_LEN: usize = size_of::<u64>();
/// Maximum overhead of a data packet: Ethernet, IPv6, UDP, BTH, RETH, pad and ICRC.
pub(crate) const MAX_OVERHEAD_BYTES: usize =
    Ethernet::LEN + Ipv6::LEN + Udp::LEN + Bth::LEN + Reth::LEN + 3 + icrc::LEN;

/// UDP port of unanswered traffic (RFC 863).
const DISCARD_PORT: u16 = 9;

/// Source and destination address of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addresses {
    V4 { src: ipv4::Ipv4Addr, dst: ipv4::Ipv4Addr },
    V6 { src: ipv6::Ipv6Addr, dst: ipv6::Ipv6Addr },
}

/// Common fields of all packets of a QP in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub src_mac: MacAddr,
    /// Ethernet address of the next hop.
    pub dst_mac: MacAddr,
    pub addresses: Addresses,
    /// UDP source port, which spreads flows over paths.
    pub udp_src_port: u16,
    pub dscp: u8,
    pub ecn: Ecn,
    pub dest_qpn: u32,
}

impl Path {
    /// Builds a WRITE packet in `frame`, with `sent_at_ns` at the start of its payload.
    pub(crate) fn write_request(&self, frame: &mut BytesMut, packet: &WritePacket, sent_at_ns: u64) {
        let opcode = match packet.segment {
            Segment::First => Opcode::RC_RDMA_WRITE_FIRST,
            Segment::Middle => Opcode::RC_RDMA_WRITE_MIDDLE,
            Segment::Last => Opcode::RC_RDMA_WRITE_LAST,
            Segment::Only => Opcode::RC_RDMA_WRITE_ONLY,
        };
        let mut extension = BytesMut::new();
        if let Some(RemoteRegion { virtual_address, rkey, length_bytes }) = packet.region {
            let repr = RethRepr { virtual_addr: virtual_address, r_key: rkey, dma_len: length_bytes };
            extension.put_slice(&repr.bytes());
        }
        let ack_request = packet.ack_request;
        let bth = BthRepr { ack_request, ..BthRepr::new(opcode, self.dest_qpn, packet.psn.get()) };
        self.write(frame, bth, &extension, &packet.payload, Some(sent_at_ns));
    }

    /// Builds a non-RoCE UDP datagram in `frame`, with `payload_bytes` of zeros.
    pub(crate) fn write_other(&self, frame: &mut BytesMut, payload_bytes: usize) {
        let length = (Udp::LEN + payload_bytes) as u16;
        frame.clear();
        self.write_l2_l3(frame, length);
        self.write_udp(frame, DISCARD_PORT, length);
        frame.put_bytes(0, payload_bytes);
    }

    pub(crate) fn write_reply(&self, frame: &mut BytesMut, reply: &Reply) {
        let syndrome = match reply.kind {
            ReplyKind::Ack => Syndrome::ACK,
            ReplyKind::NakSequence => Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR),
        };
        let aeth = AethRepr { syndrome, msn: reply.msn }.bytes();
        let bth = BthRepr::new(Opcode::RC_ACKNOWLEDGE, self.dest_qpn, reply.psn.get());
        self.write(frame, bth, &aeth, &[], None);
    }

    fn write(
        &self,
        frame: &mut BytesMut,
        bth: BthRepr,
        extension: &[u8],
        payload: &[u8],
        stamp: Option<u64>,
    ) {
        let pad = payload.len().wrapping_neg() % 4;
        let udp_len = Udp::LEN + Bth::LEN + extension.len() + payload.len() + pad + icrc::LEN;
        frame.clear();
        self.write_l2_l3(frame, udp_len as u16);
        self.write_udp(frame, udp::ROCE_V2_PORT, udp_len as u16);
        frame.put_slice(&BthRepr { pad_count: pad as u8, ..bth }.bytes());
        frame.put_slice(extension);
        match (stamp, payload.get(STAMP_LEN..)) {
            (Some(stamp), Some(rest)) => {
                frame.put_u64(stamp);
                frame.put_slice(rest);
            }
            _ => frame.put_slice(payload),
        }
        frame.put_bytes(0, pad + icrc::LEN);
        if let Some(packet) = frame.get_mut(Ethernet::LEN..) {
            let sealed = icrc::seal(packet);
            debug_assert!(sealed.is_some(), "the headers above make a packet that has an ICRC");
        }
    }

    fn write_l2_l3(&self, frame: &mut BytesMut, udp_len: u16) {
        let ethertype = match self.addresses {
            Addresses::V4 { .. } => EtherType::IPV4,
            Addresses::V6 { .. } => EtherType::IPV6,
        };
        frame.put_slice(&EthernetRepr { dst: self.dst_mac, src: self.src_mac, ethertype }.bytes());
        let tos = ecn::tos(self.dscp, self.ecn);
        match self.addresses {
            Addresses::V4 { src, dst } => {
                frame.put_slice(&Ipv4Repr::of_udp(tos, src, dst, udp_len).bytes());
            }
            Addresses::V6 { src, dst } => {
                frame.put_slice(&Ipv6Repr::of_udp(tos, src, dst, udp_len).bytes());
            }
        }
    }

    fn write_udp(&self, frame: &mut BytesMut, dst_port: u16, length: u16) {
        let udp = UdpRepr { src_port: self.udp_src_port, dst_port, length, checksum: 0 };
        frame.put_slice(&udp.bytes());
    }
}

/// The relevant fields of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub dst_mac: MacAddr,
    pub dest_qpn: u32,
    pub psn: Psn,
    pub ce: bool,
    pub dscp: u8,
    pub body: Body,
}

/// Kinds of packet distinguished by an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Write {
        segment: Segment,
        ack_request: bool,
        region: Option<RemoteRegion>,
        /// Payload without pad, bytes.
        payload_bytes: u32,
        /// Send time, CLOCK_MONOTONIC, if the payload contains it.
        sent_at_ns: Option<u64>,
    },
    Ack,
    NakSequence,
    Cnp,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IgnoreReason {
    /// Not RoCEv2 over plain IPv4 or IPv6, or truncated.
    NotRoce,
    BadIcrc,
}

impl Received {
    /// Parses a frame and checks its ICRC.
    pub(crate) fn parse(frame: &[u8]) -> Result<Self, IgnoreReason> {
        let Headers { dst_mac, tos, packet, bth, rest } = headers(frame).ok_or(IgnoreReason::NotRoce)?;
        if !icrc::verify(packet) {
            return Err(IgnoreReason::BadIcrc);
        }
        Ok(Self {
            dst_mac,
            dest_qpn: bth.dest_qpn(),
            psn: Psn::new(bth.psn()),
            ce: Ecn::from_tos(tos).is_ce(),
            dscp: tos >> 2,
            body: body(bth, rest).unwrap_or(Body::Other),
        })
    }
}

struct Headers<'a> {
    dst_mac: MacAddr,
    /// TOS or traffic class.
    tos: u8,
    /// From the IP header on.
    packet: &'a [u8],
    bth: Bth<'a>,
    /// Bytes between BTH and ICRC.
    rest: &'a [u8],
}

fn headers(frame: &[u8]) -> Option<Headers<'_>> {
    let (ethernet, packet) = Ethernet::parse(frame)?;
    let (tos, datagram_len, datagram) = match ethernet.ethertype() {
        EtherType::IPV4 => {
            let (ip, rest) = Ipv4::parse(packet)?;
            let usable = ip.is_plain() && !ip.is_fragment() && ip.protocol() == udp::IP_PROTOCOL;
            let len = usize::from(ip.total_len()).checked_sub(Ipv4::LEN)?;
            usable.then_some((ip.tos(), len, rest))?
        }
        EtherType::IPV6 => {
            let (ip, rest) = Ipv6::parse(packet)?;
            let usable = ip.next_header() == udp::IP_PROTOCOL;
            usable.then_some((ip.traffic_class(), usize::from(ip.payload_len()), rest))?
        }
        _ => return None,
    };
    // An Ethernet frame may be longer than its packet.
    let (udp, rest) = Udp::parse(datagram.get(..datagram_len)?)?;
    if udp.dst_port() != udp::ROCE_V2_PORT {
        return None;
    }
    let (bth, rest) = Bth::parse(rest)?;
    let rest = rest.get(..rest.len().checked_sub(icrc::LEN)?)?;
    Some(Headers { dst_mac: ethernet.dst(), tos, packet, bth, rest })
}

fn body(bth: Bth<'_>, rest: &[u8]) -> Option<Body> {
    let segment = match bth.opcode() {
        Opcode::RC_RDMA_WRITE_FIRST => Segment::First,
        Opcode::RC_RDMA_WRITE_MIDDLE => Segment::Middle,
        Opcode::RC_RDMA_WRITE_LAST => Segment::Last,
        Opcode::RC_RDMA_WRITE_ONLY => Segment::Only,
        Opcode::RC_ACKNOWLEDGE => {
            return match Aeth::parse(rest)?.0.syndrome() {
                Syndrome::Ack { .. } => Some(Body::Ack),
                Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => Some(Body::NakSequence),
                _ => None,
            };
        }
        Opcode::CNP => return Some(Body::Cnp),
        _ => return None,
    };
    let (region, rest) = if segment.starts_message() {
        let (reth, rest) = Reth::parse(rest)?;
        let RethRepr { virtual_addr, r_key, dma_len } = RethRepr::parse(reth);
        (Some(RemoteRegion { virtual_address: virtual_addr, rkey: r_key, length_bytes: dma_len }), rest)
    } else {
        (None, rest)
    };
    let payload = rest.get(..rest.len().checked_sub(usize::from(bth.pad_count()))?)?;
    Some(Body::Write {
        segment,
        ack_request: bth.ack_request(),
        region,
        payload_bytes: payload.len() as u32,
        sent_at_ns: payload.first_chunk().map(|stamp| u64::from_be_bytes(*stamp)),
    })
}

/// A message of `length` bytes to send repeatedly. Its content is arbitrary, but not all zeros, so that damage is
/// visible.
pub(crate) fn message(length: usize) -> Bytes {
    (0..length).map(|index| (index % 251) as u8).collect()
}

#[cfg(test)]
mod tests;
