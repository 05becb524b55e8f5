//! Scenario types, filled from command line and files.

use clap::ValueEnum;
use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Config, Invalid, MIN_RATE_BPS, Quantity, Scalars, Unit};
use dcqcn_common::pfc::watchdog::Watchdog;
use dcqcn_params::quantity::{OutOfRange, in_range};

use crate::network::agenda::MAX_TIME_NS;
use crate::network::scheduler::Schedule;
use crate::network::topology::{Topology, TopologyError};
use crate::network::workload::{Workload, WorkloadError};

/// Maximum simulated time: 274 s.
pub(crate) const MAX_DURATION_NS: u64 = MAX_TIME_NS;
/// Maximum memory for samples, in bytes.
const MAX_SAMPLE_BYTES: u64 = 1_000_000_000;
/// Maximum frame, payload and headers together: a jumbo frame.
pub(crate) const MAX_FRAME_BYTES: u32 = 9_216;
/// Maximum buffer of a switch: 4 GB.
pub(crate) const MAX_BUFFER_BYTES: u64 = 4_000_000_000;

/// Range of times of [`Nscc`], ns.
const TIMES_NS: std::ops::RangeInclusive<u64> = 100..=1_000_000_000;

/// A simulation. Equal scenarios have bit-identical outcomes, on any number of cores.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed of marking, spraying, and of the input of ECMP.
    pub seed: u64,
    /// The simulation ends when every flow is complete, or at this time.
    pub duration_ns: u64,
    pub topology: Topology,
    pub workload: Workload,
    /// DCQCN: rate machine, CNP interval, and WRED of each class (`ecn = false` disables marking). The rate of a host's
    /// link replaces `link_rate`; CNPs use the class of `cnp_dscp`.
    ///
    /// `pacer` is always `fq` here, as a NIC enforces departure times, and `pacing_credit` is the time of one packet.
    pub config: Config,
    pub control: Control,
    pub window_end: WindowEnd,
    pub transport: Transport,
    pub switch: Switching,
    pub faults: Vec<Fault>,
    /// Interval between samples of the switches' queues; `None`: no samples.
    pub sample_ns: Option<u64>,
    /// Additions for a single bottleneck.
    pub(crate) bottleneck: Option<Bottleneck>,
}

/// A single bottleneck, from the port of a switch to the last host. QPs stay connected, and their counters last.
///
/// The reverse path is not congested: replies reach a sender after a delay, in order. They are never queued or lost.
#[derive(Clone, Debug)]
pub(crate) struct Bottleneck {
    /// Transports of QPs ([`Pair::transport`](crate::network::workload::Pair)).
    pub(crate) transports: Vec<Transport>,
    pub(crate) reply_ns: Vec<u64>,
    /// PFC by the depth of the port's queue.
    pub(crate) pfc: [Option<QueuePfc>; CLASSES],
}

/// PFC by the depth of a class's queue at its egress port, towards all senders (a switch counts per ingress port).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePfc {
    /// Above this depth the class is paused.
    pub xoff_bytes: u64,
    /// At this depth it resumes; at most XOFF.
    pub xon_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// None: all send at their link's rate.
    Off,
    /// DCQCN: receivers answer marks with CNPs, and senders adapt their rate.
    Dcqcn,
    /// NSCC: acknowledgements report marks, and senders adapt their window. Requires selective repeat.
    Nscc(Nscc),
}

/// Trigger of the CNP at the end of a window with marks (`np_window` both).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WindowEnd {
    /// A timer, as in the paper.
    #[default]
    Timer,
    /// The next packet within the scope of the window: the flow, unless `cnp_limit` is another. So does the data plane.
    #[value(name = "flow")]
    NextOfFlow,
    /// The next packet that the host receives, of any flow.
    #[value(name = "port")]
    NextOfPort,
}

