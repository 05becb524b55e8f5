//! The files of HPCC's simulator: flows, and topologies.
//!
//! Both number nodes, switches included, from 0; a topology keeps these ids in the names of its nodes. A flow
//! file starts with the number of flows; each line is `SRC DST PG DPORT BYTES SECONDS`, without DPORT in ConWeave's
//! files. A topology file starts with the numbers of nodes, switches and links and the list of switches; each line is
//! `A B RATE DELAY ERROR_RATE`. Descendants of that simulator extend the first line.

use std::collections::{BTreeSet, HashMap};

use dcqcn_common::params::Unit;
use dcqcn_params::quantity::in_range;

use super::{MAX_FLOW_BYTES, MAX_FLOWS, Workload};
use crate::network::agenda::MAX_TIME_NS;
use crate::network::read::{FileError, cut, quoted, words};
use crate::network::topology::{Link, MAX_NODES, Topology};

/// Name of a node with an id of these files.
const NODE: &str = "node";
/// Number of a node that is omitted.
const OMITTED: u32 = u32::MAX;
/// Start time in the flow files of HPCC's traffic generator: 2 s.
const FIRST_START_NS: u64 = 2_000_000_000;

impl Workload {
    /// Reads a flow file.
    ///
    /// Each flow has its own QP in `class`; the priority group of the file concerns HPCC's switches only. If
    /// no flow starts before 2 s, as in files of HPCC's traffic generator, these are subtracted. SRC and DST
    /// are ids of nodes if `topology` has such ids, and otherwise numbers of hosts.
    ///
    /// # Errors
    /// A line is malformed, names a node that is not a host, or fewer lines follow than announced.
    pub fn hpcc(name: &str, text: &str, class: u8, topology: &Topology) -> Result<Self, FileError> {
        let ids = topology.node_ids();
        let mut lines = words(text);
        let (line, head) = lines.next().unwrap_or((1, Vec::new()));
        let Some(count) = head.first().and_then(|word| word.parse::<usize>().ok()) else {
            return Err(FileError::new(name, line, "the first line must be the number of flows"));
        };
        if count as u64 > MAX_FLOWS {
            let what = format!("{count} flows are out of range: 1 to {MAX_FLOWS}");
            return Err(FileError::new(name, line, what));
        }
        let (mut flows, mut width) = (Vec::new(), None);
        for (line, words) in lines.by_ref().take(count) {
            let first_width = *width.get_or_insert(words.len());
            let flow = match words.as_slice() {
                _ if words.len() != first_width => None,
                [src, dst, _group, bytes, start] | [src, dst, _group, _, bytes, start] => {
                    src.parse().ok().zip(dst.parse().ok()).zip(bytes.parse().ok().zip(nanoseconds(start)))
                }
                _ => None,
            };
            if is_of_ns3_rdma(&words) {
                let what = format!(
                    "{} has columns of ns3-rdma, SRC DST PG PACKETS START STOP: write SRC DST PG DPORT BYTES SECONDS, with \
                     BYTES = PACKETS * PACKET_PAYLOAD_SIZE of its configuration",
                    quoted(&words)
                );
                return Err(FileError::new(name, line, what));
            }
            let Some(((src, dst), (bytes, start_ns))) = flow else {
                let problem = if words.len() == first_width {
                    "is not a flow".to_owned()
                } else {
                    format!("has {} words, the first flow has {first_width}", words.len())
                };
                let what = format!(
                    "{} {problem}: write SRC DST PG DPORT BYTES SECONDS, as in `2 1 3 100 200000 2.01`, or SRC DST PG \
                     BYTES SECONDS on every line",
                    quoted(&words)
                );
                return Err(FileError::new(name, line, what));
            };
            let refuse = |what: String| FileError::new(name, line, what);
            let host = |id: u32| {
                let Some(ids) = &ids else {
                    let hosts = topology.hosts;
                    let what =
                        || refuse(format!("host {id} does not exist: the fabric has {hosts} hosts, from 0"));
                    return Some(id).filter(|&id| id < hosts).ok_or_else(what);
                };
                let node = ids.get(&id).copied().filter(|&node| node < topology.hosts);
                node.ok_or_else(|| {
                    let found = if ids.contains_key(&id) { "is a switch" } else { "does not exist" };
                    refuse(format!("node {id} {found}: SRC and DST must be hosts of the topology"))
                })
            };
            let (src, dst) = (host(src)?, host(dst)?);
            if src == dst {
                return Err(FileError::new(name, line, "SRC and DST are the same host"));
            }
            if !(1..=MAX_FLOW_BYTES).contains(&bytes) {
                return Err(refuse(format!("{bytes} bytes are out of range: 1 to {MAX_FLOW_BYTES}")));
            }
            flows.push((src, dst, bytes, start_ns, line));
        }
        if flows.len() < count {
            let what = format!("the first line announces {count} flows, but {} follow", flows.len());
            return Err(FileError::new(name, 0, what));
        }
        warn_of_ignored(name, count, "flows", lines.count());
        let first_ns = flows.iter().map(|flow| flow.3).min().unwrap_or(0);
        let origin_ns = if first_ns >= FIRST_START_NS { FIRST_START_NS } else { 0 };
        let mut workload = Self::new();
        for (src, dst, bytes, start_ns, line) in flows {
            let start_ns = start_ns - origin_ns;
            in_range("start", start_ns, 0..=MAX_TIME_NS, Unit::Nanoseconds)
                .map_err(|error| FileError::new(name, line, error.to_string()))?;
            workload.flow(src, dst, class, bytes, start_ns);
        }
        Ok(workload)
    }
}

