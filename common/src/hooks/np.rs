//! NP (notification point): the CNP limiter, and the rewrite of a cloned data packet as a CNP.

use super::{Cloned, Env, Skb, TcVerdict, class_of, count_packets, record, set_class};
use crate::classify::{Frame, Roce, is_of_one_host};
use crate::events::{EventKind, Table};
use crate::flow::{FlowId, NpFlow, NpPeek, QpId, set_index};
use crate::layout::{Pair, PairSource, Time, WAYS};
use crate::params::{CNP_LIMIT_PEER, CNP_LIMIT_QP, Params, Switch};
use crate::stats::Stat;
use crate::wire::cnp::{self, CnpRepr};
use crate::wire::ecn::{self, Ecn};
use crate::wire::eth::{Ethernet, MacAddr, with_other_local_bit};
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::Ipv6;
use crate::wire::udp::{Udp, UdpRepr};

/// Lowest bit of the private mark: the clone was made by a CP (fast CNP), not by the receiver's NP.
pub(super) const FAST: u32 = 1;

/// Whether both addresses of the packet belong to single hosts.
///
/// Only then can a CNP use them with source and destination swapped.
#[inline(always)]
pub fn is_between_hosts<F: Frame>(frame: &F, roce: &Roce) -> bool {
    // The lowest bit of the first byte marks a group address (IEEE 802.3 §3.2.3), which is never a source.
    let has_hosts = |[dst, .., src]: &[u8; 7]| (dst | src) & 1 == 0;
    frame.header(0).is_some_and(has_hosts)
        && roce.addresses(frame).is_some_and(|(src, dst)| is_of_one_host(src) && is_of_one_host(dst))
}

/// Whether the NP answers ECT packets too, because the daemon has reported recently that this host is congested.
#[inline(always)]
pub(super) fn is_host_congested<'p, S: Skb<'p>>(s: &mut S, p: &Params) -> bool {
    if !p.hot.is_on(Switch::NpHostCongestion) {
        return false;
    }
    let until_ns = s.env().time(Time::HOST_CONGESTED_UNTIL);
    until_ns != 0 && s.env().now_ns() < until_ns
}

/// Answers the marks of a flow: of this packet if `is_marked`, or earlier ones.
///
/// Never for a group address; for another host only with `np_other_host`.
#[inline(always)]
pub(super) fn on_data<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce, is_marked: bool) {
    let Some(id) = np_flow_id(s, p.hot.cnp_limit.into(), roce) else { return };
    let hash = id.hash(&p.port.hash_keys);
    let now_ns = s.env().now_ns();
    let interval_ns = p.hot.min_time_between_cnps_ns.into();
    let state = s.env().np_peek(set_index(hash, p.port.np_set_mask), hash, now_ns, interval_ns);
    // Most unmarked packets end here, without lock and routing table: their flow has no marks, or they are not due.
    if !is_marked && state != NpPeek::Due {
        return;
    }
    // The routing table costs more than everything else, so it is read once per CNP.
    let is_for_host =
        state == NpPeek::Answered || p.hot.is_on(Switch::NpOtherHost) || !s.is_for_other_host(roce);
    if is_between_hosts(s, roce) && is_for_host {
        if is_marked {
            count_rest(s, roce);
        }
        notify(s, p, id, hash, is_marked, 0);
    } else if is_marked {
        count_packets(s, Stat::NpNotForHost, roce);
    }
}

/// Answers a mark of this port's own congestion point.
#[inline(always)]
pub(super) fn on_own_mark<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce) {
    if is_between_hosts(s, roce)
        && let Some(id) = np_flow_id(s, p.hot.cnp_limit.into(), roce)
    {
        count_rest(s, roce);
        let id = s.env().opaque_flow(id);
        notify(s, p, id, id.hash(&p.port.hash_keys), true, FAST);
    }
}

