//! The P4 program in a switch: a host on port 1, and all other hosts on port 2. The switch is `simple_switch` or the
//! interpreter.
//!
//! | hook | packet | meets |
//! |---|---|---|
//! | egress | arrives at port 1, leaves by port 2 | the host's RP, the CP of port 2 |
//! | ingress | arrives at port 2, leaves by port 1 | the host's RP for a CNP, else its NP |
//! | xdp | as ingress | neither |
//!
//! Time is the run's: the program's clock is set for each packet, to the microsecond, and so is the depth of the queue,
//! in packets: the virtual queue's, or the backlog. If a packet waits for its departure, the clock is advanced until it
//! leaves.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, process};

use dcqcn_common::classify::{Frame as _, Roce};
use dcqcn_common::flow::{FlowId, NpFlow, NpSet, QpId, RpFlow, RpSet, set_index, tag};
use dcqcn_common::hooks::{deepest_bytes, is_between_hosts, trim_above_bytes};
use dcqcn_common::layout::{Backlog, Counters, Pair, QUEUES, TIMES, WAYS};
use dcqcn_common::params::{PACER_NONE, Params, QUEUE_SOURCE_BACKLOG, TRIM_OFF};
use dcqcn_common::pfc::Storms;
use dcqcn_common::stats::Stat;
use dcqcn_common::vqueue::Share;
use dcqcn_common::wire::eth::Ethernet;
use dcqcn_loader::dataplane;
use dcqcn_netlink::netns::Temporary;
use dcqcn_p4 as p4;
use dcqcn_p4::entry::{Command, Entry, Match};
use dcqcn_p4::push::push;
use dcqcn_p4::read::Reader;
use dcqcn_p4::switch::{Mac, MacRoute, Port, QpPair};
use dcqcn_p4::{Control, Interpreter, Plan, Process, Program, Session, Switch};
use dcqcn_params::qp::address;

use super::{Engine, Error, Hook, MIN_PACKET, Meta, Outcome, Run, State, Verdict, classify, is_ce};
use crate::frames::RawSocket;
use crate::wire;

const HOST: u16 = 1;
/// The port of all other hosts.
const NETWORK: u16 = 2;
/// Longest packet that the wires carry.
const MAX_FRAME: usize = wire::MTU as usize + Ethernet::LEN;
/// Time to wait for a packet before the counters are read.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(20);
/// Repetitions of that wait for a packet that was not counted as dropped.
const RECEIVE_RETRIES: u32 = 500;
/// Counters of packets that are not forwarded.
const DROPS: [Stat; 2] = [Stat::CpNotEctDropped, Stat::RpHorizonDrop];
/// Counters of marked packets that are not answered.
const UNANSWERED: [Stat; 3] = [Stat::NpCnpSuppressed, Stat::NpCnpLimited, Stat::NpNotForHost];

/// A switch that runs the program.
pub trait Target {
    fn control(&mut self) -> &mut dyn Control;

    /// Sets the clock of a switch without its own.
    fn set_time(&mut self, now_us: u64);

    fn send(&mut self, port: u16, packet: &[u8]) -> Result<(), p4::Error>;

    /// The next packet that leaves by a port within this time.
    fn receive(&mut self, port: u16, within: Duration) -> Result<Option<Vec<u8>>, p4::Error>;
}

pub struct SwitchEngine<T> {
    program: Program,
    params: Params,
    switch: Switch,
    target: RefCell<T>,
    /// Current hook of the tables, and whether packets arrived by another port.
    hook: Option<(Hook, bool)>,
    /// Current time and depth of the program.
    now_us: Option<u64>,
    depth_packets: Option<u64>,
    /// "Empty at" of the virtual queues.
    queues: [u64; QUEUES as usize],
    backlogs: [Backlog; QUEUES as usize],
    pairs: HashMap<QpId, Pair>,
}

