//! Access to the packet's bytes and to context fields.

/// Reads a context field at its constant offset.
///
/// The load is written by hand, and its result has 64 bits, for two reasons:
///
/// - The verifier rejects a load through a context pointer to which an offset was added, which the compiler
///   does if several places read the same field.
/// - The kernel's headers give packet pointers 32 bits. Relying on that, the compiler may spill or extend
///   them as 32-bit values, and the verifier then treats the pointer as a scalar.
macro_rules! context_field {
    ($ctx:expr, $ty:ty, $field:ident) => {{
        let field: usize;
        // SAFETY: a load from the program's own context, at the offset of one of its fields.
        unsafe {
            core::arch::asm!(
                "{field} = *(u32 *)({ctx} + {offset})",
                field = out(reg) field,
                ctx = in(reg) $ctx,
                offset = const core::mem::offset_of!($ty, $field),
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        field
    }};
}
pub(crate) use context_field;

/// A header of `N` bytes at `at` in the packet from `data` to `data_end`, if it is inside.
#[inline(always)]
pub fn header<'a, const N: usize>(data: usize, data_end: usize, at: usize) -> Option<&'a mut [u8; N]> {
    let start = data + at;
    if start + N > data_end {
        return None;
    }
    // SAFETY: inside the packet, as checked above. Callers restrict the lifetime to their borrow of the
    // context, and every function that moves the packet takes the context mutably.
    Some(unsafe { &mut *(start as *mut [u8; N]) })
}
