//! PFC transmission: pauses the neighbours of a switch's ingress ports according to their share of an
//! egress queue.
//!
//! The programs count bytes per queue and ingress port, and the kernel reports the queue's depth. A queue
//! is first in, first out. Its backlog is therefore the most recent arrivals, and comparing the counters
//! then and now attributes it to ingress ports.

mod history;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Mutex;
use std::{io, mem};

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Config, PfcConfig, QUEUES_NONE};
use dcqcn_common::pfc::tx::{Limits, PauseAction, PauseState};
use dcqcn_common::wire::eth::EtherType;
use dcqcn_common::wire::pfc::{PfcRepr, QUANTUM_BITS};
use dcqcn_netlink::{Link, Netlink};
use dcqcn_support::sync::lock;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};

use crate::dataplane::Maps;
use crate::{Error, queues};
use history::History;

/// Interval at which the list of ports is updated.
const PORTS_PERIOD_NS: u64 = 1_000_000_000;
/// Maximum number of ports counted separately.
const MAX_PORTS: usize = 64;
/// Stacked interfaces, out of which a PFC frame would reach several neighbours or none.
const STACKED: [&str; 7] = ["bridge", "bond", "team", "vlan", "macvlan", "ipvlan", "vxlan"];

/// PFC transmission state of an egress port.
#[derive(Debug, Default)]
pub struct PfcSender {
    history: History,
    ports: Vec<Port>,
    ports_read_ns: Option<u64>,
    pauses: BTreeMap<(u32, usize), PauseState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PfcPoll {
    /// PFC transmission is not enabled.
    Disabled,
    Sent(usize),
}

impl PfcSender {
    /// Whether [`adopt`](Self::adopt) is due.
    pub fn is_behind(&self, now_ns: u64) -> bool {
        self.ports_read_ns.is_none_or(|read_ns| now_ns.saturating_sub(read_ns) >= PORTS_PERIOD_NS)
    }

    /// Polls the queues of the egress port `ifindex` and sends the PFC frames due at `now_ns`.
    ///
    /// Must be called about once a millisecond. Does not lock the maps during a query.
    pub fn poll<M: Deref<Target = Maps>>(
        &mut self,
        netlink: &Netlink,
        ifindex: u32,
        maps: impl Fn() -> M,
        socket: &PauseSocket,
        now_ns: u64,
    ) -> Result<PfcPoll, Error> {
        let config = maps().params()?.config;
        let enabled_priorities = enabled_priorities(&config);
        if enabled_priorities.is_empty() {
            let sent = self.release(ifindex, socket, now_ns);
            return Ok(if sent == 0 { PfcPoll::Disabled } else { PfcPoll::Sent(sent) });
        }
        // Read depths before counters: a packet that arrives in between counts as queued, which it is. In
        // the other order it would be attributed to an older packet of another port.
        let stats = queues::stats(netlink, ifindex, &config)?;
        let (maps, mut received) = (maps(), BTreeMap::new());
        for ifindex in self.ports.iter().map(|port| port.ifindex).chain([0]) {
            received.extend(maps.ingress_bytes(ifindex)?.map(|received| (ifindex, received)));
        }
        drop(maps);
        let queues = enabled_priorities.iter().fold(0, |queues, (_, of)| queues | 1 << queue_of(of));
        self.history.push(queues, &received);
        let mut sent = 0;
        for (priority, of) in enabled_priorities {
            let queue = queue_of(&of);
            let depth_bytes = stats[queue].map_or(0, |stats| u64::from(stats.backlog_bytes));
            let limits = Limits { xoff_bytes: of.xoff, xon_bytes: of.xon };
            let drain_bps = config.scalars.link_rate_bps;
            let backlog = self.history.backlog(queue, depth_bytes);
            for port in &self.ports {
                let share = backlog.share(port.ifindex);
                let pauses = self.pauses.entry((port.ifindex, priority)).or_default();
                // Do not resume a neighbour while its share is not fully known.
                let is_kept = !share.is_complete && pauses.is_paused();
                let least_bytes = if is_kept { limits.xon_bytes.saturating_add(1) } else { 0 };
                let lasts_ns = port.pause_ns(depth_bytes, drain_bps);
                let bytes = share.bytes.max(least_bytes);
                let send = |until_ns| socket.hold(ifindex, port, priority, until_ns, now_ns);
                sent += usize::from(update(pauses, &limits, bytes, now_ns, lasts_ns, send));
            }
        }
        Ok(PfcPoll::Sent(sent))
    }

    /// Sends XON to every neighbour paused for the egress port `ifindex`.
    ///
    /// Returns the number of frames sent.
    pub fn release(&mut self, ifindex: u32, socket: &PauseSocket, now_ns: u64) -> usize {
        let paused = mem::take(&mut self.pauses).into_iter().filter(|(_, pauses)| pauses.is_paused());
        let resumed = paused.filter(|((ingress, priority), _)| {
            let port = self.ports.iter().find(|port| port.ifindex == *ingress);
            port.is_some_and(|port| socket.hold(ifindex, port, *priority, None, now_ns).is_ok())
        });
        let resumed = resumed.count();
        self.history.clear();
        resumed
    }

