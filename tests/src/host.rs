//! Hosts in network namespaces, joined by veth pairs, with the data plane attached to them.

use std::net::{IpAddr, Ipv6Addr};
use std::process;

use dcqcn_common::classify;
use dcqcn_common::flow::{FlowId, RpFlow};
use dcqcn_common::layout::Counters;
use dcqcn_common::wire::udp::ROCE_V2_PORT;
use dcqcn_loader::attach::{Attachment, Change, Info, Request, Sweep};
use dcqcn_netlink::link::VethEnd;
use dcqcn_params::{Assignment, Profile, Settings};

use crate::prelude::*;

/// A host. It and its attachments are removed at the end of its test, passed or failed.
pub struct Host {
    pub netns: Netns,
}

impl Host {
    /// Creates a host with a name unique to this process and `test`.
    pub fn new(test: &str, name: &str) -> Result<Self> {
        let netns = Netns::create(&format!("dcqcn-test-{}-{test}-{name}", process::id()))?;
        let host = Self { netns };
        // Prevents neighbour discovery among the frames of a test. A kernel without IPv6 has nothing to disable.
        host.run(|| fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").is_ok())?;
        Ok(host)
    }

    pub fn netlink(&self) -> Result<Netlink> {
        Ok(Netlink::connect_in(&self.netns)?)
    }

    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        Ok(self.netns.run(work)?)
    }

    /// Runs a command on the host, which must succeed, and returns its output.
    pub fn command(&self, line: &str) -> Result<String> {
        let mut command = words(line)?;
        self.run(|| output_of(&mut command))?
    }

    /// Runs `dcqcn` with the words of `line` on the host; it must exit with `code`.
    pub fn dcqcn(&self, line: &str, code: i32) -> Result<Output> {
        let output = self.output(dcqcn(line)?)?;
        ensure!(output.status.code() == Some(code), "dcqcn {line}: {output:?}");
        Ok(output)
    }

    pub fn output(&self, mut command: Command) -> Result<Output> {
        Ok(self.run(move || command.output())??)
    }

    pub fn socket(&self, iface: &str) -> Result<RawSocket> {
        let index = self.index(iface)?;
        Ok(self.run(|| RawSocket::open(index))??)
    }

    /// As [`Self::socket`], for sending only.
    pub fn sending_socket(&self, iface: &str) -> Result<RawSocket> {
        let index = self.index(iface)?;
        Ok(self.run(|| RawSocket::open_to_send(index))??)
    }

    /// A datagram socket for UDP port 4791 at 10.0.0.`host` on `iface`: it receives packets that reach the host's own
    /// stack, which otherwise answers with ICMP.
    pub fn roce_socket(&self, iface: &str, host: u8) -> Result<UdpSocket> {
        self.add_v4(iface, host, 24)?;
        let socket = self.run(|| UdpSocket::bind((Ipv4Addr::from(v4(host)), ROCE_V2_PORT)))??;
        socket.set_read_timeout(Some(TIMEOUT))?;
        Ok(socket)
    }

    pub fn index(&self, iface: &str) -> Result<u32> {
        Ok(self.netlink()?.link(iface)?.index)
    }

    pub fn set_up(&self, iface: &str, is_up: bool) -> Result<()> {
        Ok(self.netlink()?.set_up(self.index(iface)?, is_up)?)
    }

