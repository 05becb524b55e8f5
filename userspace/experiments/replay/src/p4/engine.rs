//! The switch as an engine: packets in, outcomes out, its tables as the maps of the data plane.

use std::collections::HashMap;

use dcqcn_common::flow::{FlowId, NpFlow, NpSet, QpId, RpFlow, RpSet, set_index, tag};
use dcqcn_common::layout::{Backlog, Counters, Pair, TIMES, WAYS};
use dcqcn_common::params::{PACER_NONE, Params};
use dcqcn_common::pfc::Storms;
use dcqcn_loader::dataplane;
use dcqcn_p4 as p4;
use dcqcn_p4::read::Reader;
use dcqcn_p4::switch::QpPair;
use dcqcn_params::qp::address;

use super::{HOST, MAX_FRAME, NETWORK, SwitchEngine, SwitchOutput, Target};
use crate::{Engine, Error, Hook, MIN_PACKET, Meta, Outcome, Run, State, Verdict, classify};

impl<T: Target> Engine for SwitchEngine<T> {
    /// As [`Engine::process`], as a switch clones on its own.
    fn run(&mut self, hook: Hook, now_ns: u64, packet: &[u8], meta: &Meta) -> Result<Run, Error> {
        Ok(Run { outcome: self.process(hook, now_ns, packet, meta)?, clone_mark: 0, flow_hash: 0 })
    }

    fn process(&mut self, hook: Hook, now_ns: u64, packet: &[u8], meta: &Meta) -> Result<Outcome, Error> {
        let &Meta { mark, priority, .. } = meta;
        let outcome_of = |verdict, packet| Outcome {
            verdict,
            packet,
            mark,
            priority,
            departure_ns: 0,
            emitted: Vec::new(),
        };
        if !(MIN_PACKET..=MAX_FRAME).contains(&packet.len()) {
            return Ok(outcome_of(Verdict::NotRun, packet.to_vec()));
        }
        let roce = classify(packet).ok();
        let marks = hook == Hook::Egress && self.params.config.scalars.cp_enable != 0;
        let is_forwarded = hook == Hook::Egress && meta.ingress_ifindex != 0;
        let depth_bytes = match &roce {
            Some(roce) if marks => self.enqueue(&packet, roce, is_forwarded, now_ns),
            _ => 0,
        };
        // A packet sent by the host itself has no port to return to.
        let is_fast = marks && self.params.config.scalars.fast_cnp != 0 && is_forwarded;
        // The route back to a source that equals the destination would return the packet to its port.
        let is_same = packet.get(..6) == packet.get(6..12);
        let flip = |packet: &mut Vec<u8>, at: usize| {
            if let Some(byte) = packet.get_mut(at).filter(|_| is_same) {
                *byte ^= 2;
            }
        };
        let mut sent = packet.to_vec();
        flip(&mut sent, 6);
        self.prepare(hook, is_forwarded, now_ns, &sent, depth_bytes)?;
        let SwitchOutput { mut out, mut extra } = self.pass(hook, is_fast, now_ns, &sent)?;
        out.iter_mut().for_each(|out| flip(out, 6));
        // A CNP returns to the source.
        extra.iter_mut().for_each(|extra| flip(extra, 0));
        let mut outcome = match out {
            Some(out) => outcome_of(Verdict::Pass, out),
            None => outcome_of(Verdict::Drop, packet.to_vec()),
        };
        outcome.emitted = extra.into_iter().map(|packet| outcome_of(Verdict::Pass, packet)).collect();
        let scalars = &self.params.config.scalars;
        let paces = hook == Hook::Egress && scalars.rp_enable != 0 && scalars.pacer != PACER_NONE;
        let roce = roce.filter(|roce| paces && roce.is_sequenced() && outcome.verdict == Verdict::Pass);
        if let Some((roce, id)) = roce.and_then(|roce| Some((roce, roce.flow(&packet)?))) {
            let mut reader = Reader::new(self.target.get_mut().control(), &self.program);
            let last_ns = match reader.rp_index(&id)? {
                Some(index) => reader.rp_last_ns(index, roce.class.stream())?,
                None => 0,
            };
            outcome.departure_ns = if last_ns > now_ns { last_ns } else { 0 };
        }
        Ok(outcome)
    }

