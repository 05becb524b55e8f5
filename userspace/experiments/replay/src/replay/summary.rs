//! Summary of a replay.

use std::collections::BTreeMap;
use std::fmt;

use dcqcn_common::classify::Roce;
use dcqcn_common::layout::Counters;
use dcqcn_common::stats::Stat;
use dcqcn_support::render::count;
use serde::Serialize;

use super::{Captured, EngineKind};
use crate::{Hook, Outcome, Verdict, classify};

/// Counts over all packets of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub json_version: u32,
    pub engine: EngineKind,
    pub hook: Hook,
    pub packets: u64,
    /// Packets captured partially.
    pub truncated: u64,
    /// Those of them whose headers were captured, which were padded with zeros.
    pub padded: u64,
    /// Padded CNPs without their ICRC, which the hook rejects.
    pub unverified_cnps: u64,
    /// Packets of RoCE captured without all of their headers, which were not processed.
    pub without_headers: u64,
    /// Packets too short or too long for an engine, which passed.
    pub not_run: u64,
    /// Packets that passed or were redirected.
    pub passed: u64,
    pub dropped: u64,
    pub marked: u64,
    /// Packets with a later departure time.
    pub delayed: u64,
    pub emitted: u64,
    /// Time from the first packet to the last, ns.
    pub duration_ns: u64,
    /// Times at which the capture's clock was set back by more than a second; the replay continues without a gap.
    pub clock_steps: u64,
    /// Packets with an earlier time than one before them, replayed at the time of that one.
    pub late: u64,
    /// Packets without a time (simple packet blocks of pcapng), replayed at the time of the one before.
    pub untimed: u64,
    /// Nonzero counters, by hook and name.
    pub counters: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// Where and why reading the capture ended early.
    pub damaged: Option<String>,
}

impl Summary {
    pub(super) fn new(engine: EngineKind, hook: Hook) -> Self {
        Self { json_version: dcqcn_support::JSON_VERSION, engine, hook, ..Self::default() }
    }

    pub(super) fn count(&mut self, outcome: &Outcome, marked: bool, now_ns: u64) {
        self.packets += 1;
        match outcome.verdict {
            Verdict::Pass | Verdict::Redirect { .. } | Verdict::Receive => self.passed += 1,
            Verdict::Drop => self.dropped += 1,
            Verdict::NotRun => self.not_run += 1,
        }
        self.marked += u64::from(marked);
        self.delayed += u64::from(outcome.departure_ns > now_ns);
        self.emitted += outcome.emitted.len() as u64;
    }

    /// Counts a packet if it was captured partially; `data` is what was processed.
    pub(super) fn count_truncated(&mut self, packet: &Captured, data: &[u8]) {
        if packet.data.len() >= packet.length as usize {
            return;
        }
        self.truncated += 1;
        if data.len() == packet.data.len() {
            self.without_headers += u64::from(matches!(classify(data), Err(Stat::Trimmed | Stat::Malformed)));
            return;
        }
        self.padded += 1;
        let is_unverified = |roce: &Roce| roce.is_cnp() && packet.data.len() < roce.end;
        self.unverified_cnps += u64::from(classify(data).is_ok_and(|roce| is_unverified(&roce)));
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
            let (what, times) = ("steps of the capture's clock back by more than a second", self.clock_steps);
            writeln!(f, "{what}: {times}; each is replayed without a gap")?;
        }
        let earlier = ", replayed at the time of an earlier one; see `reordercap`";
        let partial = format!(", of which {} padded", self.padded);
        let cut = "; capture 128 bytes of each packet";
        for (number, noun, what, then) in [
            (self.late, "packet", "captured out of order", earlier),
            (self.untimed, "packet", "captured without a time", ", replayed at the time of the one before"),
            (self.truncated, "packet", "captured partially", &partial),
            (self.unverified_cnps, "CNP", "captured without the ICRC and rejected", cut),
            (self.without_headers, "packet", "captured without all headers", cut),
        ] {
            if number != 0 {
                writeln!(f, "{what}: {}{then}", count(number, noun))?;
            }
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
