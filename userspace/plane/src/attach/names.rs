//! What the hooks are called.

use aya::programs::tc::TcAttachType;
use dcqcn_netlink::tc::Handle;

/// The hooks, which are also the names of pins.
pub(super) use crate::dataplane::HOOKS;
use crate::dataplane::PROGRAMS;

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
