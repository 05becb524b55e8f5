//! What each hook does with a packet: the three points of DCQCN, put together from the pure parts.
//!
//! The programs in the kernel and the reference engine both run these functions; they differ only in how they implement
//! [`Env`], [`Host`] and [`Skb`], that is in where packets, maps, time and randomness come from.

use crate::classify::{Frame, Roce, classify, dscp};
use crate::events::{Event, EventKind, Table};
use crate::flow::{FlowId, Glance, QpId, set_index};
use crate::layout::{
    BACKLOG_AGE_NS, Backlog, CLASSES, ClassCounters, Cut, NpFlow, NpSet, Pair, PairSource, RpFlow, RpSet,
    Time, WAYS,
};
use crate::limit::Limit;
use crate::pacing::Departure;
use crate::pairing;
use crate::params::{
    CNP_LIMIT_PEER, CNP_LIMIT_QP, NP_WINDOW_START, PACER_FQ, PACER_HTB, Params, QUEUE_SOURCE_BACKLOG,
    QUEUES_NONE,
};
use crate::stats::Stat;
use crate::vqueue::{Enqueued, Share};
use crate::wire::cnp::{self, Cnp, CnpRepr};
use crate::wire::ecn::{self, Ecn};
use crate::wire::eth::Ethernet;
use crate::wire::ipv4::{self, Ipv4};
use crate::wire::ipv6::{self, Ipv6};
use crate::wire::udp::Udp;

/// Maps, clock and random source of a hook. `'p` is how long parameters live.
pub trait Env<'p> {
    /// The parameters in force; `None` before the first were written. Asked once for each packet, so that it sees no two.
    fn params(&self) -> Option<&'p Params>;
    /// The same, where the port is one of two in line; `None` elsewhere. For XDP.
    fn inline(&self) -> Option<&'p Params>;
    /// Monotonic time, the same for the whole packet; first read before any lock is taken.
    fn now_ns(&mut self) -> u64;
    /// A uniform random number.
    fn random_u32(&mut self) -> u32;
    /// The same number, as one that the verifier knows nothing of.
    fn opaque(&mut self, value: u32) -> u32;
    /// Counts one.
    fn count(&mut self, stat: Stat);
    /// The counters of a traffic class, below [`CLASSES`].
    fn class(&mut self, tc: usize) -> Option<&mut ClassCounters>;
    /// Updates a virtual queue, its "empty at" atomically, and this CPU's share of it, and returns the depth `update` saw.
    /// `None`: no such queue.
    fn queue(&mut self, index: u32, update: impl Fn(u64, Share) -> Enqueued) -> Option<u64>;
    /// What really waits in the queue `index`, if the controller ever read it.
    fn backlog(&self, index: u32) -> Option<Backlog>;
    /// Runs `f` on a set of the RP table under its lock; `None` if it is not to be had.
    fn rp_set<R>(&mut self, index: u32, f: impl FnOnce(&mut RpSet) -> R) -> Option<R>;
    /// The flow of this hash in a set of the RP table, as it is seen without the lock.
    fn rp_glance(&self, index: u32, hash: u32) -> Option<Glance>;
    /// Runs `f` on a set of the NP table under its lock.
    fn np_set<R>(&mut self, index: u32, f: impl FnOnce(&mut NpSet) -> R) -> Option<R>;
    /// A time that all CPUs share; 0 before it is set.
    fn time(&self, which: Time) -> u64;
    /// Sets it; of two CPUs' times either may stay.
    fn set_time(&mut self, which: Time, at_ns: u64);
    /// The QPN that the end `id` of a connection in the making named for itself; `id.qpn` is that end's name for the connection
    /// (communication identifier), all 32 bits of it.
    fn named(&self, id: &QpId) -> Option<u32>;
    /// Keeps in mind what QPN an end named.
    fn set_named(&mut self, id: &QpId, qpn: u32);
    /// Who is at the other end of `id`, where it is known: by the controller, or else learned.
    fn pair(&self, id: &QpId) -> Option<Pair>;
    /// Learns who is at the other end of `id`, and forgets somebody not asked for lately if there is no room.
    fn learn_pair(&mut self, id: &QpId, pair: Pair);
    /// Forgets what was learned of `id`.
    fn forget_pair(&mut self, id: &QpId);
    /// Tells the HTB pacer, if one listens.
    fn announce(&mut self, cut: Cut);
    /// Enters an event in the log, at most one per `interval_ns` (not 0) of its kind; otherwise counts it as lost.
    fn record(&mut self, interval_ns: u64, event: Event);
}

