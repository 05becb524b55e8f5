//! The congestion notification packet (IBTA Annex A17).
//!
//! A CNP consists of IP, UDP, a BTH with opcode 0x81 and BECN set that names the *data sender's* QP, 16 reserved bytes
//! and the ICRC. It is built and checked as one array from the IP header on: its length never varies.
//!
//! # The hint
//!
//! Data packets do not carry their sender's QPN, so a notification point that has not learned it cannot fill in the
//! BTH. Instead, it puts the destination QPN of the data into the reserved bytes:
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 3 | `DCQC` |
//! | 4 | version, 1 |
//! | 5 to 7 | receiver's QPN |
//! | 8 to 15 | zero |
//!
//! A sender that runs this project finds its flow by peer address and receiver's QPN. A CNP with a known sender QPN
//! keeps the reserved bytes zero, as the standard requires, unless the pair is of source
//! [`Rdma`](crate::layout::PairSource::Rdma), which the sender may lack.

use super::{
    be24,
    bth::{Bth, BthRepr, Opcode},
    icrc,
    ipv4::{Ipv4, Ipv4Addr, Ipv4Repr, fold},
    ipv6::{Ipv6, Ipv6Addr, Ipv6Repr},
    put16, put24, sub, sub_mut,
    udp::{self, Udp, UdpRepr},
};
use crate::verifier::opaque;

pub const RESERVED_LEN: usize = 16;
/// UDP length of a CNP, bytes.
pub const UDP_LEN: usize = Udp::LEN + Bth::LEN + RESERVED_LEN + icrc::LEN;
/// Length of a CNP over IPv4 from the IP header on, its total length, bytes.
pub const V4_LEN: usize = Ipv4::LEN + UDP_LEN;
/// Length of a CNP over IPv6 from the IP header on, bytes.
pub const V6_LEN: usize = Ipv6::LEN + UDP_LEN;

/// No hint. Outside the 24 bits of a QPN.
pub const NO_HINT: u32 = u32::MAX;

/// First bytes of a hint.
pub const HINT_MAGIC: [u8; 4] = *b"DCQC";
pub const HINT_VERSION: u8 = 1;

/// Fields of a CNP other than its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CnpRepr {
    /// UDP source port. Receivers ignore it; it selects the path in multipath networks.
    pub udp_sport: u16,
    /// The data sender's QPN, 24 bits, for the BTH; 0 if unknown.
    pub dest_qpn: u32,
    /// The receiver's QPN, 24 bits, or [`NO_HINT`].
    pub hint: u32,
    /// DSCP (switches usually give 48 the highest priority) and ECN. CNPs are never marked, whatever the ECN bits.
    pub tos: u8,
}

/// Content of a valid CNP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cnp {
    /// The data sender's QPN, 24 bits; 0 or known if there is a hint.
    pub dest_qpn: u32,
    /// The receiver's QPN, 24 bits, or [`NO_HINT`].
    pub hint: u32,
}

/// Hides the packet's values from the compiler, so that it reads them from memory.
///
/// Bytes kept in registers would index the CRC table with bounds that Linux 6.1's verifier has lost.
#[inline(always)]
fn opaque_reference<const N: usize>(packet: &mut [u8; N]) -> &[u8; N] {
    opaque(packet)
}

/// Writes a CNP over IPv4, with header checksum and ICRC.
///
/// `src` is the receiver of the marked data, `dst` its sender.
#[inline(always)]
pub fn emit_v4(out: &mut [u8; V4_LEN], src: Ipv4Addr, dst: Ipv4Addr, cnp: &CnpRepr) {
    Ipv4Repr::of_udp(cnp.tos, src, dst, UDP_LEN as u16).emit(sub_mut::<0, { Ipv4::LEN }, _>(out));
    emit_udp(sub_mut::<{ Ipv4::LEN }, UDP_LEN, _>(out), cnp);
    let crc = icrc_v4(opaque_reference(out));
    *sub_mut::<{ V4_LEN - icrc::LEN }, { icrc::LEN }, _>(out) = crc.to_le_bytes();
}