/// Parameters of NSCC (Ultra Ethernet 1.0, network-signaled congestion control).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nscc {
    /// Round trip of a full packet and its acknowledgement between the farthest hosts, through an empty network: 100 ns
    /// to 1 s. A sender uses its shortest measured round trip if that is shorter.
    pub base_rtt_ns: u64,
    /// Target queueing delay, 100 ns to 1 s: the base round trip, or 3/4 of it if switches trim.
    pub target_delay_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Payload of a full packet (the path MTU).
    pub payload_bytes: u32,
    /// Overhead of a data frame: Ethernet, IP, UDP, BTH, ICRC, FCS. An ACK has 4 bytes (AETH) more, a CNP 16.
    pub header_bytes: u32,
    /// Packets per acknowledgement; the last one of each message is always acknowledged.
    pub ack_every: u32,
    /// Class of ACKs and NAKs; `None`: that of the data.
    pub ack_class: Option<u8>,
    pub timeout_ns: u64,
    pub recovery: Recovery,
    /// Selective repeat: packets that may overtake another before it counts as lost; 0 on one path, more if sprayed.
    pub reordering: u32,
    /// Maximum bytes in flight per QP, as IRN limits them to the bandwidth-delay product; 0: no limit.
    pub window_bytes: u64,
    /// Receiver-driven admission; `None`: senders are not limited.
    pub admission: Option<Admission>,
    /// QPs that share a host's link: `pacing_credit` is the time of a packet of each.
    pub qps_per_host: u32,
    /// TCP instead of RoCE: its window replaces the rate and go-back-N, and `timeout_ns` is its shortest timeout.
    pub tcp: Option<TcpLaw>,
}

/// Congestion control of a TCP sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcpLaw {
    /// CUBIC, RFC 9438, without ECN.
    #[default]
    Cubic,
    /// DCTCP, RFC 8257, with ECN.
    Dctcp,
}

/// Receiver-driven admission as in Meta's collective library (Gangidi et al., SIGCOMM'24).
///
/// A sender requests to send, and sends what is granted (clear to send). A receiver limits the bytes in
/// flight to it, and serves waiting senders in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Maximum bytes in flight to one receiver.
    pub bytes: u64,
    /// Bytes per grant.
    pub chunk_bytes: u64,
    /// Class of requests and grants; `None`: that of CNPs.
    pub class: Option<u8>,
}

/// Retransmission after a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Recovery {
    /// Everything from the first missing packet, as RoCE NICs do (InfiniBand Architecture Specification, vol. 1, §9.7).
    GoBackN,
    /// As there, with the tail-loss probe of `common` in addition, as `dcqcn run` sends it to soft-RoCE.
    Probe,
    /// Missing packets only, as IRN does (Mittal et al., SIGCOMM'18). A packet counts as lost when more than
    /// [`Transport::reordering`] later ones have arrived.
    Selective,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Switching {
    /// Buffer shared by all ports.
    pub buffer_bytes: u64,
    pub classes: [Class; CLASSES],
    /// Queue depth that decides on a mark.
    pub marking: Marking,
    /// Kmin and Kmax apply to the link of host 0, and scale with a port's rate, as in HPCC's switches; `false`: they
    /// are equal at all ports.
    pub wred_by_rate: bool,
    /// Choice among several shortest paths.
    pub balance: Balance,
    /// Time from the failure of a link until all switches have new routes.
    pub reroute_ns: u64,
    /// Packets of a lossy class without room are trimmed instead of dropped, and continue in this class.
    pub trim_to: Option<u8>,
    /// PFC watchdog; `None`: none.
    pub watchdog: Option<Watchdog>,
}

/// One class, at all ports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    pub schedule: Schedule,
    /// Behaviour without room: drop packets or pause senders.
    pub loss: Loss,
}

/// Behaviour of a class without room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Drops packets beyond this depth of the queue at their egress port.
    Lossy(Threshold),
    /// Pauses the peer of their ingress port (IEEE 802.1Qbb).
    Lossless(Pfc),
}

/// Limit of the shared buffer for a queue, or for the packets of one ingress port and class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// Bytes (SONiC: `static_th`).
    Bytes(u64),
    /// Multiple of the free buffer (SONiC: `dynamic_th`, of which this is 2 to the power).
    Alpha(f64),
}

/// Priority flow control of one class, per ingress port, with the fields of SONiC's BUFFER_PROFILE.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pfc {
    /// Threshold above which the port is paused.
    pub xoff: Threshold,
    /// Headroom above XOFF for packets that arrive before the pause takes effect, per ingress port (`xoff`).
    pub headroom_bytes: u64,
    /// The port resumes this far below XOFF (`xon_offset`).
    pub xon_offset_bytes: u64,
}

/// Queue depth that decides whether a packet is marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Marking {
    /// On arrival: bytes queued before it.
    #[value(name = "ingress")]
    Enqueue,
    /// On departure: bytes queued behind it, as in the authors' switches and HPCC's simulator.
    #[default]
    #[value(name = "egress")]
    Dequeue,
}

/// Choice among several shortest paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Balance {
    /// By a hash of its QP: all packets of a QP take one path.
    #[default]
    Ecmp,
    /// At random for each data packet.
    Spray,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub at_ns: u64,
    pub kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A link fails, by its number in the topology: packets on it are lost.
    LinkDown(u32),
    /// A link recovers.
    LinkUp(u32),
    /// A host pauses these classes (as bits) permanently.
    StormBegins {
        host: u32,
        /// Bit per class.
        classes: u8,
    },
    /// The host resumes them.
    StormEnds { host: u32 },
}

