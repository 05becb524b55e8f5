//! Programs of others that end a TC chain before ours, detected by packets that the interface counts and our program does not.

use dcqcn_loader::attach::{self, Info};
use dcqcn_netlink::LinkStatistics;

/// TC hooks, with the slot of their counters (`Maps::counters`).
const HOOKS: [(&str, usize); 2] = [("ingress", 1), ("egress", 2)];
/// Packets that pass the interface while our program sees none, before its chain is examined.
const UNSEEN_PACKETS: u64 = 100;

/// Packets of a hook, by the interface and by our program, when the latter last rose.
#[derive(Clone, Copy, Debug)]
struct Mark {
    interface: u64,
    program: u64,
}

/// What the hooks of one attachment have counted.
#[derive(Clone, Debug, Default)]
pub(super) struct ChainWatch {
    marks: [Option<Mark>; HOOKS.len()],
}

impl ChainWatch {
    /// Whether enough packets have passed a hook since its last mark to compare counters.
    fn is_due(&self, hook: usize, interface: u64) -> bool {
        match self.marks[hook] {
            Some(mark) => interface < mark.interface || interface - mark.interface >= UNSEEN_PACKETS,
            None => true,
        }
    }

    /// Compares the counters of a hook; returns how many packets passed the interface and were not seen by our program, if these
    /// are at least [`UNSEEN_PACKETS`] and it saw none at all.
    fn unseen(&mut self, hook: usize, interface: u64, program: u64) -> Option<u64> {
        let mark = self.marks[hook].filter(|mark| mark.program == program && mark.interface <= interface);
        let mark = *self.marks[hook].insert(mark.unwrap_or(Mark { interface, program }));
        Some(interface - mark.interface).filter(|unseen| *unseen >= UNSEEN_PACKETS)
    }

    /// Why our programs do not see the packets of `info`'s interface; empty if they do, or if too few have passed.
    ///
    /// # Errors
    /// The attachment's counters or the kernel's chains cannot be read.
    pub(super) fn check(&mut self, info: &Info, statistics: LinkStatistics) -> Result<String, attach::Error> {
        let packets = [statistics.rx_packets, statistics.tx_packets];
        if !(0..HOOKS.len()).any(|hook| self.is_due(hook, packets[hook])) {
            return Ok(String::new());
        }
        let counters = attach::open(&info.iface)?.maps.counters()?;
        let mut ends = Vec::new();
        for (hook, (name, slot)) in HOOKS.into_iter().enumerate() {
            let seen = counters[slot].stat.iter().sum();
            let Some(unseen) = self.unseen(hook, packets[hook], seen) else { continue };
            let others = attach::others(info)?;
            let before: Vec<String> = others
                .iter()
                .filter(|other| other.is_before && other.hook == name)
                .map(ToString::to_string)
                .collect();
            if !before.is_empty() {
                let before = before.join(", ");
                ends.push(format!("{name}: the chain ends at {before}: {unseen} packets passed unseen"));
            }
        }
        Ok(ends.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unseen_packets_reported_until_one_is_seen() {
        let mut watch = ChainWatch::default();
        assert!(watch.is_due(0, 0));
        assert_eq!(watch.unseen(0, 1_000, 50), None, "the first reading is the mark");
        assert!(!watch.is_due(0, 1_099) && watch.is_due(0, 1_100));
        assert_eq!(watch.unseen(0, 1_099, 50), None);
        assert_eq!(watch.unseen(0, 1_100, 50), Some(100));
        assert_eq!(watch.unseen(0, 9_000, 50), Some(8_000), "still unseen");
        assert_eq!(watch.unseen(0, 9_500, 51), None, "one was seen");
        assert_eq!(watch.unseen(0, 9_599, 51), None);
    }

    #[test]
    fn hooks_are_compared_separately() {
        let mut watch = ChainWatch::default();
        assert_eq!((watch.unseen(0, 0, 0), watch.unseen(1, 0, 0)), (None, None));
        assert_eq!((watch.unseen(0, 200, 200), watch.unseen(1, 200, 0)), (None, Some(200)));
    }

    #[test]
    fn reset_counters_begin_again() {
        let mut watch = ChainWatch::default();
        assert_eq!(watch.unseen(0, 5_000, 0), None);
        assert!(watch.is_due(0, 10));
        assert_eq!(watch.unseen(0, 10, 0), None, "the interface was recreated");
        assert_eq!(watch.unseen(0, 110, 0), Some(100));
    }
}
