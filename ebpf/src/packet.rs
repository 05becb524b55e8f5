//! Bounds of the packet in the context.

/// Reads a context field at its constant offset.
///
/// The verifier rejects a load from a context pointer to which an offset was added before, as the compiler does when several places
/// read one field. Of packet pointers it also requires the width:
/// In the kernel's headers the field has 32 bits, and the compiler, believing that, may spill or extend it as such; the
/// verifier then takes the pointer for a number. So the load is written by hand and its result has 64 bits.
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

/// A header of `N` bytes at `at` in the packet from `data` to `data_end`, if it lies inside.
#[inline(always)]
pub fn header<'a, const N: usize>(data: usize, data_end: usize, at: usize) -> Option<&'a mut [u8; N]> {
    let start = data + at;
    if start + N > data_end {
        return None;
    }
    // SAFETY: inside the packet, as just checked. Callers give it the lifetime of their borrow of the context, and all
    // that moves packets takes the context mutably.
    Some(unsafe { &mut *(start as *mut [u8; N]) })
}