/// Whether a line has `PACKETS START STOP` of ns3-rdma, older than HPCC's `DPORT BYTES SECONDS`: STOP is later, and
/// START has a fraction or PACKETS is not a port.
fn is_of_ns3_rdma(words: &[&str]) -> bool {
    let [_, _, _, packets, start, stop] = words else { return false };
    let [first, second] = [start, stop].map(|text| text.parse().unwrap_or(f64::NAN));
    let is_port = packets.parse::<u64>().is_ok_and(|port| port <= u16::MAX.into());
    first < second && (start.contains('.') || !is_port)
}

/// Warns of lines after the last one announced, where HPCC's own files have spare lines and prose.
fn warn_of_ignored(name: &str, count: usize, what: &str, ignored: usize) {
    if ignored != 0 {
        tracing::warn!("{name}: {count} {what} read, as announced; {ignored} more lines ignored");
    }
}

/// Seconds with a fraction, exactly, or with an exponent, as Python writes short times; digits beyond nanoseconds are
/// ignored.
fn nanoseconds(text: &str) -> Option<u64> {
    if text.contains(['e', 'E']) {
        let ns = (text.parse::<f64>().ok()? * 1e9).round();
        return (0.0..=u64::MAX as f64).contains(&ns).then_some(ns as u64);
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if ![whole, fraction].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(digits.parse().ok()?)
}

/// A number times the `factor` of its unit, which may be empty.
fn quantity(text: &str, factor: impl Fn(&str) -> Option<f64>) -> Option<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '/');
    let unit = &text[number.len()..];
    let value = (number.parse::<f64>().ok()? * factor(unit)?).round();
    (value >= 0.0).then_some(value as u64)
}

/// A rate of ns-3, such as `100Gbps`, `12.5GB/s` or `25000000000.0`.
fn rate_bps(text: &str) -> Option<u64> {
    quantity(text, |unit| match unit.replace("/s", "ps").as_str() {
        "" | "bps" => Some(1.0),
        "Kbps" | "kbps" => Some(1e3),
        "Mbps" => Some(1e6),
        "Gbps" => Some(1e9),
        "Bps" => Some(8.0),
        "KBps" | "kBps" => Some(8e3),
        "MBps" => Some(8e6),
        "GBps" => Some(8e9),
        _ => None,
    })
}

