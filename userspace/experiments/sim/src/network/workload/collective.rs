//! Collectives: flows of which each waits for the data that it sends on.

use serde::Serialize;

use super::{Round, Wait, Workload};

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// Everybody has the sum of everybody's data: a ring, twice around.
    AllReduce,
    /// Everybody has a part of the sum: a ring, once around.
    ReduceScatter,
    /// Everybody has everybody's part: a ring, once around.
    AllGather,
    /// Everybody sends everybody else a part, all at once.
    AllToAll,
}

impl Collective {
    /// Flows that each of `ranks`, at least one, sends.
    const fn steps(self, ranks: u64) -> u64 {
        let others = ranks.saturating_sub(1);
        match self {
            Self::AllReduce => 2 * others,
            Self::ReduceScatter | Self::AllGather | Self::AllToAll => others,
        }
    }
}

impl Workload {
    /// `collective` over `bytes`, which all ranks together cut into as many parts as there are ranks. `ready` holds for each
    /// rank the flow (usually a computation there) that it waits for; the result for each the flow whose delivery tells
    /// that it is through. `pairs` keeps the queue pairs between ranks from one collective to the next.
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

    /// A flow on the queue pair between two hosts.
    pub(super) fn between(&mut self, pairs: &mut Pairs, src: u32, dst: u32, bytes: u64) -> u32 {
        let class = pairs.class;
        let qp = *pairs.known.entry((src, dst)).or_insert_with(|| self.pair(src, dst, class));
        self.send(qp, bytes, 0)
    }

    /// How many flows [`Workload::collectives`] makes, those that only wait included.
    #[must_use]
    pub(crate) fn flows_of_collectives(collective: Collective, ranks: u64, times: u32) -> u64 {
        let of_one = collective.steps(ranks).saturating_add(1).saturating_mul(ranks);
        of_one.saturating_mul(times.into()).saturating_add(ranks)
    }

    /// `collective` alone, over all of `ranks`, which are hosts, `times` times in a row.
    #[must_use]
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

/// Queue pairs between hosts that are used again.
#[derive(Clone, Debug)]
pub struct Pairs {
    class: u8,
    known: std::collections::HashMap<(u32, u32), u32>,
}

impl Pairs {
    /// None yet; all are of `class`.
    #[must_use]
    pub(crate) fn new(class: u8) -> Self {
        Self { class, known: std::collections::HashMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_send_what_they_must() {
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
