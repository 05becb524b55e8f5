//! Report of a simulation, as text, as JSON, and as rows of a sweep's table.

mod text;

use std::io::{self, Write};
use std::time::Duration;

use dcqcn_common::params::{Quantity, Unit};
use dcqcn_params::fluid::{self, Bottleneck, FixedPoint, SteadyState};
use dcqcn_params::{Assignment, Key, word};
use dcqcn_support::render::{self, count};
use dcqcn_support::statistics::jain_index;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::cycle;
use super::knobs::ROCE_KNOBS;
use super::presets::{Preset, Setup, roce_class};
use super::star::Star;
use crate::RunCost;
use crate::network::Marking;
use crate::network::workload::Work;
use crate::star::{ClassOutcome, FlowCounters, GroupOutcome, Kind, Outcome, Samples, Series};

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

/// Header of the CSV of a single run; see [`write_series`].
pub(crate) const SERIES_HEADER: &str =
    "t_ns,series,rate_bps,target_bps,goodput_bps,queue_bytes,max_queue_bytes";

/// Writes time series, a line per sample and series, in order of time: `flow:NAME` has rate (R_C), target (R_T) and
/// goodput since the last sample, `group:NAME` goodput, `class:N` the current depth of its queue and the maximum since
/// the last sample.
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

/// Caption of a picture of `setup`.
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