/// Where a hook runs: its packet and its [`Env`].
pub trait Host<'p>: Frame {
    /// What it has beside the packet.
    type Env: Env<'p>;
    /// What it has beside the packet.
    fn env(&mut self) -> &mut Self::Env;
    /// The interface the packet came in on; 0 = this host made it.
    fn ingress_ifindex(&self) -> u32;
    /// Overwrites `N` bytes at `at`; false if the kernel refuses.
    fn write<const N: usize>(&mut self, at: usize, bytes: &[u8; N]) -> bool;
}

/// What a TC hook has beyond that: the socket buffer.
pub trait Skb<'p>: Host<'p> {
    /// `skb->mark`.
    fn mark(&self) -> u32;
    /// Sets `skb->mark`.
    fn set_mark(&mut self, mark: u32);
    /// Sets `skb->priority`.
    fn set_priority(&mut self, priority: u32);
    /// The earliest departure time it has, of whatever clock; 0 = none.
    fn departure(&self) -> u64;
    /// Sets the earliest departure time.
    fn set_departure(&mut self, departure_ns: u64);
    /// Sets `skb->hash`, by which fq tells flows of one socket apart.
    fn set_hash(&mut self, hash: u32);
    /// Whether a process sent it through a datagram socket of its own. Soft-RoCE's sockets are the kernel's, and are bound to no
    /// port.
    fn is_from_process(&self) -> bool;
    /// Whether its destination MAC address is neither that of the interface it came in on nor a group's.
    fn is_for_other_host(&self) -> bool;
    /// Sends a copy with this `skb->mark` out of the hook's own interface, through its egress hook.
    fn clone_out(&mut self, mark: u32) -> bool;
    /// Replaces everything from `at` on by `N` bytes, at most [`MAX_REBUILT`]. They are built first, while the packet is as it was,
    /// and not in the program's own 512 bytes; false if that or the kernel refuses.
    fn rebuild<const N: usize>(&mut self, at: usize, build: impl FnOnce(&Self, &mut [u8; N]) -> bool)
    -> bool;
    /// Sets the priority of the VLAN tag that the kernel keeps beside the packet, if there is one.
    fn set_tag_priority(&mut self, pcp: u8);
}

/// What the XDP hook decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpVerdict {
    /// On to the host.
    Pass,
    /// Gone.
    Drop,
    /// Out of this interface.
    Redirect(u32),
}

/// What the TC hooks decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcVerdict {
    /// On its way.
    Pass,
    /// Gone.
    Drop,
    /// Out of this interface, layer 2 as it stands.
    Redirect(u32),
    /// Out of this interface, to the neighbour the routes say.
    RedirectNeigh(u32),
}

/// Lowest bit of the private mark: the clone was made by a congestion point (fast CNP), not by the receiver's NP.
const FAST: u32 = 1;
/// First class of the HTB pacer that belongs to a QP; those below are fixed.
pub const HTB_FIRST_FLOW: u32 = 0x100;
/// Most bytes [`Skb::rebuild`] is asked for.
pub const MAX_REBUILT: usize = cnp::V6_LEN;
/// TTL and hop limit of CNPs.
pub const CNP_TTL: u8 = 64;

/// XDP, ingress: feeds CNPs to the rate machines of this host; inline, marks and forwards everything.
#[inline(always)]
pub fn xdp<'p, H: Host<'p>>(h: &mut H) -> XdpVerdict {
    match classify(h) {
        Err(stat) => h.env().count(stat),
        Ok(roce) => {
            let roce = settled(h, roce);
            count_kind(h, &roce);
            let Some(p) = h.env().params() else {
                return XdpVerdict::Pass;
            };
            if h.env().inline().is_some() {
                let marking = p.config.scalars.cp_enable != 0;
                let port = way_out(h, p) as u32;
                if marking && congestion_point(h, p, &roce, port) == Marking::Drop {
                    return XdpVerdict::Drop;
                }
            } else if roce.is_cnp() && p.config.scalars.rp_enable != 0 {
                let handled = on_cnp(h, p, &roce);
                if handled && p.config.scalars.cnp_consume != 0 {
                    return XdpVerdict::Drop;
                }
            }
            if pairing::is_management(&roce) {
                pairing::snoop(h, p, &roce);
            }
        }
    }
    // Asked anew: what was asked before the verifier may have forgotten. The ports never change.
    if let Some(p) = h.env().inline() {
        h.env().count(Stat::InlineForwarded);
        return XdpVerdict::Redirect(p.port.ifindex[way_out(h, p)]);
    }
    XdpVerdict::Pass
}

