//! The classifier on whole frames: every packet of the captures, one frame of each kind that a network may hold, and
//! arbitrary bytes.

#[path = "../frames/mod.rs"]
mod frames;
mod packets;

use dcqcn_common::{
    classify::{Frame, Roce, classify, dscp, mapped, words},
    flow::{FlowId, QpId},
    stats::Stat,
    wire::{
        bth::{Bth, Class, Opcode, Stream},
        ecn::Ecn,
        eth::{EtherType, Ethernet},
        ext::{Deth, DethRepr},
        icrc,
        ipv4::Ipv4,
        ipv6::Ipv6,
        udp::{self, Udp},
    },
};
use packets::{
    DST_V4, DST_V6, L3, QPN, SRC_V4, SRC_V6, TOS, UDP_V4, UDP_V6, build, data, ethernet, patched, tagged,
};
use proptest::prelude::*;

/// A fragmented socket buffer: after the Ethernet header only pulled bytes are readable.
struct FragmentedBuffer<'a> {
    bytes: &'a [u8],
    readable: usize,
}

impl<'a> FragmentedBuffer<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, readable: Ethernet::LEN }
    }
}

impl Frame for FragmentedBuffer<'_> {
    fn frame_len(&self) -> u32 {
        self.bytes.len() as u32
    }
    fn header<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        self.bytes[..self.readable.min(self.bytes.len())].get(at..)?.first_chunk()
    }
    fn pull(&mut self, len: usize) {
        self.readable = self.readable.max(len);
    }
}

/// Classification of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Congesting and sequenced.
    Data(Stream),
    /// Sequenced.
    Small(Stream),
    /// Neither: management, InfiniBand's own CNP.
    Other,
    Cnp,
}

fn kind_of(roce: &Roce) -> Kind {
    let stream = roce.class.stream();
    match (roce.is_cnp(), roce.congests(), roce.is_sequenced()) {
        (true, false, false) => Kind::Cnp,
        (false, true, true) => Kind::Data(stream),
        (false, false, true) => Kind::Small(stream),
        (false, false, false) => Kind::Other,
        all => panic!("{all:?} contradict each other"),
    }
}

fn kind(frame: &[u8]) -> Result<Kind, Stat> {
    classify(&mut { frame }).map(|roce| kind_of(&roce))
}

/// The kind of [`data`]'s packets: WRITEs.
const DATA: Kind = Kind::Data(Stream::Requests);
/// Classes of opcodes according to the standard, written independently of the code under test.
fn expected(opcode: u8, qpn: u32) -> Result<Kind, Stat> {
    use Stream::{Requests, Responses};
    let kind = match opcode {
        0x81 => return Ok(Kind::Cnp),
        // SEND and WRITE of RC, UC, RD, XRC; RC's and XRC's SEND with invalidate; UD's SEND.
        0x00..=0x0b | 0x20..=0x2b | 0x40..=0x4b | 0xa0..=0xab => Kind::Data(Requests),
        0x16 | 0x17 | 0xb6 | 0xb7 | 0x64 | 0x65 => Kind::Data(Requests),
        // READ responses; acknowledgements, those of atomics too.
        0x0d..=0x10 | 0x4d..=0x50 | 0xad..=0xb0 => Kind::Data(Responses),
        0x11 | 0x12 | 0x51 | 0x52 | 0xb1 | 0xb2 => Kind::Small(Responses),
        // READ requests, atomics, RESYNC, FLUSH, ATOMIC WRITE.
        0x0c | 0x4c | 0xac | 0x13 | 0x14 | 0x53 | 0x54 | 0xb3 | 0xb4 | 0x55 | 0x1c | 0x1d | 0x5c => {
            Kind::Small(Requests)
        }
        // InfiniBand's own CNP.
        0x80 => Kind::Other,
        // Reserved for manufacturers.
        0xc0..=0xff => return Err(Stat::VendorBth),
        _ => return Err(Stat::UnknownBth),
    };
    Ok(if qpn > 1 { kind } else { Kind::Other })
}