/// Writes a CNP over IPv6, with its ICRC.
///
/// `src` is the receiver of the marked data, `dst` its sender. The flow label is 0. The UDP checksum is 0
/// over IPv6 too, as sent by RoCE hardware and Linux's `rdma_rxe`: the ICRC protects what the checksum
/// would, as RFC 6935 and RFC 6936 argue for tunnels.
#[inline(always)]
pub fn emit_v6(out: &mut [u8; V6_LEN], src: Ipv6Addr, dst: Ipv6Addr, cnp: &CnpRepr) {
    Ipv6Repr::of_udp(cnp.tos, src, dst, UDP_LEN as u16).emit(sub_mut::<0, { Ipv6::LEN }, _>(out));
    emit_udp(sub_mut::<{ Ipv6::LEN }, UDP_LEN, _>(out), cnp);
    let crc = icrc_v6(opaque_reference(out));
    *sub_mut::<{ V6_LEN - icrc::LEN }, { icrc::LEN }, _>(out) = crc.to_le_bytes();
}

/// Sets the UDP checksum of a CNP over IPv4 that replaces a packet with the UDP header `replaced`.
///
/// Linux leaves the checksum of some packets to the NIC (CHECKSUM_PARTIAL): until the packet leaves, the
/// field has the sum of the pseudo header (RFC 768) only. Such a packet stays partial as a CNP; others get
/// the checksum 0. A complete checksum is mistaken for a partial one in one packet of 65,536.
#[inline(always)]
pub(crate) fn set_checksum_v4(packet: &mut [u8; V4_LEN], replaced: &UdpRepr) {
    let mut addresses = 0;
    for at in (12..Ipv4::LEN).step_by(2) {
        addresses += u32::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    }
    put16::<{ Ipv4::LEN + Udp::CHECKSUM_AT }, _>(packet, checksum(addresses, replaced));
}

/// As [`set_checksum_v4`], over IPv6.
#[inline(always)]
pub(crate) fn set_checksum_v6(packet: &mut [u8; V6_LEN], replaced: &UdpRepr) {
    let mut addresses = 0;
    for at in (8..Ipv6::LEN).step_by(2) {
        addresses += u32::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    }
    put16::<{ Ipv6::LEN + Udp::CHECKSUM_AT }, _>(packet, checksum(addresses, replaced));
}

/// UDP checksum of a CNP whose addresses have this sum.
#[inline(always)]
fn checksum(addresses: u32, replaced: &UdpRepr) -> u16 {
    let pseudo_header = |length| fold(addresses + u32::from(udp::IP_PROTOCOL) + u32::from(length));
    if replaced.checksum == pseudo_header(replaced.length) { pseudo_header(UDP_LEN as u16) } else { 0 }
}

#[inline(always)]
pub(super) fn icrc_v4(packet: &[u8; V4_LEN]) -> u32 {
    icrc::array_icrc::<_, RESERVED_LEN, _>(packet, &icrc::V4_MASK)
}

#[inline(always)]
pub(super) fn icrc_v6(packet: &[u8; V6_LEN]) -> u32 {
    icrc::array_icrc::<_, RESERVED_LEN, _>(packet, &icrc::V6_MASK)
}

/// Reads a CNP over IPv4; `None` unless lengths, fields, IPv4 checksum and ICRC are correct.
#[inline(always)]
pub fn parse_v4(packet: &[u8; V4_LEN]) -> Option<Cnp> {
    peek_v4(packet).filter(|_| has_icrc_v4(packet))
}

/// Reads a CNP over IPv6; `None` unless lengths, fields and ICRC are correct.
#[inline(always)]
pub fn parse_v6(packet: &[u8; V6_LEN]) -> Option<Cnp> {
    peek_v6(packet).filter(|_| has_icrc_v6(packet))
}

/// As [`parse_v4`], but without the ICRC, which costs more than all other checks.
#[inline(always)]
pub(crate) fn peek_v4(packet: &[u8; V4_LEN]) -> Option<Cnp> {
    let ip = Ipv4::new(sub::<0, { Ipv4::LEN }, _>(packet));
    let udp = sub::<{ Ipv4::LEN }, UDP_LEN, _>(packet);
    let is_cnp = ip.is_plain()
        && ip.total_len() == V4_LEN as u16
        && !ip.is_fragment()
        && ip.protocol() == udp::IP_PROTOCOL
        && ip.checksum_ok()
        && is_cnp_udp(udp);
    is_cnp.then(|| parse_udp(udp))
}

