//! A single bottleneck: a star of hosts around one switch, whose last host receives everything, in the network engine.
//!
//! Senders, each with its own link into a switch, one output port with a queue per class, and one receiver behind it:
//!
//! ```text
//! sender 0 ──sender link──┐
//! sender 1 ──sender link──┤ queues 0..8 ── port ──receiver link── receiver
//!    ...                  ┘
//!          ◄──────────── ACK, NAK, CNP, TCP ACK: delayed, never queued ────────────
//! ```
//!
//! The reverse path is assumed uncongested: replies of the receiver arrive after the delays of both links, in order,
//! and are never lost.

mod collect;
pub(crate) mod outcome;
#[cfg(test)]
mod tests;

use std::iter::repeat_n;
use std::sync::Arc;

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Config, Unit};
use dcqcn_params::quantity::{OutOfRange, in_range};

use self::collect::Collector;
pub use self::outcome::*;
use crate::network::outcome::short_timeout;
use crate::network::workload::{MAX_FLOW_BYTES, Pair, Source, Wait, Work, Workload};
use crate::network::{
    Bottleneck, Class as NetworkClass, Control, Link, Loss, MAX_FRAME_BYTES, MAX_PACKETS, Marking,
    OnProgress, Progress, QueuePfc, Random, Scenario, Schedule, SimError, Simulation, Switching, TcpLaw,
    Threshold, Topology, Transmitter, Transport, ignore_min_rate, simulate,
};

/// Maximum simulated time, within that of the engine.
pub(crate) const MAX_DURATION_NS: u64 = 270_000_000_000;
/// Maximum number of flows: a switch has fewer than 65,536 ports.
pub(crate) const MAX_FLOWS: u32 = 60_000;
/// Maximum buffer of the switch: 1 GB.
pub(crate) const MAX_BUFFER_BYTES: u64 = 1_000_000_000;
/// Maximum samples of a time series; a shorter interval is lengthened accordingly.
pub(crate) const MAX_SAMPLES: u64 = 10_000;

/// Description of a star, filled from settings. Equal ones have bit-identical outcomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Star {
    /// Seed of marking, start times and message sizes.
    pub seed: u64,
    /// Simulated time, at most 270 s. If all RoCE flows send a single message, the simulation ends when the last is
    /// complete, if that is sooner.
    pub duration_ns: u64,
    /// Start of the statistics; below `duration_ns`.
    pub stats_from_ns: u64,
    /// Rate of the switch's port to the receiver: the bottleneck.
    pub port_rate_bps: u64,
    /// Rate of every sender's link. It replaces `link_rate` in `config`, and so is the flows' line rate.
    pub sender_rate_bps: u64,
    /// One-way delay of a sender's link; groups may override it.
    pub sender_delay_ns: u64,
    pub receiver_delay_ns: u64,
    /// The switch's buffer for this port, shared by all classes; packets that do not fit are dropped.
    pub buffer_bytes: u64,
    /// The port's queues, one per class: `dscp_to_tc` and `tc_to_queue` of `config` are ignored.
    pub classes: [Class; CLASSES],
    /// Queue depth that decides on a mark.
    pub marking: Marking,
    /// DCQCN: the rate machine, the CNP interval and WRED of each class (`ecn = false` disables marking). Every link
    /// adds `wire_overhead` to each frame. `np_enable` and `rp_enable` apply, `cp_enable` and `fast_cnp` do not.
    ///
    /// `pacer` is always `fq` here, as a NIC enforces departure times, and `pacing_credit` is the time of one packet of
    /// each QP of the NIC, the longest wait for its link.
    pub config: Config,
    /// Whether receivers answer marks with CNPs and senders slow down; `false`: RoCE flows send at line rate.
    pub control: bool,
    /// Flows, RoCE before TCP.
    pub groups: Vec<Group>,
    /// Time series to record; `None`: none.
    pub series: Option<SeriesRequest>,
}

