//! A switch's registers and counters, in the structures of the other commands.

use dcqcn_common::flow::{Cnps, FlowId, NpFlow, QpId, RpFlow, RpHot};
use dcqcn_common::layout::{CLASSES, ClassCounters, Counters, Pair};
use dcqcn_common::pacing::Pacer;
use dcqcn_common::stats::Stat;
use dcqcn_common::wire::bth::Stream;

use super::control::Control;
use super::error::Result;
use super::program::Program;

/// "Never", in a register of 63 bits.
const NEVER: u64 = (1 << 63) - 1;

/// Name of a register, and what sets its element in a flow.
type RpRegister = (&'static str, fn(&mut RpFlow, u64));

/// Registers of the reaction point with one element per flow.
const RP_REGISTERS: [RpRegister; 16] = [
    ("rp_rate_bps", |flow, value| flow.hot.machine.rate_bps = value),
    ("rp_target_bps", |flow, value| flow.hot.machine.target_bps = value),
    ("rp_alpha_epoch_ns", |flow, value| flow.hot.machine.alpha_epoch_ns = value),
    ("rp_alpha_q31", |flow, value| flow.hot.machine.alpha_at_epoch_q31 = value as u32),
    ("rp_next_increase_ns", |flow, at_ns| {
        flow.hot.machine.next_increase_ns = if at_ns == NEVER { u64::MAX } else { at_ns };
    }),
    ("rp_byte_count", |flow, value| flow.hot.machine.bytes = value),
    ("rp_cut_check_ns", |flow, value| flow.hot.machine.cut_check_ns = value),
    ("rp_pending", |flow, value| flow.hot.machine.pending = value as u16),
    ("rp_time_stage", |flow, value| flow.hot.machine.time_stage = value as u32),
    ("rp_byte_stage", |flow, value| flow.hot.machine.byte_stage = value as u32),
    ("rp_active", |flow, value| flow.hot.machine.active = value as u16),
    ("rp_packets", |flow, value| flow.hot.packets = value),
    ("rp_bytes", |flow, value| flow.hot.bytes = value),
    ("rp_last_cnp_ns", |flow, value| flow.cnps.last_ns = value),
    ("rp_cnp_handled", |flow, value| flow.cnps.handled = value as u32),
    ("rp_cnp_ignored", |flow, value| flow.cnps.ignored = value as u32),
];

/// Reads registers and counters of one switch.
pub struct Reader<'a> {
    session: &'a mut dyn Control,
    program: &'a Program,
}

impl<'a> Reader<'a> {
    /// Reads the switch of `session`, which runs `program`.
    pub const fn new(session: &'a mut dyn Control, program: &'a Program) -> Self {
        Self { session, program }
    }

    /// The switch's clock, ns since its start.
    pub fn now_ns(&mut self) -> Result<u64> {
        self.session.now_ns()
    }

    pub fn rp_index(&mut self, id: &FlowId) -> Result<Option<u64>> {
        Ok(self.rp_indices()?.into_iter().find(|(_, there)| there == id).map(|(slot, _)| slot))
    }

    /// Every flow of the reaction point, with its register index.
    pub fn rp_indices(&mut self) -> Result<Vec<(u64, FlowId)>> {
        let ids = self.ids("rp")?.into_iter().zip(0..);
        Ok(ids.filter(|((_, seen_ns), _)| *seen_ns != 0).map(|((id, _), slot)| (slot, id)).collect())
    }

    /// Departure of the last data packet of a stream of the flow at an index, ns of the switch's clock.
    pub fn rp_last_ns(&mut self, index: u64, stream: Stream) -> Result<u64> {
        let name = self.program.register("rp_last_ns")?;
        self.session.register_at(name, index * 2 + stream as u64)
    }