impl<T: Target> SwitchEngine<T> {
    /// An engine on top of `target`. `packet_bytes` is the size of a packet where depths are in packets.
    fn over(target: T, params: &Params, packet_bytes: u64) -> Result<Self, Error> {
        let port = |number, host| Port { number, host, rate: None };
        let switch = Switch {
            packet: p4::switch::Bytes(packet_bytes),
            port: vec![port(HOST, true), port(NETWORK, false)],
            ..Switch::default()
        };
        let engine = Self {
            program: Program::embedded()?,
            params: *params,
            switch,
            target: RefCell::new(target),
            hook: None,
            now_us: None,
            depth_packets: None,
            queues: [0; QUEUES as usize],
            backlogs: [Backlog::default(); QUEUES as usize],
            pairs: HashMap::new(),
        };
        // Fail here for unsupported parameters, not at the first packet.
        engine.check()?;
        Ok(engine)
    }

    /// Checks that the program supports the parameters.
    fn check(&self) -> Result<(), p4::Error> {
        for (hook, is_forwarded) in [(Hook::Egress, true), (Hook::Ingress, false)] {
            self.plan(hook, is_forwarded)?;
        }
        Ok(())
    }

    /// The tables for a hook. Only a packet that arrived by another port is answered directly and trimmed, if the
    /// parameters enable it.
    fn plan(&self, hook: Hook, is_forwarded: bool) -> Result<Plan, p4::Error> {
        let mut config = self.params.config;
        let s = &mut config.scalars;
        // An engine represents every host.
        s.np_other_host = 1;
        if !is_forwarded {
            (s.fast_cnp, s.trim_dscp_value) = (0, TRIM_OFF);
        }
        s.np_enable &= u64::from(hook == Hook::Ingress);
        s.rp_enable &= u64::from(hook != Hook::Xdp);
        let mut plan = Plan::new(&self.program, &config, &self.switch)?;
        // Packets to other hosts meet the marking.
        let of_cp = [self.program.table("wred")?, self.program.table("trim")?];
        let host = Match::exact(HOST);
        plan.entries.retain(|entry| {
            !of_cp.contains(&entry.table.as_str())
                || entry.key.as_ref().is_none_or(|key| key.first() != Some(&host))
        });
        // No queue other than the given depth may delay a packet.
        plan.blind.retain(|command| match command {
            Command::QueueRate { port, .. } | Command::QueueDepth { port, .. } => {
                ![HOST, NETWORK].contains(port)
            }
            _ => true,
        });
        let (table, action) = self.program.names("mac_forward", "to_port")?;
        let out = if hook == Hook::Egress { NETWORK } else { HOST };
        plan.entries.push(Entry::default_action(table, action, vec![out.into()]));
        plan.entries.retain(|entry| !entry.table.ends_with(".queue_depth"));
        Ok(plan)
    }

    /// Sets tables, clock and queue for the next packet.
    fn prepare(
        &mut self,
        hook: Hook,
        is_forwarded: bool,
        now_ns: u64,
        packet: &[u8],
        depth_bytes: u64,
    ) -> Result<(), p4::Error> {
        // The CNP returns to the port of the packet.
        let back = packet.get(6..12).and_then(|mac| <[u8; 6]>::try_from(mac).ok()).map(Mac);
        let port = if hook == Hook::Egress { HOST } else { NETWORK };
        let mac =
            back.filter(|_| hook == Hook::Ingress || is_forwarded).map(|address| MacRoute { address, port });
        let mac: Vec<MacRoute> = mac.into_iter().collect();
        if self.hook != Some((hook, is_forwarded)) || self.switch.mac != mac {
            self.switch.mac = mac;
            self.hook = None;
            let plan = self.plan(hook, is_forwarded)?;
            push(self.target.get_mut().control(), &plan)?;
            self.hook = Some((hook, is_forwarded));
        }
        self.set_clock(now_ns / 1_000)?;
        let packets = self.switch.packets(depth_bytes);
        if self.depth_packets != Some(packets) {
            let packets_there = packets.min((1 << 19) - 1);
            self.set_default("queue_depth", "fixed_depth", packets_there)?;
            self.set_default("trim_depth", "fixed_trim_depth", packets_there)?;
            self.depth_packets = Some(packets);
        }
        Ok(())
    }

    fn set_clock(&mut self, now_us: u64) -> Result<(), p4::Error> {
        if self.now_us != Some(now_us) {
            self.set_default("clock", "fixed_time", now_us)?;
            self.target.get_mut().set_time(now_us);
            self.now_us = Some(now_us);
        }
        Ok(())
    }

