//! Program entry points.

use aya_ebpf::macros::{classifier, xdp as xdp_hook};
use aya_ebpf::programs::{TcContext, XdpContext};

use crate::{skb, xdp};

/// XDP, inline attachments: marks and forwards.
#[xdp_hook(frags)]
#[inline(always)]
pub fn dcqcn_xdp(ctx: XdpContext) -> u32 {
    xdp::run(&ctx)
}

/// TC ingress: applies CNPs to the rate machines; answers CE-marked data with CNPs.
#[classifier]
#[inline(always)]
pub fn dcqcn_ingress(ctx: TcContext) -> i32 {
    skb::run_ingress(&ctx)
}

/// TC egress: turns clones into CNPs; marks and paces other packets.
#[classifier]
#[inline(always)]
pub fn dcqcn_egress(ctx: TcContext) -> i32 {
    skb::run_egress(&ctx)
}

/// Removes idle flows from one set of a flow table; returns how many.
///
/// Not attached: the daemon runs it, with the arguments in the context's `cb`.
#[classifier]
#[inline(always)]
pub fn dcqcn_expire(ctx: TcContext) -> i32 {
    skb::run_expire(&ctx)
}

/// Delivers the program's packet: a probe to the host's own stack, a NAK to the wire; returns 0 on success.
///
/// Not attached: the daemon runs it, with interface, `skb->mark` and flags of `bpf_clone_redirect` in the
/// context's `cb`.
#[classifier]
#[inline(always)]
pub fn dcqcn_probe(ctx: TcContext) -> i32 {
    skb::run_probe(&ctx)
}
