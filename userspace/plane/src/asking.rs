//! Asking the neighbours of a switch's ingress ports to wait (PFC), by what of theirs waits in a queue of the egress port.
//!
//! The programs count what comes into each queue by ingress port, and the kernel tells how deep the queue is. A queue is first
//! in, first out: what waits in it is what came last, and so the counts of then and now say whose it is.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};

use dcqcn_common::layout::{CLASSES, Came};
use dcqcn_common::params::{Config, PfcConfig, QUEUES_NONE};
use dcqcn_common::pfc::asking::{Ask, Asked, Limits};
use dcqcn_common::wire::eth::EtherType;
use dcqcn_common::wire::pfc::{PfcRepr, QUANTUM_BITS};
use dcqcn_netlink::Netlink;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::dataplane::Maps;
use crate::{Error, queues};

/// Looks that are remembered: at one a millisecond, what has waited for less than a second.
const HISTORY: usize = 1_000;
/// How often it is looked which ports there are.
const PORTS_PERIOD_NS: u64 = 1_000_000_000;
/// A pause is asked for this many times as long as all that waits needs to leave at the port's rate, and repeated while it is
/// needed. A neighbour that cannot go on before a pause is over (one whose departures are planned ahead, as those of fq are)
/// then stands still for little longer than it has to.
const DRAINS: u64 = 2;
/// And for as long as this at least: so late may a look be.
const LEAST_NS: u64 = 10_000_000;
/// Most ports that are told apart.
const MOST_PORTS: usize = 64;

/// Sends PFC frames out of any port of the network namespace in which it was opened. That takes CAP_NET_RAW when it is opened,
/// and nothing afterwards.
#[derive(Debug)]
pub struct PauseSocket(OwnedFd);

impl PauseSocket {
    /// Opens it.
    ///
    /// # Errors
    /// The process lacks CAP_NET_RAW.
    pub fn open() -> io::Result<Self> {
        // Without a protocol it receives nothing.
        Ok(Self(socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?))
    }

    /// `of_pause` is how long it is to last, quanta; 0 ends one.
    fn send(&self, port: &Port, priority: usize, of_pause: u16) -> io::Result<()> {
        let mut quanta = [0; CLASSES];
        if let Some(of) = quanta.get_mut(priority) {
            *of = of_pause;
        }
        let frame = PfcRepr { priorities: 1 << priority, quanta }.frame(port.mac);
        // SAFETY: all zeros is a valid address.
        let mut to: libc::sockaddr_ll = unsafe { mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_protocol = EtherType::MAC_CONTROL.0.to_be();
        to.sll_ifindex = port.ifindex.cast_signed();
        to.sll_halen = 6;
        // SAFETY: both lengths are those of what the pointers are to, which lives until the call returns.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
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

/// An ingress port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Port {
    ifindex: u32,
    mac: [u8; 6],
    /// Of its link; not 0.
    rate_bps: u64,
}

impl Port {
    /// The pause for a queue that has `depth_bytes` and leaves at `drain_bps`: quanta, and how long they last on this link.
    fn pause(&self, depth_bytes: u64, drain_bps: u64) -> (u16, u64) {
        let quantum_ns = |quanta: u64| quanta * QUANTUM_BITS * 1_000_000_000 / self.rate_bps;
        let drain_ns =
            u128::from(depth_bytes) * 8_000_000_000 * u128::from(DRAINS) / u128::from(drain_bps.max(1));
        let wanted_ns = u64::try_from(drain_ns).unwrap_or(u64::MAX).max(LEAST_NS);
        let quanta =
            u128::from(wanted_ns) * u128::from(self.rate_bps) / (u128::from(QUANTUM_BITS) * 1_000_000_000);
        let quanta = u16::try_from(quanta).unwrap_or(u16::MAX).max(1);
        (quanta, quantum_ns(quanta.into()))
    }
}

/// What came by each port up to one look.
#[derive(Clone, Debug, Default)]
struct Look(BTreeMap<u32, Came>);

impl Look {
    fn of(&self, ifindex: u32, queue: usize) -> u64 {
        self.0.get(&ifindex).and_then(|came| came.get(queue)).copied().unwrap_or(0)
    }

    fn total(&self, queue: usize) -> u64 {
        self.0.values().filter_map(|came| came.get(queue)).sum()
    }
}

/// The looks so far, the last at the back.
#[derive(Debug, Default)]
struct History(VecDeque<Look>);

impl History {
    fn push(&mut self, look: Look) {
        if self.0.len() == HISTORY {
            self.0.pop_front();
        }
        self.0.push_back(look);
    }

    /// What of a queue's `depth_bytes` came by a port: as much as came by it since so much less had come in all.
    fn share(&self, ifindex: u32, queue: usize, depth_bytes: u64) -> u64 {
        let Some(last) = self.0.back() else { return 0 };
        let then = last.total(queue).saturating_sub(depth_bytes);
        let mut after = last;
        for look in self.0.iter().rev() {
            let (low, high) = (look.total(queue), after.total(queue));
            if low <= then {
                let came = after.of(ifindex, queue).saturating_sub(look.of(ifindex, queue));
                // Between two looks all came alike.
                let late =
                    u128::from(came) * u128::from(then - low) / u128::from(high.saturating_sub(low).max(1));
                let by_then = look.of(ifindex, queue) + u64::try_from(late).unwrap_or(came);
                return last.of(ifindex, queue).saturating_sub(by_then);
            }
            after = look;
        }
        // What has waited for longer than is remembered is everybody's and nobody's.
        last.of(ifindex, queue).saturating_sub(after.of(ifindex, queue))
    }
}

/// What is remembered of an egress port from look to look.
#[derive(Debug, Default)]
pub struct Asker {
    history: History,
    ports: Vec<Port>,
    ports_read_ns: Option<u64>,
    asked: BTreeMap<(u32, usize), Asked>,
}

/// What a look was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// No priority is to be paused here.
    Unwanted,
    /// Frames that were sent.
    Sent(usize),
}

impl Asker {
    /// Whether it is time to [`follow`](Self::follow).
    #[must_use]
    pub fn is_behind(&self, now_ns: u64) -> bool {
        self.ports_read_ns.is_none_or(|read_ns| now_ns.saturating_sub(read_ns) >= PORTS_PERIOD_NS)
    }

