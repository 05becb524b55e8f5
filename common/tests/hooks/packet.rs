//! A packet at a hook, and the mock host as its environment.

use dcqcn_common::classify::{Frame, Roce};
use dcqcn_common::events::Event;
use dcqcn_common::flow::{FlowId, NpPeek, NpSet, QpId, Shared};
use dcqcn_common::hooks::{Cloned, Env, Host, Skb, set_tos_and_len};
use dcqcn_common::layout::{Backlog, ClassCounters, Cut, Pair, PauseCounters, Time};
use dcqcn_common::params::Params;
use dcqcn_common::rate::Debt;
use dcqcn_common::recovery::{Requester, SharedRequester};
use dcqcn_common::stats::Stat;
use dcqcn_common::vqueue::{Enqueued, Share};
use dcqcn_common::wire::eth::EtherType;

use super::mock_host::MockHost;

/// Metadata of a packet, and operations that the kernel refuses.
#[derive(Clone, Copy, Default)]
pub(crate) struct PacketContext {
    pub(crate) ingress_ifindex: u32,
    pub(crate) mark: u32,
    pub(crate) priority: u32,
    pub(crate) departure_ns: u64,
    pub(crate) is_from_process: bool,
    pub(crate) is_for_other_host: bool,
    /// Bytes readable before a `pull`; 0 = all.
    pub(crate) linear_len: usize,
    /// Writes at this offset or behind it fail, if it is not 0.
    pub(crate) no_write_from: usize,
    pub(crate) no_clone: Option<Cloned>,
    /// VLAN ID of the tag outside the packet.
    pub(crate) stripped_vid: u32,
    /// TPID of that tag.
    pub(crate) stripped_tpid: u16,
    /// Bytes of each segment of a GSO super-packet.
    pub(crate) segment_bytes: u32,
    pub(crate) no_rebuild: bool,
    pub(crate) is_enqueued_again: bool,
}

/// Packet and metadata after the hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) bytes: Vec<u8>,
    pub(crate) mark: u32,
    pub(crate) priority: Option<u32>,
    pub(crate) departure_ns: Option<u64>,
    pub(crate) hash: Option<u32>,
    pub(crate) clone_mark: Option<u32>,
    pub(crate) tag_priority: Option<u8>,
}

/// The mock host and its parameters, as the environment of a hook.
pub(crate) struct MockEnv<'a> {
    params: Option<&'a Params>,
    mock: &'a mut MockHost,
}

/// A packet with its metadata, and the outcome so far.
pub(crate) struct Packet<'a> {
    context: PacketContext,
    readable: usize,
    outcome: Outcome,
    env_view: MockEnv<'a>,
}

impl<'a> Packet<'a> {
    pub(crate) fn new(
        mock: &'a mut MockHost,
        params: Option<&'a Params>,
        bytes: &[u8],
        context: PacketContext,
    ) -> Self {
        let readable = if context.linear_len == 0 { usize::MAX } else { context.linear_len };
        let outcome = Outcome { bytes: bytes.to_vec(), mark: context.mark, ..Outcome::default() };
        Self { context, readable, outcome, env_view: MockEnv { params, mock } }
    }

    pub(crate) fn into_outcome(self) -> Outcome {
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

impl<'a> Env<'a> for MockEnv<'a> {
    fn params(&self) -> Option<&'a Params> {
        self.params
    }

    fn is_inline(&self, _p: &Params) -> bool {
        self.mock.is_inline
    }

    fn now_ns(&mut self) -> u64 {
        self.mock.clock_reads += 1;
        self.mock.now_ns
    }

    fn coarse_ns(&mut self) -> u64 {
        self.mock.now_ns - self.mock.coarse_lag_ns
    }

    fn random_u32(&mut self) -> u32 {
        self.mock.random
    }

    fn count_many(&mut self, stat: Stat, n: u64) {
        self.mock.stats[stat as usize] += n;
    }

    fn class(&mut self, tc: usize) -> &mut ClassCounters {
        &mut self.mock.classes[tc]
    }

    fn pauses(&mut self) -> &mut PauseCounters {
        &mut self.mock.pauses
    }