/// Counts all packets of a super-packet but one: it is answered as one.
#[inline(always)]
fn count_rest<'p, S: Skb<'p>>(s: &mut S, roce: &Roce) {
    s.env().count_many(Stat::NpCnpSuppressed, roce.packets.wrapping_sub(1).into());
}

/// Time after the port's last pending mark during which unmarked packets are looked up.
///
/// This only saves lookups: a flow's own mark expires sooner, unless the CNP interval is long.
const PENDING_NS: u64 = 1_000_000_000;

/// Minimum interval between updates of the port's last pending mark, because all CPUs read its cache line.
const PENDING_SLACK_NS: u64 = PENDING_NS / 10;

/// Records that the port has a pending mark.
#[inline(always)]
fn set_pending<'p, S: Skb<'p>>(s: &mut S, now_ns: u64) {
    let pending_ns = s.env().time(Time::NP_PENDING);
    if pending_ns == 0 || now_ns.saturating_sub(pending_ns) >= PENDING_SLACK_NS {
        s.env().set_time(Time::NP_PENDING, now_ns.max(1));
    }
}

/// Whether an unmarked packet needs a lookup, because some flow of the port had a pending mark recently.
#[inline(always)]
pub(super) fn may_be_pending<'p, S: Skb<'p>>(s: &mut S, p: &Params) -> bool {
    let pending_ns = s.env().time(Time::NP_PENDING);
    if pending_ns == 0 || !p.hot.is_on(Switch::NpWindowBoth) {
        return false;
    }
    let mark_ns = NpFlow::mark_lifetime_ns(p.hot.min_time_between_cnps_ns.into()) + PENDING_SLACK_NS;
    let is_recent = s.env().now_ns().saturating_sub(pending_ns) < PENDING_NS.max(mark_ns);
    if !is_recent {
        // Avoids reading the clock for every later packet.
        s.env().set_time(Time::NP_PENDING, 0);
    }
    is_recent
}

/// Results of the CNP limiter other than a time.
const REFUSED: u64 = 0;
const UNLIMITED: u64 = u64::MAX;

/// Time without clones after one that the egress program did not see.
///
/// Such a clone is the data packet with its sender's MAC address as source. A switch that learns it sends the
/// traffic of that host to this port.
const UNSEEN_NS: u64 = 1_000_000_000;