/// A time of ns-3, such as `1000ns`, `0.001ms` or `0.000001`.
fn time_ns(text: &str) -> Option<u64> {
    quantity(text, |unit| match unit {
        "" | "s" => Some(1e9),
        "ms" => Some(1e6),
        "us" => Some(1e3),
        "ns" => Some(1.0),
        "ps" => Some(1e-3),
        _ => None,
    })
}

/// A link from the words of its line. `new_index` has the index here of each id.
fn link(words: &[&str], new_index: &[u32]) -> Result<Link, String> {
    let [a, b, rate, delay, error] = words else {
        return Err("write A B RATE DELAY 0, as in `0 320 100Gbps 1000ns 0`".to_owned());
    };
    let node = |id: &str| {
        let index = id.parse::<usize>().ok().and_then(|id| new_index.get(id));
        index
            .copied()
            .ok_or_else(|| format!("node {} does not exist; ids are 0 to {}", cut(id), new_index.len() - 1))
    };
    let (a, b) = (node(a)?, node(b)?);
    let rate_bps = rate_bps(rate)
        .ok_or_else(|| format!("{} is not a rate; write `100Gbps` or `12.5GBps`", quoted(&[rate])))?;
    let delay_ns = time_ns(delay)
        .ok_or_else(|| format!("{} is not a delay; write `1us` or `1000ns`", quoted(&[delay])))?;
    if error.parse() != Ok(0.0) {
        return Err(format!("the error rate is {}, not 0; use `--fault` for failing links", cut(error)));
    }
    Ok(Link { a, b, rate_bps, delay_ns })
}

/// Numbers in the first line of a topology file.
struct Header {
    nodes: u32,
    nv_switches: u32,
    switches: u32,
    links: u32,
}

impl Header {
    fn parse(words: &[&str]) -> Result<Self, &'static str> {
        const NONE: &str = "0";
        // First words of htsim's `.topo` files: fat trees, and dragonflies and slim flies of a descendant.
        const HTSIM: [&str; 5] = ["nodes", "tiers", "podsize", "topology", "p"];
        let (nodes, nv_switches, switches, links) = match *words {
            [nodes, switches, links] => (nodes, NONE, switches, links),
            // PowerTCP: with the number of ToRs.
            [nodes, switches, _, links] => (nodes, NONE, switches, links),
            // Reverie: with the rates of both tiers too. The sixth word of SimAI is the name of a GPU.
            [nodes, switches, _, links, _, rate] if rate.starts_with(|c: char| c.is_ascii_digit()) => {
                (nodes, NONE, switches, links)
            }
            [nodes, _, nv_switches, switches, links, _] | [nodes, _, nv_switches, switches, links, _, _] => {
                (nodes, nv_switches, switches, links)
            }
            [word, ..] if HTSIM.contains(&word.to_ascii_lowercase().as_str()) => {
                return Err(
                    "a topology of htsim, which only htsim reads; use `--topology leaf-spine:LEAVESxSPINESxHOSTS` (2 tiers: \
                     Nodes / Radix_Down, Radix_Up and Radix_Down of tier 0), `fat-tree:PODSxTORSxHOSTS` (3 tiers with \
                     Oversubscribed and Bundle 1: Nodes / Podsize, Podsize / Radix_Down, Radix_Down), or a TOML file",
                );
            }
            _ => ("", "", "", ""),
        };
        let number = |text: &str| text.parse().map_err(|_| "the first line must be `NODES SWITCHES LINKS`");
        Ok(Self {
            nodes: number(nodes)?,
            nv_switches: number(nv_switches)?,
            switches: number(switches)?,
            links: number(links)?,
        })
    }
}

impl Topology {
    /// The nodes by their ids in HPCC's files, if every node is called `node` and its id.
    fn node_ids(&self) -> Option<HashMap<u32, u32>> {
        let ids = self.names.iter().map(|name| name.strip_prefix(NODE)?.parse().ok());
        ids.zip(0..).map(|(id, node)| Some((id?, node))).collect()
    }