/// Reason why a scenario cannot run or did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    #[error(transparent)]
    Range(#[from] OutOfRange),
    #[error("{0}, so that all samples take at most 1GB; increase it, or reduce the duration")]
    Sample(OutOfRange),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error(transparent)]
    Config(#[from] Invalid),
    #[error(
        "the buffer of {} is too small for {switch}: the headroom of its {ports} ports takes {}; give it more, or \
         less headroom",
        Quantity(*.buffer_bytes, Unit::Bytes), Quantity(*.taken_bytes, Unit::Bytes)
    )]
    Buffer { switch: String, ports: usize, buffer_bytes: u64, taken_bytes: u64 },
    #[error(
        "NSCC needs every packet that arrives, but go-back-N discards those behind a gap: use selective recovery"
    )]
    NsccRecovery,
    #[error("the scenario has no flows; add a RoCE or TCP group with `flows` of at least 1")]
    NoFlows,
    #[error("group `{group}` cannot start after `{after}`: {why}")]
    After { group: String, after: String, why: &'static str },
    #[error(
        "all flows end after {}, before the warm-up of {} ends, so nothing is measured; shorten the warm-up or send more data",
        Quantity(*.now_ns, Unit::Nanoseconds), Quantity(*.stats_from_ns, Unit::Nanoseconds)
    )]
    NothingMeasured { now_ns: u64, stats_from_ns: u64 },
    #[error(
        "all flows stop before the warm-up of {} ends, so nothing is measured; shorten --warm-up, or stop later",
        Quantity(*.warm_up_ns, Unit::Nanoseconds)
    )]
    Stops { warm_up_ns: u64 },
    #[error("stopped after {} of simulated time", Quantity(*.now_ns, Unit::Nanoseconds))]
    Stopped { now_ns: u64 },
}

impl Default for Transport {
    /// Packets of 4,096 bytes and 66 of headers, an ACK every 16 packets, a timeout of 4 ms, go-back-N.
    fn default() -> Self {
        Self {
            payload_bytes: 4_096,
            header_bytes: 66,
            ack_every: 16,
            ack_class: None,
            timeout_ns: 4_000_000,
            recovery: Recovery::GoBackN,
            reordering: 0,
            window_bytes: 0,
            admission: None,
            qps_per_host: 1,
            tcp: None,
        }
    }
}

impl Switching {
    /// A buffer of 32 MB; classes 3 and 4 lossless with dynamic thresholds (alpha 1/8) and this much headroom
    /// per port and class, classes 6 and 7 strict, the rest lossy DWRR queues with alpha 1; ECMP.
    pub(crate) fn new(headroom_bytes: u64) -> Self {
        let xon_offset_bytes = 2 * u64::from(MAX_FRAME_BYTES);
        let pfc = Pfc { xoff: Threshold::Alpha(0.125), headroom_bytes, xon_offset_bytes };
        let class = |tc: usize| Class {
            schedule: if tc >= 6 { Schedule::Strict } else { Schedule::Dwrr(1) },
            loss: if tc == 3 || tc == 4 { Loss::Lossless(pfc) } else { Loss::Lossy(Threshold::Alpha(1.0)) },
        };
        Self {
            buffer_bytes: 32_000_000,
            classes: std::array::from_fn(class),
            marking: Marking::default(),
            wred_by_rate: false,
            balance: Balance::default(),
            reroute_ns: 10_000_000,
            trim_to: None,
            watchdog: None,
        }
    }
}

