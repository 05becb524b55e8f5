//! Report of a simulation, as text, as JSON, and as rows of a sweep's table.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use dcqcn_common::params::{Quantity, Unit};
use dcqcn_params::fluid::{self, Bottleneck, FixedPoint, SteadyState};
use dcqcn_params::{Assignment, Key, word};
use dcqcn_support::render::{self, Column, Table, count};
use dcqcn_support::statistics::jain_index;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::cycle;
use super::knobs::ROCE_KNOBS;
use super::presets::{Preset, Setup, roce_class};
use super::star::Star;
use crate::RunCost;
use crate::fabric::{FCT_HEADINGS, fct_cells};
use crate::network::workload::Work;
use crate::network::{Fct, Marking};
use crate::star::{ClassOutcome, FlowCounters, FlowOutcome, GroupOutcome, Kind, Outcome, Samples, Series};

/// Settings and results of one simulation.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub preset: Preset,
    /// Settings, raw, with their unit in the name; groups of a file may differ.
    pub settings: Map<String, Value>,
    /// DCQCN parameters that differ from the profile, as text.
    pub parameters: Map<String, Value>,
    pub outcome: Outcome,
    /// Fixed point of the fluid model, where it applies.
    pub fixed_point: Option<FixedPoint>,
    /// Fixed point by counting events (`cycle`), without the model's averaging.
    pub cycle_fixed_point: Option<FixedPoint>,
    /// The fluid model's queue over time, where it applies; of `stability` only.
    pub fluid_settled: Option<SteadyState>,
    /// Stability of the bottleneck; `None` without RoCE.
    pub oscillation: Option<Oscillation>,
    /// Shares of the flows between joins; empty unless flows start at several times.
    pub stages: Vec<Stage>,
    pub run: RunCost,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Oscillation {
    /// Standard deviation of the RoCE queue over its mean.
    pub queue_variation: f64,
    /// Fraction of the time in which the port was idle, 0 to 1.
    pub idle_share: f64,
    /// From the 1st to the 99th percentile of the sum of all rates R_C, as a share of the link; `None` if some flow has
    /// no time series.
    pub rate_swing: Option<f64>,
}

/// Goodput of each flow from one join to the next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    pub from_ns: u64,
    pub to_ns: u64,
    /// Mean goodput over its second half, of each flow that had started.
    pub goodput_bps: Vec<f64>,
    pub jain: f64,
}

impl Report {
    /// Assembles the report. Takes the time series out of `outcome`: they are long, and have separate files.
    pub fn new(setup: &Setup, star: &Star, mut outcome: Outcome, wall: Duration) -> Self {
        let series = outcome.series.take();
        Self {
            preset: setup.preset,
            settings: settings(setup),
            parameters: parameters(&setup.changes),
            fixed_point: bottleneck(star).and_then(|link| fluid::fixed_point(&link)),
            cycle_fixed_point: bottleneck(star).and_then(|link| cycle::fixed_point(&link)),
            fluid_settled: (setup.preset == Preset::Stability).then(|| steady_state(star)).flatten(),
            oscillation: oscillation(star, &outcome, series.as_ref()),
            stages: series.as_ref().map_or_else(Vec::new, |series| stages(star, series)),
            run: RunCost::new(outcome.counters.hops, wall),
            outcome,
        }
    }

    pub(super) fn groups(&self, is_roce: bool) -> impl Iterator<Item = &GroupOutcome> {
        self.outcome.groups.iter().filter(move |group| (group.kind == Kind::Roce) == is_roce)
    }

    /// The class RoCE's first group is in.
    pub(super) fn roce_class(&self) -> Option<&ClassOutcome> {
        let group = self.groups(true).next()?;
        self.outcome.classes.iter().find(|class| class.class == group.class)
    }

    pub(super) fn goodput_bps(&self, is_roce: bool) -> f64 {
        self.groups(is_roce).map(|group| group.goodput_bps).sum()
    }

