//! Fast CNP: a switch answers the packets it marks itself, through their ingress port.

use std::net::Ipv6Addr;

use dcqcn_tests::prelude::*;

use crate::{MARKING, fill};

/// Answers packets that it marks, once per second and flow.
const CHANGES: [&str; 3] = ["link_rate=1gbit", "fast_cnp=on", "min_time_between_cnps=1s"];

/// Host 1 with `s0`, a switch with `r0` and `r1`, host 2 with `d0`.
pub(crate) struct Path {
    pub(crate) sender: Host,
    pub(crate) switch: Host,
    pub(crate) receiver: Host,
}

/// Ethernet addresses of the switch's ports, as host numbers.
const R0: u8 = 10;
const R1: u8 = 11;

impl Path {
    pub(crate) fn new(test: &str) -> Result<Self> {
        let [sender, switch, receiver] = ["s", "r", "d"].map(|name| Host::new(test, name));
        let path = Self { sender: sender?, switch: switch?, receiver: receiver? };
        join((&path.switch, "r0", R0), (&path.sender, "s0", 1), 4_200)?;
        join((&path.switch, "r1", R1), (&path.receiver, "d0", 2), 4_200)?;
        Ok(path)
    }

    pub(crate) fn bridge(&self) -> Result<()> {
        // Without multicast snooping it sends no packets of its own.
        self.switch.command("ip link add br0 up type bridge mcast_snooping 0")?;
        for port in ["r0", "r1"] {
            self.switch.command(&format!("ip link set {port} master br0"))?;
        }
        Ok(())
    }

    fn attach(&self) -> Result<()> {
        self.switch.attach("r1", Role::Switch, &[&CHANGES[..], &MARKING].concat())?;
        Ok(())
    }

    /// Sends packets; all but the first are marked, and the first marked one is answered.
    ///
    /// `out` and `across` set a frame's Ethernet addresses at the sender and behind the switch; `back` sets
    /// those of the CNP when it reaches the sender.
    fn answers(
        &self,
        data: &Roce,
        out: impl Fn(&mut Vec<u8>),
        across: impl Fn(&mut Vec<u8>),
        back: impl Fn(&mut Vec<u8>),
    ) -> Result<()> {
        let (s, d) = (self.sender.socket("s0")?, self.receiver.socket("d0")?);
        let made = |data: &Roce, write: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = data.frame();
            write(&mut frame);
            frame
        };
        s.send(&made(data, &out))?;
        assert_eq!(d.expect()?, made(data, &across), "the first packet finds an empty queue");
        assert_eq!(s.receive(SILENCE)?, None, "the first packet is not answered");
        fill(&s, &d, &made(&Roce { ecn: Ecn::NOT_ECT, ..data.clone() }, &out))?;
        for _ in 0..2 {
            s.send(&made(data, &out))?;
            let marked = Roce { ecn: Ecn::CE, ..data.clone() };
            assert_eq!(d.expect()?, made(&marked, &across));
        }
        let mut cnp = data.cnp(None, CNP_TOS);
        back(&mut cnp);
        assert_eq!(s.expect()?, cnp, "the CNP comes back to the sender");
        assert_eq!(s.receive(SILENCE)?, None, "one CNP per interval");
        assert_eq!(d.receive(SILENCE)?, None, "the receiver gets no CNP");
        Ok(())
    }

    fn expect_counts(&self, marked: u64, sent: u64, suppressed: u64) -> Result<()> {
        for (stat, expected) in [
            (Stat::CpEcnMarked, marked),
            (Stat::NpCnpSent, sent),
            (Stat::NpCnpSuppressed, suppressed),
            (Stat::NpCnpFailed, 0),
        ] {
            assert_eq!(self.switch.count("r1", Hook::Egress, stat)?, expected, "{}", stat.label());
        }
        Ok(())
    }
}

fn macs(dst: u8, src: u8) -> impl Fn(&mut Vec<u8>) {
    move |frame| {
        frame.splice(..12, mac(dst).into_iter().chain(mac(src)));
    }
}

/// Across a router, from its address `src` to the host `dst`.
fn hop(dst: u8, src: u8) -> impl Fn(&mut Vec<u8>) {
    move |frame| {
        macs(dst, src)(frame);
        // One hop less, and the header checksum for that (RFC 1624).
        frame[22] -= 1;
        let sum = u16::from_be_bytes([frame[24], frame[25]]);
        let (sum, carry) = sum.overflowing_add(0x100);
        frame.splice(24..26, (sum + u16::from(carry)).to_be_bytes());
    }
}

/// The receiver stays behind its port, whichever port a flooded copy was marked at.
#[test]
fn bridge_sends_cnp_from_address_of_its_port() -> Result<()> {
    require!();
    let path = Path::new("fast-br")?;
    path.bridge()?;
    path.attach()?;
    let same = |_: &mut Vec<u8>| {};
    let from_port = |frame: &mut Vec<u8>| {
        let [first, rest @ ..] = mac(R1);
        frame[6..12].copy_from_slice(&[&[first ^ 2][..], &rest].concat());
    };
    path.answers(&Roce::default(), same, same, from_port)?;
    path.expect_counts(2, 1, 1)?;
    // The queue is no longer empty: start over for the other family.
    path.switch.detach("r1")?;
    path.attach()?;
    path.answers(&Roce { v6: true, ..Roce::default() }, same, same, from_port)?;
    path.expect_counts(2, 1, 1)
}

