//! The rate machine as functions of their own.
//!
//! The verifier looks at such a function once, knowing nothing of its arguments, and not at all where it is called: that is what
//! it does with a function which is global, takes numbers and pointers to structures, and returns a number (Linux 5.12 on,
//! commit e5069b9c23b3). In line, it would follow every step of the machine again for each way a packet can have come there.

use super::RpHot;
use crate::rate::{Debt, RpParams};

/// Makes such a function, and a safe one that calls it.
macro_rules! subprogram {
    ($(#[doc = $doc:literal])+ $name:ident as $symbol:ident: $arg:ident, |$flow:ident, $rp:ident, $debt:ident| $body:expr) => {
        #[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
        #[inline(never)]
        extern "C" fn $symbol(flow: *mut RpHot, rp: *const RpParams, $arg: u64, debt: *mut Debt) -> u64 {
            // SAFETY: called below with references only.
            let all = unsafe { (flow.as_mut(), rp.as_ref(), debt.as_mut()) };
            // The verifier wants to see each compared with null.
            let (Some($flow), Some($rp), Some($debt)) = all else {
                return 0;
            };
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
    /// Catches up with the clock; `debt` is a place to reckon in.
    advance as dcqcn_rp_advance: now_ns, |flow, rp, debt| {
        let rate_bps = flow.machine.rate_bps;
        *debt = flow.pacer().debt();
        flow.machine.advance_paying(rp, now_ns, debt);
        flow.follow(rate_bps, debt);
    }
}

subprogram! {
    /// Catches up with a CNP that arrives now, at the rate that it is about to cut; what is owed then is left in `debt`.
    advance_to_cnp as dcqcn_rp_advance_to_cnp: now_ns, |flow, rp, debt| {
        *debt = flow.pacer().debt();
        flow.machine.advance_paying(rp, now_ns, debt);
        debt.pay(flow.machine.rate_bps, now_ns);
    }
}

subprogram! {
    /// Counts bytes that were sent, and has the gap behind the packet follow the rate; `debt` is a place to reckon in.
    count as dcqcn_rp_count: bytes, |flow, rp, debt| {
        let rate_bps = flow.machine.rate_bps;
        flow.machine.on_send(rp, bytes);
        *debt = flow.pacer().debt();
        flow.follow(rate_bps, debt);
    }
}
