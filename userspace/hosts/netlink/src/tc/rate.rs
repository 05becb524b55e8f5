//! Rates in the packet scheduler's format.

use crate::wire::Encoder;

/// One tick of the packet scheduler's clock, in nanoseconds (`PSCHED_SHIFT` 6). Bucket sizes cross netlink as
/// the time they take at the bucket's rate, in ticks.
pub(super) const TICK_NS: u64 = 64;
/// Nanoseconds of a second.
const SECOND_NS: u128 = 1_000_000_000;
/// `TC_LINKLAYER_ETHERNET`: the kernel computes transmission times itself and needs no rate table.
const LINKLAYER_ETHERNET: u8 = 1;
/// Bytes of `struct tc_ratespec`.
pub(super) const RATE_SPEC_LEN: usize = 12;

/// A rate in bytes per second, not zero.
#[derive(Clone, Copy)]
pub(super) struct Rate(u64);

impl Rate {
    pub(super) fn new(bps: u64) -> Self {
        Self((bps / 8).max(1))
    }

    /// `struct tc_ratespec`: cell_log, linklayer, overhead (16), cell_align (16), mpu (16), rate (32).
    pub(super) fn spec(self) -> [u8; RATE_SPEC_LEN] {
        self.spec_with(0)
    }

    /// As above, with bytes that the kernel adds to the length of each packet.
    pub(super) fn spec_with(self, overhead_bytes: u16) -> [u8; RATE_SPEC_LEN] {
        let mut spec = [0; RATE_SPEC_LEN];
        spec[1] = LINKLAYER_ETHERNET;
        spec[2..4].copy_from_slice(&overhead_bytes.to_ne_bytes());
        let rate = u32::try_from(self.0).unwrap_or(u32::MAX);
        spec[8..].copy_from_slice(&rate.to_ne_bytes());
        spec
    }

    /// Above 4 GB/s the 32 bits of the ratespec are all ones and a 64-bit attribute has the rate.
    pub(super) fn encode_wide(self, options: &mut Encoder, kind: u16) {
        if self.0 > u64::from(u32::MAX) {
            options.attribute(kind, &self.0.to_ne_bytes());
        }
    }

    /// Time in scheduler ticks that `bytes` take at this rate.
    pub(super) fn ticks(self, bytes: u32) -> u32 {
        let ticks = u128::from(bytes) * SECOND_NS / u128::from(self.0) / u128::from(TICK_NS);
        u32::try_from(ticks).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_rates_do_not_wrap_or_panic() {
        assert_eq!(Rate::new(0).ticks(u32::MAX), u32::MAX);
        assert_eq!(Rate::new(u64::MAX).ticks(u32::MAX), 0);
        assert_eq!(Rate::new(800_000_000_000).ticks(1_000_000), 156);
    }
}
