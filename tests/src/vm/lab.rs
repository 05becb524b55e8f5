//! Hosts with soft-RoCE around a bridge with a bottleneck port.
//!
//! Linux 6.1 has soft-RoCE in the initial namespace only, so all hosts are there: host N is the interface `hN` with the
//! RDMA device `rxeN`. The bridge is in a separate namespace, with a port `pN` for each. Policy routing sends packets
//! between hosts through their interfaces; otherwise the kernel would deliver them locally through `lo`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use dcqcn_common::wire::bth::Opcode;
use dcqcn_netlink::link::VethEnd;
use dcqcn_netlink::tc::Stats;

use super::command::{json, json_in, script_in, sh_in};
use crate::vm::prelude::*;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// MTU of every interface, bytes; soft-RoCE uses the largest IB MTU that fits.
    pub mtu_bytes: u32,
    pub ipv6: bool,
    /// The last host is behind a second bridge; packets to it are tagged with this VLAN on the way. (soft-RoCE itself
    /// sends no tags, as it does not run on VLAN interfaces.)
    pub vlan: Option<u16>,
    /// Each host's interface is the port of a bridge `bN`, which has its address and its RDMA device.
    pub bridged: bool,
}

/// Maximum overhead of soft-RoCE around the payload (`RXE_MAX_HDR_LENGTH`, drivers/infiniband/sw/rxe/rxe_param.h).
const RXE_HEADERS: u32 = 80;

impl Options {
    /// The largest IB MTU that fits.
    pub fn ib_mtu_bytes(&self) -> u32 {
        [4_096, 2_048, 1_024, 512].into_iter().find(|mtu| mtu + RXE_HEADERS <= self.mtu_bytes).unwrap_or(256)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { mtu_bytes: 1_500, ipv6: false, vlan: None, bridged: false }
    }
}

/// The hosts and the bridge, which exist until the guest exits.
pub struct Lab {
    /// The namespace of the bridge.
    pub switch: Netns,
    pub options: Options,
    hosts: Vec<u8>,
}

/// A flow of a host's reaction point in the output of `dcqcn flows`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ListedFlow {
    pub qpn: u32,
    pub rate_bps: u64,
    pub packets: u64,
    pub cnp_handled: u64,
}

/// Queue of the shaped port, in packets of the IB MTU.
const BUFFER_PACKETS: u32 = 100;
/// Burst of the shaped port, 26 ms at 20 Mbit/s. A token bucket loses tokens beyond its burst if its timer is late:
/// with a small one the port of an emulated machine is slower than its rate, and than a virtual queue of that rate.
const BURST_BYTES: u32 = 64_000;
/// Sysctl: maximum packets queued between a veth and the receiving CPU. The default is too small.
const BACKLOG_PACKETS: &str = "20000";

/// CPUs that process received packets of an interface.
const RPS: &str = "queues/rx-0/rps_cpus";
/// The port towards a host behind a second bridge.
const TRUNK: &str = "trunk";

/// A GID as sysfs writes it.
pub fn gid_text(address: Ipv6Addr) -> String {
    address.segments().map(|segment| format!("{segment:04x}")).join(":")
}