    fn set_default(&mut self, table: &str, action: &str, value: u64) -> Result<(), p4::Error> {
        let (table, action) = self.program.names(table, action)?;
        let entry = Entry::default_action(table, action, vec![value.into()]);
        self.program.check(&entry)?;
        self.target.get_mut().control().run(&Command::Write(entry))
    }

    /// Depth in front of the packet, bytes; adds the packet to the virtual queue if it is queued.
    fn enqueue(&mut self, frame: &&[u8], roce: &Roce, is_forwarded: bool, now_ns: u64) -> u64 {
        let config = &self.params.config;
        let tc = usize::from(config.dscp_to_tc.get(roce.dscp()).copied().unwrap_or(0));
        let (Some(drain), Some(empty_at)) = (self.params.drain.get(tc), self.queues.get_mut(tc)) else {
            return 0;
        };
        let wire_bytes = u64::from(frame.frame_len()) + config.scalars.wire_overhead_bytes;
        let mut deepest_bytes = deepest_bytes(&self.params, roce, tc);
        if is_forwarded {
            deepest_bytes = deepest_bytes.min(trim_above_bytes(frame, &self.params, roce, tc, wire_bytes));
        }
        let mut backlog_bytes = None;
        if config.scalars.queue_source == QUEUE_SOURCE_BACKLOG {
            let bytes = self.backlogs.get(tc).map_or(0, |backlog| backlog.bytes);
            if bytes > deepest_bytes {
                return bytes;
            }
            (backlog_bytes, deepest_bytes) = (Some(bytes), u64::MAX);
        }
        let queued = drain.enqueue_below(deepest_bytes, *empty_at, Share::NONE, now_ns, wire_bytes);
        *empty_at = queued.empty_at;
        backlog_bytes.unwrap_or(queued.depth_bytes)
    }

    /// Sends a packet through: its result, and the packets emitted with it.
    fn pass(
        &mut self,
        hook: Hook,
        is_fast: bool,
        now_ns: u64,
        packet: &[u8],
    ) -> Result<SwitchOutput, p4::Error> {
        let before = self.fates()?;
        let (from, to) = if hook == Hook::Egress { (HOST, NETWORK) } else { (NETWORK, HOST) };
        self.target.get_mut().send(from, packet)?;
        let lost = || p4::Error::Lost { len: packet.len(), port: from };
        let mut is_ahead = false;
        let mut out = None;
        let mut is_dropped = false;
        for _ in 0..RECEIVE_RETRIES {
            out = self.target.get_mut().receive(to, RECEIVE_TIMEOUT)?;
            is_dropped = out.is_none() && self.fates()?.dropped != before.dropped;
            if out.is_some() || is_dropped {
                break;
            }
            if !is_ahead && self.is_waiting()? {
                is_ahead = true;
                let horizon_us = self.params.config.scalars.pacing_horizon_ns / 1_000;
                self.set_clock((now_ns / 1_000).saturating_add(horizon_us + 1))?;
            }
        }
        if out.is_none() && !is_dropped {
            return Err(lost());
        }
        if is_ahead {
            self.set_clock(now_ns / 1_000)?;
        }
        let after = self.fates()?;
        let answers_immediately = is_fast
            && out.as_deref().is_some_and(|out| is_answerable(packet) && is_marked_since(packet, out));
        let marked = after.marked - before.marked + u64::from(answers_immediately);
        let mut extra = Vec::new();
        for _ in 0..marked.saturating_sub(after.unanswered - before.unanswered) {
            let sent = self.target.get_mut().receive(from, RECEIVE_TIMEOUT * RECEIVE_RETRIES)?;
            extra.push(sent.ok_or_else(lost)?);
        }
        Ok(SwitchOutput { out, extra })
    }

    fn is_waiting(&mut self) -> Result<bool, p4::Error> {
        if self.params.config.scalars.pacer == PACER_NONE {
            return Ok(false);
        }
        let control = self.target.get_mut().control();
        let tickets = control.register(self.program.register("rp_ticket")?)?;
        let released = control.register(self.program.register("rp_released")?)?;
        Ok(tickets != released)
    }

