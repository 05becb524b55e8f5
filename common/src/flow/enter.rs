//! Insertion of a flow into its set, as a BPF subprogram: the verifier checks it once, as it does those of
//! [the rate machine](super::subprogram).

use super::shared::{LookupError, Shared, Slot};
use super::{FlowId, RpSet};
use crate::layout::WAYS;
use crate::rate::RpParams;

/// Result of [`dcqcn_rp_enter`]: the way, above it the outcome (found, inserted or an error), and above that when the
/// evicted flow had last sent.
const INSERTED: u64 = 1 << 3;
const CONTENDED: u64 = 2 << 3;
const NO_SLOT: u64 = 3 << 3;
const OUTCOME_MASK: u64 = 3 << 3;
/// 2^59 ns are 18 years.
const SINCE_SHIFT: u32 = 5;

#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_rp_enter(
    set: *mut RpSet,
    id: *const FlowId,
    rp: *const RpParams,
    fingerprint: u64,
    now_ns: u64,
) -> u64 {
    // SAFETY: called below with references only, and a set shared under the same rules.
    let (id, rp) = unsafe { (id.as_ref(), rp.as_ref()) };
    let (Some(id), Some(rp)) = (id, rp) else {
        return NO_SLOT;
    };
    if set.is_null() {
        return NO_SLOT;
    }
    // SAFETY: as above.
    match unsafe { Shared::new(set) }.find_or_put(id, fingerprint, rp, now_ns) {
        Ok(Slot { way, silent_since_ns: None }) => way as u64,
        Ok(Slot { way, silent_since_ns: Some(since_ns) }) => way as u64 | INSERTED | since_ns << SINCE_SHIFT,
        Err(LookupError::Contended) => CONTENDED,
        Err(LookupError::Evicted) => NO_SLOT,
    }
}

#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_rp_in_any_vlan(set: *mut RpSet, id: *const FlowId) -> u64 {
    // SAFETY: called below with a reference only, and a set shared under the same rules.
    let Some(id) = (unsafe { id.as_ref() }) else {
        return WAYS as u64;
    };
    if set.is_null() {
        return WAYS as u64;
    }
    // SAFETY: as above.
    unsafe { Shared::new(set) }.way_in_any_vlan(id) as u64
}

/// The way of the only flow of a set that equals `id` apart from its VLANs.
#[inline(always)]
pub(crate) fn in_any_vlan(set: Shared, id: &FlowId) -> Option<usize> {
    let way = dcqcn_rp_in_any_vlan(set.pointer(), id) as usize;
    (way < WAYS).then_some(way)
}

/// Finds the way of a flow outside its primary way, or claims one that is idle at `now_ns`.
///
/// `now_ns` = 0 searches only.
///
/// # Errors
/// The flow is absent and no way is idle, or another CPU holds the lock.
#[inline(always)]
pub fn enter(
    set: Shared,
    id: &FlowId,
    fingerprint: u64,
    rp: &RpParams,
    now_ns: u64,
) -> Result<Slot, LookupError> {
    let entered = dcqcn_rp_enter(set.pointer(), id, rp, fingerprint, now_ns);
    let way = entered as usize % WAYS;
    match entered & OUTCOME_MASK {
        0 => Ok(Slot { way, silent_since_ns: None }),
        INSERTED => Ok(Slot { way, silent_since_ns: Some(entered >> SINCE_SHIFT) }),
        CONTENDED => Err(LookupError::Contended),
        _ => Err(LookupError::Evicted),
    }
}
