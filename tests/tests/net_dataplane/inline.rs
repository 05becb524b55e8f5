//! Inline attachment: packets pass in both directions, and RoCE is marked.

use std::io::ErrorKind;

use aya::programs::TcAttachType;
use dcqcn_loader::attach::Request;
use dcqcn_params::XdpModeChoice;
use dcqcn_tests::bpf::baselines;
use dcqcn_tests::prelude::*;

use crate::{MARKING, fill};

/// Host 1 with `a0`, a box with `x0` and `x1`, host 2 with `b0`.
struct InlineFixture {
    a: Host,
    between: Host,
    b: Host,
}

/// Of `x0`, inline with `x1`.
fn inline_request() -> Result<Request> {
    let mut request = request("x0", Role::Switch, &[&["link_rate=1gbit"][..], &MARKING].concat())?;
    request.settings.inline = Some("x1".into());
    Ok(request)
}

impl InlineFixture {
    fn new(test: &str, mtu: u32) -> Result<Self> {
        let bump =
            Self { a: Host::new(test, "a")?, between: Host::new(test, "x")?, b: Host::new(test, "b")? };
        join((&bump.a, "a0", 1), (&bump.between, "x0", 10), mtu)?;
        join((&bump.b, "b0", 2), (&bump.between, "x1", 11), mtu)?;
        for (host, iface) in [(&bump.a, "a0"), (&bump.b, "b0")] {
            // A veth accepts redirected packets only with NAPI, which GRO enables. Redirected packets need complete
            // checksums, as on a wire, so the sending end must compute them.
            host.command(&format!("ethtool -K {iface} gro on tx off"))?;
        }
        Ok(bump)
    }

    fn attach(&self, mode: XdpModeChoice) -> Result<()> {
        let mut request = inline_request()?;
        request.settings.xdp_mode = Some(mode);
        let info = self.between.attach_as(&request)?;
        let expected = if mode == XdpModeChoice::Skb { "skb" } else { "driver" };
        assert_eq!((info.xdp_mode.as_str(), info.programs.as_slice()), (expected, &["xdp".to_owned()][..]));
        Ok(())
    }

    fn count(&self, stat: Stat) -> Result<u64> {
        self.between.count("x0", Hook::Xdp, stat)
    }
}

/// ICMP: a datagram to a closed port triggers "port unreachable", which the socket reports. ARP comes first.
fn icmp_passes(from: &Host, to: u8) -> Result<()> {
    let error = from.run(|| -> std::io::Result<_> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.connect((Ipv4Addr::from(v4(to)), 9))?;
        socket.send(b"?")?;
        Ok(socket.recv(&mut [0]).err().map(|error| error.kind()))
    })??;
    assert_eq!(error, Some(ErrorKind::ConnectionRefused));
    Ok(())
}

/// TCP: 300 KB in each direction, intact.
fn tcp_passes(client: &Host, server: &Host, address: u8) -> Result<()> {
    let listener = server.run(|| TcpListener::bind((Ipv4Addr::from(v4(address)), 7_777)))??;
    let sent: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
    let len = sent.len();
    thread::scope(|scope| {
        let echo = scope.spawn(move || -> std::io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut data = vec![0; len];
            stream.read_exact(&mut data)?;
            stream.write_all(&data)
        });
        let received = client.run(|| -> std::io::Result<_> {
            let mut stream =
                TcpStream::connect_timeout(&(Ipv4Addr::from(v4(address)), 7_777).into(), TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.write_all(&sent)?;
            let mut data = vec![0; len];
            stream.read_exact(&mut data)?;
            Ok(data)
        })??;
        echo.join().map_err(|_| anyhow!("the echo server panicked"))??;
        assert!(received == sent, "TCP data damaged");
        Ok(())
    })
}

/// A packet that host 1 sends with VLAN tag 5 in its metadata arrives at host 2 with that tag.
fn tag_passes(bump: &InlineFixture) -> Result<()> {
    let (a, b) = (bump.a.socket("a0")?, bump.b.socket("b0")?);
    a.send(&Roce::default().frame())?;
    let tagged = Roce { tags: vec![(EtherType::VLAN, 5)], ..Roce::default() };
    assert_eq!(b.expect()?, tagged.frame());
    Ok(())
}

