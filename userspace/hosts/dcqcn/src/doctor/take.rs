//! Reads the running machine into a snapshot. Failed readings are recorded, and the others continue.

mod attached;
mod host;
mod links;
mod rdma;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use dcqcn_netlink::Netlink;
use dcqcn_support::causes::one_line;
use dcqcn_support::clock::monotonic_ns;
use nix::sys::socket::{AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, socket};

use super::snapshot::{DEFAULT_RTT_NS, Link, Snapshot, Unread, VERSION};
use super::tunnel;

/// Reads this machine twice, `observe` apart, in the calling thread's network namespace.
pub(crate) fn take(observe: Duration) -> Snapshot {
    let mut notes = Notes::default();
    let started_ns = monotonic_ns();
    let mut snapshot = Snapshot {
        version: VERSION,
        dcqcn: env!("CARGO_PKG_VERSION").into(),
        rtt_ns: DEFAULT_RTT_NS,
        host: host::take(&mut notes),
        ..Snapshot::default()
    };
    let netlink = notes.essential("interfaces", Netlink::connect(), "allow netlink sockets to this process");
    if let Some(netlink) = &netlink {
        snapshot.links = links::take(netlink, &mut notes);
        snapshot.rdma = rdma::take(netlink, &snapshot.links, &mut notes);
        if netlink.has_rdma() {
            snapshot.rdma_elsewhere = rdma::elsewhere();
        }
    }
    let opened = attached::first(netlink.as_ref(), &mut notes);
    let first_read_ns = monotonic_ns();
    let cpu_times = host::cpu_times();
    let silent = |link: &&Link| attached::without_roce(&opened).any(|iface| iface == link.name);
    let mut sampler = Sampler::open(snapshot.links.iter().filter(silent).map(|link| link.index));
    match &netlink {
        Some(netlink) => links::watch(netlink, &mut snapshot.links, sampler.as_mut(), observe),
        None => std::thread::sleep(observe),
    }
    if let Some(sampler) = sampler {
        sampler.finish(&mut snapshot.links);
    }
    snapshot.attachments = attached::second(opened, first_read_ns, &mut notes);
    if let Some(netlink) = &netlink {
        links::second(netlink, &mut snapshot.links);
    }
    rdma::second(&mut snapshot.rdma);
    host::second(&mut snapshot.host, &cpu_times);
    // Includes the time of the readings, by which the rates of the softnet counters are too low.
    snapshot.observed_ns = monotonic_ns().saturating_sub(started_ns).max(observe.as_nanos() as u64);
    snapshot.unread = notes.0;
    snapshot
}

#[derive(Default)]
struct Notes(Vec<Unread>);

impl Notes {
    fn push(&mut self, what: &str, why: &dyn Error, next: &str, essential: bool) {
        let unread = Unread { what: what.into(), why: one_line(why), next: next.into(), essential };
        if !self.0.contains(&unread) {
            self.0.push(unread);
        }
    }

    /// The value of a reading without which the other findings are meaningless; `next` is the fix of a failure.
    fn essential<T, E: Error>(&mut self, what: &str, read: Result<T, E>, next: &str) -> Option<T> {
        read.map_err(|error| self.push(what, &error, next, true)).ok()
    }

    /// The value of another reading.
    fn minor<T, E: Error>(&mut self, what: &str, read: Result<T, E>, next: &str) -> Option<T> {
        read.map_err(|error| self.push(what, &error, next, false)).ok()
    }
}

const AS_ROOT: &str = "run doctor as root";

/// A file with one value.
fn value<T: FromStr>(path: impl AsRef<Path>) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Names in a directory; empty if it does not exist.
fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Last component of a symbolic link's target.
fn target(link: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

/// All files in a directory that contain a number, by name.
fn values(dir: &Path) -> BTreeMap<String, u64> {
    names(dir).into_iter().filter_map(|name| value(dir.join(&name)).map(|value| (name, value))).collect()
}

/// A list of CPUs, as in `0-3,8`, of at most 4096.
fn cpus(list: &str) -> Vec<u32> {
    const MAX_CPUS: usize = 4096;
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    });
    ranges.flatten().take(MAX_CPUS).collect()
}

/// Bytes read of each packet: enough for two stacks of headers.
const SNAPLEN: usize = 256;
/// Packets per read; packets that overflow the socket's buffer in between are not sampled.
const BATCH: u32 = 2_000;

/// A socket that receives copies of packets.
struct Sampler {
    socket: OwnedFd,
    counts: BTreeMap<u32, BTreeMap<&'static str, u64>>,
}

impl Sampler {
    /// Starts sampling these interfaces; `None` without any, or without CAP_NET_RAW.
    fn open(ifindexes: impl Iterator<Item = u32>) -> Option<Self> {
        let counts: BTreeMap<_, _> = ifindexes.map(|ifindex| (ifindex, BTreeMap::new())).collect();
        if counts.is_empty() {
            return None;
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll).ok()?;
        Some(Self { socket, counts })
    }

    /// Reads the packets that have arrived.
    fn read(&mut self) {
        let mut buffer = [0; SNAPLEN];
        for _ in 0..BATCH {
            let Ok((len, from)) = recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut buffer) else { return };
            let ifindex = from.and_then(|from| u32::try_from(from.ifindex()).ok());
            let counts = ifindex.and_then(|ifindex| self.counts.get_mut(&ifindex));
            if let Some(counts) = counts
                && let Some(label) = buffer.get(..len).and_then(tunnel::label)
            {
                *counts.entry(label).or_default() += 1;
            }
        }
    }

    fn finish(self, links: &mut [Link]) {
        for link in links {
            let found = self.counts.get(&link.index).into_iter().flatten();
            link.unread_packets = found.map(|(label, count)| ((*label).to_owned(), *count)).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_parsed() {
        assert_eq!(cpus("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(cpus("5"), [5]);
        for none in ["", "\n", "a-b", "3-", "4-1"] {
            assert_eq!(cpus(none), [] as [u32; 0], "{none}");
        }
        assert_eq!(cpus("0-4294967295").len(), 4096);
    }
}
