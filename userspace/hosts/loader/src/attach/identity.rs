//! Identity of an attachment: boot, network namespace and interface index. Names are only labels.
//!
//! Another interface may have taken the index since: one moved here from another namespace, or created with it.

use std::fs;
use std::sync::LazyLock;

use dcqcn_netlink::Link;
use serde::{Deserialize, Serialize};

use super::Info;

/// Identifies an attachment among all since boot, even if its interface is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Id {
    pub netns_cookie: u64,
    pub ifindex: u32,
    /// CLOCK_BOOTTIME when attached.
    pub attached_at_ns: u64,
}

impl Info {
    pub const fn id(&self) -> Id {
        let Self { netns_cookie, ifindex, attached_at_ns, .. } = *self;
        Id { netns_cookie, ifindex, attached_at_ns }
    }
}

/// Boot ID (random(4)); empty if unknown.
pub(super) fn boot_id() -> &'static str {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    /// Compared with that of each journal.
    static BOOT_ID: LazyLock<String> = LazyLock::new(|| {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // systemd-nspawn mounts a random ID over it for each container.
        if mounts.contains(&format!(" {FILE} ")) {
            return String::new();
        }
        fs::read_to_string(FILE).unwrap_or_default().trim().to_owned()
    });
    &BOOT_ID
}

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
