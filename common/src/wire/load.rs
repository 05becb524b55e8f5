//! Single loads of two- and four-byte fields, for those read of every packet.
//!
//! Headers are byte arrays of alignment 1, so the compiler for BPF reads them byte by byte, as not every
//! machine supports unaligned loads. x86_64 and arm64 do. The verifier allows them in packets and maps, but
//! not on the stack, so a header must not be copied before it is read.

#[cfg(target_arch = "bpf")]
macro_rules! load {
    ($name:ident, $width:literal, $value:ty) => {
        /// The bytes at `AT`, in memory order.
        #[inline(always)]
        pub(super) fn $name<const AT: usize, const N: usize>(bytes: &[u8; N]) -> $value {
            const { assert!(AT + size_of::<$value>() <= N) };
            let value: u64;
            // SAFETY: a load inside the array, as asserted above.
            unsafe {
                core::arch::asm!(
                    concat!("{value} = *(", $width, " *)({bytes} + {at})"),
                    value = out(reg) value,
                    bytes = in(reg) bytes.as_ptr(),
                    at = const AT,
                    options(pure, readonly, nostack, preserves_flags),
                );
            }
            // SAFETY: the load zero-extends; the compiler would do it again.
            unsafe { core::hint::assert_unchecked(value <= <$value>::MAX as u64) };
            value as $value
        }
    };
}

#[cfg(not(target_arch = "bpf"))]
macro_rules! load {
    ($name:ident, $width:literal, $value:ty) => {
        /// The bytes at `AT`, in memory order.
        #[inline(always)]
        pub(super) fn $name<const AT: usize, const N: usize>(bytes: &[u8; N]) -> $value {
            <$value>::from_ne_bytes(*super::sub::<AT, { size_of::<$value>() }, N>(bytes))
        }
    };
}

load!(u16_at, "u16", u16);
load!(u32_at, "u32", u32);

#[inline(always)]
pub(super) fn be16_at<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u16 {
    u16::from_be(u16_at::<AT, N>(bytes))
}

#[inline(always)]
pub(super) fn be32_at<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u32 {
    u32::from_be(u32_at::<AT, N>(bytes))
}

#[cfg(test)]
mod tests {
    #[test]
    fn fields_parsed_at_their_offsets() {
        let bytes = [1, 2, 3, 4, 5, 6];
        assert_eq!(
            (super::u16_at::<1, _>(&bytes), super::be16_at::<1, _>(&bytes)),
            (u16::from_ne_bytes([2, 3]), 0x0203)
        );
        assert_eq!(super::u32_at::<2, _>(&bytes), u32::from_ne_bytes([3, 4, 5, 6]));
        assert_eq!(super::be32_at::<2, _>(&bytes), 0x0304_0506);
    }
}
