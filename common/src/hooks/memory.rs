//! Hooks over plain memory: tables and packets of the reference engine, and of tests, which can make operations fail.

use std::collections::HashMap;
use std::vec;
use std::vec::Vec;

use super::{Cloned, Env, Host, Skb, set_tos_and_len};
use crate::classify::{Frame, Roce};
use crate::events::Event;
use crate::flow::{FlowId, NpPeek, NpSet, QpId, RpSet, Shared};
use crate::layout::{Backlog, ClassCounters, Counters, Cut, Pair, PauseCounters, QUEUES, TIMES, Time};
use crate::params::Params;
use crate::rate::Debt;
use crate::recovery::{Requester, SharedRequester};
use crate::rng;
use crate::stats::Stat;
use crate::vqueue::{Enqueued, Share};
use crate::wire::eth::EtherType;
use crate::wire::icrc;

/// Contents of the maps, clock and random source, and what the hooks announced.
#[derive(Default)]
#[expect(missing_docs, reason = "named as in `Env`")]
pub struct Memory {
    pub now_ns: u64,
    /// Lag of the coarse clock.
    pub coarse_lag_ns: u64,
    pub clock_reads: u32,
    /// State of the random sequence; 0: only zeros.
    pub random: u64,
    pub is_inline: bool,
    pub is_from_sibling: bool,
    pub counters: Counters,
    pub queues: [u64; QUEUES as usize],
    pub backlogs: [Backlog; QUEUES as usize],
    pub rp: Vec<RpSet>,
    pub np: Vec<NpSet>,
    pub np_locks: u32,
    pub times_ns: [u64; TIMES],
    pub announced_qpns: HashMap<QpId, u32>,
    pub pairs: HashMap<QpId, Pair>,
    pub requesters: HashMap<FlowId, Requester>,
    pub announced_requesters: Vec<FlowId>,
    /// Interface, queue and bytes of each packet of `count_ingress`.
    pub ingress_bytes: Vec<(u32, usize, u64)>,
    pub cuts: Vec<Cut>,
    /// Events, each with the minimum interval of its kind.
    pub events: Vec<(u64, Event)>,
    pub debt: Debt,
    pub lookup_key: FlowId,
}

impl Memory {
    pub fn new(rp_sets: u32, np_sets: u32) -> Self {
        let (rp, np) = (vec![RpSet::EMPTY; rp_sets as usize], vec![NpSet::EMPTY; np_sets as usize]);
        Self { rp, np, ..Self::default() }
    }
}

/// Metadata of a packet, and operations that the kernel refuses.
#[derive(Clone, Copy, Default)]
#[expect(missing_docs, reason = "named as in `Skb`")]
pub struct PacketContext {
    pub ingress_ifindex: u32,
    pub mark: u32,
    pub priority: u32,
    pub departure_ns: u64,
    pub is_from_process: bool,
    pub is_for_other_host: bool,
    /// Bytes readable before a `pull`; 0 = all.
    pub linear_len: usize,
    /// Writes at this offset or behind it fail, if it is not 0.
    pub no_write_from: usize,
    pub no_clone: Option<Cloned>,
    pub stripped_vid: u32,
    pub stripped_tpid: u16,
    pub segment_bytes: u32,
    pub no_rebuild: bool,
    pub is_enqueued_again: bool,
}

/// Packet and metadata after the hook; `None` = unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in `Skb`")]
pub struct PacketOutcome {
    pub bytes: Vec<u8>,
    pub mark: u32,
    pub priority: Option<u32>,
    pub departure_ns: Option<u64>,
    pub hash: Option<u32>,
    pub clone_mark: Option<u32>,
    pub tag_priority: Option<u8>,
}

pub struct MemoryEnv<'a> {
    params: Option<&'a Params>,
    memory: &'a mut Memory,
}

pub struct Packet<'a> {
    context: PacketContext,
    readable: usize,
    outcome: PacketOutcome,
    env: MemoryEnv<'a>,
}

impl<'a> Packet<'a> {
    pub fn new(
        memory: &'a mut Memory,
        params: Option<&'a Params>,
        bytes: &[u8],
        context: PacketContext,
    ) -> Self {
        let readable = if context.linear_len == 0 { usize::MAX } else { context.linear_len };
        let outcome = PacketOutcome { bytes: bytes.to_vec(), mark: context.mark, ..PacketOutcome::default() };
        Self { context, readable, outcome, env: MemoryEnv { params, memory } }
    }

