//! What every object has next to its programs.

/// Never reached: nothing here can panic, and the verifier would refuse the loop.
#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Read by the kernel, which offers some helpers to GPL-compatible programs only and accepts a fixed list of names. The
/// source is licensed as the rest of the repository.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
