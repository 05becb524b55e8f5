//! Packet sequence numbers.

use std::fmt;

/// Number of distinct PSNs: the BTH field has 24 bits (IBTA vol. 1, 9.2.8).
const MODULUS: u32 = 1 << 24;

/// A 24-bit packet sequence number with the wrap-around arithmetic of the IBTA specification (vol. 1, 9.2.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Psn(u32);

impl Psn {
    /// The low 24 bits of `value`.
    #[must_use]
    pub(crate) const fn new(value: u32) -> Self {
        Self(value & (MODULUS - 1))
    }

    /// The number, `0..2^24`.
    #[must_use]
    pub(crate) const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `packets` after this one.
    #[must_use]
    pub(crate) const fn plus(self, packets: u64) -> Self {
        // Only the low 24 bits of the count matter, and they survive the cut to 32 bits.
        Self::new(self.0.wrapping_add(packets as u32))
    }

    /// The PSN just before this one.
    #[must_use]
    pub(crate) const fn previous(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// Signed distance in packets from `other` to this one, the shorter way round: `-2^23..2^23`.
    #[must_use]
    pub(crate) const fn distance_from(self, other: Self) -> i32 {
        let forward = self.0.wrapping_sub(other.0) & (MODULUS - 1);
        if forward < MODULUS / 2 { forward as i32 } else { forward as i32 - MODULUS as i32 }
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wraps_at_24_bits() {
        assert_eq!(Psn::new(0x00ff_ffff).plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), Psn::new(0x00ff_ffff));
        assert_eq!(Psn::new(0).distance_from(Psn::new(0x00ff_ffff)), 1);
        assert_eq!(Psn::new(0x00ff_ffff).distance_from(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -0x80_0000);
    }

    proptest! {
        #[test]
        fn distance_undoes_plus(start in any::<u32>(), packets in 0u64..0x80_0000) {
            let start = Psn::new(start);
            prop_assert_eq!(i64::from(start.plus(packets).distance_from(start)), packets as i64);
        }
    }
}
