//! Links: the time a packet needs to pass onto one, and the delay on it.

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

/// A transmitter: one frame after the other at the link's rate.
///
/// Times are whole nanoseconds, but frames back to back lose nothing to rounding: the rest of a division is carried
/// over, exactly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transmitter {
    rate_bps: u64,
    free_ns: u64,
    /// The last frame ends this much after `free_ns`, in 1 ns / rate.
    carry: u64,
}

impl Transmitter {
    /// An idle one; `rate_bps` is not 0.
    pub(super) const fn new(rate_bps: u64) -> Self {
        Self { rate_bps, free_ns: 0, carry: 0 }
    }

    /// Begins a frame of `wire_bytes` (below 2^20) now, after the last has ended, and says when it ends.
    #[inline]
    pub(super) fn send(&mut self, now_ns: u64, wire_bytes: u64) -> u64 {
        if now_ns > self.free_ns {
            self.carry = 0;
        }
        let length = wire_bytes * 8_000_000_000 + self.carry;
        self.free_ns = now_ns + length / self.rate_bps;
        self.carry = length % self.rate_bps;
        self.free_ns
    }

    /// Time that `bytes` take at `rate_bps`, rounded up.
    pub(super) fn time_ns(rate_bps: u64, bytes: u64) -> u64 {
        (bytes * 8_000_000_000).div_ceil(rate_bps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_back_to_back_take_exactly_their_time() {
        for rate_bps in [1_000_003, 25_000_000_000, 100_000_000_000, 800_000_000_000] {
            let mut link = Transmitter::new(rate_bps);
            let mut now_ns = 12_345;
            for _ in 0..100_000 {
                now_ns = link.send(now_ns, 1_091);
            }
            let exact =
                12_345 + (u128::from(1_091_u64 * 100_000) * 8_000_000_000 / u128::from(rate_bps)) as u64;
            assert_eq!(now_ns, exact, "{rate_bps}");
        }
    }

    #[test]
    fn a_pause_between_frames_takes_the_fraction() {
        let mut link = Transmitter::new(3_000_000_000);
        assert_eq!([link.send(0, 1), link.send(2, 1), link.send(5, 1)], [2, 5, 8]);
        assert_eq!([link.send(9, 1), link.send(11, 1)], [11, 14]);
    }

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
