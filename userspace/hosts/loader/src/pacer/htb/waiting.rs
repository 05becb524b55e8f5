//! Cut flows that do not have a class yet.

use std::collections::BTreeMap;

/// Maximum time that a flow waits for its class while earlier packets may still be queued.
const TIMEOUT_NS: u64 = 50_000_000;

/// Flows that wait for a class: its future minor number, and the time since when.
///
/// HTB sends the first packets of a new class before all other queued packets, whatever their priorities,
/// because a class starts with its full guarantee. To prevent reordering, a class is created only when the
/// class its flow has used so far is empty.
#[derive(Debug, Default)]
pub(super) struct Waiting(BTreeMap<u32, u64>);

impl Waiting {
    /// Whether no flow waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a flow at `now_ns`, unless it already waits.
    pub(super) fn enter(&mut self, minor: u32, now_ns: u64) {
        self.0.entry(minor).or_insert(now_ns);
    }

    /// Removes the flows whose class must be created now.
    ///
    /// These are all flows if nothing is queued, otherwise those that timed out.
    pub(super) fn take_due(&mut self, is_queue_empty: bool, now_ns: u64) -> Vec<u32> {
        let is_next =
            |_: &u32, since_ns: &mut u64| is_queue_empty || now_ns.saturating_sub(*since_ns) >= TIMEOUT_NS;
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
        // Another cut does not postpone it.
        waiting.enter(0x100, 50_000_000);
        let taken = [(false, 50_000_999), (false, 50_001_000), (true, 50_001_001), (true, 50_001_002)]
            .map(|(is_queue_empty, now_ns)| waiting.take_due(is_queue_empty, now_ns));
        assert_eq!(taken, [vec![], vec![0x100], vec![0x200], vec![]]);
        assert!(waiting.is_empty());
    }
}