/// Which of two ports in line a packet leaves by.
#[inline(always)]
fn way_out<'p, H: Host<'p>>(h: &H, p: &Params) -> usize {
    (h.ingress_ifindex() == p.port.ifindex[0]) as usize
}

/// TC, ingress: the notification point. A CE-marked data packet, or the first one after a window with marks, makes the hook
/// send a marked copy to the own egress, where it becomes the CNP; the packet itself always passes.
#[inline(always)]
pub fn ingress<'p, S: Skb<'p>>(s: &mut S) -> TcVerdict {
    let Some((p, roce)) = look(s) else {
        return TcVerdict::Pass;
    };
    count_kind(s, &roce);
    if p.config.scalars.np_enable != 0 && roce.congests() {
        let is_marked = roce.ecn().is_ce();
        if is_marked {
            s.env().count(Stat::NpEcnMarked);
        }
        if is_marked || may_be_pending(s, p) {
            if is_answerable(s, p) {
                notify(s, p, &roce, is_marked, 0);
            } else if is_marked {
                s.env().count(Stat::NpNotForHost);
            }
        }
    }
    TcVerdict::Pass
}

/// Whether this host may answer in the name of the one the packet is for: its addresses become the CNP's own. Never for a
/// group; for another host where that is asked for.
#[inline(always)]
fn is_answerable<'p, S: Skb<'p>>(s: &S, p: &Params) -> bool {
    let is_for_group = s.header::<1>(0).is_none_or(|[first]| first & 1 != 0);
    !is_for_group && (p.config.scalars.np_other_host != 0 || !s.is_for_other_host())
}

/// How long a mark that is pending waits for a packet of its flow. What comes later finds another congestion.
const PENDING_NS: u64 = 1_000_000_000;

/// Whether an unmarked packet is worth a look for a mark before it that is pending: one has been, of whatever flow, lately.
#[inline(always)]
fn may_be_pending<'p, S: Skb<'p>>(s: &mut S, p: &Params) -> bool {
    let pending_ns = s.env().time(Time::NpPending);
    if pending_ns == 0 || p.config.scalars.np_window == NP_WINDOW_START {
        return false;
    }
    let is_recent = s.env().now_ns().saturating_sub(pending_ns) < PENDING_NS;
    if !is_recent {
        // So that the clock is not read for every packet from now on.
        s.env().set_time(Time::NpPending, 0);
    }
    is_recent
}

/// TC, egress: a marked clone becomes the CNP; other RoCE is classified, marked (CP) and paced (RP).
#[inline(always)]
pub fn egress<'p, S: Skb<'p>>(s: &mut S) -> TcVerdict {
    let Some((p, roce)) = look(s) else {
        set_class_of_other(s);
        return TcVerdict::Pass;
    };
    if s.mark() | FAST == p.port.cnp_mark | FAST && roce.congests() {
        return become_cnp(s, p, &roce);
    }
    count_kind(s, &roce);
    set_class(s, p, roce.dscp());
    if p.config.scalars.cp_enable != 0 {
        match congestion_point(s, p, &roce, 0) {
            Marking::Drop => return TcVerdict::Drop,
            // A packet this host made itself has no port to go back to: its sender is told by its own stack.
            Marking::Marked if p.config.scalars.fast_cnp != 0 && s.ingress_ifindex() != 0 => {
                if roce.congests() {
                    notify(s, p, &roce, true, FAST);
                }
            }
            Marking::Marked | Marking::Unmarked => {}
        }
    }
    if p.config.scalars.rp_enable != 0 && roce.is_sequenced() {
        return pace(s, p, &roce);
    }
    if pairing::is_management(&roce) {
        pairing::snoop(s, p, &roce);
    }
    TcVerdict::Pass
}

/// The parameters and the packet, if it is one to do something about; else counts why not.
#[inline(always)]
fn look<'p, S: Skb<'p>>(s: &mut S) -> Option<(&'p Params, Roce)> {
    match classify(s) {
        Ok(roce) => Some((s.env().params()?, settled(s, roce))),
        Err(stat) => {
            s.env().count(stat);
            None
        }
    }
}

/// The same packet, without what the verifier knows of the way that led to it: it would follow all that comes once for each
/// depth of tags and version of IP.
#[inline(always)]
fn settled<'p, H: Host<'p>>(h: &mut H, roce: Roce) -> Roce {
    /// Larger than any offset of an IP header.
    const V6: u32 = 32;
    let way = h.env().opaque(roce.l3 as u32 + roce.v6 as u32 * V6);
    Roce { l3: (way % V6) as usize, v6: way & V6 != 0, ..roce }
}