/// A veth passes a tag in metadata. By default attach chooses the XDP mode that preserves it; in driver mode
/// it disables the offloads it can, reports the others, and restores them.
#[test]
fn stripped_vlan_tags_survive() -> Result<()> {
    require!();
    let bump = InlineFixture::new("in-vlan", 1_500)?;
    // Some test kernels lack VLAN interfaces.
    let mut baselines = baselines()?;
    let push: &mut SchedClassifier =
        baselines.program_mut("push_tag").context("no program push_tag")?.try_into()?;
    push.load()?;
    bump.a.run(|| push.attach("a0", TcAttachType::Egress))??;
    let mut request = inline_request()?;
    let info = bump.between.attach_as(&request)?;
    assert_eq!(info.xdp_mode, "skb", "{:?}", info.notes);
    assert!(info.notes.iter().any(|note| note.contains("x0 is a veth")), "{:?}", info.notes);
    tag_passes(&bump)?;
    assert_eq!(bump.count(Stat::InlineForwarded)?, 1);
    bump.between.detach("x0")?;

    let stripping = |iface: &str| -> Result<bool> {
        Ok(bump.between.command(&format!("ethtool -k {iface}"))?.contains("rx-vlan-offload: on"))
    };
    assert!(stripping("x0")? && stripping("x1")?);
    request.settings.xdp_mode = Some(XdpModeChoice::Driver);
    let info = bump.between.attach_as(&request)?;
    assert_eq!(info.xdp_mode, "driver");
    assert!(info.notes.iter().any(|note| note.contains("tx-vlan-offload off")), "{:?}", info.notes);
    assert!(!stripping("x0")? && !stripping("x1")?);
    for (host, iface) in [(&bump.a, "a0"), (&bump.b, "b0")] {
        host.command(&format!("ethtool -K {iface} tx-vlan-offload off"))?;
    }
    tag_passes(&bump)?;
    let parts = bump.between.run(|| attach::verify(&info))??;
    let vlan: Vec<_> = parts.iter().filter(|part| part.name == "vlan").collect();
    assert!(vlan.len() == 2 && vlan.iter().all(|part| part.problem.is_none()), "{parts:?}");
    bump.between.command("ethtool -K x1 rx-vlan-offload on")?;
    let parts = bump.between.run(|| attach::verify(&info))??;
    assert!(parts.iter().any(|part| part.iface == "x1" && part.problem.is_some()), "{parts:?}");
    bump.between.detach("x0")?;
    assert!(stripping("x0")? && stripping("x1")?);
    Ok(())
}

#[test]
fn inline_detach_restores_offloads() -> Result<()> {
    require!();
    let bump = InlineFixture::new("in-offloads", 1_500)?;
    let features = || -> Result<[String; 2]> {
        let of = |iface: &str| bump.between.command(&format!("ethtool -k {iface}"));
        Ok([of("x0")?, of("x1")?])
    };
    let before = features()?;
    for mode in [XdpModeChoice::Driver, XdpModeChoice::Skb] {
        bump.attach(mode)?;
        bump.between.detach("x0")?;
        assert_eq!(features()?, before, "{mode:?}");
    }
    Ok(())
}

/// Without its first port the attachment is freed, and the second port gets its VLAN stripping again.
#[test]
fn removed_first_port_restores_second() -> Result<()> {
    require!();
    let bump = InlineFixture::new("in-removed", 1_500)?;
    let stripping =
        || -> Result<bool> { Ok(bump.between.command("ethtool -k x1")?.contains("rx-vlan-offload: on")) };
    assert!(stripping()?);
    bump.attach(XdpModeChoice::Driver)?;
    assert!(!stripping()?);
    bump.between.netlink()?.delete_link(bump.between.index("x0")?)?;
    let freed = bump.between.run(|| attach::gc(|_| false))??;
    assert!(stripping()?, "{freed:?}");
    Ok(())
}

