//! Packet classification, by one pass over the headers.
//!
//! Accepts Ethernet, up to two VLAN tags, IPv4 without options or IPv6 without extension headers, UDP 4791, BTH. Every
//! other packet passes unchanged and increments the [`Stat`] that names it.

use crate::flow::{FlowId, HashKeys, QpId};
use crate::id::{V4_MAPPED, tagged};
use crate::stats::Stat;
use crate::wire::bth::{Bth, Class, Opcode};
use crate::wire::ecn::{self, Ecn};
use crate::wire::eth::{EtherType, Ethernet, VlanTag};
use crate::wire::ext::Deth;
use crate::wire::icrc;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::{self, Ipv6};
use crate::wire::sub;
use crate::wire::udp::{self, Udp};

/// Access to a packet, one header at a time.
///
/// Offsets count from the Ethernet header. A header is a reference to an array of its length, so reading it is
/// checked once and cannot fail afterwards.
pub trait Frame {
    /// Length of the frame, without FCS.
    fn frame_len(&self) -> u32;
    /// `N` bytes from offset `at`, or `None` beyond the end of the packet.
    fn header<const N: usize>(&self, at: usize) -> Option<&[u8; N]>;
    fn reaches(&self, len: usize) -> bool {
        len <= self.frame_len() as usize
    }
    /// Frame length of a packet that [reaches](Frame::reaches) `len`.
    ///
    /// If the first fragment of the buffer reaches it, the bytes in further fragments are padding, and an
    /// implementation may omit them.
    fn len_reaching(&self, _len: usize) -> u32 {
        self.frame_len()
    }
    /// The VLAN ID of the tag that the kernel stores outside the packet, outermost; 0 = none.
    fn stripped_vid(&self) -> u32 {
        0
    }
    /// Payload bytes of each segment that UDP GSO will split this buffer into; 0 = not a super-packet.
    fn segment_bytes(&self) -> u32 {
        0
    }
    /// Makes the first `len` bytes of a fragmented socket buffer readable.
    fn pull(&mut self, _len: usize) {}
}

impl Frame for &[u8] {
    fn frame_len(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }

    fn header<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        self.get(at..)?.first_chunk()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roce {
    /// Offset of the IP header.
    pub l3: usize,
    /// IPv6 (else IPv4).
    pub v6: bool,
    pub opcode: Opcode,
    pub class: Class,
    pub dest_qpn: u32,
    /// TOS or traffic class: DSCP and ECN.
    pub tos: u8,
    /// End of the packet according to its IP header, as an offset.
    pub end: usize,
    /// VLAN IDs, encoded as in [`QpId::vlan`].
    pub vlan: u32,
    /// Packets on the wire that this buffer becomes; see [`Roce::segments`].
    pub packets: u32,
    /// Whether a switch has cut it to its headers; `end` and the ICRC are then not valid.
    pub is_trimmed: bool,
}

/// Maximum number of packets of a super-packet that are counted and charged.
///
/// With this limit, a buffer of 64 KB with headers and `wire_overhead` per packet remains below 2^20 bytes, the pacer's
/// range. A guest may specify shorter segments.
pub(crate) const MAX_SEGMENTS: u32 = 2_048;

/// The packets on the wire that one buffer becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    pub packets: u64,
    /// Bytes added to the buffer's length: every packet after the first repeats the headers.
    pub header_bytes: u64,
}

/// QP 1, the general services interface. QP 0 and 1 carry management traffic, which is never paced or answered.
pub const QP_GSI: u32 = 1;

impl Roce {
    /// Whether this is payload (SEND, WRITE, READ response) of an ordinary QP.
    ///
    /// Such packets trigger CNPs and are charged to their flow.
    #[inline(always)]
    pub const fn congests(&self) -> bool {
        self.class.congests() && self.dest_qpn > QP_GSI
    }

    /// Whether the packet belongs to an ordinary QP's sequence, and so must not overtake earlier packets.
    #[inline(always)]
    pub const fn is_sequenced(&self) -> bool {
        self.class.is_sequenced() && self.dest_qpn > QP_GSI
    }