#[test]
fn captured_packets_classified_by_opcode() {
    let captures = [
        ("rc_cm_rping.pcap", 30, 35),
        ("rc_read.pcap", 216, 55),
        ("rc_write.pcap", 216, 54),
        ("ud_send.pcap", 100, 0),
    ];
    for (name, data, control) in captures {
        let mut counted = (0, 0);
        for (number, frame) in frames::frames(name).iter().enumerate() {
            // All of it is IPv4 without tags.
            let bth = UDP_V4 + Udp::LEN;
            let qpn = u32::from_be_bytes([0, frame[bth + 5], frame[bth + 6], frame[bth + 7]]);
            let roce =
                classify(&mut &frame[..]).unwrap_or_else(|stat| panic!("{name} {number}: {}", stat.label()));
            assert_eq!(Ok(kind_of(&roce)), expected(frame[bth], qpn), "{name} {number}");
            assert_eq!((roce.l3, roce.v6, roce.bth()), (L3, false, bth), "{name} {number}");
            let fields = (roce.opcode.0, roce.dest_qpn, roce.tos);
            assert_eq!(fields, (frame[bth], qpn, frame[L3 + 1]), "{name} {number}");
            match kind_of(&roce) {
                Kind::Data(_) => counted.0 += 1,
                Kind::Small(_) | Kind::Other => counted.1 += 1,
                Kind::Cnp => panic!("{name} {number}: no CNP was sent"),
            }
        }
        assert_eq!(counted, (data, control), "{name}");
    }
}

#[test]
fn every_opcode_is_known_or_counted() {
    for opcode in 0..=u8::MAX {
        for qpn in [0, 1, 2, 0x00ff_ffff] {
            for v6 in [false, true] {
                let frame = build(v6, Opcode(opcode), qpn, &[0; 28]);
                assert_eq!(kind(&frame), expected(opcode, qpn), "opcode {opcode:#x}, QP {qpn}");
            }
        }
    }
}