/// As [`parse_v6`], but without the ICRC.
#[inline(always)]
pub(crate) fn peek_v6(packet: &[u8; V6_LEN]) -> Option<Cnp> {
    let ip = Ipv6::new(sub::<0, { Ipv6::LEN }, _>(packet));
    let udp = sub::<{ Ipv6::LEN }, UDP_LEN, _>(packet);
    let is_cnp = ip.version() == 6
        && ip.payload_len() == UDP_LEN as u16
        && ip.next_header() == udp::IP_PROTOCOL
        && is_cnp_udp(udp);
    is_cnp.then(|| parse_udp(udp))
}

#[inline(always)]
pub(crate) fn has_icrc_v4(packet: &[u8; V4_LEN]) -> bool {
    icrc_v4(packet) == u32::from_le_bytes(*sub::<{ V4_LEN - icrc::LEN }, { icrc::LEN }, _>(packet))
}

#[inline(always)]
pub(crate) fn has_icrc_v6(packet: &[u8; V6_LEN]) -> bool {
    icrc_v6(packet) == u32::from_le_bytes(*sub::<{ V6_LEN - icrc::LEN }, { icrc::LEN }, _>(packet))
}

/// Writes everything from the UDP header up to the ICRC.
#[inline(always)]
fn emit_udp(out: &mut [u8; UDP_LEN], cnp: &CnpRepr) {
    let udp =
        UdpRepr { src_port: cnp.udp_sport, dst_port: udp::ROCE_V2_PORT, length: UDP_LEN as u16, checksum: 0 };
    udp.emit(sub_mut::<0, { Udp::LEN }, _>(out));
    let bth = BthRepr { becn: true, ..BthRepr::new(Opcode::CNP, cnp.dest_qpn, 0) };
    bth.emit(sub_mut::<{ Udp::LEN }, { Bth::LEN }, _>(out));
    emit_reserved(sub_mut::<{ Udp::LEN + Bth::LEN }, RESERVED_LEN, _>(out), cnp.hint);
}

#[inline(always)]
fn emit_reserved(out: &mut [u8; RESERVED_LEN], hint: u32) {
    *out = [0; RESERVED_LEN];
    if hint != NO_HINT {
        *sub_mut::<0, 4, _>(out) = HINT_MAGIC;
        out[4] = HINT_VERSION;
        put24::<5, _>(out, hint);
    }
}

/// Whether UDP and BTH are those of a CNP.
#[inline(always)]
fn is_cnp_udp(bytes: &[u8; UDP_LEN]) -> bool {
    let udp = Udp::new(sub::<0, { Udp::LEN }, _>(bytes));
    let bth = Bth::new(sub::<{ Udp::LEN }, { Bth::LEN }, _>(bytes));
    udp.dst_port() == udp::ROCE_V2_PORT
        && udp.length() == UDP_LEN as u16
        && bth.opcode().is_cnp()
        && bth.becn()
}

#[inline(always)]
fn parse_udp(bytes: &[u8; UDP_LEN]) -> Cnp {
    let bth = Bth::new(sub::<{ Udp::LEN }, { Bth::LEN }, _>(bytes));
    let reserved = sub::<{ Udp::LEN + Bth::LEN }, RESERVED_LEN, _>(bytes);
    Cnp { dest_qpn: bth.dest_qpn(), hint: parse_hint(reserved) }
}

