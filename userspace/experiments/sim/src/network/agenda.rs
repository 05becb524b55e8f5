//! Future events of one node.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Maximum time of an event: 274 s.
pub(crate) const MAX_TIME_NS: u64 = (1 << 38) - 1;

/// Kinds of events. Simultaneous events are ordered by kind, then by number, so the order is independent of insertion,
/// and equal on any number of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A link fails or recovers, a pause storm starts or ends, or routes change.
    Fault,
    /// The first packet in transit to a port arrives.
    Arrival,
    /// A flow that another one waits for is complete.
    Notice,
    /// A flow that waited for others starts.
    Post,
    Start,
    /// A QP's next packet may depart.
    Due,
    /// A QP's retransmission timer, which may fire early instead of being reset by every packet.
    Timer,
    /// The CNP window of a QP ends in which it was marked.
    Window,
    /// A port has sent its packet.
    Done,
    Watchdog,
    Sample,
    /// An open loop posts a message.
    Message,
    Stop,
}

/// Future events: time, kind, and number of a port, QP or flow.
#[derive(Debug, Default)]
pub(crate) struct Agenda(BinaryHeap<Reverse<(u64, Event, u32)>>);

impl Agenda {
    /// Inserts an event; one after the end of the simulation is dropped.
    #[inline]
    pub(crate) fn at(&mut self, at_ns: u64, event: Event, index: u32) {
        if at_ns <= MAX_TIME_NS {
            self.0.push(Reverse((at_ns, event, index)));
        }
    }

    /// Time of the next event; `u64::MAX`: none.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.0.peek().map_or(u64::MAX, |Reverse((at_ns, ..))| *at_ns)
    }

    #[inline]
    pub(crate) fn take(&mut self, end_ns: u64) -> Option<(u64, Event, u32)> {
        if self.next_ns() >= end_ns {
            return None;
        }
        self.0.pop().map(|Reverse(event)| event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn event_order_independent_of_entry(
            events in proptest::collection::vec((0u64..50, 0usize..3, 0u32..5), 0..100),
        ) {
            let kinds = [Event::Fault, Event::Arrival, Event::Stop];
            let taken = |order: &mut dyn Iterator<Item = (u64, usize, u32)>| {
                let mut agenda = Agenda::default();
                order.for_each(|(at_ns, kind, index)| agenda.at(at_ns, kinds[kind], index));
                std::iter::from_fn(|| agenda.take(u64::MAX)).collect::<Vec<_>>()
            };
            let forward = taken(&mut events.iter().copied());
            prop_assert_eq!(&taken(&mut events.iter().rev().copied()), &forward);
            let mut sorted: Vec<_> =
                events.iter().map(|&(at_ns, kind, index)| (at_ns, kinds[kind], index)).collect();
            sorted.sort_unstable();
            prop_assert_eq!(forward, sorted);
        }
    }

    #[test]
    fn events_after_limit_not_taken() {
        let mut agenda = Agenda::default();
        agenda.at(5, Event::Done, 1);
        assert_eq!((agenda.next_ns(), agenda.take(5)), (5, None));
        assert_eq!(agenda.take(6), Some((5, Event::Done, 1)));
        agenda.at(u64::MAX, Event::Due, 0);
        assert_eq!((agenda.next_ns(), agenda.take(u64::MAX)), (u64::MAX, None));
    }
}
