//! Requests that cannot be fulfilled.

use dcqcn_common::hooks::HTB_MAX_FLOWS;
use dcqcn_netlink::tc::{Handle, SavedQdisc};

/// Reason why a request cannot be fulfilled, with the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message describes its variant")]
pub enum Unsupported {
    #[error("{0} is named twice: an interface has one attachment")]
    NamedTwice(String),
    #[error("--inline needs two interfaces, not {0} twice")]
    InlineWithItself(String),
    #[error(
        "XDP in the driver of {0}, a bond, runs on its ports, and packets would go back where they came from; use `--xdp-mode skb`"
    )]
    DriverModeOnBond(String),
    #[error("an inline attachment only marks: np_enable, rp_enable and fast_cnp stay off")]
    InlineOnlyMarks,
    #[error("an inline attachment forwards before any qdisc: attach each port separately for --queues")]
    InlineQueues,
    #[error(
        "--queues and the pacer {pacer} both replace the root qdisc; attach with --role switch, or with --pacer none"
    )]
    QueuesAndPacer { pacer: String },
    #[error(
        "{iface} already has classes ({kind} {handle}); remove them (`tc qdisc del dev {iface} root`), or attach without \
         --queues and select them with priority_major"
    )]
    HasClasses { iface: String, kind: String, handle: Handle },
    #[error(
        "{iface} has the qdisc {kind}, which has no egress hook: replace it by clsact, whose ingress takes the same filters \
         (`tc qdisc del dev {iface} {kind}`, `tc qdisc add dev {iface} clsact`), then attach"
    )]
    IngressQdisc { iface: String, kind: String },
    #[error(
        "the clsact qdisc of {iface} shares filter block {block} with other interfaces, and takes no filter of its own: replace \
         it (`tc qdisc del dev {iface} clsact`, `tc qdisc add dev {iface} clsact`) and add its other filters to {iface} again, \
         or boot Linux 6.6 or later, then attach"
    )]
    SharedBlock { iface: String, block: u32 },
    #[error(
        "{iface} has the shaper {shaper} at {parent}, which attaching would replace: remove it and set link_rate, or attach with \
         --pacer none and without --queues"
    )]
    ShaperInTheWay { iface: String, parent: Handle, shaper: String },
    #[error(
        "flows = {0} is out of range with the pacer htb: 8 to {HTB_MAX_FLOWS}; attach with fewer, or with --pacer fq"
    )]
    FlowsOfHtb(u32),
    #[error(
        "cannot attach on a PREEMPT_RT kernel from 6.18 on: programs preempt each other on a CPU there; boot a kernel \
         without PREEMPT_RT, or pass --realtime"
    )]
    Preemptible,
    #[error(
        "{features} of interface {ifindex} cannot be turned off: XDP in the driver would lose VLAN tags; try `--xdp-mode skb`"
    )]
    TagsLost { ifindex: u32, features: String },
    #[error(
        "another program replaced the qdisc of {iface} while attaching: {saved} became {found}; attach again"
    )]
    QdiscReplaced { iface: String, saved: Box<SavedQdisc>, found: Box<SavedQdisc> },
    #[error("{iface} is attached with the htb pacer; `dcqcn detach {iface}`, then prepare it")]
    PacedByHtb { iface: String },
    #[error("programs are attached, but their journal is missing; `dcqcn gc` removes them")]
    JournalMissing,
    #[error(
        "the maps of {iface} were removed, and with them its parameters and rates; `dcqcn attach {iface}` replaces it"
    )]
    MapsMissing { iface: String },
    #[error("cannot repair {iface}: its programs are another version's; `dcqcn upgrade {iface}` first")]
    OtherVersion { iface: String },
    #[error(
        "cannot restore the qdisc of {iface}: it was at {was_at}, and another program's qdisc is there now; \
         `dcqcn detach {iface}`, then attach it again"
    )]
    QdiscMoved { iface: String, was_at: Handle },
    #[error(
        "cannot write a drop-in for {iface}: systemd-networkd does not manage it; run `dcqcn prepare {iface}` at boot, \
         before RDMA traffic"
    )]
    NotOfNetworkd { iface: String },
    #[error("{iface}: packet logging is off; `dcqcn detach` it and `dcqcn attach` it with --log-packets")]
    NoPacketLog { iface: String },
    #[error("{iface}: none of its programs is attached")]
    NoPrograms { iface: String },
    #[error("{iface}: cannot read its packet log: {source}")]
    PacketLog { iface: String, source: Box<aya_log::Error> },
}
