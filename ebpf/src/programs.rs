//! The programs, by name.

use aya_ebpf::macros::{classifier, xdp as xdp_hook};
use aya_ebpf::programs::{TcContext, XdpContext};

use crate::{skb, xdp};

/// Inline: marks and forwards.
#[xdp_hook(frags)]
#[inline(always)]
pub fn dcqcn_xdp(ctx: XdpContext) -> u32 {
    xdp::run(&ctx)
}

/// Feeds CNPs to the rate machines; answers CE-marked data with CNPs.
#[classifier]
#[inline(always)]
pub fn dcqcn_ingress(ctx: TcContext) -> i32 {
    skb::run_ingress(&ctx)
}

/// Makes clones into CNPs; marks and paces the rest.
#[classifier]
#[inline(always)]
pub fn dcqcn_egress(ctx: TcContext) -> i32 {
    skb::run_egress(&ctx)
}

/// Empties the places of idle flows in one set of a flow table. Attached to nothing: the controller runs it, with what it
/// is to do in the context's `cb`. Returns how many flows it removed.
#[classifier]
#[inline(always)]
pub fn dcqcn_expire(ctx: TcContext) -> i32 {
    skb::run_expire(&ctx)
}
