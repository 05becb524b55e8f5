//! The IPv4 base header (RFC 791) and its checksum.

use super::{be16, header, load, put16, sub, sub_mut};

/// An IPv4 address in wire order.
pub type Ipv4Addr = [u8; 4];

pub const CHECKSUM_AT: usize = 10;

/// TTL, and hop limit, of packets that the project makes.
pub const TTL: u8 = 64;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

header! {
    /// IPv4 base header: the 20 bytes before any option. As values, a header without options.
    Ipv4, 20, Ipv4Repr: fn read {
        /// DSCP and ECN together.
        [pub const] tos: u8 = |bytes| bytes[1];
        /// Length of header and payload, bytes.
        [pub] total_len: u16 = |bytes| load::be16_at::<2, _>(bytes);
        [pub const] id: u16 = |bytes| be16::<4, _>(bytes);
        /// DF: don't fragment.
        [pub const] dont_fragment: bool = |bytes| be16::<6, _>(bytes) & DONT_FRAGMENT != 0;
        /// MF: more fragments follow.
        [pub(crate) const] more_fragments: bool = |bytes| be16::<6, _>(bytes) & MORE_FRAGMENTS != 0;
        /// Fragment offset, in units of 8 bytes, 13 bits.
        [pub(crate) const] fragment_offset: u16 = |bytes| be16::<6, _>(bytes) & FRAGMENT_OFFSET;
        /// Time to live, hops.
        [pub(crate) const] ttl: u8 = |bytes| bytes[8];
        /// Protocol number of the payload.
        [pub const] protocol: u8 = |bytes| bytes[9];
        [pub const] src: Ipv4Addr = |bytes| *sub::<12, 4, _>(bytes);
        [pub const] dst: Ipv4Addr = |bytes| *sub::<16, 4, _>(bytes);
    }
}

impl Ipv4<'_> {
    /// IP version; 4 if this is IPv4 at all.
    #[inline(always)]
    pub(crate) const fn version(&self) -> u8 {
        self.0[0] >> 4
    }

    /// Header length in 32-bit words; 5 without options, less is malformed.
    #[inline(always)]
    pub(crate) const fn ihl(&self) -> u8 {
        self.0[0] & 0x0f
    }

    /// Whether this is version 4 without options, the only header that the project parses beyond.
    #[inline(always)]
    pub const fn is_plain(&self) -> bool {
        self.0[0] == 0x45
    }

    /// Whether this is a fragment, the first one included: no fragment contains a whole RoCE packet.
    #[inline(always)]
    pub fn is_fragment(&self) -> bool {
        load::be16_at::<6, _>(self.0) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0
    }

    #[inline(always)]
    pub const fn checksum(&self) -> u16 {
        be16::<CHECKSUM_AT, _>(self.0)
    }

    /// Source and destination address, in wire order.
    #[inline(always)]
    pub(crate) fn addresses(&self) -> (u32, u32) {
        (load::u32_at::<12, _>(self.0), load::u32_at::<16, _>(self.0))
    }

    /// Whether the checksum matches the 20 bytes (so only for a header without options).
    #[inline(always)]
    pub const fn checksum_ok(&self) -> bool {
        self.checksum() == header_checksum(self.0)
    }
}

impl Ipv4Repr {
    /// Header of a UDP datagram of `udp_len` bytes.
    ///
    /// DF is set and the identification is 0, which RFC 6864 allows for packets that are never fragmented.
    #[inline(always)]
    pub const fn of_udp(tos: u8, src: Ipv4Addr, dst: Ipv4Addr, udp_len: u16) -> Self {
        Self {
            tos,
            total_len: Ipv4::LEN as u16 + udp_len,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: TTL,
            protocol: super::udp::IP_PROTOCOL,
            src,
            dst,
        }
    }

    /// Reads the header; `None` unless it is version 4, without options and its checksum is correct.
    #[inline(always)]
    pub fn parse(ip: Ipv4<'_>) -> Option<Self> {
        (ip.is_plain() && ip.checksum_ok()).then(|| Self::read(ip))
    }

