//! The gate: decides from the hosts' own metrics whether a change did harm.
//!
//! The baseline of a changed host is the larger of its own metric before the change and the mean of the
//! unchanged hosts.
//!
//! Event counts are tested against a Poisson distribution of the allowed mean. The significance level is
//! [`FALSE_ALARM`] per evaluation of the whole rollout, divided by the number of comparisons (Bonferroni). A
//! burst is counted as one event: counts are divided by their variance-to-mean ratio. [`MISSED_EVENTS`] are
//! added to every allowed mean.

use super::State;
use crate::measure::{Limit, Measure};
use crate::prelude::*;

/// False-alarm probability of one evaluation.
pub(crate) const FALSE_ALARM: f64 = 0.001;
/// Events added to every allowed mean: a minute without events does not prove a rate of zero.
const MISSED_EVENTS: f64 = 3.0;
/// Standard errors allowed for a throughput.
const SIGMAS: f64 = 4.0;
/// Standard deviations allowed for the event count of a baseline.
const BASELINE_SIGMAS: f64 = 2.0;
/// Minimum number of hosts for comparing the sum of their throughput.
const POOLED_HOSTS: u32 = 4;
/// A host is silent after this multiple of its longest earlier pause, plus [`PAUSE_MS`].
const PAUSES: u64 = 6;
const PAUSE_MS: u64 = 2_000;
/// With less than this fraction of their traffic left, the unchanged hosts are considered silent as well.
const SILENT_PART: f64 = 0.5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good {
        /// Changed hosts with enough packets and, if they had traffic before, with comparable throughput.
        evaluated: usize,
        changed: usize,
        /// Changed hosts that may become evaluable with more samples: their traffic dropped recently, or its
        /// spread is unknown.
        undecided: usize,
    },
    Bad(String),
}

/// Total traffic of the hosts that a wave leaves unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Control {
    hosts: usize,
    packets_per_s: u64,
}

impl Control {
    pub(super) fn of(steps: &[Step], wave: usize, hosts: &Hosts) -> Self {
        let mut control = Self::default();
        for rates in unchanged(steps, hosts).filter(|(step, _)| step.wave > wave).map(|(_, rates)| rates) {
            control.hosts += 1;
            // The hosts report it: any value is possible.
            let of_host = rates.value(THROUGHPUT).unwrap_or(0);
            control.packets_per_s = control.packets_per_s.saturating_add(of_host);
        }
        control
    }

    /// Fraction of the traffic that is left, at most 1. Returns 1 if there was none.
    fn remaining(&self, now: &Self) -> f64 {
        if self.packets_per_s == 0 || self.hosts == 0 || now.hosts == 0 {
            return 1.0;
        }
        let mean = |control: &Self| control.packets_per_s as f64 / control.hosts as f64;
        (mean(now) / mean(self)).min(1.0)
    }
}

fn unchanged<'a>(steps: &'a [Step], hosts: &'a Hosts) -> impl Iterator<Item = (&'a Step, &'a Rates)> {
    let waiting = steps.iter().filter(|step| step.state == State::Waiting);
    waiting.filter_map(|step| Some((step, &hosts.get(&step.host)?.report.rates)))
}

