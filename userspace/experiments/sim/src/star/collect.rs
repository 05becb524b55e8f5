//! Statistics over time, and the outcome.

use std::collections::BTreeMap;

use dcqcn_common::params::Params;
use dcqcn_support::statistics::jain_index;

use super::{Flow, Group, MAX_SAMPLES, Star};
use crate::network::outcome::{Framing, Hop, delivery_ns};
use crate::network::workload::{SizeWeight, Work};
use crate::network::{ClassMeter, Fct, Host, Node, Observer, Record, SendQp, SimError, Switch, TcpLaw};
use crate::star::{
    ClassOutcome, Counters, FctOfSize, FlowCounters, FlowOutcome, GroupOutcome, Kind, Outcome, Samples,
    Series,
};

const WINDOWS: u64 = 50;
/// Jain's index above which flows count as fair.
const FAIR: f64 = 0.95;

#[derive(Clone, Copy, Debug)]
struct BulkFlow {
    number: usize,
    start_ns: u64,
    stop_ns: Option<u64>,
    bytes_before: u64,
}

#[derive(Debug)]
pub(super) struct Collector<'s> {
    star: &'s Star,
    flows: Vec<Flow>,
    /// Whether the statistics have started, and counters at that time.
    is_started: bool,
    flows_before: Vec<FlowCounters>,
    classes_before: Vec<ClassOutcome>,
    busy_before_ns: f64,

    bulk: Vec<BulkFlow>,
    window: u64,
    /// End of the last unfair window.
    unfair_ns: Option<u64>,
    watched: bool,

    interval_ns: Option<u64>,
    series: Series,
    last_sample_ns: u64,
    flow_bytes: Vec<u64>,
    group_bytes: Vec<u64>,
}

impl Flow {
    /// Sending end of the flow; `None` if the flow has not started.
    fn sending(self, nodes: &[Node]) -> Option<(&SendQp, &Params)> {
        match nodes.get(self.host as usize) {
            Some(Node::Host(host)) => host.sending(self.local),
            _ => None,
        }
    }
}

fn meters(nodes: &mut [Node]) -> &mut [ClassMeter] {
    let Some(Node::Switch(switch)) = nodes.last_mut() else { return &mut [] };
    match &mut switch.meters {
        Some(meters) => &mut meters.classes,
        None => &mut [],
    }
}

#[derive(Clone, Copy)]
struct Nodes<'n> {
    all: &'n [Node],
    flows: &'n [Flow],
    receiver: &'n Host,
    switch: &'n Switch,
}

impl<'n> Nodes<'n> {
    fn new(all: &'n [Node], flows: &'n [Flow]) -> Self {
        let [.., Node::Host(receiver), Node::Switch(switch)] = all else {
            unreachable!("the last nodes of a star are its receiver and its switch");
        };
        Self { all, flows, receiver, switch }
    }

    /// Counters of flow `number` over the whole time, without messages.
    fn counters(&self, number: usize) -> FlowCounters {
        let Some((qp, _)) = self.flows[number].sending(self.all) else { return FlowCounters::default() };
        let (bytes, marked_packets) = self.receiver.received(number as u32);
        let dropped = self.switch.meters.as_ref().and_then(|meters| meters.dropped.get(number));
        let counters = qp.counters();
        let bytes = if qp.is_tcp() { counters.bytes } else { bytes };
        FlowCounters { bytes, marked_packets, dropped_packets: dropped.copied().unwrap_or(0), ..counters }
    }

    /// Rate and target of flow `number`; 0 before its start.
    fn rates(&self, number: usize, now_ns: u64) -> (u64, u64) {
        let sending = self.flows[number].sending(self.all);
        sending.map_or((0, 0), |(qp, params)| qp.rates(params, now_ns))
    }

    /// Time in which the port was sending.
    fn busy_ns(&self, star: &Star, now_ns: u64) -> f64 {
        let overhead_bytes = star.config.scalars.wire_overhead_bytes;
        let all = self.classes(now_ns);
        let wire_bytes: u64 =
            all.iter().map(|class| class.tx_bytes + class.tx_packets * overhead_bytes).sum();
        let rest_ns = self.switch.last_free_ns().saturating_sub(now_ns);
        wire_bytes as f64 * 8e9 / star.port_rate_bps as f64 - rest_ns as f64
    }

