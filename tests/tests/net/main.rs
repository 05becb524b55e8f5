//! The rtnetlink layer with the running kernel: topology, shaping, statistics, saving and restoring, in separate
//! network namespaces.

mod qdiscs;

use std::io;
use std::net::IpAddr;

use dcqcn_netlink::tc::{Batch, HtbClass, SavedQdisc, Shaper, Shaping, Stats};
use dcqcn_netlink::{Error, netns};
use dcqcn_tests::host;
use dcqcn_tests::prelude::*;

const ROOT: Handle = Handle::new(1, 0);
const NEAR_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
const FAR_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

/// Two joined hosts with addresses.
struct Pair {
    hosts: host::Pair,
    near_link: Netlink,
    near_index: u32,
}

impl Pair {
    fn new(test: &str) -> Result<Self> {
        let hosts = host::Pair::with_mtu(test, 1_500)?;
        let (near_link, near_index) = (hosts.a.netlink()?, hosts.a.index("a0")?);
        near_link.add_address(near_index, NEAR_ADDRESS, 24)?;
        hosts.b.netlink()?.add_address(hosts.b.index("b0")?, FAR_ADDRESS, 24)?;
        near_link.add_neighbour(near_index, FAR_ADDRESS, mac(2))?;
        Ok(Self { hosts, near_link, near_index })
    }

    /// Sends UDP datagrams from host 1 to host 2, at the maximum rate of the socket.
    fn send(&self, count: usize, payload_bytes: usize) -> Result<()> {
        self.hosts.a.run(|| {
            let socket = UdpSocket::bind((NEAR_ADDRESS, 0))?;
            for _ in 0..count {
                socket.send_to(&vec![0; payload_bytes], (FAR_ADDRESS, 9))?;
            }
            Ok(())
        })?
    }

    fn tc(&self, arguments: &str) -> Result<String> {
        self.hosts.a.command(&format!("tc {arguments}"))
    }
}

fn class(minor: u16, rate_bps: u64) -> HtbClass {
    HtbClass {
        parent: ROOT,
        handle: Handle::new(1, minor),
        rate_bps,
        ceil_bps: rate_bps,
        burst_bytes: 3000,
        cburst_bytes: 3000,
        quantum_bytes: 1600,
        priority: 0,
        overhead_bytes: 0,
    }
}

#[test]
fn namespaces_created_entered_deleted() -> Result<()> {
    require!();
    let prefix = format!("dcqcn-test-{}-names", std::process::id());
    let name = format!("{prefix}-a");
    let netns = Netns::create(&name)?;
    assert!(Netns::create(&name).is_err(), "a taken name is refused");
    assert_eq!(Netns::list(&prefix)?, [name.as_str()]);

    let outside = netns::current_inode()?;
    {
        let _inside = netns.enter()?;
        assert_eq!(netns::current_inode()?, netns.inode()?);
    }
    assert_eq!(netns::current_inode()?, outside, "dropping the guard leaves the namespace");
    assert_eq!(netns.run(netns::current_inode)??, netns.inode()?);
    assert_ne!(netns.inode()?, outside);

    Netns::delete(&name)?;
    assert!(Netns::list(&prefix)?.is_empty());
    assert!(Netns::open(&name).is_err());
    Ok(())
}

#[test]
fn links_created_and_listed() -> Result<()> {
    require!();
    let pair = Pair::new("links")?;
    let netlink = &pair.near_link;
    let near = netlink.link("a0")?;
    assert_eq!(near.kind.as_deref(), Some("veth"));
    assert_eq!(near.mac, Some(mac(1)));
    assert!(near.up && near.is_virtual());
    assert_eq!(near.peer, Some(pair.hosts.b.netlink()?.link("b0")?.index));

    pair.hosts.a.command("ip link add br0 type bridge")?;
    pair.hosts.a.command("ip link set a0 master br0 address 02:00:00:00:00:09")?;
    let bridge = netlink.link("br0")?.index;
    netlink.set_mtu(near.index, 4200)?;
    let near = netlink.link_by_index(near.index)?;
    assert_eq!((near.master, near.mtu, near.mac), (Some(bridge), 4200, Some([2, 0, 0, 0, 0, 9])));
    pair.hosts.a.command("ip link set a0 nomaster")?;
    netlink.set_up(near.index, false)?;
    let near = netlink.link_by_index(near.index)?;
    assert!(near.master.is_none() && !near.up);

    let error = netlink.link("aa0").expect_err("no such interface");
    assert!(matches!(&error, Error::UnknownInterface { nearest: Some(name), .. } if name == "a0"), "{error}");
    let error = netlink.set_mtu(near.index, 1).expect_err("too small an MTU").to_string();
    assert!(error.contains("a0") && error.contains("MTU 1"), "{error}");

    netlink.delete_link(near.index)?;
    let names: Vec<_> = netlink.links()?.into_iter().map(|link| link.name).collect();
    assert_eq!(names, ["lo", "br0"]);
    Ok(())
}

#[test]
fn link_drop_counters_are_per_interface() -> Result<()> {
    require!();
    let pair = Pair::new("drops")?;
    let drops = || -> Result<u64> { Ok(pair.near_link.statistics()?[&pair.near_index].dropped) };
    let before = drops()?;
    pair.send(3, 100)?;
    assert_eq!(drops()?, before);
    // A veth drops packets longer than its peer's MTU.
    let far = pair.hosts.b.netlink()?;
    far.set_mtu(far.link("b0")?.index, 68)?;
    pair.send(7, 500)?;
    assert_eq!(drops()?, before + 7);
    Ok(())
}

#[test]
fn ipv6_addresses_usable_immediately() -> Result<()> {
    require!();
    let pair = Pair::new("ipv6")?;
    let address: IpAddr = "fd77::1".parse()?;
    // Absent in a kernel without IPv6.
    drop(pair.hosts.a.run(|| fs::write("/proc/sys/net/ipv6/conf/a0/disable_ipv6", "0"))?);
    let added = pair.near_link.add_address(pair.near_index, address, 64);
    let is_unsupported = |error: &Error| {
        error.errno().is_some_and(|errno| io::Error::from(errno).kind() == io::ErrorKind::Unsupported)
    };
    require_that!(!added.as_ref().is_err_and(is_unsupported), "the kernel has no IPv6");
    added?;
    pair.near_link.add_neighbour(pair.near_index, "fd77::2".parse()?, mac(2))?;
    pair.hosts.a.run(|| UdpSocket::bind((address, 0)))?.context("the address is still tentative")?;
    Ok(())
}
