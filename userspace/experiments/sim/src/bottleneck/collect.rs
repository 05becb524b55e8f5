//! Statistics over time, and the outcome.

use dcqcn_common::params::Params;
use dcqcn_support::statistics::jain_index;

use super::endpoints::Qp;
use super::meters::ideal_ns;
use super::port::Port;
use super::tcp::Tcp;
use crate::network::{Completed, Fct};
use crate::{
    ClassOutcome, ClassSeries, Counters, FctOfSize, FlowCounters, FlowOutcome, FlowSeries, GroupOutcome,
    GroupSeries, Kind, MAX_SAMPLES, Outcome, RoceGroup, Scenario, Series, TcpLaw, Work,
};

/// Fairness windows.
const WINDOWS: u64 = 50;
/// Jain's index above which flows count as fair.
const FAIR: f64 = 0.95;

/// State of a flow for the fairness index.
#[derive(Clone, Copy, Debug)]
struct BulkFlow {
    number: u32,
    start_ns: u64,
    stop_ns: Option<u64>,
    bytes_before: u64,
}

/// Completion times of messages of one length.
#[derive(Debug)]
struct Times {
    /// Time in an empty network.
    ideal_ns: u64,
    fcts_ns: Vec<u64>,
}

impl Times {
    const fn new(ideal_ns: u64) -> Self {
        Self { ideal_ns, fcts_ns: Vec::new() }
    }

    fn summary(all: &[Self]) -> Option<Fct> {
        let pairs = all.iter().flat_map(|times| times.fcts_ns.iter().map(|&fct_ns| (fct_ns, times.ideal_ns)));
        Fct::of_times(&pairs.collect::<Vec<_>>())
    }
}

/// Collects statistics beyond counters.
#[derive(Debug)]
pub(super) struct Collector {
    duration_ns: u64,
    /// By RoCE group and length of messages.
    fcts: Vec<Vec<Times>>,

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

impl Collector {
    /// Empty statistics.
    pub(super) fn new(scenario: &Scenario) -> Self {
        let meters = |group: &RoceGroup| {
            let lengths: Vec<u64> = match &group.work {
                Work::Bulk => Vec::new(),
                Work::Once { bytes } | Work::Blocks { bytes, .. } => vec![*bytes],
                Work::Messages { sizes, .. } => sizes.iter().map(|size| size.bytes).collect(),
            };
            lengths.into_iter().map(|bytes| Times::new(ideal_ns(scenario, group, bytes))).collect()
        };
        let names = group_names(scenario);
        let mut series = Series::default();
        let mut interval_ns = None;
        if let Some(wanted) = scenario.series {
            // A simulation with finite work ends long before its time limit.
            let least_ns = if scenario.is_finite() { 0 } else { scenario.duration_ns.div_ceil(MAX_SAMPLES) };
            interval_ns = Some(wanted.interval_ns.max(least_ns));
            let max_flows = wanted.max_flows as usize;
            series.flows = flow_names(scenario).take(max_flows).map(flow_series).collect();
            series.groups = names
                .iter()
                .map(|name| GroupSeries { name: name.clone(), ..GroupSeries::default() })
                .collect();
            let classes = classes(scenario);
            series.classes =
                classes.into_iter().map(|class| ClassSeries { class, ..ClassSeries::default() }).collect();
        }
        Self {
            duration_ns: scenario.duration_ns,
            fcts: scenario.roce.iter().map(meters).collect(),
            bulk: Vec::new(),
            window: 0,
            unfair_ns: None,
            watched: false,
            interval_ns,
            flow_bytes: vec![0; series.flows.len()],
            group_bytes: vec![0; names.len()],
            series,
            last_sample_ns: 0,
        }
    }

    /// Whether the flow sends bulk data, so that its share should be fair.
    pub(super) fn add_bulk_flow(&mut self, number: u32, start_ns: u64, stop_ns: Option<u64>) {
        if start_ns < self.duration_ns {
            self.bulk.push(BulkFlow { number, start_ns, stop_ns, bytes_before: 0 });
        }
    }

    fn last_start_ns(&self) -> u64 {
        self.bulk.iter().map(|flow| flow.start_ns).max().unwrap_or(0)
    }

    /// End of the current window; `None`: no further windows, or no flows to evaluate.
    pub(super) fn next_window_ns(&self) -> Option<u64> {
        let start_ns = self.last_start_ns();
        let span_ns = self.duration_ns - start_ns;
        (self.bulk.len() > 1 && self.window <= WINDOWS && span_ns >= WINDOWS)
            .then(|| start_ns + span_ns / WINDOWS * self.window)
    }

    /// Ends a window; the first call starts one.
    pub(super) fn end_window(&mut self, now_ns: u64, qps: &[Qp]) {
        let goodput = self.bulk.iter_mut().filter_map(|flow| {
            let bytes = qps.get(flow.number as usize)?.delivered_bytes;
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
                let last_ns = start_ns + (self.duration_ns - start_ns) / WINDOWS * WINDOWS;
                (unfair_ns < last_ns).then(|| unfair_ns - start_ns)
            }
        }
    }

