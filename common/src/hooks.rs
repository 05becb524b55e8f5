//! Packet processing of each hook: the three DCQCN (Data Center Quantized Congestion Notification) roles,
//! CP, NP and RP.
//!
//! The kernel programs and the reference engine both run these functions. They differ only in their
//! implementations of [`Env`], [`Host`] and [`Skb`]: packets, maps, time and randomness.

mod cp;
mod host;
mod htb;
#[cfg(feature = "memory")]
pub mod memory;
mod np;
mod pairing;
mod pfc;
mod recovery;
mod rp;

use crate::classify::{Roce, classify, classify_trimmed, dscp};
use crate::events::{Event, EventKind};
use crate::flow::QpId;
use crate::layout::{CLASSES, DSCPS, Time};
use crate::limit::Limit;
use crate::params::{DSCP_UNCHANGED, DscpClass, Params, Switch};
use crate::stats::Stat;
use crate::wire::bth::Opcode;
use crate::wire::ecn::{Ecn, tos};
use crate::wire::eth::{EtherType, Ethernet};
use cp::Marking;
pub use cp::{deepest_bytes, trim_above_bytes};
use host::set_tos;
pub use host::{
    CUT_HEADER, Cloned, Env, Host, MAX_REBUILT, Skb, TcVerdict, XdpVerdict, set_ce, set_tos_and_len,
};
pub use htb::{HTB_FIRST_FLOW, HTB_MAX_FLOWS, htb_minor, htb_slot};
pub use np::{is_between_hosts, np_flow_id};
pub use pairing::LEARNING;
pub use pfc::RECEIVE_LIMIT;

/// XDP hook of an inline attachment: marks and forwards every packet.
#[inline(always)]
pub fn xdp<'p, H: Host<'p>>(h: &mut H) -> XdpVerdict {
    let roce = match classify(h) {
        Ok(roce) => hide_offsets(h, roce),
        Err(stat) => {
            h.env().count(stat);
            if stat == Stat::MacControl {
                pfc::receive(h);
            }
            return match h.env().params() {
                Some(p) => forward(h, p),
                None => XdpVerdict::Pass,
            };
        }
    };
    count_kind(h, &roce);
    let Some(p) = h.env().params() else {
        return XdpVerdict::Pass;
    };
    if h.env().is_inline(p) {
        let port = egress_port(h, p) as u32;
        let class = class_of(p, roce.dscp());
        let marks = p.hot.is_on(Switch::Cp);
        if marks && cp::congestion_point(h, p, &roce, class, port, |_| false) == Marking::Drop {
            return XdpVerdict::Drop;
        }
    }
    if pairing::is_management(&roce) {
        pairing::snoop(h, p, &roce);
    }
    forward(h, p)
}

/// Forwards the packet if the attachment is inline; passes it otherwise.
#[inline(always)]
fn forward<'p, H: Host<'p>>(h: &mut H, p: &Params) -> XdpVerdict {
    if !h.env().is_inline(p) {
        return XdpVerdict::Pass;
    }
    h.env().count(Stat::InlineForwarded);
    XdpVerdict::Redirect(p.port.ifindex[egress_port(h, p)])
}

/// Index of the egress port of an inline pair.
#[inline(always)]
fn egress_port<'p, H: Host<'p>>(h: &H, p: &Params) -> usize {
    (h.ingress_ifindex() == p.port.ifindex[0]) as usize
}