pub(super) fn evaluate(rollout: &Rollout, control: &Control, hosts: &Hosts) -> Verdict {
    let gate = &rollout.policy.gate;
    let wave = match &rollout.phase {
        Phase::Forward(forward) => forward.wave,
        _ => 0,
    };
    let left = control.remaining(&Control::of(&rollout.steps, wave, hosts));
    let speaks = |rates: &&Rates| rates.data_packets >= gate.min_packets.max(1);
    let others: Vec<&Rates> =
        unchanged(&rollout.steps, hosts).map(|(_, rates)| rates).filter(speaks).collect();
    let is_changed = |step: &&Step| matches!(step.state, State::Applied { .. });
    let changed: Vec<(&Step, &Rates)> = rollout
        .steps
        .iter()
        .filter(is_changed)
        .filter_map(|step| Some((step, &hosts.get(&step.host)?.report.rates)))
        .collect();
    let comparisons = (changed.len() * gate.limits.len()).max(1);
    let alpha = FALSE_ALARM / comparisons as f64;
    let (mut evaluated, mut undecided) = (0, 0);
    for (step, now) in &changed {
        let before = step.before.as_ref().filter(speaks);
        let throughput = gate.limits.get(THROUGHPUT);
        if let Some(before) = before.filter(|_| throughput.is_some())
            && let Some(reason) = silence(before, now, left)
        {
            return Verdict::Bad(format!("{} {reason}", step.host));
        }
        if !speaks(now) {
            let is_watched = throughput.is_some() && before.is_some() && now.queue_pairs != Some(0);
            undecided += usize::from(is_watched && left >= SILENT_PART);
            continue;
        }
        let case = Case { now, before, others: &others, left, alpha };
        for measure in MEASURES {
            let Some(limit) = gate.limits.get(measure.name) else { continue };
            if let Some(reason) = case.harm(measure, *limit) {
                return Verdict::Bad(format!("{} {reason}", step.host));
            }
        }
        match before.filter(|_| throughput.is_some() && now.queue_pairs != Some(0)) {
            // No traffic before the change, or the job has ended: throughput is not compared.
            None => evaluated += 1,
            // Further samples cannot improve the baseline: not evaluated, and not worth waiting for.
            Some(before) if !has_spread(before) => {}
            Some(_) if !has_spread(now) => undecided += 1,
            Some(_) => evaluated += 1,
        }
    }
    if let Some(reason) =
        gate.limits.get(THROUGHPUT).and_then(|limit| sum_exceeds(&changed, gate, *limit, left))
    {
        return Verdict::Bad(reason);
    }
    Verdict::Good { evaluated, changed: changed.len(), undecided }
}

/// Returns whether the spread of the throughput is known, or the agent does not measure throughput at all.
fn has_spread(rates: &Rates) -> bool {
    rates.of.get(THROUGHPUT).is_none_or(|reading| reading.spread < UNKNOWN_SPREAD)
}

pub(super) fn has_baseline(rates: &Rates) -> bool {
    rates.window_ms > 0 && has_spread(rates)
}

/// Tests the sum of throughput over the changed hosts: bursts hide a loss on one host, and average out over many.
fn sum_exceeds(changed: &[(&Step, &Rates)], gate: &Gate, limit: Limit, left: f64) -> Option<String> {
    let (mut hosts, mut before_sum, mut now_sum, mut variance) = (0_u32, 0.0, 0.0, 0.0);
    let least = limit.times * left;
    for (step, now) in changed {
        let Some(before) = step.before.as_ref().filter(|before| before.data_packets >= gate.min_packets)
        else {
            continue;
        };
        let (Some(was), Some(is)) = (before.of.get(THROUGHPUT), now.of.get(THROUGHPUT)) else { continue };
        // The end of a job is not harm. A host of unknown spread would hide the loss of all others.
        if now.queue_pairs == Some(0) || !has_spread(before) || !has_spread(now) {
            continue;
        }
        let error = |reading: &Reading| reading.value as f64 * reading.spread as f64 / 1_000.0;
        hosts += 1;
        before_sum += was.value as f64;
        now_sum += is.value as f64;
        variance += (error(was) * least).powi(2) + error(is).powi(2);
    }
    let allowed = before_sum * least - limit.plus as f64 * f64::from(hosts);
    // Fewer hosts are only compared one by one.
    let is_low = hosts >= POOLED_HOSTS && now_sum + SIGMAS * variance.sqrt() < allowed;
    is_low.then(|| {
        format!(
            "the {hosts} changed hosts together have {now_sum:.0} data packets per second; before the change {before_sum:.0}; limit \
             {allowed:.0} ([gate] {THROUGHPUT} = {{ times = {}, plus = {} }})",
            limit.times, limit.plus
        )
    })
}

/// Tests whether a host has fallen silent although its QPs still exist and unchanged hosts keep their traffic.
fn silence(before: &Rates, now: &Rates, left: f64) -> Option<String> {
    let longest_ms = PAUSES.saturating_mul(before.gap_ms.max(before.quiet_ms)).saturating_add(PAUSE_MS);
    let is_silent = now.quiet_ms >= longest_ms && now.queue_pairs != Some(0) && left >= SILENT_PART;
    is_silent.then(|| {
        let (packets, seconds) = (before.data_packets, before.window_ms / 1_000);
        format!(
            "has had no data packet for {} s; before the change it had {packets} in {seconds} s with pauses of up to {} s, and it still \
             has QPs or they cannot be counted ([gate] {THROUGHPUT})",
            now.quiet_ms / 1_000,
            before.gap_ms / 1_000
        )
    })
}

