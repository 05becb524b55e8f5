//! Outcome of a simulation.

use std::cmp::Reverse;

use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::{Quantity, Unit};
use serde::Serialize;

use crate::network::builder::Node;
use crate::network::host::{Host, Record};
use crate::network::scenario::Scenario;
use crate::network::switch::{PortCounters, Switch};
use crate::network::topology::{PortSpec, Routes, Topology};
use crate::network::wire::Transmitter;
use crate::network::workload::{Collective, Round};

const BANDS: usize = 10;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// When the last flow was complete, or the time limit.
    pub duration_ns: u64,
    #[serde(skip)]
    pub flows: Vec<FlowOutcome>,
    /// All completed flows; `None`: none.
    pub fct: Option<Fct>,
    /// By size, the smallest first: a row per size if there are few, otherwise rows with equal numbers of flows.
    pub fct_by_size: Vec<FctBand>,
    /// Completed collectives, in the order of the workload.
    pub collectives: Vec<CollectiveOutcome>,
    pub classes: Vec<ClassOutcome>,
    pub transport: TransportOutcome,
    /// Ports of all switches, the deepest queue first.
    pub ports: Vec<PortOutcome>,
    /// Depths over time, if requested.
    pub samples: Option<Samples>,
    pub work: Work,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowOutcome {
    pub src: u32,
    pub dst: u32,
    pub bytes: u64,
    /// When it could start; `None`: not before the end.
    pub start_ns: Option<u64>,
    /// Time from there until its acknowledgement; `None`: incomplete.
    pub fct_ns: Option<u64>,
    /// Completion time in an empty fabric.
    pub ideal_ns: u64,
}

/// Completion times, absolute and relative to an empty fabric (slowdown). Percentiles are exact (nearest rank).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fct {
    pub count: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    pub slowdown_mean: f64,
    pub slowdown_p50: f64,
    pub slowdown_p95: f64,
    pub slowdown_p99: f64,
}

/// Completion times of flows of similar length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FctBand {
    pub min_bytes: u64,
    pub max_bytes: u64,
    pub fct: Fct,
}

/// One class at all switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClassOutcome {
    pub class: u8,
    pub marked_packets: u64,
    pub dropped_packets: u64,
    /// Packets lost with a link, or for lack of a route.
    pub lost_packets: u64,
    pub trimmed_packets: u64,
    pub storm_dropped_packets: u64,
    /// Times that a switch paused a neighbour.
    pub pauses: u64,
    pub switch_paused_ns: u64,
    pub host_paused_ns: u64,
    pub max_queue_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PortOutcome {
    pub switch: String,
    pub peer: String,
    pub tx_bytes: u64,
    pub max_queue_bytes: u64,
    /// Pause time, summed over the classes.
    pub paused_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransportOutcome {
    /// Data packets sent, retransmissions included.
    pub data_packets: u64,
    pub retransmitted_packets: u64,
    pub delivered_packets: u64,
    pub marked_packets: u64,
    pub cnps_sent: u64,
    /// CNPs that reached a sender.
    pub cnps_handled: u64,
    pub window_end: WindowEndOutcome,
    /// NAKs that reached a sender.
    pub naks: u64,
    pub timeouts: u64,
    pub probes: u64,
    /// PFC storms that watchdogs found.
    pub storms: u64,
    /// Peak use of a switch's shared buffer.
    pub max_buffer_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Transmissions of a packet, data or reply, over one link.
    pub hops: u64,
    /// Packets in queues of switches at the end.
    pub queued_packets: u64,
}

/// Depths over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Samples {
    pub interval_ns: u64,
    pub switches: Vec<SwitchSamples>,
    /// Pause time of hosts in each interval, summed over hosts and classes.
    pub hosts_paused_ns: Vec<u64>,
}

/// Depths of a switch over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SwitchSamples {
    pub switch: String,
    /// Maximum depth of any port in each interval.
    pub max_queue_bytes: Vec<u32>,
    /// Pause time of its ports in each interval, summed over ports and classes.
    pub paused_ns: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CollectiveOutcome {
    pub collective: Collective,
    pub bytes: u64,
    pub ranks: u32,
    /// When the last rank was ready for it.
    pub start_ns: u64,
    /// Time from then until the last rank completed it.
    pub time_ns: u64,
    /// Completion time of the median rank.
    pub median_ns: u64,
    /// Completion time of the first rank.
    pub first_ns: u64,
    /// Name of the last host to complete it: the straggler.
    pub last_host: String,
}