    /// Whether this is a CNP: never marked, never delayed, and cuts a rate at its destination.
    #[inline(always)]
    pub const fn is_cnp(&self) -> bool {
        matches!(self.class, Class::Cnp)
    }

    #[inline(always)]
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.tos)
    }

    /// DSCP, below 64.
    #[inline(always)]
    pub const fn dscp(&self) -> usize {
        ecn::dscp(self.tos) as usize
    }

    #[inline(always)]
    pub const fn udp(&self) -> usize {
        self.l3 + if self.v6 { Ipv6::LEN } else { Ipv4::LEN }
    }

    #[inline(always)]
    pub const fn bth(&self) -> usize {
        self.udp() + Udp::LEN
    }

    /// End of the headers, as an offset: all that trimming retains.
    #[inline(always)]
    pub(crate) fn headers_end(&self) -> usize {
        self.bth() + Bth::LEN + self.opcode.ext_len_from_table()
    }

    /// Source and destination address; IPv4 addresses are mapped into IPv6.
    #[inline(always)]
    pub fn addresses<F: Frame>(&self, frame: &F) -> Option<([u32; 4], [u32; 4])> {
        if self.v6 {
            Some(Ipv6::new(frame.header(self.l3)?).addresses())
        } else {
            let ip = Ipv4::new(frame.header(self.l3)?);
            let (src, dst) = ip.addresses();
            Some(([0, 0, V4_MAPPED, src], [0, 0, V4_MAPPED, dst]))
        }
    }

    /// [`FlowId::untagged_fingerprint`] of the packet's flow.
    #[inline(always)]
    pub(crate) fn untagged_fingerprint<F: Frame>(&self, frame: &F, keys: &HashKeys) -> Option<u64> {
        if self.v6 {
            Some(self.flow(frame)?.untagged_fingerprint(keys))
        } else {
            let (src, dst) = Ipv4::new(frame.header(self.l3)?).addresses();
            Some(keys.fingerprint_v4(src, dst, self.dest_qpn))
        }
    }

    /// VLAN IDs of the tag outside the packet and of those inside.
    #[inline(always)]
    fn vlans<F: Frame>(&self, frame: &F) -> u32 {
        const OUTER: usize = Ethernet::LEN;
        const INNER: usize = OUTER + VlanTag::LEN;
        let mut vlan = frame.stripped_vid();
        if self.l3 > OUTER {
            vlan = tagged(vlan, frame.header(OUTER).map_or(0, |tag| VlanTag::new(tag).vid().into()));
        }
        if self.l3 > INNER {
            vlan = tagged(vlan, frame.header(INNER).map_or(0, |tag| VlanTag::new(tag).vid().into()));
        }
        vlan
    }

    /// The packets on the wire that this buffer becomes: several for a UDP GSO super-packet, which comes from a sender
    /// that uses `UDP_SEGMENT` or an interface with `rx-udp-gro-forwarding`.
    #[inline(always)]
    pub fn segments(&self) -> Segments {
        let packets = u64::from(self.packets);
        Segments { packets, header_bytes: (self.bth() as u64).wrapping_mul(packets.wrapping_sub(1)) }
    }

    #[inline(always)]
    fn packets<F: Frame>(&self, frame: &F) -> u32 {
        let segment_bytes = frame.segment_bytes();
        if segment_bytes == 0 {
            return 1;
        }
        let payload_bytes = self.end.saturating_sub(self.bth()) as u32;
        payload_bytes.div_ceil(segment_bytes).clamp(1, MAX_SEGMENTS)
    }

    #[inline(always)]
    pub fn flow<F: Frame>(&self, frame: &F) -> Option<FlowId> {
        let (src, addr) = self.addresses(frame)?;
        Some(FlowId { src, receiver: QpId { addr, qpn: self.dest_qpn, vlan: self.vlan } })
    }

    #[inline(always)]
    pub fn receiver<F: Frame>(&self, frame: &F) -> Option<QpId> {
        Some(QpId { addr: self.addresses(frame)?.1, qpn: self.dest_qpn, vlan: self.vlan })
    }

    /// The source QP, which only datagrams name.
    #[inline(always)]
    pub fn sender<F: Frame>(&self, frame: &F) -> Option<QpId> {
        let qpn = self.source_qpn(frame)?;
        Some(QpId { addr: self.addresses(frame)?.0, qpn, vlan: self.vlan })
    }

    /// Source QPN, which only datagrams carry.
    ///
    /// (Reliable datagrams carry it too, in another header; no hardware implements them.)
    #[inline(always)]
    pub fn source_qpn<F: Frame>(&self, frame: &F) -> Option<u32> {
        if self.class != Class::Datagram {
            return None;
        }
        Some(Deth::new(frame.header(self.bth() + Bth::LEN)?).src_qpn())
    }
}

