//! Summary of a replay.

use std::collections::BTreeMap;
use std::fmt;

use dcqcn_common::layout::Counters;
use dcqcn_common::stats::Stat;
use dcqcn_support::render::count;
use serde::Serialize;

use super::EngineKind;
use crate::{Hook, Outcome, Verdict};

/// Counts over all packets of a replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// [`dcqcn_support::JSON_VERSION`].
    pub json_version: u32,
    pub engine: EngineKind,
    pub hook: Hook,
    /// Packets in the capture.
    pub packets: u64,
    /// Packets captured partially.
    pub truncated: u64,
    /// Packets too short or too long for an engine, which passed.
    pub not_run: u64,
    /// Packets that passed or were redirected.
    pub passed: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Packets marked CE.
    pub marked: u64,
    /// Packets with a later departure time.
    pub delayed: u64,
    /// Packets emitted: CNPs.
    pub emitted: u64,
    /// Time from the first packet to the last, ns.
    pub duration_ns: u64,
    /// Times at which the capture's clock was set back by more than a second; the replay continues without a gap.
    pub clock_steps: u64,
    /// Nonzero counters, by hook and name.
    pub counters: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// Where and why reading the capture ended early.
    pub damaged: Option<String>,
}

impl Summary {
    pub(super) fn new(engine: EngineKind, hook: Hook) -> Self {
        Self {
            json_version: dcqcn_support::JSON_VERSION,
            engine,
            hook,
            packets: 0,
            truncated: 0,
            not_run: 0,
            passed: 0,
            dropped: 0,
            marked: 0,
            delayed: 0,
            emitted: 0,
            duration_ns: 0,
            clock_steps: 0,
            counters: BTreeMap::new(),
            damaged: None,
        }
    }

    pub(super) fn count(&mut self, outcome: &Outcome, marked: bool, truncated: bool, now_ns: u64) {
        self.packets += 1;
        self.truncated += u64::from(truncated);
        match outcome.verdict {
            Verdict::Pass | Verdict::Redirect { .. } | Verdict::Receive => self.passed += 1,
            Verdict::Drop => self.dropped += 1,
            Verdict::NotRun => self.not_run += 1,
        }
        self.marked += u64::from(marked);
        self.delayed += u64::from(outcome.departure_ns > now_ns);
        self.emitted += outcome.emitted.len() as u64;
    }

    pub(super) fn set_counters(&mut self, counters: &[Counters; 3]) {
        for (hook, name) in [(Hook::Xdp, "xdp"), (Hook::Ingress, "ingress"), (Hook::Egress, "egress")] {
            let values = &counters[hook.slot()].stat;
            let nonzero: BTreeMap<_, _> = Stat::ALL
                .iter()
                .map(|&stat| (stat.label(), values[stat as usize]))
                .filter(|&(_, value)| value != 0)
                .collect();
            if !nonzero.is_empty() {
                self.counters.insert(name, nonzero);
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} in {} ms: {} passed, {} dropped, {} not run, {} marked, {} delayed, {} emitted",
            count(self.packets, "packet"),
            self.duration_ns / 1_000_000,
            self.passed,
            self.dropped,
            self.not_run,
            self.marked,
            self.delayed,
            self.emitted,
        )?;
        if self.clock_steps != 0 {
            let times = self.clock_steps;
            writeln!(
                f,
                "steps of the capture's clock back by more than a second: {times}; each is replayed without a gap"
            )?;
        }
        if self.truncated != 0 {
            writeln!(f, "captured partially: {}", count(self.truncated, "packet"))?;
        }
        if let Some(damaged) = &self.damaged {
            writeln!(f, "{damaged}")?;
        }
        for (hook, counters) in &self.counters {
            for (name, value) in counters {
                writeln!(f, "{hook:<8} {name:<32} {value:>10}")?;
            }
        }
        Ok(())
    }
}
