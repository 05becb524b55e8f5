//! The invariant CRC that ends every RoCEv2 packet (IBTA Annex A17).
//!
//! CRC-32 of Ethernet (reflected polynomial 0xEDB88320, initial value and final inversion all ones) over eight bytes of
//! ones (in place of the InfiniBand local route header), the IP header, UDP, BTH and the rest up to the ICRC itself.
//! Fields that a router may change count as ones:
//!
//! | header | masked |
//! |---|---|
//! | IPv4 | TOS, TTL, header checksum |
//! | IPv6 | traffic class, flow label, hop limit |
//! | UDP | checksum |
//! | BTH | byte 4: FECN, BECN and six reserved bits |
//!
//! So marking CE needs no new ICRC, while a change of address (NAT), opcode, QPN or PSN does. The result is stored
//! little-endian.

use super::udp::{IP_PROTOCOL, Udp};
use super::{bth, bth::Bth, ext::Aeth, ipv4::Ipv4, ipv6::Ipv6, sub};

/// Length of the ICRC, bytes.
pub const LEN: usize = 4;

const V4_HEAD_LEN: usize = Ipv4::LEN + Udp::LEN + Bth::LEN;
const V6_HEAD_LEN: usize = Ipv6::LEN + Udp::LEN + Bth::LEN;

/// Ones where the ICRC over IPv4 ignores the packet.
pub(super) const V4_MASK: [u8; V4_HEAD_LEN] = {
    let mut mask = [0; V4_HEAD_LEN];
    mask[1] = 0xff;
    mask[8] = 0xff;
    mask[10] = 0xff;
    mask[11] = 0xff;
    mask_transport(mask, Ipv4::LEN)
};

/// Ones where the ICRC over IPv6 ignores the packet.
pub(super) const V6_MASK: [u8; V6_HEAD_LEN] = {
    let mut mask = [0; V6_HEAD_LEN];
    mask[0] = 0x0f;
    mask[1] = 0xff;
    mask[2] = 0xff;
    mask[3] = 0xff;
    mask[7] = 0xff;
    mask_transport(mask, Ipv6::LEN)
};

/// Adds the mask of UDP and BTH, which start at `udp`.
const fn mask_transport<const N: usize>(mut mask: [u8; N], udp: usize) -> [u8; N] {
    mask[udp + 6] = 0xff;
    mask[udp + 7] = 0xff;
    mask[udp + Udp::LEN + 4] = 0xff;
    mask
}

/// Bytes per step.
const STEP: usize = 4;

/// CRC of each byte value followed by 0 to 3 zero bytes, so that a step processes four bytes
/// ("slicing-by-4").
///
/// Kounavis and Berry, A Systematic Approach to Building High Performance, Software-Based, CRC Generators,
/// ISCC 2005. `static`, not `const`, so that BPF programs read one copy in `.rodata`.
static TABLES: [[u32; 256]; STEP] = {
    let mut tables = [[0; 256]; STEP];
    let mut value = 0;
    while value < 256 {
        let mut crc = value as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][value] = crc;
        value += 1;
    }
    let mut zeros = 1;
    while zeros < STEP {
        let mut value = 0;
        while value < 256 {
            let before = tables[zeros - 1][value];
            tables[zeros][value] = tables[0][(before & 0xff) as usize] ^ (before >> 8);
            value += 1;
        }
        zeros += 1;
    }
    tables
};

/// A running CRC-32, before the final inversion.
#[derive(Clone, Copy)]
struct Crc(u32);

impl Crc {
    /// The state after the eight bytes of ones.
    const START: Self = Self(0xdebb_20e3);

    /// Table indices are bytes, so they are below the tables' 256 entries without a check.
    #[inline(always)]
    fn byte(self, byte: u8) -> Self {
        Self(TABLES[0][(self.0 as u8 ^ byte) as usize] ^ (self.0 >> 8))
    }

    #[inline(always)]
    fn step(self, bytes: [u8; STEP]) -> Self {
        let [a, b, c, d] = (self.0 ^ u32::from_le_bytes(bytes)).to_le_bytes();
        let [last, third, second, first] = &TABLES;
        Self(first[a as usize] ^ second[b as usize] ^ third[c as usize] ^ last[d as usize])
    }

    #[inline(always)]
    fn words<const N: usize>(self, words: &[u32; N], mask: &[u32; N]) -> Self {
        words.iter().zip(mask).fold(self, |crc, (word, ones)| crc.step((word | ones).to_ne_bytes()))
    }