#[inline(always)]
fn count_kind<'p, H: Host<'p>>(h: &mut H, roce: &Roce) {
    h.env().count(if roce.congests() {
        Stat::RoceData
    } else if roce.is_cnp() {
        Stat::RoceCnp
    } else {
        Stat::RoceControl
    });
}

/// The traffic class of a DSCP, below [`CLASSES`].
#[inline(always)]
fn class_of(p: &Params, dscp: usize) -> usize {
    p.config.dscp_to_tc[dscp % p.config.dscp_to_tc.len()] as usize % CLASSES
}

#[inline(always)]
fn set_class<'p, S: Skb<'p>>(s: &mut S, p: &Params, dscp: usize) {
    let priority = p.priority[class_of(p, dscp)];
    if priority != 0 {
        s.set_priority(priority);
    }
}

/// Puts a packet that is not RoCE, or not looked into, where its DSCP belongs, if the port has queues.
#[inline(always)]
fn set_class_of_other<'p, S: Skb<'p>>(s: &mut S) {
    let Some(p) = s.env().params() else {
        return;
    };
    if p.config.scalars.queues != QUEUES_NONE {
        set_class(s, p, dscp(s).unwrap_or(0));
    }
}

/// What the congestion point did.
#[derive(PartialEq, Eq)]
enum Marking {
    Unmarked,
    Marked,
    Drop,
}

/// CP: puts the packet into its class's virtual queue and marks it by the depth it met.
#[inline(always)]
fn congestion_point<'p, H: Host<'p>>(h: &mut H, p: &Params, roce: &Roce, port: u32) -> Marking {
    // First of all, because reading the clock waits for all before it, and nothing for it.
    let now_ns = h.env().now_ns();
    let tc = class_of(p, roce.dscp());
    let ecn = roce.ecn();
    let frame_bytes = h.frame_len() as u64;
    if let Some(class) = h.env().class(tc) {
        class.packets += 1;
        class.bytes += frame_bytes;
        class.ect_packets += (ecn != Ecn::NOT_ECT) as u64;
    }
    let wire_bytes = frame_bytes + p.config.scalars.wire_overhead_bytes;
    let drain = &p.drain[tc];
    let enqueue = |shared, share| drain.enqueue(shared, share, now_ns, wire_bytes);
    let queue = port * CLASSES as u32 + tc as u32;
    let Some(mut depth_bytes) = h.env().queue(queue, enqueue) else {
        return Marking::Unmarked;
    };
    if p.config.scalars.queue_source == QUEUE_SOURCE_BACKLOG {
        match h.env().backlog(queue) {
            Some(backlog) if now_ns.saturating_sub(backlog.read_at_ns) < BACKLOG_AGE_NS => {
                depth_bytes = backlog.bytes;
            }
            _ => h.env().count(Stat::CpBacklogStale),
        }
    }
    if roce.is_cnp() {
        return Marking::Unmarked;
    }
    let wred = &p.wred[tc];
    let chosen = match wred.certain(depth_bytes) {
        Some(chosen) => chosen,
        None => wred.draw(depth_bytes, h.env().random_u32()),
    };
    if !chosen || ecn.is_ce() {
        return Marking::Unmarked;
    }
    if ecn.is_ect() {
        if !mark_ce(h, roce) {
            h.env().count(Stat::WriteFailed);
            return Marking::Unmarked;
        }
        h.env().count(Stat::CpEcnMarked);
        if let Some(class) = h.env().class(tc) {
            class.ecn_marked_packets += 1;
        }
        return Marking::Marked;
    }
    h.env().count(Stat::CpNotEct);
    if p.config.scalars.drop_not_ect != 0 && depth_bytes > wred.kmax_bytes {
        h.env().count(Stat::CpNotEctDropped);
        return Marking::Drop;
    }
    Marking::Unmarked
}