#[test]
fn router_sends_cnp_by_ingress_port() -> Result<()> {
    require!();
    let path = Path::new("fast-rt")?;
    let switch = &path.switch;
    // Hosts 0 and 1 are on one link, 2 and 3 on the other; the router is 0 and 3.
    for (port, own, host) in [("r0", 0, 1), ("r1", 3, 2)] {
        switch.add_v4(port, own, 31)?;
        switch.add_neighbour(port, host, false)?;
    }
    switch.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
    path.attach()?;
    path.answers(&Roce::default(), macs(R0, 1), hop(2, R1), hop(1, R0))?;
    path.expect_counts(2, 1, 1)?;
    // Frames that the router itself sends are not answered.
    let own = Roce { src: 3, dest_qpn: 0x77, ..Roce::default() };
    let mut frame = own.frame();
    macs(2, R1)(&mut frame);
    switch.socket("r1")?.send(&frame)?;
    path.expect_counts(3, 1, 1)
}

/// The port has no IP address: its bridge routes, with a different MAC address.
#[test]
fn router_sends_cnp_from_bridge_address() -> Result<()> {
    require!();
    const BR0: u8 = 0x0c;
    let path = Path::new("fast-rb")?;
    let switch = &path.switch;
    switch.command("ip link add br0 up address 02:00:00:00:00:0c type bridge mcast_snooping 0")?;
    switch.command("ip link set r1 master br0")?;
    for (iface, own, host) in [("r0", 0, 1), ("br0", 3, 2)] {
        switch.add_v4(iface, own, 31)?;
        switch.add_neighbour(iface, host, false)?;
    }
    switch.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
    path.attach()?;
    path.answers(&Roce::default(), macs(R0, 1), hop(2, BR0), hop(1, R0))?;
    path.expect_counts(2, 1, 1)
}

#[test]
fn ipv6_router_sends_cnp() -> Result<()> {
    require!();
    let path = Path::new("fast-rt6")?;
    let switch = &path.switch;
    let forwards = switch.run(|| fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").is_ok())?;
    require_that!(forwards, "the kernel has no IPv6");
    for (port, own, host) in [("r0", 0, 1), ("r1", 3, 2)] {
        let enable = format!("/proc/sys/net/ipv6/conf/{port}/disable_ipv6");
        switch.run(|| fs::write(&enable, "0"))??;
        let index = switch.index(port)?;
        switch.netlink()?.add_address(index, Ipv6Addr::from(v6(own)).into(), 127)?;
        switch.add_neighbour(port, host, true)?;
    }
    // IPv6's messages of an interface that comes up have been sent.
    let (s, d) = (path.sender.socket("s0")?, path.receiver.socket("d0")?);
    for socket in [s, d] {
        while socket.receive(Duration::from_millis(1_500))?.is_some() {}
    }
    path.attach()?;
    let hop = |dst, src| {
        move |frame: &mut Vec<u8>| {
            macs(dst, src)(frame);
            frame[21] -= 1;
        }
    };
    path.answers(&Roce { v6: true, ..Roce::default() }, macs(R0, 1), hop(2, R1), hop(1, R0))?;
    path.expect_counts(2, 1, 1)
}

/// REQ leaves by one port and REP by the other: neither port sees both, but both learn the pair.
#[test]
fn switch_ports_share_learned_pairs() -> Result<()> {
    require!();
    let path = Path::new("fast-pairs")?;
    for port in ["r0", "r1"] {
        path.switch.attach(port, Role::Switch, &CHANGES)?;
    }
    let request = CmMessage::Req(req(0x0a0a_0001, 0x11));
    let comm_ids = CommIds { local: 0x0b0b_0002, remote: 0x0a0a_0001 };
    let reply = CmMessage::Rep(Rep { comm_ids, local_qpn: 0x23, starting_psn: 1 });
    path.switch.socket("r1")?.send(&cm(1, 2, &request))?;
    path.switch.socket("r0")?.send(&cm(2, 1, &reply))?;
    let known = |port| -> Result<Option<u32>> {
        let receiver = QpId { addr: mapped(v4(2)), qpn: 0x23, vlan: 0 };
        Ok(path.switch.attachment(port)?.maps.pair(&receiver)?.map(|pair| pair.qpn))
    };
    assert_eq!((known("r0")?, known("r1")?), (Some(0x11), Some(0x11)));
    // A leaving flow takes nothing from the remaining ones.
    path.switch.detach("r1")?;
    assert_eq!(known("r0")?, Some(0x11));
    path.switch.attach("r1", Role::Switch, &CHANGES)?;
    assert_eq!(known("r1")?, Some(0x11));
    Ok(())
}