    /// Sum of a counter over the RoCE groups.
    pub(super) fn total(&self, count: fn(&FlowCounters) -> u64) -> f64 {
        self.groups(true).map(|group| count(&group.totals)).sum::<u64>() as f64
    }

    /// Jain's index over all RoCE flows.
    pub(super) fn jain(&self) -> f64 {
        let Outcome { groups, flows, .. } = &self.outcome;
        let roce = flows.iter().filter(|flow| groups[flow.group as usize].kind == Kind::Roce);
        let goodputs: Vec<f64> = roce.map(|flow| flow.goodput_bps).collect();
        jain_index(&goodputs)
    }
}

fn settings(setup: &Setup) -> Map<String, Value> {
    let mut map = Map::new();
    let value = |unit, value: u64| match unit {
        Unit::Switch => json!(value != 0),
        Unit::Choice(words) => {
            json!(usize::try_from(value).ok().and_then(|index| words.get(index)))
        }
        _ => json!(value),
    };
    for knob in Setup::knobs(setup.preset) {
        map.insert(knob.json_key(), value(knob.unit, (knob.get)(setup)));
    }
    for knob in ROCE_KNOBS {
        map.insert(knob.json_key(), value(knob.unit, (knob.get)(&setup.roce)));
    }
    map.insert("profile".to_owned(), word(&setup.profile).into());
    map
}

/// Changed parameters by name, as text.
pub(crate) fn parameters(changes: &[Assignment]) -> Map<String, Value> {
    let text = |key: Key, value| Quantity(value, key.unit()).to_string();
    changes.iter().map(|change| (change.key.to_string(), text(change.key, change.value).into())).collect()
}

/// The models' input for `star`, if they apply: bulk flows of one group alone at the port, marked on departure.
fn bottleneck(star: &Star) -> Option<Bottleneck<'_>> {
    let [group] = star.groups.as_slice() else { return None };
    let alone = group.is_roce() && group.flows >= 2 && group.flows_per_sender == 1;
    let as_modelled = alone && star.control && group.work == Work::Bulk && star.marking == Marking::Dequeue;
    as_modelled.then(|| Bottleneck {
        config: &star.config,
        tc: group.class.into(),
        link_bps: star.port_rate_bps,
        flows: group.flows.into(),
        packet_bytes: group.transport.frame_bytes().into(),
    })
}

fn steady_state(star: &Star) -> Option<SteadyState> {
    fluid::steady_state(&bottleneck(star)?, 2 * (star.sender_delay_ns + star.receiver_delay_ns))
}

fn oscillation(star: &Star, outcome: &Outcome, series: Option<&Series>) -> Option<Oscillation> {
    let class = outcome.classes.iter().find(|class| class.class == roce_class(star))?;
    let flows = star.roce_flows();
    if flows == 0 {
        return None;
    }
    let mean = class.queue.mean_bytes;
    Some(Oscillation {
        queue_variation: if mean > 0.0 { class.queue.deviation_bytes / mean } else { 0.0 },
        idle_share: 1.0 - outcome.link_utilisation,
        rate_swing: series.and_then(|series| rate_swing(star, series, flows)),
    })
}

fn rate_swing(star: &Star, series: &Series, flows: u32) -> Option<f64> {
    let roce = series.flows.iter().filter(|flow| star.groups[flow.index as usize].is_roce());
    let rates: Vec<&[u64]> = roce.map(|flow| flow.rate_bps.as_slice()).collect();
    if rates.len() as u64 != u64::from(flows) {
        return None;
    }
    let late = series.t_ns.iter().enumerate().filter(|(_, t_ns)| **t_ns >= star.stats_from_ns);
    let mut sums: Vec<u64> =
        late.map(|(index, _)| rates.iter().filter_map(|rate| rate.get(index)).sum()).collect();
    sums.sort_unstable();
    let at = |percent: usize| sums.get(sums.len().saturating_sub(1) * percent / 100).copied();
    Some((at(99)? - at(1)?) as f64 / star.port_rate_bps as f64)
}

