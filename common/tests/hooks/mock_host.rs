//! State of a mock host between packets, in plain memory, and running its hooks.

use std::ops::{Deref, DerefMut};

use super::*;

/// The interface of the port, and the other of an inline pair.
pub(crate) const PORTS: [u32; 2] = [7, 9];

const KEYS: u64 = 5;
/// Sets of each flow table.
const SETS: u32 = 4;

pub(crate) struct MockHost(Memory);

impl Deref for MockHost {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.0
    }
}

impl DerefMut for MockHost {
    fn deref_mut(&mut self) -> &mut Memory {
        &mut self.0
    }
}

/// A packet of this host, of which all operations succeed.
pub(crate) const HERE: PacketContext = PacketContext {
    ingress_ifindex: 0,
    mark: 0,
    priority: 0,
    departure_ns: 0,
    is_from_process: false,
    is_for_other_host: false,
    linear_len: 0,
    no_write_from: 0,
    no_clone: None,
    stripped_vid: 0,
    stripped_tpid: 0,
    segment_bytes: 0,
    no_rebuild: false,
    is_enqueued_again: false,
};

/// The outcome of a packet that has these bytes, and is otherwise unchanged.
pub(crate) fn with_bytes(bytes: Vec<u8>) -> PacketOutcome {
    PacketOutcome { bytes, ..PacketOutcome::default() }
}

/// As [`params`], with changed scalars.
pub(crate) fn scalars(change: impl FnOnce(&mut Scalars)) -> Params {
    params(|config| change(&mut config.scalars))
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
        Self(Memory { now_ns: SECOND_NS, ..Memory::new(SETS, SETS) })
    }

    /// With this real backlog in the queue of class 3.
    pub(crate) fn with_backlog(bytes: u64) -> Self {
        let mut host = Self::new();
        host.backlogs[3] = Backlog { bytes, read_at_ns: host.now_ns };
        host
    }

    pub(crate) fn set_time(&mut self, which: Time, at_ns: u64) {
        self.times_ns[which.index()] = at_ns;
    }

    /// The watchdog reports these storms now.
    pub(crate) fn set_storms(&mut self, storms: Storms) {
        self.set_time(Time::STORMS, storms.word(self.now_ns));
    }

    pub(crate) fn time(&self, which: Time) -> u64 {
        self.times_ns[which.index()]
    }

    pub(crate) fn xdp(&mut self, p: &Params, bytes: &[u8], at: PacketContext) -> (XdpVerdict, PacketOutcome) {
        self.run(Some(p), bytes, at, hooks::xdp)
    }

    pub(crate) fn ingress(&mut self, p: &Params, bytes: &[u8]) -> (TcVerdict, PacketOutcome) {
        self.ingress_with(p, bytes, HERE)
    }

    pub(crate) fn ingress_with(
        &mut self,
        p: &Params,
        bytes: &[u8],
        at: PacketContext,
    ) -> (TcVerdict, PacketOutcome) {
        self.run(Some(p), bytes, PacketContext { ingress_ifindex: PORTS[0], ..at }, hooks::ingress)
    }

    pub(crate) fn egress(&mut self, p: &Params, bytes: &[u8]) -> (TcVerdict, PacketOutcome) {
        self.egress_with(p, bytes, HERE)
    }

    pub(crate) fn egress_with(
        &mut self,
        p: &Params,
        bytes: &[u8],
        at: PacketContext,
    ) -> (TcVerdict, PacketOutcome) {
        self.run(Some(p), bytes, at, hooks::egress)
    }

    pub(crate) fn all_hooks_without_parameters(&mut self, bytes: &[u8]) -> [PacketOutcome; 3] {
        let (xdp_verdict, xdp) = self.run(None, bytes, HERE, hooks::xdp);
        let (ingress_verdict, ingress) = self.run(None, bytes, HERE, hooks::ingress);
        let (egress_verdict, egress) = self.run(None, bytes, HERE, hooks::egress);
        assert_eq!(
            (xdp_verdict, ingress_verdict, egress_verdict),
            (XdpVerdict::Pass, TcVerdict::Pass, TcVerdict::Pass)
        );
        [xdp, ingress, egress]
    }

    fn run<'a, V>(
        &'a mut self,
        p: Option<&'a Params>,
        bytes: &[u8],
        at: PacketContext,
        hook: impl FnOnce(&mut Packet<'a>) -> V,
    ) -> (V, PacketOutcome) {
        let mut packet = Packet::new(&mut self.0, p, bytes, at);
        (hook(&mut packet), packet.into_outcome())
    }

    /// Counters that increased since the last call.
    pub(crate) fn take_counted(&mut self) -> Vec<(Stat, u64)> {
        let counts = std::mem::replace(&mut self.counters.stat, [0; Stat::COUNT]);
        Stat::ALL.iter().copied().zip(counts).filter(|(_, count)| *count != 0).collect()
    }

    /// Counters that increased since the last call, each by one.
    pub(crate) fn counted_once(&mut self) -> Vec<Stat> {
        let counted = self.take_counted();
        assert!(counted.iter().all(|(_, count)| *count == 1), "{counted:?}");
        counted.into_iter().map(|(stat, _)| stat).collect()
    }

    /// Value of this counter.
    pub(crate) fn count_of(&self, stat: Stat) -> u64 {
        self.counters.stat[stat as usize]
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
