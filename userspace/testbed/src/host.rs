//! A host of the lab.

use std::net::IpAddr;

use dcqcn_netlink::Netns;

/// Traffic class of the lab's RoCE: DSCP 26.
pub(super) const ROCE_TC: usize = 3;

/// A host: a namespace with one interface.
#[derive(Debug)]
pub struct Host {
    /// Its namespace.
    pub netns: Netns,
    /// Its interface.
    pub ifname: String,
    /// Index of that interface in the namespace.
    pub ifindex: u32,
    /// Ethernet address of that interface.
    pub mac: [u8; 6],
    /// Ethernet address of the switch port it is joined to.
    pub gateway_mac: [u8; 6],
    /// IP address.
    pub address: IpAddr,
}
