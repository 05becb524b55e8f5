//! Future events, ordered by time and then by insertion: an agenda, and lanes for constant delays.

use std::collections::VecDeque;

use crate::network::Wheel;

/// Future events.
pub(super) type Agenda = Wheel<Event>;

/// An event with its own time. Events after a constant delay are in a [`Lanes`] instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A flow starts.
    Start(u32),
    /// A flow stops sending new data.
    Stop(u32),
    /// A message of an open-loop flow is posted.
    Post(u32),
    /// A RoCE flow's next packet may depart.
    Due(u32),
    /// The CNP window of a flow ends in which it was marked.
    Window(u32),
    /// A sender's link has finished its packet.
    LinkFree(u32),
    /// A flow's retransmission timer, which may fire early instead of being reset by every packet.
    Timer(u32),
    /// Pause or resume reaches the senders with one delay.
    Pfc(PfcFrame),
    /// Statistics start.
    StatsFrom,
    /// A sample of the time series is due.
    Sample,
    /// A fairness window ends.
    FairWindow,
    /// The simulation ends.
    End,
}

/// Pause or resume of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PfcFrame {
    /// Index of the senders' delay.
    pub(super) delay: u8,
    /// Class.
    pub(super) class: u8,
    /// Pause, else resume.
    pub(super) pause: bool,
}

/// Constant delays: first in, first out, so no heap is needed.
#[derive(Debug)]
pub(super) struct Lanes<T> {
    lanes: Vec<Lane<T>>,
    /// When the next item arrives, and in which lane; `u64::MAX` if none. The engine queries it at every event.
    next: (u64, usize),
}

#[derive(Debug)]
struct Lane<T> {
    delay_ns: u64,
    under_way: VecDeque<(u64, T)>,
}

impl<T> Lanes<T> {
    /// An empty lane for each of these delays.
    pub(super) fn new(delays_ns: impl IntoIterator<Item = u64>) -> Self {
        let lane = |delay_ns| Lane { delay_ns, under_way: VecDeque::new() };
        Self { lanes: delays_ns.into_iter().map(lane).collect(), next: (u64::MAX, 0) }
    }

    /// The delay of each lane.
    pub(super) fn delays_ns(&self) -> impl Iterator<Item = u64> {
        self.lanes.iter().map(|lane| lane.delay_ns)
    }

    /// Adds `item` to lane `number`.
    #[inline]
    pub(super) fn enter(&mut self, now_ns: u64, number: usize, item: T) {
        let lane = &mut self.lanes[number];
        let at_ns = now_ns + lane.delay_ns;
        lane.under_way.push_back((at_ns, item));
        // Items already in this lane arrive no later.
        if (at_ns, number) < self.next {
            self.next = (at_ns, number);
        }
    }

    /// When the next item arrives; `u64::MAX` if none.
    #[inline]
    pub(super) const fn next_ns(&self) -> u64 {
        self.next.0
    }

    /// Removes the next item; of simultaneous ones, that of the first lane.
    #[inline]
    pub(super) fn take(&mut self) -> Option<T> {
        let (_, item) = self.lanes.get_mut(self.next.1)?.under_way.pop_front()?;
        self.next = (u64::MAX, 0);
        for (number, lane) in self.lanes.iter().enumerate() {
            if let Some(&(at_ns, _)) = lane.under_way.front()
                && at_ns < self.next.0
            {
                self.next = (at_ns, number);
            }
        }
        Some(item)
    }

    /// Number of items in transit.
    pub(super) fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.under_way.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_keeps_order_and_delay() {
        let mut lane = Lanes::new([700]);
        lane.enter(1, 0, 'a');
        lane.enter(1, 0, 'b');
        lane.enter(9, 0, 'c');
        assert_eq!((lane.next_ns(), lane.take(), lane.take()), (701, Some('a'), Some('b')));
        assert_eq!(
            (lane.next_ns(), lane.take(), lane.next_ns(), lane.take()),
            (709, Some('c'), u64::MAX, None)
        );
    }

    #[test]
    fn earliest_lane_first_ties_by_index() {
        let mut lanes = Lanes::new([700, 200, 300]);
        for (number, item) in [(0, 'a'), (2, 'b'), (1, 'c'), (1, 'd')] {
            lanes.enter(0, number, item);
        }
        // At 700 there are three, in the order of their lanes.
        lanes.enter(400, 2, 'g');
        lanes.enter(500, 1, 'f');
        assert_eq!((lanes.len(), lanes.delays_ns().collect::<Vec<_>>()), (6, vec![700, 200, 300]));
        let order = std::iter::from_fn(|| Some((lanes.next_ns(), lanes.take()?))).collect::<Vec<_>>();
        assert_eq!(order, [(200, 'c'), (200, 'd'), (300, 'b'), (700, 'a'), (700, 'f'), (700, 'g')]);
        assert_eq!((lanes.next_ns(), lanes.len()), (u64::MAX, 0));
    }
}