    /// Writes the header with its checksum.
    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; Ipv4::LEN]) {
        let Self {
            tos,
            total_len,
            id,
            dont_fragment,
            more_fragments,
            fragment_offset,
            ttl,
            protocol,
            src,
            dst,
        } = *self;
        let mut flags = fragment_offset & FRAGMENT_OFFSET;
        if dont_fragment {
            flags |= DONT_FRAGMENT;
        }
        if more_fragments {
            flags |= MORE_FRAGMENTS;
        }
        out[0] = 0x45;
        out[1] = tos;
        put16::<2, _>(out, total_len);
        put16::<4, _>(out, id);
        put16::<6, _>(out, flags);
        out[8] = ttl;
        out[9] = protocol;
        *sub_mut::<12, 4, _>(out) = src;
        *sub_mut::<16, 4, _>(out) = dst;
        put16::<CHECKSUM_AT, _>(out, header_checksum(out));
    }
}

/// Checksum of a 20-byte header; the checksum field itself is taken as zero.
#[inline(always)]
pub const fn header_checksum(header: &[u8; Ipv4::LEN]) -> u16 {
    let sum = be16::<0, _>(header) as u32
        + be16::<2, _>(header) as u32
        + be16::<4, _>(header) as u32
        + be16::<6, _>(header) as u32
        + be16::<8, _>(header) as u32
        + be16::<12, _>(header) as u32
        + be16::<14, _>(header) as u32
        + be16::<16, _>(header) as u32
        + be16::<18, _>(header) as u32;
    !fold(sum)
}

/// Checksum after one covered 16-bit word changed from `old` to `new` (RFC 1624, equation 3).
#[inline(always)]
pub const fn checksum_update16(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(!checksum as u32 + !old as u32 + new as u32)
}

/// Folds a sum of at most 65,537 words to 16 bits of one's complement.
#[inline(always)]
pub(super) const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The IPv4 header of a CNP that a ConnectX-4 Lx sent.
    const HEADER: [u8; 20] = [
        0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11, 0x01, 0x0a,
        0x00, 0x12, 0x01,
    ];

    #[test]
    fn fields_round_trip() {
        let repr = Ipv4Repr::parse(Ipv4::new(&HEADER)).unwrap();
        assert_eq!(
            repr,
            Ipv4Repr {
                tos: 0xc2,
                total_len: 60,
                id: 0x718c,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: 64,
                protocol: 17,
                src: [10, 0, 17, 1],
                dst: [10, 0, 18, 1],
            }
        );
        let mut out = [0xa5; 20];
        repr.emit(&mut out);
        assert_eq!(out, HEADER);
    }

    #[test]
    fn bad_ipv4_header_rejected() {
        for (at, value) in [(0, 0x46), (0, 0x65), (1, 0xc3), (11, 0x62)] {
            let mut header = HEADER;
            header[at] = value;
            assert_eq!(Ipv4Repr::parse(Ipv4::new(&header)), None);
        }
        for (first, version, ihl) in [(0x46, 4, 6), (0x65, 6, 5), (0xf0, 15, 0), (0x0f, 0, 15)] {
            let header = [first; 20];
            assert_eq!((Ipv4::new(&header).version(), Ipv4::new(&header).ihl()), (version, ihl));
        }
    }

    #[test]
    fn checksum_folds_second_carry() {
        assert_eq!([0, 0xffff, 0x1_0000, 0x1_ffff, 0xffff_ffff].map(fold), [0, 0xffff, 1, 1, 0xffff]);
    }

    #[test]
    fn datagram_length_from_header() {
        let ip = Ipv4Repr::of_udp(0x6a, [10, 0, 0, 1], [10, 0, 0, 2], 52);
        assert_eq!((ip.total_len, ip.tos, ip.protocol, ip.dont_fragment), (72, 0x6a, 17, true));
    }

    #[test]
    fn incremental_update_matches_rfc_1624_section_4() {
        assert_eq!(checksum_update16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }
}