    /// Looks at the queues of the egress port `ifindex`, and tells the neighbours of the others what is due at `now_ns`. To be
    /// called about once a millisecond.
    ///
    /// # Errors
    /// The kernel refuses something; the next call tries again.
    pub fn look(
        &mut self,
        netlink: &Netlink,
        ifindex: u32,
        maps: &Maps,
        socket: &PauseSocket,
        now_ns: u64,
    ) -> Result<Looked, Error> {
        let config = maps.params()?.config;
        let wanted = wanted(&config);
        if wanted.is_empty() {
            let sent = self.give_up(socket);
            return Ok(if sent == 0 { Looked::Unwanted } else { Looked::Sent(sent) });
        }
        // First how deep the queues are, then what came: a packet in between counts as one that waits, which it does. The other
        // way round it would be taken for one that came long ago, by another port.
        let stats = queues::stats(netlink, ifindex, &config)?;
        let mut look = Look::default();
        for ifindex in self.ports.iter().map(|port| port.ifindex).chain([0]) {
            look.0.extend(maps.came(ifindex)?.map(|came| (ifindex, came)));
        }
        self.history.push(look);
        let mut sent = 0;
        for (priority, of) in wanted {
            let queue = usize::try_from(of.queue).unwrap_or(0) % CLASSES;
            let depth_bytes = stats[queue].map_or(0, |stats| u64::from(stats.backlog_bytes));
            let limits = Limits { xoff_bytes: of.xoff, xon_bytes: of.xon };
            let drain_bps = config.scalars.link_rate_bps;
            for port in &self.ports {
                let share_bytes = self.history.share(port.ifindex, queue, depth_bytes);
                let asked = self.asked.entry((port.ifindex, priority)).or_default();
                let (quanta, lasts_ns) = port.pause(depth_bytes, drain_bps);
                let of_pause = match asked.look(&limits, share_bytes, now_ns, lasts_ns) {
                    Some(Ask::Wait) => quanta,
                    Some(Ask::GoOn) => 0,
                    None => continue,
                };
                // One that is lost is said again, and a port that is gone has nobody to tell.
                sent += usize::from(socket.send(port, priority, of_pause).is_ok());
            }
        }
        Ok(Looked::Sent(sent))
    }

    /// Has everybody go on who waits. Returns to how many that was said.
    pub fn give_up(&mut self, socket: &PauseSocket) -> usize {
        let waiting = mem::take(&mut self.asked).into_iter().filter(|(_, asked)| asked.is_waiting());
        let told = waiting.filter(|((ifindex, priority), _)| {
            let port = self.ports.iter().find(|port| port.ifindex == *ifindex);
            port.is_some_and(|port| socket.send(port, *priority, 0).is_ok())
        });
        let told = told.count();
        self.history.0.clear();
        told
    }

