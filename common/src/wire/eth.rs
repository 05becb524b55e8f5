//! Ethernet II and 802.1Q / 802.1ad tags.

use super::{be16, header, load, put16, sub, sub_mut};

/// An Ethernet address in wire order.
pub type MacAddr = [u8; 6];

/// `mac` with its local bit inverted (IEEE 802, 8.2).
///
/// A source address for packets received on a port: a bridge does not expect the port's own there.
#[inline(always)]
pub const fn with_other_local_bit(mac: MacAddr) -> MacAddr {
    let [first, m1, m2, m3, m4, m5] = mac;
    [first ^ 2, m1, m2, m3, m4, m5]
}

/// The type field of an Ethernet header or tag, values 0x0600 and above; smaller ones are 802.3 lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtherType(pub u16);

impl EtherType {
    pub const IPV4: Self = Self(0x0800);
    pub const IPV6: Self = Self(0x86dd);
    /// 802.1Q customer tag (TPID).
    pub const VLAN: Self = Self(0x8100);
    /// 802.1ad service tag (TPID), the outer one of QinQ.
    pub const QINQ: Self = Self(0x88a8);
    pub const ARP: Self = Self(0x0806);
    /// Slow protocols (802.3 Annex 57A): LACP, the marker protocol, OAM.
    pub const SLOW: Self = Self(0x8809);
    /// MAC control: pauses, and PFC ([`crate::wire::pfc`]).
    pub const MAC_CONTROL: Self = Self(0x8808);
    /// RoCEv1: an InfiniBand GRH directly over Ethernet.
    ///
    /// Without an IP header it has no ECN, so it passes unchanged.
    pub const ROCE_V1: Self = Self(0x8915);

    /// Whether this is the length of an 802.3 frame: an LLC header follows, as in STP and IS-IS.
    #[inline(always)]
    pub(crate) const fn is_length(self) -> bool {
        self.0 < 0x0600
    }

    /// Whether this is the TPID of a tag, so that a [`VlanTag`] follows.
    #[inline(always)]
    pub(crate) const fn is_tag(self) -> bool {
        self.0 == Self::VLAN.0 || self.0 == Self::QINQ.0
    }
}

header! {
    /// Ethernet II header.
    Ethernet, 14, EthernetRepr: pub fn parse {
        [pub const] dst: MacAddr = |bytes| *sub::<0, 6, _>(bytes);
        [pub const] src: MacAddr = |bytes| *sub::<6, 6, _>(bytes);
        /// EtherType of the payload, or the TPID of a tag.
        [pub] ethertype: EtherType = |bytes| EtherType(load::be16_at::<12, _>(bytes));
    }
}

impl EthernetRepr {
    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; Ethernet::LEN]) {
        let Self { dst, src, ethertype } = *self;
        *sub_mut::<0, 6, _>(out) = dst;
        *sub_mut::<6, 6, _>(out) = src;
        put16::<12, _>(out, ethertype.0);
    }
}

header! {
    /// VLAN tag after its TPID: tag control information and next type (802.1Q, clause 9.6).
    VlanTag, 4, VlanTagRepr: pub fn parse {
        /// Priority code point, 0 to 7.
        [pub const] pcp: u8 = |bytes| bytes[0] >> 5;
        /// Drop eligible indicator.
        [pub const] dei: bool = |bytes| bytes[0] & 0x10 != 0;
        /// VLAN identifier, 0 to 4095; 0 is a priority tag, 4095 is reserved.
        [pub const] vid: u16 = |bytes| be16::<0, _>(bytes) & 0x0fff;
        /// EtherType of the payload, or the TPID of another tag.
        [pub(crate)] ethertype: EtherType = |bytes| EtherType(load::be16_at::<2, _>(bytes));
    }
}

impl VlanTagRepr {
    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; VlanTag::LEN]) {
        let Self { pcp, dei, vid, ethertype } = *self;
        put16::<0, _>(out, ((pcp as u16) << 13) | ((dei as u16) << 12) | (vid & 0x0fff));
        put16::<2, _>(out, ethertype.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_fields_do_not_mix() {
        let bytes = [0xd1, 0x23, 0x86, 0xdd];
        let tag = VlanTagRepr::parse(VlanTag::new(&bytes));
        assert_eq!(tag, VlanTagRepr { pcp: 6, dei: true, vid: 0x123, ethertype: EtherType::IPV6 });
        let mut out = [0xff; 4];
        tag.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn only_tpids_are_tags() {
        assert!(EtherType(0x8100).is_tag() && EtherType(0x88a8).is_tag());
        assert!(!EtherType::IPV4.is_tag() && !EtherType::IPV6.is_tag() && !EtherType::ROCE_V1.is_tag());
    }
}