/// Checks the CNP limiter and, if it admits the CNP, sends the clone that becomes it.
///
/// An unmarked packet answers earlier marks of its flow only.
#[inline(always)]
fn notify<'p, S: Skb<'p>>(s: &mut S, p: &Params, id: FlowId, hash: u32, is_marked: bool, kind: u32) {
    let now_ns = s.env().now_ns();
    // Checked before the flow's interval starts: a CNP that is not sent must not consume the interval.
    let cnps_used_up_to_ns = s.env().time(Time::CNPS);
    // One number, as an `Option` needs two slots on the BPF stack.
    let cnps_used_up_to_ns = match p.cnps.gap_ns {
        _ if kind != FAST && now_ns < s.env().time(Time::CLONES_UNSEEN_UNTIL) => REFUSED,
        0 => UNLIMITED,
        _ => p.cnps.admit(cnps_used_up_to_ns, now_ns).unwrap_or(REFUSED),
    };
    let index = set_index(hash, p.port.np_set_mask);
    let answer = s.env().np_set(
        index,
        #[inline(always)]
        |set| {
            let mut silent_since_ns = 0;
            // Read here, as a value read before the lock needs a slot on the BPF stack.
            let interval_ns = p.hot.min_time_between_cnps_ns.into();
            if set.find(&id, hash).missing {
                if !is_marked {
                    return (false, 0, 0, 0);
                }
                // Every flow of the set was answered within this interval: a CNP without an entry would not
                // be the only one.
                let victim = &set.ways[set.selection().way];
                if victim.is_live(now_ns, interval_ns) {
                    return (false, 0, 0, 0);
                }
                silent_since_ns = set.victim_last_seen_ns();
                set.insert(hash, NpFlow::new(id));
            }
            let way = set.selection().way;
            let flow = &mut set.ways[way];
            let last_cnp_ns = flow.last_cnp_ns;
            let answered = if is_marked {
                flow.on_ecn_marked(now_ns, interval_ns)
            } else {
                flow.on_window_end(now_ns, interval_ns)
            };
            if answered && cnps_used_up_to_ns == REFUSED {
                flow.restore_interval(last_cnp_ns);
            }
            (answered, silent_since_ns, way, last_cnp_ns)
        },
    );
    let (answered, silent_since_ns, way, last_cnp_ns) = answer.unwrap_or((false, 0, 0, 0));
    if silent_since_ns != 0 {
        s.env().count(Stat::NpFlowEvicted);
        let silent_ns = now_ns.saturating_sub(silent_since_ns);
        record(s, p, EventKind::TableFull, id.receiver, [silent_ns, Table::Np as u64]);
    }
    if !answered {
        if is_marked {
            s.env().count(Stat::NpCnpSuppressed);
            set_pending(s, now_ns);
        }
        return;
    }
    if cnps_used_up_to_ns == REFUSED {
        s.env().count(Stat::NpCnpLimited);
        set_pending(s, now_ns);
        return;
    }
    if cnps_used_up_to_ns != UNLIMITED {
        s.env().set_time(Time::CNPS, cnps_used_up_to_ns);
    }
    match s.clone_out(p.port.cnp_mark | kind, kind == FAST) {
        Cloned::Sent => {
            if !is_marked {
                s.env().count(Stat::NpCnpWindowEnd);
            }
            return;
        }
        Cloned::Failed => s.env().count(Stat::NpCnpFailed),
        Cloned::Unseen => {
            s.env().set_time(Time::CLONES_UNSEEN_UNTIL, now_ns + UNSEEN_NS);
            s.env().count(Stat::NpCloneUnseen);
        }
    }
    set_pending(s, now_ns);
    s.env().np_set(
        index,
        #[inline(always)]
        |set| {
            let flow = &mut set.ways[way % WAYS];
            // Another CPU may have answered a later mark, or evicted the flow. A successor that was answered
            // in the same nanosecond would get one CNP more.
            if flow.last_cnp_ns == now_ns {
                flow.restore_interval(last_cnp_ns);
            }
        },
    );
}

/// Key of the CNP interval of a data packet, according to `cnp_limit`.
#[inline(always)]
pub fn np_flow_id<F: Frame>(frame: &F, cnp_limit: u64, roce: &Roce) -> Option<FlowId> {
    let id = roce.flow(frame)?;
    Some(match cnp_limit {
        // A datagram QP receives from many senders, so the key is the sender's QP.
        CNP_LIMIT_QP => match roce.source_qpn(frame) {
            Some(qpn) => {
                FlowId { src: id.receiver.addr, receiver: QpId { addr: id.src, qpn, ..id.receiver } }
            }
            None => id,
        },
        CNP_LIMIT_PEER => FlowId { src: id.src, receiver: QpId { vlan: id.receiver.vlan, ..QpId::NONE } },
        _ => FlowId::NONE,
    })
}

/// Turns a clone of a CE-marked data packet into the CNP that answers it.
#[inline(always)]
pub(super) fn become_cnp<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce) -> TcVerdict {
    let fast = s.mark() & FAST != 0;
    s.set_mark(0);
    // If the clone cannot become a CNP it must not leave as a duplicate data packet.
    if !rewrite_as_cnp(s, p, roce, fast) {
        s.env().count(Stat::WriteFailed);
        return TcVerdict::Drop;
    }
    s.env().count(Stat::NpCnpSent);
    // Of a frame without a tag yet, a VLAN device's `egress-qos-map` sets the PCP by this priority.
    s.set_priority(p.hot.cnp_802p_prio.into());
    set_class(s, p, class_of(p, p.hot.cnp_dscp.into()));
    // Bridge or router forward it to the sender as if the receiver had sent it: with VLAN tag, next hop and
    // VRF of that path.
    if fast { TcVerdict::Receive } else { TcVerdict::EnqueueAgain }
}