    /// Sees which ports there are beside the egress port. A link has its own speed, or else that of the egress port.
    ///
    /// # Errors
    /// The kernel refuses something; the next call tries again.
    pub fn follow(
        &mut self,
        netlink: &Netlink,
        egress: u32,
        maps: &mut Maps,
        now_ns: u64,
    ) -> Result<(), Error> {
        let config = maps.params()?.config;
        if wanted(&config).is_empty() {
            return Ok(());
        }
        self.ports_read_ns = Some(now_ns);
        let link_rate_bps = config.scalars.link_rate_bps;
        let links = netlink.links()?;
        let others = links.iter().filter(|link| link.index != egress && link.up && link.is_ethernet());
        let mut ports = Vec::new();
        for link in others.take(MOST_PORTS) {
            let own_bps = if link.is_virtual() { None } else { netlink.speed_bps(link.index)? };
            let rate_bps = own_bps.or(Some(link_rate_bps)).filter(|bps| *bps != 0);
            let (Some(mac), Some(rate_bps)) = (link.mac, rate_bps) else { continue };
            ports.push(Port { ifindex: link.index, mac, rate_bps });
        }
        for ifindex in ports.iter().map(|port| port.ifindex).chain([0]) {
            maps.tell_apart(ifindex)?;
        }
        if ports != self.ports {
            // Looks that lack one would have all of its bytes come at once.
            self.history.0.clear();
            self.ports = ports;
        }
        Ok(())
    }
}

/// The priorities that neighbours are asked to wait for.
fn wanted(config: &Config) -> Vec<(usize, PfcConfig)> {
    let all = config.pfc.into_iter().enumerate();
    all.filter(|(_, of)| of.tx != 0 && config.scalars.queues != QUEUES_NONE).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_waits_is_what_came_last() {
        let mut history = History::default();
        assert_eq!(history.share(1, 3, 100), 0);
        let look = |one: u64, two: u64| {
            let came = |bytes| {
                let mut came = Came::default();
                came[3] = bytes;
                came
            };
            Look(BTreeMap::from([(1, came(one)), (2, came(two))]))
        };
        history.push(look(1_000, 1_000));
        history.push(look(1_000, 4_000));
        history.push(look(1_500, 4_500));
        // The last 1000 bytes are half of each, the 3000 before them the second's.
        assert_eq!((history.share(1, 3, 1_000), history.share(2, 3, 1_000)), (500, 500));
        assert_eq!((history.share(1, 3, 2_000), history.share(2, 3, 2_000)), (500, 1_500));
        assert_eq!((history.share(1, 3, 4_000), history.share(2, 3, 4_000)), (500, 3_500));
        // More than is remembered.
        assert_eq!((history.share(1, 3, 9_000), history.share(2, 3, 9_000)), (500, 3_500));
        assert_eq!((history.share(1, 0, 9_000), history.share(3, 3, 9_000)), (0, 0));
    }

    #[test]
    fn a_pause_is_as_long_as_what_waits_needs() {
        let port = |rate_bps| Port { ifindex: 1, mac: [0; 6], rate_bps };
        // 100 KB at 20 Mb/s leave in 40 ms; a quantum is 5.12 us at 100 Mb/s.
        assert_eq!(port(100_000_000).pause(100_000, 20_000_000), (15_625, 80_000_000));
        // No shorter than a look may be late, and no longer than a frame can say.
        assert_eq!(port(100_000_000).pause(100, 20_000_000).1.div_ceil(10_000), 1_000);
        assert_eq!(port(100_000_000_000).pause(1 << 40, 1_000_000).0, u16::MAX);
        assert_eq!(port(100_000_000).pause(1, 0).0, u16::MAX);
    }

    proptest! {
        /// A queue of single bytes, each with the port it came by.
        #[test]
        fn shares_are_those_of_a_real_queue(
            steps in prop::collection::vec((0u64..50, 0u64..50, 0usize..120), 1..60),
        ) {
            let mut history = History::default();
            let mut queue: VecDeque<u32> = VecDeque::new();
            let mut totals = [0_u64; 2];
            history.push(Look::default());
            for (one, two, leave) in steps {
                // In turns while both have some, as far as whole looks go.
                queue.extend(std::iter::repeat_n(1, one as usize).chain(std::iter::repeat_n(2, two as usize)));
                totals = [totals[0] + one, totals[1] + two];
                queue.drain(..leave.min(queue.len()));
                let mut came = [Came::default(); 2];
                (came[0][3], came[1][3]) = (totals[0], totals[1]);
                history.push(Look(BTreeMap::from([(1, came[0]), (2, came[1])])));
                let waits = |port| queue.iter().filter(|of| **of == port).count() as u64;
                let depth = queue.len() as u64;
                let shares = [history.share(1, 3, depth), history.share(2, 3, depth)];
                // Exact but for what came between two looks, of which the order is not known.
                prop_assert!(shares[0].abs_diff(waits(1)) <= 50 && shares[1].abs_diff(waits(2)) <= 50);
                prop_assert!((shares[0] + shares[1]).abs_diff(depth) <= 1);
            }
        }
    }
}