    pub fn into_outcome(self) -> PacketOutcome {
        self.outcome
    }
}

impl Frame for Packet<'_> {
    fn frame_len(&self) -> u32 {
        self.outcome.bytes.len() as u32
    }
    fn stripped_vid(&self) -> u32 {
        self.context.stripped_vid
    }
    fn segment_bytes(&self) -> u32 {
        self.context.segment_bytes
    }
    fn header<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        let readable = self.outcome.bytes.len().min(self.readable);
        self.outcome.bytes[..readable].get(at..)?.first_chunk()
    }
    fn pull(&mut self, len: usize) {
        if len <= self.outcome.bytes.len() {
            self.readable = self.readable.max(len);
        }
    }
}

impl<'a> Env<'a> for MemoryEnv<'a> {
    fn params(&self) -> Option<&'a Params> {
        self.params
    }
    fn is_inline(&self, _p: &Params) -> bool {
        self.memory.is_inline
    }
    fn now_ns(&mut self) -> u64 {
        self.memory.clock_reads = self.memory.clock_reads.wrapping_add(1);
        self.memory.now_ns
    }
    fn coarse_ns(&mut self) -> u64 {
        self.memory.now_ns - self.memory.coarse_lag_ns
    }
    fn random_u32(&mut self) -> u32 {
        self.memory.random = rng::next(self.memory.random);
        rng::value(self.memory.random)
    }
    fn count_many(&mut self, stat: Stat, n: u64) {
        self.memory.counters.stat[stat as usize] += n;
    }
    fn class(&mut self, tc: usize) -> &mut ClassCounters {
        &mut self.memory.counters.class[tc]
    }
    fn pauses(&mut self) -> &mut PauseCounters {
        &mut self.memory.counters.pause
    }
    fn queue(&mut self, index: u32, update: impl Fn(u64, Share) -> Enqueued) -> Option<u64> {
        let empty_at = self.memory.queues.get_mut(index as usize)?;
        // A single CPU: all of its state is shared.
        let next = update(*empty_at, Share::NONE);
        *empty_at = next.empty_at;
        Some(next.depth_bytes)
    }
    fn count_ingress(&mut self, ingress_ifindex: u32, queue: usize, bytes: u64) {
        self.memory.ingress_bytes.push((ingress_ifindex, queue, bytes));
    }
    fn backlog(&self, index: u32) -> Option<Backlog> {
        self.memory.backlogs.get(index as usize).copied()
    }
    fn rp_set(&mut self, index: u32) -> Option<Shared> {
        // SAFETY: the set outlives this view, which has exclusive access.
        self.memory.rp.get_mut(index as usize).map(|set| unsafe { Shared::new(set) })
    }
    fn debt(&mut self) -> &mut Debt {
        &mut self.memory.debt
    }
    fn lookup_key(&mut self) -> &mut FlowId {
        &mut self.memory.lookup_key
    }
    fn np_peek(&self, index: u32, hash: u32, now_ns: u64, interval_ns: u64) -> NpPeek {
        match self.memory.np.get(index as usize) {
            // SAFETY: a live set, which no other thread changes.
            Some(set) => unsafe { NpSet::peek(set, hash, now_ns, interval_ns) },
            None => NpPeek::Absent,
        }
    }
    fn np_set<R>(&mut self, index: u32, f: impl FnOnce(&mut NpSet) -> R) -> Option<R> {
        self.memory.np_locks = self.memory.np_locks.wrapping_add(1);
        self.memory.np.get_mut(index as usize).map(f)
    }
    fn time(&self, which: Time) -> u64 {
        self.memory.times_ns[which.index()]
    }
    fn set_time(&mut self, which: Time, at_ns: u64) {
        self.memory.times_ns[which.index()] = at_ns;
    }
    fn announced_qpn(&self, id: &QpId) -> Option<u32> {
        self.memory.announced_qpns.get(id).copied()
    }
    fn set_announced_qpn(&mut self, id: &QpId, qpn: u32) {
        self.memory.announced_qpns.insert(*id, qpn);
    }
    fn pair(&self, id: &QpId) -> Option<Pair> {
        let entered = self.memory.pairs.get(&QpId { vlan: 0, ..*id }).filter(|pair| pair.is_entered());
        entered.or_else(|| self.memory.pairs.get(id)).copied()
    }
    fn learn_pair(&mut self, id: &QpId, pair: Pair) {
        self.memory.pairs.insert(*id, pair);
    }
    fn forget_pair(&mut self, id: &QpId) {
        self.memory.pairs.remove(id);
    }
    fn is_from_sibling(&mut self) -> bool {
        self.memory.is_from_sibling
    }
    fn requester<R>(&mut self, enters: bool, f: impl FnOnce(SharedRequester<'_>) -> R) -> Option<R> {
        let Memory { requesters, lookup_key, .. } = self.memory;
        if enters {
            requesters.entry(*lookup_key).or_insert(Requester::NEW);
        }
        requesters.get_mut(lookup_key).map(|requester| f(SharedRequester::new(requester)))
    }
    fn drops_stale_acks(&self) -> bool {
        true
    }
    fn takes_naks_in_reads(&self) -> bool {
        true
    }
    fn announce_requester(&mut self) -> bool {
        self.memory.announced_requesters.push(self.memory.lookup_key);
        true
    }
    fn announce(&mut self, cut: Cut) {
        self.memory.cuts.push(cut);
    }
    fn record(&mut self, interval_ns: u64, event: Event) {
        self.memory.events.push((interval_ns, event));
    }
}

