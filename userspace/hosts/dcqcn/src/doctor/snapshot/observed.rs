//! Counters between the two readings of a snapshot.

use std::collections::BTreeMap;

use dcqcn_common::stats::Stat;

use super::{Class, Counts};

const ROCE: [Stat; 3] = [Stat::RoceData, Stat::RoceControl, Stat::RoceCnp];

/// Counters of an attachment over a period.
pub(in crate::doctor) struct Observed {
    pub(in crate::doctor) counts: Counts,
    /// The period, as in `in 2 s`.
    pub(in crate::doctor) when: String,
    /// Whether the period is that between the two readings.
    pub(in crate::doctor) is_between_readings: bool,
}

impl Observed {
    pub(in crate::doctor) fn xdp(&self, stat: Stat) -> u64 {
        value(&self.counts.xdp, stat)
    }

    pub(in crate::doctor) fn ingress(&self, stat: Stat) -> u64 {
        value(&self.counts.ingress, stat)
    }

    pub(in crate::doctor) fn egress(&self, stat: Stat) -> u64 {
        value(&self.counts.egress, stat)
    }

    /// Sum of all hooks; incoming packets may count twice.
    pub(in crate::doctor) fn all(&self, stat: Stat) -> u64 {
        self.xdp(stat).saturating_add(self.ingress(stat)).saturating_add(self.egress(stat))
    }

    /// RoCEv2 packets, each counted once: incoming ones pass XDP and then TC, if both are attached.
    pub(in crate::doctor) fn roce(&self) -> u64 {
        let of = |hook: &BTreeMap<String, u64>| ROCE.map(|stat| value(hook, stat)).iter().sum::<u64>();
        of(&self.counts.xdp).max(of(&self.counts.ingress)).saturating_add(of(&self.counts.egress))
    }

    pub(in crate::doctor) fn class(&self, tc: usize) -> Class {
        u8::try_from(tc).ok().and_then(|tc| self.counts.classes.get(&tc)).copied().unwrap_or_default()
    }
}

fn value(counts: &BTreeMap<String, u64>, stat: Stat) -> u64 {
    counts.get(stat.label()).copied().unwrap_or(0)
}

impl Counts {
    pub(super) fn since(&self, before: &Self) -> Self {
        let less = |after: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| -> BTreeMap<String, u64> {
            let before = |name| before.get(name).copied().unwrap_or(0);
            after.iter().map(|(name, value)| (name.clone(), value.saturating_sub(before(name)))).collect()
        };
        let class = |(tc, after): (&u8, &Class)| {
            let before = before.classes.get(tc).copied().unwrap_or_default();
            let class = Class {
                packets: after.packets.saturating_sub(before.packets),
                ect_packets: after.ect_packets.saturating_sub(before.ect_packets),
                ecn_marked_packets: after.ecn_marked_packets.saturating_sub(before.ecn_marked_packets),
            };
            (*tc, class)
        };
        Self {
            xdp: less(&self.xdp, &before.xdp),
            ingress: less(&self.ingress, &before.ingress),
            egress: less(&self.egress, &before.egress),
            classes: self.classes.iter().map(class).collect(),
        }
    }

    pub(in crate::doctor) fn has_roce(&self) -> bool {
        let hooks = [&self.xdp, &self.ingress, &self.egress];
        hooks.iter().any(|hook| ROCE.iter().any(|stat| value(hook, *stat) != 0))
    }
}