impl Lab {
    /// Builds `hosts` of them, host 1 being the first.
    pub fn new(hosts: u8, options: &Options) -> Result<Self> {
        sh("modprobe -a rdma_rxe ib_uverbs rdma_ucm sch_fq sch_htb sch_tbf")?;
        sysfs::write("/proc/sys/net/core/netdev_max_backlog", BACKLOG_PACKETS)?;
        for scope in ["all", "default"] {
            sysfs::write(&format!("/proc/sys/net/ipv4/conf/{scope}/rp_filter"), "0")?;
            sysfs::write(&format!("/proc/sys/net/ipv4/conf/{scope}/accept_local"), "1")?;
            sysfs::write(&format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad"), "0")?;
        }
        let switch = Netns::create("switch")?;
        let lab = Self { switch, options: *options, hosts: (1..=hosts).collect() };
        sh_in(&lab.switch, "ip link add br0 type bridge")?;
        sh_in(&lab.switch, "ip link set br0 up")?;
        // The table of local addresses is looked up last, not first.
        for family in ["-4", "-6"] {
            sh(&format!("ip {family} rule add pref 1000 lookup local"))?;
            sh(&format!("ip {family} rule del pref 0"))?;
        }
        for &host in &lab.hosts {
            lab.add_port(host)?;
        }
        if let (Some(vlan), Some(&last)) = (options.vlan, lab.hosts.last()) {
            lab.add_trunk(vlan, last)?;
        }
        for &host in &lab.hosts {
            lab.add_routes(host)?;
        }
        for &host in &lab.hosts {
            sh(&format!("rdma link add {} type rxe netdev {}", rxe(host), lab.upper(host)))?;
        }
        Ok(lab)
    }

    pub fn iface(&self, host: u8) -> String {
        format!("h{host}")
    }

    /// The interface that has a host's address.
    fn upper(&self, host: u8) -> String {
        if self.options.bridged { format!("b{host}") } else { self.iface(host) }
    }

    pub fn port(&self, host: u8) -> String {
        if self.options.vlan.is_some() && self.hosts.last() == Some(&host) {
            TRUNK.to_owned()
        } else {
            format!("p{host}")
        }
    }

    pub fn address(&self, host: u8) -> IpAddr {
        if self.options.ipv6 { Ipv6Addr::from(v6(host)).into() } else { Ipv4Addr::from(v4(host)).into() }
    }

    /// The index of a host's address among the GIDs of its RDMA device.
    pub fn gid_index(&self, host: u8) -> Result<u32> {
        let gid = gid_text(match self.address(host) {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        });
        (0..16)
            .find(|index| {
                sysfs::read(format!("/sys/class/infiniband/{}/ports/1/gids/{index}", rxe(host)))
                    .is_ok_and(|found| found == gid)
            })
            .with_context(|| format!("{} has no GID {gid}", rxe(host)))
    }

    /// Makes the port towards a host the bottleneck; `rate` in tc's syntax.
    pub fn shape(&self, host: u8, rate: &str) -> Result<()> {
        let queue_bytes = BUFFER_PACKETS * self.options.ib_mtu_bytes();
        self.root(host, &format!("handle 1: tbf rate {rate} burst {BURST_BYTES} limit {queue_bytes}"))
    }

    /// Installs a root qdisc at the port towards a host.
    pub fn root(&self, host: u8, qdisc: &str) -> Result<()> {
        sh_in(&self.switch, &format!("tc qdisc replace dev {} root {qdisc}", self.port(host))).map(drop)
    }

    /// Runs `dcqcn` on a host: `line` with `{}` for the interface.
    pub fn on_host(&self, host: u8, line: &str) -> Result<Value> {
        json(&format!("dcqcn --json {}", line.replace("{}", &self.iface(host))))
    }

    pub fn flows(&self, host: u8) -> Result<Vec<ListedFlow>> {
        listed_flows(&self.on_host(host, "flows {}")?)
    }

    pub fn flow(&self, host: u8, qpn: u32) -> Result<Option<ListedFlow>> {
        Ok(self.flows(host)?.into_iter().find(|flow| flow.qpn == qpn))
    }

    /// Runs `dcqcn` on the bridge: `line` with `{}` for the port towards a host.
    pub fn on_port(&self, host: u8, line: &str) -> Result<Value> {
        json_in(&self.switch, &format!("dcqcn --json {}", line.replace("{}", &self.port(host))))
    }

    /// Counters of the root qdisc of the port towards a host.
    pub fn port_stats(&self, netlink: &Netlink, host: u8) -> Result<Stats> {
        let port = netlink.link(&self.port(host))?.index;
        Ok(netlink.qdisc_stats(port, Handle::ROOT)?)
    }

    pub fn is_attached(&self, host: u8) -> bool {
        self.on_host(host, "status {}").is_ok()
    }

    pub fn host_stats(&self, host: u8) -> Result<Stats> {
        let netlink = Netlink::connect()?;
        let iface = netlink.link(&self.iface(host))?.index;
        Ok(netlink.qdisc_stats(iface, Handle::ROOT)?)
    }

    /// Removes and restores the carrier of a host's interface. (Setting the interface down would also remove its routes
    /// and neighbours.) If that kills QPs ([`dies_on_local_drop`]), the host is removed from the bridge instead.
    pub fn flap(&self, host: u8) -> Result<()> {
        let (lost, back) = if dies_on_local_drop()? { ("nomaster", "master br0") } else { ("down", "up") };
        sh_in(&self.switch, &format!("ip link set p{host} {lost}"))?;
        sh_in(&self.switch, &format!("ip link set p{host} {back}")).map(drop)
    }

    pub fn hw_counter(&self, host: u8, name: &str) -> Result<u64> {
        let path = format!("/sys/class/infiniband/{}/ports/1/hw_counters/{name}", rxe(host));
        sysfs::read(&path)?.parse().with_context(|| path)
    }

    /// Makes the bridge drop one in this many packets of these hosts at random; 0 = none.
    pub fn lose(&self, hosts: &[u8], one_of: u32) -> Result<()> {
        self.lose_matching(hosts, one_of, &["matchall".to_owned()])
    }

    /// As [`Self::lose`], only RoCEv2 packets over IPv4 with one of these opcodes.
    pub fn lose_opcodes(&self, hosts: &[u8], one_of: u32, opcodes: &[Opcode]) -> Result<()> {
        let matching = |opcode: &Opcode| {
            format!(
                "protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff match u8 {} 0xff at 28",
                opcode.0
            )
        };
        self.lose_matching(hosts, one_of, &opcodes.iter().map(matching).collect::<Vec<_>>())
    }

    fn lose_matching(&self, hosts: &[u8], one_of: u32, filters: &[String]) -> Result<()> {
        for host in hosts {
            let port = self.port(*host);
            let mut commands = format!("tc qdisc del dev {port} clsact 2>/dev/null || true");
            if one_of != 0 {
                commands += &format!("; tc qdisc add dev {port} clsact");
                for filter in filters {
                    commands += &format!(
                        "; tc filter add dev {port} ingress {filter} action pass random netrand drop {one_of}"
                    );
                }
            }
            script_in(&self.switch, &commands)?;
        }
        Ok(())
    }

    /// Packets dropped so far by the filters of the ports towards these hosts, and by the queues behind their shapers.
    pub fn drops(&self, hosts: &[u8]) -> Result<u64> {
        let mut drops = 0;
        for host in hosts {
            let qdiscs = json_in(&self.switch, &format!("tc -s -j qdisc show dev {}", self.port(*host)))?;
            drops += qdiscs
                .as_array()
                .into_iter()
                .flatten()
                // A shaper counts the losses of netem behind it again.
                .filter(|qdisc| qdisc.get("root").is_none())
                .filter_map(|qdisc| qdisc.get("drops")?.as_u64())
                .sum::<u64>();
        }
        Ok(drops)
    }

    /// Replaces the queue behind the shaper with handle 1 of the port towards a host; in tc's syntax.
    pub fn queue(&self, host: u8, qdisc: &str) -> Result<()> {
        sh_in(&self.switch, &format!("tc qdisc replace dev {} parent 1:1 {qdisc}", self.port(host))).map(drop)
    }

    /// Changes the MAC address of a host's interface, which is not bridged.
    pub fn set_mac(&self, host: u8, mac: [u8; 6]) -> Result<()> {
        let mac = text_of(mac);
        sh(&format!("ip link set {} address {mac}", self.iface(host)))?;
        let family = self.network().0;
        for &other in self.hosts.iter().filter(|other| **other != host) {
            let (to, iface) = (self.address(host), self.upper(other));
            sh(&format!("ip {family} neigh replace {to} lladdr {mac} dev {iface} nud permanent"))?;
        }
        Ok(())
    }

    fn add_port(&self, host: u8) -> Result<()> {
        let (near, far) = (format!("h{host}"), format!("p{host}"));
        let near_end = VethEnd { name: &near, netns: None, mac: Some(mac(host)) };
        let far_end = VethEnd { name: &far, netns: Some(&self.switch), mac: None };
        Netlink::connect()?.add_veth(&near_end, &far_end)?;
        let mtu = self.options.mtu_bytes;
        sh_in(&self.switch, &format!("ip link set {far} mtu {mtu} master br0 up"))?;
        sh(&format!("ip link set {near} mtu {mtu} up"))?;
        if self.options.bridged {
            let bridge = self.upper(host);
            let mac = text_of(mac(host));
            sh(&format!("ip link add {bridge} mtu {mtu} address {mac} type bridge"))?;
            sh(&format!("ip link set {near} master {bridge}"))?;
            sh(&format!("ip link set {bridge} up"))?;
        }
        // One CPU processes packets in order; soft-RoCE treats reordering as loss.
        sysfs::write(&format!("/sys/class/net/{near}/{RPS}"), "1")?;
        script_in(&self.switch, &format!("echo 1 > /sys/class/net/{far}/{RPS}")).map(drop)
    }

    /// Moves a host behind a second bridge, connected by a tagged link.
    fn add_trunk(&self, vlan: u16, host: u8) -> Result<()> {
        // A tag adds 4 bytes to the MTU of its payload.
        let mtu = self.options.mtu_bytes + 4;
        let far = format!("{TRUNK}far");
        for line in [
            "ip link add br1 type bridge".to_owned(),
            "ip link set br1 up".to_owned(),
            format!("ip link add {TRUNK} mtu {mtu} type veth peer name {far} mtu {mtu}"),
            format!("ip link set p{host} master br1"),
        ] {
            sh_in(&self.switch, &line)?;
        }
        for (end, bridge) in [(TRUNK, "br0"), (&far, "br1")] {
            sh_in(&self.switch, &format!("ip link set {end} up"))?;
            sh_in(&self.switch, &format!("ip link add link {end} name {end}.{vlan} type vlan id {vlan}"))?;
            sh_in(&self.switch, &format!("ip link set {end}.{vlan} master {bridge} up"))?;
            script_in(&self.switch, &format!("echo 1 > /sys/class/net/{end}/{RPS}"))?;
        }
        Ok(())
    }

    fn add_routes(&self, host: u8) -> Result<()> {
        let (iface, address, table) = (self.upper(host), self.address(host), 100 + u32::from(host));
        let (family, prefix_len, network) = self.network();
        let nodad = if self.options.ipv6 { " nodad" } else { "" };
        sh(&format!("ip {family} address add {address}/{prefix_len} dev {iface}{nodad}"))?;
        for rule in [
            format!("pref 10 iif {iface} lookup local"),
            format!("pref 20 oif {iface} lookup {table}"),
            format!("pref 30 from {address} to {network} lookup {table}"),
        ] {
            sh(&format!("ip {family} rule add {rule}"))?;
        }
        sh(&format!("ip {family} route add {network} dev {iface} src {address} table {table}"))?;
        for &other in self.hosts.iter().filter(|other| **other != host) {
            let (to, mac) = (self.address(other), text_of(mac(other)));
            sh(&format!("ip {family} neigh replace {to} lladdr {mac} dev {iface} nud permanent"))?;
        }
        Ok(())
    }

    /// Option of `ip` for the address family, length of the prefix, and the network of all hosts.
    fn network(&self) -> (&'static str, u8, &'static str) {
        if self.options.ipv6 { ("-6", 64, "fd00::/64") } else { ("-4", 24, "10.0.0.0/24") }
    }
}

impl fmt::Display for Lab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &host in &self.hosts {
            writeln!(f, "host {host}: {} {} {}", self.iface(host), self.address(host), rxe(host))?;
        }
        write!(f, "ports p1 to p{} in the namespace `switch`", self.hosts.len())
    }
}

/// Whether soft-RoCE's QPs die at the first packet that their own host drops.
///
/// A qdisc drops packets when it is replaced or has no carrier. `rxe_send` (drivers/infiniband/sw/rxe/rxe_net.c) of
/// Linux 6.12 and 7.3 treats a drop as an error, that of 6.1 retries.
pub fn dies_on_local_drop() -> Result<bool> {
    Ok(!sysfs::kernel_is("6.1.")?)
}

fn text_of(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

pub fn rxe(host: u8) -> String {
    format!("rxe{host}")
}

pub fn listed_flows(flows: &Value) -> Result<Vec<ListedFlow>> {
    Vec::deserialize(&flows["rp"]).context("`dcqcn flows` lists flows")
}

/// A counter in the output of `dcqcn counters`, summed over the hooks.
pub fn count(counters: &Value, name: &str) -> Result<u64> {
    let value = counters.pointer(&format!("/total/{name}")).and_then(Value::as_u64);
    value.with_context(|| format!("no counter {name}"))
}