/// An IPv4 address as an IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2), words in wire order.
#[inline(always)]
pub const fn mapped(addr: [u8; 4]) -> [u32; 4] {
    [0, 0, V4_MAPPED, u32::from_ne_bytes(addr)]
}

/// Whether an address ([`mapped`] or [`words`]) can belong to a single remote host: not multicast, loopback or
/// unspecified.
#[inline(always)]
pub(crate) const fn is_of_one_host(addr: [u32; 4]) -> bool {
    let [a, b, c, d] =
        [u32::from_be(addr[0]), u32::from_be(addr[1]), u32::from_be(addr[2]), u32::from_be(addr[3])];
    if a | b == 0 && c == 0xffff {
        // Classes A to C (RFC 1122 §3.2.1.3); above them are multicast and broadcast.
        let first = d >> 24;
        return first != 0 && first != 127 && first < 224;
    }
    // RFC 4291 §2.5.2, §2.5.3 and §2.7.
    a >> 24 != 0xff && !(a | b | c == 0 && d <= 1)
}

/// An IPv6 address as words in wire order.
#[inline(always)]
pub const fn words(a: [u8; 16]) -> [u32; 4] {
    [
        u32::from_ne_bytes([a[0], a[1], a[2], a[3]]),
        u32::from_ne_bytes([a[4], a[5], a[6], a[7]]),
        u32::from_ne_bytes([a[8], a[9], a[10], a[11]]),
        u32::from_ne_bytes([a[12], a[13], a[14], a[15]]),
    ]
}

/// Classifies a packet.
///
/// # Errors
/// The counter for packets that pass unchanged, by reason.
#[inline(always)]
pub fn classify<F: Frame>(frame: &mut F) -> Result<Roce, Stat> {
    match classify_trimmed(frame) {
        Ok(roce) if roce.is_trimmed => Err(Stat::Trimmed),
        found => found,
    }
}

/// As [`classify`], but `Ok` for trimmed data too.
#[inline(always)]
pub(crate) fn classify_trimmed<F: Frame>(frame: &mut F) -> Result<Roce, Stat> {
    let mut roce = walk(frame)?;
    roce.vlan = roce.vlans(frame);
    roce.packets = roce.packets(frame);
    if roce.class == Class::Datagram {
        frame.pull(roce.bth() + Bth::LEN + Deth::LEN);
    }
    Ok(roce)
}

#[inline(always)]
fn walk<F: Frame>(frame: &mut F) -> Result<Roce, Stat> {
    // Fast path: most packets have no tag and are classified in one step.
    if let Some(headers) = frame.header::<{ Ethernet::LEN + V4_HEADERS }>(0)
        && Ethernet::new(sub::<0, { Ethernet::LEN }, _>(headers)).ethertype() == EtherType::IPV4
    {
        return v4_headers(frame, Ethernet::LEN, sub::<{ Ethernet::LEN }, V4_HEADERS, _>(headers));
    }
    let Some(header) = frame.header(0) else {
        return Err(Stat::NotRoce);
    };
    let ethertype = Ethernet::new(header).ethertype();
    if ethertype.is_tag() { behind_tags(frame) } else { network::<F, { Ethernet::LEN }>(frame, ethertype) }
}

