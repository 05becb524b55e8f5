//! State of a mock host between packets, in plain memory, and running its hooks.

use std::collections::HashMap;

use dcqcn_common::events::{Event, EventKind};
use dcqcn_common::flow::{FlowId, HashKeys, NpFlow, NpSet, QpId, RpFlow, RpSet};
use dcqcn_common::hooks::{self, TcVerdict, XdpVerdict};
use dcqcn_common::layout::{Backlog, CLASSES, ClassCounters, Cut, Pair, PauseCounters, QUEUES, TIMES, WAYS};
use dcqcn_common::params::{Config, Params, Port};
use dcqcn_common::rate::{Debt, RpParams};
use dcqcn_common::recovery::Requester;
use dcqcn_common::stats::Stat;

use super::packet::{Outcome, Packet, PacketContext};

/// The interface of the port, and the other of an inline pair.
pub(crate) const PORTS: [u32; 2] = [7, 9];
/// Seed of the hash keys.
const KEYS: u64 = 5;
/// Sets of each flow table.
pub(crate) const SETS: u32 = 4;

/// State between packets.
pub(crate) struct MockHost {
    pub(crate) now_ns: u64,
    pub(crate) random: u32,
    pub(crate) stats: [u64; Stat::COUNT],
    pub(crate) classes: [ClassCounters; CLASSES],
    pub(crate) pauses: PauseCounters,
    pub(crate) queues: [u64; QUEUES as usize],
    pub(crate) backlogs: HashMap<u32, Backlog>,
    pub(crate) rp: Vec<RpSet>,
    pub(crate) np: Vec<NpSet>,
    pub(crate) times_ns: [u64; TIMES as usize],
    pub(crate) announced_qpns: HashMap<QpId, u32>,
    pub(crate) pairs: HashMap<QpId, Pair>,
    pub(crate) ingress_bytes: Vec<(u32, usize, u64)>,
    pub(crate) cuts: Vec<Cut>,
    pub(crate) events: Vec<(u64, Event)>,
    pub(crate) clock_reads: u32,
    pub(crate) np_locks: u32,
    pub(crate) coarse_lag_ns: u64,
    pub(crate) is_from_sibling: bool,
    pub(crate) is_inline: bool,
    pub(crate) debt: Debt,
    pub(crate) lookup_key: FlowId,
    pub(crate) requesters: HashMap<FlowId, Requester>,
    pub(crate) announced_requesters: Vec<FlowId>,
}

/// The parameters of a port of 1 Gbit/s, changed.
pub(crate) fn params(change: impl FnOnce(&mut Config)) -> Params {
    let mut config = Config::DEFAULT;
    config.scalars.link_rate_bps = 1_000_000_000;
    change(&mut config);
    let port = Port { ifindex: PORTS, hash_keys: HashKeys::new(KEYS), ..Port::new(PORTS[0], SETS, SETS) };
    Params::new(&config, port).unwrap_or_else(|invalid| panic!("{invalid}"))
}

impl MockHost {
    pub(crate) fn new() -> Self {
        Self {
            now_ns: 1_000_000_000,
            random: 0,
            stats: [0; Stat::COUNT],
            classes: [ClassCounters::default(); CLASSES],
            pauses: PauseCounters::default(),
            queues: [0; QUEUES as usize],
            backlogs: HashMap::new(),
            rp: vec![RpSet::EMPTY; SETS as usize],
            np: vec![NpSet::EMPTY; SETS as usize],
            times_ns: [0; TIMES as usize],
            announced_qpns: HashMap::new(),
            pairs: HashMap::new(),
            ingress_bytes: Vec::new(),
            cuts: Vec::new(),
            events: Vec::new(),
            clock_reads: 0,
            np_locks: 0,
            coarse_lag_ns: 0,
            is_from_sibling: false,
            is_inline: false,
            debt: Debt::NONE,
            lookup_key: FlowId::NONE,
            requesters: HashMap::new(),
            announced_requesters: Vec::new(),
        }
    }