    fn set_params(&mut self, params: &Params) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.params, *params);
        if let Err(error) = self.check() {
            self.params = before;
            return Err(error.into());
        }
        self.hook = None;
        Ok(())
    }

    fn set_pair(&mut self, id: &QpId, pair: &Pair) -> Result<(), Error> {
        self.pairs.insert(*id, *pair);
        let entry =
            |(id, pair): (&QpId, &Pair)| QpPair { address: address(id), qpn: id.qpn, peer_qpn: pair.qpn };
        self.switch.pair = self.pairs.iter().map(entry).collect();
        self.hook = None;
        Ok(())
    }

    fn set_backlog(&mut self, index: u32, backlog: &Backlog) -> Result<(), Error> {
        *self.backlogs.get_mut(index as usize).ok_or(dataplane::Error::Missing("BACKLOG"))? = *backlog;
        Ok(())
    }

    /// The P4 program ignores pauses, so it has no storms.
    fn set_storms(&mut self, _: Storms, _: u64) -> Result<(), Error> {
        Ok(())
    }

    /// A switch has no CPUs that receive packets.
    fn set_host_congested_until(&mut self, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn pair(&self, id: &QpId) -> Result<Option<Pair>, Error> {
        Ok(self.all_pairs()?.get(id).copied())
    }

    fn queue(&self, index: u32) -> Result<u64, Error> {
        self.queues.get(index as usize).copied().ok_or(dataplane::Error::Missing("QUEUE").into())
    }

    /// The flows that would be in this set, up to its size; a switch has other sets.
    fn rp_set(&self, index: u32) -> Result<RpSet, Error> {
        let mut target = self.target.borrow_mut();
        let mut flows = Reader::new(target.control(), &self.program).rp_flows()?;
        flows.retain(|flow| self.set_of(&flow.id, self.params.port.rp_set_mask) == index);
        Ok(self.rp_set_of(&flows))
    }

    fn np_set(&self, index: u32) -> Result<NpSet, Error> {
        let mut target = self.target.borrow_mut();
        let mut flows = Reader::new(target.control(), &self.program).np_flows()?;
        flows.retain(|flow| self.set_of(&flow.id, self.params.port.np_set_mask) == index);
        Ok(self.np_set_of(&flows))
    }

    /// All counters are attributed to the last hook: a switch has one pipeline.
    fn counters(&self) -> Result<[Counters; 3], Error> {
        let mut target = self.target.borrow_mut();
        let mut counters = [Counters::ZERO; 3];
        let slot = self.hook.map_or(0, |(hook, _)| hook.slot());
        if let Some(of_hook) = counters.get_mut(slot) {
            *of_hook = Reader::new(target.control(), &self.program).counters([HOST, NETWORK].into_iter())?;
        }
        Ok(counters)
    }

    fn state(&self) -> Result<State, Error> {
        let (counters, pairs) = (self.counters()?, self.all_pairs()?);
        let mut target = self.target.borrow_mut();
        let mut reader = Reader::new(target.control(), &self.program);
        let (rp, np) = (reader.rp_flows()?, reader.np_flows()?);
        let mut state = State {
            counters,
            queues: self.queues,
            pairs: pairs.into_iter().collect(),
            rp: rp.chunks(WAYS).map(|flows| self.rp_set_of(flows)).collect(),
            np: np.chunks(WAYS).map(|flows| self.np_set_of(flows)).collect(),
            cm: Vec::new(),
            times_ns: [0; TIMES as usize],
            events: Vec::new(),
            random: 0,
            requesters: Vec::new(),
        };
        state.sort();
        Ok(state)
    }
}

impl<T: Target> SwitchEngine<T> {
    /// Added pairs take precedence over learned ones.
    fn all_pairs(&self) -> Result<HashMap<QpId, Pair>, p4::Error> {
        let mut target = self.target.borrow_mut();
        let mut pairs: HashMap<_, _> =
            Reader::new(target.control(), &self.program).pairs()?.into_iter().collect();
        pairs.extend(&self.pairs);
        Ok(pairs)
    }

    fn set_of(&self, id: &FlowId, mask: u32) -> u32 {
        set_index(id.hash(&self.params.port.hash_keys), mask)
    }

    fn rp_set_of(&self, flows: &[RpFlow]) -> RpSet {
        let mut set = RpSet::EMPTY;
        for (way, flow) in flows.iter().enumerate() {
            set.set_flow(way, &self.params.port.hash_keys, flow);
        }
        set
    }

    fn np_set_of(&self, flows: &[NpFlow]) -> NpSet {
        let mut set = NpSet::EMPTY;
        for ((way, slot), flow) in set.ways.iter_mut().zip(&mut set.tags).zip(flows) {
            (*way, *slot) = (*flow, tag(flow.id.hash(&self.params.port.hash_keys)));
        }
        set
    }
}
