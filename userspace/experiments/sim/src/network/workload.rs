//! Workloads: flows with start times, sizes and dependencies.
//!
//! A flow is one message on a QP. It may wait for others: until they are delivered, as a collective's next step waits
//! for the previous data, or until they are acknowledged, as a sender's next message may. A flow from a host to itself
//! sends nothing: it is a computation, whose duration is its delay.

mod chakra;
mod collective;
mod hpcc;
mod htsim;
mod simai;
mod sizes;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::network::agenda::MAX_INDEX;
pub use crate::network::read::{FileError, text};
pub use collective::{Collective, Pairs};
pub use sizes::{Distribution, Poisson, Sizes};

/// Longest flow: 1 TB.
pub(crate) const MAX_FLOW_BYTES: u64 = 1_000_000_000_000;
/// Maximum number of flows of one simulation, which take some 2 GB.
pub(crate) const MAX_FLOWS: u64 = 16_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// QP on which it is sent; flows of one QP are sent in the order of their starts.
    pub qp: u32,
    pub bytes: u64,
    /// Earliest start.
    pub start_ns: u64,
    /// Time from the earliest start, or from the end of the last flow it waits for, to its start.
    pub delay_ns: u64,
}

/// Data of a source: a flow without a fixed length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) work: Arc<Work>,
    /// When it stops; `None`: never.
    pub(crate) stop_ns: Option<u64>,
}

/// Data of a QP.
///
/// A message ends with its acknowledgement at the sender. For an RDMA READ the responder is the sender: the next
/// request reaches it when an acknowledgement would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    Bulk,
    Once {
        bytes: u64,
    },
    /// A closed loop: a new block is requested when one is complete.
    Blocks {
        bytes: u64,
        outstanding: u32,
    },
    /// An open loop: messages of random length at random times (a Poisson process), in order on the QP.
    Messages {
        /// Lengths, each as likely as its weight.
        sizes: Vec<SizeWeight>,
        /// Mean interval between messages of one flow.
        mean_gap_ns: u64,
    },
}

/// A message length and its frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeWeight {
    pub bytes: u64,
    /// Frequency, relative to the other weights.
    pub weight: u64,
}

/// A queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub src: u32,
    pub dst: u32,
    /// Class of its data, 0 to 7.
    pub class: u8,
    pub(crate) transport: u16,
}

/// When a dependent flow may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wait {
    /// The receiver has all of the flow.
    Delivered,
    /// The sender has the acknowledgement of all of it.
    Acknowledged,
}

/// One flow waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) wait: Wait,
}

/// Flows, their QPs, and their dependencies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    pairs: Vec<Pair>,
    flows: Vec<Flow>,
    edges: Vec<Edge>,
    /// Flows that start after some of those they wait for, and how many.
    quorums: BTreeMap<u32, u32>,
    /// By flow.
    sources: BTreeMap<u32, Source>,
    collectives: Vec<Round>,
}

/// A collective among the flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) collective: Collective,
    pub(crate) bytes: u64,
    /// Hosts, by rank.
    pub(crate) ranks: Vec<u32>,
    /// For each rank, the flow that it waits for, and the one that completes it.
    pub(crate) ready: Vec<u32>,
    pub(crate) done: Vec<u32>,
}

/// Reason why a workload cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    #[error("flow {flow}: host {host} does not exist: the fabric has hosts 0 to {}", hosts - 1)]
    Host { flow: usize, host: u32, hosts: u32 },
    #[error("flow {flow}: {bytes} bytes are out of range: 1 to {MAX_FLOW_BYTES}")]
    Bytes { flow: usize, bytes: u64 },
    #[error("flow {flow}: class {class} is out of range: 0 to 7")]
    Class { flow: usize, class: u8 },
    #[error("host {host}: {count} {what} are out of range: 0 to {MAX_INDEX}; use more hosts or fewer flows")]
    OfHost { host: usize, what: &'static str, count: u32 },
    #[error("{0} flows can never start: they wait for each other in a cycle")]
    Cycle(usize),
    #[error("the workload has no flows")]
    Empty,
}

impl Workload {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a QP and returns its number.
    pub(crate) fn pair(&mut self, src: u32, dst: u32, class: u8) -> u32 {
        self.connect(Pair { src, dst, class, transport: 0 })
    }