/// One queue of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Maximum queue of this class; `None`: only the shared buffer limits it.
    pub limit_bytes: Option<u64>,
    pub schedule: Schedule,
    /// Priority flow control (IEEE 802.1Qbb) towards every sender of this class; `None`: off.
    pub pfc: Option<QueuePfc>,
}

/// Equal flows, one QP or TCP connection each.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub name: String,
    pub flows: u32,
    /// Flows per sender (sharing its link in round robin), 1 or more.
    pub flows_per_sender: u32,
    pub class: u8,
    /// Name of the RoCE group whose messages must all be complete first; `None`: none.
    pub after: Option<String>,
    /// Start time, relative to the end of `after` if given, which a sender knows of up to two link delays later.
    pub start_ns: u64,
    /// Maximum random delay of each start. Flows that start together and are never cut send in lockstep: when the
    /// buffer is full, the same ones lose every time.
    pub start_jitter_ns: u64,
    /// Time at which the flows stop sending new data; `None`: never.
    pub stop_ns: Option<u64>,
    /// One-way delay of the senders' links, if not the scenario's.
    pub sender_delay_ns: Option<u64>,
    /// Work; TCP sends endless data.
    pub work: Work,
    /// Transport; 0 bytes of headers make packets of the fluid model.
    pub transport: Transport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesRequest {
    /// Interval between samples; goodput is averaged over it.
    pub interval_ns: u64,
    /// Number of flows with their own series, from the first on; groups always have one.
    pub max_flows: u32,
}

impl Default for Class {
    /// DWRR with weight 1, no separate limit, no PFC.
    fn default() -> Self {
        Self { limit_bytes: None, schedule: Schedule::Dwrr(1), pfc: None }
    }
}

impl Star {
    /// A port and senders of `rate_bps` without flows: 100 ms including a warm-up of 20 ms, 1 us of delay per link, 12
    /// MB of buffer, every class DWRR with weight 1, DCQCN on.
    pub(crate) fn new(rate_bps: u64, config: Config) -> Self {
        Self {
            seed: 1,
            duration_ns: 100_000_000,
            stats_from_ns: 20_000_000,
            port_rate_bps: rate_bps,
            sender_rate_bps: rate_bps,
            sender_delay_ns: 1_000,
            receiver_delay_ns: 1_000,
            buffer_bytes: 12_000_000,
            classes: [Class::default(); CLASSES],
            marking: Marking::default(),
            config,
            control: true,
            groups: Vec::new(),
            series: None,
        }
    }

    pub(crate) fn is_finite(&self) -> bool {
        all_finite(&self.groups)
    }

    pub(crate) fn roce(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|group| group.is_roce())
    }

    pub(crate) fn roce_flows(&self) -> u32 {
        self.roce().map(|group| group.flows).sum()
    }

    fn dependency_of(&self, group: &Group) -> Option<usize> {
        let name = group.after.as_deref()?;
        self.groups.iter().position(|other| other.is_roce() && other.name == name)
    }

    fn link_config(&self) -> Config {
        let mut config = self.config;
        config.scalars.link_rate_bps = self.sender_rate_bps;
        if !self.control {
            ignore_min_rate(&mut config.scalars);
        }
        config
    }
}

impl Group {
    /// `flows` bulk flows of RoCE in class 3 from time 0 on, each with its own sender: packets of 1024 bytes and 66 of
    /// headers, an ACK every 16 packets, a retransmission timeout of 4 ms.
    pub(crate) fn roce(name: impl Into<String>, flows: u32) -> Self {
        Self {
            name: name.into(),
            flows,
            flows_per_sender: 1,
            class: 3,
            after: None,
            start_ns: 0,
            start_jitter_ns: 0,
            stop_ns: None,
            sender_delay_ns: None,
            work: Work::Bulk,
            transport: Transport { payload_bytes: 1_024, ..Transport::default() },
        }
    }

    /// `flows` flows of TCP in class 0 from time 0 on: segments of 1460 bytes and 58 of headers, and 200 ms (Linux) of
    /// shortest timeout.
    pub(crate) fn tcp(name: impl Into<String>, flows: u32, law: TcpLaw) -> Self {
        let transport = Transport {
            payload_bytes: 1_460,
            header_bytes: 58,
            timeout_ns: 200_000_000,
            tcp: Some(law),
            ..Transport::default()
        };
        Self { class: 0, transport, ..Self::roce(name, flows) }
    }

