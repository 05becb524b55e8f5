//! A flow's way into its set, as a function of its own: the verifier looks at it once, as at those of
//! [the rate machine](super::subprogram).

use super::shared::{LookupError, Shared, Slot};
use super::{FlowId, RpSet};
use crate::layout::WAYS;
use crate::rate::RpParams;

/// What [`dcqcn_rp_enter`] returns above the way: it found the flow, it put it there, or why not; and above that when the flow that
/// was in the place had sent last.
const PUT: u64 = 1 << 3;
const BUSY: u64 = 2 << 3;
const NOWHERE: u64 = 3 << 3;
const WHAT: u64 = 3 << 3;
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
    // SAFETY: called below with references only, and a set that is shared as it is here.
    let (id, rp) = unsafe { (id.as_ref(), rp.as_ref()) };
    let (Some(id), Some(rp)) = (id, rp) else {
        return NOWHERE;
    };
    if set.is_null() {
        return NOWHERE;
    }
    // SAFETY: as above.
    match unsafe { Shared::new(set) }.find_or_put(id, fingerprint, rp, now_ns) {
        Ok(Slot { way, silent_since_ns: None }) => way as u64,
        Ok(Slot { way, silent_since_ns: Some(since_ns) }) => way as u64 | PUT | since_ns << SINCE_SHIFT,
        Err(LookupError::Contended) => BUSY,
        Err(LookupError::Evicted) => NOWHERE,
    }
}

#[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
#[inline(never)]
extern "C" fn dcqcn_rp_in_any_vlan(set: *mut RpSet, id: *const FlowId) -> u64 {
    // SAFETY: called below with a reference only, and a set that is shared as it is here.
    let Some(id) = (unsafe { id.as_ref() }) else {
        return WAYS as u64;
    };
    if set.is_null() {
        return WAYS as u64;
    }
    // SAFETY: as above.
    unsafe { Shared::new(set) }.way_in_any_vlan(id) as u64
}

/// The place of the only flow of a set that is called `id` but for its VLANs.
#[inline(always)]
#[must_use]
pub(crate) fn in_any_vlan(set: Shared, id: &FlowId) -> Option<usize> {
    let way = dcqcn_rp_in_any_vlan(set.pointer(), id) as usize;
    (way < WAYS).then_some(way)
}

/// The place of the flow `id`, whose fingerprint this is, if it is not at home: its own, or one that is out of use at `now_ns`, which
/// it then has; 0 = its own only.
///
/// # Errors
/// It is nowhere and gets no place, or another CPU is at it.
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
    match entered & WHAT {
        0 => Ok(Slot { way, silent_since_ns: None }),
        PUT => Ok(Slot { way, silent_since_ns: Some(entered >> SINCE_SHIFT) }),
        BUSY => Err(LookupError::Contended),
        _ => Err(LookupError::Evicted),
    }
}
