//! UDP (RFC 768) as RoCEv2 uses it.

use super::{be16, bytes, load, put16, view};

/// IP protocol number of UDP.
pub const IP_PROTOCOL: u8 = 17;

/// Destination port of every RoCEv2 packet (IBTA Annex A17). The source port only spreads flows over paths.
pub const ROCE_V2_PORT: u16 = 4791;

/// Destination port of Ultra Ethernet Transport (IANA), which is not RoCE and not inspected.
pub const UET_PORT: u16 = 4793;

view! {
    /// UDP header.
    Udp, 8
}

impl Udp<'_> {
    /// Offset of the checksum.
    pub(super) const CHECKSUM_AT: usize = 6;

    /// Source port.
    #[inline(always)]
    pub const fn src_port(&self) -> u16 {
        be16::<0, _>(self.0)
    }

    /// Destination port.
    #[inline(always)]
    pub fn dst_port(&self) -> u16 {
        load::be16_at::<2, _>(self.0)
    }

    /// Length of header and payload, bytes.
    #[inline(always)]
    pub fn length(&self) -> u16 {
        load::be16_at::<4, _>(self.0)
    }

    /// Checksum in the packet; 0 means none, which is what RoCE endpoints send.
    #[inline(always)]
    pub const fn checksum(&self) -> u16 {
        be16::<6, _>(self.0)
    }
}

/// A [`Udp`] header as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpRepr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of header and payload, bytes.
    pub length: u16,
    /// Checksum; 0 means none.
    pub checksum: u16,
}

impl UdpRepr {
    /// Reads the header.
    #[inline(always)]
    pub fn parse(udp: Udp<'_>) -> Self {
        Self {
            src_port: udp.src_port(),
            dst_port: udp.dst_port(),
            length: udp.length(),
            checksum: udp.checksum(),
        }
    }

    /// Writes the header.
    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; Udp::LEN]) {
        let Self { src_port, dst_port, length, checksum } = *self;
        put16::<0, _>(out, src_port);
        put16::<2, _>(out, dst_port);
        put16::<4, _>(out, length);
        put16::<6, _>(out, checksum);
    }
}

bytes!(UdpRepr, Udp);
