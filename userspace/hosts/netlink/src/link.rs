//! Interfaces and their addresses: listing them, and creating those that the lab needs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use libc::{
    IFLA_ADDRESS, IFLA_ALT_IFNAME, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINK_NETNSID,
    IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, IFLA_PERM_ADDRESS, IFLA_PROP_LIST, IFLA_STATS64, IFLA_TXQLEN,
    IFLA_XDP, RTM_DELLINK, RTM_GETADDR, RTM_GETLINK, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, RTM_SETLINK,
};
use netlink_packet_core::{Emitable, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoNetkit, InfoVeth, LinkFlags, LinkMessage, NetkitMode,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use nix::errno::Errno;
use rtnetlink::{AddressMessageBuilder, LinkMessageBuilder, LinkUnspec};

use super::error::{Error, Result};
use super::netlink::{Context, Netlink, Subject, Subsystem};
use super::netns::Netns;
use super::wire::{Encoder, attribute, attributes, string, u16_at, u32_at, u64_at};

/// Bytes of `struct ifinfomsg`.
const IFINFOMSG_LEN: usize = 16;
/// Attributes of `IFLA_XDP` that hold the number of a program, and where that runs (include/uapi/linux/if_link.h).
const XDP_PROGRAMS: [(u16, &str); 3] = [(5, "driver"), (6, "skb"), (7, "offload")];
/// The program, where there is only one, and where it runs (`XDP_ATTACHED_*`).
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
/// Bytes of `struct ifaddrmsg`.
const IFADDRMSG_LEN: usize = 8;
/// The address of an interface; of a point-to-point interface, that of the other end.
const IFA_ADDRESS: u16 = 1;
/// The local address (include/uapi/linux/if_addr.h), absent for IPv6 without another end.
const IFA_LOCAL: u16 = 2;
/// Positions of fields in `struct rtnl_link_stats64` (include/uapi/linux/if_link.h).
const RX_PACKETS: usize = 0;
const TX_PACKETS: usize = 1;
const RX_DROPPED: usize = 6;
const TX_DROPPED: usize = 7;
/// Minimum similarity of two names for a suggestion, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.5;

/// A network interface as the kernel describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index, unique in its namespace.
    pub index: u32,
    pub name: String,
    /// Alternative names (`ip link property add dev IFACE altname NAME`).
    pub altnames: Vec<String>,
    /// Ethernet address; `None` if its frames are not Ethernet's, as those of a tunnel that has such an address.
    pub mac: Option<[u8; 6]>,
    /// Ethernet address of the hardware, whatever [`Self::mac`] was set to; `None` for most software interfaces.
    pub permanent_mac: Option<[u8; 6]>,
    /// Largest payload of a frame, in bytes.
    pub mtu: u32,
    /// Kind of a software interface (`veth`, `bridge`, `vlan`, ...); `None` for hardware and loopback.
    pub kind: Option<String>,
    pub is_loopback: bool,
    /// A tunnel whose remote is named by each packet's metadata (`ip link add ... external`).
    pub is_metadata_tunnel: bool,
    pub up: bool,
    /// For one end of a virtual cable ([`is_cable`]), the index of the other in the namespace of that end;
    /// for a stacked interface, that of the one below, if it is in this namespace.
    pub peer: Option<u32>,
    /// Index of the bridge or bond the interface belongs to.
    pub master: Option<u32>,
    /// Packets the driver's queue may hold, used by some queueing disciplines as their default limit.
    pub tx_queue_len: u32,
    /// Speed reported by the driver, in bits per second; `None` if it does not report one.
    ///
    /// Always `None` in lists ([`Netlink::links`]), which do not query drivers. Virtual interfaces
    /// report an invented speed: see [`Link::is_virtual`].
    pub speed_bps: Option<u64>,
}

/// Whether an interface of this kind is one end of a virtual cable: its peer is the other end, not the interface below.
pub fn is_cable(kind: Option<&str>) -> bool {
    matches!(kind, Some("veth" | "netkit"))
}

impl Link {
    /// Whether the interface is virtual, so that its `speed_bps` is meaningless: every veth claims 10 Gbit/s.
    pub fn is_virtual(&self) -> bool {
        self.kind.is_some()
    }

