//! The time a frame needs to pass onto a link.

/// A transmitter: one frame after the other at the link's rate.
///
/// Times are whole nanoseconds, but frames back to back lose nothing to rounding: the rest of a division is carried
/// over, exactly.
#[derive(Clone, Copy, Debug)]
pub struct Transmitter {
    rate_bps: u64,
    free_ns: u64,
    /// The last frame ends this much after `free_ns`, in 1 ns / rate.
    carry: u64,
}

impl Transmitter {
    /// An idle one; `rate_bps` is not 0.
    #[must_use]
    pub const fn new(rate_bps: u64) -> Self {
        Self { rate_bps, free_ns: 0, carry: 0 }
    }

    /// When the last frame ends.
    #[inline]
    #[must_use]
    pub(crate) const fn free_ns(&self) -> u64 {
        self.free_ns
    }

    /// Begins a frame of `wire_bytes` (below 2^20) now, after the last has ended, and says when it ends.
    #[inline]
    pub fn send(&mut self, now_ns: u64, wire_bytes: u64) -> u64 {
        if now_ns > self.free_ns {
            self.carry = 0;
        }
        let length = wire_bytes * 8_000_000_000 + self.carry;
        self.free_ns = now_ns + length / self.rate_bps;
        self.carry = length % self.rate_bps;
        self.free_ns
    }

    /// Time that `bytes` take at `rate_bps`, rounded up.
    #[must_use]
    pub const fn time_ns(rate_bps: u64, bytes: u64) -> u64 {
        (bytes * 8_000_000_000).div_ceil(rate_bps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pause_between_frames_takes_the_fraction() {
        let mut link = Transmitter::new(3_000_000_000);
        assert_eq!([link.send(0, 1), link.send(2, 1), link.send(5, 1)], [2, 5, 8]);
        assert_eq!([link.send(9, 1), link.send(11, 1)], [11, 14]);
        assert_eq!((link.free_ns(), Transmitter::time_ns(3_000_000_000, 1)), (14, 3));
    }

    proptest! {
        #[test]
        fn frames_back_to_back_lose_nothing(
            rate_bps in 100_000u64..=800_000_000_000, lengths in proptest::collection::vec(64u64..9_300, 1..50),
        ) {
            let mut link = Transmitter::new(rate_bps);
            let mut now_ns = 5;
            for &bytes in &lengths {
                now_ns = link.send(now_ns, bytes);
            }
            let total: u64 = lengths.iter().sum();
            prop_assert_eq!(now_ns - 5, total * 8_000_000_000 / rate_bps);
        }
    }
}
