//! The files of HPCC's simulator: flows, and topologies.
//!
//! A flow file starts with the number of flows; each line is `SRC DST PG DPORT BYTES SECONDS`. A topology file starts
//! with the numbers of nodes, switches and links and the list of switches; each line is `A B RATE DELAY ERROR_RATE`.

use super::Workload;
use crate::network::read::{FileError, words};
use crate::network::topology::{Link, Topology};

/// Start time in the flow files of HPCC's traffic generator: 2 s.
const FIRST_START_NS: u64 = 2_000_000_000;

impl Workload {
    /// Reads a flow file. Each flow has its own QP in `class`; the priority group of the file concerns HPCC's switches
    /// only. If no flow starts before 2 s, as in files of HPCC's traffic generator, these are subtracted.
    ///
    /// # Errors
    /// A line is malformed, or there are fewer lines than announced.
    pub fn hpcc(name: &str, text: &str, class: u8) -> Result<Self, FileError> {
        let mut lines = words(text);
        let count = lines.next().and_then(|(_, words)| words.first()?.parse::<usize>().ok());
        let Some(count) = count else {
            return Err(FileError::new(name, 1, "the first line must be the number of flows"));
        };
        let mut flows = Vec::new();
        for (line, words) in lines.take(count) {
            let flow = match words.as_slice() {
                [src, dst, _group, _port, bytes, start] => {
                    src.parse().ok().zip(dst.parse().ok()).zip(bytes.parse().ok().zip(nanoseconds(start)))
                }
                _ => None,
            };
            let Some(((src, dst), (bytes, start_ns))) = flow else {
                let what = format!(
                    "`{}` is not a flow: write SRC DST PG DPORT BYTES SECONDS, as in `2 1 3 100 200000 2.01`",
                    words.join(" ")
                );
                return Err(FileError::new(name, line, what));
            };
            flows.push((src, dst, bytes, start_ns));
        }
        if flows.len() < count {
            let what = format!("the first line announces {count} flows, but {} follow", flows.len());
            return Err(FileError::new(name, 0, what));
        }
        let first_ns = flows.iter().map(|flow| flow.3).min().unwrap_or(0);
        let origin_ns = if first_ns >= FIRST_START_NS { FIRST_START_NS } else { 0 };
        let mut workload = Self::new();
        for (src, dst, bytes, start_ns) in flows {
            workload.flow(src, dst, class, bytes, start_ns - origin_ns);
        }
        Ok(workload)
    }
}

/// Seconds with a fraction, exactly.
fn nanoseconds(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(digits.parse().ok()?)
}

/// `100Gbps`, `25000000000bps`, `0.001ms`, `1000ns`: a number and the factor of its unit.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    Some((number.parse::<f64>().ok()? * factor).round() as u64)
}

const RATES: &[(&str, f64)] = &[("Gbps", 1e9), ("Mbps", 1e6), ("Kbps", 1e3), ("bps", 1.0)];
const TIMES: &[(&str, f64)] = &[("ms", 1e6), ("us", 1e3), ("ns", 1.0), ("s", 1e9)];

impl Topology {
    /// Reads a topology file. Nonzero error rates are rejected: links are lossless here.
    ///
    /// # Errors
    /// A line is malformed, or the numbers are inconsistent.
    pub fn hpcc(name: &str, text: &str) -> Result<Self, FileError> {
        let lines: Vec<_> = words(text).collect();
        let numbers = |line: usize| -> Option<Vec<u32>> {
            lines.get(line)?.1.iter().map(|word| word.parse().ok()).collect()
        };
        let head = numbers(0).unwrap_or_default();
        let &[nodes, switch_count, link_count] = head.as_slice() else {
            return Err(FileError::new(name, 1, "the first line must be `NODES SWITCHES LINKS`"));
        };
        let switches = numbers(1)
            .filter(|list| list.len() == switch_count as usize && list.iter().all(|&node| node < nodes));
        let Some(switches) = switches else {
            let what = format!("the second line must name the {switch_count} switches, below {nodes}");
            return Err(FileError::new(name, 2, what));
        };
        // Hosts come first in the numbering here; each keeps its name.
        let is_switch = |node: &u32| switches.contains(node);
        let order: Vec<u32> =
            (0..nodes).filter(|node| !is_switch(node)).chain((0..nodes).filter(is_switch)).collect();
        let mut new_index = vec![0; nodes as usize];
        for (new, &old) in (0..).zip(&order) {
            new_index[old as usize] = new;
        }
        let mut links = Vec::new();
        for (line, words) in lines.iter().skip(2).take(link_count as usize) {
            let link = match words.as_slice() {
                [a, b, rate, delay, error] if error.parse() == Ok(0.0) => Some((
                    a.parse::<usize>().ok().and_then(|a| new_index.get(a)),
                    b.parse::<usize>().ok().and_then(|b| new_index.get(b)),
                    quantity(rate, RATES),
                    quantity(delay, TIMES),
                )),
                _ => None,
            };
            let Some((Some(&a), Some(&b), Some(rate_bps), Some(delay_ns))) = link else {
                let what = format!(
                    "`{}` is not a link: write A B RATE DELAY 0, as in `0 320 100Gbps 1000ns 0`",
                    words.join(" ")
                );
                return Err(FileError::new(name, *line, what));
            };
            links.push(Link { a, b, rate_bps, delay_ns });
        }
        if links.len() < link_count as usize {
            return Err(FileError::new(
                name,
                0,
                format!("{link_count} links are announced, but {} follow", links.len()),
            ));
        }
        let names = order.iter().map(|old| format!("node{old}")).collect();
        Ok(Self { hosts: nodes - switch_count, switches: switch_count, links, names })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_generator_files_parsed() {
        let text = "2 \n2 1 3 100 200000 2.000000500\n3 1 3 100 150000 2.5\n9 9 9 9 9 9\n";
        let workload = Workload::hpcc("flow.txt", text, 3).unwrap();
        let read: Vec<_> = workload
            .flows()
            .iter()
            .map(|flow| (workload.ends(flow).unwrap().src, flow.bytes, flow.start_ns))
            .collect();
        assert_eq!(read, [(2, 200_000, 500), (3, 150_000, 500_000_000)]);
        assert_eq!(Workload::hpcc("f", "1\n0 1 3 100 5 0.25\n", 3).unwrap().flows()[0].start_ns, 250_000_000);
        for (text, expected) in [
            ("x", "f:1: the first line must be the number of flows"),
            ("1\n0 1 3\n", "f:2: `0 1 3` is not a flow"),
            ("3\n0 1 3 100 5 0\n", "f: the first line announces 3 flows, but 1 follow"),
        ] {
            assert!(Workload::hpcc("f", text, 3).unwrap_err().to_string().starts_with(expected));
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
            ("2 1 1\n5\n", "t:2: the second line must name the 1 switches"),
            ("2 1 1\n0\n0 1 100Gbps 1us 0.01\n", "t:3: `0 1 100Gbps 1us 0.01` is not a link"),
            ("2 1 2\n0\n0 1 100Gbps 1us 0\n", "t: 2 links are announced, but 1 follow"),
        ] {
            assert!(Topology::hpcc("t", text).unwrap_err().to_string().starts_with(expected), "{text}");
        }
    }
}
