//! The reference engine: `dcqcn-common` over plain memory.

use std::collections::HashMap;

use dcqcn_common::classify::{Frame, Roce};
use dcqcn_common::events::Event;
use dcqcn_common::flow::{FlowId, NpPeek, NpSet, QpId, RpSet, Shared};
use dcqcn_common::hooks::{self, Cloned, Env, Host, Skb};
use dcqcn_common::layout::{Backlog, ClassCounters, Counters, Cut, Pair, PauseCounters, QUEUES, TIMES, Time};
use dcqcn_common::params::Params;
use dcqcn_common::pfc::Storms;
use dcqcn_common::rate::Debt;
use dcqcn_common::recovery::{Requester, SharedRequester};
use dcqcn_common::rng;
use dcqcn_common::stats::Stat;
use dcqcn_common::vqueue::{Enqueued, Share};
use dcqcn_common::wire::eth::EtherType;
use dcqcn_loader::dataplane::{self, Sizes};
use dcqcn_loader::events::Log;

use super::{Engine, Error, Hook, Meta, Outcome, Run, State};

/// The hooks over plain memory.
pub struct Reference {
    params: Box<Params>,
    tables: Tables,
}

/// Contents of the kernel's maps.
struct Tables {
    counters: [Counters; 3],
    queues: [u64; QUEUES as usize],
    backlogs: [Backlog; QUEUES as usize],
    pairs: HashMap<QpId, Pair>,
    rp: Vec<RpSet>,
    np: Vec<NpSet>,
    times_ns: [u64; TIMES as usize],
    cm: HashMap<QpId, u32>,
    events: Log,
    random: u64,
    debt: Debt,
    lookup_key: FlowId,
    requesters: HashMap<FlowId, Requester>,
}

impl Reference {
    /// Empty tables of `sizes`, and a random sequence seeded with `seed`.
    pub fn new(sizes: Sizes, params: &Params, seed: u64) -> Self {
        let tables = Tables {
            counters: [Counters::ZERO; 3],
            queues: [0; QUEUES as usize],
            backlogs: [Backlog::default(); QUEUES as usize],
            pairs: HashMap::new(),
            rp: vec![RpSet::EMPTY; sizes.rp_sets() as usize],
            np: vec![NpSet::EMPTY; sizes.np_sets() as usize],
            times_ns: [0; TIMES as usize],
            cm: HashMap::new(),
            events: Log::in_memory(),
            random: seed,
            debt: Debt::NONE,
            lookup_key: FlowId::NONE,
            requesters: HashMap::new(),
        };
        Self { params: Box::new(*params), tables }
    }
}

impl Engine for Reference {
    fn run(&mut self, hook: Hook, now_ns: u64, packet: &[u8], meta: &Meta) -> Result<Run, Error> {
        let mut host = Packet {
            bytes: packet.to_vec(),
            ingress_ifindex: meta.ingress_ifindex,
            mark: meta.mark,
            priority: meta.priority,
            segment_bytes: meta.segment_bytes,
            departure_ns: meta.departure_ns,
            clone_mark: 0,
            flow_hash: 0,
            view: View { params: &self.params, tables: &mut self.tables, slot: hook.slot(), now_ns },
        };
        let verdict = match hook {
            Hook::Xdp => {
                (host.mark, host.priority, host.departure_ns) = (0, 0, 0);
                hooks::xdp(&mut host).into()
            }
            Hook::Ingress => hooks::ingress(&mut host).into(),
            Hook::Egress => hooks::egress(&mut host).into(),
        };
        let Packet { bytes: packet, mark, priority, departure_ns, clone_mark, flow_hash, .. } = host;
        let outcome = Outcome { verdict, packet, mark, priority, departure_ns, emitted: Vec::new() };
        Ok(Run { outcome, clone_mark, flow_hash })
    }

    fn set_params(&mut self, params: &Params) -> Result<(), Error> {
        *self.params = *params;
        Ok(())
    }

    fn set_pair(&mut self, id: &QpId, pair: &Pair) -> Result<(), Error> {
        self.tables.pairs.insert(*id, *pair);
        Ok(())
    }

    fn set_backlog(&mut self, index: u32, backlog: &Backlog) -> Result<(), Error> {
        let slot = self.tables.backlogs.get_mut(index as usize);
        *slot.ok_or(dataplane::Error::Missing("BACKLOG"))? = *backlog;
        Ok(())
    }

    fn set_storms(&mut self, storms: Storms, now_ns: u64) -> Result<(), Error> {
        self.tables.times_ns[Time::Storms as usize] = storms.word(now_ns);
        Ok(())
    }

    fn set_host_congested_until(&mut self, until_ns: u64) -> Result<(), Error> {
        self.tables.times_ns[Time::HostCongestedUntil as usize] = until_ns;
        Ok(())
    }