    /// Whether RoCE is possible: the interface has an Ethernet address. That of a netkit in mode `l3` is all zeros.
    pub fn is_ethernet(&self) -> bool {
        self.mac.is_some_and(|mac| mac != [0; 6])
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    pub rx_packets: u64,
    pub tx_packets: u64,
    /// Packets dropped, in both directions.
    pub dropped: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdpProgram {
    /// Mode: `driver`, `skb` or `offload`.
    pub mode: &'static str,
    pub id: u32,
}

/// One end of a veth or netkit pair to be created.
#[derive(Debug, Clone, Copy)]
pub struct VethEnd<'a> {
    /// Name of the interface, at most 15 bytes.
    pub name: &'a str,
    /// Target namespace; `None` for that of the [`Netlink`] that creates it.
    pub netns: Option<&'a Netns>,
    /// Ethernet address; `None` for a random one.
    pub mac: Option<[u8; 6]>,
}

impl Netlink {
    /// The interface with this name or altname.
    ///
    /// # Errors
    /// [`Error::UnknownInterface`] if there is none.
    pub fn link(&self, name: &str) -> Result<Link> {
        // The kernel rejects longer names with another error; for the caller, such a name does not exist.
        if !name.is_empty() && name.len() < libc::IFNAMSIZ {
            match self.get_link(&LinkUnspec::new_with_name(name).build(), format_args!("{name}")) {
                Err(error) if error.errno() == Some(Errno::ENODEV) => {}
                found => return found,
            }
        }
        let links = self.links()?;
        // Altnames may be longer.
        if let Some(link) = links.iter().find(|link| link.altnames.iter().any(|altname| altname == name)) {
            return self.link_by_index(link.index);
        }
        let names = links.into_iter().map(|link| link.name);
        Err(Error::UnknownInterface { name: name.to_owned(), nearest: nearest(name, names) })
    }

    pub fn link_by_index(&self, ifindex: u32) -> Result<Link> {
        let message = LinkUnspec::new_with_index(ifindex).build();
        self.get_link(&message, format_args!("interface {ifindex}"))
    }

    /// All interfaces of the namespace, by index, without speeds.
    pub fn links(&self) -> Result<Vec<Link>> {
        let bodies = self.dump_all(format_args!("list"), RTM_GETLINK, &LinkMessage::default())?;
        let mut links = bodies.iter().map(|body| describe(body)).collect::<Result<Vec<_>>>()?;
        links.sort_unstable_by_key(|link| link.index);
        Ok(links)
    }

    /// The statistics of each interface of the namespace, by its index.
    pub fn statistics(&self) -> Result<BTreeMap<u32, LinkStatistics>> {
        let bodies = self.dump_all(format_args!("list"), RTM_GETLINK, &LinkMessage::default())?;
        let of = |body: &Vec<u8>| {
            let statistics = attribute(body.get(IFINFOMSG_LEN..)?, IFLA_STATS64)?;
            let field = |number: usize| u64_at(statistics, number * size_of::<u64>());
            let [rx_packets, tx_packets] = [field(RX_PACKETS)?, field(TX_PACKETS)?];
            let dropped = field(RX_DROPPED)? + field(TX_DROPPED)?;
            Some((u32_at(body, 4)?, LinkStatistics { rx_packets, tx_packets, dropped }))
        };
        Ok(bodies.iter().filter_map(of).collect())
    }

    /// The addresses of all interfaces, by index.
    pub fn addresses(&self) -> Result<HashMap<u32, Vec<IpAddr>>> {
        let bodies =
            self.dump_all(format_args!("list the addresses"), RTM_GETADDR, &AddressMessage::default())?;
        let mut addresses: HashMap<u32, Vec<IpAddr>> = HashMap::new();
        for (ifindex, address) in bodies.iter().filter_map(|body| address(body)) {
            addresses.entry(ifindex).or_default().push(address);
        }
        Ok(addresses)
    }

    /// The XDP programs on the interface: at most one per mode.
    pub fn xdp_programs(&self, ifindex: u32) -> Result<Vec<XdpProgram>> {
        let message = LinkUnspec::new_with_index(ifindex).build();
        let body = self.get_link_body(&message, format_args!("interface {ifindex}"))?;
        let attributes = body.get(IFINFOMSG_LEN..).unwrap_or_default();
        Ok(xdp_programs(attribute(attributes, IFLA_XDP).unwrap_or_default()))
    }

