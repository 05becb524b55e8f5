//! Flows that were cut and have no class yet.

use std::collections::BTreeMap;

/// How long a flow goes on without a class at most, while what it sent before may still be in line.
const PATIENCE_NS: u64 = 50_000_000;

/// Flows that wait for a class, by the minor number that it will have, and since when.
///
/// HTB lets the first packets of a new class go before everything that waits in another, whatever their priorities: a class has what is
/// guaranteed to it from the start. So a class is made when nothing is in line where its flow has sent until then, or the flow's next
/// packet overtakes those before it.
#[derive(Debug, Default)]
pub(super) struct Waiting(BTreeMap<u32, u64>);

impl Waiting {
    /// Nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One more from `now_ns` on, unless it waits already.
    pub(super) fn enter(&mut self, minor: u32, now_ns: u64) {
        self.0.entry(minor).or_insert(now_ns);
    }

    /// Takes those whose class is to be made now: all if nothing is in line, else who has waited too long.
    pub(super) fn take(&mut self, nothing_in_line: bool, now_ns: u64) -> Vec<u32> {
        let is_next =
            |_: &u32, since_ns: &mut u64| nothing_in_line || now_ns.saturating_sub(*since_ns) >= PATIENCE_NS;
        self.0.extract_if(.., is_next).map(|(minor, _)| minor).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn htb_class_created_when_queue_drains() {
        let mut waiting = Waiting::default();
        waiting.enter(0x100, 1_000);
        waiting.enter(0x200, 40_000_000);
        // Another cut does not put it off.
        waiting.enter(0x100, 50_000_000);
        let taken = [(false, 50_000_999), (false, 50_001_000), (true, 50_001_001), (true, 50_001_002)]
            .map(|(nothing_in_line, now_ns)| waiting.take(nothing_in_line, now_ns));
        assert_eq!(taken, [vec![], vec![0x100], vec![0x200], vec![]]);
        assert!(waiting.is_empty());
    }
}
