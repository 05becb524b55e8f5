//! Panic handler and licence, required in every object.

/// Never reached: the programs cannot panic, and the verifier would reject the loop.
#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// This crate's licence, as the kernel names it (`include/linux/license.h`).
///
/// The kernel offers some helpers only to GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
