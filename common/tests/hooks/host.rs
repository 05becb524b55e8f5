//! A packet at a hook, and the host around it.

use dcqcn_common::classify::{Frame, Roce};
use dcqcn_common::events::Event;
use dcqcn_common::flow::{FlowId, NpSet, QpId, Shared};
use dcqcn_common::hooks::{Env, Host, Skb, set_tos_and_len};
use dcqcn_common::layout::{Backlog, ClassCounters, Cut, Pair, PauseCounters, Time};
use dcqcn_common::params::Params;
use dcqcn_common::rate::Debt;
use dcqcn_common::recovery::Requester;
use dcqcn_common::stats::Stat;
use dcqcn_common::vqueue::{Enqueued, Share};

use super::world::World;

/// Metadata of a packet, and operations that the kernel refuses.
#[derive(Clone, Copy, Default)]
pub(crate) struct Around {
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
    pub(crate) no_clone: bool,
    /// VLAN ID of the tag outside the packet.
    pub(crate) stripped_vid: u32,
    /// Bytes of each segment of a GSO super-packet.
    pub(crate) segment_bytes: u32,
    pub(crate) no_rebuild: bool,
}

/// Result for a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) bytes: Vec<u8>,
    pub(crate) mark: u32,
    pub(crate) priority: Option<u32>,
    pub(crate) departure_ns: Option<u64>,
    pub(crate) hash: Option<u32>,
    pub(crate) clone_mark: Option<u32>,
    pub(crate) tag_priority: Option<u8>,
}

/// The host as a hook sees it.
pub(crate) struct View<'a> {
    params: Option<&'a Params>,
    world: &'a mut World,
}

/// A packet as a hook sees it.
pub(crate) struct Packet<'a> {
    around: Around,
    readable: usize,
    left: Left,
    view: View<'a>,
}

impl<'a> Packet<'a> {
    pub(crate) fn new(
        world: &'a mut World,
        params: Option<&'a Params>,
        bytes: &[u8],
        around: Around,
    ) -> Self {
        let readable = if around.linear_len == 0 { usize::MAX } else { around.linear_len };
        let left = Left { bytes: bytes.to_vec(), mark: around.mark, ..Left::default() };
        Self { around, readable, left, view: View { params, world } }
    }

    pub(crate) fn into_left(self) -> Left {
        self.left
    }
}

impl Frame for Packet<'_> {
    fn frame_len(&self) -> u32 {
        self.left.bytes.len() as u32
    }

    fn stripped_vid(&self) -> u32 {
        self.around.stripped_vid
    }

    fn segment_bytes(&self) -> u32 {
        self.around.segment_bytes
    }

    fn header<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        let readable = self.left.bytes.len().min(self.readable);
        self.left.bytes[..readable].get(at..)?.first_chunk()
    }

    fn pull(&mut self, len: usize) {
        if len <= self.left.bytes.len() {
            self.readable = self.readable.max(len);
        }
    }
}

