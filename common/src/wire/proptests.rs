//! Properties of all wire formats: parsers never panic, and `parse` inverts `emit`.

use core::fmt::Debug;
use std::vec::Vec;

use proptest::prelude::*;

use super::{
    bth::{Bth, BthRepr, Opcode},
    cnp::{self, Cnp, CnpRepr, NO_HINT},
    ecn::{self, Ecn},
    eth::{EtherType, Ethernet, EthernetRepr, VlanTag, VlanTagRepr},
    ext::{Aeth, AethRepr, Deth, DethRepr, NakCode, Reth, RethRepr, Syndrome},
    icrc,
    ipv4::{self, Ipv4, Ipv4Repr},
    ipv6::{Ipv6, Ipv6Repr, set_traffic_class},
    udp::{self, Udp, UdpRepr},
};

/// Asserts that `parse` inverts `emit`, with an array that contained other data.
fn round_trip<const N: usize, R: Debug + PartialEq>(
    repr: R,
    emit: impl Fn(&R, &mut [u8; N]),
    parse: impl Fn(&[u8; N]) -> R,
) -> Result<(), TestCaseError> {
    let mut bytes = [0xa5; N];
    emit(&repr, &mut bytes);
    prop_assert_eq!(parse(&bytes), repr);
    Ok(())
}

fn u24() -> impl Strategy<Value = u32> {
    0u32..1 << 24
}

prop_compose! {
    fn ethernet()(dst: [u8; 6], src: [u8; 6], ethertype: u16) -> EthernetRepr {
        EthernetRepr { dst, src, ethertype: EtherType(ethertype) }
    }
}

prop_compose! {
    fn vlan_tag()(pcp in 0u8..8, dei: bool, vid in 0u16..4096, ethertype: u16) -> VlanTagRepr {
        VlanTagRepr { pcp, dei, vid, ethertype: EtherType(ethertype) }
    }
}

prop_compose! {
    fn ipv4_repr()(
        (tos, total_len, id, ttl, protocol) in any::<(u8, u16, u16, u8, u8)>(),
        (dont_fragment, more_fragments) in any::<(bool, bool)>(),
        fragment_offset in 0u16..0x2000,
        src: [u8; 4],
        dst: [u8; 4],
    ) -> Ipv4Repr {
        Ipv4Repr {
            tos, total_len, id, dont_fragment, more_fragments, fragment_offset, ttl, protocol, src, dst,
        }
    }
}

prop_compose! {
    fn ipv6_repr()(
        (traffic_class, payload_len, next_header, hop_limit) in any::<(u8, u16, u8, u8)>(),
        flow_label in 0u32..1 << 20,
        src: [u8; 16],
        dst: [u8; 16],
    ) -> Ipv6Repr {
        Ipv6Repr { traffic_class, flow_label, payload_len, next_header, hop_limit, src, dst }
    }
}

prop_compose! {
    fn bth()(
        (opcode, p_key) in any::<(u8, u16)>(),
        (ack_request, becn, fecn, solicited, migrated) in any::<(bool, bool, bool, bool, bool)>(),
        (dest_qpn, psn) in (u24(), u24()),
        pad_count in 0u8..4,
        tver in 0u8..16,
    ) -> BthRepr {
        BthRepr {
            opcode: Opcode(opcode),
            dest_qpn, psn, ack_request, pad_count, becn, fecn, p_key, solicited, migrated, tver,
        }
    }
}

fn syndrome() -> impl Strategy<Value = Syndrome> {
    (0u8..4, 0u8..32).prop_map(|(kind, value)| match kind {
        0 => Syndrome::Ack { credits: value },
        1 => Syndrome::RnrNak { timer: value },
        2 => Syndrome::Nak(NakCode(value)),
        _ => Syndrome::Reserved { value },
    })
}

prop_compose! {
    fn cnp_repr()(
        (udp_sport, tos) in any::<(u16, u8)>(),
        dest_qpn in u24(),
        hint in prop_oneof![Just(NO_HINT), u24()],
    ) -> CnpRepr {
        CnpRepr { udp_sport, dest_qpn, hint, tos }
    }
}

/// A packet over IPv4 with an ICRC and a random payload.
fn sealed_v4() -> impl Strategy<Value = Vec<u8>> {
    (ipv4_repr(), any::<[u8; 8]>(), bth(), proptest::collection::vec(any::<u8>(), 0..1100)).prop_map(
        |(ip, udp, bth, payload)| {
            let total_len = Ipv4::LEN + Udp::LEN + Bth::LEN + payload.len() + icrc::LEN;
            let mut header = [0; Ipv4::LEN];
            Ipv4Repr { total_len: total_len as u16, ..ip }.emit(&mut header);
            let mut transport = [0; Bth::LEN];
            bth.emit(&mut transport);
            let mut packet = [&header[..], &udp, &transport, &payload, &[0; icrc::LEN]].concat();
            icrc::seal(&mut packet).unwrap();
            packet
        },
    )
}

