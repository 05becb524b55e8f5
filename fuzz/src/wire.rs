//! Headers and messages.

use std::ops::Range;

use dcqcn_common::classify::{self, Frame, Roce};
use dcqcn_common::wire::bth::{Bth, Opcode};
use dcqcn_common::wire::cm::{CommIds, Mad};
use dcqcn_common::wire::cnp::{self, Cnp, CnpRepr};
use dcqcn_common::wire::ext::Deth;
use dcqcn_common::wire::icrc;
use dcqcn_common::wire::ipv4::Ipv4;
use dcqcn_common::wire::udp::{self, Udp};
use dcqcn_tests::packets::{CmMessage, Dreq, Rep, req};

/// Checks packets classified as RoCE.
pub(crate) fn classify(bytes: &[u8]) {
    let mut frame = bytes;
    let dscp = classify::dscp(&mut frame);
    let Ok(roce) = classify::classify(&mut frame) else { return };
    assert_eq!(dscp, Some(roce.dscp()), "both parsers find the same DSCP");
    let udp = Udp::new(frame.header(roce.udp()).expect("a UDP header"));
    assert_eq!(udp.dst_port(), udp::ROCE_V2_PORT);
    assert!(roce.udp() + usize::from(udp.length()) <= bytes.len(), "the datagram is complete");
    let bth = Bth::new(frame.header(roce.bth()).expect("a BTH"));
    assert_eq!((bth.opcode(), bth.dest_qpn(), bth.tver()), (roce.opcode, roce.dest_qpn, 0));
    assert!(roce.opcode.is_known() && roce.opcode.name() != "UNKNOWN");
    kinds(&roce, &frame);
}

/// Checks that the classes of a packet exclude one another, and their properties.
fn kinds(roce: &Roce, frame: &&[u8]) {
    assert!(!roce.congests() || roce.is_sequenced(), "congesting packets are sequenced");
    assert!(!(roce.is_cnp() && (roce.congests() || roce.is_sequenced())));
    assert_eq!(roce.is_cnp(), roce.opcode == Opcode::CNP);
    if roce.congests() {
        assert!(roce.opcode.is_data());
    }
    let flow = roce.flow(frame).expect("addresses");
    assert_eq!(roce.receiver(frame), Some(flow.receiver));
    if let Some(sender) = roce.sender(frame) {
        assert_eq!(sender.addr, flow.src);
        assert!(roce.opcode.has_deth() && frame.header::<{ Deth::LEN }>(roce.bth() + Bth::LEN).is_some());
    }
    if !roce.v6 {
        let ip = Ipv4::new(frame.header(roce.l3).expect("an IPv4 header"));
        assert!(ip.is_plain() && !ip.is_fragment());
    }
}

/// CNPs and connection management messages.
pub(crate) fn messages(bytes: &[u8]) {
    if let Some((mad, _)) = Mad::parse(bytes) {
        let (comm_ids, qpns) = (CommIds::parse(mad), [mad.req_qpn(), mad.rep_qpn(), mad.dreq_qpn()]);
        let [local_qpn, replying_qpn, remote_qpn] = qpns;
        let messages = [
            CmMessage::Req(req(comm_ids.local, local_qpn)),
            CmMessage::Rep(Rep { comm_ids, local_qpn: replying_qpn, starting_psn: 1 }),
            CmMessage::Dreq(Dreq { comm_ids, remote_qpn }),
        ];
        let written = messages.map(|message| message.datagram(0));
        let [req, rep, dreq] = written.each_ref().map(|bytes| Mad::parse(bytes).expect("a MAD").0);
        assert_eq!([req.req_qpn(), rep.rep_qpn(), dreq.dreq_qpn()], qpns);
        assert_eq!((CommIds::parse(req).local, CommIds::parse(rep)), (comm_ids.local, comm_ids));
    }
    if let Some(packet) = bytes.first_chunk::<{ cnp::V4_LEN }>() {
        assert!(cnp::parse_v4(packet).is_none() || icrc::verify(packet), "a valid CNP has a valid ICRC");
    }
    if let Some(packet) = bytes.first_chunk::<{ cnp::V6_LEN }>() {
        assert!(cnp::parse_v6(packet).is_none() || icrc::verify(packet), "a valid CNP has a valid ICRC");
    }
    if let Some(&[a, b, c, d, e, f, g, h, tos, _, has_hint, bit]) = bytes.first_chunk() {
        let qpn = u32::from_be_bytes([0, c, d, e]);
        let other = u32::from_be_bytes([0, f, g, h]);
        let hint = if has_hint & 1 == 0 { cnp::NO_HINT } else { other };
        check_cnp(&CnpRepr { udp_sport: u16::from_be_bytes([a, b]), dest_qpn: qpn, hint, tos }, bit);
    }
}

/// A new CNP is valid and has the given content; with one bit flipped it is rejected.
fn check_cnp(repr: &CnpRepr, bit: u8) {
    let expected = Cnp { dest_qpn: repr.dest_qpn, hint: repr.hint };
    let mut v4 = [0; cnp::V4_LEN];
    cnp::emit_v4(&mut v4, [10, 0, 0, 1], [10, 0, 0, 2], repr);
    assert_eq!(cnp::parse_v4(&v4), Some(expected));
    let mut v6 = [0; cnp::V6_LEN];
    cnp::emit_v6(&mut v6, [1; 16], [2; 16], repr);
    assert_eq!(cnp::parse_v6(&v6), Some(expected));
    /// Bits covered by neither: the UDP checksum, which RoCE ignores, and FECN with the adjacent reserved bits.
    const UDP_CHECKSUM: Range<usize> = Ipv4::LEN + 6..Ipv4::LEN + Udp::LEN;
    const FECN: usize = Ipv4::LEN + Udp::LEN + 4;
    let bit = usize::from(bit) * 2;
    let at = bit / 8;
    if let Some(byte) = v4.get_mut(at)
        && !UDP_CHECKSUM.contains(&at)
        && at != FECN
    {
        *byte ^= 1 << (bit % 8);
        assert_eq!(cnp::parse_v4(&v4), None, "IPv4's checksum covers what the ICRC does not");
    }
}