    /// Every class: counters over the whole time, and the depth of its queue since the start of the statistics.
    fn classes(&self, now_ns: u64) -> Vec<ClassOutcome> {
        let counters = (0..).zip(&self.switch.counters);
        let class = counters.map(|(number, counters): (u8, _)| {
            let meter = self.switch.meters.as_ref().map(|meters| &meters.classes[usize::from(number)]);
            ClassOutcome {
                class: number,
                queue: meter.map(|meter| meter.depth.summary()).unwrap_or_default(),
                marked_packets: counters.marked_packets,
                dropped_packets: counters.dropped_packets,
                pauses: counters.pauses,
                paused_ns: meter.map_or(0, |meter| meter.paused_ns(now_ns)),
                tx_packets: meter.map_or(0, |meter| meter.tx_packets),
                tx_bytes: meter.map_or(0, |meter| meter.tx_bytes),
                tx_share: 0.0,
            }
        });
        class.collect()
    }
}

impl Observer for Collector<'_> {
    fn next_ns(&self) -> u64 {
        let stats_ns = (!self.is_started).then_some(self.star.stats_from_ns);
        [stats_ns, self.next_sample_ns(), self.next_window_ns()]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(u64::MAX)
    }

    fn observe(&mut self, nodes: &mut [Node]) {
        let now_ns = self.next_ns();
        if !self.is_started && self.star.stats_from_ns == now_ns {
            self.start(now_ns, nodes);
        }
        if self.next_sample_ns() == Some(now_ns) {
            self.sample(now_ns, nodes);
        }
        if self.next_window_ns() == Some(now_ns) {
            self.end_window(now_ns, nodes);
        }
    }
}

impl<'s> Collector<'s> {
    /// Empty statistics.
    pub(super) fn new(star: &'s Star, flows: Vec<Flow>) -> Self {
        let mut series = Series::default();
        let mut interval_ns = None;
        if let Some(wanted) = star.series {
            // A simulation with finite work ends long before its time limit.
            let least_ns = if star.is_finite() { 0 } else { star.duration_ns.div_ceil(MAX_SAMPLES) };
            interval_ns = Some(wanted.interval_ns.max(least_ns));
            let samples = |(name, index)| Samples { name, index, ..Samples::default() };
            series.flows = flow_names(star).take(wanted.max_flows as usize).map(samples).collect();
            let groups = (0..).zip(&star.groups).map(|(index, group)| (group.name.clone(), index));
            series.groups = groups.map(samples).collect();
            let classes = own_classes(star).into_iter().map(|class| (class.to_string(), class.into()));
            series.classes = classes.map(samples).collect();
        }
        // Bulk flows, whose shares should be fair.
        let bulk = flows.iter().enumerate().filter_map(|(number, flow)| {
            let group = &star.groups[flow.group as usize];
            let is_bulk = group.is_roce() && group.work == Work::Bulk && group.after.is_none();
            (is_bulk && flow.start_ns < star.duration_ns).then_some(BulkFlow {
                number,
                start_ns: flow.start_ns,
                stop_ns: group.stop_ns,
                bytes_before: 0,
            })
        });
        Self {
            star,
            is_started: false,
            flows_before: vec![FlowCounters::default(); flows.len()],
            classes_before: Vec::new(),
            busy_before_ns: 0.0,
            bulk: bulk.collect(),
            flows,
            window: 0,
            unfair_ns: None,
            watched: false,
            interval_ns,
            flow_bytes: vec![0; series.flows.len()],
            group_bytes: vec![0; star.groups.len()],
            series,
            last_sample_ns: 0,
        }
    }

    fn start(&mut self, now_ns: u64, nodes: &mut [Node]) {
        self.is_started = true;
        let star = Nodes::new(nodes, &self.flows);
        self.flows_before = (0..self.flows.len()).map(|number| star.counters(number)).collect();
        self.classes_before = star.classes(now_ns);
        self.busy_before_ns = star.busy_ns(self.star, now_ns);
        meters(nodes).iter_mut().for_each(|meter| meter.depth.reset(now_ns));
    }

    fn last_start_ns(&self) -> u64 {
        self.bulk.iter().map(|flow| flow.start_ns).max().unwrap_or(0)
    }

