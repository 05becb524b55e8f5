//! XDP hook of inline attachments.

use aya_ebpf::bindings::{xdp_action, xdp_md};
use aya_ebpf::helpers::{bpf_redirect, bpf_xdp_get_buff_len};
use aya_ebpf::programs::XdpContext;
use dcqcn_common::classify::Frame;
use dcqcn_common::hooks::{self, Host, XdpVerdict};

use crate::env::{Env, Hook};
use crate::maps::test;
use crate::packet::{context_field, header};
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
    if let Some(trace) = PacketTrace::begin(Hook::Xdp, &mut host) {
        host.env.trace = trace;
    }
    let verdict = verdict(hooks::xdp(&mut host));
    host.env.trace.end(|| 0, verdict as i32);
    verdict
}

#[inline(always)]
fn verdict(verdict: XdpVerdict) -> u32 {
    match verdict {
        XdpVerdict::Pass => xdp_action::XDP_PASS,
        XdpVerdict::Drop => xdp_action::XDP_DROP,
        XdpVerdict::Redirect(ifindex) => match test() {
            Some(test) => {
                // SAFETY: a map value; programs under test run one at a time.
                unsafe { (*test).redirect_ifindex = ifindex };
                xdp_action::XDP_REDIRECT
            }
            // SAFETY: plain integers. Returns XDP_ABORTED on failure, because there is no other interface
            // to send the packet to.
            None => unsafe { bpf_redirect(ifindex, 0) as u32 },
        },
    }
}

impl XdpHost<'_> {
    #[inline(always)]
    fn data(&self) -> usize {
        context_field!(self.ctx.ctx, xdp_md, data)
    }

    #[inline(always)]
    fn data_end(&self) -> usize {
        context_field!(self.ctx.ctx, xdp_md, data_end)
    }

    /// Length of the first fragment, the only part that can be read directly.
    ///
    /// Computed as a difference, not as a sum with a length from the packet: to Linux 6.1's verifier a
    /// byte-swapped number has no bounds.
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

    /// Most packets have one fragment, for which no helper call is needed.
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
        header(self.data(), self.data_end(), at).map(|target| *target = *bytes).is_some()
    }
}
