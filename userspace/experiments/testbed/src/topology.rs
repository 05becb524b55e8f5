//! The lab's network: N sender hosts and a receiver, each in a separate namespace, around a Linux switch.
//!
//! ```text
//!  dcqcn-lab-s0 [dlab-s0]--veth--[swp1]                          10.0.1.2   fd00::1:2
//!  dcqcn-lab-s1 [dlab-s1]--veth--[swp2] dcqcn-lab-sw [swp0]--veth--[dlab-rx] dcqcn-lab-rx
//!   ...                                                          10.0.0.2   fd00::2
//! ```
//!
//! The switch forwards at layer 3, as data-centre leaf switches do. A bridge would also forward a packet with its
//! sender's socket still charged for it, so a queue in the switch would exert back-pressure on a socket in another
//! host, which is impossible in reality. `ip_rcv` removes that association, as a wire would.
//!
//! Each sender has a NIC of the link's rate (a token bucket, with back-pressure to the sockets). The switch's port to
//! the receiver is the bottleneck: HTB at the link's rate, a class per queue, a bounded FIFO in each.

use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dcqcn_common::params::Unit;
use dcqcn_loader::attach;
use dcqcn_netlink::link::VethEnd;
use dcqcn_netlink::tc::{Handle, HtbClass, QdiscSpec};
use dcqcn_netlink::{Netlink, Netns};
use dcqcn_params::quantity::in_range;
use netlink_packet_route::tc::{TcFilterU32Option, TcHandle, TcU32Key, TcU32Selector, TcU32SelectorFlags};
use nix::fcntl::{Flock, FlockArg};

use super::bmv2::Bmv2;
use super::config::{IncastConfig, MAX_SENDERS};
use super::error::{ConfigError, Error, Result, failed};
use super::host::Host;

pub(crate) const NETNS_PREFIX: &str = "dcqcn-lab-";
/// Lock file of the running lab; the kernel releases it when the process exits for any reason.
const LOCK_FILE: &str = "/run/dcqcn-lab.lock";
/// MTU of every interface, bytes: usual in switches for an RDMA MTU of 4096.
const LINK_MTU: u32 = 4200;
/// MTU around BMv2, bytes: libpcap's buffers have room for so few larger packets that bursts are lost.
const BMV2_MTU: u32 = 1500;
/// A frame of the larger MTU.
const FRAME_BYTES: u32 = LINK_MTU + 14;
/// Burst of a token bucket: the interval at which the kernel serves its queue.
const BURST_BYTES: u32 = 2 * FRAME_BYTES;
/// Queue of a sender NIC, bytes. Socket buffers fill long before it does.
const NIC_QUEUE_BYTES: u32 = 4 << 20;
const OTHER_BUFFER_BYTES: u32 = 256 << 10;

/// Minor number of the switch port's class for a queue: the data plane puts a packet of queue `q` into class `1:q+1`.
const fn queue_class(queue: u16) -> Handle {
    Handle::new(1, queue + 1)
}
const PORT: Handle = Handle::new(1, 0xff);
/// Queue 0: non-RoCE traffic.
const BEST_EFFORT: Handle = queue_class(0);
pub(super) const ROCE: Handle = queue_class(3);
const CNP: Handle = queue_class(6);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostSpeed {
    Link,
    /// As fast as they can.
    Full,
}

/// The switch: a namespace with a port per host.
#[derive(Debug)]
pub struct Switch {
    pub netns: Netns,
    /// The port towards the receiver: the bottleneck.
    pub egress_ifname: String,
    /// Index of that port in the namespace.
    pub egress_ifindex: u32,
    /// Guaranteed rate of the port's RoCE queue, bit/s.
    pub roce_bps: u64,
    pub buffer_bytes: u32,
    /// Whether the data plane provides the port's queues.
    pub queues: bool,
    pub bmv2: Option<Bmv2>,
}

/// The network, which is removed on drop.
#[derive(Debug)]
pub struct Topology {
    pub senders: Vec<Host>,
    /// The host that sends non-RoCE traffic, if any.
    pub flooder: Option<Host>,
    pub receiver: Host,
    /// The switch between them, unless it is external.
    pub switch: Option<Switch>,
    // Last, so that everything is removed before another lab may start.
    _removal: Option<Removal>,
    _lock: Flock<File>,
}