    fn queue(&mut self, index: u32, update: impl Fn(u64, Share) -> Enqueued) -> Option<u64> {
        let empty_at = self.mock.queues.get_mut(index as usize)?;
        let next = update(*empty_at, Share::NONE);
        *empty_at = next.empty_at;
        Some(next.depth_bytes)
    }

    fn count_ingress(&mut self, ingress_ifindex: u32, queue: usize, bytes: u64) {
        self.mock.ingress_bytes.push((ingress_ifindex, queue, bytes));
    }

    fn backlog(&self, index: u32) -> Option<Backlog> {
        self.mock.backlogs.get(&index).copied()
    }

    fn rp_set(&mut self, index: u32) -> Option<Shared> {
        // SAFETY: the set outlives this view, which has exclusive access.
        self.mock.rp.get_mut(index as usize).map(|set| unsafe { Shared::new(set) })
    }

    fn debt(&mut self) -> &mut Debt {
        &mut self.mock.debt
    }

    fn lookup_key(&mut self) -> &mut FlowId {
        &mut self.mock.lookup_key
    }

    fn np_peek(&self, index: u32, hash: u32, now_ns: u64, interval_ns: u64) -> NpPeek {
        match self.mock.np.get(index as usize) {
            // SAFETY: a live set, which no other thread changes.
            Some(set) => unsafe { NpSet::peek(set, hash, now_ns, interval_ns) },
            None => NpPeek::Absent,
        }
    }

    fn np_set<R>(&mut self, index: u32, f: impl FnOnce(&mut NpSet) -> R) -> Option<R> {
        self.mock.np_locks += 1;
        self.mock.np.get_mut(index as usize).map(f)
    }

    fn time(&self, which: Time) -> u64 {
        self.mock.times_ns[which as usize]
    }

    fn set_time(&mut self, which: Time, at_ns: u64) {
        self.mock.times_ns[which as usize] = at_ns;
    }

    fn announced_qpn(&self, id: &QpId) -> Option<u32> {
        self.mock.announced_qpns.get(id).copied()
    }

    fn set_announced_qpn(&mut self, id: &QpId, qpn: u32) {
        self.mock.announced_qpns.insert(*id, qpn);
    }

    fn pair(&self, id: &QpId) -> Option<Pair> {
        let entered = self.mock.pairs.get(&QpId { vlan: 0, ..*id }).filter(|pair| pair.is_entered());
        entered.or_else(|| self.mock.pairs.get(id)).copied()
    }

    fn learn_pair(&mut self, id: &QpId, pair: Pair) {
        self.mock.pairs.insert(*id, pair);
    }

    fn forget_pair(&mut self, id: &QpId) {
        self.mock.pairs.remove(id);
    }

    fn is_from_sibling(&mut self) -> bool {
        self.mock.is_from_sibling
    }

    fn requester<R>(&mut self, enters: bool, f: impl FnOnce(SharedRequester<'_>) -> R) -> Option<R> {
        let MockHost { requesters, lookup_key, .. } = self.mock;
        if enters {
            requesters.entry(*lookup_key).or_insert(Requester::NEW);
        }
        requesters.get_mut(lookup_key).map(|requester| f(SharedRequester::new(requester)))
    }

    fn announce_requester(&mut self) -> bool {
        self.mock.announced_requesters.push(self.mock.lookup_key);
        true
    }

    fn announce(&mut self, cut: Cut) {
        self.mock.cuts.push(cut);
    }

    fn record(&mut self, interval_ns: u64, event: Event) {
        self.mock.events.push((interval_ns, event));
    }
}

impl<'a> Host<'a> for Packet<'a> {
    type Env = MockEnv<'a>;

    fn env(&mut self) -> &mut MockEnv<'a> {
        &mut self.env_view
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
        target.is_some_and(|target| {
            *target = *bytes;
            true
        })
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
        self.outcome.bytes.truncate(at);
        self.outcome.bytes.extend(bytes);
        true
    }

    fn cut(&mut self, roce: &Roce, tos: u8, len: u16) -> bool {
        if self.context.no_rebuild {
            return false;
        }
        self.outcome.bytes.truncate(roce.l3 + usize::from(len));
        let header = self.outcome.bytes[roce.l3..].first_chunk_mut();
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