proptest! {
    #[test]
    fn parsers_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        macro_rules! read {
            ($($view:ident as $repr:ident),*) => {
                $(if let Some((header, rest)) = $view::parse(&bytes) {
                    let _ = $repr::parse(header);
                    prop_assert_eq!(rest.len(), bytes.len() - $view::LEN);
                })*
            };
        }
        read!(Ethernet as EthernetRepr, VlanTag as VlanTagRepr, Ipv4 as Ipv4Repr, Ipv6 as Ipv6Repr);
        read!(Udp as UdpRepr, Bth as BthRepr, Deth as DethRepr, Reth as RethRepr, Aeth as AethRepr);
        if let Some((bth, _)) = Bth::parse(&bytes) {
            prop_assert_eq!(bth.opcode().0, bytes[0]);
        }
        if let Some(packet) = bytes.first_chunk() {
            prop_assert_eq!(cnp::parse_v4(packet), None);
        }
        if let Some(packet) = bytes.first_chunk() {
            prop_assert_eq!(cnp::parse_v6(packet), None);
        }
    }

    #[test]
    fn icrc_never_panics(version in 4u8..=6, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = bytes;
        if let [first, ..] = &mut bytes[..] {
            *first = version << 4 | 5;
        }
        // Lengths below 512, about half of which fit, and UDP.
        if let [_, _, v4_high, _, v6_high, _, next_header, ..] = &mut bytes[..] {
            *v4_high &= 1;
            *v6_high &= 1;
            *next_header = udp::IP_PROTOCOL;
        }
        let sealed = icrc::seal(&mut bytes);
        prop_assert_eq!(sealed.is_some(), icrc::verify(&bytes));
    }

    #[test]
    fn headers_round_trip(
        (ethernet, vlan_tag, ipv4, ipv6, bth) in (ethernet(), vlan_tag(), ipv4_repr(), ipv6_repr(), bth()),
        (src_port, dst_port, length, checksum) in any::<(u16, u16, u16, u16)>(),
        (q_key, src_qpn) in (any::<u32>(), u24()), (virtual_addr, r_key, dma_len) in any::<(u64, u32, u32)>(),
        (syndrome, msn) in (syndrome(), u24()),
    ) {
        let udp = UdpRepr { src_port, dst_port, length, checksum };
        let reth = RethRepr { virtual_addr, r_key, dma_len };
        round_trip(ethernet, EthernetRepr::emit, |bytes| EthernetRepr::parse(Ethernet::new(bytes)))?;
        round_trip(vlan_tag, VlanTagRepr::emit, |bytes| VlanTagRepr::parse(VlanTag::new(bytes)))?;
        round_trip(Some(ipv4), |_, out| ipv4.emit(out), |bytes| Ipv4Repr::parse(Ipv4::new(bytes)))?;
        round_trip(Some(ipv6), |_, out| ipv6.emit(out), |bytes| Ipv6Repr::parse(Ipv6::new(bytes)))?;
        round_trip(udp, UdpRepr::emit, |bytes| UdpRepr::parse(Udp::new(bytes)))?;
        round_trip(bth, BthRepr::emit, |bytes| BthRepr::parse(Bth::new(bytes)))?;
        round_trip(DethRepr { q_key, src_qpn }, DethRepr::emit, |bytes| DethRepr::parse(Deth::new(bytes)))?;
        round_trip(reth, RethRepr::emit, |bytes| RethRepr::parse(Reth::new(bytes)))?;
        round_trip(AethRepr { syndrome, msn }, AethRepr::emit, |bytes| AethRepr::parse(Aeth::new(bytes)))?;
    }

    #[test]
    fn cnp_over_ipv4_round_trips(repr in cnp_repr(), src: [u8; 4], dst: [u8; 4]) {
        let CnpRepr { udp_sport, dest_qpn, hint, tos } = repr;
        let mut packet = [0xa5; cnp::V4_LEN];
        cnp::emit_v4(&mut packet, src, dst, &repr);
        prop_assert_eq!(cnp::parse_v4(&packet), Some(Cnp { dest_qpn, hint }));
        prop_assert!(icrc::verify(&packet));
        let (ip, rest) = Ipv4::parse(&packet).unwrap();
        prop_assert_eq!((ip.src(), ip.dst(), ip.tos()), (src, dst, tos));
        prop_assert!(ip.dont_fragment() && !ip.is_fragment());
        let (udp, _) = Udp::parse(rest).unwrap();
        prop_assert_eq!((udp.src_port(), udp.checksum()), (udp_sport, 0));
    }

    #[test]
    fn cnp_over_ipv6_round_trips(repr in cnp_repr(), src: [u8; 16], dst: [u8; 16]) {
        let CnpRepr { udp_sport, dest_qpn, hint, tos } = repr;
        let mut packet = [0xa5; cnp::V6_LEN];
        cnp::emit_v6(&mut packet, src, dst, &repr);
        prop_assert_eq!(cnp::parse_v6(&packet), Some(Cnp { dest_qpn, hint }));
        prop_assert!(icrc::verify(&packet));
        let (ip, rest) = Ipv6::parse(&packet).unwrap();
        prop_assert_eq!((ip.src(), ip.dst(), ip.traffic_class()), (src, dst, tos));
        let (udp, _) = Udp::parse(rest).unwrap();
        prop_assert_eq!((udp.src_port(), udp.checksum()), (udp_sport, 0));
    }

    #[test]
    fn mark_and_hop_keep_icrc_and_checksum(packet in sealed_v4(), dscp in 0u8..64, ecn: u8) {
        let mut packet = packet;
        let header = packet.first_chunk_mut::<{ Ipv4::LEN }>().unwrap();
        let checksum = |header: &[u8; Ipv4::LEN]| Ipv4::new(header).checksum();
        let word = |header: &[u8; Ipv4::LEN], at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        for (at, octet, value) in [
            (0, 1, ecn::tos(dscp, Ecn::from_tos(ecn))),
            (8, 8, header[8].wrapping_sub(1)),
        ] {
            let old = word(header, at);
            header[octet] = value;
            let updated = ipv4::checksum_update16(checksum(header), old, word(header, at));
            *super::sub_mut::<{ ipv4::CHECKSUM_AT }, 2, _>(header) = updated.to_be_bytes();
            prop_assert_eq!(updated, ipv4::header_checksum(header));
        }
        prop_assert!(icrc::verify(&packet));
    }

    /// Lengths up to the longest packet and beyond.
    #[test]
    fn icrc_in_blocks_agrees(words in 0usize..1_100, v6: bool, flip in 0u8..3, at: prop::sample::Index) {
        let head = if v6 { Ipv6::LEN } else { Ipv4::LEN } + Udp::LEN + Bth::LEN;
        let len = head + words * 4 + icrc::LEN;
        let mut packet: Vec<u8> = (0..len).map(|at| (at * 7 + words) as u8).collect();
        if v6 {
            packet[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, udp::IP_PROTOCOL, 64]);
            packet[4..6].copy_from_slice(&((len - Ipv6::LEN) as u16).to_be_bytes());
        } else {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        }
        icrc::seal(&mut packet).unwrap();
        if flip == 0 {
            // Not a field that the length or the version depends on.
            packet[8 + at.index(len - 8)] ^= 1 << (words % 8);
        }
        let fits = len <= Ipv6::LEN + Udp::LEN + Bth::LEN + Aeth::LEN + 4_096 + icrc::LEN;
        let found = icrc::verify_in_blocks(&packet[..], v6, len);
        prop_assert_eq!(found, fits && icrc::verify(&packet));
        prop_assert!(!icrc::verify_in_blocks(&packet[..], v6, len - 4));
        prop_assert!(!icrc::verify_in_blocks(&packet[..], v6, len + 4));
    }

    #[test]
    fn payload_bit_flip_breaks_icrc(packet in sealed_v4(), at: prop::sample::Index, bit in 0u8..8) {
        let mut packet = packet;
        let covered = Ipv4::LEN + Udp::LEN + 5;
        let at = covered + at.index(packet.len() - covered);
        packet[at] ^= 1 << bit;
        prop_assert!(!icrc::verify(&packet));
    }

    #[test]
    fn traffic_class_change_keeps_all_else(repr in ipv6_repr(), traffic_class: u8) {
        let mut header = [0; Ipv6::LEN];
        repr.emit(&mut header);
        [header[0], header[1]] = set_traffic_class([header[0], header[1]], traffic_class);
        prop_assert_eq!(Ipv6Repr::parse(Ipv6::new(&header)), Some(Ipv6Repr { traffic_class, ..repr }));
    }
}