    /// Creates a veth pair. Both ends are down.
    pub fn add_veth(&self, near: &VethEnd<'_>, far: &VethEnd<'_>) -> Result<()> {
        self.add_pair(InfoKind::Veth, near, far, |far_end| InfoData::Veth(InfoVeth::Peer(far_end)))
    }

    /// Creates a netkit pair that carries Ethernet frames (mode `l2`). Both ends are down.
    ///
    /// # Errors
    /// The kernel does not support netkit (before Linux 6.7).
    pub fn add_netkit(&self, near: &VethEnd<'_>, far: &VethEnd<'_>) -> Result<()> {
        self.add_pair(InfoKind::Netkit, near, far, |far_end| {
            InfoData::Netkit(vec![InfoNetkit::Mode(NetkitMode::L2), InfoNetkit::Peer(far_end)])
        })
    }

    fn add_pair(
        &self,
        kind: InfoKind,
        near: &VethEnd<'_>,
        far: &VethEnd<'_>,
        data: impl FnOnce(LinkMessage) -> InfoData,
    ) -> Result<()> {
        let far_end = apply_end(LinkMessageBuilder::<LinkUnspec>::new().name(far.name), far).build();
        let near_end = LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(kind.clone()).name(near.name);
        let message = apply_end(near_end, near).set_info_data(data(far_end)).build();
        let subject = Subject::Other(format_args!("{kind} pair {} and {}", near.name, far.name));
        self.change(format_args!("create"), subject, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &message)
    }

    pub fn set_up(&self, ifindex: u32, up: bool) -> Result<()> {
        let link = LinkUnspec::new_with_index(ifindex);
        let (message, operation) = if up { (link.up(), "bring up") } else { (link.down(), "take down") };
        self.set_link(&message.build(), format_args!("{operation}"))
    }

    pub fn set_mtu(&self, ifindex: u32, mtu: u32) -> Result<()> {
        self.set_link(&LinkUnspec::new_with_index(ifindex).mtu(mtu).build(), format_args!("set MTU {mtu}"))
    }

    pub fn set_tx_queue_len(&self, ifindex: u32, packets: u32) -> Result<()> {
        let message = LinkUnspec::new_with_index(ifindex).txqueuelen(packets).build();
        self.set_link(&message, format_args!("set a transmit queue length of {packets} packets"))
    }

    /// Removes the interface; of a veth pair, both ends.
    pub fn delete_link(&self, ifindex: u32) -> Result<()> {
        let message = LinkUnspec::new_with_index(ifindex).build();
        self.change(format_args!("delete"), Subject::Interface(ifindex), RTM_DELLINK, 0, &message)
    }

    /// Adds an address to the interface, usable immediately: IPv6 duplicate detection is skipped.
    pub fn add_address(&self, ifindex: u32, address: IpAddr, prefix_len: u8) -> Result<()> {
        let message = address_message(ifindex, address, prefix_len);
        self.change(
            format_args!("add the address {address}/{prefix_len}"),
            Subject::Interface(ifindex),
            RTM_NEWADDR,
            NLM_F_CREATE | NLM_F_EXCL,
            &message,
        )
    }

    /// Adds a permanent neighbour entry of `address` with `mac`, so that neither ARP nor neighbour discovery is needed.
    pub fn add_neighbour(&self, ifindex: u32, address: IpAddr, mac: [u8; 6]) -> Result<()> {
        let message = neighbour_message(ifindex, address, mac);
        self.change(
            format_args!("add the neighbour {address}"),
            Subject::Interface(ifindex),
            RTM_NEWNEIGH,
            NLM_F_CREATE | NLM_F_REPLACE,
            &message,
        )
    }

    /// The interface's name for a message, or its index if it was removed.
    pub(super) fn name_of(&self, ifindex: u32) -> String {
        self.link_by_index(ifindex).map_or_else(|_| format!("interface {ifindex}"), |link| link.name)
    }

    fn set_link(&self, message: &LinkMessage, operation: fmt::Arguments<'_>) -> Result<()> {
        self.change(operation, Subject::Interface(message.header.index), RTM_SETLINK, 0, message)
    }

    fn get_link(&self, message: &LinkMessage, subject: fmt::Arguments<'_>) -> Result<Link> {
        let link = describe(&self.get_link_body(message, subject)?)?;
        Ok(Link { speed_bps: self.speed_bps(link.index)?, ..link })
    }

