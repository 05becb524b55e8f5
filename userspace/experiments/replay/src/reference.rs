//! The reference engine: `dcqcn-common` over plain memory.

use dcqcn_common::flow::{NpSet, QpId, RpSet};
use dcqcn_common::hooks;
use dcqcn_common::hooks::memory::{Memory, Packet, PacketContext, PacketOutcome};
use dcqcn_common::layout::{Backlog, Counters, Pair, Time};
use dcqcn_common::params::Params;
use dcqcn_common::pfc::Storms;
use dcqcn_common::stats::Stat;
use dcqcn_loader::dataplane::{self, Sizes};
use dcqcn_loader::events::Log;

use super::{Engine, Error, Hook, Meta, Outcome, Run, State};

/// The hooks over plain memory. It has one attachment, no daemon and no HTB pacer, and its clock does not lag.
pub struct Reference {
    params: Box<Params>,
    memory: Memory,
    counters: [Counters; 3],
    events: Log,
}

impl Reference {
    /// Empty tables of `sizes`, and a random sequence seeded with `seed`.
    pub fn new(sizes: Sizes, params: &Params, seed: u64) -> Self {
        let memory = Memory { random: seed, ..Memory::new(sizes.rp_sets(), sizes.np_sets()) };
        Self { params: Box::new(*params), memory, counters: [Counters::ZERO; 3], events: Log::in_memory() }
    }
}

impl Engine for Reference {
    fn run(&mut self, hook: Hook, now_ns: u64, packet: &[u8], meta: &Meta) -> Result<Run, Error> {
        let is_xdp = hook == Hook::Xdp;
        let &Meta { ingress_ifindex, segment_bytes, .. } = meta;
        // XDP changes only the bytes.
        let Meta { mark, priority, departure_ns, .. } = if is_xdp { Meta::default() } else { *meta };
        let context = PacketContext {
            ingress_ifindex,
            segment_bytes,
            mark,
            priority,
            departure_ns,
            ..PacketContext::default()
        };
        let counters = &mut self.counters[hook.slot()];
        let memory = &mut self.memory;
        memory.now_ns = now_ns;
        memory.is_inline = self.params.port.ifindex[1] != 0;
        std::mem::swap(&mut memory.counters, counters);
        let mut host = Packet::new(memory, Some(&self.params), packet, context);
        let verdict = match hook {
            Hook::Xdp => hooks::xdp(&mut host).into(),
            Hook::Ingress => hooks::ingress(&mut host).into(),
            Hook::Egress => hooks::egress(&mut host).into(),
        };
        let PacketOutcome { bytes, mark, priority: own, departure_ns: departs, hash, clone_mark, .. } =
            host.into_outcome();
        std::mem::swap(&mut memory.counters, counters);
        for (interval_ns, event) in memory.events.drain(..) {
            if !self.events.record(interval_ns, event) {
                counters.stat[Stat::EventLost as usize] += 1;
            }
        }
        memory.announced_requesters.clear();
        memory.ingress_bytes.clear();
        memory.cuts.clear();
        let outcome = Outcome {
            verdict,
            packet: bytes,
            mark,
            priority: own.unwrap_or(priority),
            departure_ns: departs.unwrap_or(departure_ns),
            emitted: Vec::new(),
        };
        Ok(Run { outcome, clone_mark: clone_mark.unwrap_or(0), flow_hash: hash.unwrap_or(0) })
    }

    fn set_params(&mut self, params: &Params) -> Result<(), Error> {
        *self.params = *params;
        Ok(())
    }

    fn set_pair(&mut self, id: &QpId, pair: &Pair) -> Result<(), Error> {
        self.memory.pairs.insert(*id, *pair);
        Ok(())
    }

    fn set_backlog(&mut self, index: u32, backlog: &Backlog) -> Result<(), Error> {
        let slot = self.memory.backlogs.get_mut(index as usize);
        *slot.ok_or(dataplane::Error::Missing("BACKLOG"))? = *backlog;
        Ok(())
    }

    fn set_storms(&mut self, storms: Storms, now_ns: u64) -> Result<(), Error> {
        self.memory.times_ns[Time::STORMS.index()] = storms.word(now_ns);
        Ok(())
    }

    fn set_host_congested_until(&mut self, until_ns: u64) -> Result<(), Error> {
        self.memory.times_ns[Time::HOST_CONGESTED_UNTIL.index()] = until_ns;
        Ok(())
    }

    fn pair(&self, id: &QpId) -> Result<Option<Pair>, Error> {
        Ok(self.memory.pairs.get(id).copied())
    }

    fn queue(&self, index: u32) -> Result<u64, Error> {
        self.memory.queues.get(index as usize).copied().ok_or(dataplane::Error::Missing("QUEUE").into())
    }

    fn rp_set(&self, index: u32) -> Result<RpSet, Error> {
        self.memory.rp.get(index as usize).copied().ok_or(dataplane::Error::Missing("RP").into())
    }

    fn np_set(&self, index: u32) -> Result<NpSet, Error> {
        self.memory.np.get(index as usize).copied().ok_or(dataplane::Error::Missing("NP").into())
    }

    fn counters(&self) -> Result<[Counters; 3], Error> {
        Ok(self.counters)
    }

    fn state(&self) -> Result<State, Error> {
        let memory = &self.memory;
        let mut state = State {
            counters: self.counters,
            queues: memory.queues,
            pairs: memory.pairs.iter().map(|(id, pair)| (*id, *pair)).collect(),
            rp: memory.rp.clone(),
            np: memory.np.clone(),
            cm: memory.announced_qpns.iter().map(|(id, qpn)| (*id, *qpn)).collect(),
            times_ns: memory.times_ns,
            events: self.events.latest(),
            random: memory.random,
            requesters: memory.requesters.iter().map(|(id, requester)| (*id, *requester)).collect(),
        };
        state.sort();
        Ok(state)
    }
}