#[test]
fn packets_pass_and_roce_is_marked() -> Result<()> {
    require!();
    [XdpModeChoice::Driver, XdpModeChoice::Skb]
        .into_iter()
        .try_for_each(|mode| passes_and_marks(mode).with_context(|| format!("{mode:?}")))
}

fn passes_and_marks(mode: XdpModeChoice) -> Result<()> {
    let bump = InlineFixture::new("inline", 1_500)?;
    bump.attach(mode)?;
    bump.a.add_v4("a0", 1, 24)?;
    bump.b.add_v4("b0", 2, 24)?;
    icmp_passes(&bump.a, 2)?;
    icmp_passes(&bump.b, 1)?;
    tcp_passes(&bump.a, &bump.b, 2)?;
    // Without addresses, the hosts send no other packets.
    bump.a.command("ip address flush dev a0")?;
    bump.b.command("ip address flush dev b0")?;
    assert!(bump.count(Stat::InlineForwarded)? > 400, "two directions of some 200 segments each");

    for (v6, from, to, data) in [
        (false, (&bump.a, "a0"), (&bump.b, "b0"), Roce::default()),
        (true, (&bump.b, "b0"), (&bump.a, "a0"), Roce { v6: true, src: 2, dst: 1, ..Roce::default() }),
    ] {
        let (from, to) = (from.0.socket(from.1)?, to.0.socket(to.1)?);
        // Every direction has a separate queue, initially empty.
        let marked = Roce { ecn: Ecn::CE, ..data.clone() }.frame();
        from.send(&data.frame())?;
        assert_eq!(to.expect()?, data.frame(), "IPv6: {v6}");
        let not_ect = Roce { ecn: Ecn::NOT_ECT, ..data.clone() }.frame();
        fill(&from, &to, &not_ect)?;
        for _ in 0..2 {
            from.send(&data.frame())?;
            assert_eq!(to.expect()?, marked, "IPv6: {v6}");
        }
        let cnp = data.cnp(None, CNP_TOS | Ecn::ECT0.bits());
        for frame in [not_ect, cnp] {
            from.send(&frame)?;
            assert_eq!(to.expect()?, frame);
        }
    }
    assert_eq!(bump.count(Stat::CpEcnMarked)?, 4);
    let queues = bump.between.attachment("x0")?.maps.queues()?;
    assert!(queues[3] != 0 && queues[8 + 3] != 0, "one for each direction: {queues:?}");

    let not_ect = Roce { ecn: Ecn::NOT_ECT, ..Roce::default() }.frame();
    let (a, b) = (bump.a.socket("a0")?, bump.b.socket("b0")?);
    fill(&a, &b, &not_ect)?;
    bump.between.set("x0", &["drop_not_ect=on"])?;
    a.send(&not_ect)?;
    assert_eq!(b.drain()?, [] as [Vec<u8>; 0]);

    // x0 refers to its deleted peer: nothing passes any more.
    let error = bump.between.detach("x1").expect_err("x0 keeps the state").to_string();
    assert!(error.contains("use `x0`"), "{error}");
    bump.between.detach("x0")?;
    a.send(&Roce::default().frame())?;
    assert_eq!(b.drain()?, [] as [Vec<u8>; 0]);
    Ok(())
}

#[test]
fn inline_jumbo_frames() -> Result<()> {
    require!();
    let bump = InlineFixture::new("inline-9k", 9_000)?;
    bump.attach(XdpModeChoice::Driver)?;
    let (a, b) = (bump.a.socket("a0")?, bump.b.socket("b0")?);
    let data = Roce { payload: 8_192, ..Roce::default() };
    a.send(&data.frame())?;
    assert_eq!(b.expect()?, data.frame());
    fill(&a, &b, &Roce { ecn: Ecn::NOT_ECT, ..Roce::default() }.frame())?;
    a.send(&data.frame())?;
    assert_eq!(b.expect()?, Roce { ecn: Ecn::CE, ..data }.frame());
    Ok(())
}