    #[inline(always)]
    fn masked<const N: usize>(self, bytes: &[u8; N], mask: &[u8; N]) -> Self {
        const { assert!(N.is_multiple_of(STEP)) };
        let (bytes, mask) = (bytes.as_chunks::<STEP>().0, mask.as_chunks::<STEP>().0);
        bytes.iter().zip(mask).fold(self, |crc, (bytes, ones)| {
            crc.step((u32::from_ne_bytes(*bytes) | u32::from_ne_bytes(*ones)).to_ne_bytes())
        })
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8]) -> Self {
        let (steps, rest) = bytes.as_chunks();
        let crc = steps.iter().fold(self, |crc, bytes| crc.step(*bytes));
        rest.iter().fold(crc, |crc, byte| crc.byte(*byte))
    }

    #[inline(always)]
    fn finish(self) -> u32 {
        !self.0
    }
}

/// ICRC and length, in bytes, of a packet over IPv4 or IPv6.
///
/// `l3` starts with the IP header and may extend beyond the packet (Ethernet padding); the stored ICRC is not read.
///
/// `None` if the IP header has options (whose masking the annex leaves open), an extension header precedes UDP, or the
/// length exceeds `l3` or is too short for UDP, BTH and ICRC.
fn compute(l3: &[u8]) -> Option<(u32, usize)> {
    if let Some((ip, _)) = Ipv4::parse(l3)
        && ip.is_plain()
    {
        return compute_masked(l3, ip.total_len().into(), &V4_MASK);
    }
    let (ip, _) = Ipv6::parse(l3)?;
    if ip.version() != 6 || ip.next_header() != IP_PROTOCOL {
        return None;
    }
    compute_masked(l3, Ipv6::LEN + usize::from(ip.payload_len()), &V6_MASK)
}

fn compute_masked<const HEAD: usize>(l3: &[u8], len: usize, mask: &[u8; HEAD]) -> Option<(u32, usize)> {
    let (covered, _) = l3.get(..len)?.split_last_chunk::<LEN>()?;
    let (head, rest) = covered.split_first_chunk()?;
    Some((Crc::START.masked(head, mask).bytes(rest).finish(), len))
}

/// Whether a packet over IPv4 or IPv6 has a known length and ends with its correct ICRC.
pub fn verify(l3: &[u8]) -> bool {
    compute(l3).is_some_and(|(icrc, len)| l3[..len].ends_with(&icrc.to_le_bytes()))
}

/// Computes the ICRC of a packet over IPv4 or IPv6 and writes it into the packet's last four bytes.
///
/// `None`, with nothing written, if the packet's length is unknown.
#[must_use]
pub fn seal(l3: &mut [u8]) -> Option<()> {
    let (icrc, len) = compute(l3)?;
    *l3.get_mut(..len)?.last_chunk_mut()? = icrc.to_le_bytes();
    Some(())
}

/// ICRC of a packet of known length, for BPF programs: `mask` over its headers, then `REST` bytes.
///
/// Not inlined in BPF, because its spilled values would use stack that the rate machine needs.
#[cfg_attr(target_arch = "bpf", inline(never))]
#[cfg_attr(not(target_arch = "bpf"), inline)]
pub(super) fn array_icrc<const HEAD: usize, const REST: usize, const LEN: usize>(
    packet: &[u8; LEN],
    mask: &[u8; HEAD],
) -> u32 {
    let (head, rest) = (sub::<0, HEAD, _>(packet), sub::<HEAD, REST, _>(packet));
    Crc::START.masked(head, mask).bytes(rest).finish()
}

/// Length of an ACK over IPv4 and IPv6 from the IP header on, bytes.
pub(crate) const V4_ACK_LEN: usize = V4_HEAD_LEN + Aeth::LEN + LEN;
pub(crate) const V6_ACK_LEN: usize = V6_HEAD_LEN + Aeth::LEN + LEN;

/// AETH syndrome of an ACK over IPv4 whose ICRC is correct.
#[inline(always)]
pub(crate) fn syndrome_v4(packet: &[u8; V4_ACK_LEN]) -> Option<u8> {
    let is_ack_long = Ipv4::new(sub::<0, { Ipv4::LEN }, _>(packet)).total_len() == V4_ACK_LEN as u16;
    let computed = array_icrc::<_, { Aeth::LEN }, _>(packet, &V4_MASK);
    let is_correct = computed == u32::from_le_bytes(*sub::<{ V4_ACK_LEN - LEN }, LEN, _>(packet));
    (is_ack_long && is_correct).then_some(packet[V4_HEAD_LEN])
}