    /// Updates the list of ingress ports.
    pub fn adopt(&mut self, ports: Ports, maps: &mut Maps, now_ns: u64) -> Result<(), Error> {
        let Ports(ports) = ports;
        let is_listed = |ifindex: u32| ifindex == 0 || ports.iter().any(|port| port.ifindex == ifindex);
        // Also those of an earlier daemon: the map must not fill up.
        for removed in maps.ingress_ports()?.into_iter().filter(|ifindex| !is_listed(*ifindex)) {
            maps.forget(removed)?;
            self.history.forget(removed);
            self.pauses.retain(|(ifindex, _), _| *ifindex != removed);
        }
        for ifindex in ports.iter().map(|port| port.ifindex).chain([0]) {
            maps.count_separately(ifindex)?;
        }
        self.ports = ports;
        self.ports_read_ns = Some(now_ns);
        Ok(())
    }
}

/// Sends the PFC frame that is due, if any; `send` takes the end of the pause. A frame that cannot be sent is
/// due again at the next poll.
fn update(
    pauses: &mut PauseState,
    limits: &Limits,
    bytes: u64,
    now_ns: u64,
    lasts_ns: u64,
    send: impl FnOnce(Option<u64>) -> io::Result<()>,
) -> bool {
    let before = *pauses;
    let is_sent = match pauses.observe(limits, bytes, now_ns, lasts_ns) {
        Some(PauseAction::Xoff) => send(Some(now_ns.saturating_add(lasts_ns))).is_ok(),
        Some(PauseAction::Xon) => send(None).is_ok(),
        None => return false,
    };
    if !is_sent {
        *pauses = before;
    }
    is_sent
}

/// Ingress ports whose neighbours can be paused.
#[derive(Debug)]
pub struct Ports(Vec<Port>);

impl Ports {
    /// Lists them for the egress port `egress`, if it transmits PFC. Queries each, so the caller should lock nothing.
    ///
    /// A port without its own link speed is assumed to have the egress port's.
    pub fn list(netlink: &Netlink, egress: u32, config: &Config) -> Result<Option<Self>, Error> {
        if enabled_priorities(config).is_empty() {
            return Ok(None);
        }
        let links = netlink.links()?;
        let others = links.iter().filter(|link| link.index != egress && supports_pause(link));
        let mut ports = Vec::new();
        for link in others.take(MAX_PORTS) {
            let own_bps = if link.is_virtual() { None } else { netlink.speed_bps(link.index)? };
            let rate_bps = own_bps.or(Some(config.scalars.link_rate_bps)).filter(|bps| *bps != 0);
            let (Some(mac), Some(rate_bps)) = (link.mac, rate_bps) else { continue };
            ports.push(Port { ifindex: link.index, mac, rate_bps });
        }
        Ok(Some(Self(ports)))
    }
}

fn queue_of(of: &PfcConfig) -> usize {
    usize::try_from(of.queue).unwrap_or(0) % CLASSES
}

/// Whether a PFC frame sent out of this interface reaches exactly one neighbour.
fn supports_pause(link: &Link) -> bool {
    let is_stacked = link.kind.as_deref().is_some_and(|kind| STACKED.contains(&kind));
    link.up && link.is_ethernet() && !is_stacked
}

fn enabled_priorities(config: &Config) -> Vec<(usize, PfcConfig)> {
    let all = config.pfc.into_iter().enumerate();
    all.filter(|(_, of)| of.tx != 0 && config.scalars.queues != QUEUES_NONE).collect()
}

/// Length of a pause, as a multiple of the time to drain the queue; it is repeated while needed.
///
/// Short, because some neighbours do not resume before the pause ends: their departures are scheduled ahead,
/// as fq's are.
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

    #[test]
    fn lost_frame_is_due_again() {
        let limits = Limits { xoff_bytes: 1_000, xon_bytes: 400 };
        let mut pauses = PauseState::default();
        let mut update = |bytes, now_ns, works| {
            let mut end_ns = None;
            let is_sent = update(&mut pauses, &limits, bytes, now_ns, 100, |until_ns| {
                end_ns = Some(until_ns);
                if works { Ok(()) } else { Err(io::ErrorKind::NetworkDown.into()) }
            });
            (end_ns, is_sent)
        };
        assert_eq!(update(2_000, 0, false), (Some(Some(100)), false));
        assert_eq!(update(2_000, 1, true), (Some(Some(101)), true));
        assert_eq!(update(2_000, 2, true), (None, false));
        assert_eq!(update(300, 3, false), (Some(None), false));
        assert_eq!(update(300, 4, true), (Some(None), true));
        assert_eq!(update(300, 5, true), (None, false));
    }

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
