//! The delay of a link.

use std::collections::VecDeque;

/// A constant delay: what goes in first comes out first, so no heap is needed.
#[derive(Debug)]
pub(super) struct Lane<T> {
    delay_ns: u64,
    under_way: VecDeque<(u64, T)>,
}

impl<T> Lane<T> {
    /// Nothing under way.
    pub(super) const fn new(delay_ns: u64) -> Self {
        Self { delay_ns, under_way: VecDeque::new() }
    }

    /// The delay.
    pub(super) const fn delay_ns(&self) -> u64 {
        self.delay_ns
    }

    /// Sends `item` on its way.
    #[inline]
    pub(super) fn enter(&mut self, now_ns: u64, item: T) {
        self.under_way.push_back((now_ns + self.delay_ns, item));
    }

    /// When the next item arrives; `u64::MAX` if there is none.
    #[inline]
    pub(super) fn next_ns(&self) -> u64 {
        self.under_way.front().map_or(u64::MAX, |&(at_ns, _)| at_ns)
    }

    /// The item that arrives next.
    #[inline]
    pub(super) fn take(&mut self) -> Option<T> {
        self.under_way.pop_front().map(|(_, item)| item)
    }

    /// Items under way.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_keeps_order_and_delay() {
        let mut lane = Lane::new(700);
        lane.enter(1, 'a');
        lane.enter(1, 'b');
        lane.enter(9, 'c');
        assert_eq!((lane.next_ns(), lane.take(), lane.take()), (701, Some('a'), Some('b')));
        assert_eq!(
            (lane.next_ns(), lane.take(), lane.next_ns(), lane.take()),
            (709, Some('c'), u64::MAX, None)
        );
    }
}