struct Case<'a> {
    now: &'a Rates,
    before: Option<&'a Rates>,
    others: &'a [&'a Rates],
    left: f64,
    alpha: f64,
}

impl Case<'_> {
    fn harm(&self, measure: &Measure, limit: Limit) -> Option<String> {
        let Limit { times, plus } = limit;
        let name = measure.name;
        let now = *self.now.of.get(name)?;
        let own = self.before.and_then(|before| before.value(name));
        let known = self.others.iter().filter_map(|rates| rates.value(name));
        let (sum, count) =
            known.fold((0_u64, 0_u64), |(sum, count), value| (sum.saturating_add(value), count + 1));
        let mean = sum.checked_div(count);
        // Without any baseline there is nothing to compare with.
        let baseline = own.max(mean)?;
        let allowed = baseline as f64 * times + plus as f64;
        let allowed = match measure.source {
            Source::Level(_) => (now.value as f64 > allowed).then_some(allowed),
            Source::Events(_) => {
                // Dividing by the variance-to-mean ratio yields the number of independent events.
                let packets = self.now.data_packets as f64;
                let ratio = (now.spread as f64 / 100.0).max(1.0);
                let events = self.scatter(name) + allowed * packets / 1e6;
                let (count, mean) = (now.value as f64 / ratio, events / ratio + MISSED_EVENTS);
                exceeds(count, mean, self.alpha).then_some(allowed)
            }
            // The end of a job is not harm.
            Source::Throughput if self.now.queue_pairs == Some(0) => None,
            Source::Throughput => {
                // Compared only with the host itself, as hosts differ in their traffic.
                let before = self.before?;
                let reading = before.of.get(name)?;
                let off = |value: u64, spread: u64, sign: f64| {
                    (value as f64 * (1.0 + sign * SIGMAS * spread as f64 / 1_000.0)).max(0.0)
                };
                let least = times * self.left;
                let low = off(reading.value, reading.spread, -1.0) * least - plus as f64;
                let high = off(now.value, now.spread, 1.0);
                (high < low).then_some(reading.value as f64 * least - plus as f64)
            }
        }?;
        let value = self.now.value(name)?;
        let (seconds, allowed, unit) = (self.now.window_ms / 1_000, allowed.max(0.0) as u64, measure.unit);
        let before = own.map_or_else(|| "unknown".into(), |own| own.to_string());
        let others = match mean {
            Some(mean) => format!("on {} unchanged hosts {mean}", self.others.len()),
            None => "no unchanged host to compare with".into(),
        };
        Some(format!(
            "has {value} {unit} in the last {seconds} s; before the change {before}, {others}; limit {allowed} ([gate] {name} = {{ times = \
             {times}, plus = {plus} }})"
        ))
    }

    /// Allowance for the sampling error of the host's own baseline, in events, scaled to the current packet count.
    fn scatter(&self, name: &str) -> f64 {
        let of = |before: &Rates| {
            let Some(reading) = before.of.get(name) else { return 0.0 };
            let ratio = (reading.spread as f64 / 100.0).max(1.0);
            let packets = self.now.data_packets as f64 / (before.data_packets.max(1) as f64);
            BASELINE_SIGMAS * (reading.value as f64 * ratio).sqrt() * packets
        };
        self.before.map_or(0.0, of)
    }
}

/// Returns whether `count` events are improbable (below `alpha`) for a Poisson distribution of mean `mean`.
///
/// Uses the Chernoff bound `P(X >= k) <= exp(k - mean - k ln(k / mean))`, so the actual false-alarm rate is
/// below `alpha`.
fn exceeds(count: f64, mean: f64, alpha: f64) -> bool {
    if count <= mean {
        return false;
    }
    if mean <= 0.0 {
        return true;
    }
    count - mean - count * (count / mean).ln() < alpha.ln()
}

#[cfg(test)]
mod tests;