/// AETH syndrome of an ACK over IPv6 whose ICRC is correct.
#[inline(always)]
pub(crate) fn syndrome_v6(packet: &[u8; V6_ACK_LEN]) -> Option<u8> {
    let payload_len = V6_ACK_LEN - Ipv6::LEN;
    let is_ack_long = Ipv6::new(sub::<0, { Ipv6::LEN }, _>(packet)).payload_len() == payload_len as u16;
    let computed = array_icrc::<_, { Aeth::LEN }, _>(packet, &V6_MASK);
    let is_correct = computed == u32::from_le_bytes(*sub::<{ V6_ACK_LEN - LEN }, LEN, _>(packet));
    (is_ack_long && is_correct).then_some(packet[V6_HEAD_LEN])
}

/// A packet from its IP header on, read in parts.
pub trait Read {
    /// The words at byte `at`, in memory order; `None` beyond the end.
    fn words<const N: usize>(&self, at: usize) -> Option<[u32; N]>;
    /// Calls `step` with 0 to `count` - 1, until it returns false. Returns whether it never did.
    fn all<F: FnMut(usize) -> bool>(&self, count: usize, step: F) -> bool {
        (0..count).all(step)
    }
}

impl Read for [u8] {
    fn words<const N: usize>(&self, at: usize) -> Option<[u32; N]> {
        let (words, _) = self.get(at..)?.as_chunks();
        let words = words.first_chunk::<N>()?;
        Some(words.map(u32::from_ne_bytes))
    }
}

/// Words that [`verify_in_blocks`] reads at a time.
const BLOCK: usize = 16;
const BLOCK_LEN: usize = BLOCK * STEP;
/// Bytes before the ICRC of the longest packet with an AETH.
const MAX_COVERED: usize = V6_HEAD_LEN + Aeth::LEN + bth::MAX_MTU as usize;

/// A mask of the headers, extended to the first block.
const fn first_block(mask: &[u8]) -> [u32; BLOCK] {
    let mut bytes = [[0; STEP]; BLOCK];
    let mut at = 0;
    while at < mask.len() {
        bytes[at / STEP][at % STEP] = mask[at];
        at += 1;
    }
    let mut words = [0; BLOCK];
    let mut at = 0;
    while at < BLOCK {
        words[at] = u32::from_ne_bytes(bytes[at]);
        at += 1;
    }
    words
}

static V4_BLOCK: [u32; BLOCK] = first_block(&V4_MASK);
static V6_BLOCK: [u32; BLOCK] = first_block(&V6_MASK);