    /// Renames an interface of this host. It is set down for that, as the kernel requires.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.set_up(from, false)?;
        self.command(&format!("ip link set {from} name {to}"))?;
        self.set_up(to, true)
    }

    pub fn journals(&self) -> Result<PathBuf> {
        let cookie = self.run(dcqcn_netlink::netns::current_cookie)??;
        Ok(PathBuf::from(format!("/run/dcqcn/ns-{cookie}")))
    }

    /// The lock of its attachments, taken: commands and the daemon wait for it until it is dropped.
    pub fn lock(&self) -> Result<File> {
        lock_journals(&self.journals()?)
    }

    pub fn journal(&self, iface: &str) -> Result<PathBuf> {
        Ok(self.journals()?.join(format!("{}.json", self.index(iface)?)))
    }

    /// Makes an interface's programs appear to be of another build.
    pub fn make_outdated(&self, iface: &str) -> Result<()> {
        let (path, object) = (self.journal(iface)?, self.attachment(iface)?.info.object);
        Ok(fs::write(&path, fs::read_to_string(&path)?.replace(&object, "0123456789abcdef"))?)
    }

    /// The directory of the pins of one of its interfaces.
    pub fn pins(&self, iface: &str) -> Result<PathBuf> {
        let journals = self.journals()?;
        let namespace = journals.file_name().context("a separate directory")?;
        Ok(PathBuf::from("/run/dcqcn/bpf").join(namespace).join(self.index(iface)?.to_string()))
    }

    /// Assigns the address 10.0.0.`host` to the interface.
    pub fn add_v4(&self, iface: &str, host: u8, prefix_len: u8) -> Result<()> {
        let address = IpAddr::V4(Ipv4Addr::from(v4(host)));
        Ok(self.netlink()?.add_address(self.index(iface)?, address, prefix_len)?)
    }

    /// Adds a neighbour entry and route for `host` behind `iface`, under its usual Ethernet address.
    pub fn add_neighbour(&self, iface: &str, host: u8, ipv6: bool) -> Result<()> {
        let address =
            if ipv6 { Ipv6Addr::from(v6(host)).into() } else { IpAddr::V4(Ipv4Addr::from(v4(host))) };
        Ok(self.netlink()?.add_neighbour(self.index(iface)?, address, mac(host))?)
    }

    /// Attaches with a role and changes of parameters, as in `link_rate=1gbit`; nothing is paced.
    pub fn attach(&self, iface: &str, role: Role, changes: &[&str]) -> Result<Info> {
        self.attach_as(&request(iface, role, changes)?)
    }

    pub fn attach_as(&self, request: &Request) -> Result<Info> {
        Ok(self.run(|| attach::attach(request))??)
    }

    pub fn detach(&self, iface: &str) -> Result<()> {
        self.run(|| attach::detach(iface))??;
        Ok(())
    }

    pub fn attachment(&self, iface: &str) -> Result<Attachment> {
        Ok(self.run(|| attach::open(iface))??)
    }

    pub fn is_complete(&self, iface: &str) -> Result<bool> {
        let info = self.attachment(iface)?.info;
        Ok(self.run(|| attach::verify(&info))??.iter().all(|part| part.problem.is_none()))
    }

    /// Updates the parameters that follow the interface, as the daemon does, and returns the change.
    pub fn follow(&self, iface: &str) -> Result<Option<Change>> {
        let Attachment { info, maps } = self.attachment(iface)?;
        match self.run(|| anyhow::Ok(attach::follow(&Sweep::take()?, &info, &*maps.params()?)))?? {
            (_, Some(error)) => Err(error.into()),
            (mut changes, None) => Ok(changes.pop()),
        }
    }

    pub fn attached(&self) -> Result<Vec<String>> {
        Ok(self.run(attach::list)??.into_iter().map(|info| info.iface).collect())
    }

    /// The flow that a data packet belongs to at one of its interfaces.
    pub fn flow(&self, iface: &str, data: &Roce) -> Result<RpFlow> {
        self.find_flow(iface, data)?.with_context(|| format!("no flow of {data:?}"))
    }

    /// As [`Self::flow`], if there is one.
    pub fn find_flow(&self, iface: &str, data: &Roce) -> Result<Option<RpFlow>> {
        let maps = self.attachment(iface)?.maps;
        let address = |host| if data.v6 { classify::words(v6(host)) } else { mapped(v4(host)) };
        let vlan = data.tags.first().map_or(0, |(_, tci)| u32::from(tci & 0xfff));
        let receiver = QpId { addr: address(data.dst), qpn: data.dest_qpn, vlan };
        Ok(maps.rp_find(&*maps.params()?, &FlowId { src: address(data.src), receiver })?)
    }

    pub fn link_rate_bps(&self, iface: &str) -> Result<u64> {
        Ok(self.attachment(iface)?.maps.params()?.config.scalars.link_rate_bps)
    }

    /// Changes parameters, as in `wred.3.kmin=0B`.
    pub fn set(&self, iface: &str, changes: &[&str]) -> Result<()> {
        let changes = assignments(changes)?;
        let apply = |config: &mut Config| -> Result<()> {
            changes.iter().try_for_each(|change| Ok(change.apply(config)?))
        };
        self.run(|| attach::change(iface, apply))??;
        Ok(())
    }

    pub fn count(&self, iface: &str, hook: Hook, stat: Stat) -> Result<u64> {
        Ok(self.counters(iface, hook)?.stat[stat as usize])
    }

    pub fn counters(&self, iface: &str, hook: Hook) -> Result<Counters> {
        Ok(self.attachment(iface)?.maps.counters()?[hook.slot()])
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Pins outlive a namespace.
        match self.run(attach::detach_all) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("{error}"),
            Err(error) => eprintln!("{error}"),
        }
        if let Err(error) = Netns::delete(self.netns.name()) {
            eprintln!("{error}");
        }
    }
}

