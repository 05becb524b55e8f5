//! The rate machine as BPF subprograms.
//!
//! The verifier checks a global function once, with unknown arguments, and does not descend into it at call sites, if
//! it takes numbers and pointers to structures and returns a number (Linux 5.12 and later, commit e5069b9c23b3).
//! Inlined, every step of the machine would be explored again for each path that leads to it.

use super::RpHot;
use crate::rate::{Debt, RpParams};

/// Defines such a function, and a safe wrapper.
macro_rules! subprogram {
    ($(#[doc = $doc:literal])+ $name:ident as $symbol:ident: $arg:ident, |$flow:ident, $rp:ident, $debt:ident| $body:expr) => {
        #[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
        #[inline(never)]
        extern "C" fn $symbol(flow: *mut RpHot, rp: *const RpParams, $arg: u64, debt: *mut Debt) -> u64 {
            // SAFETY: called below with references only.
            let all = unsafe { (flow.as_mut(), rp.as_ref(), debt.as_mut()) };
            // The verifier requires a null check of each.
            let (Some($flow), Some($rp), Some($debt)) = all else { return 0 };
            $body;
            0
        }

        $(#[doc = $doc])+
        #[inline(always)]
        pub(super) fn $name(flow: &mut RpHot, rp: &RpParams, $arg: u64, debt: &mut Debt) {
            $symbol(flow, rp, $arg, debt);
        }
    };
}

subprogram! {
    /// Advances to the current time; `debt` is scratch space.
    advance as dcqcn_rp_advance: now_ns, |flow, rp, debt| {
        let rate_bps = flow.machine.rate_bps;
        *debt = flow.pacer().debt();
        flow.machine.advance_paying(rp, now_ns, debt);
        flow.follow(rate_bps, debt);
    }
}

subprogram! {
    /// Advances to a CNP that arrives now, at the rate before its cut; leaves the unpaid remainder in `debt`.
    advance_to_cnp as dcqcn_rp_advance_to_cnp: now_ns, |flow, rp, debt| {
        *debt = flow.pacer().debt();
        flow.machine.advance_paying(rp, now_ns, debt);
        debt.pay(flow.machine.rate_bps, now_ns);
    }
}

subprogram! {
    /// Counts sent bytes, and adapts the gap behind the packet to the rate; `debt` is scratch space.
    count as dcqcn_rp_count: bytes, |flow, rp, debt| {
        let rate_bps = flow.machine.rate_bps;
        flow.machine.on_send(rp, bytes);
        *debt = flow.pacer().debt();
        flow.follow(rate_bps, debt);
    }
}