/// TC ingress hook: RP and NP of a host.
///
/// - RP: CNPs cut the rates of local flows, PFC frames pause them.
/// - NP: a CE-marked data packet, or the first data packet after a window with marks, makes the hook clone
///   the packet to the interface's own egress, with the private `skb->mark`. The egress hook turns the
///   clone into the CNP.
/// - `np_host_congestion`: while this host is congested, ECT packets count as marked.
/// - `trim_nak`: trimmed data counts as marked, and is dropped if the daemon will answer it.
#[inline(always)]
pub fn ingress<'p, S: Skb<'p>>(s: &mut S) -> TcVerdict {
    let roce = match classify_trimmed(s) {
        Ok(roce) => roce,
        Err(stat) => {
            s.env().count(stat);
            if stat == Stat::MacControl {
                pfc::receive(s);
            }
            return TcVerdict::Pass;
        }
    };
    // The sibling that tail-called this program has counted the CNP.
    let is_from_sibling = roce.is_cnp() && s.env().is_from_sibling();
    let Some(p) = s.env().params() else {
        return if is_from_sibling { TcVerdict::TrySiblings } else { TcVerdict::Pass };
    };
    if s.mark() == p.port.cnp_mark && roce.opcode == Opcode::RC_ACKNOWLEDGE {
        // A probe of this host, which is not a response.
        s.set_mark(0);
        return TcVerdict::Pass;
    }
    if roce.is_trimmed {
        s.env().count(Stat::Trimmed);
        if !p.hot.is_on(Switch::TrimNak) || !roce.congests() {
            return TcVerdict::Pass;
        }
    } else if !is_from_sibling {
        count_kind(s, &roce);
    }
    if roce.is_cnp() {
        let roce = hide_offsets(s, roce);
        return rp::on_cnp(s, p, &roce, is_from_sibling);
    }
    if pairing::is_management(&roce) {
        let roce = hide_offsets(s, roce);
        pairing::snoop(s, p, &roce);
        return TcVerdict::Pass;
    }
    let mut is_answered = false;
    if recovery::is_enabled(p) {
        let roce = hide_offsets(s, roce);
        is_answered = recovery::on_ingress(s, p, &roce);
    }
    if p.hot.is_on(Switch::Np) && roce.congests() {
        let is_marked =
            roce.ecn().is_ce() || roce.is_trimmed || roce.ecn().is_ect() && np::is_host_congested(s, p);
        if roce.ecn().is_ce() {
            count_packets(s, Stat::NpEcnMarked, &roce);
        }
        if is_marked || np::may_be_pending(s, p) {
            np::on_data(s, p, &roce, is_marked);
        }
    }
    if is_answered { TcVerdict::Drop } else { TcVerdict::Pass }
}

/// TC egress hook: turns NP clones into CNPs; classifies, marks (CP) and paces (RP) other RoCE packets.
#[inline(always)]
pub fn egress<'p, S: Skb<'p>>(s: &mut S) -> TcVerdict {
    let (p, roce) = match classified(s) {
        Ok(found) => found,
        Err(stat) => {
            if stat == Some(Stat::MacControl) {
                pfc::transmit(s);
            }
            set_class_of_other(s, stat);
            return TcVerdict::Pass;
        }
    };
    if is_clone(s, p) && roce.congests() {
        return np::become_cnp(s, p, &roce);
    }
    if roce.is_cnp() && s.take_enqueued_again() {
        return TcVerdict::Pass;
    }
    count_kind(s, &roce);
    if recovery::is_enabled(p) && s.env().paces() {
        recovery::on_egress(s, p, &roce);
    }
    let mut roce = with_own_tos(s, p, roce);
    let mut class = class_of(p, roce.dscp());
    set_class(s, p, class);
    if p.hot.is_on(Switch::Cp) {
        // Trimming its own packets would only cost a host retransmissions. A locally generated packet also has
        // no ingress port to send a fast CNP to; this host's own stack notifies the sender.
        let is_forwarded = |s: &S| s.ingress_ifindex() != 0;
        let marking = cp::congestion_point(s, p, &roce, class, 0, is_forwarded);
        match marking {
            Marking::Drop => return TcVerdict::Drop,
            Marking::Marked | Marking::Trim if p.hot.is_on(Switch::FastCnp) && is_forwarded(s) => {
                if roce.congests() {
                    // The verifier would explore the NP once per path of the CP, and the rest once per path of the NP.
                    roce = hide_all(s, roce);
                    class = class_of(p, roce.dscp());
                    let own = hide_all(s, roce);
                    np::on_own_mark(s, p, &own);
                }
            }
            Marking::Marked | Marking::Trim | Marking::Unmarked => {}
        }
        if marking == Marking::Trim && cp::trim(s, p, &roce) {
            let class = class_of(p, p.hot.trim_dscp.into());
            set_class(s, p, class);
            return TcVerdict::EnqueueAgain;
        }
    }
    // Before it is counted as queued: pacing may drop it.
    if s.env().paces() && p.hot.is_on(Switch::Rp) && roce.is_sequenced() {
        if rp::pace(s, p, &roce, class) == TcVerdict::Drop {
            return TcVerdict::Drop;
        }
    } else if pairing::is_management(&roce) {
        // Datagrams from user-space sockets are not messages of this host's connection manager.
        if s.is_from_process() {
            count_packets(s, Stat::RpFromProcess, &roce);
        } else {
            pairing::snoop(s, p, &roce);
        }
    }
    count_ingress(s, p, class);
    TcVerdict::Pass
}

