//! BMv2 as the lab's switch.

use dcqcn_common::params::Config;
use dcqcn_common::stats::Stat;
use dcqcn_netlink::Netns;
use dcqcn_p4::push::push;
use dcqcn_p4::read::Reader;
use dcqcn_p4::switch::{Bytes, Mac, Port, Prefix, Route};
use dcqcn_p4::{self as p4, Plan, Process, Program, Session};

use super::error::Result;
use super::host::{Host, ROCE_TC};

/// The receiver's port: the bottleneck.
const BOTTLENECK: u16 = 0;

#[derive(Debug)]
pub struct Bmv2 {
    netns: Netns,
    program: Program,
    description: p4::Switch,
    // Exits on drop.
    process: Process,
}

/// A concurrent reader of the switch.
#[derive(Debug)]
pub(super) struct Probe {
    session: Session,
    program: Program,
    packet_bytes: u64,
    /// Maximum loss so far, as packets in transit inside the switch are not yet lost.
    drops: u64,
}

impl Bmv2 {
    /// Starts the switch in `netns`, with a host behind each of `ports`; `packet_bytes` is layer 2.
    pub(super) fn start(
        netns: &Netns,
        ports: &[(String, &Host)],
        packet_bytes: u64,
        link_bps: u64,
        buffer_bytes: u64,
    ) -> Result<Self> {
        let numbered = || ports.iter().zip(0_u16..);
        let interfaces: Vec<(u16, String)> =
            numbered().map(|((name, _), port)| (port, name.clone())).collect();
        let (process, mut session) = Process::start(netns, &interfaces)?;
        let description = p4::Switch {
            packet: Bytes(packet_bytes),
            port: numbered().map(|(_, number)| Port { number, host: true, rate: None }).collect(),
            route: numbered()
                .map(|((_, host), port)| Route {
                    to: Prefix::host(host.address),
                    port,
                    src_mac: Mac(host.gateway_mac),
                    dst_mac: Mac(host.mac),
                })
                .collect(),
            ..p4::Switch::default()
        };
        let netns = Netns::open(netns.name())?;
        let switch = Self { netns, program: Program::embedded()?, description, process };
        // Classes are counted at a congestion point, even if it does not mark.
        let mut config = Config::DEFAULT;
        config.scalars.link_rate_bps = link_bps;
        (config.scalars.cp_enable, config.scalars.np_enable, config.scalars.rp_enable) = (1, 0, 0);
        config.wred.iter_mut().for_each(|wred| (wred.ecn, wred.queue_limit_bytes) = (0, buffer_bytes));
        switch.push(&mut session, &config)?;
        Ok(switch)
    }

    pub(super) fn configure(&self, config: &Config) -> Result<()> {
        self.push(&mut self.session()?, config)
    }

    fn push(&self, session: &mut Session, config: &Config) -> Result<()> {
        let plan = Plan::new(&self.program, config, &self.description)?;
        push(session, &plan)?;
        Ok(())
    }

    fn session(&self) -> Result<Session> {
        Ok(self.netns.run(|| Session::open(self.process.thrift_port()))??)
    }

    /// A separate reader.
    pub(super) fn probe(&self) -> Result<Probe> {
        let (session, program) = (self.session()?, self.program.clone());
        Ok(Probe { session, program, packet_bytes: self.description.packet.0, drops: 0 })
    }
}

impl Probe {
    pub(super) fn reader(&mut self) -> Reader<'_> {
        Reader::new(&mut self.session, &self.program)
    }

    /// Bytes in the bottleneck's RoCE queue after its last departure, and packets lost since the switch started.
    ///
    /// BMv2 counts no drops: a packet that arrived, has not left and is not queued was lost.
    pub(super) fn bottleneck(&mut self) -> Result<(u64, u64)> {
        let packet_bytes = self.packet_bytes;
        let mut reader = self.reader();
        // Read first, so that later arrivals do not count as lost.
        let received = reader.stat(Stat::RoceData)?;
        let retained = reader.waiting()? + reader.stat(Stat::RpHorizonDrop)?;
        let depth = reader.depth_packets(BOTTLENECK, ROCE_TC)?;
        let out = reader.class(BOTTLENECK, ROCE_TC)?.packets;
        let lost = received.saturating_sub(out).saturating_sub(depth).saturating_sub(retained);
        self.drops = self.drops.max(lost);
        Ok((depth * packet_bytes, self.drops))
    }
}
