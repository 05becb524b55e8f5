//! Collectives as flows, each of which waits for the data that it forwards.

use clap::ValueEnum;
use serde::Serialize;

use super::{Round, Wait, Workload};

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// All ranks get the sum of all data: two rounds of a ring.
    AllReduce,
    /// Each rank gets a part of the sum: one round of a ring.
    ReduceScatter,
    /// All ranks get every rank's part: one round of a ring.
    AllGather,
    /// Each rank sends a part to every other rank, concurrently.
    AllToAll,
    /// All ranks get the data of the first: a binomial tree.
    Broadcast,
    /// The first rank gets the sum of all data: a binomial tree.
    Reduce,
    /// The first rank gets a part from each other rank, concurrently.
    Gather,
    /// Each other rank gets a part from the first, concurrently.
    Scatter,
}

impl Collective {
    /// Whether the first rank sends or receives all data.
    pub(crate) const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Flows that each of `ranks`, at least one, sends in a ring.
    const fn steps(self, ranks: u64) -> u64 {
        let others = ranks.saturating_sub(1);
        if matches!(self, Self::AllReduce) { 2 * others } else { others }
    }

    /// Flows of all `ranks` in total.
    const fn sends(self, ranks: u64) -> u64 {
        if self.has_root() { ranks.saturating_sub(1) } else { self.steps(ranks).saturating_mul(ranks) }
    }
}

/// The parent of a rank other than the first in a binomial tree: the rank without its highest bit.
const fn parent(rank: usize) -> usize {
    rank & !(1 << rank.ilog2())
}

impl Workload {
    /// Adds `collective` over `bytes`, divided into as many parts as there are ranks.
    ///
    /// `ready` has, for each rank, the flow (usually a computation there) that it waits for; the result has,
    /// for each, the flow whose delivery completes it. `pairs` stores the QPs between ranks for later
    /// collectives.
    pub(crate) fn collective(
        &mut self,
        collective: Collective,
        bytes: u64,
        ranks: &[u32],
        ready: &[u32],
        pairs: &mut Pairs,
    ) -> Vec<u32> {
        let count = ranks.len();
        if count < 2 {
            return ready.to_vec();
        }
        let part_bytes = bytes.div_ceil(count as u64).max(1);
        let done: Vec<u32> = ranks.iter().map(|&host| self.compute(host, 0)).collect();
        for (&done, &ready) in done.iter().zip(ready) {
            self.after(done, ready, Wait::Delivered);
        }
        self.collectives.push(Round {
            collective,
            bytes,
            ranks: ranks.to_vec(),
            ready: ready.to_vec(),
            done: done.clone(),
        });
        if collective == Collective::AllToAll {
            for distance in 1..count {
                for rank in 0..count {
                    let to = (rank + distance) % count;
                    let flow = self.between(pairs, ranks[rank], ranks[to], part_bytes);
                    self.after(flow, ready[rank], Wait::Delivered);
                    self.after(done[to], flow, Wait::Delivered);
                }
            }
            return done;
        }
        if collective.has_root() {
            let is_tree = matches!(collective, Collective::Broadcast | Collective::Reduce);
            let from_root = matches!(collective, Collective::Broadcast | Collective::Scatter);
            let bytes = if is_tree { bytes.max(1) } else { part_bytes };
            for rank in 1..count {
                let other = if is_tree { parent(rank) } else { 0 };
                let (src, dst) = if from_root { (other, rank) } else { (rank, other) };
                let flow = self.between(pairs, ranks[src], ranks[dst], bytes);
                self.after(flow, ready[src], Wait::Delivered);
                self.after(done[dst], flow, Wait::Delivered);
                // In a tree a rank forwards received data; in the others, the root sends its own.
                if is_tree && src != 0 {
                    self.after(flow, done[src], Wait::Delivered);
                }
            }
            return done;
        }
        let mut before: Vec<u32> = Vec::new();
        for _ in 0..collective.steps(count as u64) {
            let step: Vec<u32> = (0..count)
                .map(|rank| {
                    let flow = self.between(pairs, ranks[rank], ranks[(rank + 1) % count], part_bytes);
                    self.after(flow, ready[rank], Wait::Delivered);
                    if let Some(&received) = before.get((rank + count - 1) % count) {
                        self.after(flow, received, Wait::Delivered);
                    }
                    flow
                })
                .collect();
            before = step;
        }
        for (rank, &last) in before.iter().enumerate() {
            self.after(done[(rank + 1) % count], last, Wait::Delivered);
        }
        done
    }

