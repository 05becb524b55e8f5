//! PFC transmission: pauses the neighbours of a switch's ingress ports according to their share of an
//! egress queue.
//!
//! The programs count bytes per queue and ingress port, and the kernel reports the queue's depth. A queue
//! is first in, first out. Its backlog is therefore the most recent arrivals, and comparing the counters
//! then and now attributes it to ingress ports.

mod history;
mod socket;

use std::collections::BTreeMap;
use std::mem;

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Config, PfcConfig, QUEUES_NONE};
use dcqcn_common::pfc::tx::{Limits, PauseAction, PauseState};
use dcqcn_netlink::{Link, Netlink};

use crate::dataplane::Maps;
use crate::{Error, queues};
use history::History;
use socket::Port;

pub use socket::PauseSocket;

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

/// Result of [`PfcSender::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PfcPoll {
    /// PFC transmission is not enabled.
    Disabled,
    /// Number of frames sent.
    Sent(usize),
}

impl PfcSender {
    /// Whether [`adopt`](Self::adopt) is due.
    pub fn is_behind(&self, now_ns: u64) -> bool {
        self.ports_read_ns.is_none_or(|read_ns| now_ns.saturating_sub(read_ns) >= PORTS_PERIOD_NS)
    }

    /// Polls the queues of the egress port `ifindex` and sends the PFC frames due at `now_ns`.
    ///
    /// Must be called about once a millisecond.
    ///
    /// # Errors
    /// A query or map read fails; the next call retries.
    pub fn poll(
        &mut self,
        netlink: &Netlink,
        ifindex: u32,
        maps: &Maps,
        socket: &PauseSocket,
        now_ns: u64,
    ) -> Result<PfcPoll, Error> {
        let config = maps.params()?.config;
        let enabled_priorities = enabled_priorities(&config);
        if enabled_priorities.is_empty() {
            let sent = self.release(ifindex, socket, now_ns);
            return Ok(if sent == 0 { PfcPoll::Disabled } else { PfcPoll::Sent(sent) });
        }
        // Read depths before counters: a packet that arrives in between counts as queued, which it is. In
        // the other order it would be attributed to an older packet of another port.
        let stats = queues::stats(netlink, ifindex, &config)?;
        let mut received = BTreeMap::new();
        for ifindex in self.ports.iter().map(|port| port.ifindex).chain([0]) {
            received.extend(maps.ingress_bytes(ifindex)?.map(|received| (ifindex, received)));
        }
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
                let until_ns = match pauses.observe(&limits, share.bytes.max(least_bytes), now_ns, lasts_ns) {
                    Some(PauseAction::Xoff) => Some(now_ns.saturating_add(lasts_ns)),
                    Some(PauseAction::Xon) => None,
                    None => continue,
                };
                // Lost frames are resent; a removed port has no neighbour to notify.
                sent += usize::from(socket.hold(ifindex, port, priority, until_ns, now_ns).is_ok());
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
    ///
    /// # Errors
    /// A map write fails; the next call retries.
    pub fn adopt(&mut self, ports: Ports, maps: &mut Maps, now_ns: u64) -> Result<(), Error> {
        let Ports(ports) = ports;
        self.ports_read_ns = Some(now_ns);
        let is_gone = |ifindex: u32| !ports.iter().any(|port: &Port| port.ifindex == ifindex);
        for removed in self.ports.iter().map(|port| port.ifindex).filter(|ifindex| is_gone(*ifindex)) {
            maps.forget(removed)?;
            self.history.forget(removed);
            self.pauses.retain(|(ifindex, _), _| *ifindex != removed);
        }
        for ifindex in ports.iter().map(|port| port.ifindex).chain([0]) {
            maps.count_separately(ifindex)?;
        }
        self.ports = ports;
        Ok(())
    }
}

/// Ingress ports whose neighbours can be paused.
#[derive(Debug)]
pub struct Ports(Vec<Port>);

impl Ports {
    /// Lists them for the egress port `egress`, if it transmits PFC. Queries each, so the caller should lock nothing.
    ///
    /// A port without its own link speed is assumed to have the egress port's.
    ///
    /// # Errors
    /// A query fails.
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

/// Queue of a priority.
fn queue_of(of: &PfcConfig) -> usize {
    usize::try_from(of.queue).unwrap_or(0) % CLASSES
}

/// Whether a PFC frame sent out of this interface reaches exactly one neighbour.
fn supports_pause(link: &Link) -> bool {
    let is_stacked = link.kind.as_deref().is_some_and(|kind| STACKED.contains(&kind));
    link.up && link.is_ethernet() && !is_stacked
}

/// Priorities for which PFC transmission is enabled.
fn enabled_priorities(config: &Config) -> Vec<(usize, PfcConfig)> {
    let all = config.pfc.into_iter().enumerate();
    all.filter(|(_, of)| of.tx != 0 && config.scalars.queues != QUEUES_NONE).collect()
}