    /// Reads a topology file. Nonzero error rates are rejected: links are lossless here. NVSwitches and their links are
    /// omitted with a warning: a host has one link.
    ///
    /// # Errors
    /// A line is malformed, or the numbers are inconsistent.
    pub fn hpcc(name: &str, text: &str) -> Result<Self, FileError> {
        let lines: Vec<_> = words(text).collect();
        let (first, head) = lines.first().map_or((1, &[][..]), |(line, words)| (*line, words.as_slice()));
        let Header { nodes, nv_switches, switches: switch_count, links: link_count } =
            Header::parse(head).map_err(|what| FileError::new(name, first, what))?;
        if nodes > 2 * MAX_NODES {
            return Err(FileError::new(name, 1, format!("{nodes} nodes: the limit is {}", 2 * MAX_NODES)));
        }
        if switch_count == 0 {
            let what = "there are no switches; hosts linked to each other are not modelled, connect each to a switch";
            return Err(FileError::new(name, 1, what));
        }
        let listed = u64::from(nv_switches) + u64::from(switch_count);
        let (mut ids, first_link) =
            switch_ids(&lines, listed, nodes).map_err(|what| FileError::new(name, 2, what))?;
        let switches = BTreeSet::from_iter(ids.split_off(nv_switches as usize));
        let omitted = BTreeSet::from_iter(ids);
        if nv_switches != 0 {
            tracing::warn!(
                "{name}: {nv_switches} NVSwitches and their links are omitted: NVLink is not modelled, so traffic within a \
                 server uses the network"
            );
        }
        // Hosts come first in the numbering here; each keeps its name.
        let is_switch = |node: &u32| switches.contains(node);
        let is_host = |node: &u32| !is_switch(node) && !omitted.contains(node);
        let order: Vec<u32> = (0..nodes).filter(is_host).chain((0..nodes).filter(is_switch)).collect();
        let mut new_index = vec![OMITTED; nodes as usize];
        for (new, &old) in (0..).zip(&order) {
            new_index[old as usize] = new;
        }
        let hosts = nodes - switch_count - nv_switches;
        let (mut links, mut linked) = (Vec::new(), BTreeSet::new());
        let mut found = 0;
        for (line, words) in lines.iter().skip(first_link).take(link_count as usize) {
            let link = link(words, &new_index).map_err(|what| {
                FileError::new(name, *line, format!("{} is not a link: {what}", quoted(words)))
            })?;
            found += 1;
            let (a, b) = (link.a, link.b);
            if [a, b].contains(&OMITTED) {
                continue;
            }
            // Hosts come first.
            if a == b {
                let what = format!("node {} is linked to itself", order[a as usize]);
                return Err(FileError::new(name, *line, what));
            }
            for host in [a, b].into_iter().filter(|&node| node < hosts) {
                if !linked.insert(host) {
                    let what = format!(
                        "node {} has a second link, but a host has one, to a switch; of SimAI's shapes generate a single-ToR one, \
                         such as `Spectrum-X`",
                        order[host as usize]
                    );
                    return Err(FileError::new(name, *line, what));
                }
            }
            links.push(link);
        }
        if found < link_count as usize {
            let what = format!("{link_count} links are announced, but {found} follow");
            return Err(FileError::new(name, 0, what));
        }
        warn_of_ignored(name, found, "links", lines.len() - first_link - found);
        let names = order.iter().map(|old| format!("{NODE}{old}")).collect();
        Ok(Self { hosts, switches: switch_count, links, names })
    }
}