#[inline(always)]
fn behind_tags<F: Frame>(frame: &mut F) -> Result<Roce, Stat> {
    const OUTER: usize = Ethernet::LEN;
    const INNER: usize = OUTER + VlanTag::LEN;
    frame.pull(INNER);
    let Some(outer) = frame.header(OUTER) else {
        return Err(Stat::Malformed);
    };
    let ethertype = VlanTag::new(outer).ethertype();
    if !ethertype.is_tag() {
        return network::<F, INNER>(frame, ethertype);
    }
    if frame.stripped_vid() != 0 {
        // The third is outside the packet.
        return Err(Stat::VlanTooDeep);
    }
    frame.pull(INNER + VlanTag::LEN);
    let Some(inner) = frame.header(INNER) else {
        return Err(Stat::Malformed);
    };
    network::<F, { INNER + VlanTag::LEN }>(frame, VlanTag::new(inner).ethertype())
}

/// DSCP of any IP packet behind at most two tags, including fragments and packets with options; below 64.
#[inline(always)]
pub fn dscp<F: Frame>(frame: &mut F) -> Option<usize> {
    const OUTER: usize = Ethernet::LEN;
    const INNER: usize = OUTER + VlanTag::LEN;
    let ethertype = Ethernet::new(frame.header(0)?).ethertype();
    if !ethertype.is_tag() {
        return dscp_at::<F, OUTER>(frame, ethertype);
    }
    frame.pull(INNER);
    let ethertype = VlanTag::new(frame.header(OUTER)?).ethertype();
    if !ethertype.is_tag() {
        return dscp_at::<F, INNER>(frame, ethertype);
    }
    frame.pull(INNER + VlanTag::LEN);
    let ethertype = VlanTag::new(frame.header(INNER)?).ethertype();
    dscp_at::<F, { INNER + VlanTag::LEN }>(frame, ethertype)
}

#[inline(always)]
fn dscp_at<F: Frame, const L3: usize>(frame: &mut F, ethertype: EtherType) -> Option<usize> {
    frame.pull(L3 + 2);
    let &[first, second] = frame.header(L3)?;
    match ethertype {
        EtherType::IPV4 => Some(ecn::dscp(second) as usize),
        EtherType::IPV6 => Some(ecn::dscp((first << 4) | (second >> 4)) as usize),
        _ => None,
    }
}

/// The offset is a constant of each call, so the verifier does not see arithmetic on packet pointers.
#[inline(always)]
fn network<F: Frame, const L3: usize>(frame: &mut F, ethertype: EtherType) -> Result<Roce, Stat> {
    match ethertype {
        EtherType::IPV4 => v4(frame, L3),
        EtherType::IPV6 => v6(frame, L3),
        EtherType::ROCE_V1 => Err(Stat::RoceV1),
        // Such frames have no tag (802.1Q, 36.1.1); behind one, the EtherType is not MAC control.
        EtherType::MAC_CONTROL if L3 == Ethernet::LEN => Err(Stat::MacControl),
        EtherType::VLAN | EtherType::QINQ => Err(Stat::VlanTooDeep),
        _ => Err(Stat::NotRoce),
    }
}

/// IPv4, UDP and BTH; no TCP packet is shorter.
const V4_HEADERS: usize = Ipv4::LEN + TRANSPORT;
/// IPv6, UDP and BTH; no TCP packet is shorter.
const V6_HEADERS: usize = Ipv6::LEN + TRANSPORT;
const TRANSPORT: usize = Udp::LEN + Bth::LEN;
const DATAGRAM: usize = TRANSPORT + Deth::LEN;

#[inline(always)]
fn v4<F: Frame>(frame: &mut F, l3: usize) -> Result<Roce, Stat> {
    frame.pull(l3 + V4_HEADERS);
    match frame.header(l3) {
        Some(headers) => v4_headers(frame, l3, headers),
        None => Err(short_v4(frame, l3)),
    }
}