    /// Adds this QP and returns its number.
    pub(crate) fn connect(&mut self, pair: Pair) -> u32 {
        self.pairs.push(pair);
        self.pairs.len() as u32 - 1
    }

    /// Adds a source on a QP and returns the number of its flow.
    pub(crate) fn send_from(&mut self, qp: u32, start_ns: u64, source: Source) -> u32 {
        let flow = self.send(qp, 1, start_ns);
        self.sources.insert(flow, source);
        flow
    }

    /// The source of a flow, if it has no fixed length.
    pub(crate) fn source(&self, flow: u32) -> Option<&Source> {
        self.sources.get(&flow)
    }

    /// Adds a flow on a QP and returns its number.
    pub(crate) fn send(&mut self, qp: u32, bytes: u64, start_ns: u64) -> u32 {
        self.flows.push(Flow { qp, bytes, start_ns, delay_ns: 0 });
        self.flows.len() as u32 - 1
    }

    /// Adds a flow on its own QP and returns its number.
    pub(crate) fn flow(&mut self, src: u32, dst: u32, class: u8, bytes: u64, start_ns: u64) -> u32 {
        let qp = self.pair(src, dst, class);
        self.send(qp, bytes, start_ns)
    }

    /// Adds a computation of `delay_ns` at `host` and returns its number.
    pub(crate) fn compute(&mut self, host: u32, delay_ns: u64) -> u32 {
        let flow = self.flow(host, host, 0, 1, 0);
        self.delay(flow, delay_ns);
        flow
    }

    /// Delays `flow` by this much.
    pub(crate) fn delay(&mut self, flow: u32, delay_ns: u64) {
        if let Some(flow) = self.flows.get_mut(flow as usize) {
            flow.delay_ns = delay_ns;
        }
    }

    /// Checks that the workload of the file `name` may have this many `more` flows.
    fn check_room(&self, name: &str, more: u64) -> Result<(), FileError> {
        check_flows(name, (self.flows.len() as u64).saturating_add(more))
    }

    /// Makes `flow` wait for `other`.
    pub(crate) fn after(&mut self, flow: u32, other: u32, wait: Wait) {
        self.edges.push(Edge { from: other, to: flow, wait });
    }

    /// Makes `flow` start after `count` of the flows that it waits for, whichever these are.
    fn after_any(&mut self, flow: u32, count: u32) {
        self.quorums.insert(flow, count);
    }

    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    pub(crate) fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Sender and receiver of a flow; `None`: unknown flow.
    pub(crate) fn ends(&self, flow: &Flow) -> Option<Pair> {
        self.pairs.get(flow.qp as usize).copied()
    }

    /// The collectives, in order of insertion.
    pub(crate) fn rounds(&self) -> &[Round] {
        &self.collectives
    }

    /// Whether a flow leaves its host.
    pub(crate) fn has_traffic(&self) -> bool {
        self.pairs.iter().any(|pair| pair.src != pair.dst)
    }

    /// Number of dependencies.
    pub(crate) fn dependencies(&self) -> u64 {
        self.edges.len() as u64
    }

    /// All dependencies, ordered by the flow waited for.
    pub(crate) fn edges(&self) -> Vec<Edge> {
        let mut edges = self.edges.clone();
        edges.sort_unstable();
        edges.dedup();
        edges
    }

    /// For each flow, the number of its dependencies, which are all in `edges`, that must complete first.
    pub(crate) fn waits(&self, edges: &[Edge]) -> Vec<u32> {
        let mut waits = vec![0; self.flows.len()];
        for edge in edges {
            waits[edge.to as usize] += 1;
        }
        for (&flow, &count) in &self.quorums {
            waits[flow as usize] = count;
        }
        waits
    }

    /// Checks that every flow can be sent in a fabric of `hosts` hosts.
    pub(crate) fn validate(&self, hosts: u32) -> Result<(), WorkloadError> {
        if self.flows.is_empty() {
            return Err(WorkloadError::Empty);
        }
        for (number, flow) in self.flows.iter().enumerate() {
            let pair =
                self.ends(flow).unwrap_or(Pair { src: u32::MAX, dst: u32::MAX, class: 0, transport: 0 });
            if let Some(&host) = [pair.src, pair.dst].iter().find(|&&host| host >= hosts) {
                return Err(WorkloadError::Host { flow: number, host, hosts });
            }
            if !(1..=MAX_FLOW_BYTES).contains(&flow.bytes) {
                return Err(WorkloadError::Bytes { flow: number, bytes: flow.bytes });
            }
            if pair.class > 7 {
                return Err(WorkloadError::Class { flow: number, class: pair.class });
            }
        }
        self.validate_hosts(hosts)?;
        match self.never_started() {
            0 => Ok(()),
            count => Err(WorkloadError::Cycle(count)),
        }
    }