impl<'a> Host<'a> for Packet<'a> {
    type Env = MemoryEnv<'a>;

    fn env(&mut self) -> &mut MemoryEnv<'a> {
        &mut self.env
    }
    fn ingress_ifindex(&self) -> u32 {
        self.context.ingress_ifindex
    }
    fn write<const N: usize>(&mut self, at: usize, bytes: &[u8; N]) -> bool {
        let no_write_from = self.context.no_write_from;
        if no_write_from != 0 && at >= no_write_from {
            return false;
        }
        let target = self.outcome.bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut);
        target.map(|target| *target = *bytes).is_some()
    }
}

impl<'a> Skb<'a> for Packet<'a> {
    fn mark(&self) -> u32 {
        self.outcome.mark
    }
    fn set_mark(&mut self, mark: u32) {
        self.outcome.mark = mark;
    }
    fn priority(&self) -> u32 {
        self.outcome.priority.unwrap_or(self.context.priority)
    }
    fn set_priority(&mut self, priority: u32) {
        self.outcome.priority = Some(priority);
    }
    fn departure(&self) -> u64 {
        self.outcome.departure_ns.unwrap_or(self.context.departure_ns)
    }
    fn set_departure(&mut self, departure_ns: u64) {
        self.outcome.departure_ns = Some(departure_ns);
    }
    fn set_hash(&mut self, hash: u32) {
        self.outcome.hash = Some(hash);
    }
    fn is_from_process(&self) -> bool {
        self.context.is_from_process
    }
    fn is_for_other_host(&self, _: &Roce) -> bool {
        self.context.is_for_other_host
    }
    fn clone_out(&mut self, mark: u32, _is_egress: bool) -> Cloned {
        self.outcome.clone_mark = Some(mark);
        self.context.no_clone.unwrap_or(Cloned::Sent)
    }
    fn rebuild<const N: usize>(
        &mut self,
        at: usize,
        build: impl FnOnce(&Self, &mut [u8; N]) -> bool,
    ) -> bool {
        let mut bytes = [0; N];
        if self.context.no_rebuild || !build(self, &mut bytes) {
            return false;
        }
        // Like `bpf_skb_change_tail`, which can also lengthen: the smallest data packets are shorter than a CNP.
        self.outcome.bytes.resize(at, 0);
        self.outcome.bytes.extend(bytes);
        true
    }
    fn has_correct_icrc(&self, roce: &Roce) -> bool {
        self.outcome
            .bytes
            .get(roce.l3..)
            .is_some_and(|packet| icrc::verify_in_blocks(packet, roce.v6, roce.end.saturating_sub(roce.l3)))
    }
    fn cut(&mut self, roce: &Roce, tos: u8, len: u16) -> bool {
        if self.context.no_rebuild {
            return false;
        }
        self.outcome.bytes.truncate(roce.l3 + usize::from(len));
        let header = self.outcome.bytes.get_mut(roce.l3..).and_then(<[u8]>::first_chunk_mut);
        header.map(|header| set_tos_and_len(header, roce.v6, tos, len)).is_some()
    }
    fn take_enqueued_again(&mut self) -> bool {
        std::mem::take(&mut self.context.is_enqueued_again)
    }
    fn stripped_tpid(&self) -> EtherType {
        EtherType(self.context.stripped_tpid)
    }
    fn set_tag_priority(&mut self, pcp: u8) {
        self.outcome.tag_priority = Some(pcp);
    }
}