    /// End of the current window; `None`: no further windows, or no flows to evaluate.
    fn next_window_ns(&self) -> Option<u64> {
        if self.bulk.len() < 2 || self.window > WINDOWS {
            return None;
        }
        let start_ns = self.last_start_ns();
        let span_ns = self.star.duration_ns - start_ns;
        (span_ns >= WINDOWS).then(|| start_ns + span_ns / WINDOWS * self.window)
    }

    /// Ends a window; the first call starts one.
    fn end_window(&mut self, now_ns: u64, nodes: &[Node]) {
        let nodes = Nodes::new(nodes, &self.flows);
        let goodput = self.bulk.iter_mut().filter_map(|flow| {
            let bytes = nodes.counters(flow.number).bytes;
            let got = bytes - std::mem::replace(&mut flow.bytes_before, bytes);
            flow.stop_ns.is_none_or(|stop_ns| stop_ns > now_ns).then_some(got as f64)
        });
        let fair = jain_index(&goodput.collect::<Vec<_>>()) >= FAIR;
        if self.window != 0 {
            self.watched = true;
            if !fair {
                self.unfair_ns = Some(now_ns);
            }
        }
        self.window += 1;
    }

    fn convergence_ns(&self) -> Option<u64> {
        let start_ns = self.last_start_ns();
        match self.unfair_ns {
            None => self.watched.then_some(0),
            Some(unfair_ns) => {
                let last_ns = start_ns + (self.star.duration_ns - start_ns) / WINDOWS * WINDOWS;
                (unfair_ns < last_ns).then(|| unfair_ns - start_ns)
            }
        }
    }

    /// When the next sample is due; `None`: no series requested, or they are full.
    fn next_sample_ns(&self) -> Option<u64> {
        let interval_ns = self.interval_ns.filter(|_| self.series.t_ns.len() as u64 <= MAX_SAMPLES)?;
        // The first is after the events at 0, when flows start.
        Some(if self.series.t_ns.is_empty() { 1 } else { self.last_sample_ns + interval_ns })
    }

    fn sample(&mut self, now_ns: u64, nodes: &mut [Node]) {
        let now_ns = if self.series.t_ns.is_empty() { 0 } else { now_ns };
        let since_ns = now_ns - self.last_sample_ns;
        self.last_sample_ns = now_ns;
        let bps = |before: &mut u64, bytes: u64| {
            let got = bytes - std::mem::replace(before, bytes);
            (u128::from(got) * 8_000_000_000).checked_div(u128::from(since_ns)).unwrap_or(0) as u64
        };
        self.series.t_ns.push(now_ns);
        let star = Nodes::new(nodes, &self.flows);
        let mut sums = vec![0; self.group_bytes.len()];
        for (number, flow) in self.flows.iter().enumerate() {
            let bytes = star.counters(number).bytes;
            sums[flow.group as usize] += bytes;
            if let Some(series) = self.series.flows.get_mut(number) {
                let (rate_bps, target_bps) = star.rates(number, now_ns);
                series.rate_bps.push(rate_bps);
                series.target_bps.push(target_bps);
                series.goodput_bps.push(bps(&mut self.flow_bytes[number], bytes));
            }
        }
        for ((series, before), sum) in self.series.groups.iter_mut().zip(&mut self.group_bytes).zip(sums) {
            series.goodput_bps.push(bps(before, sum));
        }
        let meters = meters(nodes);
        for series in &mut self.series.classes {
            let depth = &mut meters[series.index as usize].depth;
            series.queue_bytes.push(depth.bytes());
            series.max_queue_bytes.push(depth.take_recent_max());
        }
    }