/// The sender to `receiver`, if the known pair is with the host that sent this packet.
///
/// `receiver`'s QPN may have been reused for a connection whose setup was not seen. The pair then names a
/// QPN of another host.
#[inline(always)]
fn sender_of<'p, S: Skb<'p>>(s: &mut S, roce: &Roce, receiver: &QpId) -> Option<Pair> {
    let pair = s.env().pair(receiver)?;
    let (src, _) = roce.addresses(s)?;
    if pair.addr == [0; 4] || pair.addr == src {
        return Some(pair);
    }
    s.env().count(Stat::PairConflict);
    None
}

/// Source MAC address of a CNP; `receiver` is the destination of the data.
///
/// If the receiver is this host, its own address. Otherwise the data may be a copy that a switch floods: a
/// switch or bridge that learns the receiver's address from the CNP would send its traffic to this port, so
/// the port's address is used. A fast CNP is received on the port, where a bridge does not expect that
/// address: its local bit is inverted.
#[inline(always)]
fn source_mac(p: &Params, receiver: MacAddr, fast: bool) -> MacAddr {
    if p.port.mac == [0; 6] || !fast && !p.hot.is_on(Switch::NpOtherHost) {
        return receiver;
    }
    if fast { with_other_local_bit(p.port.mac) } else { p.port.mac }
}

#[inline(always)]
fn rewrite_as_cnp<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce, fast: bool) -> bool {
    let Some(receiver) = roce.receiver(s) else { return false };
    let sender = match roce.source_qpn(s) {
        Some(qpn) => Some(Pair::new(qpn, PairSource::Datagram)),
        None => sender_of(s, roce, &receiver),
    };
    let (dest_qpn, is_hinted) = match sender {
        // Only this host can read its kernel's QPs: the sender may lack the pair.
        Some(pair) => (pair.qpn, pair.source == PairSource::Rdma as u32),
        None => {
            s.env().count(Stat::NpCnpHinted);
            (0, true)
        }
    };
    let hint = if is_hinted { roce.dest_qpn } else { cnp::NO_HINT };
    // Otherwise the verifier explores the rest once for each source of the pair.
    let (dest_qpn, hint) = (s.env().opaque(dest_qpn), s.env().opaque(hint));
    let Some(udp) = s.header(roce.udp()) else { return false };
    let udp = UdpRepr::parse(Udp::new(udp));
    let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5]) = s.header(0) else { return false };
    let [m0, m1, m2, m3, m4, m5] = source_mac(p, [d0, d1, d2, d3, d4, d5], fast);
    let tos = ecn::tos(p.hot.cnp_dscp, Ecn::NOT_ECT);
    let repr = CnpRepr { udp_sport: udp.src_port, dest_qpn, hint, tos };
    let pcp = p.hot.cnp_802p_prio;
    s.set_tag_priority(pcp);
    if roce.l3 > Ethernet::LEN {
        let Some(&[tci]) = s.header(Ethernet::LEN) else { return false };
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
                let Some(ip) = s.header(l3) else { return false };
                let ip = Ipv6::new(ip);
                cnp::emit_v6(packet, ip.dst(), ip.src(), &repr);
                cnp::set_checksum_v6(packet, &udp);
                true
            },
        )
    } else {
        s.rebuild(
            l3,
            #[inline(always)]
            |s, packet: &mut [u8; cnp::V4_LEN]| {
                let Some(ip) = s.header(l3) else { return false };
                let ip = Ipv4::new(ip);
                cnp::emit_v4(packet, ip.dst(), ip.src(), &repr);
                cnp::set_checksum_v4(packet, &udp);
                true
            },
        )
    };
    if !is_rebuilt {
        return false;
    }
    s.write(0, &[s0, s1, s2, s3, s4, s5, m0, m1, m2, m3, m4, m5])
}
