//! Topology: hosts, switches, links.
//!
//! A host has one link, to a switch. Nodes are numbered, hosts first; a node's ports are numbered in the order of its links.

mod file;
mod routes;
mod shapes;

pub use file::TOPOLOGY_EXAMPLE;
pub(crate) use routes::{NO_PORT, Routes};

use dcqcn_common::params::{MAX_RATE_BPS, MIN_RATE_BPS, Unit};
use dcqcn_params::quantity::{OutOfRange, in_range};

/// Maximum number of hosts, and of switches.
pub(crate) const MAX_NODES: u32 = 1 << 16;
/// Maximum number of ports of a switch.
const MAX_PORTS: u32 = 4_096;
/// Minimum delay of a link: two metres of fibre. The delays allow nodes to be simulated independently.
pub(crate) const MIN_DELAY_NS: u64 = 10;
/// Maximum delay of a link: 1 s.
pub(crate) const MAX_DELAY_NS: u64 = 1_000_000_000;

/// A fabric: nodes and links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Number of hosts: nodes 0 and on.
    pub hosts: u32,
    /// Number of switches: the nodes after the hosts.
    pub switches: u32,
    /// Links, each in both directions.
    pub links: Vec<Link>,
    /// Names of the nodes, for output.
    pub names: Vec<String>,
}

/// A link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// One end.
    pub a: u32,
    /// The other end.
    pub b: u32,
    /// Rate, each way.
    pub rate_bps: u64,
    /// One-way delay.
    pub delay_ns: u64,
}

/// Rates and delays of links in a regular [`Topology`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cables {
    /// Rate of a host's link.
    pub host_rate_bps: u64,
    /// Rate of a link between switches.
    pub switch_rate_bps: u64,
    /// One-way delay of every link.
    pub delay_ns: u64,
}

/// One end of a link, as seen by its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortSpec {
    /// The link's index.
    pub(crate) link: u32,
    /// Node at the other end, and its port there.
    pub(crate) peer: u32,
    pub(crate) peer_port: u16,
    pub(crate) rate_bps: u64,
    pub(crate) delay_ns: u64,
}

/// Reason why a topology is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    #[error(transparent)]
    Range(#[from] OutOfRange),
    #[error("host {host} has {links} links: a host must have one, to a switch")]
    HostLinks { host: String, links: usize },
    #[error(
        "the link between {a} and {b} connects no switch to another node: one of its ends must be a switch"
    )]
    LinkEnds { a: String, b: String },
    #[error("no path leads from {from} to {to}: connect their switches")]
    Unconnected { from: String, to: String },
}

impl Topology {
    pub(crate) const fn nodes(&self) -> u32 {
        self.hosts + self.switches
    }

    pub fn name(&self, node: u32) -> String {
        self.names.get(node as usize).cloned().unwrap_or_else(|| format!("node{node}"))
    }

    /// The number of the node called `name`.
    pub fn node(&self, name: &str) -> Option<u32> {
        let found = self.names.iter().position(|own| own == name)?;
        u32::try_from(found).ok()
    }

    /// The shortest delay of a link: no action of a node affects another sooner.
    pub(crate) fn lookahead_ns(&self) -> u64 {
        self.links.iter().map(|link| link.delay_ns).min().unwrap_or(MIN_DELAY_NS)
    }

    /// The ports of every node.
    pub(crate) fn ports(&self) -> Vec<Vec<PortSpec>> {
        let mut ports: Vec<Vec<PortSpec>> = vec![Vec::new(); self.nodes() as usize];
        for (number, link) in (0..).zip(&self.links) {
            let [at_a, at_b] = [link.a, link.b].map(|node| ports[node as usize].len() as u16);
            let end = |peer, peer_port| PortSpec {
                link: number,
                peer,
                peer_port,
                rate_bps: link.rate_bps,
                delay_ns: link.delay_ns,
            };
            ports[link.a as usize].push(end(link.b, at_b));
            ports[link.b as usize].push(end(link.a, at_a));
        }
        ports
    }

    /// Checks that it can be simulated.
    ///
    /// # Errors
    /// The first violation, with value and allowed range.
    pub(crate) fn validate(&self) -> Result<(), TopologyError> {
        in_range("number of hosts", self.hosts.into(), 1..=MAX_NODES.into(), Unit::Count)?;
        in_range("number of switches", self.switches.into(), 1..=MAX_NODES.into(), Unit::Count)?;
        let is_switch = |node: u32| (self.hosts..self.nodes()).contains(&node);
        for link in &self.links {
            let ends = [link.a, link.b];
            let exist = ends.iter().all(|&node| node < self.nodes());
            if !exist || link.a == link.b || !ends.iter().any(|&node| is_switch(node)) {
                return Err(TopologyError::LinkEnds { a: self.name(link.a), b: self.name(link.b) });
            }
            let of = |what: &str| format!("{what} of the link {} - {}", self.name(link.a), self.name(link.b));
            in_range(of("rate"), link.rate_bps, MIN_RATE_BPS..=MAX_RATE_BPS, Unit::BitsPerSecond)?;
            in_range(of("delay"), link.delay_ns, MIN_DELAY_NS..=MAX_DELAY_NS, Unit::Nanoseconds)?;
        }
        for (node, ports) in (0..).zip(self.ports()) {
            if is_switch(node) {
                let what = format!("ports of {}", self.name(node));
                in_range(what, ports.len() as u64, 0..=MAX_PORTS.into(), Unit::Count)?;
            } else if ports.len() != 1 {
                return Err(TopologyError::HostLinks { host: self.name(node), links: ports.len() });
            }
        }
        let routes = Routes::new(self, &|_| true);
        // Links are bidirectional: paths from the first host to all others suffice.
        match (1..self.hosts).find(|&host| !routes.reaches(0, host)) {
            Some(host) => Err(TopologyError::Unconnected { from: self.name(0), to: self.name(host) }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CABLES: Cables =
        Cables { host_rate_bps: 100_000_000_000, switch_rate_bps: 400_000_000_000, delay_ns: 1_000 };

    #[test]
    fn invalid_fabric_rejected() {
        let good = Topology::leaf_spine(2, 2, 2, CABLES).unwrap();
        assert_eq!(good.validate(), Ok(()));
        let refused = |change: fn(&mut Topology)| {
            let mut bad = good.clone();
            change(&mut bad);
            bad.validate().unwrap_err().to_string()
        };
        for (change, message_start) in [
            ((|t| t.hosts = 0) as fn(&mut Topology), "number of hosts = 0 is out of range"),
            (
                |t| t.links[0].delay_ns = 9,
                "delay of the link host0 - leaf0 = 9ns is out of range: 10ns to 1s",
            ),
            (|t| t.links[0].rate_bps = 1, "rate of the link host0 - leaf0 = 1bit"),
            (|t| t.links[1].b = 0, "the link between host1 and host0 connects no switch"),
            (|t| t.links.push(t.links[0]), "host host0 has 2 links: a host must have one"),
            (|t| t.links.truncate(4), "no path leads from host0 to host2"),
            (|t| t.links[4].b = 99, "the link between leaf0 and node99"),
        ] {
            let message = refused(change);
            assert!(message.starts_with(message_start), "{message}; expected: {message_start}");
        }
    }
}
