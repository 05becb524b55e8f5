//! UDP (RFC 768) as RoCEv2 uses it.

use super::{be16, header, load, put16};

pub const IP_PROTOCOL: u8 = 17;

/// Destination port of every RoCEv2 packet (IBTA Annex A17). The source port only spreads flows over paths.
pub const ROCE_V2_PORT: u16 = 4791;

/// Destination port of Ultra Ethernet Transport (IANA), which is not RoCE and not inspected.
pub const UET_PORT: u16 = 4793;

header! {
    /// UDP header.
    Udp, 8, UdpRepr: pub fn parse {
        [pub const] src_port: u16 = |bytes| be16::<0, _>(bytes);
        [pub] dst_port: u16 = |bytes| load::be16_at::<2, _>(bytes);
        /// Length of header and payload, bytes.
        [pub] length: u16 = |bytes| load::be16_at::<4, _>(bytes);
        /// Checksum in the packet; 0 means none, which is what RoCE endpoints send.
        [pub const] checksum: u16 = |bytes| be16::<6, _>(bytes);
    }
}

impl Udp<'_> {
    pub(super) const CHECKSUM_AT: usize = 6;
}

impl UdpRepr {
    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; Udp::LEN]) {
        let Self { src_port, dst_port, length, checksum } = *self;
        put16::<0, _>(out, src_port);
        put16::<2, _>(out, dst_port);
        put16::<4, _>(out, length);
        put16::<6, _>(out, checksum);
    }
}