/// Sets CE; IPv4 needs its checksum updated. The ICRC covers neither.
#[inline(always)]
fn mark_ce<'p, H: Host<'p>>(h: &mut H, roce: &Roce) -> bool {
    let Some(&[first, second]) = h.header(roce.l3) else {
        return false;
    };
    if roce.v6 {
        return h.write(roce.l3 + 1, &[ipv6::set_ecn_octet(second, Ecn::CE)]);
    }
    let Some(&checksum) = h.header(roce.l3 + ipv4::CHECKSUM_AT) else {
        return false;
    };
    let marked = Ecn::CE.apply(second);
    let checksum = ipv4::checksum_update16(
        u16::from_be_bytes(checksum),
        u16::from_be_bytes([first, second]),
        u16::from_be_bytes([first, marked]),
    );
    h.write(roce.l3 + 1, &[marked]) && h.write(roce.l3 + ipv4::CHECKSUM_AT, &checksum.to_be_bytes())
}

/// NP: asks the CNP limiter and, if it agrees, sends the clone that will become the CNP. An unmarked packet only stands for
/// marks before it.
#[inline(always)]
fn notify<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce, is_marked: bool, kind: u32) {
    let now_ns = s.env().now_ns();
    let Some(id) = np_flow_id(s, p.config.scalars.cnp_limit, roce) else {
        return;
    };
    let hash = id.hash(p.port.hash_seed);
    let interval_ns = p.config.scalars.min_time_between_cnps_ns;
    let answer = s.env().np_set(
        set_index(hash, p.port.np_set_mask),
        #[inline(always)]
        |set| {
            let mut silent_since_ns = 0;
            if set.find(&id, hash).missing {
                if !is_marked {
                    return (false, 0);
                }
                silent_since_ns = set.victim_last_seen_ns();
                set.insert(hash, NpFlow::new(id));
            }
            let flow = &mut set.ways[set.place().way];
            let answered = if is_marked {
                flow.on_ecn_marked(now_ns, interval_ns)
            } else {
                flow.on_window_end(now_ns, interval_ns)
            };
            (answered, silent_since_ns)
        },
    );
    let (answered, silent_since_ns) = answer.unwrap_or((false, 0));
    if silent_since_ns != 0 {
        s.env().count(Stat::NpFlowEvicted);
        let silent_ns = now_ns.saturating_sub(silent_since_ns);
        record(s, p, EventKind::TableFull, id.receiver, [silent_ns, Table::Np as u64]);
    }
    if answered {
        if !within(s, Time::Cnps, &p.cnps) {
            s.env().count(Stat::NpCnpLimited);
            return;
        }
        if !is_marked {
            s.env().count(Stat::NpCnpWindowEnd);
        }
        if !s.clone_out(p.port.cnp_mark | kind) {
            s.env().count(Stat::NpCnpFailed);
        }
    } else if is_marked {
        s.env().count(Stat::NpCnpSuppressed);
        s.env().set_time(Time::NpPending, now_ns.max(1));
    }
}

/// Whether one more is within a limit, which then has one less to give.
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

/// Whom the NP keeps a data packet's CNP interval for, under a `cnp_limit`.
#[inline(always)]
#[must_use]
pub fn np_flow_id<F: Frame>(frame: &F, cnp_limit: u64, roce: &Roce) -> Option<FlowId> {
    let id = roce.flow(frame)?;
    Some(match cnp_limit {
        // A datagram QP hears many senders: there the QP is the sender's.
        CNP_LIMIT_QP => match roce.source_qpn(frame) {
            Some(qpn) => FlowId { src: id.receiver.addr, receiver: QpId { addr: id.src, qpn } },
            None => id,
        },
        CNP_LIMIT_PEER => FlowId { src: id.src, receiver: QpId::NONE },
        _ => FlowId::NONE,
    })
}

/// Turns a clone of a CE-marked data packet into the CNP that answers it.
#[inline(always)]
fn become_cnp<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce) -> TcVerdict {
    let fast = s.mark() & FAST != 0;
    s.set_mark(0);
    // The clone is the project's own: if it cannot become a CNP it must not travel as a second data packet.
    if !rewrite_as_cnp(s, p, roce) {
        s.env().count(Stat::NpCnpFailed);
        return TcVerdict::Drop;
    }
    s.env().count(Stat::NpCnpSent);
    set_class(s, p, p.config.scalars.cnp_dscp as usize);
    if !fast {
        return TcVerdict::Pass;
    }
    // Back to where the data came from. A routed packet carries the port's own MAC address by now, so that its sender's
    // is no longer known; a bridged one still carries both.
    let Some(mac) = s.header::<6>(0) else {
        return TcVerdict::Drop;
    };
    if *mac == p.port.mac {
        TcVerdict::RedirectNeigh(s.ingress_ifindex())
    } else {
        TcVerdict::Redirect(s.ingress_ifindex())
    }
}