    pub(crate) fn xdp(&mut self, p: &Params, bytes: &[u8], context: PacketContext) -> (XdpVerdict, Outcome) {
        let mut packet = Packet::new(self, Some(p), bytes, context);
        (hooks::xdp(&mut packet), packet.into_outcome())
    }

    pub(crate) fn ingress(
        &mut self,
        p: &Params,
        bytes: &[u8],
        context: PacketContext,
    ) -> (TcVerdict, Outcome) {
        let context = PacketContext { ingress_ifindex: PORTS[0], ..context };
        let mut packet = Packet::new(self, Some(p), bytes, context);
        (hooks::ingress(&mut packet), packet.into_outcome())
    }

    pub(crate) fn egress(
        &mut self,
        p: &Params,
        bytes: &[u8],
        context: PacketContext,
    ) -> (TcVerdict, Outcome) {
        let mut packet = Packet::new(self, Some(p), bytes, context);
        (hooks::egress(&mut packet), packet.into_outcome())
    }

    /// A host without parameters.
    pub(crate) fn all_hooks_without_parameters(&mut self, bytes: &[u8]) -> Vec<Outcome> {
        let mut outcome = Vec::new();
        let mut packet = Packet::new(self, None, bytes, PacketContext::default());
        assert_eq!(hooks::xdp(&mut packet), XdpVerdict::Pass);
        outcome.push(packet.into_outcome());
        let mut packet = Packet::new(self, None, bytes, PacketContext::default());
        assert_eq!(hooks::ingress(&mut packet), TcVerdict::Pass);
        outcome.push(packet.into_outcome());
        let mut packet = Packet::new(self, None, bytes, PacketContext::default());
        assert_eq!(hooks::egress(&mut packet), TcVerdict::Pass);
        outcome.push(packet.into_outcome());
        outcome
    }

    /// Counters that increased since the last call.
    pub(crate) fn take_counted(&mut self) -> Vec<(Stat, u64)> {
        let counts = std::mem::replace(&mut self.stats, [0; Stat::COUNT]);
        Stat::ALL.iter().copied().zip(counts).filter(|(_, count)| *count != 0).collect()
    }

    /// Value of this counter.
    pub(crate) fn count_of(&self, stat: Stat) -> u64 {
        self.stats[stat as usize]
    }

    pub(crate) fn flow(&self, id: &FlowId) -> Option<RpFlow> {
        self.rp.iter().find_map(|set| set.find(id))
    }

    pub(crate) fn np_flow(&self, id: &FlowId) -> Option<&NpFlow> {
        self.np.iter().flat_map(|set| &set.ways).find(|flow| flow.id == *id && flow.last_seen_ns != 0)
    }

    /// Set and way of a flow.
    pub(crate) fn set_and_way(&self, p: &Params, id: &FlowId) -> (u32, usize) {
        let index = id.rp_set_index(&p.port.hash_keys, p.port.rp_set_mask);
        let way = self.rp[index as usize].cold.iter().position(|flow| flow.id == *id);
        (index, way.unwrap_or_else(|| panic!("{id:?} is not in its set")))
    }

    pub(crate) fn kinds(&self) -> Vec<u32> {
        self.events.iter().map(|(_, event)| event.kind).collect()
    }

    /// The values of the only event, which has this kind.
    pub(crate) fn only_event(&self, kind: EventKind) -> (QpId, [u64; 2]) {
        assert_eq!(self.kinds(), [kind as u32]);
        let (_, event) = self.events[0];
        assert_eq!((event.at_ns, event.left_out), (self.now_ns, 0));
        (event.id, event.values)
    }

    /// A set full of flows without queued packets, with the given start times.
    pub(crate) fn fill(&mut self, rp: &RpParams, last_ns: u64) {
        for set in &mut self.rp {
            for way in 0..WAYS {
                let id = FlowId { src: [99; 4], receiver: QpId { addr: [98; 4], qpn: way as u32, vlan: 0 } };
                let mut flow = RpFlow::new(id, rp);
                flow.hot.last_ns = [last_ns + way as u64, 0];
                set.set_flow(way, &HashKeys::new(KEYS), &flow);
            }
        }
    }
}