    fn get_link_body(&self, message: &LinkMessage, subject: fmt::Arguments<'_>) -> Result<Vec<u8>> {
        let context = Context { operation: format_args!("look up"), subject: Subject::Other(subject) };
        let bodies =
            self.request(context, Subsystem::Route, RTM_GETLINK, 0, |request| emit(request, message))?;
        Ok(bodies.into_iter().next().unwrap_or_default())
    }

    fn dump_all(
        &self,
        operation: fmt::Arguments<'_>,
        kind: u16,
        message: &impl Emitable,
    ) -> Result<Vec<Vec<u8>>> {
        let context = Context { operation, subject: Subject::Other(format_args!("all interfaces")) };
        self.dump(context, Subsystem::Route, kind, |request| emit(request, message))
    }

    fn change(
        &self,
        operation: fmt::Arguments<'_>,
        subject: Subject<'_>,
        kind: u16,
        flags: u16,
        message: &impl Emitable,
    ) -> Result<()> {
        let context = Context { operation, subject };
        self.request(context, Subsystem::Route, kind, flags, |request| emit(request, message)).map(drop)
    }
}

/// Reads the attributes of interest, ignoring all others.
fn describe(body: &[u8]) -> Result<Link> {
    // struct ifinfomsg: family, padding, type (16), index, flags, change
    let (Some(index), Some(flags), Some(attributes)) =
        (u32_at(body, 4), u32_at(body, 8), body.get(IFINFOMSG_LEN..))
    else {
        return Err(Error::Decode { what: "an interface", detail: format!("{} bytes only", body.len()) });
    };
    let flags = LinkFlags::from_bits_retain(flags);
    let number = |kind| u32_at(attribute(attributes, kind)?, 0);
    let is_ethernet = u16_at(body, 2) == Some(libc::ARPHRD_ETHER);
    let mac = |kind| attribute(attributes, kind).filter(|_| is_ethernet)?.try_into().ok();
    let info = attribute(attributes, IFLA_LINKINFO).unwrap_or_default();
    let kind = attribute(info, IFLA_INFO_KIND).map(string);
    // The lower interface of a container's macvlan has an index of another namespace, which another interface may have
    // here.
    let is_elsewhere = !is_cable(kind.as_deref()) && attribute(attributes, IFLA_LINK_NETNSID).is_some();
    Ok(Link {
        index,
        name: attribute(attributes, IFLA_IFNAME).map(string).unwrap_or_default(),
        altnames: attribute(attributes, IFLA_PROP_LIST).map(altnames).unwrap_or_default(),
        mac: mac(IFLA_ADDRESS),
        permanent_mac: mac(IFLA_PERM_ADDRESS),
        mtu: number(IFLA_MTU).unwrap_or_default(),
        is_metadata_tunnel: is_metadata_tunnel(kind.as_deref(), info),
        kind,
        is_loopback: flags.contains(LinkFlags::Loopback),
        up: flags.contains(LinkFlags::Up),
        peer: number(IFLA_LINK).filter(|_| !is_elsewhere),
        master: number(IFLA_MASTER),
        tx_queue_len: number(IFLA_TXQLEN).unwrap_or_default(),
        speed_bps: None,
    })
}

/// Whether a tunnel of this kind with this `IFLA_LINKINFO` has no remote of its own.
fn is_metadata_tunnel(kind: Option<&str>, info: &[u8]) -> bool {
    // IFLA_VXLAN_COLLECT_METADATA, IFLA_GENEVE_COLLECT_METADATA, IFLA_GRE_COLLECT_METADATA
    // (include/uapi/linux/if_link.h, if_tunnel.h): a flag, of vxlan a byte.
    let option = match kind {
        Some("vxlan") => 25,
        Some("geneve") => 6,
        Some("gretap" | "ip6gretap" | "erspan" | "ip6erspan") => 18,
        _ => return false,
    };
    let data = attribute(info, IFLA_INFO_DATA).unwrap_or_default();
    attribute(data, option).is_some_and(|value| value != [0])
}

/// The names in the value of `IFLA_PROP_LIST`.
fn altnames(list: &[u8]) -> Vec<String> {
    attributes(list).filter(|(kind, _)| *kind == IFLA_ALT_IFNAME).map(|(_, name)| string(name)).collect()
}

/// The programs in the value of `IFLA_XDP`.
fn xdp_programs(value: &[u8]) -> Vec<XdpProgram> {
    let id = |kind| u32_at(attribute(value, kind)?, 0);
    let several = XDP_PROGRAMS.iter().filter_map(|&(kind, mode)| Some(XdpProgram { mode, id: id(kind)? }));
    let mut programs: Vec<_> = several.collect();
    if let (true, Some(id), Some([mode])) =
        (programs.is_empty(), id(IFLA_XDP_PROG_ID), attribute(value, IFLA_XDP_ATTACHED))
    {
        let mode = ["none", "driver", "skb", "offload"].get(usize::from(*mode)).copied().unwrap_or("none");
        programs.push(XdpProgram { mode, id });
    }
    programs
}

/// The interface and address in one message.
fn address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let (ifindex, fields) = (u32_at(body, 4)?, body.get(IFADDRMSG_LEN..)?);
    let value = attribute(fields, IFA_LOCAL).or_else(|| attribute(fields, IFA_ADDRESS))?;
    let v4 = || <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(value).ok().map(IpAddr::from);
    Some((ifindex, v4().or_else(v6)?))
}