    fn pair(&self, id: &QpId) -> Result<Option<Pair>, Error> {
        Ok(self.tables.pairs.get(id).copied())
    }

    fn queue(&self, index: u32) -> Result<u64, Error> {
        self.tables.queues.get(index as usize).copied().ok_or(dataplane::Error::Missing("QUEUE").into())
    }

    fn rp_set(&self, index: u32) -> Result<RpSet, Error> {
        self.tables.rp.get(index as usize).copied().ok_or(dataplane::Error::Missing("RP").into())
    }

    fn np_set(&self, index: u32) -> Result<NpSet, Error> {
        self.tables.np.get(index as usize).copied().ok_or(dataplane::Error::Missing("NP").into())
    }

    fn counters(&self) -> Result<[Counters; 3], Error> {
        Ok(self.tables.counters)
    }

    fn state(&self) -> Result<State, Error> {
        let Tables { counters, queues, pairs, rp, np, cm, times_ns, events, random, requesters, .. } =
            &self.tables;
        let mut state = State {
            counters: *counters,
            queues: *queues,
            pairs: pairs.iter().map(|(id, pair)| (*id, *pair)).collect(),
            rp: rp.clone(),
            np: np.clone(),
            cm: cm.iter().map(|(id, qpn)| (*id, *qpn)).collect(),
            times_ns: *times_ns,
            events: events.latest(),
            random: *random,
            requesters: requesters.iter().map(|(id, requester)| (*id, *requester)).collect(),
        };
        state.sort();
        Ok(state)
    }
}

/// One packet's view of the tables.
struct View<'a> {
    params: &'a Params,
    tables: &'a mut Tables,
    slot: usize,
    now_ns: u64,
}

impl<'a> Env<'a> for View<'a> {
    fn params(&self) -> Option<&'a Params> {
        Some(self.params)
    }

    fn is_inline(&self, p: &Params) -> bool {
        p.port.ifindex[1] != 0
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    /// The clock of an engine does not lag.
    fn coarse_ns(&mut self) -> u64 {
        self.now_ns()
    }

    fn random_u32(&mut self) -> u32 {
        self.tables.random = rng::next(self.tables.random);
        rng::value(self.tables.random)
    }

    fn count_many(&mut self, stat: Stat, n: u64) {
        self.tables.counters[self.slot].stat[stat as usize] += n;
    }

    fn class(&mut self, tc: usize) -> &mut ClassCounters {
        &mut self.tables.counters[self.slot].class[tc]
    }

    fn pauses(&mut self) -> &mut PauseCounters {
        &mut self.tables.counters[self.slot].pause
    }

    fn queue(&mut self, index: u32, update: impl Fn(u64, Share) -> Enqueued) -> Option<u64> {
        let empty_at = self.tables.queues.get_mut(index as usize)?;
        // A single CPU: all of its state is shared.
        let next = update(*empty_at, Share::NONE);
        *empty_at = next.empty_at;
        Some(next.depth_bytes)
    }

    /// No-op: ingress counts are for PFC transmission, which only the daemon does.
    fn count_ingress(&mut self, _ingress_ifindex: u32, _queue: usize, _bytes: u64) {}

    fn rp_set(&mut self, index: u32) -> Option<Shared> {
        // SAFETY: the set outlives this view, which has exclusive access.
        self.tables.rp.get_mut(index as usize).map(|set| unsafe { Shared::new(set) })
    }

    fn debt(&mut self) -> &mut Debt {
        &mut self.tables.debt
    }

    fn lookup_key(&mut self) -> &mut FlowId {
        &mut self.tables.lookup_key
    }

    fn np_peek(&self, index: u32, hash: u32, now_ns: u64, interval_ns: u64) -> NpPeek {
        match self.tables.np.get(index as usize) {
            // SAFETY: a live set, which no other thread changes.
            Some(set) => unsafe { NpSet::peek(set, hash, now_ns, interval_ns) },
            None => NpPeek::Absent,
        }
    }

    fn np_set<R>(&mut self, index: u32, f: impl FnOnce(&mut NpSet) -> R) -> Option<R> {
        self.tables.np.get_mut(index as usize).map(f)
    }

    fn time(&self, which: Time) -> u64 {
        self.tables.times_ns[which as usize]
    }

    fn set_time(&mut self, which: Time, at_ns: u64) {
        self.tables.times_ns[which as usize] = at_ns;
    }

    fn backlog(&self, index: u32) -> Option<Backlog> {
        self.tables.backlogs.get(index as usize).copied()
    }

    fn announced_qpn(&self, id: &QpId) -> Option<u32> {
        self.tables.cm.get(id).copied()
    }

    /// The reference engine has a single attachment, so no other hook hands a CNP on.
    fn is_from_sibling(&mut self) -> bool {
        false
    }

    fn set_announced_qpn(&mut self, id: &QpId, qpn: u32) {
        self.tables.cm.insert(*id, qpn);
    }

    fn pair(&self, id: &QpId) -> Option<Pair> {
        let entered = self.tables.pairs.get(&QpId { vlan: 0, ..*id }).filter(|pair| pair.is_entered());
        entered.or_else(|| self.tables.pairs.get(id)).copied()
    }

    fn learn_pair(&mut self, id: &QpId, pair: Pair) {
        self.tables.pairs.insert(*id, pair);
    }

    fn forget_pair(&mut self, id: &QpId) {
        self.tables.pairs.remove(id);
    }

    fn requester<R>(&mut self, enters: bool, f: impl FnOnce(SharedRequester<'_>) -> R) -> Option<R> {
        let Tables { requesters, lookup_key, .. } = self.tables;
        if enters {
            requesters.entry(*lookup_key).or_insert(Requester::NEW);
        }
        requesters.get_mut(lookup_key).map(|requester| f(SharedRequester::new(requester)))
    }

    /// An engine has no daemon.
    fn announce_requester(&mut self) -> bool {
        true
    }

    /// An engine has no pacer to notify.
    fn announce(&mut self, _cut: Cut) {}

    fn record(&mut self, interval_ns: u64, event: Event) {
        if !self.tables.events.record(interval_ns, event) {
            self.count(Stat::EventLost);
        }
    }
}

/// A packet as a hook sees it; XDP changes only the bytes.
struct Packet<'a> {
    bytes: Vec<u8>,
    ingress_ifindex: u32,
    mark: u32,
    priority: u32,
    segment_bytes: u32,
    departure_ns: u64,
    clone_mark: u32,
    flow_hash: u32,
    view: View<'a>,
}