impl Scenario {
    /// `workload` on `topology` with the defaults of everything else, until it is complete or a second has passed.
    ///
    /// The headroom is what may arrive at a port after it has requested a pause: twice the longest delay of a
    /// link at the highest rate, and a frame of each side.
    pub fn new(topology: Topology, workload: Workload, config: Config) -> Self {
        let rate_bps = topology.links.iter().map(|link| link.rate_bps).max().unwrap_or(0);
        let delay_ns = topology.links.iter().map(|link| link.delay_ns).max().unwrap_or(0);
        let flight_bytes = u128::from(rate_bps) * u128::from(2 * delay_ns) / 8_000_000_000;
        let headroom_bytes = flight_bytes as u64 + 3 * u64::from(MAX_FRAME_BYTES);
        Self {
            seed: 1,
            duration_ns: 1_000_000_000,
            topology,
            workload,
            config,
            control: Control::Dcqcn,
            window_end: WindowEnd::default(),
            transport: Transport::default(),
            switch: Switching::new(headroom_bytes),
            faults: Vec::new(),
            sample_ns: None,
            bottleneck: None,
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first violation, with value and allowed range.
    pub fn validate(&self) -> Result<(), SimError> {
        self.topology.validate()?;
        self.workload.validate(self.topology.hosts)?;
        in_range("duration", self.duration_ns, 1_000..=MAX_DURATION_NS, Unit::Nanoseconds)?;
        if let Some(sample_ns) = self.sample_ns {
            let least_ns = self.min_sample_ns();
            in_range("sample interval", sample_ns, least_ns..=MAX_DURATION_NS, Unit::Nanoseconds).map_err(
                |error| match sample_ns {
                    1_000.. if sample_ns < least_ns => SimError::Sample(error),
                    _ => error.into(),
                },
            )?;
        }
        self.transport.validate()?;
        self.control.validate(&self.transport)?;
        self.switch.validate()?;
        for fault in &self.faults {
            in_range("time of a fault", fault.at_ns, 0..=self.duration_ns - 1, Unit::Nanoseconds)?;
            match fault.kind {
                FaultKind::LinkDown(link) | FaultKind::LinkUp(link) => {
                    let last = self.topology.links.len().saturating_sub(1) as u64;
                    in_range("link of a fault", link.into(), 0..=last, Unit::Count)?;
                }
                FaultKind::StormBegins { host, .. } | FaultKind::StormEnds { host } => {
                    let last = u64::from(self.topology.hosts.saturating_sub(1));
                    in_range("host of a pause storm", host.into(), 0..=last, Unit::Count)?;
                }
            }
        }
        self.host_config(0, &self.transport).validate()?;
        Ok(())
    }

    /// Smallest interval between samples, for which they fit [`MAX_SAMPLE_BYTES`].
    pub(crate) fn min_sample_ns(&self) -> u64 {
        // Depth and pause of every switch, and pause of every host.
        let bytes = 16 * u64::from(self.topology.switches) + 4 * u64::from(self.topology.hosts);
        (self.duration_ns.saturating_mul(bytes) / MAX_SAMPLE_BYTES).max(1_000)
    }

    pub(crate) fn frame_bytes(&self) -> u32 {
        self.transports().iter().map(Transport::frame_bytes).max().unwrap_or(0)
    }

    pub(crate) fn transports(&self) -> &[Transport] {
        self.bottleneck.as_ref().map_or(std::slice::from_ref(&self.transport), |own| &own.transports)
    }

    /// `config` for QPs of `transport` at a host with this link; 0: the fastest of all.
    pub(crate) fn host_config(&self, rate_bps: u64, transport: &Transport) -> Config {
        let fastest_bps = || self.topology.links.iter().map(|link| link.rate_bps).max().unwrap_or(0);
        let rate_bps = if rate_bps == 0 { fastest_bps() } else { rate_bps };
        let mut config = self.config;
        let scalars = &mut config.scalars;
        scalars.link_rate_bps = rate_bps;
        let wire_bytes = u64::from(transport.frame_bytes()) + scalars.wire_overhead_bytes;
        scalars.pacer = dcqcn_common::params::PACER_FQ;
        if self.control != Control::Dcqcn {
            ignore_min_rate(scalars);
        }
        // A packet that waits for its link must not cost its flow any rate.
        let packet_ns = crate::network::wire::Transmitter::time_ns(rate_bps, wire_bytes);
        scalars.pacing_credit_ns = (packet_ns * u64::from(transport.qps_per_host)).min(1_000_000_000);
        config
    }
}

/// Removes the lower limit of the rate machine, as no CNP reduces a rate: any link is fast enough.
pub(crate) const fn ignore_min_rate(scalars: &mut Scalars) {
    scalars.rpg_min_rate_bps = MIN_RATE_BPS;
}

impl Transport {
    pub(crate) const fn frame_bytes(&self) -> u32 {
        self.payload_bytes + self.header_bytes
    }

    fn validate(&self) -> Result<(), OutOfRange> {
        in_range("header", self.header_bytes.into(), 0..=256, Unit::Bytes)?;
        let most = u64::from(MAX_FRAME_BYTES - self.header_bytes.min(256));
        in_range("payload", self.payload_bytes.into(), 64..=most, Unit::Bytes)?;
        in_range("packets per acknowledgement", self.ack_every.into(), 1..=1_000_000, Unit::Count)?;
        in_range("class of acknowledgements", self.ack_class.unwrap_or(0).into(), 0..=7, Unit::Count)?;
        in_range("retransmission timeout", self.timeout_ns, 1_000..=MAX_DURATION_NS, Unit::Nanoseconds)?;
        let least = u64::from(self.payload_bytes);
        let window = if self.window_bytes == 0 { least } else { self.window_bytes };
        in_range("window", window, least..=MAX_BUFFER_BYTES, Unit::Bytes)?;
        let Some(admission) = self.admission else { return Ok(()) };
        in_range("admission", admission.bytes, least..=MAX_BUFFER_BYTES, Unit::Bytes)?;
        in_range("turn of admission", admission.chunk_bytes, least..=admission.bytes, Unit::Bytes)?;
        in_range("class of admission", admission.class.unwrap_or(0).into(), 0..=7, Unit::Count)
    }
}

impl Switching {
    fn validate(&self) -> Result<(), OutOfRange> {
        let buffers = u64::from(MAX_FRAME_BYTES)..=MAX_BUFFER_BYTES;
        in_range("buffer", self.buffer_bytes, buffers, Unit::Bytes)?;
        for (tc, class) in self.classes.iter().enumerate() {
            if let Schedule::Dwrr(weight) = class.schedule {
                in_range(format!("DWRR weight of class {tc}"), weight.into(), 1..=1_000, Unit::Count)?;
            }
            let (Loss::Lossy(threshold) | Loss::Lossless(Pfc { xoff: threshold, .. })) = class.loss;
            if let Threshold::Alpha(alpha) = threshold {
                let ppm = (alpha * 1e6).clamp(0.0, 1e12) as u64;
                in_range(format!("alpha of class {tc}"), ppm, 1_000..=1_000_000_000, Unit::PartsPerMillion)?;
            }
        }
        in_range("class of trimmed packets", self.trim_to.unwrap_or(0).into(), 0..=7, Unit::Count)?;
        in_range("reroute time", self.reroute_ns, 0..=MAX_DURATION_NS, Unit::Nanoseconds)?;
        if let Some(watchdog) = self.watchdog {
            let times = 1_000..=MAX_DURATION_NS;
            for (what, time_ns) in
                [("detection", watchdog.detection_ns), ("restoration", watchdog.restoration_ns)]
            {
                let what = format!("{what} time of the PFC watchdog");
                in_range(what, time_ns, times.clone(), Unit::Nanoseconds)?;
            }
        }
        Ok(())
    }
}

impl Control {
    fn validate(self, transport: &Transport) -> Result<(), SimError> {
        let Self::Nscc(nscc) = self else { return Ok(()) };
        in_range("base round trip", nscc.base_rtt_ns, TIMES_NS, Unit::Nanoseconds)?;
        in_range("target delay", nscc.target_delay_ns, TIMES_NS, Unit::Nanoseconds)?;
        match transport.recovery {
            Recovery::Selective => Ok(()),
            Recovery::GoBackN | Recovery::Probe => Err(SimError::NsccRecovery),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) at_ns: u64,
    pub(crate) what: ChangeKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ChangeKind {
    /// A link fails or recovers.
    Link { link: u32, up: bool },
    /// All switches adopt the routes after this many link changes.
    Routes { epoch: usize },
    /// A host pauses these classes permanently; none: it resumes them.
    Storm { host: u32, classes: u8 },
}

/// The changes of `scenario` in order of time, and after each link change the links that are down.
pub(crate) fn changes(scenario: &Scenario) -> (Vec<Change>, Vec<Vec<u32>>) {
    let mut faults = scenario.faults.clone();
    faults.sort_by_key(|fault| fault.at_ns);
    let mut changes = Vec::new();
    let mut down = Vec::new();
    let mut epochs = vec![Vec::new()];
    for fault in faults {
        let at_ns = fault.at_ns;
        let what = match fault.kind {
            FaultKind::LinkDown(link) => ChangeKind::Link { link, up: false },
            FaultKind::LinkUp(link) => ChangeKind::Link { link, up: true },
            FaultKind::StormBegins { host, classes } => ChangeKind::Storm { host, classes },
            FaultKind::StormEnds { host } => ChangeKind::Storm { host, classes: 0 },
        };
        changes.push(Change { at_ns, what });
        if let ChangeKind::Link { link, up } = what {
            down.retain(|other| *other != link);
            if !up {
                down.push(link);
            }
            let what = ChangeKind::Routes { epoch: epochs.len() };
            changes.push(Change { at_ns: at_ns.saturating_add(scenario.switch.reroute_ns), what });
            epochs.push(down.clone());
        }
    }
    changes.sort_by_key(|change| change.at_ns);
    (changes, epochs)
}