    /// A flow on the QP between two hosts.
    pub(super) fn between(&mut self, pairs: &mut Pairs, src: u32, dst: u32, bytes: u64) -> u32 {
        let class = pairs.class;
        let qp = *pairs.known.entry((src, dst)).or_insert_with(|| self.pair(src, dst, class));
        self.send(qp, bytes, 0)
    }

    /// Number of flows of [`Workload::collectives`], including those that only wait.
    pub(crate) fn flows_of_collectives(collective: Collective, ranks: u64, times: u32) -> u64 {
        let of_one = collective.sends(ranks).saturating_add(ranks);
        of_one.saturating_mul(times.into()).saturating_add(ranks)
    }

    /// `collective` alone, over all of `ranks`, which are hosts, `times` times in a row.
    pub fn collectives(collective: Collective, ranks: &[u32], bytes: u64, class: u8, times: u32) -> Self {
        let mut workload = Self::new();
        let mut pairs = Pairs::new(class);
        let mut ready: Vec<u32> = ranks.iter().map(|&host| workload.compute(host, 0)).collect();
        for _ in 0..times {
            ready = workload.collective(collective, bytes, ranks, &ready, &mut pairs);
        }
        workload
    }
}

/// QPs between hosts, for reuse.
#[derive(Clone, Debug)]
pub struct Pairs {
    class: u8,
    known: std::collections::HashMap<(u32, u32), u32>,
}

impl Pairs {
    /// Empty; all QPs use `class`.
    pub(crate) fn new(class: u8) -> Self {
        Self { class, known: std::collections::HashMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooted_collectives_send_once_per_rank() {
        for (collective, bytes, ends) in [
            (Collective::Broadcast, 4_000, [(0, 1), (0, 2), (1, 3), (0, 4)]),
            (Collective::Reduce, 4_000, [(1, 0), (2, 0), (3, 1), (4, 0)]),
            (Collective::Gather, 800, [(1, 0), (2, 0), (3, 0), (4, 0)]),
            (Collective::Scatter, 800, [(0, 1), (0, 2), (0, 3), (0, 4)]),
        ] {
            let workload = Workload::collectives(collective, &[0, 1, 2, 3, 4], 4_000, 3, 1);
            assert_eq!(workload.validate(5), Ok(()));
            assert_eq!(workload.flows().len() as u64, Workload::flows_of_collectives(collective, 5, 1));
            let flows = workload.flows().iter().filter(|flow| flow.bytes == bytes);
            let sent: Vec<_> = flows.filter_map(|flow| workload.ends(flow)).map(|p| (p.src, p.dst)).collect();
            assert_eq!(sent, ends, "{collective:?}");
            // A rank forwards after it has received: 1 waits for 0 in a broadcast, and for 3 in a reduction.
            let forwards = workload.edges().len()
                > Workload::collectives(Collective::Gather, &[0, 1, 2, 3, 4], 4_000, 3, 1).edges().len();
            assert_eq!(forwards, matches!(collective, Collective::Broadcast | Collective::Reduce));
        }
    }

    #[test]
    fn collectives_send_their_volume() {
        for (collective, flows, pairs) in [
            (Collective::AllReduce, 4 * 6, 4),
            (Collective::ReduceScatter, 4 * 3, 4),
            (Collective::AllGather, 4 * 3, 4),
            (Collective::AllToAll, 4 * 3, 12),
        ] {
            let workload = Workload::collectives(collective, &[0, 1, 2, 3], 4_000, 3, 2);
            let sent: Vec<_> = workload
                .flows()
                .iter()
                .filter(|flow| workload.ends(flow).is_some_and(|pair| pair.src != pair.dst))
                .collect();
            assert_eq!(sent.len(), 2 * flows, "{collective:?}");
            assert_eq!(workload.flows().len() as u64, Workload::flows_of_collectives(collective, 4, 2));
            assert!(sent.iter().all(|flow| flow.bytes == 1_000));
            assert_eq!(workload.pairs().iter().filter(|pair| pair.src != pair.dst).count(), pairs);
            assert_eq!(workload.validate(4), Ok(()));
        }
    }
}