/// CNPs for marks within a window, sent at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WindowEndOutcome {
    pub cnps: u64,
    pub late_p50_ns: u64,
    pub late_p99_ns: u64,
    pub late_max_ns: u64,
    /// Marks that were never answered, as no packet arrived after the window to trigger a CNP.
    pub unanswered: u64,
}

/// Sums up the nodes' counters up to `now_ns`.
pub(crate) fn collect(
    scenario: &Scenario,
    ports: &[Vec<PortSpec>],
    nodes: impl Iterator<Item = Node>,
    now_ns: u64,
) -> Outcome {
    let class = |class: u8| ClassOutcome { class, ..ClassOutcome::default() };
    let out = Outcome {
        duration_ns: now_ns,
        flows: ideal_flows(scenario, ports),
        classes: (0..CLASSES as u8).map(class).collect(),
        samples: scenario.sample_ns.map(|interval_ns| Samples { interval_ns, ..Samples::default() }),
        ..Outcome::default()
    };
    let mut sums = Sums { topology: &scenario.topology, now_ns, out, late_ns: Vec::new() };
    for (number, node) in (0..).zip(nodes) {
        match node {
            Node::Host(host) => sums.add_host(&host),
            Node::Switch(switch) => sums.add_switch(number, &switch, &ports[number as usize]),
        }
    }
    let Sums { mut out, late_ns, .. } = sums;
    if let Some(last_ns) = out.flows.iter().try_fold(0, |last_ns, flow| Some(flow.end_ns()?.max(last_ns))) {
        out.duration_ns = last_ns;
    }
    out.fct = Fct::of(&out.flows);
    out.fct_by_size = bands(&out.flows);
    out.collectives = collectives(scenario, &out.flows);
    out.classes.retain(|own| *own != class(own.class));
    out.ports.sort_by_key(|port| Reverse(port.max_queue_bytes));
    out.transport.window_end.add_delays(late_ns);
    out
}

/// Sums over the nodes so far.
struct Sums<'s> {
    topology: &'s Topology,
    now_ns: u64,
    out: Outcome,
    /// Delays of CNPs at the end of a window.
    late_ns: Vec<u64>,
}

impl Sums<'_> {
    fn add_host(&mut self, host: &Host) {
        for &Record { flow, posted_ns, done_ns, .. } in &host.records {
            if let Some(flow) = self.out.flows.get_mut(flow as usize) {
                flow.start_ns = Some(posted_ns);
                flow.fct_ns = Some(done_ns - posted_ns);
            }
        }
        for (flow, posted_ns) in host.pending() {
            if let Some(flow) = self.out.flows.get_mut(flow as usize) {
                flow.start_ns = Some(posted_ns);
            }
        }
        if let Some(samples) = &mut self.out.samples {
            let hosts = &mut samples.hosts_paused_ns;
            hosts.resize(hosts.len().max(host.samples.len()), 0);
            for (sum, paused_ns) in hosts.iter_mut().zip(&host.samples) {
                *sum += u64::from(*paused_ns);
            }
        }
        for (class, paused_ns) in self.out.classes.iter_mut().zip(host.paused_ns(self.now_ns)) {
            class.host_paused_ns += paused_ns;
        }
        self.late_ns.extend_from_slice(host.late_ns());
        self.out.work.hops += host.hops;
        let (transport, c) = (&mut self.out.transport, host.counters);
        transport.window_end.unanswered += host.unanswered();
        transport.data_packets += c.data_packets;
        transport.retransmitted_packets += host.retransmitted();
        transport.delivered_packets += c.delivered_packets;
        transport.marked_packets += c.marked;
        transport.cnps_sent += c.cnps_sent;
        transport.cnps_handled += c.cnps_handled;
        transport.naks += c.naks;
        transport.timeouts += c.timeouts;
        transport.probes += c.probes;
    }

    fn add_switch(&mut self, number: u32, switch: &Switch, ports: &[PortSpec]) {
        for (class, c) in self.out.classes.iter_mut().zip(&switch.counters) {
            class.marked_packets += c.marked_packets;
            class.dropped_packets += c.dropped_packets;
            class.lost_packets += c.lost_packets;
            class.trimmed_packets += c.trimmed_packets;
            class.storm_dropped_packets += c.storm_dropped_packets;
            class.pauses += c.pauses;
        }
        let transport = &mut self.out.transport;
        transport.storms += switch.storms;
        transport.max_buffer_bytes = transport.max_buffer_bytes.max(switch.buffer.max_used);
        self.out.work.hops += switch.hops;
        self.out.work.queued_packets += switch.packets();
        if let Some(samples) = &mut self.out.samples {
            let switch = SwitchSamples { switch: self.topology.name(number), ..switch.samples.clone() };
            samples.switches.push(switch);
        }
        for (port, counters) in ports.iter().zip(switch.port_counters(self.now_ns)) {
            let PortCounters { tx_bytes, max_bytes, max_class_bytes, paused_ns } = counters;
            for (class, (deepest, paused_ns)) in
                self.out.classes.iter_mut().zip(max_class_bytes.iter().zip(paused_ns))
            {
                class.max_queue_bytes = class.max_queue_bytes.max(*deepest);
                class.switch_paused_ns += paused_ns;
            }
            self.out.ports.push(PortOutcome {
                switch: self.topology.name(number),
                peer: self.topology.name(port.peer),
                tx_bytes,
                max_queue_bytes: max_bytes,
                paused_ns: paused_ns.iter().sum(),
            });
        }
    }
}