    /// Packets dropped, and packets that the notification point answered or should answer.
    fn fates(&mut self) -> Result<PacketCounts, p4::Error> {
        let consumes = self.params.config.scalars.cnp_consume != 0;
        let mut reader = Reader::new(self.target.get_mut().control(), &self.program);
        let mut dropped = 0;
        for stat in DROPS.into_iter().chain(consumes.then_some(Stat::RpCnpHandled)) {
            dropped += reader.stat(stat)?;
        }
        let marked = reader.stat(Stat::NpEcnMarked)? + reader.stat(Stat::NpCnpWindowEnd)?;
        let mut unanswered = 0;
        for stat in UNANSWERED {
            unanswered += reader.stat(stat)?;
        }
        Ok(PacketCounts { dropped, marked, unanswered })
    }
}

fn is_answerable(packet: &[u8]) -> bool {
    classify(packet).is_ok_and(|roce| roce.congests() && is_between_hosts(&packet, &roce))
}

/// Whether the congestion point marked or trimmed the packet.
fn is_marked_since(packet: &[u8], out: &[u8]) -> bool {
    out.len() < packet.len() || out != packet && is_ce(out)
}

struct SwitchOutput {
    /// The packet; `None` if it was dropped.
    out: Option<Vec<u8>>,
    extra: Vec<Vec<u8>>,
}

struct PacketCounts {
    dropped: u64,
    marked: u64,
    unanswered: u64,
}

impl<T: Target> Engine for SwitchEngine<T> {
    /// As [`Engine::process`], as a switch clones on its own.
    fn run(&mut self, hook: Hook, now_ns: u64, packet: &[u8], meta: &Meta) -> Result<Run, Error> {
        Ok(Run { outcome: self.process(hook, now_ns, packet, meta)?, clone_mark: 0, flow_hash: 0 })
    }

    fn process(&mut self, hook: Hook, now_ns: u64, packet: &[u8], meta: &Meta) -> Result<Outcome, Error> {
        let &Meta { mark, priority, .. } = meta;
        let outcome_of = |verdict, packet| Outcome {
            verdict,
            packet,
            mark,
            priority,
            departure_ns: 0,
            emitted: Vec::new(),
        };
        if !(MIN_PACKET..=MAX_FRAME).contains(&packet.len()) {
            return Ok(outcome_of(Verdict::NotRun, packet.to_vec()));
        }
        let roce = classify(packet).ok();
        let marks = hook == Hook::Egress && self.params.config.scalars.cp_enable != 0;
        let is_forwarded = hook == Hook::Egress && meta.ingress_ifindex != 0;
        let depth_bytes = match &roce {
            Some(roce) if marks => self.enqueue(&packet, roce, is_forwarded, now_ns),
            _ => 0,
        };
        // A packet sent by the host itself has no port to return to.
        let is_fast = marks && self.params.config.scalars.fast_cnp != 0 && is_forwarded;
        // The route back to a source that equals the destination would return the packet to its port.
        let is_same = packet.get(..6) == packet.get(6..12);
        let flip = |packet: &mut Vec<u8>, at: usize| {
            if let Some(byte) = packet.get_mut(at).filter(|_| is_same) {
                *byte ^= 2;
            }
        };
        let mut sent = packet.to_vec();
        flip(&mut sent, 6);
        self.prepare(hook, is_forwarded, now_ns, &sent, depth_bytes)?;
        let SwitchOutput { mut out, mut extra } = self.pass(hook, is_fast, now_ns, &sent)?;
        out.iter_mut().for_each(|out| flip(out, 6));
        // A CNP returns to the source.
        extra.iter_mut().for_each(|extra| flip(extra, 0));
        let mut outcome = match out {
            Some(out) => outcome_of(Verdict::Pass, out),
            None => outcome_of(Verdict::Drop, packet.to_vec()),
        };
        outcome.emitted = extra.into_iter().map(|packet| outcome_of(Verdict::Pass, packet)).collect();
        let scalars = &self.params.config.scalars;
        let paces = hook == Hook::Egress && scalars.rp_enable != 0 && scalars.pacer != PACER_NONE;
        let roce = roce.filter(|roce| paces && roce.is_sequenced() && outcome.verdict == Verdict::Pass);
        if let Some((roce, id)) = roce.and_then(|roce| Some((roce, roce.flow(&packet)?))) {
            let mut reader = Reader::new(self.target.get_mut().control(), &self.program);
            let last_ns = match reader.rp_index(&id)? {
                Some(index) => reader.rp_last_ns(index, roce.class.stream())?,
                None => 0,
            };
            outcome.departure_ns = if last_ns > now_ns { last_ns } else { 0 };
        }
        Ok(outcome)
    }

