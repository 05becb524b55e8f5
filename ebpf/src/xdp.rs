//! XDP.

use aya_ebpf::bindings::{xdp_action, xdp_md};
use aya_ebpf::helpers::{bpf_redirect, bpf_xdp_get_buff_len};
use aya_ebpf::programs::XdpContext;
use dcqcn_common::classify::Frame;
use dcqcn_common::hooks::{self, Host, XdpVerdict};
use dcqcn_common::layout::SIBLINGS as MOST_SIBLINGS;

use crate::env::{Env, Hook};
use crate::maps::{HANDED, SIBLINGS, test};
use crate::packet::{header, pointer_field};
use crate::trace::PacketTrace;

struct XdpHost<'a> {
    ctx: &'a XdpContext,
    env: Env,
}

#[inline(always)]
pub fn run(ctx: &XdpContext) -> u32 {
    let Some(env) = Env::new(Hook::Xdp) else {
        return xdp_action::XDP_PASS;
    };
    let mut host = XdpHost { ctx, env };
    host.env.trace = PacketTrace::of(Hook::Xdp, &mut host);
    let decided = hooks::xdp(&mut host);
    let next = host.env.next_sibling;
    let verdict = verdict(decided);
    host.env.trace.end(|| 0, verdict as i32);
    if decided == XdpVerdict::HandOn {
        hand_on(ctx, &mut host.env, next);
    }
    verdict
}

/// Has the programs of the other interfaces look at a CNP, from that at `next` on; returns if there is none. A program's tail calls
/// are at most 33 (`MAX_TAIL_CALL_CNT`), failed ones too.
#[inline(always)]
fn hand_on(ctx: &XdpContext, env: &mut Env, next: u32) {
    let Some(handed) = HANDED.get_ptr_mut(0) else {
        return;
    };
    for place in 0..MOST_SIBLINGS {
        if place >= next {
            // A place that the verifier knows becomes a jump in the program's text, and each change of the array then waits for
            // RCU once for each such jump in each program (`bpf_arch_poke_desc_update`): seconds where there are many.
            let index = hooks::Env::opaque(env, place);
            // SAFETY: this CPU's slot; nothing of this program is in use when another takes its place.
            unsafe {
                *handed = place + 1;
                SIBLINGS.tail_call(ctx, index);
            }
        }
    }
    // SAFETY: this CPU's slot.
    unsafe { *handed = 0 };
}

#[inline(always)]
fn verdict(verdict: XdpVerdict) -> u32 {
    match verdict {
        XdpVerdict::Pass | XdpVerdict::HandOn => xdp_action::XDP_PASS,
        XdpVerdict::Drop => xdp_action::XDP_DROP,
        XdpVerdict::Redirect(ifindex) => match test() {
            Some(test) => {
                // SAFETY: a map value; programs under test run one at a time.
                unsafe { (*test).redirect_ifindex = ifindex };
                xdp_action::XDP_REDIRECT
            }
            // SAFETY: plain numbers. On failure it returns XDP_ABORTED: there is nowhere else to send the packet.
            None => unsafe { bpf_redirect(ifindex, 0) as u32 },
        },
    }
}

impl XdpHost<'_> {
    #[inline(always)]
    fn data(&self) -> usize {
        pointer_field!(self.ctx.ctx, xdp_md, data)
    }

    #[inline(always)]
    fn data_end(&self) -> usize {
        pointer_field!(self.ctx.ctx, xdp_md, data_end)
    }
}

impl XdpHost<'_> {
    /// Length of the piece that can be read. A difference, and not a sum with what a packet says of itself: to the verifier of Linux 6.1
    /// a number whose bytes were swapped may be any.
    #[inline(always)]
    fn first_piece(&self) -> usize {
        self.data_end().wrapping_sub(self.data())
    }
}

impl Frame for XdpHost<'_> {
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        // SAFETY: the program's own context. Includes the fragments.
        unsafe { bpf_xdp_get_buff_len(self.ctx.ctx) as u32 }
    }

    /// Most packets are in one piece, and of those nobody has to be asked.
    #[inline(always)]
    fn reaches(&self, len: usize) -> bool {
        len <= self.first_piece() || len <= self.frame_len() as usize
    }

    #[inline(always)]
    fn len_reaching(&self, len: usize) -> u32 {
        let first = self.first_piece();
        if len <= first { first as u32 } else { self.frame_len() }
    }

    #[inline(always)]
    fn header<const N: usize>(&self, at: usize) -> Option<&[u8; N]> {
        header(self.data(), self.data_end(), at).map(|header| &*header)
    }
}

impl Host<'static> for XdpHost<'_> {
    type Env = Env;

    #[inline(always)]
    fn env(&mut self) -> &mut Env {
        &mut self.env
    }

    #[inline(always)]
    fn ingress_ifindex(&self) -> u32 {
        self.ctx.ingress_ifindex() as u32
    }

    #[inline(always)]
    fn write<const N: usize>(&mut self, at: usize, bytes: &[u8; N]) -> bool {
        let target = header(self.data(), self.data_end(), at);
        if let Some(target) = target {
            *target = *bytes;
            return true;
        }
        false
    }
}
