//! Captures with a link header other than Ethernet's, or none: packets get an Ethernet header, without addresses that
//! were not captured. Layouts are those of the link-layer header types on tcpdump.org.

use dcqcn_common::wire::eth::{EtherType, Ethernet, EthernetRepr, MacAddr};
use pcap_file::DataLink;

/// Link header of a capture's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// An Ethernet header.
    Ethernet,
    /// A header without further information, followed by IP at this offset.
    Ip(usize),
    /// "Cooked" (the device "any"): protocol, length and offset of the sender's address, and the header's own length.
    Cooked { protocol_at: usize, address_length_at: usize, address_at: usize, length: usize },
}

impl Link {
    /// `None`: no IP can be located in packets of this type.
    pub(super) const fn of(link_type: DataLink) -> Option<Self> {
        Some(match link_type {
            DataLink::ETHERNET => Self::Ethernet,
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => Self::Ip(0),
            // An address family, in byte order and numbering of the capturing system.
            DataLink::NULL | DataLink::LOOP => Self::Ip(4),
            DataLink::LINUX_SLL => {
                Self::Cooked { protocol_at: 14, address_length_at: 5, address_at: 6, length: 16 }
            }
            DataLink::LINUX_SLL2 => {
                Self::Cooked { protocol_at: 0, address_length_at: 11, address_at: 12, length: 20 }
            }
            _ => return None,
        })
    }

    /// Growth of a packet converted to Ethernet.
    pub(super) const fn growth(self) -> i64 {
        let header = match self {
            Self::Ethernet => Ethernet::LEN,
            Self::Ip(length) | Self::Cooked { length, .. } => length,
        };
        Ethernet::LEN as i64 - header as i64
    }

    /// Converts a packet to an Ethernet frame. A truncated link header gives type 0: not RoCE.
    pub(super) fn ethernet(self, packet: Vec<u8>) -> Vec<u8> {
        let (header, rest) = match self {
            Self::Ethernet => return packet,
            Self::Ip(length) => {
                let rest = packet.get(length..).unwrap_or_default();
                (EthernetRepr { dst: [0; 6], src: [0; 6], ethertype: ethertype_of_ip(rest) }, rest)
            }
            Self::Cooked { protocol_at, address_length_at, address_at, length } => {
                let rest = packet.get(length..).unwrap_or_default();
                let ethertype = array(&packet, protocol_at).map_or(0, u16::from_be_bytes);
                let is_mac = packet.get(address_length_at) == Some(&6);
                let src: MacAddr = array(&packet, address_at).filter(|_| is_mac).unwrap_or_default();
                (EthernetRepr { dst: [0; 6], src, ethertype: EtherType(ethertype) }, rest)
            }
        };
        let mut frame = vec![0; Ethernet::LEN];
        if let Some(out) = frame.first_chunk_mut() {
            header.emit(out);
        }
        frame.extend_from_slice(rest);
        frame
    }
}

fn ethertype_of_ip(packet: &[u8]) -> EtherType {
    match packet.first().map(|first| first >> 4) {
        Some(4) => EtherType::IPV4,
        Some(6) => EtherType::IPV6,
        _ => EtherType(0),
    }
}

fn array<const N: usize>(packet: &[u8], at: usize) -> Option<[u8; N]> {
    packet.get(at..)?.first_chunk().copied()
}