/// Checks the IP header: UDP over IPv4, no fragment, no options.
#[inline(always)]
fn check_v4(ip: Ipv4<'_>) -> Result<(), Stat> {
    if ip.protocol() != udp::IP_PROTOCOL {
        return Err(Stat::NotRoce);
    }
    if ip.is_fragment() {
        return Err(Stat::Ipv4Fragments);
    }
    if !ip.is_plain() {
        return Err(if ip.version() == 4 && ip.ihl() > 5 { Stat::Ipv4Options } else { Stat::Malformed });
    }
    Ok(())
}

#[inline(always)]
fn v4_headers<F: Frame>(frame: &F, l3: usize, headers: &[u8; V4_HEADERS]) -> Result<Roce, Stat> {
    let ip = Ipv4::new(sub::<0, { Ipv4::LEN }, _>(headers));
    check_v4(ip)?;
    let (ip_len, tos) = (ip.total_len() as usize, ip.tos());
    transport(frame, l3, Ipv4::LEN, ip_len, tos, sub::<{ Ipv4::LEN }, TRANSPORT, _>(headers))
}

/// The counter of an IPv4 packet that is too short for RoCE.
#[inline(always)]
fn short_v4<F: Frame>(frame: &mut F, l3: usize) -> Stat {
    frame.pull(l3 + Ipv4::LEN);
    let Some(header) = frame.header(l3) else {
        return Stat::Malformed;
    };
    match check_v4(Ipv4::new(header)) {
        Ok(()) => short_udp(frame, l3 + Ipv4::LEN),
        Err(stat) => stat,
    }
}

#[inline(always)]
fn v6<F: Frame>(frame: &mut F, l3: usize) -> Result<Roce, Stat> {
    frame.pull(l3 + V6_HEADERS);
    match frame.header(l3) {
        Some(headers) => v6_headers(frame, l3, headers),
        None => Err(short_v6(frame, l3)),
    }
}

/// Checks the IP header: UDP over IPv6, no extension header.
#[inline(always)]
fn check_v6(ip: Ipv6<'_>) -> Result<(), Stat> {
    let next = ip.next_header();
    if next != udp::IP_PROTOCOL {
        return Err(if ipv6::is_extension_header(next) { Stat::Ipv6Extensions } else { Stat::NotRoce });
    }
    if ip.version() != 6 {
        return Err(Stat::Malformed);
    }
    Ok(())
}

#[inline(always)]
const fn is_mapped(addr: [u32; 4]) -> bool {
    addr[0] | addr[1] | addr[2] ^ V4_MAPPED == 0
}

#[inline(always)]
fn v6_headers<F: Frame>(frame: &F, l3: usize, headers: &[u8; V6_HEADERS]) -> Result<Roce, Stat> {
    let ip = Ipv6::new(sub::<0, { Ipv6::LEN }, _>(headers));
    check_v6(ip)?;
    check_port(Udp::new(sub::<{ Ipv6::LEN }, { Udp::LEN }, _>(headers)))?;
    let (src, dst) = ip.addresses();
    if is_mapped(src) || is_mapped(dst) {
        // Not valid on the wire (RFC 4291 §2.5.5.2); here they identify an IPv4 flow.
        return Err(Stat::Malformed);
    }
    let (ip_len, tos) = (Ipv6::LEN + ip.payload_len() as usize, ip.traffic_class());
    transport(frame, l3, Ipv6::LEN, ip_len, tos, sub::<{ Ipv6::LEN }, TRANSPORT, _>(headers))
}

/// The counter of an IPv6 packet that is too short for RoCE.
#[inline(always)]
fn short_v6<F: Frame>(frame: &mut F, l3: usize) -> Stat {
    frame.pull(l3 + Ipv6::LEN);
    let Some(header) = frame.header(l3) else {
        return Stat::Malformed;
    };
    match check_v6(Ipv6::new(header)) {
        Ok(()) => short_udp(frame, l3 + Ipv6::LEN),
        Err(stat) => stat,
    }
}