impl Scenario {
    /// Round trip of a full packet and its acknowledgement between host 0 and the farthest host in an empty network:
    /// the base round trip of [`crate::network::Nscc`].
    pub(crate) fn base_rtt_ns(&self) -> u64 {
        let (ports, routes) = (self.topology.ports(), Routes::new(&self.topology, &|_| true));
        let header_bytes = u64::from(self.transport.header_bytes) + self.config.scalars.wire_overhead_bytes;
        let round_trip_ns = |dst| {
            let path: Vec<Hop> = routes.path(&ports, 0, dst).iter().map(hop).collect();
            frame_ns(&path, header_bytes + u64::from(self.transport.payload_bytes))
                + frame_ns(&path, header_bytes + 4)
        };
        (1..self.topology.hosts).map(round_trip_ns).max().unwrap_or(0)
    }
}

/// Warning that a retransmission timeout is below the round trip of an empty network.
pub(crate) fn short_timeout(timeout_ns: u64, rtt_ns: u64) -> Option<String> {
    let text = |ns| Quantity(ns, Unit::Nanoseconds);
    (timeout_ns < rtt_ns).then(|| {
        format!(
            "timeout = {} is below the base round trip of {}: packets are retransmitted before their ACK can arrive",
            text(timeout_ns),
            text(rtt_ns)
        )
    })
}

const fn hop(port: &PortSpec) -> Hop {
    Hop { rate_bps: port.rate_bps, delay_ns: port.delay_ns }
}

/// Every flow with its time in an empty fabric, and without its own time.
fn ideal_flows(scenario: &Scenario, ports: &[Vec<PortSpec>]) -> Vec<FlowOutcome> {
    let Scenario { topology, workload, transport, config, .. } = scenario;
    let routes = Routes::new(topology, &|_| true);
    let overhead_bytes = config.scalars.wire_overhead_bytes;
    let header_bytes = u64::from(transport.header_bytes) + overhead_bytes;
    let framing = Framing { payload_bytes: transport.payload_bytes.into(), header_bytes };
    workload
        .flows()
        .iter()
        .map(|flow| {
            let pair = workload.pairs()[flow.qp as usize];
            let (src, dst) = (pair.src, pair.dst);
            let mut ideal_ns = 0;
            if src != dst {
                let path: Vec<Hop> = routes.path(ports, src, dst).iter().map(hop).collect();
                // An AETH in place of the payload.
                ideal_ns = delivery_ns(&path, framing, flow.bytes) + delivery_ns(&path, framing, 4);
            }
            FlowOutcome { src, dst, bytes: flow.bytes, start_ns: None, fct_ns: None, ideal_ns }
        })
        .collect()
}

impl FlowOutcome {
    /// When it was complete.
    fn end_ns(&self) -> Option<u64> {
        Some(self.start_ns? + self.fct_ns?)
    }
}