/// [`verify`] for BPF programs, whose stack is too small for a packet.
///
/// `packet` starts with its IP header, has no IP options, and is `len` bytes long. False if it is longer than
/// a packet of the largest path MTU.
#[inline(always)]
pub fn verify_in_blocks<P: Read + ?Sized>(packet: &P, v6: bool, len: usize) -> bool {
    let (head, mask) = if v6 { (V6_HEAD_LEN, &V6_BLOCK) } else { (V4_HEAD_LEN, &V4_BLOCK) };
    let covered = len.wrapping_sub(LEN);
    if covered < head || covered > MAX_COVERED || !covered.is_multiple_of(STEP) {
        return false;
    }
    let (mut crc, blocks) = (Crc::START, covered / BLOCK_LEN);
    let are_read = packet.all(blocks, |number| {
        let Some(words) = packet.words::<BLOCK>(number * BLOCK_LEN) else { return false };
        crc = if number == 0 { crc.words(&words, mask) } else { crc.words(&words, &[0; BLOCK]) };
        true
    }) && packet.all(covered % BLOCK_LEN / STEP, |number| {
        let Some(word) = packet.words(blocks * BLOCK_LEN + number * STEP) else { return false };
        let ones = if blocks == 0 { mask[number % BLOCK] } else { 0 };
        crc = crc.words(&word, &[ones]);
        true
    });
    are_read && packet.words(covered).is_some_and(|[stored]| u32::from_le(stored) == crc.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        bth::{BthRepr, Opcode},
        cnp,
        ipv4::Ipv4Repr,
        sub_mut,
        udp::{self, UdpRepr},
        vectors::{
            CONNECTX4_CNP, CONNTRACK_CM_CNP, CONNTRACK_CM_CNP_MISPRINTED_ICRC, SCAPY_UC_SEND_ICRC,
            SCAPY_UC_SEND_PAYLOAD, V6_CNP,
        },
    };

    #[test]
    fn crc_matches_ethernet() {
        // The check value of CRC-32 in all catalogues.
        assert_eq!(Crc(!0).bytes(b"123456789").finish(), 0xcbf4_3926);
        assert_eq!(Crc(!0).bytes(&[0xff; 8]).0, Crc::START.0);
    }

    #[test]
    fn published_packets_verify_unless_misprinted() {
        assert!(verify(&CONNECTX4_CNP) && verify(&CONNTRACK_CM_CNP) && verify(&V6_CNP));
        let mut packet = CONNTRACK_CM_CNP;
        *sub_mut::<56, 4, _>(&mut packet) = CONNTRACK_CM_CNP_MISPRINTED_ICRC;
        assert!(!verify(&packet));
    }

    #[test]
    fn icrc_with_padding_and_udp_checksum() {
        let mut packet = [0; 64];
        Ipv4Repr {
            tos: 1,
            total_len: 64,
            id: 1144,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: IP_PROTOCOL,
            src: [192, 168, 0, 7],
            dst: [192, 168, 0, 7],
        }
        .emit(sub_mut::<0, 20, _>(&mut packet));
        UdpRepr { src_port: 49152, dst_port: udp::ROCE_V2_PORT, length: 44, checksum: 0xaca2 }
            .emit(sub_mut::<20, 8, _>(&mut packet));
        BthRepr { migrated: true, pad_count: 2, ..BthRepr::new(Opcode::UC_SEND_ONLY, 211, 13_571_856) }
            .emit(sub_mut::<28, 12, _>(&mut packet));
        *sub_mut::<40, 20, _>(&mut packet) = SCAPY_UC_SEND_PAYLOAD;
        assert_eq!(compute(&packet), Some((u32::from_le_bytes(SCAPY_UC_SEND_ICRC), 64)));
        assert!(!verify(&packet));
        seal(&mut packet).unwrap();
        assert!(verify(&packet));
        assert_eq!(*sub::<60, 4, _>(&packet), SCAPY_UC_SEND_ICRC);
    }

    #[test]
    fn array_and_slice_versions_agree() {
        assert_eq!(compute(&CONNECTX4_CNP), Some((cnp::icrc_v4(&CONNECTX4_CNP), 60)));
        assert_eq!(compute(&V6_CNP), Some((cnp::icrc_v6(&V6_CNP), 80)));
    }

    #[test]
    fn ethernet_padding_excluded_from_icrc() {
        let mut padded = [0xaa; 100];
        *sub_mut::<0, 60, _>(&mut padded) = CONNECTX4_CNP;
        assert!(verify(&padded));
    }

    #[test]
    fn unknown_length_rejected() {
        let with = |at: usize, value: u8| {
            let mut packet = CONNECTX4_CNP;
            packet[at] = value;
            packet
        };
        // Options, longer than the slice, too short for a trailer.
        for packet in [with(0, 0x46), with(3, 61), with(3, 43)] {
            assert!(!verify(&packet));
            assert_eq!(seal(&mut packet.clone()), None);
        }
        let mut extended = V6_CNP;
        extended[6] = 43;
        assert_eq!(compute(&extended), None);
        assert!(!verify(&[]));
        assert!(!verify(&[0x50; 64]));
    }

    /// Every bit of the packet is either mutable by routers, or covered by the ICRC.
    fn check_each_bit<const N: usize>(packet: [u8; N], free: impl Fn(usize, u8) -> bool) {
        for at in 0..N {
            for bit in 0..8 {
                let mut changed = packet;
                changed[at] ^= 1 << bit;
                assert_eq!(verify(&changed), free(at, bit), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn ipv4_icrc_masks_mutable_fields_only() {
        // TOS, TTL, IP checksum, UDP checksum, and FECN, BECN and reserved bits of BTH.
        check_each_bit(CONNECTX4_CNP, |at, _| matches!(at, 1 | 8 | 10 | 11 | 26 | 27 | 32));
    }

    #[test]
    fn ipv6_icrc_masks_mutable_fields_only() {
        // Traffic class and flow label, hop limit, UDP checksum, and FECN, BECN and reserved bits of BTH.
        check_each_bit(V6_CNP, |at, bit| match at {
            0 => bit < 4,
            1..=3 | 7 | 46 | 47 | 52 => true,
            _ => false,
        });
    }
}
