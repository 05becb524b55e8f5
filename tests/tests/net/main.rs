//! The rtnetlink layer with the running kernel: topology, shaping, statistics, saving and restoring, in separate
//! network namespaces.

mod qdiscs;

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::ops::Deref;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dcqcn_netlink::link::VethEnd;
use dcqcn_netlink::tc::{Batch, Handle, HtbClass, QdiscSpec, SavedQdisc, Shaper, Shaping, Stats};
use dcqcn_netlink::{Error, Netlink, Netns, netns};
use dcqcn_tests::command::{output_of, words};
use dcqcn_tests::require;
use dcqcn_tests::skip::runnable;

const ROOT: Handle = Handle::new(1, 0);
const NEAR_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
const FAR_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

/// A namespace that is deleted at the end of its test, passed or failed.
struct TemporaryNetns(Netns);

impl Deref for TemporaryNetns {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.0
    }
}

impl Drop for TemporaryNetns {
    fn drop(&mut self) {
        if let Err(error) = Netns::delete(self.name()) {
            eprintln!("{error}");
        }
    }
}

/// Two namespaces joined by a veth pair, `near0` and `far0`, both up.
struct Pair {
    near: TemporaryNetns,
    far: TemporaryNetns,
    near_link: Netlink,
    near_index: u32,
}

impl Pair {
    fn new(test: &str) -> Result<Self> {
        let name = |end| format!("dcqcn-test-{}-{test}-{end}", std::process::id());
        let near = TemporaryNetns(Netns::create(&name("near"))?);
        let far = TemporaryNetns(Netns::create(&name("far"))?);
        let near_link = Netlink::connect_in(&near)?;
        near_link.add_veth(
            &VethEnd { name: "near0", netns: None, mac: Some([2, 0, 0, 0, 0, 1]) },
            &VethEnd { name: "far0", netns: Some(&far), mac: Some([2, 0, 0, 0, 0, 2]) },
        )?;
        let far_link = Netlink::connect_in(&far)?;
        let near_index = near_link.link("near0")?.index;
        let far_index = far_link.link("far0")?.index;
        // The end that is set up second can send immediately; the first drops packets until the
        // kernel detects its carrier, in a work queue.
        far_link.set_up(far_index, true)?;
        near_link.set_up(near_index, true)?;
        near_link.add_address(near_index, NEAR_ADDRESS, 24)?;
        far_link.add_address(far_index, FAR_ADDRESS, 24)?;
        near_link.add_neighbour(near_index, FAR_ADDRESS, [2, 0, 0, 0, 0, 2])?;
        Ok(Self { near, far, near_link, near_index })
    }

    /// Sends UDP datagrams from `near` to `far`, at the maximum rate of the socket.
    fn send(&self, count: usize, payload_bytes: usize) -> Result<()> {
        self.near.run(|| {
            let socket = UdpSocket::bind((NEAR_ADDRESS, 0))?;
            for _ in 0..count {
                socket.send_to(&vec![0; payload_bytes], (FAR_ADDRESS, 9))?;
            }
            Ok(())
        })?
    }

    /// The output of `tc` in `near`.
    fn tc(&self, arguments: &str) -> Result<String> {
        let mut command = words(&format!("tc {arguments}"))?;
        self.near.run(|| output_of(&mut command))?
    }
}

/// A class below the root with the same rate and ceiling.
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

fn error_kind(error: &Error) -> Option<io::ErrorKind> {
    error.errno().map(|errno| io::Error::from(errno).kind())
}

/// As [`runnable`], for tests that compare with `tc`.
fn runnable_with_tc(test: &str, kinds: &[&str]) -> Result<bool> {
    if Command::new("tc").arg("-Version").output().is_err() {
        eprintln!("SKIPPED {test}: there is no `tc` (iproute2)");
        return Ok(false);
    }
    runnable(test, kinds)
}

#[test]
fn namespaces_created_entered_deleted() -> Result<()> {
    require!("namespaces_created_entered_deleted");
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
    require!("links_created_and_listed");
    let pair = Pair::new("links")?;
    let netlink = &pair.near_link;
    let near = netlink.link("near0")?;
    assert_eq!(near.kind.as_deref(), Some("veth"));
    assert_eq!(near.mac, Some([2, 0, 0, 0, 0, 1]));
    assert!(near.up && near.is_virtual());
    assert_eq!(near.peer, Some(Netlink::connect_in(&pair.far)?.link("far0")?.index));

    let bridge = netlink.add_bridge("br0")?;
    netlink.set_master(near.index, Some(bridge))?;
    netlink.set_mtu(near.index, 4200)?;
    netlink.set_mac(near.index, [2, 0, 0, 0, 0, 9])?;
    let near = netlink.link_by_index(near.index)?;
    assert_eq!((near.master, near.mtu, near.mac), (Some(bridge), 4200, Some([2, 0, 0, 0, 0, 9])));
    netlink.set_master(near.index, None)?;
    netlink.set_up(near.index, false)?;
    let near = netlink.link_by_index(near.index)?;
    assert!(near.master.is_none() && !near.up);

    let error = netlink.link("naer0").expect_err("no such interface");
    assert!(
        matches!(&error, Error::UnknownInterface { nearest: Some(name), .. } if name == "near0"),
        "{error}"
    );
    let error = netlink.set_mtu(near.index, 1).expect_err("too small an MTU").to_string();
    assert!(error.contains("near0") && error.contains("MTU 1"), "{error}");

    netlink.delete_link(near.index)?;
    let names: Vec<_> = netlink.links()?.into_iter().map(|link| link.name).collect();
    assert_eq!(names, ["lo", "br0"]);
    Ok(())
}

#[test]
fn link_drop_counters_are_per_interface() -> Result<()> {
    require!("link_drop_counters_are_per_interface");
    let pair = Pair::new("drops")?;
    let drops = || -> Result<u64> { Ok(pair.near_link.statistics()?[&pair.near_index].dropped) };
    let before = drops()?;
    pair.send(3, 100)?;
    assert_eq!(drops()?, before);
    // A veth drops packets longer than its peer's MTU.
    let far = Netlink::connect_in(&pair.far)?;
    far.set_mtu(far.link("far0")?.index, 68)?;
    pair.send(7, 500)?;
    assert_eq!(drops()?, before + 7);
    Ok(())
}

#[test]
fn ipv6_addresses_usable_immediately() -> Result<()> {
    require!("ipv6_addresses_usable_immediately");
    let pair = Pair::new("ipv6")?;
    let address: IpAddr = "fd77::1".parse()?;
    match pair.near_link.add_address(pair.near_index, address, 64) {
        Err(error) if error_kind(&error) == Some(io::ErrorKind::Unsupported) => {
            eprintln!("SKIPPED ipv6_addresses_usable_immediately: the kernel has no IPv6");
            return Ok(());
        }
        result => result?,
    }
    pair.near_link.add_neighbour(pair.near_index, "fd77::2".parse()?, [2, 0, 0, 0, 0, 2])?;
    pair.near.run(|| UdpSocket::bind((address, 0)))?.context("the address is still tentative")?;
    Ok(())
}