impl Fct {
    /// Of completed flows between different hosts; `None`: none.
    fn of(flows: &[FlowOutcome]) -> Option<Self> {
        let sent = flows.iter().filter(|flow| flow.src != flow.dst);
        Self::of_times(&sent.filter_map(|flow| Some((flow.fct_ns?, flow.ideal_ns))).collect::<Vec<_>>())
    }

    /// Of these times, each with that in an empty network; `None`: none.
    pub(crate) fn of_times(complete: &[(u64, u64)]) -> Option<Self> {
        if complete.is_empty() {
            return None;
        }
        let count = complete.len();
        let mut times: Vec<u64> = complete.iter().map(|&(fct_ns, _)| fct_ns).collect();
        let mut slowdowns: Vec<f64> =
            complete.iter().map(|&(fct_ns, ideal_ns)| fct_ns as f64 / ideal_ns.max(1) as f64).collect();
        times.sort_unstable();
        slowdowns.sort_by(f64::total_cmp);
        let [p50, p95, p99] = [50, 95, 99].map(|percent| nearest_rank(count, percent));
        Some(Self {
            count: count as u64,
            mean_ns: times.iter().map(|&time| time as f64).sum::<f64>() / count as f64,
            p50_ns: times[p50],
            p95_ns: times[p95],
            p99_ns: times[p99],
            max_ns: times[count - 1],
            slowdown_mean: slowdowns.iter().sum::<f64>() / count as f64,
            slowdown_p50: slowdowns[p50],
            slowdown_p95: slowdowns[p95],
            slowdown_p99: slowdowns[p99],
        })
    }
}

/// Index of a percentile among sorted values, by the nearest rank; 0 if empty.
const fn nearest_rank(count: usize, percent: usize) -> usize {
    (count * percent).div_ceil(100).saturating_sub(1)
}

/// A row per size if there are few, otherwise ten rows with equal numbers of flows.
fn bands(flows: &[FlowOutcome]) -> Vec<FctBand> {
    let mut sorted: Vec<FlowOutcome> =
        flows.iter().filter(|flow| flow.src != flow.dst && flow.fct_ns.is_some()).copied().collect();
    sorted.sort_by_key(|flow| flow.bytes);
    let mut sizes: Vec<u64> = sorted.iter().map(|flow| flow.bytes).collect();
    sizes.dedup();
    let rows: Vec<&[FlowOutcome]> = if sizes.len() <= BANDS {
        sorted.chunk_by(|a, b| a.bytes == b.bytes).collect()
    } else {
        sorted.chunks(sorted.len().div_ceil(BANDS)).collect()
    };
    rows.into_iter()
        .filter_map(|row| {
            let (first, last) = (row.first()?, row.last()?);
            Some(FctBand { min_bytes: first.bytes, max_bytes: last.bytes, fct: Fct::of(row)? })
        })
        .collect()
}

fn collectives(scenario: &Scenario, flows: &[FlowOutcome]) -> Vec<CollectiveOutcome> {
    let end_ns = |flow: &u32| flows.get(*flow as usize)?.end_ns();
    let outcome = |round: &Round| {
        let ready: Option<Vec<u64>> = round.ready.iter().map(end_ns).collect();
        let start_ns = ready?.into_iter().max()?;
        let done: Option<Vec<u64>> = round.done.iter().map(end_ns).collect();
        let done = done?;
        let last = (0..done.len()).max_by_key(|rank| (done[*rank], Reverse(*rank)))?;
        let mut sorted: Vec<u64> = done.iter().map(|end_ns| end_ns.saturating_sub(start_ns)).collect();
        sorted.sort_unstable();
        Some(CollectiveOutcome {
            collective: round.collective,
            bytes: round.bytes,
            ranks: round.ranks.len() as u32,
            start_ns,
            time_ns: *sorted.last()?,
            median_ns: *sorted.get(sorted.len() / 2)?,
            first_ns: *sorted.first()?,
            last_host: scenario.topology.name(*round.ranks.get(last)?),
        })
    };
    scenario.workload.rounds().iter().filter_map(outcome).collect()
}

impl WindowEndOutcome {
    fn add_delays(&mut self, mut late_ns: Vec<u64>) {
        late_ns.sort_unstable();
        let count = late_ns.len();
        let at = |percent| late_ns.get(nearest_rank(count, percent)).copied().unwrap_or(0);
        self.cnps = count as u64;
        [self.late_p50_ns, self.late_p99_ns, self.late_max_ns] = [50, 99, 100].map(at);
    }
}

