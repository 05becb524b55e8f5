//! Panic handler and license, required in every object.

/// Never reached: the programs cannot panic, and the verifier would reject the loop.
#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Read by the kernel, which offers some helpers only to GPL-compatible programs and accepts a fixed list
/// of names. The source is licensed like the rest of the repository.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
