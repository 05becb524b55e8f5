//! Packet samples of interfaces whose programs have seen no RoCE.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, socket};

use super::super::snapshot::Link;
use super::super::tunnel;

/// Bytes read of each packet: enough for two stacks of headers.
const SNAPLEN: usize = 256;
/// Packets per read; packets that overflow the socket's buffer in between are not sampled.
const BATCH: u32 = 2_000;

/// A socket that receives copies of packets.
pub(super) struct Sampler {
    socket: OwnedFd,
    counts: BTreeMap<u32, BTreeMap<&'static str, u64>>,
}

impl Sampler {
    /// Starts sampling these interfaces; `None` without any, or without CAP_NET_RAW.
    pub(super) fn open(ifindexes: impl Iterator<Item = u32>) -> Option<Self> {
        let counts: BTreeMap<_, _> = ifindexes.map(|ifindex| (ifindex, BTreeMap::new())).collect();
        if counts.is_empty() {
            return None;
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll).ok()?;
        Some(Self { socket, counts })
    }

    /// Reads the packets that have arrived.
    pub(super) fn read(&mut self) {
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

    /// Stores the results.
    pub(super) fn finish(self, links: &mut [Link]) {
        for link in links {
            let found = self.counts.get(&link.index).into_iter().flatten();
            link.unread_packets = found.map(|(label, count)| ((*label).to_owned(), *count)).collect();
        }
    }
}