/// The name most similar to `name`, if similar enough.
fn nearest(name: &str, names: impl Iterator<Item = String>) -> Option<String> {
    names
        .map(|candidate| (strsim::normalized_damerau_levenshtein(name, &candidate), candidate))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

fn apply_end<T>(builder: LinkMessageBuilder<T>, end: &VethEnd<'_>) -> LinkMessageBuilder<T> {
    let builder = match end.mac {
        Some(mac) => builder.address(mac.to_vec()),
        None => builder,
    };
    match end.netns {
        Some(netns) => builder.setns_by_fd(netns.file().as_raw_fd()),
        None => builder,
    }
}

fn address_message(ifindex: u32, address: IpAddr, prefix_len: u8) -> AddressMessage {
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

fn neighbour_message(ifindex: u32, address: IpAddr, mac: [u8; 6]) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = address.into();
    message.header.ifindex = ifindex;
    message.header.state = NeighbourState::Permanent;
    let destination = match address {
        IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
    };
    message.attributes = vec![
        NeighbourAttribute::Destination(destination),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    message
}

fn emit(request: &mut Encoder, message: &impl Emitable) {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    request.raw(&bytes);
}

impl Link {
    /// Interfaces that it sends and receives through: of a VLAN or the like, the one below; of a bridge's or
    /// bond's port, the port itself is below its master.
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

    #[test]
    fn nearest_name_is_offered_only_if_similar() {
        let names = || ["lo", "eth0", "eth1", "enp3s0"].map(str::to_owned).into_iter();
        assert_eq!(nearest("eht0", names()).as_deref(), Some("eth0"));
        assert_eq!(nearest("enp3s1", names()).as_deref(), Some("enp3s0"));
        assert_eq!(nearest("wlan0", names()), None);
    }

    /// The loopback and an XFRM interface may have an Ethernet address, but their frames have no such header.
    #[test]
    fn address_of_other_hardware_is_not_ethernet() {
        for (hardware, is_ethernet) in
            [(libc::ARPHRD_ETHER, true), (libc::ARPHRD_LOOPBACK, false), (libc::ARPHRD_NONE, false)]
        {
            let mut body = Encoder::default();
            body.raw(&[0, 0]);
            body.raw(&hardware.to_ne_bytes());
            body.raw(&[0; 12]);
            body.attribute(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]);
            let link = describe(&body.into_bytes()).unwrap();
            assert_eq!(link.is_ethernet(), is_ethernet, "{hardware}");
        }
    }

    #[test]
    fn address_read_with_its_interface() {
        let message = |index: u32, kind: u16, value: &[u8]| {
            let mut body = Encoder::default();
            body.raw(&[2, 24, 0, 0]);
            body.raw(&index.to_ne_bytes());
            body.attribute(kind, value);
            body.into_bytes()
        };
        let v4 = message(7, IFA_LOCAL, &[10, 0, 0, 1]);
        assert_eq!(address(&v4), Some((7, [10, 0, 0, 1].into())));
        let v6 = message(7, IFA_ADDRESS, &[0xfd; 16]);
        assert_eq!(address(&v6), Some((7, [0xfd; 16].into())));
        assert_eq!(address(&message(7, IFA_LOCAL, &[1, 2, 3])), None);
    }

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