    pub fn is_roce(&self) -> bool {
        self.transport.tcp.is_none()
    }

    /// Whether each flow sends one message.
    pub(crate) fn is_finite(&self) -> bool {
        matches!(self.work, Work::Once { .. })
    }
}

/// Whether there are RoCE flows, and each of them sends one message.
pub(crate) fn all_finite(groups: &[Group]) -> bool {
    let mut roce = groups.iter().filter(|group| group.is_roce()).peekable();
    roce.peek().is_some() && roce.all(Group::is_finite)
}

/// Simulated time per step of the progress line.
const NS_PER_STEP: u64 = 1_000;

impl Simulation for Star {
    type Outcome = Outcome;

    fn steps(&self) -> u64 {
        self.duration_ns / NS_PER_STEP
    }

    fn warning(&self) -> Option<String> {
        let warning = |group: &Group| {
            let frame_bytes =
                u64::from(group.transport.frame_bytes()) + self.config.scalars.wire_overhead_bytes;
            let rates = [self.sender_rate_bps, self.port_rate_bps];
            let frame_ns: u64 = rates.iter().map(|&bps| Transmitter::time_ns(bps, frame_bytes)).sum();
            let rtt_ns = 2 * (self.sender_delay_of(group) + self.receiver_delay_ns) + frame_ns;
            short_timeout(group.transport.timeout_ns, rtt_ns)
        };
        self.roce().find_map(warning)
    }

    fn run(&self, _threads: usize, progress: &mut OnProgress<'_>) -> Result<Outcome, SimError> {
        self.validate()?;
        let (scenario, flows) = self.scenario();
        let mut collector = Collector::new(self, flows);
        let mut by_time = |now: Progress| progress(Progress { done: now.now_ns / NS_PER_STEP, ..now });
        let (nodes, now_ns) = simulate(&scenario, 1, &mut collector, &mut by_time)?;
        collector.outcome(nodes, now_ns)
    }
}

/// A flow. Its number is that of its QP, at the receiver too.
#[derive(Clone, Copy, Debug)]
struct Flow {
    group: u32,
    /// Sending host, and its QP there.
    host: u32,
    local: u32,
    start_ns: u64,
}

impl Group {
    const fn senders(&self) -> u32 {
        self.flows.div_ceil(self.flows_per_sender)
    }
}

impl Star {
    fn sender_delay_of(&self, group: &Group) -> u64 {
        group.sender_delay_ns.unwrap_or(self.sender_delay_ns)
    }

