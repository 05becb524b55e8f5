//! Regular fabrics.

use dcqcn_common::params::Unit;
use dcqcn_params::quantity::in_range;

use super::{Cables, Link, MAX_NODES, Topology, TopologyError};

impl Topology {
    /// Leaves with hosts, each connected to every spine. A single leaf needs no spine.
    ///
    /// # Errors
    /// There are too many nodes, or none.
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
        let mut plan = Plan::new(hosts as u32, cables);
        let leaf = |number| plan_switch(hosts, number);
        let spine = |number| plan_switch(hosts, leaves + number);
        plan.names("leaf", leaves);
        plan.names("spine", spines);
        for host in 0..hosts as u32 {
            plan.add_host_link(host, leaf(host / hosts_per_leaf));
        }
        for l in 0..leaves {
            for s in 0..spines {
                plan.trunk(leaf(l), spine(s));
            }
        }
        Ok(plan.topology(leaves + spines))
    }

    /// Three tiers: pods with as many aggregation switches as ToRs, fully connected within the pod. An aggregation
    /// switch has as many links to cores as a ToR has hosts, so no tier is oversubscribed if all links have one rate.
    /// `k` pods, `k / 2` ToRs and `k / 2` hosts make the `k`-ary fat tree.
    ///
    /// # Errors
    /// There are too many nodes, or none.
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
        let hosts = u64::from(pods) * u64::from(tors_per_pod) * u64::from(hosts_per_tor);
        let cores = u64::from(tors_per_pod) * u64::from(hosts_per_tor);
        let tors = pods * tors_per_pod;
        in_range("number of hosts", hosts, 1..=MAX_NODES.into(), Unit::Count)?;
        in_range("number of switches", u64::from(tors) * 2 + cores, 1..=MAX_NODES.into(), Unit::Count)?;
        let mut plan = Plan::new(hosts as u32, cables);
        let tor = |number| plan_switch(hosts, number);
        let aggregation = |number| plan_switch(hosts, tors + number);
        let core = |number| plan_switch(hosts, 2 * tors + number);
        plan.names("tor", tors);
        plan.names("agg", tors);
        plan.names("core", cores as u32);
        for host in 0..hosts as u32 {
            plan.add_host_link(host, tor(host / hosts_per_tor));
        }
        for pod in 0..pods {
            for t in 0..tors_per_pod {
                for a in 0..tors_per_pod {
                    plan.trunk(tor(pod * tors_per_pod + t), aggregation(pod * tors_per_pod + a));
                }
            }
            for a in 0..tors_per_pod {
                for c in 0..hosts_per_tor {
                    plan.trunk(aggregation(pod * tors_per_pod + a), core(a * hosts_per_tor + c));
                }
            }
        }
        Ok(plan.topology(2 * tors + cores as u32))
    }
}

/// Node number of a switch.
const fn plan_switch(hosts: u64, number: u32) -> u32 {
    hosts as u32 + number
}

/// A topology under construction.
struct Plan {
    hosts: u32,
    cables: Cables,
    links: Vec<Link>,
    names: Vec<String>,
}

impl Plan {
    fn new(hosts: u32, cables: Cables) -> Self {
        let names = (0..hosts).map(|host| format!("host{host}")).collect();
        Self { hosts, cables, links: Vec::new(), names }
    }

    fn names(&mut self, kind: &str, count: u32) {
        self.names.extend((0..count).map(|number| format!("{kind}{number}")));
    }

    fn add_host_link(&mut self, a: u32, b: u32) {
        let Cables { host_rate_bps: rate_bps, delay_ns, .. } = self.cables;
        self.links.push(Link { a, b, rate_bps, delay_ns });
    }

    fn trunk(&mut self, a: u32, b: u32) {
        let Cables { switch_rate_bps: rate_bps, delay_ns, .. } = self.cables;
        self.links.push(Link { a, b, rate_bps, delay_ns });
    }

    fn topology(self, switches: u32) -> Topology {
        Topology { hosts: self.hosts, switches, links: self.links, names: self.names }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CABLES: Cables =
        Cables { host_rate_bps: 100_000_000_000, switch_rate_bps: 100_000_000_000, delay_ns: 1_000 };

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