#[inline(always)]
fn rewrite_as_cnp<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce) -> bool {
    let Some(receiver) = roce.receiver(s) else {
        return false;
    };
    let known = match roce.source_qpn(s) {
        Some(qpn) => Some(qpn),
        None => s.env().pair(&receiver).map(|pair| pair.qpn),
    };
    let (dest_qpn, hint) = match known {
        Some(qpn) => (qpn, cnp::NO_HINT),
        None => (0, roce.dest_qpn),
    };
    if known.is_none() {
        s.env().count(Stat::NpCnpHinted);
    }
    let Some(udp) = s.header(roce.udp()) else {
        return false;
    };
    let udp_sport = Udp::new(udp).src_port();
    let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5]) = s.header(0) else {
        return false;
    };
    let repr = CnpRepr {
        udp_sport,
        dest_qpn,
        hint,
        tos: ecn::tos(p.config.scalars.cnp_dscp as u8, Ecn::NOT_ECT),
        ttl: CNP_TTL,
    };
    let pcp = p.config.scalars.cnp_802p_prio as u8;
    s.set_tag_priority(pcp);
    if roce.l3 > Ethernet::LEN {
        let Some(&[tci]) = s.header(Ethernet::LEN) else {
            return false;
        };
        if !s.write(Ethernet::LEN, &[(tci & 0x1f) | (pcp << 5)]) {
            return false;
        }
    }
    let l3 = roce.l3;
    let is_rebuilt = if roce.v6 {
        s.rebuild(
            l3,
            #[inline(always)]
            |s, packet: &mut [u8; cnp::V6_LEN]| {
                let Some(ip) = s.header(l3) else {
                    return false;
                };
                let ip = Ipv6::new(ip);
                cnp::emit_v6(packet, ip.dst(), ip.src(), &repr);
                true
            },
        )
    } else {
        s.rebuild(
            l3,
            #[inline(always)]
            |s, packet: &mut [u8; cnp::V4_LEN]| {
                let Some(ip) = s.header(l3) else {
                    return false;
                };
                let ip = Ipv4::new(ip);
                cnp::emit_v4(packet, ip.dst(), ip.src(), &repr);
                true
            },
        )
    };
    if !is_rebuilt {
        return false;
    }
    s.write(0, &[s0, s1, s2, s3, s4, s5, d0, d1, d2, d3, d4, d5])
}

/// RP: what a CNP for one of this host's QPs does to its rate. True if it was a valid CNP for a known flow.
#[inline(always)]
fn on_cnp<'p, H: Host<'p>>(h: &mut H, p: &Params, roce: &Roce) -> bool {
    let outcome = cut(h, p, roce);
    h.env().count(outcome);
    if outcome != Stat::RpCnpHandled {
        h.env().count(Stat::RpCnpIgnored);
    }
    matches!(outcome, Stat::RpCnpHandled | Stat::RpCnpTooSoon)
}

#[inline(always)]
fn cut<'p, H: Host<'p>>(h: &mut H, p: &Params, roce: &Roce) -> Stat {
    let Some(cnp) = read_cnp(h, roce) else {
        return Stat::RpCnpInvalid;
    };
    let Some((peer, own)) = roce.addresses(h) else {
        return Stat::RpCnpInvalid;
    };
    let qpn = if cnp.hint == cnp::NO_HINT {
        h.env().pair(&QpId { addr: own, qpn: cnp.dest_qpn }).map(|pair| pair.qpn)
    } else {
        Some(cnp.hint)
    };
    let Some(qpn) = qpn else {
        return Stat::RpCnpUnknownFlow;
    };
    let id = FlowId { src: own, receiver: QpId { addr: peer, qpn } };
    let hash = id.hash(p.port.hash_seed);
    let now_ns = h.env().now_ns();
    let rp = &p.rp;
    let index = set_index(hash, p.port.rp_set_mask);
    let outcome = h.env().rp_set(
        index,
        #[inline(always)]
        |set| {
            if !set.find_known(&id, hash) {
                return (Stat::RpCnpUnknownFlow, 0, [0; 2]);
            }
            let way = set.place().way;
            let flow = &mut set.ways[way];
            if flow.on_cnp(rp, now_ns, &mut set.debt) {
                (Stat::RpCnpHandled, way, flow.rates())
            } else {
                (Stat::RpCnpTooSoon, way, [0; 2])
            }
        },
    );
    match outcome {
        Some((Stat::RpCnpHandled, way, rates)) => {
            // The controller keeps the classes; fq needs nobody.
            if p.config.scalars.pacer == PACER_HTB {
                h.env().announce(Cut { set: index, way: way as u32 });
            }
            record(h, p, EventKind::RateCut, id.receiver, rates);
            Stat::RpCnpHandled
        }
        Some((refusal, ..)) => refusal,
        None => Stat::RpCnpUnknownFlow,
    }
}