    /// Checks that the events of a host can be numbered.
    fn validate_hosts(&self, hosts: u32) -> Result<(), WorkloadError> {
        let mut counts = vec![[0; 2]; hosts as usize];
        let senders = self.flows.iter().filter_map(|flow| self.ends(flow)).map(|pair| (pair.src, 0));
        for (host, what) in senders.chain(self.pairs.iter().map(|pair| (pair.dst, 1))) {
            if let Some(own) = counts.get_mut(host as usize) {
                own[what] += 1;
            }
        }
        for (host, own) in counts.into_iter().enumerate() {
            for (count, what) in own.into_iter().zip(["sent flows", "receiving QPs"]) {
                if count > MAX_INDEX {
                    return Err(WorkloadError::OfHost { host, what, count });
                }
            }
        }
        Ok(())
    }

    /// Number of flows that never start: those left by a topological sort.
    fn never_started(&self) -> usize {
        let edges = self.edges();
        let mut waiting = self.waits(&edges);
        let mut open: Vec<u32> =
            (0..).zip(&waiting).filter(|(_, left)| **left == 0).map(|(f, _)| f).collect();
        let mut started = 0;
        while let Some(flow) = open.pop() {
            started += 1;
            let first = edges.partition_point(|edge| edge.from < flow);
            for edge in edges[first..].iter().take_while(|edge| edge.from == flow) {
                let left = &mut waiting[edge.to as usize];
                // If it is 0, the flow has started after others.
                if *left == 1 {
                    open.push(edge.to);
                }
                *left = left.saturating_sub(1);
            }
        }
        self.flows.len() - started
    }
}

/// Checks that the workload of the file `name` may have this many flows.
fn check_flows(name: &str, flows: u64) -> Result<(), FileError> {
    if flows <= MAX_FLOWS {
        return Ok(());
    }
    let what = format!("more than {MAX_FLOWS} flows: use fewer ranks, layers or messages");
    Err(FileError::new(name, 0, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_flows_rejected() {
        let mut good = Workload::new();
        let first = good.flow(0, 1, 3, 1_000, 0);
        let second = good.flow(1, 0, 3, 1_000, 0);
        good.after(second, first, Wait::Delivered);
        assert_eq!(good.validate(2), Ok(()));
        let refused = good.validate(1).unwrap_err().to_string();
        assert_eq!(refused, "flow 0: host 1 does not exist: the fabric has hosts 0 to 0");
        let mut cycle = good.clone();
        cycle.after(first, second, Wait::Acknowledged);
        assert_eq!(cycle.validate(2), Err(WorkloadError::Cycle(2)));
        let mut empty = good.clone();
        empty.flow(0, 1, 3, 0, 0);
        assert_eq!(empty.validate(2), Err(WorkloadError::Bytes { flow: 2, bytes: 0 }));
        let mut class = good;
        class.flow(0, 1, 8, 1, 0);
        assert_eq!(class.validate(2), Err(WorkloadError::Class { flow: 2, class: 8 }));
        assert_eq!(Workload::new().validate(2), Err(WorkloadError::Empty));
    }

    #[test]
    fn too_many_flows_of_host_rejected() {
        let mut workload = Workload::new();
        let qp = workload.pair(1, 0, 3);
        (0..MAX_INDEX).for_each(|_| _ = workload.send(qp, 1, 0));
        assert_eq!(workload.validate(2), Ok(()));
        workload.send(qp, 1, 0);
        let refused = workload.validate(2).unwrap_err().to_string();
        let expected =
            "host 1: 4194305 sent flows are out of range: 0 to 4194304; use more hosts or fewer flows";
        assert_eq!(refused, expected);
        let mut workload = Workload::incast(1, 1, 3);
        (0..MAX_INDEX).for_each(|_| _ = workload.pair(1, 0, 3));
        let refused = workload.validate(2).unwrap_err().to_string();
        assert!(refused.starts_with("host 0: 4194305 receiving QPs are out of range"), "{refused}");
    }
}