/// From each start of a RoCE group to the next; empty if all start together.
fn stages(star: &Star, series: &Series) -> Vec<Stage> {
    let mut starts: Vec<u64> = star.roce().map(|group| group.start_ns).collect();
    starts.sort_unstable();
    starts.dedup();
    if starts.len() < 2 {
        return Vec::new();
    }
    let end_ns = series.t_ns.last().copied().unwrap_or(star.duration_ns);
    let ends = starts.iter().skip(1).copied().chain([end_ns]);
    let stage = |(&from_ns, to_ns): (&u64, u64)| {
        let half_ns = u64::midpoint(from_ns, to_ns);
        let goodput_bps: Vec<f64> = series
            .flows
            .iter()
            .filter(|flow| {
                let group = &star.groups[flow.index as usize];
                group.is_roce() && group.start_ns <= from_ns
            })
            .map(|flow| {
                let samples = series.t_ns.iter().zip(&flow.goodput_bps);
                let late = samples.filter(|(t_ns, _)| (half_ns + 1..=to_ns).contains(*t_ns));
                let (sum, count) =
                    late.fold((0.0, 0u32), |(sum, count), (_, &bps)| (sum + bps as f64, count + 1));
                sum / f64::from(count.max(1))
            })
            .collect();
        Stage { from_ns, to_ns, jain: jain_index(&goodput_bps), goodput_bps }
    };
    starts.iter().zip(ends).filter(|(from_ns, to_ns)| *from_ns < to_ns).map(stage).collect()
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

pub(super) fn size(bytes: f64) -> String {
    render::bytes(bytes.round() as u64)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { preset, outcome, .. } = self;
        writeln!(
            f,
            "{}: {} through {}, results of the last {}\n",
            word(preset),
            render::ns(outcome.duration_ns),
            render::bps(outcome.port_rate_bps as f64),
            render::ns(outcome.duration_ns - outcome.stats_from_ns)
        )?;
        self.write_groups(f)?;
        self.write_flows(f)?;
        writeln!(f)?;
        self.write_classes(f)?;
        writeln!(f)?;
        self.write_stages(f)?;
        self.write_rest(f)
    }
}

const MAX_FLOW_ROWS: usize = 12;

impl Report {
    fn write_groups(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |of: fn(&Fct) -> u64| {
            move |group: &&GroupOutcome| or_dash(group.fct.as_ref(), |fct| render::ns(of(fct)))
        };
        let slowdown = |of: fn(&Fct) -> f64| {
            move |group: &&GroupOutcome| or_dash(group.fct.as_ref(), |fct| format!("{:.2}", of(fct)))
        };
        let port_bps = self.outcome.port_rate_bps as f64;
        let columns: &[Column<'_, &GroupOutcome>] = &[
            ("GROUP", &|group| group.name.clone()),
            ("KIND", &|group| kind(group.kind).to_owned()),
            (">CLASS", &|group| group.class.to_string()),
            (">FLOWS", &|group| group.flows.to_string()),
            (">GOODPUT", &|group| render::bps(group.goodput_bps)),
            (">OF LINK", &|group| percent(group.goodput_bps / port_bps)),
            (">JAIN", &|group| format!("{:.3}", group.jain)),
            (">SENT", &|group| group.totals.sent_packets.to_string()),
            (">RETRANSMITTED", &|group| group.totals.retransmitted_packets.to_string()),
            (">DROPPED", &|group| group.totals.dropped_packets.to_string()),
            (">TIMEOUTS", &|group| group.totals.timeouts.to_string()),
            (">CNPS", &|group| group.totals.cnps.to_string()),
            (">MESSAGES", &|group| group.totals.messages.to_string()),
            (">FCT P50", &time(|fct| fct.p50_ns)),
            (">FCT P95", &time(|fct| fct.p95_ns)),
            (">FCT P99", &time(|fct| fct.p99_ns)),
            (">SLOWDOWN P50", &slowdown(|fct| fct.slowdown_p50)),
            (">P99", &slowdown(|fct| fct.slowdown_p99)),
        ];
        let table = Table::of(&self.outcome.groups, columns);
        write!(f, "{table}")?;
        let Outcome { unfinished_messages, not_started_messages, .. } = self.outcome;
        let left = [
            (unfinished_messages, "incomplete at the end"),
            (not_started_messages, "not started by the end"),
        ];
        for (messages, state) in left.into_iter().filter(|(messages, _)| *messages != 0) {
            writeln!(f, "\n{} {state}; increase --duration", count(messages, "message"))?;
        }
        self.write_sizes(f)
    }

