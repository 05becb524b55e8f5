//! Waiting for a flow locked by another CPU, as a BPF subprogram: the verifier checks its loop once, and not for each
//! path that leads to it.

use super::RpHot;
use super::lock::{self, Refused};

const TAKEN: u64 = 0;
const HELD: u64 = 1;
const CHANGED: u64 = 2;

#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_rp_wait(flow: *mut RpHot, seen: u64) -> u64 {
    if flow.is_null() {
        return HELD;
    }
    // SAFETY: called below with a flow whose lock only `lock` changes.
    match unsafe { lock::take_as_seen(&raw mut (*flow).lock, seen as u32, lock::TRIES) } {
        Ok(()) => TAKEN,
        Err(Refused::FlowGuard) => HELD,
        Err(Refused::Changed) => CHANGED,
    }
}

/// Takes the lock of a flow whose unlocked word was `seen`.
///
/// # Errors
/// As [`lock::take_as_seen`].
///
/// # Safety
/// `flow` points to a flow whose lock only the functions of [`lock`] change.
#[inline(always)]
pub(super) unsafe fn take(flow: *mut RpHot, seen: u32) -> Result<(), Refused> {
    // Nearly always uncontended.
    //
    // SAFETY: required of the caller.
    if unsafe { lock::take_as_seen(&raw mut (*flow).lock, seen, 1) } == Ok(()) {
        return Ok(());
    }
    match dcqcn_rp_wait(flow, seen.into()) {
        TAKEN => Ok(()),
        CHANGED => Err(Refused::Changed),
        _ => Err(Refused::FlowGuard),
    }
}