    pub fn pairs(&mut self) -> Result<Vec<(QpId, Pair)>> {
        let ids = self.receivers("pair")?;
        let other_qpns = self.values("pair_other_qpn")?;
        let sources = self.values("pair_source")?;
        let others = self.addresses("pair_other_addr")?;
        let pair = |(at, (id, _)): (usize, (QpId, u64))| {
            let addr = others.get(at).copied().unwrap_or_default();
            (id, Pair { qpn: get(&other_qpns, at) as u32, source: get(&sources, at) as u32, addr })
        };
        Ok(ids.into_iter().enumerate().filter(|(_, (_, seen_ns))| *seen_ns != 0).map(pair).collect())
    }

    pub fn stat(&mut self, stat: Stat) -> Result<u64> {
        let name = self.program.counter("stats")?;
        Ok(self.session.counter(name, stat as u64)?.0)
    }

    /// All counters; class counters are summed over `ports`.
    pub fn counters(&mut self, ports: impl Iterator<Item = u16>) -> Result<Counters> {
        let mut counters = Counters::ZERO;
        for (value, stat) in counters.stat.iter_mut().zip(Stat::ALL) {
            *value = self.stat(*stat)?;
        }
        for port in ports {
            for (tc, total) in counters.class.iter_mut().enumerate() {
                let class = self.class(port, tc)?;
                total.packets += class.packets;
                total.bytes += class.bytes;
                total.ect_packets += class.ect_packets;
                total.ecn_marked_packets += class.ecn_marked_packets;
            }
        }
        Ok(counters)
    }

    /// The counters of a port's class, below [`CLASSES`].
    pub fn class(&mut self, port: u16, tc: usize) -> Result<ClassCounters> {
        let index = slot(port, tc);
        let mut count = |name| self.session.counter(self.program.counter(name)?, index);
        let (packets, bytes) = count("class_packets")?;
        let (ect_packets, _) = count("class_ect_packets")?;
        let (ecn_marked_packets, _) = count("class_ecn_marked_packets")?;
        Ok(ClassCounters { packets, bytes, ect_packets, ecn_marked_packets })
    }

    /// Packets that wait for their departure.
    pub fn waiting(&mut self) -> Result<u64> {
        let released = self.values("rp_released")?;
        let tickets = self.values("rp_ticket")?;
        // Both are free-running 32-bit counters.
        let waiting =
            |(ticket, released): (u64, &u64)| u64::from((ticket as u32).wrapping_sub(*released as u32));
        Ok(tickets.into_iter().zip(&released).map(waiting).sum())
    }

    /// Current rate of the flow of the reaction point at an index, as of its last packet; `None` before its first CNP.
    pub fn rp_rate_bps(&mut self, index: u64) -> Result<Option<u64>> {
        let active = self.session.register_at(self.program.register("rp_active")?, index)?;
        let rate_bps = self.session.register_at(self.program.register("rp_rate_bps")?, index)?;
        Ok((active != 0).then_some(rate_bps))
    }

    /// Packets queued behind the last one that left the queue of this port and class.
    pub fn depth_packets(&mut self, port: u16, tc: usize) -> Result<u64> {
        let name = self.program.register("last_depth_packets")?;
        self.session.register_at(name, slot(port, tc))
    }