    fn scenario(&self) -> (Scenario, Vec<Flow>) {
        let mut workload = Workload::new();
        let mut flows: Vec<Flow> = Vec::new();
        let mut random = Random::new(self.seed);
        let delays_ns: Vec<u64> = self
            .groups
            .iter()
            .flat_map(|group| repeat_n(self.sender_delay_of(group), group.senders() as usize))
            .collect();
        let receiver = delays_ns.len() as u32;
        let mut first_host = 0;
        for (index, group) in (0..).zip(&self.groups) {
            let source = Source { work: Arc::new(group.work.clone()), stop_ns: group.stop_ns };
            for i in 0..group.flows {
                let (host, local) = (first_host + i / group.flows_per_sender, i % group.flows_per_sender);
                let start_ns = group.start_ns + random.up_to(group.start_jitter_ns);
                flows.push(Flow { group: index, host, local, start_ns });
                let pair = Pair { src: host, dst: receiver, class: group.class, transport: index as u16 };
                let qp = workload.connect(pair);
                let posted_ns = if group.after.is_some() { 0 } else { start_ns };
                let flow = match group.work {
                    Work::Once { bytes } => workload.send(qp, bytes, posted_ns),
                    _ => workload.send_from(qp, posted_ns, source.clone()),
                };
                workload.delay(flow, start_ns - posted_ns);
            }
            first_host += group.senders();
        }
        for (index, group) in self.groups.iter().enumerate() {
            let Some(before) = self.dependency_of(group) else { continue };
            let numbers =
                |group: usize| (0_u32..).zip(&flows).filter(move |(_, flow)| flow.group as usize == group);
            // A flow that waits for all of one group, and for which all of the other wait.
            let Some((_, first)) = numbers(index).next() else { continue };
            let barrier = workload.compute(first.host, 0);
            numbers(before).for_each(|(flow, _)| workload.after(barrier, flow, Wait::Acknowledged));
            numbers(index).for_each(|(flow, _)| workload.after(flow, barrier, Wait::Acknowledged));
        }

        let switch = receiver + 1;
        let to_switch = |(a, &delay_ns)| Link { a, b: switch, rate_bps: self.sender_rate_bps, delay_ns };
        let mut links: Vec<Link> = (0..).zip(&delays_ns).map(to_switch).collect();
        let (rate_bps, delay_ns) = (self.port_rate_bps, self.receiver_delay_ns);
        links.push(Link { a: receiver, b: switch, rate_bps, delay_ns });
        let topology = Topology { hosts: receiver + 1, switches: 1, links, names: Vec::new() };

        let mut scenario = Scenario::new(topology, workload, self.link_config());
        scenario.seed = self.seed;
        scenario.duration_ns = self.duration_ns;
        scenario.control = if self.control { Control::Dcqcn } else { Control::Off };
        scenario.switch = Switching {
            buffer_bytes: self.buffer_bytes,
            classes: self.classes.map(|class| NetworkClass {
                schedule: class.schedule,
                loss: Loss::Lossy(Threshold::Bytes(class.limit_bytes.unwrap_or(self.buffer_bytes))),
            }),
            marking: self.marking,
            ..scenario.switch
        };
        let transport = |group: &Group| Transport {
            qps_per_host: group.flows_per_sender.min(group.flows),
            ..group.transport
        };
        scenario.bottleneck = Some(Bottleneck {
            transports: self.groups.iter().map(transport).collect(),
            reply_ns: delays_ns.iter().map(|delay_ns| delay_ns + self.receiver_delay_ns).collect(),
            pfc: self.classes.map(|class| class.pfc),
        });
        (scenario, flows)
    }
}

/// Validation: relations between settings, and values from files. Settings check their own ranges.
impl Star {
    /// Checks every relation.
    pub(crate) fn validate(&self) -> Result<(), SimError> {
        in_range("warm-up", self.stats_from_ns, 0..=self.duration_ns - 1, Unit::Nanoseconds)?;
        for (tc, class) in self.classes.iter().enumerate() {
            class.validate(tc, self.buffer_bytes)?;
        }
        for group in &self.groups {
            group.validate()?;
        }
        for group in self.roce() {
            self.validate_packets(group)?;
        }
        let flows: u64 = self.groups.iter().map(|group| u64::from(group.flows)).sum();
        if flows == 0 {
            return Err(SimError::NoFlows);
        }
        in_range("number of flows", flows, 1..=u64::from(MAX_FLOWS), Unit::Count)?;
        if let Some(series) = self.series {
            let intervals = 1_000..=self.duration_ns;
            in_range("series interval", series.interval_ns, intervals, Unit::Nanoseconds)?;
        }
        self.validate_times()?;
        self.validate_order()?;
        self.link_config().validate()?;
        Ok(())
    }

    /// Checks that every flow starts, and that some of them send after the warm-up. The end of `after` is unknown.
    fn validate_times(&self) -> Result<(), SimError> {
        for group in self.groups.iter().filter(|group| group.after.is_none()) {
            let times = [
                (group.start_ns, ""),
                (group.start_ns.saturating_add(group.start_jitter_ns), ", with its jitter"),
            ];
            for (start_ns, with) in times {
                let what = format!("start of group `{}`{with}", group.name);
                in_range(what, start_ns, 0..=self.duration_ns - 1, Unit::Nanoseconds)?;
            }
        }
        let warm_up_ns = self.stats_from_ns;
        let mut stops = self.groups.iter().map(|group| group.stop_ns);
        if stops.all(|stop_ns| stop_ns.is_some_and(|stop_ns| stop_ns <= warm_up_ns)) {
            return Err(SimError::Stops { warm_up_ns });
        }
        Ok(())
    }