/// Locks the attachments of the namespace of these journals.
pub fn lock_journals(journals: &Path) -> Result<File> {
    let lock = File::options().append(true).open(journals.join("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// The request to attach with a role and changes of parameters; nothing is paced.
pub fn request(iface: &str, role: Role, changes: &[&str]) -> Result<Request> {
    Ok(Request {
        iface: iface.to_owned(),
        settings: Settings {
            role: Some(role),
            // Tests expect the defaults' values, on slow links too.
            profile: Some(Profile::Paper),
            pacer: Some(PacerChoice::None),
            flows: Some(1_024),
            changes: assignments(changes)?,
            ..Settings::default()
        },
    })
}

fn assignments(changes: &[&str]) -> Result<Vec<Assignment>> {
    changes.iter().map(|change| Ok(change.parse()?)).collect()
}

/// Creates a veth pair, down.
pub fn add_veth(netlink: &Netlink, near: &str, far: &str) -> Result<()> {
    let end = |name| VethEnd { name, netns: None, mac: None };
    Ok(netlink.add_veth(&end(near), &end(far))?)
}

/// Joins an interface of one host to one of another, up, with the Ethernet addresses of hosts `near.2` and `far.2`.
pub fn join(near: (&Host, &str, u8), far: (&Host, &str, u8), mtu: u32) -> Result<()> {
    let near_end = VethEnd { name: near.1, netns: None, mac: Some(mac(near.2)) };
    let far_end = VethEnd { name: far.1, netns: Some(&far.0.netns), mac: Some(mac(far.2)) };
    near.0.netlink()?.add_veth(&near_end, &far_end)?;
    for (host, iface, _) in [near, far] {
        host.netlink()?.set_mtu(host.index(iface)?, mtu)?;
        host.set_up(iface, true)?;
    }
    // The end that comes up first drops packets until the kernel detects its carrier, in a work queue or, on
    // newer kernels, when the state is queried.
    near.0.netlink()?.link(near.1)?;
    Ok(())
}

/// The next datagram that a socket receives.
pub fn datagram(socket: &UdpSocket) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 1 << 16];
    let (len, _) = socket.recv_from(&mut bytes).context("no datagram")?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Host 1 with `a0` and host 2 with `b0`, joined by a wire.
pub struct Pair {
    pub a: Host,
    pub b: Host,
}

impl Pair {
    /// Builds the pair with an MTU of 4200 bytes.
    pub fn new(test: &str) -> Result<Self> {
        Self::with_mtu(test, 4_200)
    }

    pub fn with_mtu(test: &str, mtu: u32) -> Result<Self> {
        let pair = Self { a: Host::new(test, "a")?, b: Host::new(test, "b")? };
        join((&pair.a, "a0", 1), (&pair.b, "b0", 2), mtu)?;
        Ok(pair)
    }

    /// Adds another wire between the two, down.
    pub fn also(&self, near: &str, far: &str) -> Result<()> {
        let near = VethEnd { name: near, netns: None, mac: None };
        let far = VethEnd { name: far, netns: Some(&self.b.netns), mac: None };
        Ok(self.a.netlink()?.add_veth(&near, &far)?)
    }
}
