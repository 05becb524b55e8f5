//! Future events of one node.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bits of the number of a port, QP or flow.
const INDEX_BITS: u32 = 22;
/// Bits of the kind of an event.
const KIND_BITS: u32 = 4;
const TIME_SHIFT: u32 = INDEX_BITS + KIND_BITS;
/// Maximum number of ports, QPs and flows of one node.
pub(crate) const MAX_INDEX: u32 = 1 << INDEX_BITS;
/// Maximum time of an event: 274 s.
pub(crate) const MAX_TIME_NS: u64 = (1 << (64 - TIME_SHIFT)) - 1;

macro_rules! events {
    ($($(#[$meta:meta])* $event:ident,)+) => {
        /// Kinds of events. Simultaneous events are ordered by kind, then by number, so the order is independent of
        /// insertion, and equal on any number of cores.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Event {
            $($(#[$meta])* $event,)+
        }

        impl Event {
            const ALL: &'static [Self] = &[$(Self::$event,)+];
        }
    };
}

events! {
    /// A link fails or recovers, a pause storm starts or ends, or routes change.
    Fault,
    /// The first packet in transit to a port arrives.
    Arrival,
    /// A flow that another one waits for is complete.
    Notice,
    /// A flow that waited for others starts.
    Post,
    /// The next flow of the list starts.
    Start,
    /// A QP's next packet may depart.
    Due,
    /// A QP's retransmission timer, which may fire early instead of being reset by every packet.
    Timer,
    /// The CNP window of a QP ends in which it was marked.
    Window,
    /// A port has sent its packet.
    Done,
    /// The watchdog samples the queues.
    Watchdog,
    /// A sample of the queues is due.
    Sample,
    /// An open loop posts a message.
    Message,
    /// A source stops.
    Stop,
}

/// Time, kind and number in one word, so that ordering is a single comparison.
#[inline]
const fn key(at_ns: u64, event: Event, index: u32) -> u64 {
    at_ns << TIME_SHIFT | (event as u64) << INDEX_BITS | index as u64
}

/// Number of events next to the node's other state.
const NEAR: usize = 4;
/// No event.
const NONE: u64 = u64::MAX;

/// Future events.
///
/// The first few are in the structure itself: most hosts have no more, and of a thousand hosts each cache line counts.
#[derive(Debug)]
pub(crate) struct Agenda {
    /// In order, and not after those in the heap; then [`NONE`].
    near: [u64; NEAR],
    /// Number of events in the heap.
    far: u32,
    heap: BinaryHeap<Reverse<u64>>,
}

impl Default for Agenda {
    fn default() -> Self {
        Self { near: [NONE; NEAR], far: 0, heap: BinaryHeap::new() }
    }
}

impl Agenda {
    /// Inserts an event; one after the end of the simulation is dropped.
    #[inline]
    pub(crate) fn at(&mut self, at_ns: u64, event: Event, index: u32) {
        if at_ns <= MAX_TIME_NS {
            self.enter(key(at_ns, event, index));
        }
    }

    #[inline]
    fn enter(&mut self, key: u64) {
        let last = self.near[NEAR - 1];
        let follows = self.far != 0 && self.near.iter().all(|near| *near == NONE || *near < key);
        if key >= last || follows {
            self.far += 1;
            self.heap.push(Reverse(key));
            return;
        }
        if last != NONE {
            self.far += 1;
            self.heap.push(Reverse(last));
        }
        let mut slot = NEAR - 1;
        while slot > 0 && self.near[slot - 1] > key {
            self.near[slot] = self.near[slot - 1];
            slot -= 1;
        }
        self.near[slot] = key;
    }

    /// Time of the next event; `u64::MAX`: none.
    #[inline]
    pub(crate) const fn next_ns(&self) -> u64 {
        if self.near[0] == NONE { u64::MAX } else { self.near[0] >> TIME_SHIFT }
    }

    /// Takes the next event if it is before `end_ns`.
    #[inline]
    pub(crate) fn take(&mut self, end_ns: u64) -> Option<(u64, Event, u32)> {
        let first = self.near[0];
        if self.next_ns() >= end_ns {
            return None;
        }
        let kind = (first >> INDEX_BITS) as usize & ((1 << KIND_BITS) - 1);
        let event = *Event::ALL.get(kind)?;
        self.near.copy_within(1.., 0);
        self.near[NEAR - 1] = NONE;
        if self.near[0] == NONE && self.far != 0 {
            for near in &mut self.near {
                let Some(Reverse(key)) = self.heap.pop() else { break };
                self.far -= 1;
                *near = key;
            }
        }
        Some((first >> TIME_SHIFT, event, first as u32 & (MAX_INDEX - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn event_order_independent_of_entry(
            events in proptest::collection::vec((0u64..50, 0usize..11, 0u32..5), 0..100),
        ) {
            let taken = |order: &mut dyn Iterator<Item = (u64, usize, u32)>| {
                let mut agenda = Agenda::default();
                for (at_ns, kind, index) in order {
                    agenda.at(at_ns, Event::ALL[kind], index);
                }
                let all = std::iter::from_fn(|| agenda.take(u64::MAX));
                all.map(|(at_ns, event, index)| (at_ns, event as usize, index)).collect::<Vec<_>>()
            };
            let forward = taken(&mut events.iter().copied());
            prop_assert_eq!(&taken(&mut events.iter().rev().copied()), &forward);
            let mut sorted = events.clone();
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
