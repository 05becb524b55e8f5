//! Asking the neighbours of a switch's ingress ports to wait (PFC), by what of theirs waits in a queue of the egress port.
//!
//! The programs count what comes into each queue by ingress port, and the kernel tells how deep the queue is. A queue is first
//! in, first out: what waits in it is what came last, and so the counts of then and now say whose it is.

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

/// How often it is looked which ports there are.
const PORTS_PERIOD_NS: u64 = 1_000_000_000;
/// Most ports that are distinguished.
const MOST_PORTS: usize = 64;
/// Interfaces on top of others: a frame sent through one reaches everybody behind it, or nobody as PFC.
const STACKED: [&str; 7] = ["bridge", "bond", "team", "vlan", "macvlan", "ipvlan", "vxlan"];

/// What is remembered of an egress port from look to look.
#[derive(Debug, Default)]
pub struct PfcSender {
    history: History,
    ports: Vec<Port>,
    ports_read_ns: Option<u64>,
    asked: BTreeMap<(u32, usize), PauseState>,
}

/// What a look was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PfcPoll {
    /// No priority is to be paused here.
    Unwanted,
    /// Frames that were sent.
    Sent(usize),
}

impl PfcSender {
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
    ) -> Result<PfcPoll, Error> {
        let config = maps.params()?.config;
        let wanted = wanted(&config);
        if wanted.is_empty() {
            let sent = self.give_up(ifindex, socket, now_ns);
            return Ok(if sent == 0 { PfcPoll::Unwanted } else { PfcPoll::Sent(sent) });
        }
        // First how deep the queues are, then what came: a packet in between counts as one that waits, which it does. The other
        // way round it would be taken for one that came long ago, by another port.
        let stats = queues::stats(netlink, ifindex, &config)?;
        let mut came = BTreeMap::new();
        for ifindex in self.ports.iter().map(|port| port.ifindex).chain([0]) {
            came.extend(maps.ingress_bytes(ifindex)?.map(|came| (ifindex, came)));
        }
        self.history.push(&came);
        let mut sent = 0;
        for (priority, of) in wanted {
            let queue = usize::try_from(of.queue).unwrap_or(0) % CLASSES;
            let depth_bytes = stats[queue].map_or(0, |stats| u64::from(stats.backlog_bytes));
            let limits = Limits { xoff_bytes: of.xoff, xon_bytes: of.xon };
            let drain_bps = config.scalars.link_rate_bps;
            for port in &self.ports {
                let share = self.history.share(port.ifindex, queue, depth_bytes);
                let asked = self.asked.entry((port.ifindex, priority)).or_default();
                // Nobody goes on for what is not known.
                let is_kept = !share.is_all && asked.is_paused();
                let least_bytes = if is_kept { limits.xon_bytes.saturating_add(1) } else { 0 };
                let lasts_ns = port.pause_ns(depth_bytes, drain_bps);
                let until_ns = match asked.observe(&limits, share.bytes.max(least_bytes), now_ns, lasts_ns) {
                    Some(PauseAction::Xoff) => Some(now_ns.saturating_add(lasts_ns)),
                    Some(PauseAction::Xon) => None,
                    None => continue,
                };
                // One that is lost is said again, and a port that is gone has nobody to tell.
                sent += usize::from(socket.hold(ifindex, port, priority, until_ns, now_ns).is_ok());
            }
        }
        Ok(PfcPoll::Sent(sent))
    }

    /// Has everybody go on who waits because of the egress port `ifindex`. Returns to how many that was said.
    pub fn give_up(&mut self, ifindex: u32, socket: &PauseSocket, now_ns: u64) -> usize {
        let waiting = mem::take(&mut self.asked).into_iter().filter(|(_, asked)| asked.is_paused());
        let told = waiting.filter(|((ingress, priority), _)| {
            let port = self.ports.iter().find(|port| port.ifindex == *ingress);
            port.is_some_and(|port| socket.hold(ifindex, port, *priority, None, now_ns).is_ok())
        });
        let told = told.count();
        self.history.clear();
        told
    }

    /// Sees which ports there are next to the egress port. A link has its own speed, or else that of the egress port.
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
        let others = links.iter().filter(|link| link.index != egress && can_be_asked(link));
        let mut ports = Vec::new();
        for link in others.take(MOST_PORTS) {
            let own_bps = if link.is_virtual() { None } else { netlink.speed_bps(link.index)? };
            let rate_bps = own_bps.or(Some(link_rate_bps)).filter(|bps| *bps != 0);
            let (Some(mac), Some(rate_bps)) = (link.mac, rate_bps) else { continue };
            ports.push(Port { ifindex: link.index, mac, rate_bps });
        }
        let is_gone = |ifindex: u32| !ports.iter().any(|port: &Port| port.ifindex == ifindex);
        for gone in self.ports.iter().map(|port| port.ifindex).filter(|ifindex| is_gone(*ifindex)) {
            maps.forget(gone)?;
            self.history.forget(gone);
            self.asked.retain(|(ifindex, _), _| *ifindex != gone);
        }
        for ifindex in ports.iter().map(|port| port.ifindex).chain([0]) {
            maps.tell_apart(ifindex)?;
        }
        self.ports = ports;
        Ok(())
    }
}

/// Whether a PFC frame out of this interface reaches one neighbour.
fn can_be_asked(link: &Link) -> bool {
    let is_stacked = link.kind.as_deref().is_some_and(|kind| STACKED.contains(&kind));
    link.up && link.is_ethernet() && !is_stacked
}

/// The priorities that neighbours are asked to wait for.
fn wanted(config: &Config) -> Vec<(usize, PfcConfig)> {
    let all = config.pfc.into_iter().enumerate();
    all.filter(|(_, of)| of.tx != 0 && config.scalars.queues != QUEUES_NONE).collect()
}