    /// Completion times by message length, if there are several lengths.
    fn write_sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.outcome.groups.iter();
        let rows = groups.flat_map(|group| group.fct_by_size.iter().map(move |row| (group, row)));
        let mut table = Table::new(&[&["\nGROUP", ">SIZE", ">MESSAGES"], &FCT_HEADINGS[..]].concat());
        for (group, row) in rows {
            let Some(fct) = &row.fct else { continue };
            let cells = [group.name.clone(), render::bytes(row.bytes)].into_iter().chain(fct_cells(fct));
            table.row(cells.collect::<Vec<_>>());
        }
        if table.is_empty() { Ok(()) } else { write!(f, "{table}") }
    }

    /// Each flow; if there are many, the slowest and the fastest.
    fn write_flows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flows = &self.outcome.flows;
        let mut sorted: Vec<_> = flows.iter().collect();
        if flows.len() > MAX_FLOW_ROWS {
            sorted.sort_by(|a, b| a.goodput_bps.total_cmp(&b.goodput_bps));
            let (slowest, fastest) = (sorted.first().copied(), sorted.last().copied());
            sorted = slowest.into_iter().chain(fastest).collect();
        }
        let columns: &[Column<'_, &FlowOutcome>] = &[
            ("\nFLOW", &|flow| flow.name.clone()),
            (">GOODPUT", &|flow| render::bps(flow.goodput_bps)),
            (">CNPS", &|flow| flow.counters.cnps.to_string()),
            (">RETRANSMITTED", &|flow| flow.counters.retransmitted_packets.to_string()),
            (">RATE AT THE END", &|flow| render::bps(flow.rate_bps as f64)),
        ];
        let table = Table::of(sorted, columns);
        if flows.len() > MAX_FLOW_ROWS {
            write!(f, "\nslowest and fastest flow:")?;
        }
        write!(f, "{table}")
    }

    fn write_classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: &[Column<'_, &ClassOutcome>] = &[
            (">CLASS", &|class| class.class.to_string()),
            (">QUEUE MEAN", &|class| size(class.queue.mean_bytes)),
            (">DEVIATION", &|class| size(class.queue.deviation_bytes)),
            (">P50", &|class| render::bytes(class.queue.p50_bytes)),
            (">P99", &|class| render::bytes(class.queue.p99_bytes)),
            (">MAX", &|class| render::bytes(class.queue.max_bytes)),
            (">MARKED", &|class| class.marked_packets.to_string()),
            (">DROPPED", &|class| class.dropped_packets.to_string()),
            (">PAUSES", &|class| class.pauses.to_string()),
            (">PAUSED FOR", &|class| render::ns(class.paused_ns)),
            (">OF BYTES", &|class| percent(class.tx_share)),
        ];
        write!(f, "{}", Table::of(&self.outcome.classes, columns))
    }

    fn write_stages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stages.is_empty() {
            return Ok(());
        }
        let goodputs =
            |stage: &&Stage| stage.goodput_bps.iter().map(|bps| render::bps(*bps)).collect::<Vec<_>>();
        let columns: &[Column<'_, &Stage>] = &[
            ("STAGE", &|stage| format!("{} to {}", render::ns(stage.from_ns), render::ns(stage.to_ns))),
            (">FLOWS", &|stage| stage.goodput_bps.len().to_string()),
            (">JAIN", &|stage| format!("{:.3}", stage.jain)),
            ("GOODPUT OF EACH, SECOND HALF", &|stage| goodputs(stage).join(", ")),
        ];
        writeln!(f, "{}", Table::of(&self.stages, columns))
    }

    fn write_rest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { outcome, fixed_point, cycle_fixed_point, fluid_settled, oscillation, .. } = self;
        write!(f, "link busy {}", percent(outcome.link_utilisation))?;
        if let Some(converged_ns) = outcome.convergence_ns {
            write!(f, "; fair {} after the last start", render::ns(converged_ns))?;
        }
        writeln!(f)?;
        for (name, point) in [("fluid model", fixed_point), ("event by event", cycle_fixed_point)] {
            let Some(FixedPoint { marking_probability, queue_bytes, beyond_pmax }) = point else { continue };
            let p = marking_probability * 100.0;
            let queue = size(*queue_bytes);
            write!(f, "{name}: p* = {p:.3} %")?;
            if *beyond_pmax {
                writeln!(f, " is above Pmax, so the queue oscillates around Kmax = {queue}")?;
            } else {
                writeln!(f, ", queue {queue}")?;
            }
        }
        if let Some(SteadyState { mean_bytes, deviation_bytes }) = fluid_settled {
            let (mean, share) = (size(*mean_bytes), percent(deviation_bytes / mean_bytes));
            writeln!(f, "fluid model over time: queue {mean}, deviating by {share} of that")?;
        }
        if let Some(Oscillation { queue_variation, rate_swing, .. }) = oscillation {
            write!(f, "standard deviation of the queue: {} of its mean", percent(*queue_variation))?;
            match rate_swing {
                Some(swing) => writeln!(f, "; swing of the sum of rates: {} of the link", percent(*swing))?,
                None => writeln!(f)?,
            }
        }
        let hops = outcome.counters.hops as f64 / 1e6;
        let (seconds, speed) = (self.run.wall_seconds, self.run.hops_per_second / 1e6);
        writeln!(f, "simulated {hops:.2} million packet hops in {seconds:.2} s: {speed:.2} million/s")
    }
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Roce => "RoCE",
        Kind::Cubic => "CUBIC",
        Kind::Dctcp => "DCTCP",
    }
}

