//! What the hooks are called, and what the interfaces are called now.

use aya::programs::tc::TcAttachType;
use dcqcn_netlink::Link;
use dcqcn_netlink::tc::Handle;

use super::{Info, name_of};
/// The hooks, which are also the names of pins.
pub(super) use crate::dataplane::HOOKS;
use crate::dataplane::PROGRAMS;

/// Those of TC, which a host attachment has: XDP on the receive path would cost TCP its offloads.
pub(super) const TC_HOOKS: [&str; 2] = [HOOKS[1], HOOKS[2]];

/// Pin of the XDP link of the other interface of an inline pair.
pub(super) const XDP_PEER: &str = "xdp_peer";

/// The name of the program of a TC hook.
pub(super) fn filter_name(hook: &str) -> Option<&'static str> {
    tc_hook(hook).map(|(program, ..)| program)
}

/// Program, kind of attachment and clsact parent of a TC hook.
pub(super) fn tc_hook(hook: &str) -> Option<(&'static str, TcAttachType, Handle)> {
    match hook {
        "ingress" => Some((PROGRAMS[1], TcAttachType::Ingress, Handle::CLSACT_HOOKS[0])),
        "egress" => Some((PROGRAMS[2], TcAttachType::Egress, Handle::CLSACT_HOOKS[1])),
        _ => None,
    }
}

/// What was chosen, under the names that the interfaces have now.
pub(super) fn labelled(info: Info, links: &[Link]) -> Info {
    named(info, |index| name_of(links, index).map(str::to_owned))
}

/// As [`labelled`], with names requested one by one.
pub(super) fn named(info: Info, name: impl Fn(u32) -> Option<String>) -> Info {
    let iface = name(info.ifindex).unwrap_or(info.iface);
    let inline_peer = info.peer_ifindex.and_then(name).or(info.inline_peer);
    Info { iface, inline_peer, ..info }
}