    /// A message was acknowledged.
    pub(super) fn complete(&mut self, group: u32, now_ns: u64, message: Completed) {
        let meters = self.fcts.get_mut(group as usize);
        if let Some(times) = meters.and_then(|meters| meters.get_mut(message.flow as usize)) {
            times.fcts_ns.push(now_ns - message.posted_ns);
        }
    }

    /// Starts the statistics.
    pub(super) fn reset(&mut self) {
        self.fcts.iter_mut().flatten().for_each(|times| times.fcts_ns.clear());
    }

    /// When the next sample is due; `None`: no series requested, or they are full.
    pub(super) fn next_sample_ns(&self) -> Option<u64> {
        let interval_ns = self.interval_ns.filter(|_| self.series.t_ns.len() as u64 <= MAX_SAMPLES)?;
        Some(if self.series.t_ns.is_empty() { 0 } else { self.last_sample_ns + interval_ns })
    }

    /// Takes a sample.
    pub(super) fn sample(
        &mut self,
        now_ns: u64,
        params: &[Params],
        qps: &[Qp],
        tcps: &[Tcp],
        port: &mut Port,
    ) {
        let since_ns = now_ns - self.last_sample_ns;
        self.last_sample_ns = now_ns;
        let bps = |before: &mut u64, bytes: u64| {
            let got = bytes - std::mem::replace(before, bytes);
            (u128::from(got) * 8_000_000_000).checked_div(u128::from(since_ns)).unwrap_or(0) as u64
        };
        self.series.t_ns.push(now_ns);
        let mut sums = vec![0; self.group_bytes.len()];
        let mut add = |group: u32, bytes: u64| {
            if let Some(sum) = sums.get_mut(group as usize) {
                *sum += bytes;
            }
        };
        qps.iter().for_each(|qp| add(qp.group, qp.delivered_bytes));
        tcps.iter().for_each(|tcp| add(tcp.group, tcp.delivered_bytes));
        for ((series, before), sum) in self.series.groups.iter_mut().zip(&mut self.group_bytes).zip(sums) {
            series.goodput_bps.push(bps(before, sum));
        }
        let roce = qps.iter().map(|qp| {
            let (rate_bps, target_bps) = rates(qp, params, now_ns);
            (rate_bps, target_bps, qp.delivered_bytes)
        });
        let tcp = tcps.iter().map(|tcp| (tcp.rate_bps(), 0, tcp.delivered_bytes));
        for ((series, before), (rate_bps, target_bps, bytes)) in
            self.series.flows.iter_mut().zip(&mut self.flow_bytes).zip(roce.chain(tcp))
        {
            series.rate_bps.push(rate_bps);
            series.target_bps.push(target_bps);
            series.goodput_bps.push(bps(before, bytes));
        }
        for series in &mut self.series.classes {
            let queue = port.queue(series.class);
            series.queue_bytes.push(queue.bytes());
            series.max_queue_bytes.push(queue.depth.take_recent_max());
        }
    }

