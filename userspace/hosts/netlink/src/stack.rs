//! Stacked interfaces.

use std::collections::{BTreeSet, HashMap};

use super::Link;
use super::link::is_cable;

impl Link {
    /// Interfaces that it sends and receives through: of a VLAN or the like, the one below; of a bridge's or bond's port,
    /// the port itself is below its master.
    fn edges(&self) -> impl Iterator<Item = (u32, u32)> {
        let lower = self.peer.filter(|_| !is_cable(self.kind.as_deref())).map(|lower| (self.index, lower));
        lower.into_iter().chain(self.master.map(|upper| (upper, self.index)))
    }

    /// Whether this interface sends and receives through `lower`: as a VLAN or similar on it, or as its bridge or bond.
    pub fn is_above(&self, lower: &Self) -> bool {
        self.edges().chain(lower.edges()).any(|edge| edge == (self.index, lower.index))
    }
}

/// Which interfaces are stacked on which.
#[derive(Debug, Default)]
pub struct Stack {
    above: HashMap<u32, Vec<u32>>,
    below: HashMap<u32, Vec<u32>>,
}

impl Stack {
    /// The stacks of all interfaces of a namespace.
    pub fn of(links: &[Link]) -> Self {
        let mut stack = Self::default();
        for (upper, lower) in links.iter().flat_map(Link::edges) {
            stack.above.entry(lower).or_default().push(upper);
            stack.below.entry(upper).or_default().push(lower);
        }
        stack
    }

    /// The interface number `ifindex`, and all above it.
    pub fn with_upper(&self, ifindex: u32) -> BTreeSet<u32> {
        closure(&self.above, [ifindex])
    }

    /// These interfaces, and all below them.
    pub fn with_those_below(&self, ifindexes: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
        closure(&self.below, ifindexes)
    }
}

/// These interfaces, and all that are `next` to one found.
fn closure(next: &HashMap<u32, Vec<u32>>, ifindexes: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    let mut left: Vec<u32> = ifindexes.into_iter().collect();
    let mut found = BTreeSet::new();
    while let Some(ifindex) = left.pop() {
        if found.insert(ifindex) {
            left.extend(next.get(&ifindex).into_iter().flatten());
        }
    }
    found
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
        Link { index, kind: kind.map(Into::into), peer, master, ..Link::default() }
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
    fn upper_devices_exclude_cable_ends() {
        // Two ports of a bond, a VLAN on it in a bridge, a veth in that bridge, and another bridge.
        let links = [
            link(2, None, None, Some(9)),
            link(3, None, None, Some(9)),
            link(5, Some("veth"), Some(6), Some(11)),
            link(6, Some("veth"), Some(5), None),
            link(7, Some("netkit"), Some(8), None),
            link(8, Some("netkit"), Some(7), None),
            link(9, Some("bond"), None, None),
            link(10, Some("vlan"), Some(9), Some(11)),
            link(11, Some("bridge"), None, None),
            link(12, Some("bridge"), None, None),
        ];
        let stack = Stack::of(&links);
        let above = |ifindex| stack.with_upper(ifindex).into_iter().collect::<Vec<_>>();
        assert_eq!(above(2), [2, 9, 10, 11]);
        assert_eq!(above(9), [9, 10, 11]);
        assert_eq!(above(5), [5, 11]);
        assert_eq!((above(6), above(8), above(12), above(77)), (vec![6], vec![8], vec![12], vec![77]));
        let below = |ifindex| stack.with_those_below([ifindex]).into_iter().collect::<Vec<_>>();
        assert_eq!((below(11), below(10)), (vec![2, 3, 5, 9, 10, 11], vec![2, 3, 9, 10]));
        assert_eq!((below(2), below(6), below(8), below(77)), (vec![2], vec![6], vec![8], vec![77]));
        assert!(
            links[6].is_above(&links[0]) && !links[0].is_above(&links[6]) && !links[4].is_above(&links[5])
        );
    }
}