    pub fn rp_flows(&mut self) -> Result<Vec<RpFlow>> {
        let ids = self.ids("rp")?;
        let flow = |(id, _): &(FlowId, u64)| RpFlow { id: *id, hot: RpHot::EMPTY, cnps: Cnps::NONE };
        let mut flows: Vec<RpFlow> = ids.iter().map(flow).collect();
        for (name, set) in RP_REGISTERS {
            flows.iter_mut().zip(self.values(name)?).for_each(|(flow, value)| set(flow, value));
        }
        let last_ns = self.values("rp_last_ns")?;
        let (next_ns, next_frac_q27) = (self.values("rp_next_ns")?, self.values("rp_next_frac_q27")?);
        let (ns_per_byte_q24, owed_bits) = (self.values("rp_ns_per_byte_q24")?, self.values("rp_owed_bits")?);
        for (at, RpFlow { hot, .. }) in flows.iter_mut().enumerate() {
            hot.last_ns = [get(&last_ns, 2 * at), get(&last_ns, 2 * at + 1)];
            hot.set_pacer(&Pacer {
                next_ns: get(&next_ns, at),
                ns_per_byte_q24: get(&ns_per_byte_q24, at),
                next_frac_q27: get(&next_frac_q27, at) as u32,
                owed_bits: get(&owed_bits, at) as u32,
            });
        }
        let seen = ids.iter().zip(flows).filter(|((_, seen_ns), _)| *seen_ns != 0);
        Ok(seen.map(|(_, flow)| flow).collect())
    }

    pub fn np_flows(&mut self) -> Result<Vec<NpFlow>> {
        let ids = self.ids("np")?;
        let mut of = |name| self.values(name);
        let last_cnp_ns = of("np_last_cnp_ns")?;
        let (ecn_marked_packets, cnp_sent) = (of("np_ecn_marked_packets")?, of("np_cnp_sent")?);
        let pending = of("np_pending")?;
        let flow = |(at, (id, last_seen_ns)): (usize, (FlowId, u64))| NpFlow {
            id,
            pending: get(&pending, at) as u32,
            _pad: 0,
            last_seen_ns,
            last_cnp_ns: get(&last_cnp_ns, at),
            ecn_marked_packets: get(&ecn_marked_packets, at),
            cnp_sent: get(&cnp_sent, at),
        };
        Ok(ids.into_iter().enumerate().filter(|(_, (_, seen_ns))| *seen_ns != 0).map(flow).collect())
    }

    /// Flow in each slot, and its last use; 0 = none.
    fn ids(&mut self, point: &str) -> Result<Vec<(FlowId, u64)>> {
        let src = self.addresses(&format!("{point}_src"))?;
        let receivers = self.receivers(point)?;
        Ok(src
            .into_iter()
            .zip(receivers)
            .map(|(src, (receiver, at_ns))| (FlowId { src, receiver }, at_ns))
            .collect())
    }

    /// QP in each slot, and its last use; 0 = none.
    fn receivers(&mut self, table: &str) -> Result<Vec<(QpId, u64)>> {
        let addresses = self.addresses(&format!("{table}_addr"))?;
        let qpns = self.values(&format!("{table}_qpn"))?;
        let vlans = self.values(&format!("{table}_vlan"))?;
        let last_seen_ns = self.values(&format!("{table}_last_seen_ns"))?;
        let id = |(at, addr)| {
            let (qpn, vlan) = (get(&qpns, at) as u32, get(&vlans, at) as u32);
            (QpId { addr, qpn, vlan }, get(&last_seen_ns, at))
        };
        Ok(addresses.into_iter().enumerate().map(id).collect())
    }

    /// Addresses stored in four registers.
    fn addresses(&mut self, name: &str) -> Result<Vec<[u32; 4]>> {
        let mut words = Vec::new();
        for word in 0..4 {
            words.push(self.values(&format!("{name}_{word}"))?);
        }
        let slots = words.first().map_or(0, Vec::len);
        let word = |i: usize, at| (words.get(i).map_or(0, |word| get(word, at)) as u32).to_be();
        Ok((0..slots).map(|at| [word(0, at), word(1, at), word(2, at), word(3, at)]).collect())
    }

    fn values(&mut self, name: &str) -> Result<Vec<u64>> {
        self.session.register(self.program.register(name)?)
    }
}

/// Index of a port's class in per-class counters and registers.
fn slot(port: u16, tc: usize) -> u64 {
    u64::from(port) * CLASSES as u64 + tc as u64
}

fn get(values: &[u64], at: usize) -> u64 {
    values.get(at).copied().unwrap_or(0)
}
