//! A host of the lab.

use std::net::IpAddr;

use dcqcn_netlink::{Netlink, Netns};

use super::error::{Error, Result};

/// Traffic class of the lab's RoCE: DSCP 26.
pub(super) const ROCE_TC: usize = 3;

/// A host: a namespace with one interface.
#[derive(Debug)]
pub struct Host {
    pub netns: Netns,
    pub ifname: String,
    pub ifindex: u32,
    pub mac: [u8; 6],
    /// Ethernet address of its switch port.
    pub gateway_mac: [u8; 6],
    pub address: IpAddr,
    /// Name of the switch port; empty if the switch is external.
    pub(super) port: String,
}

impl Host {
    pub(super) const fn is_port_of_machine(&self) -> bool {
        self.port.is_empty()
    }

    /// The host's port of the lab's switch in `netns`, as a host.
    pub(super) fn neighbour(&self, netns: &Netns) -> Result<Self> {
        let ifindex = Netlink::connect_in(netns)?.link(&self.port)?.index;
        Ok(Self {
            netns: netns.try_clone()?,
            ifname: self.port.clone(),
            ifindex,
            mac: self.gateway_mac,
            gateway_mac: self.mac,
            address: self.address,
            port: String::new(),
        })
    }

    /// A port of this machine as a host. The address is only used in its packets; `peer` is the destination port.
    pub(super) fn port_of_machine(
        netlink: &Netlink,
        name: &str,
        address: IpAddr,
        peer: Option<[u8; 6]>,
    ) -> Result<Self> {
        let link = netlink.link(name)?;
        let Some(mac) = link.mac.filter(|_| link.is_ethernet()) else {
            return Err(Error::NotEthernet(name.to_owned()));
        };
        Ok(Self {
            netns: Netns::current()?,
            ifname: name.to_owned(),
            ifindex: link.index,
            mac,
            gateway_mac: peer.unwrap_or([0xff; 6]),
            address,
            port: String::new(),
        })
    }
}
