//! Topology: hosts, switches, links.
//!
//! A host has one link, to a switch. Nodes are numbered, hosts first; a node's ports are numbered in the
//! order of its links.

mod file;
mod routes;

pub use file::TOPOLOGY_EXAMPLE;
pub(crate) use routes::{NO_PORT, Routes};

use dcqcn_common::params::{MAX_RATE_BPS, MIN_RATE_BPS, Unit};
use dcqcn_params::quantity::{OutOfRange, in_range};

/// Maximum number of hosts, and of switches.
pub(crate) const MAX_NODES: u32 = 1 << 16;
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
    pub names: Vec<String>,
}

/// A link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub a: u32,
    pub b: u32,
    pub rate_bps: u64,
    pub delay_ns: u64,
}

/// Rates and delays of links in a regular [`Topology`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cables {
    pub host_rate_bps: u64,
    pub switch_rate_bps: u64,
    pub delay_ns: u64,
}

/// One end of a link, as seen by its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortSpec {
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
    /// Leaves with hosts, each connected to every spine. A single leaf needs no spine.
    pub(crate) fn leaf_spine(
        leaves: u32,
        spines: u32,
        hosts_per_leaf: u32,
        cables: Cables,
    ) -> Result<Self, TopologyError> {
        let least_spines = u64::from(leaves > 1);
        in_range("leaves", leaves.into(), 1..=MAX_NODES.into(), Unit::Count)?;
        in_range("spines", spines.into(), least_spines..=MAX_NODES.into(), Unit::Count)?;
        in_range("hosts per leaf", hosts_per_leaf.into(), 1..=MAX_NODES.into(), Unit::Count)?;
        let hosts = u64::from(leaves) * u64::from(hosts_per_leaf);
        in_range("number of hosts", hosts, 1..=MAX_NODES.into(), Unit::Count)?;
        let (leaf, spine) = (hosts as u32, hosts as u32 + leaves);
        let trunks = (0..leaves).flat_map(|l| (0..spines).map(move |s| (leaf + l, spine + s)));
        Ok(Self::tiered(hosts_per_leaf, &[("leaf", leaves), ("spine", spines)], trunks, cables))
    }

    /// Three tiers: pods with as many aggregation switches as ToRs, fully connected within the pod.
    ///
    /// An aggregation switch has as many links to cores as a ToR has hosts, so no tier is oversubscribed if
    /// all links have one rate. `k` pods, `k / 2` ToRs and `k / 2` hosts make the `k`-ary fat tree.
    pub(crate) fn fat_tree(
        pods: u32,
        tors_per_pod: u32,
        hosts_per_tor: u32,
        cables: Cables,
    ) -> Result<Self, TopologyError> {
        for (what, value) in
            [("pods", pods), ("ToRs per pod", tors_per_pod), ("hosts per ToR", hosts_per_tor)]
        {
            in_range(what, value.into(), 1..=4_096, Unit::Count)?;
        }
        let cores = u64::from(tors_per_pod) * u64::from(hosts_per_tor);
        let hosts = u64::from(pods) * cores;
        let tors = pods * tors_per_pod;
        in_range("number of hosts", hosts, 1..=MAX_NODES.into(), Unit::Count)?;
        in_range("number of switches", u64::from(tors) * 2 + cores, 1..=MAX_NODES.into(), Unit::Count)?;
        let (tor, agg, core) = (hosts as u32, hosts as u32 + tors, hosts as u32 + 2 * tors);
        let trunks_of_pod = |pod: u32| {
            let (tor, agg) = (tor + pod * tors_per_pod, agg + pod * tors_per_pod);
            let down =
                (0..tors_per_pod).flat_map(move |t| (0..tors_per_pod).map(move |a| (tor + t, agg + a)));
            let up = (0..tors_per_pod)
                .flat_map(move |a| (0..hosts_per_tor).map(move |c| (agg + a, core + a * hosts_per_tor + c)));
            down.chain(up)
        };
        let tiers = [("tor", tors), ("agg", tors), ("core", cores as u32)];
        Ok(Self::tiered(hosts_per_tor, &tiers, (0..pods).flat_map(trunks_of_pod), cables))
    }

    /// Tiers of switches, with hosts at each switch of the first, and links between switches.
    fn tiered(
        hosts_per_switch: u32,
        tiers: &[(&str, u32)],
        trunks: impl Iterator<Item = (u32, u32)>,
        cables: Cables,
    ) -> Self {
        let Cables { host_rate_bps, switch_rate_bps, delay_ns } = cables;
        let link = |rate_bps| move |(a, b)| Link { a, b, rate_bps, delay_ns };
        let hosts = tiers.first().map_or(0, |(_, switches)| switches * hosts_per_switch);
        let host_links = (0..hosts).map(|host| (host, hosts + host / hosts_per_switch));
        let kinds = [("host", hosts)].into_iter().chain(tiers.iter().copied());
        Self {
            hosts,
            switches: tiers.iter().map(|(_, switches)| switches).sum(),
            links: host_links.map(link(host_rate_bps)).chain(trunks.map(link(switch_rate_bps))).collect(),
            names: kinds
                .flat_map(|(kind, count)| (0..count).map(move |number| format!("{kind}{number}")))
                .collect(),
        }
    }

    pub(crate) const fn nodes(&self) -> u32 {
        self.hosts + self.switches
    }

    pub fn name(&self, node: u32) -> String {
        self.names.get(node as usize).cloned().unwrap_or_else(|| format!("node{node}"))
    }

    pub fn node(&self, name: &str) -> Option<u32> {
        let found = self.names.iter().position(|own| own == name)?;
        u32::try_from(found).ok()
    }

    /// The shortest delay of a link: no action of a node affects another sooner.
    pub(crate) fn lookahead_ns(&self) -> u64 {
        self.links.iter().map(|link| link.delay_ns).min().unwrap_or(MIN_DELAY_NS)
    }

    /// Rates of the hosts' links, in any order of the links; 0: a host without a link.
    pub(crate) fn host_rates_bps(&self) -> Vec<u64> {
        let mut rates_bps = vec![0; self.hosts as usize];
        for link in &self.links {
            for end in [link.a, link.b] {
                if let Some(rate_bps) = rates_bps.get_mut(end as usize) {
                    *rate_bps = link.rate_bps;
                }
            }
        }
        rates_bps
    }

    pub(crate) fn ports(&self) -> Vec<Vec<PortSpec>> {
        let mut ports: Vec<Vec<PortSpec>> = vec![Vec::new(); self.nodes() as usize];
        for (number, link) in (0..).zip(&self.links) {
            let [at_a, at_b] = [link.a, link.b].map(|node| ports[node as usize].len() as u16);
            let &Link { rate_bps, delay_ns, .. } = link;
            let end = |peer, peer_port| PortSpec { link: number, peer, peer_port, rate_bps, delay_ns };
            ports[link.a as usize].push(end(link.b, at_b));
            ports[link.b as usize].push(end(link.a, at_a));
        }
        ports
    }

    /// Checks that it can be simulated.
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

    #[test]
    fn shapes_have_their_nodes_and_links() {
        let single = Topology::leaf_spine(1, 0, 5, CABLES).unwrap();
        assert_eq!((single.hosts, single.switches, single.links.len()), (5, 1, 5));
        let two_tiers = Topology::leaf_spine(4, 2, 8, CABLES).unwrap();
        assert_eq!((two_tiers.hosts, two_tiers.switches, two_tiers.links.len()), (32, 6, 40));
        assert_eq!((two_tiers.node("spine1"), two_tiers.node("host31")), (Some(37), Some(31)));
        // The 4-ary fat tree: 16 hosts, 20 switches, 48 links.
        let three_tiers = Topology::fat_tree(4, 2, 2, CABLES).unwrap();
        assert_eq!((three_tiers.hosts, three_tiers.switches, three_tiers.links.len()), (16, 20, 48));
        for shape in [single, two_tiers, three_tiers] {
            assert_eq!(shape.validate(), Ok(()));
            assert_eq!(shape.names.len(), shape.nodes() as usize);
        }
        assert!(Topology::leaf_spine(2, 0, 1, CABLES).is_err());
        assert!(Topology::fat_tree(4_096, 4_096, 4_096, CABLES).is_err());
    }
}