    fn set_params(&mut self, params: &Params) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.params, *params);
        if let Err(error) = self.check() {
            self.params = before;
            return Err(error.into());
        }
        self.hook = None;
        Ok(())
    }

    fn set_pair(&mut self, id: &QpId, pair: &Pair) -> Result<(), Error> {
        self.pairs.insert(*id, *pair);
        let entry =
            |(id, pair): (&QpId, &Pair)| QpPair { address: address(id), qpn: id.qpn, peer_qpn: pair.qpn };
        self.switch.pair = self.pairs.iter().map(entry).collect();
        self.hook = None;
        Ok(())
    }

    fn set_backlog(&mut self, index: u32, backlog: &Backlog) -> Result<(), Error> {
        *self.backlogs.get_mut(index as usize).ok_or(dataplane::Error::Missing("BACKLOG"))? = *backlog;
        Ok(())
    }

    /// The P4 program ignores pauses, so it has no storms.
    fn set_storms(&mut self, _: Storms, _: u64) -> Result<(), Error> {
        Ok(())
    }

    /// A switch has no CPUs that receive packets.
    fn set_host_congested_until(&mut self, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn pair(&self, id: &QpId) -> Result<Option<Pair>, Error> {
        Ok(self.all_pairs()?.get(id).copied())
    }

    fn queue(&self, index: u32) -> Result<u64, Error> {
        self.queues.get(index as usize).copied().ok_or(dataplane::Error::Missing("QUEUE").into())
    }

    /// The flows that would be in this set, up to its size; a switch has other sets.
    fn rp_set(&self, index: u32) -> Result<RpSet, Error> {
        let mut target = self.target.borrow_mut();
        let mut flows = Reader::new(target.control(), &self.program).rp_flows()?;
        flows.retain(|flow| self.set_of(&flow.id, self.params.port.rp_set_mask) == index);
        Ok(self.rp_set_of(&flows))
    }

    fn np_set(&self, index: u32) -> Result<NpSet, Error> {
        let mut target = self.target.borrow_mut();
        let mut flows = Reader::new(target.control(), &self.program).np_flows()?;
        flows.retain(|flow| self.set_of(&flow.id, self.params.port.np_set_mask) == index);
        Ok(self.np_set_of(&flows))
    }

    /// All counters are attributed to the last hook: a switch has one pipeline.
    fn counters(&self) -> Result<[Counters; 3], Error> {
        let mut target = self.target.borrow_mut();
        let mut counters = [Counters::ZERO; 3];
        let slot = self.hook.map_or(0, |(hook, _)| hook.slot());
        if let Some(of_hook) = counters.get_mut(slot) {
            *of_hook = Reader::new(target.control(), &self.program).counters([HOST, NETWORK].into_iter())?;
        }
        Ok(counters)
    }

    fn state(&self) -> Result<State, Error> {
        let (counters, pairs) = (self.counters()?, self.all_pairs()?);
        let mut target = self.target.borrow_mut();
        let mut reader = Reader::new(target.control(), &self.program);
        let (rp, np) = (reader.rp_flows()?, reader.np_flows()?);
        let mut state = State {
            counters,
            queues: self.queues,
            pairs: pairs.into_iter().collect(),
            rp: rp.chunks(WAYS).map(|flows| self.rp_set_of(flows)).collect(),
            np: np.chunks(WAYS).map(|flows| self.np_set_of(flows)).collect(),
            cm: Vec::new(),
            times_ns: [0; TIMES],
            events: Vec::new(),
            random: 0,
            requesters: Vec::new(),
        };
        state.sort();
        Ok(state)
    }
}

impl<T: Target> SwitchEngine<T> {
    /// Added pairs take precedence over learned ones.
    fn all_pairs(&self) -> Result<HashMap<QpId, Pair>, p4::Error> {
        let mut target = self.target.borrow_mut();
        let mut pairs: HashMap<_, _> =
            Reader::new(target.control(), &self.program).pairs()?.into_iter().collect();
        pairs.extend(&self.pairs);
        Ok(pairs)
    }