/// The ids of NVSwitches and switches, `listed` in all, and the index of the line behind them.
fn switch_ids(lines: &[(usize, Vec<&str>)], listed: u64, nodes: u32) -> Result<(Vec<u32>, usize), String> {
    let mut ids: Vec<u32> = Vec::new();
    let mut next = 1;
    while (ids.len() as u64) < listed
        && let Some((_, words)) = lines.get(next)
    {
        // Anything else ends the list, which is then incomplete.
        let numbers = words.iter().map(|word| word.parse().ok()).collect::<Option<Vec<u32>>>();
        let Some(numbers) = numbers else { break };
        ids.extend(numbers);
        next += 1;
    }
    let distinct = BTreeSet::from_iter(&ids).len() as u64;
    if ids.len() as u64 != listed || distinct != listed || ids.iter().any(|&node| node >= nodes) {
        return Err(format!("the second line must name the {listed} switches, each once, below {nodes}"));
    }
    Ok((ids, next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Cables;

    fn hosts(count: u32) -> Topology {
        let cables = Cables { host_rate_bps: 1_000_000_000, switch_rate_bps: 1_000_000_000, delay_ns: 1_000 };
        Topology::leaf_spine(1, 0, count, cables).unwrap()
    }

    #[test]
    fn flows_use_node_ids_of_topology() {
        // Switch 0 and hosts 1 to 3, as in HPCC's example.
        let star = "4 1 3\n0\n0 1 1Gbps 1us 0\n0 2 1Gbps 1us 0\n0 3 1Gbps 1us 0\n";
        let star = Topology::hpcc("t", star).unwrap();
        let read = |flow: &str| Workload::hpcc("f", &format!("1\n{flow} 3 100 5 0\n"), 3, &star);
        let workload = read("3 1").unwrap();
        let pair = workload.ends(&workload.flows()[0]).unwrap();
        assert_eq!([star.name(pair.src), star.name(pair.dst)], ["node3", "node1"]);
        for (flow, expected) in [("0 1", "f:2: node 0 is a switch"), ("1 4", "f:2: node 4 does not exist")] {
            assert!(read(flow).unwrap_err().to_string().starts_with(expected), "{flow}");
        }
    }

    #[test]
    fn traffic_generator_files_parsed() {
        let text = "2 \n2 1 3 100 200000 2.000000500\n3 1 3 100 150000 2.5\n";
        let workload = Workload::hpcc("flow.txt", text, 3, &hosts(4)).unwrap();
        let read: Vec<_> = workload
            .flows()
            .iter()
            .map(|flow| (workload.ends(flow).unwrap().src, flow.bytes, flow.start_ns))
            .collect();
        assert_eq!(read, [(2, 200_000, 500), (3, 150_000, 500_000_000)]);
        let without_port = text.replace(" 3 100 ", " 3 ");
        assert_eq!(Workload::hpcc("flow.txt", &without_port, 3, &hosts(4)), Ok(workload));
        let early = Workload::hpcc("f", "1\n0 1 3 100 5 0.25\n", 3, &hosts(2)).unwrap();
        assert_eq!(early.flows()[0].start_ns, 250_000_000);
        let exponents =
            Workload::hpcc("f", "2\n0 1 3 100 5 1.5e-05\n0 1 3 100 5 2E0\n", 3, &hosts(2)).unwrap();
        assert_eq!([0, 1].map(|flow: usize| exponents.flows()[flow].start_ns), [15_000, 2_000_000_000]);
        for (text, expected) in [
            ("x", "f:1: the first line must be the number of flows"),
            ("# flows\nx", "f:2: the first line must be the number of flows"),
            ("1\n0 1 3\n", "f:2: `0 1 3` is not a flow: write SRC DST PG DPORT BYTES SECONDS, as in"),
            (
                "2\n0 1 3 100 5 0\n0 1 3 5 2.01\n",
                "f:3: `0 1 3 5 2.01` has 5 words, the first flow has 6: write SRC DST PG DPORT BYTES SECONDS, as in \
                 `2 1 3 100 200000 2.01`, or SRC DST PG BYTES SECONDS on every line",
            ),
            ("3\n0 1 3 100 5 0\n", "f: the first line announces 3 flows, but 1 follow"),
            ("1\n1 1 3 100 5 0\n", "f:2: SRC and DST are the same host"),
            ("1\n0 1 3 100 5 0.+5\n", "f:2: `0 1 3 100 5 0.+5` is not a flow"),
            ("1\n0 1 3 100 5 -1e-3\n", "f:2: `0 1 3 100 5 -1e-3` is not a flow"),
            ("1\n0 1 3 100 5 1e999\n", "f:2: `0 1 3 100 5 1e999` is not a flow"),
            ("1\n0 1 3 100 0 1\n", "f:2: 0 bytes are out of range: 1 to 1000000000000"),
            ("1\n0 2 3 100 5 1\n", "f:2: host 2 does not exist: the fabric has 2 hosts, from 0"),
            ("1\n0 1 3 100 5 +1\n", "f:2: `0 1 3 100 5 +1` is not a flow"),
            ("1\n0 1 3 100 5 0.0000000001x\n", "f:2: `0 1 3 100 5 0.0000000001x` is not a flow"),
            ("1\n0 1 3 100 5 18000000000\n", "f:2: start = 17999999998s is out of range: 0ns to 27"),
            ("2\n0 1 3 100 5 1\n0 1 3 100 5 300\n", "f:3: start = 300s is out of range: 0ns to 27"),
        ] {
            let refused = Workload::hpcc("f", text, 3, &hosts(2)).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }

    #[test]
    fn packets_of_ns3_rdma_not_read_as_port() {
        for line in ["2 1 3 10000000 2.0 9.5", "2 1 3 10000000 2 9", "2 1 3 9000 2.0 9"] {
            let refused = Workload::hpcc("f", &format!("1\n{line}\n"), 3, &hosts(4)).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("f:2: `{line}` has columns of ns3-rdma")), "{refused}");
        }
        // Ports are not checked by HPCC, and a flow may be short.
        for line in ["2 1 3 70000 200000 2.5", "2 1 3 100 1 2"] {
            assert!(Workload::hpcc("f", &format!("1\n{line}\n"), 3, &hosts(4)).is_ok(), "{line}");
        }
    }

    #[test]
    fn lines_after_announced_ones_ignored() {
        let star = Topology::hpcc("t", "2 1 1\n0\n0 1 100Gbps 1us 0\n\n0 66 100Gbps 0.001ms 0\n").unwrap();
        assert_eq!(star.links.len(), 1);
        let text = "1\n0 1 3 100 5 0\n\nFirst line: number of flows\n9 9 9 9 9 9\n";
        assert_eq!(Workload::hpcc("f", text, 3, &hosts(2)).unwrap().flows().len(), 1);
    }

    /// A switch, 4, and two servers of two GPUs each; each server has an NVSwitch, 5 and 6.
    #[test]
    fn extended_first_lines_parsed() {
        let links = "0 4 100Gbps 1us 0\n1 4 100Gbps 1us 0\n2 4 100Gbps 1us 0\n3 4 100Gbps 1us 0\n";
        let plain = Topology::hpcc("t", &format!("5 1 4\n4\n{links}")).unwrap();
        let nv_links = "0 5 2400Gbps 0.000025ms 0\n1 5 2400Gbps 0.000025ms 0\n";
        for text in [
            format!("5 1 1 4\n4\n{links}"),
            format!("5 1 1 4 100000000000 400000000000\n4\n{links}"),
            format!("7 2 2 1 6 A100\n5 6 4 \n{nv_links}{links}"),
            format!("7 2 2 1 6 H100 8\n5 6\n4\n{links}{nv_links}"),
        ] {
            assert_eq!(Topology::hpcc("t", &text), Ok(plain.clone()), "{text}");
        }
        assert_eq!(plain.validate(), Ok(()));
    }

    #[test]
    fn long_words_cut_in_errors() {
        for word in 0..5 {
            let mut words = ["0", "1", "100Gbps", "1us", "0"];
            let long = "9".repeat(9_999) + "x";
            words[word] = &long;
            let refused = Topology::hpcc("t", &format!("2 1 1\n0\n{}\n", words.join(" "))).unwrap_err();
            assert!(refused.to_string().len() < 500, "{refused}");
        }
    }

    #[test]
    fn rates_and_delays_of_ns3_parsed() {
        for (text, expected) in [
            ("25000000000.0", 25_000_000_000),
            ("25000000000", 25_000_000_000),
            ("2.5e10bps", 25_000_000_000),
            ("100Gb/s", 100_000_000_000),
            ("12.5GBps", 100_000_000_000),
            ("12.5GB/s", 100_000_000_000),
            ("100kbps", 100_000),
        ] {
            assert_eq!(rate_bps(text), Some(expected), "{text}");
        }
        for text in ["0.001ms", "1us", "1000ns", "1000000ps", "0.000001", "0.000001s"] {
            assert_eq!(time_ns(text), Some(1_000), "{text}");
        }
        for text in ["100G", "100gbps", "ps", "1ps", "Gbps", "", "x1Gbps"] {
            assert_eq!(rate_bps(text), None, "{text}");
        }
    }

    #[test]
    fn topologies_are_read_with_hosts_first() {
        // Two switches, 0 and 3, with a host each.
        let text = "4 2 3\n0 3\n0 1 100Gbps 0.001ms 0\n3 2 25Gbps 500ns 0.000\n0 3 400Gbps 2us 0\n";
        let topology = Topology::hpcc("t", text).unwrap();
        assert_eq!((topology.hosts, topology.switches, topology.validate()), (2, 2, Ok(())));
        assert_eq!(topology.links[0], Link { a: 2, b: 0, rate_bps: 100_000_000_000, delay_ns: 1_000 });
        assert_eq!((topology.links[1].rate_bps, topology.links[2].delay_ns), (25_000_000_000, 2_000));
        assert_eq!(topology.names, ["node1", "node2", "node0", "node3"]);
        for (text, expected) in [
            ("1 2\n", "t:1: the first line"),
            ("", "t:1: the first line"),
            (
                "# Two tiers\nNodes 16\nTiers 2\n",
                "t:2: a topology of htsim, which only htsim reads; use `--topology leaf",
            ),
            (
                "7 2 2 2 6 H100\n3 4 5 6\n0 3 900Gbps 1us 0\n0 5 200Gbps 1us 0\n0 6 200Gbps 1us 0\n",
                "t:5: node 0 has a second link, but a host has one, to a switch; of SimAI's shapes generate a single",
            ),
            ("p 2\na 4\nh 2\n", "t:1: a topology of htsim"),
            ("topology dragonfly\nhosts_per_router 20\n", "t:1: a topology of htsim"),
            ("2 0 1\n\n0 1 100Gbps 1us 0\n", "t:1: there are no switches; hosts linked to each other"),
            ("2 1 1\n5\n", "t:2: the second line must name the 1 switches"),
            ("1 2 0\n0 0\n", "t:2: the second line must name the 2 switches, each once"),
            ("4000000000 1 0\n0\n", "t:1: 4000000000 nodes: the limit is"),
            (
                "2 1 1\n0\n0 1 100Gbps 1us 0.01\n",
                "t:3: `0 1 100Gbps 1us 0.01` is not a link: the error rate is 0.01",
            ),
            ("2 1 1\n0\n0 1 100G 1us 0\n", "t:3: `0 1 100G 1us 0` is not a link: `100G` is not a rate"),
            ("2 1 1\n0\n0 1 1bps 1h 0\n", "t:3: `0 1 1bps 1h 0` is not a link: `1h` is not a delay"),
            ("2 1 1\n0\n0 1 1bps -1us 0\n", "t:3: `0 1 1bps -1us 0` is not a link: `-1us` is not a delay"),
            ("2 1 1\n0\n0 2 1bps 1us 0\n", "t:3: `0 2 1bps 1us 0` is not a link: node 2 does not exist"),
            ("2 1 1\n0\n0 1 100Gbps 1us\n", "t:3: `0 1 100Gbps 1us` is not a link: write A B RATE"),
            ("2 1 2\n0\n0 1 100Gbps 1us 0\n", "t: 2 links are announced, but 1 follow"),
        ] {
            assert!(Topology::hpcc("t", text).unwrap_err().to_string().starts_with(expected), "{text}");
        }
    }
}