fn or_dash<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

/// Header of the CSV of a single run; see [`write_series`].
pub(crate) const SERIES_HEADER: &str =
    "t_ns,series,rate_bps,target_bps,goodput_bps,queue_bytes,max_queue_bytes";

/// Writes time series, a line per sample and series, in order of time.
///
/// `flow:NAME` has rate (R_C), target (R_T) and goodput since the last sample, `group:NAME` goodput,
/// `class:N` the current depth of its queue and the maximum since the last sample.
pub fn write_series(out: &mut dyn Write, series: &Series) -> io::Result<()> {
    writeln!(out, "{SERIES_HEADER}")?;
    let Series { t_ns, flows, groups, classes } = series;
    for (index, t_ns) in t_ns.iter().enumerate() {
        for (kind, all) in [("flow", flows), ("group", groups), ("class", classes)] {
            for Samples { name, rate_bps, target_bps, goodput_bps, queue_bytes, max_queue_bytes, .. } in all {
                let lists = [rate_bps, target_bps, goodput_bps, queue_bytes, max_queue_bytes];
                let cells = lists.map(|list| list.get(index).map_or_else(String::new, u64::to_string));
                writeln!(out, "{t_ns},{kind}:{name},{}", cells.join(","))?;
            }
        }
    }
    Ok(())
}

pub fn title(setup: &Setup) -> String {
    let link = render::bps(setup.star.port_rate_bps as f64);
    let flows = setup.roce.group.flows;
    let groups = match (setup.preset, setup.groups_of_file(true).count()) {
        (Preset::Coexist, 0) => {
            format!("{} and {}", count(flows, "RoCE reader"), count(setup.tcp.group.flows, "TCP flow"))
        }
        (_, 0) => count(flows, "RoCE flow"),
        (_, groups) => count(groups, "RoCE group"),
    };
    format!("{}: {groups} through {link}, {}", word(&setup.preset), word(&setup.profile))
}
