//! Stacked interfaces.

use std::collections::BTreeSet;

use super::Link;

impl Link {
    /// Whether it sends and receives through `lower`: it is a VLAN or the like on it, or the bridge or bond of `lower`.
    #[must_use]
    pub fn is_above(&self, lower: &Self) -> bool {
        let is_stacked = self.kind.as_deref() != Some("veth") && self.peer == Some(lower.index);
        is_stacked || lower.master == Some(self.index)
    }
}

/// The interface number `ifindex`, and all of `links` above it.
#[must_use]
pub fn with_those_above(links: &[Link], ifindex: u32) -> BTreeSet<u32> {
    closure(links, [ifindex], Link::is_above)
}

/// These interfaces, and all of `links` below them.
#[must_use]
pub fn with_those_below(links: &[Link], ifindexes: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    closure(links, ifindexes, |link, upper| upper.is_above(link))
}

/// These interfaces, and all of `links` that are `next` to one found.
fn closure(
    links: &[Link],
    ifindexes: impl IntoIterator<Item = u32>,
    next: impl Fn(&Link, &Link) -> bool,
) -> BTreeSet<u32> {
    let mut found = BTreeSet::from_iter(ifindexes);
    loop {
        let is_found = |link: &&Link| found.contains(&link.index);
        let is_next = |link: &&Link| {
            !found.contains(&link.index) && links.iter().filter(is_found).any(|found| next(link, found))
        };
        let next: Vec<u32> = links.iter().filter(is_next).map(|link| link.index).collect();
        if next.is_empty() {
            return found;
        }
        found.extend(next);
    }
}

/// Preamble 8, FCS 4, inter-packet gap 12 (IEEE 802.3).
const ETHERNET_BYTES: u64 = 24;
/// An 802.1Q tag, which frames do not have yet at a VLAN interface.
const TAG_BYTES: u64 = 4;
/// VXLAN 8, UDP 8, IPv4 20, Ethernet 14; 20 more over IPv6, which the interface does not reveal.
const VXLAN_BYTES: u64 = 50;
/// Maximum depth of a stack; the kernel has its own limit.
const MAX_LEVELS: usize = 8;

/// Bytes that the wire adds to a frame of `link`, tunnel headers included; `None` without hardware of this namespace
/// below it. A bond or team is treated like its first port.
#[must_use]
pub fn wire_overhead_bytes(links: &[Link], link: &Link) -> Option<u64> {
    let (mut at, mut bytes) = (link, ETHERNET_BYTES);
    for _ in 0..MAX_LEVELS {
        let below = |at: &Link| links.iter().find(|lower| Some(lower.index) == at.peer);
        at = match at.kind.as_deref() {
            None => return Some(bytes),
            Some("vlan") => {
                bytes += TAG_BYTES;
                below(at)?
            }
            Some("vxlan") => {
                bytes += VXLAN_BYTES;
                below(at)?
            }
            Some("macvlan" | "macvtap" | "ipvlan" | "ipvtap") => below(at)?,
            Some("bond" | "team") => links.iter().find(|port| port.master == Some(at.index))?,
            Some(_) => return None,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, kind: Option<&str>, peer: Option<u32>, master: Option<u32>) -> Link {
        Link {
            index,
            name: format!("if{index}"),
            altnames: Vec::new(),
            mac: None,
            permanent_mac: None,
            mtu: 1_500,
            kind: kind.map(Into::into),
            is_loopback: false,
            up: true,
            peer,
            master,
            tx_queue_len: 0,
            speed_bps: None,
        }
    }

    #[test]
    fn overhead_taken_from_lower_device() {
        let links = [
            link(2, None, None, Some(9)),
            link(3, None, None, Some(9)),
            link(9, Some("bond"), None, None),
            link(10, Some("vlan"), Some(9), None),
            link(11, Some("vxlan"), Some(10), None),
            link(12, Some("macvlan"), Some(2), None),
            link(13, Some("veth"), Some(14), None),
            link(14, Some("vlan"), Some(13), None),
            // A cycle, and an interface whose lower one is in another namespace.
            link(15, Some("vlan"), Some(16), None),
            link(16, Some("macvlan"), Some(15), None),
            link(17, Some("macvlan"), None, None),
        ];
        let overhead = |link: &Link| wire_overhead_bytes(&links, link);
        let found: Vec<_> = links.iter().map(overhead).collect();
        let expected =
            [Some(24), Some(24), Some(24), Some(28), Some(78), Some(24), None, None, None, None, None];
        assert_eq!(found, expected);
    }

    #[test]
    fn upper_devices_exclude_veth_peer() {
        // Two ports of a bond, a VLAN on it in a bridge, a veth in that bridge, and another bridge.
        let links = [
            link(2, None, None, Some(9)),
            link(3, None, None, Some(9)),
            link(5, Some("veth"), Some(6), Some(11)),
            link(6, Some("veth"), Some(5), None),
            link(9, Some("bond"), None, None),
            link(10, Some("vlan"), Some(9), Some(11)),
            link(11, Some("bridge"), None, None),
            link(12, Some("bridge"), None, None),
        ];
        let above = |ifindex| with_those_above(&links, ifindex).into_iter().collect::<Vec<_>>();
        assert_eq!(above(2), [2, 9, 10, 11]);
        assert_eq!(above(9), [9, 10, 11]);
        assert_eq!(above(5), [5, 11]);
        assert_eq!((above(6), above(12), above(77)), (vec![6], vec![12], vec![77]));
        let below = |ifindex| with_those_below(&links, [ifindex]).into_iter().collect::<Vec<_>>();
        assert_eq!((below(11), below(10)), (vec![2, 3, 5, 9, 10, 11], vec![2, 3, 9, 10]));
        assert_eq!((below(2), below(6), below(77)), (vec![2], vec![6], vec![77]));
    }
}