impl<'a> Env<'a> for View<'a> {
    fn params(&self) -> Option<&'a Params> {
        self.params
    }

    fn classifies_all(&self) -> bool {
        self.params.is_some_and(Params::classifies_all)
    }

    fn is_inline(&self, _p: &Params) -> bool {
        self.world.is_inline
    }

    fn now_ns(&mut self) -> u64 {
        self.world.clock_reads += 1;
        self.world.now_ns
    }

    fn coarse_ns(&mut self) -> u64 {
        self.world.now_ns - self.world.coarse_lag_ns
    }

    fn random_u32(&mut self) -> u32 {
        self.world.random
    }

    fn opaque(&mut self, value: u32) -> u32 {
        value
    }

    fn count(&mut self, stat: Stat) {
        self.world.stats[stat as usize] += 1;
    }

    fn count_many(&mut self, stat: Stat, n: u64) {
        self.world.stats[stat as usize] += n;
    }

    fn class(&mut self, tc: usize) -> &mut ClassCounters {
        &mut self.world.classes[tc]
    }

    fn pauses(&mut self) -> &mut PauseCounters {
        &mut self.world.pauses
    }

    fn queue(&mut self, index: u32, update: impl Fn(u64, Share) -> Enqueued) -> Option<u64> {
        let empty_at = self.world.queues.get_mut(index as usize)?;
        let next = update(*empty_at, Share::NONE);
        *empty_at = next.empty_at;
        Some(next.depth_bytes)
    }

    fn count_ingress(&mut self, ingress_ifindex: u32, queue: usize, bytes: u64) {
        self.world.came.push((ingress_ifindex, queue, bytes));
    }

    fn backlog(&self, index: u32) -> Option<Backlog> {
        self.world.backlogs.get(&index).copied()
    }

    fn rp_set(&mut self, index: u32) -> Option<Shared> {
        // SAFETY: the set outlives this view, which has exclusive access.
        self.world.rp.get_mut(index as usize).map(|set| unsafe { Shared::new(set) })
    }

    fn debt(&mut self) -> &mut Debt {
        &mut self.world.debt
    }

    fn lookup_key(&mut self) -> &mut FlowId {
        &mut self.world.lookup_key
    }

    fn np_may_know(&self, index: u32, hash: u32) -> bool {
        // SAFETY: a live set, which no other thread changes.
        self.world.np.get(index as usize).is_some_and(|set| unsafe { NpSet::may_know(set, hash) })
    }

    fn np_set<R>(&mut self, index: u32, f: impl FnOnce(&mut NpSet) -> R) -> Option<R> {
        self.world.np_locks += 1;
        self.world.np.get_mut(index as usize).map(f)
    }

    fn time(&self, which: Time) -> u64 {
        self.world.times_ns[which as usize]
    }

    fn set_time(&mut self, which: Time, at_ns: u64) {
        self.world.times_ns[which as usize] = at_ns;
    }

    fn announced_qpn(&self, id: &QpId) -> Option<u32> {
        self.world.named.get(id).copied()
    }

    fn set_announced_qpn(&mut self, id: &QpId, qpn: u32) {
        self.world.named.insert(*id, qpn);
    }

    fn pair(&self, id: &QpId) -> Option<Pair> {
        let entered = self.world.pairs.get(&QpId { vlan: 0, ..*id }).filter(|pair| pair.is_entered());
        entered.or_else(|| self.world.pairs.get(id)).copied()
    }

    fn learn_pair(&mut self, id: &QpId, pair: Pair) {
        self.world.pairs.insert(*id, pair);
    }

    fn forget_pair(&mut self, id: &QpId) {
        self.world.pairs.remove(id);
    }

    fn is_handed_on(&mut self) -> bool {
        self.world.is_handed_on
    }

    fn requester<R>(&mut self, enters: bool, f: impl FnOnce(&mut Requester) -> R) -> Option<R> {
        let World { requesters, lookup_key, .. } = self.world;
        if enters {
            requesters.entry(*lookup_key).or_insert(Requester::NEW);
        }
        requesters.get_mut(lookup_key).map(f)
    }

    fn announce_requester(&mut self) -> bool {
        self.world.announced.push(self.world.lookup_key);
        true
    }

    fn announce(&mut self, cut: Cut) {
        self.world.cuts.push(cut);
    }

    fn record(&mut self, interval_ns: u64, event: Event) {
        self.world.events.push((interval_ns, event));
    }
}

impl<'a> Host<'a> for Packet<'a> {
    type Env = View<'a>;

    fn env(&mut self) -> &mut View<'a> {
        &mut self.view
    }

    fn ingress_ifindex(&self) -> u32 {
        self.around.ingress_ifindex
    }

    fn write<const N: usize>(&mut self, at: usize, bytes: &[u8; N]) -> bool {
        let no_write_from = self.around.no_write_from;
        if no_write_from != 0 && at >= no_write_from {
            return false;
        }
        let target = self.left.bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut);
        target.is_some_and(|target| {
            *target = *bytes;
            true
        })
    }
}

impl<'a> Skb<'a> for Packet<'a> {
    fn mark(&self) -> u32 {
        self.left.mark
    }

    fn set_mark(&mut self, mark: u32) {
        self.left.mark = mark;
    }

    fn priority(&self) -> u32 {
        self.left.priority.unwrap_or(self.around.priority)
    }

    fn set_priority(&mut self, priority: u32) {
        self.left.priority = Some(priority);
    }

    fn departure(&self) -> u64 {
        self.left.departure_ns.unwrap_or(self.around.departure_ns)
    }

    fn set_departure(&mut self, departure_ns: u64) {
        self.left.departure_ns = Some(departure_ns);
    }

    fn set_hash(&mut self, hash: u32) {
        self.left.hash = Some(hash);
    }

    fn is_from_process(&self) -> bool {
        self.around.is_from_process
    }

    fn is_for_other_host(&self, _: &Roce) -> bool {
        self.around.is_for_other_host
    }

    fn clone_out(&mut self, mark: u32) -> bool {
        self.left.clone_mark = Some(mark);
        !self.around.no_clone
    }

    fn rebuild<const N: usize>(
        &mut self,
        at: usize,
        build: impl FnOnce(&Self, &mut [u8; N]) -> bool,
    ) -> bool {
        let mut bytes = [0; N];
        if self.around.no_rebuild || !build(self, &mut bytes) {
            return false;
        }
        self.left.bytes.truncate(at);
        self.left.bytes.extend(bytes);
        true
    }

    fn cut(&mut self, roce: &Roce, tos: u8, len: u16) -> bool {
        if self.around.no_rebuild {
            return false;
        }
        self.left.bytes.truncate(roce.l3 + usize::from(len));
        let header = self.left.bytes[roce.l3..].first_chunk_mut();
        header.map(|header| set_tos_and_len(header, roce.v6, tos, len)).is_some()
    }

    fn set_tag_priority(&mut self, pcp: u8) {
        self.left.tag_priority = Some(pcp);
    }
}
