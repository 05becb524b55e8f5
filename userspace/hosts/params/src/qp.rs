//! A queue pair as people write it: an address, and a number as packet dissectors show it.

use std::net::{IpAddr, Ipv6Addr};

use dcqcn_common::classify::{mapped, words};
use dcqcn_common::flow::QpId;

/// The queue pair `qpn` at `address`.
#[must_use]
pub const fn qp_id(address: IpAddr, qpn: u32) -> QpId {
    let addr = match address {
        IpAddr::V4(v4) => mapped(v4.octets()),
        IpAddr::V6(v6) => words(v6.octets()),
    };
    QpId { addr, qpn }
}

/// The address of a QP, in words of the wire's byte order.
#[must_use]
pub fn address(id: &QpId) -> IpAddr {
    ip(id.addr)
}

/// An address, in words of the wire's byte order.
#[must_use]
pub fn ip(addr: [u32; 4]) -> IpAddr {
    let [a, b, c, d] = addr.map(|word| u128::from(u32::from_be(word)));
    Ipv6Addr::from(a << 96 | b << 64 | c << 32 | d).to_canonical()
}

/// A QPN as packet dissectors show it.
#[must_use]
pub fn hex(qpn: u32) -> String {
    format!("0x{qpn:06x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_wire() {
        let wire = "fd00::1:2".parse::<Ipv6Addr>().unwrap().octets();
        let mut addr = [0; 4];
        for (word, bytes) in addr.iter_mut().zip(wire.chunks_exact(4)) {
            *word = u32::from_ne_bytes(bytes.try_into().unwrap());
        }
        assert_eq!(address(&QpId { addr, qpn: 1 }).to_string(), "fd00::1:2");
        assert_eq!(address(&QpId { addr: mapped([10, 0, 1, 2]), qpn: 1 }).to_string(), "10.0.1.2");
    }
}