/// Parameters and classified packet, or the reason to pass it.
///
/// The reason is the counter of its class, already incremented if the packet is new, or `None` without parameters.
#[inline(always)]
fn classified<'p, S: Skb<'p>>(s: &mut S) -> Result<(&'p Params, Roce), Option<Stat>> {
    let stat = match classify_trimmed(s) {
        Ok(roce) if roce.is_trimmed && !s.env().params().is_some_and(|p| is_clone(s, p)) => Stat::Trimmed,
        Ok(roce) => return Ok((s.env().params().ok_or(None)?, hide_offsets(s, roce))),
        Err(stat) => stat,
    };
    // Otherwise this hook has trimmed it.
    if stat != Stat::Trimmed || !s.take_enqueued_again() {
        s.env().count(stat);
    }
    Err(Some(stat))
}

/// Whether the packet is a clone that will become a CNP.
#[inline(always)]
fn is_clone<'p, S: Skb<'p>>(s: &S, p: &Params) -> bool {
    // The bit of fast CNPs does not matter.
    (s.mark() | np::FAST) == (p.port.cnp_mark | np::FAST)
}

/// Hides the parsed offsets from the verifier.
///
/// The verifier would otherwise explore the rest of the program once per VLAN depth and IP version.
#[inline(always)]
fn hide_offsets<'p, H: Host<'p>>(h: &mut H, roce: Roce) -> Roce {
    /// Above every possible offset of the IP header.
    const V6: u32 = 32;
    let offset = h.env().opaque(roce.l3 as u32 + roce.v6 as u32 * V6);
    let (vlan, packets) = (h.env().opaque(roce.vlan), h.env().opaque(roce.packets));
    Roce { l3: (offset % V6) as usize, v6: offset & V6 != 0, vlan, packets, ..roce }
}

/// As [`hide_offsets`], for all fields but `class` and `is_trimmed`.
#[inline(always)]
fn hide_all<'p, H: Host<'p>>(h: &mut H, roce: Roce) -> Roce {
    let roce = hide_offsets(h, roce);
    // A QPN and the end of a packet use 24 bits at most.
    let qpn_tos = h.env().opaque(roce.dest_qpn << 8 | u32::from(roce.tos));
    let end_opcode = h.env().opaque((roce.end as u32) << 8 | u32::from(roce.opcode.0));
    let (opcode, end) = (Opcode(end_opcode as u8), (end_opcode >> 8) as usize);
    Roce { opcode, dest_qpn: qpn_tos >> 8, tos: qpn_tos as u8, end, ..roce }
}

/// Sets ECT(0) (`ect_enable`) and the DSCP (`roce_dscp`) of a packet of this host; returns the changed packet.
#[inline(always)]
fn with_own_tos<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: Roce) -> Roce {
    if !p.hot.is_on(Switch::OwnTos) || roce.is_cnp() || s.ingress_ifindex() != 0 {
        return roce;
    }
    let lacks_ect = roce.ecn() == Ecn::NOT_ECT && roce.congests() && p.hot.is_on(Switch::Ect);
    let ecn = if lacks_ect { Ecn::ECT0 } else { roce.ecn() };
    let dscp = if u64::from(p.hot.roce_dscp) < DSCP_UNCHANGED { p.hot.roce_dscp } else { roce.dscp() as u8 };
    let tos = tos(dscp, ecn);
    if tos == roce.tos {
        return roce;
    }
    if !set_tos(s, &roce, tos) {
        s.env().count(Stat::WriteFailed);
        return roce;
    }
    count_packets(s, Stat::TosSet, &roce);
    Roce { tos, ..roce }
}

/// Counts the packets on the wire that the buffer becomes.
#[inline(always)]
fn count_packets<'p, H: Host<'p>>(h: &mut H, stat: Stat, roce: &Roce) {
    h.env().count_many(stat, roce.packets.into());
}