    /// The outcome, at the end of the simulation.
    #[expect(clippy::too_many_arguments, reason = "the parts of the simulation, destructured once")]
    pub(super) fn outcome(
        self,
        scenario: &Scenario,
        now_ns: u64,
        params: &[Params],
        qps: &[Qp],
        tcps: &[Tcp],
        port: &mut Port,
        counters: Counters,
    ) -> Outcome {
        let time_ns = (now_ns - scenario.stats_from_ns).max(1) as f64;
        let bps = |bytes: u64| bytes as f64 * 8e9 / time_ns;
        let roce = qps.iter().map(|qp| {
            let once = matches!(scenario.roce[qp.group as usize].work, Work::Once { .. });
            let completed_ns = qp.completed_ns.filter(|_| once);
            (qp.group, qp.counters(), rates(qp, params, now_ns).0, completed_ns)
        });
        let tcp = tcps.iter().map(|tcp| (tcp.group, tcp.counters, tcp.rate_bps(), None));
        let flows: Vec<FlowOutcome> = flow_names(scenario)
            .zip(roce.chain(tcp))
            .map(|((name, _), (group, counters, rate_bps, completed_ns))| FlowOutcome {
                name,
                group,
                goodput_bps: bps(counters.bytes),
                counters,
                rate_bps,
                completed_ns,
            })
            .collect();

        let kinds = scenario.roce.iter().map(|g| (g.class, g.flows, Kind::Roce));
        let kinds = kinds.chain(scenario.tcp.iter().map(|g| (g.class, g.flows, kind(g.law))));
        let groups = (0..).zip(group_names(scenario).into_iter().zip(kinds));
        let mut groups: Vec<GroupOutcome> = groups
            .map(|(index, (name, (class, count, kind)))| {
                let own = || flows.iter().filter(move |flow| flow.group == index);
                let totals = own().fold(FlowCounters::default(), |sum, flow| sum.plus(&flow.counters));
                GroupOutcome {
                    name,
                    kind,
                    class,
                    flows: count,
                    goodput_bps: bps(totals.bytes),
                    jain: jain_index(&own().map(|flow| flow.goodput_bps).collect::<Vec<_>>()),
                    totals,
                    fct: None,
                    fct_by_size: Vec::new(),
                }
            })
            .collect();
        for ((group, spec), meters) in groups.iter_mut().zip(&scenario.roce).zip(&self.fcts) {
            group.fct = Times::summary(meters);
            if let Work::Messages { sizes, .. } = &spec.work {
                let by_size = sizes.iter().zip(meters);
                group.fct_by_size = by_size
                    .map(|(size, meter)| FctOfSize {
                        bytes: size.bytes,
                        fct: Times::summary(std::slice::from_ref(meter)),
                    })
                    .collect();
            }
        }

        let one_message =
            groups.iter().zip(&scenario.roce).filter(|(_, spec)| matches!(spec.work, Work::Once { .. }));
        let unfinished_messages = one_message
            .map(|(group, spec)| u64::from(spec.flows).saturating_sub(group.totals.messages))
            .sum();
        let used = classes(scenario);
        let tx_bytes: u64 = used.iter().map(|&class| port.queue(class).counters.tx_bytes).sum();
        let classes = used.into_iter().map(|class| {
            let queue = port.queue(class);
            let counters = queue.counters;
            ClassOutcome {
                class,
                queue: queue.depth.summary(),
                marked_packets: counters.marked,
                dropped_packets: counters.dropped,
                pauses: counters.pauses,
                paused_ns: counters.paused_ns,
                tx_packets: counters.tx_packets,
                tx_bytes: counters.tx_bytes,
                tx_share: counters.tx_bytes as f64 / tx_bytes.max(1) as f64,
            }
        });
        let classes = classes.collect();
        Outcome {
            duration_ns: now_ns,
            stats_from_ns: scenario.stats_from_ns,
            port_rate_bps: scenario.port_rate_bps,
            link_utilisation: port.busy_ns as f64 / time_ns,
            convergence_ns: self.convergence_ns(),
            groups,
            flows,
            classes,
            unfinished_messages,
            counters,
            series: scenario.series.map(|_| self.series),
        }
    }
}

/// Current rate and target of a RoCE flow, as its next packet would find them; 0 before its start.
fn rates(qp: &Qp, params: &[Params], now_ns: u64) -> (u64, u64) {
    let Some(params) = params.get(qp.group as usize).filter(|_| qp.started) else { return (0, 0) };
    // A copy, because reading must not change the state.
    let mut machine = qp.send.rp.hot.machine;
    machine.advance(&params.rp, now_ns);
    (machine.rate_bps, machine.target_bps)
}

const fn kind(law: TcpLaw) -> Kind {
    match law {
        TcpLaw::Cubic => Kind::Cubic,
        TcpLaw::Dctcp => Kind::Dctcp,
    }
}

fn group_names(scenario: &Scenario) -> Vec<String> {
    let roce = scenario.roce.iter().map(|group| group.name.clone());
    roce.chain(scenario.tcp.iter().map(|group| group.name.clone())).collect()
}

/// Name and group of every flow.
fn flow_names(scenario: &Scenario) -> impl Iterator<Item = (String, u32)> {
    let roce = scenario.roce.iter().map(|group| (&group.name, group.flows));
    let groups = roce.chain(scenario.tcp.iter().map(|group| (&group.name, group.flows)));
    (0..)
        .zip(groups)
        .flat_map(|(group, (name, flows))| (0..flows).map(move |i| (format!("{name}.{i}"), group)))
}

fn flow_series((name, group): (String, u32)) -> FlowSeries {
    FlowSeries { name, group, ..FlowSeries::default() }
}

/// Classes that have a group, lowest first.
fn classes(scenario: &Scenario) -> Vec<u8> {
    let roce = scenario.roce.iter().map(|group| group.class);
    let mut classes: Vec<u8> = roce.chain(scenario.tcp.iter().map(|group| group.class)).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

impl FlowCounters {
    fn plus(self, other: &Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            sent_packets: self.sent_packets + other.sent_packets,
            retransmitted_packets: self.retransmitted_packets + other.retransmitted_packets,
            dropped_packets: self.dropped_packets + other.dropped_packets,
            marked_packets: self.marked_packets + other.marked_packets,
            cnps: self.cnps + other.cnps,
            naks: self.naks + other.naks,
            timeouts: self.timeouts + other.timeouts,
            messages: self.messages + other.messages,
        }
    }
}
