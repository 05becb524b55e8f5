//! Names of hooks and current names of interfaces.

use aya::programs::tc::TcAttachType;
use dcqcn_netlink::Link;
use dcqcn_netlink::tc::Handle;

use super::{Info, name_of};
/// Hooks; also the names of their pins.
pub(super) use crate::dataplane::HOOKS;
use crate::dataplane::PROGRAMS;

/// A TC hook, used by host attachments: XDP on the receive path would cost TCP its offloads.
pub(super) struct TcHook {
    /// Name of the hook, and of the program's pin.
    pub(super) name: &'static str,
    pub(super) program: &'static str,
    pub(super) attach_type: TcAttachType,
    /// `enum bpf_attach_type` (include/uapi/linux/bpf.h).
    pub(super) tcx: u32,
    /// Parent of filters on clsact.
    pub(super) parent: Handle,
}

/// Egress first, because it must handle the clones that ingress sends.
pub(super) static TC_HOOKS: [TcHook; 2] = [
    TcHook {
        name: HOOKS[2],
        program: PROGRAMS[2],
        attach_type: TcAttachType::Egress,
        tcx: 47,
        parent: Handle::CLSACT_HOOKS[1],
    },
    TcHook {
        name: HOOKS[1],
        program: PROGRAMS[1],
        attach_type: TcAttachType::Ingress,
        tcx: BPF_TCX_INGRESS,
        parent: Handle::CLSACT_HOOKS[0],
    },
];
pub(super) const BPF_TCX_INGRESS: u32 = 46;

pub(super) fn tc_hook(name: &str) -> Option<&'static TcHook> {
    TC_HOOKS.iter().find(|hook| hook.name == name)
}

/// Pin of the XDP link on the other interface of an inline pair.
pub(super) const XDP_PEER: &str = "xdp_peer";

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