/// Enters an event in the log, if there is to be one.
#[inline(always)]
pub(crate) fn record<'p, H: Host<'p>>(h: &mut H, p: &Params, kind: EventKind, id: QpId, values: [u64; 2]) {
    if p.event_interval_ns != 0 {
        let at_ns = h.env().now_ns();
        h.env().record(p.event_interval_ns, Event { at_ns, left_out: 0, id, kind: kind as u32, values });
    }
}

/// The CNP, if it is one to the last bit (ICRC included).
#[inline(always)]
fn read_cnp<F: Frame>(frame: &F, roce: &Roce) -> Option<Cnp> {
    if roce.v6 { cnp::parse_v6(frame.header(roce.l3)?) } else { cnp::parse_v4(frame.header(roce.l3)?) }
}

/// What the RP table says of a packet.
#[derive(Clone, Copy)]
struct Turn {
    /// When it leaves.
    departure_ns: u64,
    /// How its flow stands in the table: bits below, and the number of its way. In one word, as a program has 512 bytes for
    /// all its variables.
    standing: u32,
    /// When the flow that was pushed out had sent last.
    silent_since_ns: u64,
}

/// [`Turn::standing`]: the number of the flow's way.
const WAY: u32 = WAYS as u32 - 1;
/// [`Turn::standing`]: the flow was cut, and so has a class of its own in HTB.
const CUT: u32 = 1 << 8;
/// [`Turn::standing`]: it is new.
const NEW: u32 = 1 << 9;
/// [`Turn::standing`]: it has the place of another.
const EVICTS: u32 = 1 << 10;
/// [`Turn::standing`]: it is not in the table, and gets no place: it has no data, or others need theirs.
const ABSENT: u32 = 1 << 11;
/// [`Turn::standing`]: its turn is beyond the pacing horizon.
const BEYOND: u32 = 1 << 12;