#[test]
fn every_field_read_at_its_offset() {
    let tpids: [&[u16]; 6] =
        [&[], &[0x8100], &[0x88a8], &[0x88a8, 0x8100], &[0x8100, 0x8100], &[0x88a8, 0x88a8]];
    for (tpids, v6) in tpids.into_iter().flat_map(|tpids| [(tpids, false), (tpids, true)]) {
        let frame = tagged(&data()[usize::from(v6)], tpids);
        let mut frame = &frame[..];
        let l3 = L3 + 4 * tpids.len();
        let udp = l3 + if v6 { Ipv6::LEN } else { Ipv4::LEN };
        let roce = classify(&mut frame).unwrap_or_else(|stat| panic!("{tpids:x?}: {}", stat.label()));
        let opcode = Opcode::RC_RDMA_WRITE_MIDDLE;
        let end = frame.len();
        // Each tag has VLAN ID 5.
        let vlan = [0, 5, 5 << 12 | 5][tpids.len()];
        let class = opcode.class();
        let (dest_qpn, tos, packets, is_trimmed) = (QPN, TOS, 1, false);
        assert_eq!(roce, Roce { l3, v6, opcode, class, dest_qpn, tos, end, vlan, packets, is_trimmed });
        assert_eq!((roce.udp(), roce.bth()), (udp, udp + Udp::LEN));
        assert_eq!((kind_of(&roce), roce.dscp(), roce.ecn()), (DATA, 26, Ecn::ECT0));
        let (src, dst) = if v6 { (words(SRC_V6), words(DST_V6)) } else { (mapped(SRC_V4), mapped(DST_V4)) };
        assert_eq!(roce.addresses(&frame), Some((src, dst)));
        let receiver = QpId { addr: dst, qpn: QPN, vlan };
        assert_eq!(roce.receiver(&frame), Some(receiver));
        assert_eq!(roce.flow(&frame), Some(FlowId { src, receiver }));
        assert_eq!((roce.source_qpn(&frame), roce.sender(&frame)), (None, None));
    }
    // An IPv4 address is the IPv4-mapped IPv6 address of RFC 4291.
    assert_eq!(mapped(DST_V4), words(*b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x02"));
}

#[test]
fn dscp_read_from_any_ip_packet() {
    for frame in data() {
        for tpids in [&[][..], &[0x8100], &[0x88a8, 0x8100]] {
            let l3 = L3 + 4 * tpids.len();
            for value in 0..64u8 {
                // The ECN field below it, and in IPv6 the flow label, belong to neither.
                let tos = value << 2 | 1;
                let head = if frame[L3] == 0x45 { [0x45, tos] } else { [0x60 | tos >> 4, tos << 4 | 0xf] };
                let frame = patched(&tagged(&frame, tpids), l3, &head);
                assert_eq!(dscp(&mut &frame[..]), Some(value.into()), "{tpids:x?}");
                let in_pieces = dscp(&mut FragmentedBuffer::new(&frame));
                assert_eq!(in_pieces, Some(value.into()), "{tpids:x?}");
            }
        }
        assert_eq!(dscp(&mut &tagged(&frame, &[0x8100; 3])[..]), None);
        assert_eq!(dscp(&mut &frame[..=L3]), None);
    }
    let fragment = patched(&data()[0], L3 + 6, &[0x20, 0x10]);
    assert_eq!(dscp(&mut &fragment[..]), Some((TOS >> 2).into()));
    assert_eq!(dscp(&mut &ethernet(EtherType(0x0806), &[0; 46])[..]), None);
}

#[test]
fn nonlinear_packet_classified_alike() {
    let datagram = |v6| build(v6, Opcode::UD_SEND_ONLY, QPN, &[7; Deth::LEN]);
    for frame in data().into_iter().chain([false, true].map(datagram)) {
        for tpids in [&[][..], &[0x8100], &[0x88a8, 0x8100]] {
            let frame = tagged(&frame, tpids);
            let mut pieces = FragmentedBuffer::new(&frame);
            let roce = classify(&mut pieces).unwrap();
            assert_eq!(Ok(roce), classify(&mut &frame[..]), "{tpids:x?}");
            assert_eq!(roce.sender(&pieces), roce.sender(&&frame[..]));
            let extension = if roce.class == Class::Datagram { Deth::LEN } else { 0 };
            let headers = roce.bth() + Bth::LEN + extension;
            assert_eq!(pieces.readable, headers, "a pull is a copy: no more than the headers");
        }
    }
}

#[test]
fn only_datagrams_name_their_sender() {
    let deth = DethRepr { q_key: 0x1111_1111, src_qpn: 0x00ab_cdef }.bytes();
    for (opcode, sender) in [
        (Opcode::UD_SEND_ONLY, Some(0x00ab_cdef)),
        (Opcode::UD_SEND_ONLY_WITH_IMMEDIATE, Some(0x00ab_cdef)),
        (Opcode::RC_SEND_ONLY, None),
        (Opcode::RD_SEND_ONLY, None),
    ] {
        for v6 in [false, true] {
            let frame = build(v6, opcode, QPN, &deth);
            let roce = classify(&mut &frame[..]).unwrap();
            assert_eq!(roce.source_qpn(&&frame[..]), sender, "{}", opcode.name());
            let addr = if v6 { words(SRC_V6) } else { mapped(SRC_V4) };
            let sender = sender.map(|qpn| QpId { addr, qpn, vlan: 0 });
            assert_eq!(roce.sender(&&frame[..]), sender, "{}", opcode.name());
        }
    }
    // One without room for its DETH has no sender in its Ethernet padding.
    for body in [0, Deth::LEN - 1] {
        for v6 in [false, true] {
            let mut frame = build(v6, Opcode::UD_SEND_ONLY, QPN, &deth[..body]);
            frame.extend_from_slice(&[0xff; 16]);
            assert_eq!(kind(&frame), Err(Stat::Malformed), "{body} bytes");
        }
    }
}

/// One frame of each kind that is not a plain RoCEv2 packet, and next to them those that still are.
#[test]
fn unusual_frames_counted_by_kind() {
    let [v4, v6] = &data();
    let tcp = [patched(v4, L3 + 9, &[6]), patched(v6, L3 + 6, &[6])];
    // Four bytes of option between header and UDP; the segment's lengths hold.
    let options = |frame: &[u8]| {
        let mut frame = patched(frame, L3, &[0x46]);
        frame.splice(UDP_V4..UDP_V4, [1, 1, 1, 0]);
        let total_len = (frame.len() - L3) as u16;
        patched(&frame, L3 + 2, &total_len.to_be_bytes())
    };
    let fragment = |flags_and_offset: u16| patched(v4, L3 + 6, &flags_and_offset.to_be_bytes());
    let padded = |frame: &[u8]| [frame, &[0; 10]].concat();
    let cut = |frame: &[u8]| frame[..frame.len() - 1].to_vec();
    let ip_len = |frame: &[u8], by: i32| {
        let at = if frame[L3] == 0x45 { L3 + 2 } else { L3 + 4 };
        let len = i32::from(u16::from_be_bytes([frame[at], frame[at + 1]])) + by;
        patched(frame, at, &(len as u16).to_be_bytes())
    };
    let udp_len = |frame: &[u8], by: i32| {
        let at = 4 + if frame[L3] == 0x45 { UDP_V4 } else { UDP_V6 };
        let len = i32::from(u16::from_be_bytes([frame[at], frame[at + 1]])) + by;
        patched(frame, at, &(len as u16).to_be_bytes())
    };
    // Headers and ICRC.
    let shortest = build(false, Opcode::CNP, QPN, &[]);
    let ends_in_icrc = cut(&ip_len(&shortest, -1));

    let mapped_v4 = [&[0; 10][..], &[0xff, 0xff, 10, 0, 0, 1]].concat();

    let arp = ethernet(EtherType(0x0806), &[0; 46]);
    let mac_control = ethernet(EtherType::MAC_CONTROL, &[0; 46]);
    let v1 = ethernet(EtherType::ROCE_V1, &[0; 60]);
    let frames = [
        ("RoCEv2", v4.clone(), Ok(DATA)),
        ("RoCEv2 over IPv6", v6.clone(), Ok(DATA)),
        // Layer 2.
        ("ARP", arp.clone(), Err(Stat::NotRoce)),
        ("an 802.3 length", ethernet(EtherType(0x0026), &[0; 46]), Err(Stat::NotRoce)),
        ("RoCEv1", v1.clone(), Err(Stat::RoceV1)),
        ("RoCEv1, tagged", tagged(&v1, &[0x8100]), Err(Stat::RoceV1)),
        ("ARP, two tags", tagged(&arp, &[0x88a8, 0x8100]), Err(Stat::NotRoce)),
        ("MAC control", mac_control.clone(), Err(Stat::MacControl)),
        ("MAC control behind a tag", tagged(&mac_control, &[0x8100]), Err(Stat::NotRoce)),
        ("three tags", tagged(v4, &[0x88a8, 0x8100, 0x8100]), Err(Stat::VlanTooDeep)),
        ("three tags, IPv6", tagged(v6, &[0x8100; 3]), Err(Stat::VlanTooDeep)),
        ("another TPID", tagged(v4, &[0x9100]), Err(Stat::NotRoce)),
        ("IPv4 with the ethertype of IPv6", patched(v4, 12, &[0x86, 0xdd]), Err(Stat::NotRoce)),
        // IPv4.
        ("TCP", tcp[0].clone(), Err(Stat::NotRoce)),
        ("options", options(v4), Err(Stat::Ipv4Options)),
        ("TCP with options", options(&tcp[0]), Err(Stat::NotRoce)),
        ("options, tagged", tagged(&options(v4), &[0x8100]), Err(Stat::Ipv4Options)),
        ("a header of 16 bytes", patched(v4, L3, &[0x44]), Err(Stat::Malformed)),
        ("version 5", patched(v4, L3, &[0x55]), Err(Stat::Malformed)),
        ("the first fragment", fragment(0x2000), Err(Stat::Ipv4Fragments)),
        ("a middle fragment", fragment(0x2010), Err(Stat::Ipv4Fragments)),
        ("the last fragment", fragment(0x0010), Err(Stat::Ipv4Fragments)),
        ("the farthest fragment", fragment(0x1fff), Err(Stat::Ipv4Fragments)),
        ("a fragment with options", patched(&options(v4), L3 + 6, &[0x20, 0]), Err(Stat::Ipv4Fragments)),
        ("may be fragmented but is not", fragment(0), Ok(DATA)),
        // IPv6.
        ("TCP over IPv6", tcp[1].clone(), Err(Stat::NotRoce)),
        ("ICMPv6", patched(v6, L3 + 6, &[58]), Err(Stat::NotRoce)),
        ("no next header", patched(v6, L3 + 6, &[59]), Err(Stat::NotRoce)),
        ("version 4", patched(v6, L3, &[0x40]), Err(Stat::Malformed)),
        ("a jumbogram", patched(v6, L3 + 4, &[0, 0]), Err(Stat::Malformed)),
        // UDP.
        ("Ultra Ethernet", patched(v4, UDP_V4 + 2, &[0x12, 0xb9]), Err(Stat::Uet)),
        ("Ultra Ethernet, IPv6", patched(v6, UDP_V6 + 2, &[0x12, 0xb9]), Err(Stat::Uet)),
        ("DNS", patched(v4, UDP_V4 + 2, &[0, 53]), Err(Stat::NotRoce)),
        ("4791 as source only", patched(v4, UDP_V4, &[0x12, 0xb7, 0xc0, 0]), Err(Stat::NotRoce)),
        ("4791 as source only, IPv6", patched(v6, UDP_V6, &[0x12, 0xb7, 0xc0, 0]), Err(Stat::NotRoce)),
        ("4791 as source too", patched(v4, UDP_V4, &[0x12, 0xb7]), Ok(DATA)),
        ("a UDP checksum", patched(v4, UDP_V4 + 6, &[0x12, 0x34]), Ok(DATA)),
        // Lengths.
        ("Ethernet padding", padded(v4), Ok(DATA)),
        ("Ethernet padding, IPv6", padded(v6), Ok(DATA)),
        ("IP longer than the frame", cut(v4), Err(Stat::Trimmed)),
        ("IP longer than the frame, IPv6", cut(v6), Err(Stat::Trimmed)),
        ("UDP longer than IP", udp_len(v4, 1), Err(Stat::Trimmed)),
        ("UDP longer than IP, IPv6", udp_len(v6, 1), Err(Stat::Trimmed)),
        ("UDP longer than IP, in padding", udp_len(&padded(v4), 10), Err(Stat::Trimmed)),
        ("UDP shorter than IP", udp_len(v4, -1), Err(Stat::Malformed)),
        ("UDP shorter than IP, IPv6", udp_len(v6, -1), Err(Stat::Malformed)),
        ("IP longer than UDP", ip_len(&padded(v4), 4), Err(Stat::Malformed)),
        ("IP shorter than UDP", ip_len(v4, -4), Err(Stat::Trimmed)),
        ("IP shorter than its header", patched(v4, L3 + 2, &[0, 19]), Err(Stat::Malformed)),
        ("both shorter than the frame", udp_len(&ip_len(v4, -8), -8), Ok(DATA)),
        ("UDP that ends within its ICRC", udp_len(&ends_in_icrc, -1), Err(Stat::Malformed)),
        ("UDP that ends with an ICRC", shortest, Ok(Kind::Cnp)),
        ("IP that ends within the BTH", ip_len(v4, -69), Err(Stat::Malformed)),
        ("IP that ends with the BTH", ip_len(v4, -68), Err(Stat::Trimmed)),
        ("IP that ends within the BTH, IPv6", ip_len(v6, -69), Err(Stat::Malformed)),
        ("UDP of length 0", patched(v4, UDP_V4 + 4, &[0, 0]), Err(Stat::Malformed)),
        ("a BTH and three bytes, of a longer datagram", ends_in_icrc, Err(Stat::Trimmed)),
        // BTH.
        ("header version 1", patched(v4, UDP_V4 + 9, &[0x01]), Err(Stat::UnknownBth)),
        ("IPv4-mapped source", patched(v6, L3 + 8, &mapped_v4), Err(Stat::Malformed)),
        ("IPv4-mapped destination", patched(v6, L3 + 24, &mapped_v4), Err(Stat::Malformed)),
        ("header version 15, IPv6", patched(v6, UDP_V6 + 9, &[0x0f]), Err(Stat::UnknownBth)),
        ("every other flag", patched(v4, UDP_V4 + 9, &[0xf0]), Ok(DATA)),
        ("an opcode of a manufacturer", patched(v4, UDP_V4 + 8, &[0xe0]), Err(Stat::VendorBth)),
        ("an opcode not assigned", patched(v6, UDP_V6 + 8, &[0x15]), Err(Stat::UnknownBth)),
        ("an acknowledgement", patched(v4, UDP_V4 + 8, &[0x11]), Ok(Kind::Small(Stream::Responses))),
        ("a CNP", build(false, Opcode::CNP, QPN, &[0; 16]), Ok(Kind::Cnp)),
        ("QP 0", patched(v4, UDP_V4 + 13, &[0, 0, 0]), Ok(Kind::Other)),
        ("QP 1", patched(v6, UDP_V6 + 13, &[0, 0, 1]), Ok(Kind::Other)),
        ("QP 2", patched(v4, UDP_V4 + 13, &[0, 0, 2]), Ok(DATA)),
    ];
    for (name, frame, expected) in frames {
        assert_eq!(kind(&frame), expected, "{name}");
    }
    // Hop-by-hop options, routing, fragment, ESP, AH, destination options, mobility, HIP, shim6, experiments.
    for next_header in [0, 43, 44, 50, 51, 60, 135, 139, 140, 253, 254] {
        let frame = patched(v6, L3 + 6, &[next_header]);
        assert_eq!(kind(&frame), Err(Stat::Ipv6Extensions), "{next_header}");
        assert_eq!(kind(&tagged(&frame, &[0x8100])), Err(Stat::Ipv6Extensions), "{next_header}, tagged");
    }
}

#[test]
fn truncated_frame_is_malformed_or_trimmed() {
    for (frame, tags) in data().iter().flat_map(|frame| {
        [&[][..], &[0x8100], &[0x88a8, 0x8100]].map(|tpids| (tagged(frame, tpids), tpids.len()))
    }) {
        // Untouched lengths and a complete BTH: trimmed as by SONiC.
        let headers = classify(&mut &frame[..]).unwrap().bth() + Bth::LEN;
        assert!(headers > Ethernet::LEN + 4 * tags);
        for len in 0..frame.len() {
            let expected = match len {
                _ if len < Ethernet::LEN => Stat::NotRoce,
                _ if len < headers => Stat::Malformed,
                _ => Stat::Trimmed,
            };
            assert_eq!(kind(&frame[..len]), Err(expected), "{len} of {}", frame.len());
        }
    }
}

/// For any bytes: packets classified as RoCE are complete, and all fields that the hooks read are readable.
fn check_anything(frame: &[u8]) -> Result<(), TestCaseError> {
    let mut bytes = frame;
    let Ok(roce) = classify(&mut bytes) else { return Ok(()) };
    let udp = Udp::new(bytes.header(roce.udp()).expect("a UDP header"));
    prop_assert_eq!(udp.dst_port(), udp::ROCE_V2_PORT);
    prop_assert!(roce.udp() + usize::from(udp.length()) <= frame.len());
    prop_assert!(roce.bth() + Bth::LEN + icrc::LEN <= roce.udp() + usize::from(udp.length()));
    prop_assert!(roce.receiver(&bytes).is_some());
    let is_datagram = [Opcode::UD_SEND_ONLY, Opcode::UD_SEND_ONLY_WITH_IMMEDIATE].contains(&roce.opcode);
    prop_assert_eq!(roce.source_qpn(&bytes).is_some(), is_datagram);
    prop_assert!(roce.opcode.is_known() && roce.dest_qpn < 1 << 24 && roce.dscp() < 64);
    Ok(())
}

proptest! {
    #[test]
    fn arbitrary_bytes_classified_within_bounds(frame in prop::collection::vec(any::<u8>(), 0..200)) {
        check_anything(&frame)?;
    }

    #[test]
    fn damaged_packets_classified_within_bounds(
        v6: bool, tags in 0usize..4, opcode: u8, body in 0usize..40, keep in 0.5f64..=1.0, padding in 0usize..20,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
                let mut frame = tagged(&build(v6, Opcode(opcode), QPN, &vec![0; body]), &[0x8100; 3][..tags.min(3)]);
        frame.extend(vec![0; padding]);
        frame.truncate((frame.len() as f64 * keep) as usize);
        for (at, value) in damage {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        check_anything(&frame)?;
    }
}