impl Topology {
    /// Builds the network, after removing the rest of a crashed lab.
    pub(crate) fn build(config: &IncastConfig, hosts: HostSpeed) -> Result<Self> {
        in_range("senders", config.senders.into(), 1..=MAX_SENDERS.into(), Unit::Count)
            .map_err(ConfigError::from)?;
        let lock = lock()?;
        remove_namespaces().map_err(failed("remove the remains of an earlier lab"))?;
        // From here on a failure removes what was built.
        let removal = Removal;

        let switch_netns = create_netns("sw", config.ipv6)?;
        if !config.bmv2 {
            let forwarding = if config.ipv6 { "ipv6/conf/all/forwarding" } else { "ipv4/ip_forward" };
            switch_netns.run(|| write_sysctl(forwarding, "1"))??;
        }
        let switch_netlink = Netlink::connect_in(&switch_netns)?;

        let join = |subnet: u8, name: &str| join(config, &switch_netns, &switch_netlink, subnet, name);
        let receiver = join(0, "rx")?;
        // The number of senders fits a byte, checked above.
        let senders =
            (0..config.senders as u8).map(|i| join(i + 1, &format!("s{i}"))).collect::<Result<Vec<_>>>()?;
        let flooder = config.flood.then(|| join(config.senders as u8 + 1, "fl")).transpose()?;

        let receiver_netlink = Netlink::connect_in(&receiver.netns)?;
        for sender in senders.iter().chain(&flooder) {
            let netlink = Netlink::connect_in(&sender.netns)?;
            netlink.add_neighbour(sender.ifindex, receiver.address, sender.gateway_mac)?;
            receiver_netlink.add_neighbour(receiver.ifindex, sender.address, receiver.gateway_mac)?;
            let rate_bps = config.link_bps;
            let nic = QdiscSpec::Tbf { rate_bps, burst_bytes: BURST_BYTES, limit_bytes: NIC_QUEUE_BYTES };
            if hosts == HostSpeed::Link {
                netlink.replace_root(sender.ifindex, Handle::new(1, 0), &nic)?;
            }
        }

        let egress_ifname = port_name(0);
        let egress_ifindex = switch_netlink.link(&egress_ifname)?.index;
        let is_shared = config.tcp_flows > 0;
        // RoCE is guaranteed only half of a shared link.
        let roce_bps = if is_shared { config.link_bps / 2 } else { config.link_bps };
        let mut bmv2 = None;
        if config.bmv2 {
            let hosts = std::iter::once(&receiver).chain(&senders);
            let ports: Vec<_> = (0..).zip(hosts).map(|(subnet, host)| (port_name(subnet), host)).collect();
            let (packet, buffer) = (config.packet_bytes().into(), config.buffer_bytes.into());
            bmv2 = Some(Bmv2::start(&switch_netns, &ports, packet, config.link_bps, buffer)?);
        } else if config.queues {
            let port = QdiscSpec::Tbf {
                rate_bps: config.link_bps,
                burst_bytes: BURST_BYTES,
                // Until the queues are below it.
                limit_bytes: config.buffer_bytes,
            };
            switch_netlink.replace_root(egress_ifindex, Handle::new(1, 0), &port)?;
        } else {
            shape(config, roce_bps, &switch_netlink, egress_ifindex)?;
        }
        if is_shared {
            switch_netns.run(|| classify_tcp(egress_ifindex, BEST_EFFORT))??;
        }
        let switch = Switch {
            netns: switch_netns,
            egress_ifname,
            egress_ifindex,
            roce_bps,
            buffer_bytes: config.buffer_bytes,
            queues: config.queues,
            bmv2,
        };
        Ok(Self { senders, flooder, receiver, switch: Some(switch), _removal: Some(removal), _lock: lock })
    }