/// Ignores the last eight bytes, which are reserved for later versions.
#[inline(always)]
fn parse_hint(reserved: &[u8; RESERVED_LEN]) -> u32 {
    if *sub::<0, 4, _>(reserved) == HINT_MAGIC && reserved[4] == HINT_VERSION {
        be24::<5, _>(reserved)
    } else {
        NO_HINT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::vectors::{CONNECTX4_CNP, CONNTRACK_CM_CNP, V6_CNP};

    const SRC: Ipv4Addr = [10, 0, 17, 1];
    const DST: Ipv4Addr = [10, 0, 18, 1];
    const CONNECTX4: CnpRepr = CnpRepr { udp_sport: 0, dest_qpn: 0x118, hint: NO_HINT, tos: 0xc2 };

    #[test]
    fn lengths_match_the_wire() {
        assert_eq!((V4_LEN, V6_LEN, UDP_LEN), (60, 80, 40));
    }

    #[test]
    fn nic_cnp_reproduced_except_ip_id() {
        let mut packet = [0xa5; V4_LEN];
        emit_v4(&mut packet, SRC, DST, &CONNECTX4);
        let header = sub_mut::<0, 20, _>(&mut packet);
        let ip = Ipv4Repr::parse(Ipv4::new(header)).unwrap();
        Ipv4Repr { id: 0x718c, ..ip }.emit(header);
        icrc::seal(&mut packet).unwrap();
        assert_eq!(packet, CONNECTX4_CNP);
    }

    #[test]
    fn cnp_over_ipv6_is_reproduced() {
        let address = |last| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let mut packet = [0xa5; V6_LEN];
        let cnp = CnpRepr { udp_sport: 0xc000, tos: 0xc0, ..CONNECTX4 };
        emit_v6(&mut packet, address(1), address(2), &cnp);
        assert_eq!(packet, V6_CNP);
    }

    #[test]
    fn published_cnps_parsed() {
        assert_eq!(parse_v4(&CONNECTX4_CNP), Some(Cnp { dest_qpn: 0x118, hint: NO_HINT }));
        assert_eq!(parse_v4(&CONNTRACK_CM_CNP), Some(Cnp { dest_qpn: 0xd2, hint: NO_HINT }));
        assert_eq!(parse_v6(&V6_CNP), Some(Cnp { dest_qpn: 0x118, hint: NO_HINT }));
    }

    #[test]
    fn hint_round_trips_in_documented_layout() {
        let hinted = CnpRepr { dest_qpn: 0, hint: 0x00ab_cdef, ..CONNECTX4 };
        let mut packet = [0xa5; V4_LEN];
        emit_v4(&mut packet, SRC, DST, &hinted);
        assert_eq!(packet[40..56], *b"DCQC\x01\xab\xcd\xef\0\0\0\0\0\0\0\0");
        assert_eq!(parse_v4(&packet), Some(Cnp { dest_qpn: 0, hint: 0x00ab_cdef }));

        // An unknown version is not a hint; the CNP is still valid.
        packet[44] = 2;
        icrc::seal(&mut packet).unwrap();
        assert_eq!(parse_v4(&packet), Some(Cnp { dest_qpn: 0, hint: NO_HINT }));
    }

    #[test]
    fn forged_and_damaged_cnps_distinguished() {
        let resealed = |at: usize, value: u8| {
            let mut packet = CONNECTX4_CNP;
            packet[at] = value;
            let header = *sub::<0, 20, _>(&packet);
            *sub_mut::<10, 2, _>(&mut packet) = crate::wire::ipv4::header_checksum(&header).to_be_bytes();
            if let Some(()) = icrc::seal(&mut packet) {
                assert!(icrc::verify(&packet));
            }
            (peek_v4(&packet).is_some(), parse_v4(&packet).is_some())
        };
        for (what, at, value) in [
            ("IP options", 0, 0x46),
            ("IP length", 3, 59),
            ("more fragments", 6, 0x20),
            ("fragment offset", 7, 1),
            ("protocol", 9, 6),
            ("UDP port", 23, 0xb8),
            ("UDP length", 25, 39),
            ("opcode of InfiniBand's CNP", 28, 0x80),
            ("BECN clear", 32, 0),
        ] {
            assert_eq!(resealed(at, value), (false, false), "{what}");
        }
        assert_eq!(resealed(35, 0x19), (true, true));

        let mut damaged = CONNECTX4_CNP;
        damaged[35] ^= 1;
        assert!(peek_v4(&damaged).is_some());
        assert_eq!(parse_v4(&damaged), None);
        let mut damaged = CONNECTX4_CNP;
        damaged[11] ^= 1;
        assert_eq!(peek_v4(&damaged), None);

        for (at, value) in [(0, 0x4c), (5, 41), (6, 43), (43, 0xb8), (45, 41), (48, 0x11), (52, 0x80)] {
            let mut packet = V6_CNP;
            packet[at] = value;
            assert_eq!(peek_v6(&packet), None, "byte {at}");
        }
        let mut damaged = V6_CNP;
        damaged[79] ^= 1;
        assert!(peek_v6(&damaged).is_some());
        assert_eq!(parse_v6(&damaged), None);
    }
}
