//! Recognises an interface whose index another one may have taken since: one moved here from another namespace, or
//! created with this index.

use dcqcn_netlink::Link;
use serde::{Deserialize, Serialize};

/// Properties that distinguish an interface from later ones with its index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Device {
    kind: Option<String>,
    mac: Option<[u8; 6]>,
    permanent_mac: Option<[u8; 6]>,
}

impl Device {
    pub(super) fn of(link: &Link) -> Self {
        let Link { kind, mac, permanent_mac, .. } = link.clone();
        Self { kind, mac, permanent_mac }
    }

    /// Whether `link` may be this interface. A permanent address takes precedence: a bond changes those of its ports.
    pub(super) fn is(&self, link: &Link) -> bool {
        let has_address = match (self.permanent_mac, link.permanent_mac) {
            (None, None) => self.mac == link.mac,
            (then, now) => then == now,
        };
        self.kind == link.kind && has_address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(kind: Option<&str>, mac: u8, permanent_mac: Option<u8>) -> Link {
        Link {
            index: 7,
            name: "eth0".into(),
            mac: Some([mac; 6]),
            permanent_mac: permanent_mac.map(|mac| [mac; 6]),
            mtu: 1_500,
            kind: kind.map(str::to_owned),
            up: true,
            ..Link::default()
        }
    }

    #[test]
    fn device_known_by_kind_and_address() {
        let veth = Device::of(&link(Some("veth"), 1, None));
        assert!(veth.is(&Link { name: "lan0".into(), mtu: 9_000, up: false, ..link(Some("veth"), 1, None) }));
        assert!(!veth.is(&link(Some("veth"), 2, None)));
        assert!(!veth.is(&link(Some("macvlan"), 1, None)));
        let nic = Device::of(&link(None, 1, Some(1)));
        assert!(nic.is(&link(None, 9, Some(1))), "a port of a bond");
        assert!(!nic.is(&link(None, 1, Some(2))));
    }
}
