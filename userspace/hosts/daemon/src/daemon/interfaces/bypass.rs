//! TC programs of other applications that end a chain before ours: detected by packets that the interface
//! counts and our program does not.

use std::cell::LazyCell;

use dcqcn_control_api::Failing;
use dcqcn_loader::attach::{self, Info, Sweep};
use dcqcn_netlink::LinkStatistics;

use super::ManagedInterfaces;

/// TC hooks, with the slot of their counters (`Maps::counters`).
const HOOKS: [(&str, usize); 2] = [("ingress", 1), ("egress", 2)];
/// Minimum number of unseen packets that is reported.
const MIN_UNSEEN_PACKETS: u64 = 100;

/// Packets of a hook, by the interface and by our program, when the latter last rose.
#[derive(Clone, Copy, Debug)]
struct Mark {
    interface: u64,
    program: u64,
}

/// Packet counts of one attachment's hooks, while programs of other applications run before ours.
#[derive(Clone, Debug, Default)]
pub(super) struct ChainWatch {
    marks: [Option<Mark>; HOOKS.len()],
}

impl ChainWatch {
    /// Whether at least [`MIN_UNSEEN_PACKETS`] passed the interface since our program last counted one.
    fn passes_unseen(&mut self, hook: usize, interface: u64, program: u64) -> bool {
        let mark = self.marks[hook].filter(|mark| mark.program == program && mark.interface <= interface);
        let mark = *self.marks[hook].insert(mark.unwrap_or(Mark { interface, program }));
        interface - mark.interface >= MIN_UNSEEN_PACKETS
    }

    /// Hooks of `info` whose packets end before our program, with the programs ahead of it; empty if there
    /// are none, `None` without statistics.
    fn check(
        &mut self,
        sweep: &Sweep,
        info: &Info,
        statistics: impl FnOnce() -> Option<LinkStatistics>,
    ) -> Result<Option<String>, attach::Error> {
        let mut ahead = sweep.foreign_programs(info)?;
        ahead.retain(|other| other.is_before);
        if ahead.is_empty() {
            *self = Self::default();
            return Ok(Some(String::new()));
        }
        let Some(statistics) = statistics() else { return Ok(None) };
        let counters = attach::open(&info.iface)?.maps.counters()?;
        let packets = [statistics.rx_packets, statistics.tx_packets];
        let mut ends = Vec::new();
        for (hook, (name, slot)) in HOOKS.into_iter().enumerate() {
            let seen = counters[slot].stat.iter().sum();
            let ahead: Vec<String> =
                ahead.iter().filter(|other| other.hook == name).map(ToString::to_string).collect();
            if ahead.is_empty() {
                self.marks[hook] = None;
            } else if self.passes_unseen(hook, packets[hook], seen) {
                // Without their number: an unchanged problem has an unchanged text.
                ends.push(format!("{name}: the chain ends at {}: packets pass unseen", ahead.join(", ")));
            }
        }
        Ok(Some(ends.join("; ")))
    }
}

impl ManagedInterfaces {
    /// Checks whether other applications' programs end TC chains before ours, and logs changes. Returns
    /// whether the state has changed.
    pub(super) fn check_chains(&mut self, sweep: &Sweep) -> bool {
        let Self { netlink, served, .. } = self;
        let all = LazyCell::new(|| netlink.statistics().unwrap_or_default());
        let mut has_changed = false;
        for served in served.values_mut() {
            let statistics = || all.get(&served.info.ifindex).copied();
            // An attachment that cannot be read was detached since, or is reported as incomplete.
            let Ok(Some(bypassed)) = served.chain.check(sweep, &served.info, statistics) else { continue };
            if bypassed == served.bypassed {
                continue;
            }
            let iface = &served.info.iface;
            if bypassed.is_empty() {
                tracing::info!(iface, "programs see packets again");
            } else if served.bypassed.is_empty() {
                let next = format!(
                    "run `dcqcn detach {iface}` and reload this daemon, so that its programs run first again"
                );
                tracing::error!(iface, bypassed, next, "programs see no packets");
            }
            served.bypassed = bypassed;
            has_changed = true;
        }
        has_changed
    }

    /// Complete attachments that see no packets.
    pub(in crate::daemon) fn bypassed(&self) -> Vec<Failing> {
        let bypassed = self.served.values().filter(|served| !served.bypassed.is_empty());
        bypassed.map(|served| Failing::new(&served.info.iface, &served.bypassed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unseen_packets_reported_until_one_is_seen() {
        let mut watch = ChainWatch::default();
        assert!(!watch.passes_unseen(0, 1_000, 50), "the first reading is the mark");
        assert!(!watch.passes_unseen(0, 1_099, 50));
        assert!(watch.passes_unseen(0, 1_100, 50));
        assert!(watch.passes_unseen(0, 9_000, 50), "still unseen");
        assert!(!watch.passes_unseen(0, 9_500, 51), "one was seen");
        assert!(!watch.passes_unseen(0, 9_599, 51));
    }

    #[test]
    fn hooks_are_compared_separately() {
        let mut watch = ChainWatch::default();
        assert_eq!((watch.passes_unseen(0, 0, 0), watch.passes_unseen(1, 0, 0)), (false, false));
        assert_eq!((watch.passes_unseen(0, 200, 200), watch.passes_unseen(1, 200, 0)), (false, true));
    }

    #[test]
    fn reset_counters_restart_comparison() {
        let mut watch = ChainWatch::default();
        assert!(!watch.passes_unseen(0, 5_000, 0));
        assert!(!watch.passes_unseen(0, 10, 0), "the interface was recreated");
        assert!(watch.passes_unseen(0, 110, 0));
    }
}
