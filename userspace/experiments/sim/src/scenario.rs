//! Scenario types without a file format, filled by `sim::file` and the command line.
//!
//! One bottleneck: senders, each with its own link into a switch, one output port with a queue per class, and one
//! receiver behind it.
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

mod validate;

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::Config;

pub use crate::network::workload::{SizeWeight, Work};
pub use crate::network::{Marking, QueuePfc as Pfc, Schedule, SimError, TcpLaw, TcpRules, Transport};

/// Maximum simulated time, within that of the engine.
pub(crate) const MAX_DURATION_NS: u64 = 270_000_000_000;
/// Maximum delay of one link, or of a reply: 1 s.
pub(crate) const MAX_DELAY_NS: u64 = 1_000_000_000;
/// Maximum number of flows: a switch has fewer than 65,536 ports.
pub(crate) const MAX_FLOWS: u32 = 60_000;
/// Maximum frame, payload and headers together: a jumbo frame.
pub(crate) const MAX_FRAME_BYTES: u32 = 9_216;
/// Maximum buffer of the switch: 1 GB.
pub(crate) const MAX_BUFFER_BYTES: u64 = 1_000_000_000;
/// Maximum message, block or flow: 1 TB.
pub(crate) const MAX_MESSAGE_BYTES: u64 = 1_000_000_000_000;
/// Maximum samples of a time series; a shorter interval is lengthened accordingly.
pub(crate) const MAX_SAMPLES: u64 = 10_000;

/// A simulation. Equal scenarios have bit-identical outcomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
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
    /// One-way delay of the receiver's link.
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
    /// Scheduling.
    pub schedule: Schedule,
    /// Priority flow control (IEEE 802.1Qbb) towards every sender of this class; `None`: off.
    pub pfc: Option<Pfc>,
}

/// Equal flows, one QP or TCP connection each.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Name in the outcome.
    pub name: String,
    /// Number of flows.
    pub flows: u32,
    /// Flows per sender (sharing its link in round robin), 1 or more.
    pub flows_per_sender: u32,
    /// Class, 0 to 7.
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

/// Recorded time series.
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

impl Scenario {
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

    /// Whether all RoCE flows are finite.
    pub(crate) fn is_finite(&self) -> bool {
        all_finite(&self.groups)
    }

    /// The RoCE groups.
    pub(crate) fn roce(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|group| group.is_roce())
    }

    /// Number of RoCE flows.
    pub(crate) fn roce_flows(&self) -> u32 {
        self.roce().map(|group| group.flows).sum()
    }

    /// The group that `group` waits for, by number.
    pub(super) fn dependency_of(&self, group: &Group) -> Option<usize> {
        let name = group.after.as_deref()?;
        self.groups.iter().position(|other| other.is_roce() && other.name == name)
    }

    /// `config` with the senders' link rate in it.
    pub(super) fn link_config(&self) -> Config {
        let mut config = self.config;
        config.scalars.link_rate_bps = self.sender_rate_bps;
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

    /// `flows` flows of TCP in class 0 from time 0 on: segments of 1460 bytes and 58 of headers, 6 MB of window, 200 ms
    /// (Linux) of shortest timeout; CUBIC without ECN.
    pub(crate) fn tcp(name: impl Into<String>, flows: u32, law: TcpLaw) -> Self {
        let rules = TcpRules { law, ecn: law == TcpLaw::Dctcp, max_window_bytes: 6_000_000 };
        let transport = Transport {
            payload_bytes: 1_460,
            header_bytes: 58,
            timeout_ns: 200_000_000,
            tcp: Some(rules),
            ..Transport::default()
        };
        Self { class: 0, transport, ..Self::roce(name, flows) }
    }

    /// Whether its flows are RoCE.
    pub fn is_roce(&self) -> bool {
        self.transport.tcp.is_none()
    }

    /// Whether each flow sends one message.
    pub(crate) fn is_finite(&self) -> bool {
        matches!(self.work, Work::Once { .. })
    }
}

/// Whether there are RoCE flows, and each of them sends one message.
pub(super) fn all_finite(groups: &[Group]) -> bool {
    let mut roce = groups.iter().filter(|group| group.is_roce()).peekable();
    roce.peek().is_some() && roce.all(Group::is_finite)
}
