//! Two hosts with a running QP, and its observable state.

use aya::programs::loaded_programs;
use dcqcn_tests::prelude::*;

/// `rpg_min_rate` of the sender.
pub(crate) const FLOOR_BPS: u64 = 10_000_000;
/// `cnp_rate` of the receiver.
pub(crate) const CNP_RATE: u64 = 1_000;
/// No rate increases, and a cut may follow every 40 us.
const SENDER: [&str; 4] =
    ["link_rate=1gbit", "rpg_time_reset=0ns", "rpg_byte_reset=0B", "rpg_min_rate=10mbit"];
const RECEIVER: [&str; 2] = ["link_rate=1gbit", "cnp_rate=1000"];

#[derive(Clone, Copy)]
pub(crate) enum Victim {
    /// The host that sends the QP's data.
    Sender,
    /// The host that receives it.
    Receiver,
}

/// Host 1 sends to a QP of host 2, was cut once, and knows the QP at the other end.
pub(crate) struct Testbed {
    pub(crate) pair: Pair,
    pub(crate) data: Roce,
    programs: [Vec<u32>; 2],
}

pub(crate) struct Observation {
    /// Packets charged to the victim's flow; `None` if it was evicted.
    pub(crate) charged: Option<u64>,
    pub(crate) rate_bps: u64,
    pub(crate) new_flows: u64,
    pub(crate) evicted: u64,
    pub(crate) table_flows: u32,
    /// Pairs known to the sender, and whether the victim's is one.
    pub(crate) pairs: usize,
    pub(crate) has_pair: bool,
    pub(crate) cnps: u64,
}

/// Names of the victim's connection at both ends.
pub(crate) const COMM_IDS: CommIds = CommIds { local: 0x22, remote: 0x11 };
pub(crate) const OWN_QPN: u32 = 0x51;

impl Testbed {
    pub(crate) fn new() -> Result<Self> {
        let pair = Pair::new("attack")?;
        pair.a.attach("a0", Role::Host, &SENDER)?;
        pair.b.attach("b0", Role::Host, &RECEIVER)?;
        pair.a.add_v4("a0", 1, 24)?;
        pair.b.add_v4("b0", 2, 24)?;
        let programs =
            [LoadedObjects::by(&pair.a, "a0")?.programs, LoadedObjects::by(&pair.b, "b0")?.programs];
        let data = Roce::default();
        let (a, b) = (pair.a.socket("a0")?, pair.b.socket("b0")?);
        a.send(&cm(data.src, data.dst, &CmMessage::Req(req(COMM_IDS.remote, OWN_QPN))))?;
        let reply = Rep { comm_ids: COMM_IDS, local_qpn: data.dest_qpn, starting_psn: 1 };
        b.send(&cm(data.dst, data.src, &CmMessage::Rep(reply)))?;
        a.send(&data.frame())?;
        b.send(&data.cnp(None, CNP_TOS))?;
        Ok(Self { pair, data, programs })
    }

    pub(crate) fn program_ns(&self, at: Victim) -> Result<u64> {
        let ids = &self.programs[at as usize];
        let programs = loaded_programs().filter_map(Result::ok).filter(|program| ids.contains(&program.id()));
        Ok(programs.map(|program| program.run_time().as_nanos() as u64).sum())
    }

    pub(crate) fn observe(&self) -> Result<Observation> {
        let attachment = self.pair.a.attachment("a0")?;
        let maps = &attachment.maps;
        let own = QpId { addr: mapped(v4(self.data.src)), qpn: OWN_QPN, vlan: 0 };
        let flow = self.pair.a.find_flow("a0", &self.data)?;
        let pairs = maps.pairs().collect::<Result<Vec<_>, _>>()?;
        let count = |stat| self.pair.a.count("a0", Hook::Egress, stat);
        Ok(Observation {
            charged: flow.as_ref().map(|flow| flow.hot.packets),
            rate_bps: flow.as_ref().map_or(0, |flow| flow.hot.machine.rate_bps),
            new_flows: count(Stat::RpFlowNew)?,
            evicted: count(Stat::RpFlowEvicted)?,
            table_flows: attachment.info.rp_flows,
            pairs: pairs.len(),
            has_pair: pairs.iter().any(|(id, pair)| *id == own && pair.qpn == self.data.dest_qpn),
            cnps: self.pair.b.count("b0", Hook::Egress, Stat::NpCnpSent)?,
        })
    }
}

impl Observation {
    pub(crate) fn activated(self) -> Result<Self> {
        self.charged.filter(|_| self.has_pair).context("the victim is not running")?;
        Ok(self)
    }
}
