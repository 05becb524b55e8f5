//! Names of hooks and current names of interfaces.

use aya::programs::tc::TcAttachType;
use dcqcn_netlink::Link;
use dcqcn_netlink::tc::Handle;

use super::{Info, name_of};
/// Hooks; also the names of their pins.
pub(super) use crate::dataplane::HOOKS;
use crate::dataplane::PROGRAMS;

/// TC hooks, used by host attachments: XDP on the receive path would cost TCP its offloads.
pub(super) const TC_HOOKS: [&str; 2] = [HOOKS[1], HOOKS[2]];

/// Pin of the XDP link on the other interface of an inline pair.
pub(super) const XDP_PEER: &str = "xdp_peer";

/// Name of the program of a TC hook.
pub(super) fn filter_name(hook: &str) -> Option<&'static str> {
    tc_hook(hook).map(|(program, ..)| program)
}

/// Program, attach type and clsact parent of a TC hook.
pub(super) fn tc_hook(hook: &str) -> Option<(&'static str, TcAttachType, Handle)> {
    match hook {
        "ingress" => Some((PROGRAMS[1], TcAttachType::Ingress, Handle::CLSACT_HOOKS[0])),
        "egress" => Some((PROGRAMS[2], TcAttachType::Egress, Handle::CLSACT_HOOKS[1])),
        _ => None,
    }
}

/// `info` with the interfaces' current names.
pub(super) fn with_current_names(info: Info, links: &[Link]) -> Info {
    with_names(info, |index| name_of(links, index).map(str::to_owned))
}

/// As [`with_current_names`], with a lookup function for names.
pub(super) fn with_names(info: Info, name: impl Fn(u32) -> Option<String>) -> Info {
    let iface = name(info.ifindex).unwrap_or(info.iface);
    let inline_peer = info.peer_ifindex.and_then(name).or(info.inline_peer);
    Info { iface, inline_peer, ..info }
}