impl Frame for Packet<'_> {
    fn frame_len(&self) -> u32 {
        // Below `MAX_PACKET`.
        self.bytes.len() as u32
    }

    fn header<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        self.bytes.get(at..)?.first_chunk()
    }

    fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }
}

impl<'a> Host<'a> for Packet<'a> {
    type Env = View<'a>;

    fn env(&mut self) -> &mut View<'a> {
        &mut self.view
    }

    fn ingress_ifindex(&self) -> u32 {
        self.ingress_ifindex
    }

    fn write<const N: usize>(&mut self, at: usize, bytes: &[u8; N]) -> bool {
        let target = self.bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut);
        if let Some(target) = target {
            *target = *bytes;
            return true;
        }
        false
    }
}

impl<'a> Skb<'a> for Packet<'a> {
    fn mark(&self) -> u32 {
        self.mark
    }

    fn set_mark(&mut self, mark: u32) {
        self.mark = mark;
    }

    fn priority(&self) -> u32 {
        self.priority
    }

    fn set_priority(&mut self, priority: u32) {
        self.priority = priority;
    }

    fn departure(&self) -> u64 {
        self.departure_ns
    }

    fn set_departure(&mut self, departure_ns: u64) {
        self.departure_ns = departure_ns;
    }

    fn set_hash(&mut self, hash: u32) {
        self.flow_hash = hash;
    }

    /// Packets of an engine have no socket.
    fn is_from_process(&self) -> bool {
        false
    }

    /// An engine represents every host.
    fn is_for_other_host(&self, _: &Roce) -> bool {
        false
    }

    fn clone_out(&mut self, mark: u32, _is_egress: bool) -> Cloned {
        self.clone_mark = mark;
        Cloned::Sent
    }

    /// Like `bpf_skb_change_tail`, which can also lengthen: the smallest data packets are shorter than a CNP.
    fn cut(&mut self, roce: &Roce, tos: u8, len: u16) -> bool {
        self.bytes.truncate(roce.l3 + usize::from(len));
        let header = self.bytes.get_mut(roce.l3..).and_then(<[u8]>::first_chunk_mut);
        header.map(|header| hooks::set_tos_and_len(header, roce.v6, tos, len)).is_some()
    }

    fn rebuild<const N: usize>(
        &mut self,
        at: usize,
        build: impl FnOnce(&Self, &mut [u8; N]) -> bool,
    ) -> bool {
        let mut bytes = [0; N];
        if !build(self, &mut bytes) {
            return false;
        }
        self.bytes.resize(at + N, 0);
        self.write(at, &bytes)
    }

    fn take_enqueued_again(&mut self) -> bool {
        false
    }

    /// Captures and test runs have their tags inside the packet.
    fn stripped_tpid(&self) -> EtherType {
        EtherType(0)
    }

    /// As above.
    fn set_tag_priority(&mut self, _pcp: u8) {}
}
