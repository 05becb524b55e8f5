//! The IPv6 base header (RFC 8200).

use super::{be32, header, ipv4, load, put16, put32, sub, sub_mut};

/// An IPv6 address in wire order.
pub type Ipv6Addr = [u8; 16];

header! {
    /// IPv6 base header.
    Ipv6, 40, Ipv6Repr: fn read {
        /// DSCP and ECN together.
        [pub] traffic_class: u8 = |bytes| (load::be16_at::<0, _>(bytes) >> 4) as u8;
        /// Flow label, 20 bits.
        [pub(crate) const] flow_label: u32 = |bytes| be32::<0, _>(bytes) & 0x000f_ffff;
        /// Length of everything after these 40 bytes, extension headers included.
        [pub] payload_len: u16 = |bytes| load::be16_at::<4, _>(bytes);
        /// An upper-layer protocol, or an extension header.
        [pub const] next_header: u8 = |bytes| bytes[6];
        /// As IPv4's time to live.
        [pub(crate) const] hop_limit: u8 = |bytes| bytes[7];
        [pub const] src: Ipv6Addr = |bytes| *sub::<8, 16, _>(bytes);
        [pub const] dst: Ipv6Addr = |bytes| *sub::<24, 16, _>(bytes);
    }
}

impl Ipv6<'_> {
    /// IP version; 6 if this is IPv6 at all.
    #[inline(always)]
    pub(crate) const fn version(&self) -> u8 {
        self.0[0] >> 4
    }

    /// Source and destination address, in wire order.
    #[inline(always)]
    pub(crate) fn addresses(&self) -> ([u32; 4], [u32; 4]) {
        let at = self.0;
        (
            [
                load::u32_at::<8, _>(at),
                load::u32_at::<12, _>(at),
                load::u32_at::<16, _>(at),
                load::u32_at::<20, _>(at),
            ],
            [
                load::u32_at::<24, _>(at),
                load::u32_at::<28, _>(at),
                load::u32_at::<32, _>(at),
                load::u32_at::<36, _>(at),
            ],
        )
    }
}

impl Ipv6Repr {
    /// Header of a UDP datagram of `udp_len` bytes.
    #[inline(always)]
    pub const fn of_udp(traffic_class: u8, src: Ipv6Addr, dst: Ipv6Addr, udp_len: u16) -> Self {
        Self {
            traffic_class,
            flow_label: 0,
            payload_len: udp_len,
            next_header: super::udp::IP_PROTOCOL,
            hop_limit: ipv4::TTL,
            src,
            dst,
        }
    }

    /// Reads the header; `None` unless it is version 6.
    #[inline(always)]
    pub fn parse(ip: Ipv6<'_>) -> Option<Self> {
        (ip.version() == 6).then(|| Self::read(ip))
    }

    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; Ipv6::LEN]) {
        let Self { traffic_class, flow_label, payload_len, next_header, hop_limit, src, dst } = *self;
        put32::<0, _>(out, (6 << 28) | ((traffic_class as u32) << 20) | (flow_label & 0x000f_ffff));
        put16::<4, _>(out, payload_len);
        out[6] = next_header;
        out[7] = hop_limit;
        *sub_mut::<8, 16, _>(out) = src;
        *sub_mut::<24, 16, _>(out) = dst;
    }
}

/// The header's first two octets with this traffic class; version and flow label stay.
#[inline(always)]
pub(crate) const fn set_traffic_class([first, second]: [u8; 2], traffic_class: u8) -> [u8; 2] {
    [(first & 0xf0) | (traffic_class >> 4), (traffic_class << 4) | (second & 0x0f)]
}

/// Whether a next-header value is an extension header (IANA "IPv6 Extension Header Types") rather than a protocol.
///
/// RoCEv2 has UDP directly after the base header, so packets with extension headers are counted and passed.
#[inline(always)]
pub const fn is_extension_header(next_header: u8) -> bool {
    matches!(
        next_header,
        0           // hop-by-hop options
        | 43        // routing
        | 44        // fragment
        | 50        // encapsulating security payload
        | 51        // authentication
        | 60        // destination options
        | 135       // mobility
        | 139       // host identity
        | 140       // shim6
        | 253 | 254 // experiments (RFC 3692)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_fields_across_bytes_separate() {
        let repr = Ipv6Repr {
            traffic_class: 0x6a,
            flow_label: 0xabcde,
            payload_len: 40,
            next_header: 17,
            hop_limit: 64,
            src: [1; 16],
            dst: [2; 16],
        };
        let mut out = [0xff; 40];
        repr.emit(&mut out);
        assert_eq!(out[..8], [0x66, 0xaa, 0xbc, 0xde, 0, 40, 17, 64]);
        [out[0], out[1]] = set_traffic_class([out[0], out[1]], 0x6b);
        assert_eq!(Ipv6Repr::parse(Ipv6::new(&out)), Some(Ipv6Repr { traffic_class: 0x6b, ..repr }));
    }

    #[test]
    fn udp_is_not_an_extension_header() {
        assert!(!is_extension_header(crate::wire::udp::IP_PROTOCOL));
        assert!(is_extension_header(44));
    }
}