    /// Checks that the packets of a flow can be numbered.
    fn validate_packets(&self, group: &Group) -> Result<(), OutOfRange> {
        let frame_bytes = u64::from(group.transport.frame_bytes());
        let bits = u128::from(self.sender_rate_bps) * u128::from(self.duration_ns) / 1_000_000_000;
        let sendable = u64::try_from(bits / 8 / u128::from(frame_bytes)).unwrap_or(u64::MAX);
        let packets = match group.work {
            Work::Once { bytes } => sendable.min(bytes.div_ceil(group.transport.payload_bytes.into())),
            Work::Bulk | Work::Blocks { .. } | Work::Messages { .. } => sendable,
        };
        let what = format!("packets that a flow of group `{}` may send", group.name);
        in_range(what, packets, 0..=MAX_PACKETS, Unit::Count)
    }

    /// Checks that groups wait for existing, finite groups, without cycles.
    fn validate_order(&self) -> Result<(), SimError> {
        for group in self.groups.iter().filter(|group| group.after.is_some()) {
            let wrong = |why| SimError::After {
                group: group.name.clone(),
                after: group.after.clone().unwrap_or_default(),
                why,
            };
            let mut next = self.dependency_of(group).ok_or_else(|| wrong("no such group of RoCE flows"))?;
            if !self.groups[next].is_finite() {
                return Err(wrong("that group is endless; set its `size`"));
            }
            for _ in 0..self.groups.len() {
                match self.dependency_of(&self.groups[next]) {
                    Some(before) => next = before,
                    None => break,
                }
            }
            if self.dependency_of(&self.groups[next]).is_some() {
                return Err(wrong("that group waits for this one"));
            }
        }
        Ok(())
    }
}

impl Class {
    /// A queue that is full before it reaches XOFF would never pause.
    fn validate(&self, tc: usize, buffer_bytes: u64) -> Result<(), OutOfRange> {
        let Some(QueuePfc { xoff_bytes, xon_bytes }) = self.pfc else { return Ok(()) };
        let limit_bytes = self.limit_bytes.unwrap_or(buffer_bytes).min(buffer_bytes);
        let room = limit_bytes.saturating_sub(MAX_FRAME_BYTES.into());
        let what = format!("XOFF of class {tc}, a frame below its queue's limit");
        in_range(what, xoff_bytes, 0..=room, Unit::Bytes)?;
        in_range(format!("XON of class {tc}"), xon_bytes, 0..=xoff_bytes, Unit::Bytes)
    }
}

impl Group {
    fn validate(&self) -> Result<(), OutOfRange> {
        let check = |what: &str, value: u64, range, unit| {
            in_range(format!("{what} of group `{}`", self.name), value, range, unit)
        };
        let most = u64::from(MAX_FRAME_BYTES - self.transport.header_bytes);
        check("payload", self.transport.payload_bytes.into(), 64..=most, Unit::Bytes)?;
        check("start", self.start_ns, 0..=MAX_DURATION_NS, Unit::Nanoseconds)?;
        let stop_ns = self.stop_ns.unwrap_or(MAX_DURATION_NS);
        check("stop", stop_ns, self.start_ns..=MAX_DURATION_NS, Unit::Nanoseconds)?;
        let Work::Messages { sizes, mean_gap_ns } = &self.work else { return Ok(()) };
        check("number of message sizes", sizes.len() as u64, 1..=1_000, Unit::Count)?;
        for size in sizes {
            check("message size", size.bytes, 1..=MAX_FLOW_BYTES, Unit::Bytes)?;
            check("weight of a message size", size.weight, 1..=1_000_000_000_000, Unit::Count)?;
        }
        check("mean gap", *mean_gap_ns, 100..=MAX_DURATION_NS, Unit::Nanoseconds)
    }
}
