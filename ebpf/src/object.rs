//! What every object has beside its programs.

/// Never reached: nothing here can panic, and the verifier would refuse the loop.
#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Read by the kernel, which gives some helpers to programs under the GPL only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