/// RP: counts a packet with data on its flow's rate machine and has it leave no sooner than the rate allows; has one without
/// leave no sooner than those ahead of it.
#[inline(always)]
fn pace<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce) -> TcVerdict {
    let rp = &p.rp;
    let scalars = &p.config.scalars;
    if rp.line_rate_bps == 0 {
        return TcVerdict::Pass;
    }
    // Whatever queue pair it names, it is none's.
    if s.is_from_process() {
        s.env().count(Stat::RpFromProcess);
        return TcVerdict::Pass;
    }
    let now_ns = s.env().now_ns();
    let Some(id) = roce.flow(s) else {
        return TcVerdict::Pass;
    };
    // A datagram names both its ends: a CNP will name the sender's QPN only. Several QPs here may send to one there.
    if let Some(qpn) = roce.source_qpn(s) {
        let own = QpId { addr: id.src, qpn };
        if s.env().pair(&own).is_none() {
            let QpId { addr, qpn } = id.receiver;
            pairing::enter(s, p, &own, Pair { qpn, source: PairSource::Datagram as u32, addr });
        }
    }
    let hash = id.hash(p.port.hash_seed);
    let index = set_index(hash, p.port.rp_set_mask);
    let frame_bytes = s.frame_len() as u64;
    let congests = roce.congests();
    let turn = s.env().rp_set(
        index,
        #[inline(always)]
        |set| {
            let found = set.find(&id, hash);
            // Means something where a flow is pushed out. Always read: the verifier would follow all that comes for a 0 too.
            let silent_since_ns = set.victim_last_seen_ns();
            if found.missing {
                // Whoever has packets waiting, or a rate to remember, keeps its place.
                if !congests || set.victim_in_use_until_ns() > now_ns {
                    return Turn { departure_ns: now_ns, standing: ABSENT, silent_since_ns };
                }
                set.insert(hash, RpFlow::new(id, rp));
            }
            let way = set.place().way;
            let flow = &mut set.ways[way];
            let (departure_ns, beyond) = if congests {
                // The stream last: the verifier would follow the machine once for each.
                match flow.on_send(p, now_ns, frame_bytes, &mut set.debt) {
                    Departure::At(departure_ns) => {
                        flow.leaves(roce.class.stream(), departure_ns);
                        (departure_ns, 0)
                    }
                    Departure::BeyondHorizon => {
                        let horizon_ns = now_ns.wrapping_add(scalars.pacing_horizon_ns);
                        if scalars.pacing_horizon_drop == 0 {
                            flow.leaves(roce.class.stream(), horizon_ns);
                        }
                        (horizon_ns, BEYOND)
                    }
                }
            } else {
                (flow.in_order(now_ns, roce.class.stream()), 0)
            };
            let cut = if flow.machine.active != 0 { CUT } else { 0 };
            // Only now, and read from the map: the verifier would follow the machine once for each way a flow can stand.
            let place = set.place();
            let new = if place.missing { NEW } else { 0 } | if place.evicts { EVICTS } else { 0 };
            Turn { departure_ns, standing: way as u32 | beyond | cut | new, silent_since_ns }
        },
    );
    let turn = match turn {
        Some(turn) => turn,
        // Another CPU, its virtual machine stopped perhaps, has the set. Sent at once, the packet would overtake those of its
        // flow that wait, and be asked for again with all that follow.
        None => match s.env().rp_glance(index, hash) {
            Some(Glance { way, last_ns, next_ns, active }) => {
                let turn_ns = if congests { next_ns } else { last_ns[roce.class.stream() as usize] };
                let cut = if active { CUT } else { 0 };
                Turn { departure_ns: turn_ns.max(now_ns), standing: way as u32 | cut, silent_since_ns: 0 }
            }
            None => return TcVerdict::Pass,
        },
    };
    if turn.standing & ABSENT != 0 {
        if congests {
            s.env().count(Stat::RpTableFull);
        }
        return TcVerdict::Pass;
    }
    if turn.standing & NEW != 0 {
        s.env().count(Stat::RpFlowNew);
    }
    if turn.standing & EVICTS != 0 {
        s.env().count(Stat::RpFlowEvicted);
        let silent_ns = now_ns.saturating_sub(turn.silent_since_ns);
        record(s, p, EventKind::TableFull, id.receiver, [silent_ns, Table::Rp as u64]);
    }
    let waits = if congests { Stat::RpPaced } else { Stat::RpInOrder };
    if turn.standing & BEYOND != 0 {
        if scalars.pacing_horizon_drop != 0 {
            s.env().count(Stat::RpHorizonDrop);
            record(s, p, EventKind::HorizonDrop, id.receiver, [frame_bytes, 0]);
            return TcVerdict::Drop;
        }
        s.set_hash(hash ^ roce.class.stream() as u32);
        s.set_departure(turn.departure_ns);
        s.env().count(Stat::RpHorizonPass);
        return TcVerdict::Pass;
    }
    match scalars.pacer {
        PACER_FQ => {
            // All of soft-RoCE's packets are one flow to fq, or share a few, and there each waits for the departures of those
            // before it. The two sequences of a queue pair are independent of each other too.
            s.set_hash(hash ^ roce.class.stream() as u32);
            let must_wait = turn.departure_ns > now_ns;
            // Soft-RoCE stamps each packet when it makes it (Linux 6.12 on): fq would have it overtake those before it.
            if must_wait || s.departure() != 0 {
                s.set_departure(turn.departure_ns);
            }
            if must_wait {
                s.env().count(waits);
            }
        }
        // All of the flow goes by its class, which keeps the order by itself.
        PACER_HTB if turn.standing & CUT != 0 => match htb_minor(index, (turn.standing & WAY) as usize) {
            Some(minor) => {
                s.set_priority((p.port.htb_major << 16) | minor);
                s.env().count(waits);
            }
            None => s.env().count(Stat::RpUnpaced),
        },
        _ => {}
    }
    TcVerdict::Pass
}

/// Minor number of the HTB class of the flow in `way` of set `index`; `None` beyond the 16 bits a class has.
#[inline(always)]
#[must_use]
pub fn htb_minor(index: u32, way: usize) -> Option<u32> {
    let minor = index.wrapping_mul(WAYS as u32).wrapping_add(way as u32).wrapping_add(HTB_FIRST_FLOW);
    if minor < 0xffff { Some(minor) } else { None }
}

/// Set and way of the flow whose HTB class has this minor number: the inverse of [`htb_minor`]; `None` for a class of no flow.
#[must_use]
pub fn htb_place(minor: u32) -> Option<(u32, usize)> {
    let flow = minor.checked_sub(HTB_FIRST_FLOW).filter(|_| minor < 0xffff)?;
    Some((flow / WAYS as u32, (flow % WAYS as u32) as usize))
}