    /// Ports of this machine around an external switch: `senders` send to `receiver`, and `flooder` sends non-RoCE
    /// traffic. They are not changed.
    pub(crate) fn of_ports(senders: &[String], flooder: Option<&String>, receiver: &str) -> Result<Self> {
        let lock = lock()?;
        let netlink = Netlink::connect()?;
        let receiver = Host::port_of_machine(&netlink, receiver, address(false, 0, HOST_END), None)?;
        let gateway = Some(receiver.mac);
        let senders = (1..)
            .zip(senders)
            .map(|(subnet, name)| {
                Host::port_of_machine(&netlink, name, address(false, subnet, HOST_END), gateway)
            })
            .collect::<Result<Vec<_>>>()?;
        let flooder = flooder
            .map(|name| Host::port_of_machine(&netlink, name, address(false, u8::MAX, HOST_END), gateway))
            .transpose()?;
        let switch = None;
        Ok(Self { senders, flooder, receiver, switch, _removal: None, _lock: lock })
    }
}

/// Removes the lab's namespaces with their contents.
#[derive(Debug)]
struct Removal;

impl Drop for Removal {
    fn drop(&mut self) {
        if let Err(error) = remove_namespaces() {
            tracing::error!(%error, "cannot remove the lab's network namespaces; `ip netns` lists them");
        }
    }
}

fn remove_namespaces() -> Result<()> {
    for name in Netns::list(NETNS_PREFIX)? {
        // Attachments of a crashed lab are pinned outside its namespaces and would outlive them.
        Netns::open(&name)?.run(attach::detach_all)??;
        Netns::delete(&name)?;
    }
    Ok(())
}

fn lock() -> Result<Flock<File>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .read(true)
        .open(LOCK_FILE)
        .map_err(failed(format!("open {LOCK_FILE}: the lab must run as root")))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            lock.set_len(0)?;
            writeln!(lock, "{}", std::process::id())?;
            Ok(lock)
        }
        Err(_) => {
            let holder = fs::read_to_string(LOCK_FILE).unwrap_or_default();
            Err(Error::Locked(holder.trim().to_owned()))
        }
    }
}

fn create_netns(suffix: &str, ipv6: bool) -> Result<Netns> {
    let netns = Netns::create(&format!("{NETNS_PREFIX}{suffix}"))?;
    if !ipv6 {
        // Neighbour discovery would be its only traffic.
        netns.run(|| write_sysctl("ipv6/conf/default/disable_ipv6", "1"))?.or_else(|error| {
            // A kernel without IPv6 has nothing to disable.
            if fs::exists("/proc/sys/net/ipv6").unwrap_or(false) { Err(error) } else { Ok(()) }
        })?;
    }
    Ok(netns)
}

/// Sets a network parameter of the calling thread's namespace.
fn write_sysctl(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/{name}");
    fs::write(&path, value).map_err(failed(format!("write {value} to {path}")))
}

fn port_name(subnet: u8) -> String {
    format!("swp{subnet}")
}

/// A locally administered Ethernet address.
const fn mac(subnet: u8, end: u8) -> [u8; 6] {
    [0x02, 0xdc, 0x0c, 0x00, subnet, end]
}

const PORT_END: u8 = 1;
const HOST_END: u8 = 2;

fn address(ipv6: bool, subnet: u8, end: u8) -> IpAddr {
    if ipv6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, subnet.into(), end.into()).into()
    } else {
        Ipv4Addr::new(10, 0, subnet, end).into()
    }
}

/// Creates a host and connects it to the switch.
fn join(
    config: &IncastConfig,
    switch: &Netns,
    switch_netlink: &Netlink,
    subnet: u8,
    name: &str,
) -> Result<Host> {
    let netns = create_netns(name, config.ipv6)?;
    let (ifname, port) = (format!("dlab-{name}"), port_name(subnet));
    let (host_mac, port_mac) = (mac(subnet, HOST_END), mac(subnet, PORT_END));
    let host_end = VethEnd { name: &ifname, netns: Some(&netns), mac: Some(host_mac) };
    let port_end = VethEnd { name: &port, netns: Some(switch), mac: Some(port_mac) };
    switch_netlink.add_veth(&port_end, &host_end)?;

    let host_address = address(config.ipv6, subnet, HOST_END);
    // The host treats the whole lab as on-link, so it needs no route; the switch routes.
    let (host_prefix_len, port_prefix_len) = if config.ipv6 { (64, 112) } else { (16, 24) };
    let mtu = if !config.bmv2 { LINK_MTU } else { BMV2_MTU };
    let host_netlink = Netlink::connect_in(&netns)?;
    let ifindex = host_netlink.link(&ifname)?.index;
    host_netlink.set_mtu(ifindex, mtu)?;
    host_netlink.set_up(ifindex, true)?;
    host_netlink.add_address(ifindex, host_address, host_prefix_len)?;

    let port_index = switch_netlink.link(&port)?.index;
    switch_netlink.set_mtu(port_index, mtu)?;
    switch_netlink.set_up(port_index, true)?;
    // The kernel must not process packets at BMv2's ports.
    if !config.bmv2 {
        switch_netlink.add_address(port_index, address(config.ipv6, subnet, PORT_END), port_prefix_len)?;
        switch_netlink.add_neighbour(port_index, host_address, host_mac)?;
    }

    Ok(Host { netns, ifname, ifindex, mac: host_mac, gateway_mac: port_mac, address: host_address, port })
}

