//! The delays of links.

use std::collections::VecDeque;

/// Constant delays: what goes in first comes out first, so no heap is needed.
#[derive(Debug)]
pub(super) struct Lanes<T> {
    lanes: Vec<Lane<T>>,
    /// When the next item arrives, and in which lane; `u64::MAX` if there is none. The engine asks at every event.
    next: (u64, usize),
}

#[derive(Debug)]
struct Lane<T> {
    delay_ns: u64,
    under_way: VecDeque<(u64, T)>,
}

impl<T> Lanes<T> {
    /// Nothing under way in a lane for each of these delays.
    pub(super) fn new(delays_ns: impl IntoIterator<Item = u64>) -> Self {
        let lane = |delay_ns| Lane { delay_ns, under_way: VecDeque::new() };
        Self { lanes: delays_ns.into_iter().map(lane).collect(), next: (u64::MAX, 0) }
    }

    /// The delay of each lane.
    pub(super) fn delays_ns(&self) -> impl Iterator<Item = u64> {
        self.lanes.iter().map(|lane| lane.delay_ns)
    }

    /// Sends `item` on its way in lane `number`.
    #[inline]
    pub(super) fn enter(&mut self, now_ns: u64, number: usize, item: T) {
        let lane = &mut self.lanes[number];
        let at_ns = now_ns + lane.delay_ns;
        lane.under_way.push_back((at_ns, item));
        // What was under way in this lane is not later.
        if (at_ns, number) < self.next {
            self.next = (at_ns, number);
        }
    }

    /// When the next item arrives; `u64::MAX` if there is none.
    #[inline]
    pub(super) const fn next_ns(&self) -> u64 {
        self.next.0
    }

    /// The item that arrives next; of several at one time, that of the first lane.
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

    /// Items under way.
    pub(super) fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.under_way.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_keeps_order_and_delay() {
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
    fn of_several_lanes_the_earliest_comes_and_at_one_time_the_first() {
        let mut lanes = Lanes::new([700, 200, 300]);
        for (number, item) in [(0, 'a'), (2, 'b'), (1, 'c'), (1, 'd')] {
            lanes.enter(0, number, item);
        }
        // At 700 there are three: in the order of their lanes.
        lanes.enter(400, 2, 'g');
        lanes.enter(500, 1, 'f');
        assert_eq!((lanes.len(), lanes.delays_ns().collect::<Vec<_>>()), (6, vec![700, 200, 300]));
        let order = std::iter::from_fn(|| Some((lanes.next_ns(), lanes.take()?))).collect::<Vec<_>>();
        assert_eq!(order, [(200, 'c'), (200, 'd'), (300, 'b'), (700, 'a'), (700, 'f'), (700, 'g')]);
        assert_eq!((lanes.next_ns(), lanes.len()), (u64::MAX, 0));
    }
}
