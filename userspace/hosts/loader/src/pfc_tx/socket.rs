//! Sends PFC frames for all egress ports that pause an ingress port's neighbour.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Mutex;

use dcqcn_common::layout::CLASSES;
use dcqcn_common::wire::eth::EtherType;
use dcqcn_common::wire::pfc::{PfcRepr, QUANTUM_BITS};
use dcqcn_support::sync::lock;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};

/// Length of a pause, as a multiple of the time to drain the queue; it is repeated while needed.
///
/// Some neighbours cannot resume before a pause ends, because their departures are planned ahead, as fq's
/// are. With a short pause they are stopped for little longer than necessary.
const DRAINS: u64 = 2;
/// Minimum length of a pause: the maximum delay of a poll.
const MIN_PAUSE_NS: u64 = 10_000_000;
/// Socket priority: the first band of qdiscs that map priorities to bands (pfifo_fast, prio); needs no
/// capability.
const PRIORITY: i32 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) ifindex: u32,
    pub(super) mac: [u8; 6],
    /// Link rate; not 0.
    pub(super) rate_bps: u64,
}

impl Port {
    /// Length of the pause for a queue of `depth_bytes` that drains at `drain_bps`.
    pub(super) fn pause_ns(&self, depth_bytes: u64, drain_bps: u64) -> u64 {
        let drain_ns =
            u128::from(depth_bytes) * 8_000_000_000 * u128::from(DRAINS) / u128::from(drain_bps.max(1));
        let longest_ns = u64::from(u16::MAX) * QUANTUM_BITS * 1_000_000_000 / self.rate_bps;
        u64::try_from(drain_ns).unwrap_or(u64::MAX).max(MIN_PAUSE_NS).min(longest_ns)
    }

    /// Converts a time to quanta of this link, rounded up.
    fn quanta(&self, time_ns: u64) -> u16 {
        let bits = u128::from(time_ns) * u128::from(self.rate_bps);
        u16::try_from(bits.div_ceil(u128::from(QUANTUM_BITS) * 1_000_000_000)).unwrap_or(u16::MAX)
    }
}

/// End of the pauses that each egress port requires, by ingress port and priority.
#[derive(Debug, Default)]
struct Holds(BTreeMap<(u32, usize), BTreeMap<u32, u64>>);

impl Holds {
    /// Stores the end of `egress`'s pause; returns the time for which to pause the neighbour.
    ///
    /// The returned time is the maximum over all egress ports.
    fn set(&mut self, of: (u32, usize), egress: u32, until_ns: Option<u64>, now_ns: u64) -> u64 {
        let ends = self.0.entry(of).or_default();
        ends.retain(|_, until_ns| *until_ns > now_ns);
        match until_ns {
            Some(until_ns) => ends.insert(egress, until_ns),
            None => ends.remove(&egress),
        };
        let longest_ns = ends.values().max().map_or(0, |until_ns| until_ns.saturating_sub(now_ns));
        if ends.is_empty() {
            self.0.remove(&of);
        }
        longest_ns
    }
}

/// Sends PFC frames out of any port of the network namespace in which it was opened.
///
/// Only opening it requires CAP_NET_RAW.
#[derive(Debug)]
pub struct PauseSocket {
    socket: OwnedFd,
    holds: Mutex<Holds>,
}

impl PauseSocket {
    /// Opens the socket.
    ///
    /// # Errors
    /// The process lacks CAP_NET_RAW.
    pub fn open() -> io::Result<Self> {
        // Without a protocol the socket receives nothing.
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::Priority, &PRIORITY)?;
        Ok(Self { socket, holds: Mutex::default() })
    }

    /// Pauses a priority of `port`'s neighbour until `until_ns`, or resumes it, on behalf of `egress`.
    pub(super) fn hold(
        &self,
        egress: u32,
        port: &Port,
        priority: usize,
        until_ns: Option<u64>,
        now_ns: u64,
    ) -> io::Result<()> {
        // Locked while sending, so that frames leave in the order of the updates.
        let mut holds = lock(&self.holds);
        let quanta = port.quanta(holds.set((port.ifindex, priority), egress, until_ns, now_ns));
        self.send(port, priority, quanta)
    }

    /// Sends a pause of `pause` quanta; 0 ends a pause.
    fn send(&self, port: &Port, priority: usize, pause: u16) -> io::Result<()> {
        let mut quanta = [0; CLASSES];
        if let Some(of) = quanta.get_mut(priority) {
            *of = pause;
        }
        let frame = PfcRepr { priorities: 1 << priority, quanta }.frame(port.mac);
        // SAFETY: all zeros is a valid address.
        let mut to: libc::sockaddr_ll = unsafe { mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_protocol = EtherType::MAC_CONTROL.0.to_be();
        to.sll_ifindex = port.ifindex.cast_signed();
        to.sll_halen = 6;
        // SAFETY: both lengths match their buffers, which outlive the call.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn pause_covers_backlog() {
        let port = |rate_bps| Port { ifindex: 1, mac: [0; 6], rate_bps };
        // 100 KB at 20 Mbit/s leave in 40 ms; a quantum is 5.12 us at 100 Mbit/s.
        let slow = port(100_000_000);
        assert_eq!(slow.pause_ns(100_000, 20_000_000), 80 * MS);
        assert_eq!(slow.quanta(80 * MS), 15_625);
        // At least the maximum delay of a poll, at most the maximum of a frame.
        assert_eq!(slow.pause_ns(100, 20_000_000), 10 * MS);
        assert_eq!(slow.quanta(10 * MS), 1_954);
        let fast = port(100_000_000_000);
        assert_eq!(fast.quanta(fast.pause_ns(1 << 40, 1_000_000)), u16::MAX);
        assert_eq!(slow.quanta(slow.pause_ns(1, 0)), 65_535);
        assert_eq!((slow.quanta(0), slow.quanta(u64::MAX)), (0, u16::MAX));
    }

    #[test]
    fn neighbour_paused_until_last_port_ends() {
        let mut holds = Holds::default();
        let of = (3, 3);
        assert_eq!(holds.set(of, 1, Some(80 * MS), 0), 80 * MS);
        // Another port's shorter pause does not end it, nor does ending that one.
        assert_eq!(holds.set(of, 2, Some(20 * MS), 10 * MS), 70 * MS);
        assert_eq!(holds.set(of, 2, None, 12 * MS), 68 * MS);
        // Priorities and neighbours are independent.
        assert_eq!(holds.set((3, 4), 2, None, 12 * MS), 0);
        assert_eq!(holds.set((4, 3), 2, None, 12 * MS), 0);
        // Expired pauses do not count.
        assert_eq!(holds.set(of, 2, Some(95 * MS), 85 * MS), 10 * MS);
        assert_eq!(holds.set(of, 2, None, 90 * MS), 0);
        assert!(holds.0.is_empty());
    }
}
