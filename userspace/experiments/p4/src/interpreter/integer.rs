//! Integers of expressions.
//!
//! BMv2 computes in unbounded integers and truncates a result when it is stored. The compiler masks the result of every
//! operation that can exceed the width of its type, which is at most 128 bits here. So signed arithmetic modulo 2^256
//! gives the same results.

/// A signed integer of 256 bits, in two's complement. Field order is comparison order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Int {
    high: i128,
    low: u128,
}

impl Int {
    pub(super) const ZERO: Self = Self { high: 0, low: 0 };
    const MINUS_ONE: Self = Self { high: -1, low: u128::MAX };

    pub(super) fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    pub(super) const fn bits(self) -> u128 {
        self.low
    }

    /// As a shift amount, index or length: saturates at the largest `u32`.
    pub(super) fn small(self) -> u32 {
        if self.high == 0 { self.low.try_into().unwrap_or(u32::MAX) } else { u32::MAX }
    }

    /// The value in a field of this width, at most 128 bits.
    pub(super) fn stored(self, bits: u32, is_signed: bool) -> Self {
        let mask = ones(bits);
        let low = self.low & mask;
        if is_signed && low > mask >> 1 { Self { high: -1, low: low | !mask } } else { Self { high: 0, low } }
    }

    /// The nearest value that an unsigned field of this width holds.
    pub(super) fn saturated(self, bits: u32) -> Self {
        self.clamp(Self::ZERO, ones(bits).into())
    }

    pub(super) fn add(self, other: Self) -> Self {
        let (low, carry) = self.low.overflowing_add(other.low);
        Self { high: self.high.wrapping_add(other.high).wrapping_add(carry.into()), low }
    }

    pub(super) fn sub(self, other: Self) -> Self {
        self.add(other.not()).add(1_u128.into())
    }

    pub(super) fn mul(self, other: Self) -> Self {
        const HALF: u128 = u64::MAX as u128;
        let ((a1, a0), (b1, b0)) = ((self.low >> 64, self.low & HALF), (other.low >> 64, other.low & HALF));
        let (low, cross, crossed, high) = (a0 * b0, a0 * b1, a1 * b0, a1 * b1);
        let middle = (low >> 64) + (cross & HALF) + (crossed & HALF);
        let high = high.wrapping_add(cross >> 64).wrapping_add(crossed >> 64).wrapping_add(middle >> 64);
        let signs = (self.low as i128)
            .wrapping_mul(other.high)
            .wrapping_add(self.high.wrapping_mul(other.low as i128));
        Self { high: (high as i128).wrapping_add(signs), low: (middle << 64) | (low & HALF) }
    }

    pub(super) fn shl(self, by: u32) -> Self {
        match by {
            0 => self,
            1..=127 => {
                Self { high: (self.high << by) | (self.low >> (128 - by)) as i128, low: self.low << by }
            }
            _ => Self { high: (self.low as i128).checked_shl(by - 128).unwrap_or(0), low: 0 },
        }
    }

    pub(super) fn shr(self, by: u32) -> Self {
        let sign = if self.high < 0 { Self::MINUS_ONE } else { Self::ZERO };
        match by {
            0 => self,
            1..=127 => {
                Self { high: self.high >> by, low: (self.low >> by) | (self.high << (128 - by)) as u128 }
            }
            _ => Self { low: (self.high >> (by - 128).min(127)) as u128, ..sign },
        }
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self { high: self.high & other.high, low: self.low & other.low }
    }

    pub(super) const fn or(self, other: Self) -> Self {
        Self { high: self.high | other.high, low: self.low | other.low }
    }

    pub(super) const fn not(self) -> Self {
        Self { high: !self.high, low: !self.low }
    }
}

impl From<u128> for Int {
    fn from(low: u128) -> Self {
        Self { high: 0, low }
    }
}

impl From<u32> for Int {
    fn from(value: u32) -> Self {
        u128::from(value).into()
    }
}

impl From<bool> for Int {
    fn from(value: bool) -> Self {
        u128::from(value).into()
    }
}

pub(super) const fn ones(bits: u32) -> u128 {
    match bits {
        0 => 0,
        1..=127 => (1 << bits) - 1,
        _ => u128::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negative(value: u128) -> Int {
        Int::ZERO.sub(value.into())
    }

    #[test]
    fn products_and_shifts_are_exact() {
        let max = Int::from(u128::MAX);
        // (2^128 - 1)^2 = 2^256 - 2^129 + 1
        let square = max.mul(max);
        assert_eq!((square.shr(128).bits(), square.bits()), (u128::MAX - 1, 1));
        assert_eq!(max.shl(64).shr(64), max);
        assert_eq!(Int::from(3_u128).shl(200).shr(199), 6_u128.into());
        assert_eq!(max.shl(300), Int::ZERO);
        assert_eq!(max.shr(300), Int::ZERO);
        let (a, b) = (0x0123_4567_89ab_cdef_u128, 0xfedc_ba98_7654_3210_u128);
        assert_eq!(Int::from(a).mul(b.into()), (a * b).into());
        assert_eq!(Int::from(a << 60).mul(Int::from(b).shl(60)).shr(120), (a * b).into());
    }

    #[test]
    fn negative_numbers_keep_their_sign() {
        assert!(negative(1) < Int::ZERO && negative(2) < negative(1));
        assert_eq!(negative(7).mul(6_u128.into()), negative(42));
        assert_eq!(negative(7).mul(negative(6)), 42_u128.into());
        assert_eq!(negative(8).shr(1), negative(4));
        assert_eq!(negative(1).shr(200), negative(1));
        assert_eq!(negative(1).bits(), u128::MAX);
        assert_eq!(Int::from(1_u128 << 127).shl(1).sub(1_u128.into()), u128::MAX.into());
    }

    #[test]
    fn fields_wrap_and_saturate() {
        assert_eq!(negative(1).stored(8, false), 255_u128.into());
        assert_eq!(Int::from(257_u128).stored(8, true), 1_u128.into());
        assert_eq!(Int::from(0x80_u128).stored(8, true), negative(128));
        assert_eq!(negative(129).stored(8, true), 127_u128.into());
        assert_eq!(negative(1).stored(128, false), u128::MAX.into());
        assert_eq!(negative(1).saturated(8), Int::ZERO);
        assert_eq!(Int::from(300_u128).saturated(8), 255_u128.into());
    }
}
