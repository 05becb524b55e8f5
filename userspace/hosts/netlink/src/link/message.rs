//! The bodies of requests about interfaces.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use netlink_packet_core::Emitable;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::{AddressMessageBuilder, LinkMessageBuilder};

use super::VethEnd;
use crate::wire::Encoder;

pub(super) fn apply_end<T>(builder: LinkMessageBuilder<T>, end: &VethEnd<'_>) -> LinkMessageBuilder<T> {
    let builder = match end.mac {
        Some(mac) => builder.address(mac.to_vec()),
        None => builder,
    };
    match end.netns {
        Some(netns) => builder.setns_by_fd(netns.file().as_raw_fd()),
        None => builder,
    }
}

pub(super) fn address_message(ifindex: u32, address: IpAddr, prefix_len: u8) -> AddressMessage {
    match address {
        IpAddr::V4(v4) => {
            AddressMessageBuilder::<std::net::Ipv4Addr>::new().index(ifindex).address(v4, prefix_len).build()
        }
        IpAddr::V6(v6) => {
            let mut message = AddressMessageBuilder::<std::net::Ipv6Addr>::new()
                .index(ifindex)
                .address(v6, prefix_len)
                .build();
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            message
        }
    }
}

pub(super) fn neighbour_message(ifindex: u32, address: IpAddr, mac: [u8; 6]) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = ifindex;
    message.header.state = NeighbourState::Permanent;
    let destination = match address {
        IpAddr::V4(v4) => {
            message.header.family = AddressFamily::Inet;
            NeighbourAddress::Inet(v4)
        }
        IpAddr::V6(v6) => {
            message.header.family = AddressFamily::Inet6;
            NeighbourAddress::Inet6(v6)
        }
    };
    message.attributes = vec![
        NeighbourAttribute::Destination(destination),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    message
}

pub(super) fn emit(request: &mut Encoder, message: &impl Emitable) {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    request.raw(&bytes);
}
