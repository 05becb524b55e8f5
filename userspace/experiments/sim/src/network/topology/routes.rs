//! Routes: the ports of a switch on shortest paths to a host.
//!
//! Hosts behind one switch share their routes, and equal lists of ports are stored once: the table grows with switches,
//! not with hosts.

use std::collections::{HashMap, VecDeque};

use super::{PortSpec, Topology};

/// A host without a switch.
pub(crate) const NO_PORT: u16 = u16::MAX;

#[derive(Debug)]
pub(crate) struct Routes {
    hosts: u32,
    /// Switch (from 0) of every host, and the port there that leads to it.
    switch_of: Vec<u32>,
    port_of: Vec<u16>,
    switches: u32,
    /// By switch and by switch of the destination: range of its ports in `ports`.
    table: Vec<(u32, u16)>,
    ports: Vec<u16>,
}

impl Routes {
    /// Shortest paths by number of links, over the links for which `is_up` holds.
    pub(crate) fn new(topology: &Topology, is_up: &dyn Fn(u32) -> bool) -> Self {
        let all_ports = topology.ports();
        let (hosts, switches) = (topology.hosts, topology.switches);
        let neighbours = |node: u32| {
            let ports = all_ports.get(node as usize).map_or(&[][..], Vec::as_slice);
            (0u16..).zip(ports).filter(|(_, port)| is_up(port.link))
        };
        let uplinks = (0..hosts).map(|host| {
            let up: Option<&PortSpec> = neighbours(host).map(|(_, port)| port).next();
            up.map_or((u32::MAX, NO_PORT), |port| (port.peer - hosts, port.peer_port))
        });
        let (switch_of, port_of): (Vec<u32>, Vec<u16>) = uplinks.unzip();
        let mut routes = Self {
            hosts,
            switch_of,
            port_of,
            switches,
            table: vec![(0, 0); switches as usize * switches as usize],
            ports: Vec::new(),
        };
        let mut known: HashMap<Vec<u16>, u32> = HashMap::new();
        let mut destinations: Vec<u32> =
            routes.switch_of.iter().copied().filter(|&switch| switch != u32::MAX).collect();
        destinations.sort_unstable();
        destinations.dedup();
        for destination in destinations {
            let distances = distances(destination, switches, hosts, &neighbours);
            for switch in 0..switches {
                let Some(own) = distances[switch as usize].filter(|&own| own != 0) else { continue };
                let closer = neighbours(hosts + switch).filter(|(_, port)| {
                    port.peer >= hosts && distances[(port.peer - hosts) as usize] == Some(own - 1)
                });
                let list: Vec<u16> = closer.map(|(number, _)| number).collect();
                let length = list.len() as u16;
                let start = match known.get(&list) {
                    Some(&start) => start,
                    None => {
                        let start = routes.ports.len() as u32;
                        routes.ports.extend(&list);
                        known.insert(list, start);
                        start
                    }
                };
                routes.table[(switch * switches + destination) as usize] = (start, length);
            }
        }
        routes
    }

    /// The ports of `switch` (from 0) that lead to `host`; empty if it is unreachable.
    #[inline]
    pub(crate) fn ports(&self, switch: u32, host: u32) -> &[u16] {
        let destination = self.switch_of[host as usize];
        if destination == switch {
            return std::slice::from_ref(&self.port_of[host as usize]);
        }
        if destination == u32::MAX {
            return &[];
        }
        let (start, length) = self.table[(switch * self.switches + destination) as usize];
        &self.ports[start as usize..start as usize + usize::from(length)]
    }

    pub(crate) fn reaches(&self, from: u32, to: u32) -> bool {
        let (from, to) = (self.switch_of[from as usize], to);
        from != u32::MAX && !self.ports(from, to).is_empty()
    }

    /// One shortest path between two hosts, as the egress ports.
    pub(crate) fn path(&self, ports: &[Vec<PortSpec>], from: u32, to: u32) -> Vec<PortSpec> {
        let mut path = Vec::new();
        let mut node = from;
        while node != to && path.len() <= self.switches as usize + 1 {
            let port = if node < self.hosts {
                Some(0)
            } else {
                self.ports(node - self.hosts, to).first().copied().filter(|&port| port != NO_PORT)
            };
            let spec = port.and_then(|port| ports.get(node as usize)?.get(usize::from(port)));
            let Some(spec) = spec else { return Vec::new() };
            path.push(*spec);
            node = spec.peer;
        }
        path
    }
}

/// Links from every switch to `destination`, by breadth-first search.
fn distances<'a, I: Iterator<Item = (u16, &'a PortSpec)>>(
    destination: u32,
    switches: u32,
    hosts: u32,
    neighbours: &impl Fn(u32) -> I,
) -> Vec<Option<u32>> {
    let mut distances = vec![None; switches as usize];
    distances[destination as usize] = Some(0);
    let mut open = VecDeque::from([(destination, 0)]);
    while let Some((switch, distance)) = open.pop_front() {
        for (_, port) in neighbours(hosts + switch) {
            let Some(next) = port.peer.checked_sub(hosts) else { continue };
            if distances[next as usize].is_none() {
                distances[next as usize] = Some(distance + 1);
                open.push_back((next, distance + 1));
            }
        }
    }
    distances
}

#[cfg(test)]
mod tests {
    use super::super::Cables;
    use super::*;

    const CABLES: Cables =
        Cables { host_rate_bps: 100_000_000_000, switch_rate_bps: 100_000_000_000, delay_ns: 1_000 };

    #[test]
    fn routes_include_all_shortest_paths() {
        let tree = Topology::fat_tree(4, 2, 2, CABLES).unwrap();
        let routes = Routes::new(&tree, &|_| true);
        let all_ports = tree.ports();
        for from in 0..tree.hosts {
            for to in 0..tree.hosts {
                if from == to {
                    continue;
                }
                let links = routes.path(&all_ports, from, to).len();
                let (pod, tor) = (from / 4 == to / 4, from / 2 == to / 2);
                assert_eq!(
                    links,
                    if tor {
                        2
                    } else if pod {
                        4
                    } else {
                        6
                    },
                    "{from} {to}"
                );
            }
        }
        // A ToR has two ways up, an aggregation switch two more: four paths between pods.
        assert_eq!(routes.ports(0, 15).len(), 2);
        assert_eq!(routes.ports(8, 15).len(), 2);
        assert_eq!(routes.ports(8, 0), [0]);
    }

    #[test]
    fn routes_avoid_failed_links() {
        let fabric = Topology::leaf_spine(2, 2, 1, CABLES).unwrap();
        // Links: 0 and 1 are the hosts', 2 and 3 leaf 0's to the spines, 4 and 5 leaf 1's.
        assert_eq!(Routes::new(&fabric, &|_| true).ports(0, 1), [1, 2]);
        assert_eq!(Routes::new(&fabric, &|link| link != 4).ports(0, 1), [2]);
        assert!(!Routes::new(&fabric, &|link| link != 1).reaches(0, 1));
        assert!(Routes::new(&fabric, &|link| link != 4 && link != 3).ports(0, 1).is_empty());
    }
}
