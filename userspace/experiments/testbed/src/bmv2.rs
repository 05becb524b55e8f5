//! BMv2 as the lab's switch.

use anyhow::Result;
use dcqcn_common::params::Config;
use dcqcn_common::stats::Stat;
use dcqcn_netlink::Netns;
use dcqcn_p4::push::push;
use dcqcn_p4::read::Reader;
use dcqcn_p4::switch::{Bytes, Mac, Port, Prefix, Route};
use dcqcn_p4::{self as p4, Plan, Process, Program, Session};

use super::host::{Host, ROCE_TC};

/// The receiver's port: the bottleneck.
const BOTTLENECK: u16 = 0;

/// A running switch.
#[derive(Debug)]
pub struct Bmv2 {
    netns: Netns,
    program: Program,
    description: p4::Switch,
    // Ends with this.
    process: Process,
}

/// Somebody who reads the switch.
#[derive(Debug)]
pub(super) struct Probe {
    session: Session,
    program: Program,
    packet_bytes: u64,
    /// The most that was found: what is on its way inside the switch is not yet lost.
    drops: u64,
}

impl Bmv2 {
    /// Starts the switch in `netns`: port `i` is `ports[i]`, with a host behind it. `packet_bytes` is what a data packet has, layer 2.
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
        // Classes are counted where there is a congestion point, marking or not.
        let mut config = Config::DEFAULT;
        config.scalars.link_rate_bps = link_bps;
        (config.scalars.cp_enable, config.scalars.np_enable, config.scalars.rp_enable) = (1, 0, 0);
        config.wred.iter_mut().for_each(|wred| (wred.ecn, wred.queue_limit_bytes) = (0, buffer_bytes));
        switch.push(&mut session, &config)?;
        Ok(switch)
    }

    /// Puts parameters active.
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

    /// A reader of its own.
    pub(super) fn probe(&self) -> Result<Probe> {
        let (session, program) = (self.session()?, self.program.clone());
        Ok(Probe { session, program, packet_bytes: self.description.packet.0, drops: 0 })
    }
}

impl Probe {
    /// What the switch reads like.
    pub(super) fn reader(&mut self) -> Reader<'_> {
        Reader::new(&mut self.session, &self.program)
    }

    /// Bytes in the bottleneck's RoCE queue as its last packet left it, and packets lost before it since the switch started.
    ///
    /// BMv2 counts no drops: what came in and neither went out nor waits is gone.
    pub(super) fn bottleneck(&mut self) -> Result<(u64, u64)> {
        let packet_bytes = self.packet_bytes;
        let mut reader = self.reader();
        // First, so that what comes in in the meantime does not look lost.
        let came = reader.stat(Stat::RoceData)?;
        let kept_back = reader.waiting()? + reader.stat(Stat::RpHorizonDrop)?;
        let depth = reader.depth_packets(BOTTLENECK, ROCE_TC)?;
        let out = reader.class(BOTTLENECK, ROCE_TC)?.packets;
        let lost = came.saturating_sub(out).saturating_sub(depth).saturating_sub(kept_back);
        self.drops = self.drops.max(lost);
        Ok((depth * packet_bytes, self.drops))
    }
}
