//! Text form of a QP: address, and number as packet dissectors show it.

use std::net::{IpAddr, Ipv6Addr};

use dcqcn_common::classify::{mapped, words};
use dcqcn_common::flow::QpId;

pub const fn qp_id(address: IpAddr, qpn: u32) -> QpId {
    let addr = match address {
        IpAddr::V4(v4) => mapped(v4.octets()),
        IpAddr::V6(v6) => words(v6.octets()),
    };
    QpId { addr, qpn, vlan: 0 }
}

/// Address of a QP from words in wire order.
pub fn address(id: &QpId) -> IpAddr {
    ip(id.addr)
}

/// An address as words in wire order.
pub fn ip(addr: [u32; 4]) -> IpAddr {
    let [a, b, c, d] = addr.map(|word| u128::from(u32::from_be(word)));
    Ipv6Addr::from(a << 96 | b << 64 | c << 32 | d).to_canonical()
}

/// VLANs of a QP as text: the ID, after that of the outer tag if there are two (`100.10`); `None` = no tag.
pub fn vlan(id: &QpId) -> Option<String> {
    match (id.vlan >> 12, id.vlan & 0xfff) {
        (0, 0) => None,
        (0, vid) => Some(vid.to_string()),
        (outer, vid) => Some(format!("{outer}.{vid}")),
    }
}

/// Address of a QP with its VLANs, if any.
pub fn address_and_vlan(address: IpAddr, vlan: Option<&str>) -> String {
    vlan.map_or_else(|| address.to_string(), |vlan| format!("{address} vlan {vlan}"))
}

/// A QPN as packet dissectors show it.
pub fn hex(qpn: u32) -> String {
    format!("0x{qpn:06x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlans_printed_outer_tag_first() {
        let of = |vlan| super::vlan(&QpId { vlan, ..QpId::NONE });
        assert_eq!([of(0), of(10), of(100 << 12 | 10)], [None, Some("10".into()), Some("100.10".into())]);
        let address = IpAddr::from([10, 0, 0, 2]);
        assert_eq!(address_and_vlan(address, None), "10.0.0.2");
        assert_eq!(address_and_vlan(address, Some("10")), "10.0.0.2 vlan 10");
    }

    #[test]
    fn addresses_match_wire() {
        let wire = "fd00::1:2".parse::<Ipv6Addr>().unwrap().octets();
        let mut addr = [0; 4];
        for (word, bytes) in addr.iter_mut().zip(wire.chunks_exact(4)) {
            *word = u32::from_ne_bytes(bytes.try_into().unwrap());
        }
        assert_eq!(address(&QpId { addr, qpn: 1, vlan: 0 }).to_string(), "fd00::1:2");
        assert_eq!(address(&QpId { addr: mapped([10, 0, 1, 2]), qpn: 1, vlan: 0 }).to_string(), "10.0.1.2");
    }
}