    fn set_of(&self, id: &FlowId, mask: u32) -> u32 {
        set_index(id.hash(&self.params.port.hash_keys), mask)
    }

    fn rp_set_of(&self, flows: &[RpFlow]) -> RpSet {
        let mut set = RpSet::EMPTY;
        for (way, flow) in flows.iter().enumerate() {
            set.set_flow(way, &self.params.port.hash_keys, flow);
        }
        set
    }

    fn np_set_of(&self, flows: &[NpFlow]) -> NpSet {
        let mut set = NpSet::EMPTY;
        for ((way, slot), flow) in set.ways.iter_mut().zip(&mut set.tags).zip(flows) {
            (*way, *slot) = (*flow, tag(flow.id.hash(&self.params.port.hash_keys)));
        }
        set
    }
}

pub type P4 = SwitchEngine<Interpreter>;

impl P4 {
    /// Loads the program, with `seed` for its random numbers. `packet_bytes` is the size of a packet where depths are
    /// in packets.
    pub fn new(params: &Params, packet_bytes: u64, seed: u64) -> Result<Self, Error> {
        Self::over(Interpreter::embedded(seed)?, params, packet_bytes)
    }
}

impl Target for Interpreter {
    fn control(&mut self) -> &mut dyn Control {
        self
    }

    fn set_time(&mut self, now_us: u64) {
        Interpreter::set_time(self, now_us);
    }

    fn send(&mut self, port: u16, packet: &[u8]) -> Result<(), p4::Error> {
        Interpreter::send(self, port, packet);
        Ok(())
    }

    /// No time passes: it runs until a packet leaves, or a bounded number of passes.
    fn receive(&mut self, port: u16, _: Duration) -> Result<Option<Vec<u8>>, p4::Error> {
        Interpreter::receive(self, port)
    }
}

/// Namespaces of this process so far.
static NAMESPACES: AtomicU32 = AtomicU32::new(0);

pub type Bmv2 = SwitchEngine<SimpleSwitch>;

/// A running switch, and the outer ends of its two wires.
pub struct SimpleSwitch {
    session: Session,
    host: RawSocket,
    network: RawSocket,
    // Last, in this order: the switch exits, then its namespace is removed.
    _process: Process,
    _namespace: Temporary,
}

impl Bmv2 {
    /// Starts a switch. `packet_bytes` is the size of a packet where depths are in packets.
    ///
    /// # Errors
    /// BMv2 is not installed, the process is not root, or the program does not have what the parameters need.
    pub fn new(params: &Params, packet_bytes: u64) -> Result<Self, Error> {
        let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
        let namespace =
            Temporary::create(&format!("dcqcn-bmv2-{}-{number}", process::id())).map_err(wire::wire_error)?;
        let netns = &*namespace;
        // Prevents neighbour discovery among the packets.
        netns
            .run(|| fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").is_ok())
            .map_err(wire::wire_error)?;
        let (host, network) = (wire::connect(netns, HOST)?, wire::connect(netns, NETWORK)?);
        let interfaces = [HOST, NETWORK].map(|port| (port, wire::inner(port)));
        let (process, session) = Process::start(netns, &interfaces)?;
        let target = SimpleSwitch { session, host, network, _process: process, _namespace: namespace };
        Self::over(target, params, packet_bytes)
    }
}

impl SimpleSwitch {
    const fn wire(&self, port: u16) -> &RawSocket {
        if port == HOST { &self.host } else { &self.network }
    }
}

impl Target for SimpleSwitch {
    fn control(&mut self) -> &mut dyn Control {
        &mut self.session
    }

    /// No effect: `simple_switch` has its own clock.
    fn set_time(&mut self, _: u64) {}

    fn send(&mut self, port: u16, packet: &[u8]) -> Result<(), p4::Error> {
        self.wire(port).send(packet).map_err(wire::wire_error)
    }

    fn receive(&mut self, port: u16, within: Duration) -> Result<Option<Vec<u8>>, p4::Error> {
        self.wire(port).receive(within).map_err(wire::wire_error)
    }
}