/// The counter of a UDP datagram that ends before the end of a BTH.
#[inline(always)]
fn short_udp<F: Frame>(frame: &mut F, l4: usize) -> Stat {
    frame.pull(l4 + Udp::LEN);
    match frame.header(l4) {
        Some(header) => check_port(Udp::new(header)).err().unwrap_or(Stat::Malformed),
        None => Stat::Malformed,
    }
}

#[inline(always)]
fn check_port(udp: Udp<'_>) -> Result<(), Stat> {
    match udp.dst_port() {
        udp::ROCE_V2_PORT => Ok(()),
        udp::UET_PORT => Err(Stat::Uet),
        _ => Err(Stat::NotRoce),
    }
}

/// Checks UDP and BTH.
///
/// `ip_len` is the packet length according to the IP header, which has `header_len` bytes.
#[inline(always)]
fn transport<F: Frame>(
    frame: &F,
    l3: usize,
    header_len: usize,
    ip_len: usize,
    tos: u8,
    headers: &[u8; TRANSPORT],
) -> Result<Roce, Stat> {
    let udp = Udp::new(sub::<0, { Udp::LEN }, _>(headers));
    check_port(udp)?;
    let udp_len = udp.length() as usize;
    let too_short = udp_len < Udp::LEN + Bth::LEN + icrc::LEN;
    if too_short || header_len + udp_len < ip_len {
        return Err(Stat::Malformed);
    }
    // A switch that trims a packet keeps the UDP length. Some adjust the IP length, as hosts drop packets
    // that are shorter than it; SONiC's keep both.
    let is_trimmed = header_len + udp_len != ip_len || !frame.reaches(l3 + ip_len);
    if is_trimmed && ip_len < header_len + TRANSPORT {
        return Err(Stat::Malformed);
    }
    let bth = Bth::new(sub::<{ Udp::LEN }, { Bth::LEN }, _>(headers));
    let opcode = bth.opcode();
    let class = opcode.class();
    if is_trimmed && (bth.tver() != 0 || !class.congests()) {
        return Err(Stat::Trimmed);
    }
    if bth.tver() != 0 || class == Class::Unknown {
        let is_vendor = bth.tver() == 0 && opcode.is_vendor();
        return Err(if is_vendor { Stat::VendorBth } else { Stat::UnknownBth });
    }
    // A datagram's source QPN is read later, so it must be present.
    if class == Class::Datagram && (udp_len < DATAGRAM + icrc::LEN || ip_len < header_len + DATAGRAM) {
        return Err(if is_trimmed { Stat::Trimmed } else { Stat::Malformed });
    }
    Ok(Roce {
        l3,
        v6: header_len == Ipv6::LEN,
        opcode,
        class,
        dest_qpn: bth.dest_qpn(),
        tos,
        end: l3 + ip_len,
        vlan: 0,
        packets: 1,
        is_trimmed,
    })
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn group_and_reserved_addresses_are_not_hosts() {
        let v4 = |text: &str| mapped(text.parse::<Ipv4Addr>().unwrap().octets());
        let v6 = |text: &str| words(text.parse::<Ipv6Addr>().unwrap().octets());
        for text in
            ["1.0.0.0", "10.0.0.255", "126.255.255.255", "128.0.0.1", "192.168.0.1", "223.255.255.255"]
        {
            assert!(is_of_one_host(v4(text)), "{text}");
        }
        for text in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.0", "239.1.1.1", "255.255.255.255"] {
            assert!(!is_of_one_host(v4(text)), "{text}");
        }
        for text in ["fe80::1", "fd00::1", "2001:db8::", "::2", "::1:0:0:1", "1::1", "fe00::", "0:1::1"] {
            assert!(is_of_one_host(v6(text)), "{text}");
        }
        for text in ["::", "::1", "ff00::", "ff02::1", "::ffff:224.0.0.1"] {
            assert!(!is_of_one_host(v6(text)), "{text}");
        }
    }
}