#[inline(always)]
fn count_kind<'p, H: Host<'p>>(h: &mut H, roce: &Roce) {
    let kind = if roce.congests() {
        Stat::RoceData
    } else if roce.is_cnp() {
        Stat::RoceCnp
    } else {
        Stat::RoceControl
    };
    count_packets(h, kind, roce);
    if roce.packets > 1 {
        h.env().count(Stat::GsoPackets);
    }
}

#[inline(always)]
fn class_of(p: &Params, dscp: usize) -> DscpClass {
    p.classes[dscp % DSCPS]
}

#[inline(always)]
fn set_class<'p, S: Skb<'p>>(s: &mut S, p: &Params, class: DscpClass) {
    if !class.is_sorted() {
        return;
    }
    let tc = class.tc();
    let priority = p.priority[tc];
    if priority != 0 {
        s.set_priority(priority);
    }
}

/// Counts a packet that enters its queue against the port it came from, for the PFC frames of that port.
#[inline(always)]
fn count_ingress<'p, S: Skb<'p>>(s: &mut S, p: &Params, class: DscpClass) {
    let tc = class.tc();
    if class.is_sorted() && p.pauses.counted[tc] != 0 {
        let (from, bytes) = (s.ingress_ifindex(), s.charged_bytes().into());
        let queue = p.config.tc_to_queue[tc] as usize % CLASSES;
        s.env().count_ingress(from, queue, bytes);
    }
}

/// Assigns a packet that is not RoCE, or not parsed, to the class of its DSCP if the port has queues.
#[inline(always)]
fn set_class_of_other<'p, S: Skb<'p>>(s: &mut S, stat: Option<Stat>) {
    // The headers of packets that were trimmed before must overtake data with the user's own qdisc, too.
    let is_trimmed = stat == Some(Stat::Trimmed);
    if !is_trimmed && !s.env().classifies_all() {
        return;
    }
    let Some(p) = s.env().params() else { return };
    if is_trimmed || p.classifies_all() {
        if is_link_control(s, stat) {
            s.set_priority(p.hot.control_priority);
            return;
        }
        let dscp = dscp(s).unwrap_or(0);
        let class = class_of(p, dscp);
        set_class(s, p, class);
        count_ingress(s, p, class);
    }
}

/// `TC_PRIO_CONTROL` and `TC_PRIO_MAX` of the kernel's include/uapi/linux/pkt_sched.h.
const TC_PRIO_CONTROL: u32 = 7;
const TC_PRIO_MAX: u32 = 15;

/// Whether a frame keeps the link running and must not queue behind data.
///
/// These are PFC, LACP, STP, ARP, and `TC_PRIO_CONTROL`. Only locally generated frames qualify: a neighbour
/// must not reach a strict queue by imitating one.
#[inline(always)]
fn is_link_control<'p, S: Skb<'p>>(s: &S, stat: Option<Stat>) -> bool {
    if s.ingress_ifindex() != 0 {
        return false;
    }
    let is_control = |ethertype: EtherType| {
        ethertype.is_length() || ethertype == EtherType::SLOW || ethertype == EtherType::ARP
    };
    stat == Some(Stat::MacControl)
        || s.priority() & TC_PRIO_MAX == TC_PRIO_CONTROL && s.priority() <= TC_PRIO_MAX
        || s.header(0).is_some_and(|eth| is_control(Ethernet::new(eth).ethertype()))
}

/// Logs an event, if the event log is enabled.
#[inline(always)]
pub(crate) fn record<'p, H: Host<'p>>(h: &mut H, p: &Params, kind: EventKind, id: QpId, values: [u64; 2]) {
    if p.hot.event_interval_ns != 0 {
        let at_ns = h.env().now_ns();
        h.env().record(
            p.hot.event_interval_ns.into(),
            Event { at_ns, left_out: 0, id, kind: kind as u32, values },
        );
    }
}

/// Admits one more event under a rate limit and charges it; false if the limit is reached.
#[inline(always)]
pub(crate) fn within<'p, H: Host<'p>>(h: &mut H, which: Time, limit: &Limit) -> bool {
    if limit.gap_ns == 0 {
        return true;
    }
    let now_ns = h.env().now_ns();
    let used_up_to_ns = h.env().time(which);
    match limit.admit(used_up_to_ns, now_ns) {
        Some(used_up_to_ns) => {
            h.env().set_time(which, used_up_to_ns);
            true
        }
        None => false,
    }
}
