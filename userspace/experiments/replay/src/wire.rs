//! Wires: veth pairs between the ports of a switch and raw sockets.

use dcqcn_netlink::link::VethEnd;
use dcqcn_netlink::{Netlink, Netns};
use dcqcn_p4::{Error, Result};

use crate::frames::RawSocket;

/// MTU of the wires: any Ethernet frame of the raw sockets fits.
pub(crate) const MTU: u32 = 9_500;

pub fn inner(port: u16) -> String {
    format!("sw{port}")
}

/// Creates the wire to `port` in a namespace, and a socket at its outer end.
pub fn connect(netns: &Netns, port: u16) -> Result<RawSocket> {
    let netlink = Netlink::connect_in(netns).map_err(wire_error)?;
    let (near, far) = (inner(port), format!("out{port}"));
    let end = |name| VethEnd { name, netns: None, mac: None };
    netlink.add_veth(&end(&near), &end(&far)).map_err(wire_error)?;
    let mut index = 0;
    for name in [&near, &far] {
        index = netlink.link(name).map_err(wire_error)?.index;
        netlink.set_mtu(index, MTU).map_err(wire_error)?;
        netlink.set_up(index, true).map_err(wire_error)?;
    }
    netns.run(|| RawSocket::open(index)).map_err(wire_error)?.map_err(wire_error)
}

pub(crate) fn wire_error(error: impl std::fmt::Display) -> Error {
    Error::Ports { reason: error.to_string() }
}