    pub(super) fn outcome(mut self, mut nodes: Vec<Node>, now_ns: u64) -> Result<Outcome, SimError> {
        let star = self.star;
        let stats_from_ns = star.stats_from_ns;
        let mut records = self.records(&nodes);
        let mut completed_ns = vec![None; self.flows.len()];
        for record in &records {
            completed_ns[record.flow as usize] = Some(record.done_ns);
        }
        let once = |flow: &Flow| star.groups[flow.group as usize].is_finite();
        let left =
            self.flows.iter().zip(&completed_ns).filter(|(flow, done_ns)| once(flow) && done_ns.is_none());
        let (started, not_started): (Vec<_>, Vec<_>) =
            left.partition(|(flow, _)| flow.sending(&nodes).is_some());
        let [unfinished_messages, not_started_messages] =
            [started, not_started].map(|left| left.len() as u64);
        let is_complete = unfinished_messages + not_started_messages == 0;
        let last_ns = completed_ns.iter().flatten().max().copied();
        let duration_ns = last_ns.filter(|_| is_complete && star.is_finite()).unwrap_or(now_ns);
        if duration_ns < stats_from_ns {
            return Err(SimError::NothingMeasured { now_ns: duration_ns, stats_from_ns });
        }
        self.end(&mut nodes, now_ns);
        let parts = Nodes::new(&nodes, &self.flows);
        let time_ns = (duration_ns - stats_from_ns).max(1) as f64;
        let mut counters: Vec<FlowCounters> = (0..)
            .zip(&self.flows_before)
            .map(|(number, before)| parts.counters(number).combine(before, |now, before| now - before))
            .collect();
        records.retain(|record| record.done_ns >= stats_from_ns);
        for record in &records {
            counters[record.flow as usize].messages += 1;
        }
        let flows: Vec<FlowOutcome> = flow_names(star)
            .zip(counters.into_iter().zip(&self.flows).enumerate())
            .map(|((name, group), (number, (counters, flow)))| FlowOutcome {
                name,
                group,
                goodput_bps: bps(counters.bytes, time_ns),
                counters,
                rate_bps: parts.rates(number, now_ns).0,
                completed_ns: completed_ns[number].filter(|_| once(flow)),
            })
            .collect();
        let busy_ns = parts.busy_ns(star, now_ns) - self.busy_before_ns;
        let received_packets = parts.receiver.hops;
        Ok(Outcome {
            duration_ns,
            stats_from_ns,
            port_rate_bps: star.port_rate_bps,
            link_utilisation: (busy_ns / time_ns).min(1.0),
            convergence_ns: self.convergence_ns(),
            groups: self.groups(&flows, &self.times(&records), time_ns),
            flows,
            classes: self.classes(&parts, now_ns),
            unfinished_messages,
            not_started_messages,
            counters: Counters {
                sent_packets: hosts(&nodes).map(|host| host.counters.data_packets).sum(),
                received_packets,
                dropped_packets: parts.switch.counters.iter().map(|class| class.dropped_packets).sum(),
                in_flight_packets: parts.switch.packets()
                    + parts.switch.arriving()
                    + parts.receiver.arriving(),
                hops: parts.switch.hops + received_packets,
            },
            series: star.series.map(|_| self.series),
        })
    }

    /// Completed messages, without barriers between groups.
    fn records(&self, nodes: &[Node]) -> Vec<Record> {
        let records = hosts(nodes).flat_map(|host| &host.records);
        records.filter(|record| (record.flow as usize) < self.flows.len()).copied().collect()
    }

    fn end(&mut self, nodes: &mut [Node], now_ns: u64) {
        if self.next_sample_ns() == Some(now_ns) {
            self.sample(now_ns, nodes);
        }
        meters(nodes).iter_mut().for_each(|meter| meter.depth.end(now_ns));
    }

    /// Completion times of RoCE messages, each with that without other traffic.
    fn times(&self, records: &[Record]) -> Times {
        let mut times = Times::new();
        for &Record { flow, bytes, posted_ns, done_ns } in records {
            let group = self.flows[flow as usize].group;
            let spec = &self.star.groups[group as usize];
            if !spec.is_roce() {
                continue;
            }
            let own = times.entry((group, bytes)).or_default();
            let ideal_ns = own.first().map_or_else(|| ideal_ns(self.star, spec, bytes), |first| first.1);
            own.push((done_ns - posted_ns, ideal_ns));
        }
        times
    }