/// A link of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) rate_bps: u64,
    pub(crate) delay_ns: u64,
}

/// Segmentation of a message into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Framing {
    pub(crate) payload_bytes: u64,
    /// Overhead of every frame on the wire.
    pub(crate) header_bytes: u64,
}

/// Time from the start of a message of `bytes` (not 0) until its last byte has arrived, without other traffic and at
/// the sender's line rate.
///
/// Nodes store and forward. The last packet, which may be shorter, leaves a node when it has arrived and the previous
/// one has left; previous ones are spaced by the slowest link so far. Times are rounded down at every hop, as by
/// transmitters, so that no message is faster.
pub(crate) fn delivery_ns(path: &[Hop], framing: Framing, bytes: u64) -> u64 {
    let Framing { payload_bytes, header_bytes } = framing;
    let packets = bytes.div_ceil(payload_bytes);
    let last_bytes = bytes - (packets - 1) * payload_bytes + header_bytes;
    let full_bytes = payload_bytes + header_bytes;
    let (mut arrival_ns, mut first_ns, mut slowest_bps) = (0, 0, u64::MAX);
    for hop in path {
        let full_ns = time_ns(hop.rate_bps, full_bytes);
        slowest_bps = slowest_bps.min(hop.rate_bps);
        // When the last but one packet, a full one, has left this node.
        let before_ns = match packets {
            1 => 0,
            _ => first_ns + full_ns + time_ns(slowest_bps, (packets - 2) * full_bytes),
        };
        arrival_ns = before_ns.max(arrival_ns) + time_ns(hop.rate_bps, last_bytes) + hop.delay_ns;
        first_ns += full_ns + hop.delay_ns;
    }
    arrival_ns
}

/// Time of one frame of `wire_bytes` along `path`, rounded up at every hop.
pub(crate) fn frame_ns(path: &[Hop], wire_bytes: u64) -> u64 {
    path.iter().map(|hop| Transmitter::time_ns(hop.rate_bps, wire_bytes) + hop.delay_ns).sum()
}

fn time_ns(rate_bps: u64, bytes: u64) -> u64 {
    let ns = u128::from(bytes) * 8_000_000_000 / u128::from(rate_bps.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMING: Framing = Framing { payload_bytes: 1_000, header_bytes: 0 };

    #[test]
    fn packets_follow_each_other_along_the_path() {
        let fast = Hop { rate_bps: 8_000_000_000, delay_ns: 500 };
        let slow = Hop { rate_bps: 4_000_000_000, delay_ns: 100 };
        // One packet: 1 us on each link, and the delays.
        assert_eq!(delivery_ns(&[fast, fast], FRAMING, 1_000), 1_000 + 500 + 1_000 + 500);
        // Ten packets: nine more behind it.
        assert_eq!(delivery_ns(&[fast, fast], FRAMING, 10_000), 3_000 + 9_000);
        // The slow link spaces them, wherever it is.
        assert_eq!(delivery_ns(&[fast, slow], FRAMING, 10_000), 1_500 + 10 * 2_000 + 100);
        assert_eq!(delivery_ns(&[slow, fast], FRAMING, 10_000), 10 * 2_000 + 100 + 1_500);
        // A short last packet waits for the one before it.
        assert_eq!(delivery_ns(&[fast, slow], FRAMING, 1_500), 1_500 + 2_000 + 1_000 + 100);
        assert_eq!(delivery_ns(&[slow, fast], FRAMING, 1_500), 3_000 + 100 + 500 + 500);
        assert_eq!(frame_ns(&[fast, slow], 100), 100 + 500 + 200 + 100);
    }
    #[test]
    fn times_rounded_down_at_every_hop() {
        // 1000 bytes in 2666.67 ns.
        let third = Hop { rate_bps: 3_000_000_000, delay_ns: 0 };
        assert_eq!(delivery_ns(&[third; 3], FRAMING, 1_000), 3 * 2_666);
        // The second packet ends at 5333.33 ns on the first link.
        assert_eq!(delivery_ns(&[third; 3], FRAMING, 2_000), 5_332 + 2 * 2_666);
    }
}