fn shape(config: &IncastConfig, roce_bps: u64, netlink: &Netlink, ifindex: u32) -> Result<()> {
    let link_bps = config.link_bps;
    let root = Handle::new(1, 0);
    // Without the data plane no classes are selected, and all non-TCP traffic is RoCE.
    let htb = QdiscSpec::Htb { default_minor: ROCE.minor(), direct_qlen: 1000 };
    netlink.replace_root(ifindex, root, &htb)?;
    let class = |parent, handle, rate_bps, priority| HtbClass {
        parent,
        handle,
        rate_bps,
        ceil_bps: link_bps,
        burst_bytes: BURST_BYTES,
        cburst_bytes: BURST_BYTES,
        quantum_bytes: FRAME_BYTES,
        priority,
        overhead_bytes: 0,
    };
    netlink.replace_htb_class(ifindex, &class(root, PORT, link_bps, 0))?;
    // CNPs go first and are few; the others share the rest by their rates.
    let queues = [
        (CNP, link_bps / 10, 0, OTHER_BUFFER_BYTES),
        (ROCE, roce_bps, 1, config.buffer_bytes),
        (BEST_EFFORT, link_bps - roce_bps, 1, OTHER_BUFFER_BYTES),
    ];
    for (handle, rate_bps, priority, buffer_bytes) in queues {
        // A class without a guarantee still needs a rate.
        let rate_bps = rate_bps.max(link_bps / 100);
        netlink.replace_htb_class(ifindex, &class(PORT, handle, rate_bps, priority))?;
        let fifo = QdiscSpec::Bfifo { limit_bytes: buffer_bytes };
        netlink.replace_qdisc(ifindex, handle, Handle::new(0x10 + handle.minor(), 0), &fifo)?;
    }
    Ok(())
}

/// `IPPROTO_TCP` in the header word that contains it: bytes 8 to 11 of IPv4 (TTL, protocol, checksum), 4 to 7 of IPv6
/// (payload length, next header, hop limit).
const TCP_MATCHES: [(i32, i32, u32, u32); 2] =
    [(libc::ETH_P_IP, 8, 0x0006_0000, 0x00ff_0000), (libc::ETH_P_IPV6, 4, 0x0000_0600, 0x0000_ff00)];

/// Maps TCP at interface `ifindex` of the calling thread's namespace to `class` of its root qdisc.
fn classify_tcp(ifindex: u32, class: Handle) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        for (index, (protocol, offset, value, mask)) in TCP_MATCHES.into_iter().enumerate() {
            let mut key = TcU32Key::default();
            (key.mask, key.val, key.off) = (mask, value, offset);
            let mut selector = TcU32Selector::default();
            selector.flags = TcU32SelectorFlags::Terminal;
            selector.nkeys = 1;
            selector.keys = vec![key];
            let class = TcHandle { major: class.major(), minor: class.minor() };
            handle
                .traffic_filter(ifindex.cast_signed())
                .add()
                .parent(Handle::new(class.major, 0).0)
                .priority(index as u16 + 1)
                .protocol((protocol as u16).to_be())
                .u32(&[TcFilterU32Option::ClassId(class), TcFilterU32Option::Selector(selector)])?
                .execute()
                .await
                .map_err(failed("classify TCP: the kernel needs the u32 classifier (cls_u32)"))?;
        }
        Ok(())
    })
}