    fn groups(&self, flows: &[FlowOutcome], times: &Times, time_ns: f64) -> Vec<GroupOutcome> {
        let group = |(index, group): (u32, &Group)| {
            let own = || flows.iter().filter(move |flow| flow.group == index);
            let totals = own()
                .fold(FlowCounters::default(), |sum, flow| sum.combine(&flow.counters, |sum, own| sum + own));
            let all = times.range((index, 0)..=(index, u64::MAX)).flat_map(|(_, times)| times);
            let fct_by_size = match &group.work {
                Work::Messages { sizes, .. } => sizes
                    .iter()
                    .map(|&SizeWeight { bytes, .. }| {
                        let fct = times.get(&(index, bytes)).and_then(|times| Fct::of_times(times));
                        FctOfSize { bytes, fct }
                    })
                    .collect(),
                _ => Vec::new(),
            };
            GroupOutcome {
                name: group.name.clone(),
                kind: group.transport.tcp.map_or(Kind::Roce, |law| match law {
                    TcpLaw::Cubic => Kind::Cubic,
                    TcpLaw::Dctcp => Kind::Dctcp,
                }),
                class: group.class,
                flows: group.flows,
                goodput_bps: bps(totals.bytes, time_ns),
                jain: jain_index(&own().map(|flow| flow.goodput_bps).collect::<Vec<_>>()),
                totals,
                fct: Fct::of_times(&all.copied().collect::<Vec<_>>()),
                fct_by_size,
            }
        };
        (0..).zip(&self.star.groups).map(group).collect()
    }

    fn classes(&self, nodes: &Nodes<'_>, now_ns: u64) -> Vec<ClassOutcome> {
        let mut classes = nodes.classes(now_ns);
        for (class, before) in classes.iter_mut().zip(&self.classes_before) {
            class.subtract(before);
        }
        let tx_bytes: u64 = classes.iter().map(|class| class.tx_bytes).sum();
        let own = own_classes(self.star);
        classes.retain_mut(|class| {
            class.tx_share = class.tx_bytes as f64 / tx_bytes.max(1) as f64;
            own.contains(&class.class)
        });
        classes
    }
}

/// By group and length: completion times of messages, each with that without other traffic.
type Times = BTreeMap<(u32, u64), Vec<(u64, u64)>>;

fn bps(bytes: u64, time_ns: f64) -> f64 {
    bytes as f64 * 8e9 / time_ns
}

fn hosts(nodes: &[Node]) -> impl Iterator<Item = &Host> {
    nodes.iter().filter_map(|node| if let Node::Host(host) = node { Some(&**host) } else { None })
}

/// Time from posting a message of a group to its acknowledgement, without other traffic.
fn ideal_ns(star: &Star, group: &Group, bytes: u64) -> u64 {
    let sender_delay_ns = star.sender_delay_of(group);
    let path = [
        Hop { rate_bps: star.sender_rate_bps, delay_ns: sender_delay_ns },
        Hop { rate_bps: star.port_rate_bps, delay_ns: star.receiver_delay_ns },
    ];
    let framing = Framing {
        payload_bytes: group.transport.payload_bytes.into(),
        header_bytes: u64::from(group.transport.header_bytes) + star.config.scalars.wire_overhead_bytes,
    };
    let back_ns = star.receiver_delay_ns + sender_delay_ns;
    delivery_ns(&path, framing, bytes) + back_ns
}

fn flow_names(star: &Star) -> impl Iterator<Item = (String, u32)> {
    (0..).zip(&star.groups).flat_map(|(index, group)| {
        (0..group.flows).map(move |flow| (format!("{}.{flow}", group.name), index))
    })
}

/// Classes that have a group, lowest first.
fn own_classes(star: &Star) -> Vec<u8> {
    let mut classes: Vec<u8> = star.groups.iter().map(|group| group.class).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

impl FlowCounters {
    fn combine(self, other: &Self, each: fn(u64, u64) -> u64) -> Self {
        Self {
            bytes: each(self.bytes, other.bytes),
            sent_packets: each(self.sent_packets, other.sent_packets),
            retransmitted_packets: each(self.retransmitted_packets, other.retransmitted_packets),
            dropped_packets: each(self.dropped_packets, other.dropped_packets),
            marked_packets: each(self.marked_packets, other.marked_packets),
            cnps: each(self.cnps, other.cnps),
            naks: each(self.naks, other.naks),
            timeouts: each(self.timeouts, other.timeouts),
            messages: each(self.messages, other.messages),
        }
    }
}

impl ClassOutcome {
    /// Removes what the counters were before.
    const fn subtract(&mut self, before: &Self) {
        self.marked_packets -= before.marked_packets;
        self.dropped_packets -= before.dropped_packets;
        self.pauses -= before.pauses;
        self.paused_ns -= before.paused_ns;
        self.tx_packets -= before.tx_packets;
        self.tx_bytes -= before.tx_bytes;
    }
}
