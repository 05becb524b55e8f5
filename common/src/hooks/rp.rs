//! RP (reaction point): CNPs cut the rate of their flow, and packets are delayed to that rate.

use super::{Env, Host, Skb, TcVerdict, count_packets, htb_minor, pairing, pfc, record};
use crate::classify::{Frame, Roce, Segments};
use crate::events::{EventKind, Table};
use crate::flow::{self, FlowGuard, FlowId, FlowPeek, LookupError, QpId, Shared, Slot, home_way, set_index};
use crate::layout::{Cut, Pair, PairSource, WAYS};
use crate::pacing::Departure;
use crate::params::{DscpClass, Params, Switch};
use crate::stats::Stat;
use crate::wire::cnp::{self, Cnp};

/// Handles a CNP for one of this host's QPs.
///
/// A CNP may arrive on another interface than the one its data leaves on, so for an unknown flow the siblings
/// are tried. The interface it arrived on counts it as unknown, the interface of its flow as handled.
#[inline(always)]
pub(super) fn on_cnp<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce, is_from_sibling: bool) -> TcVerdict {
    if !p.hot.is_on(Switch::Rp) {
        return if is_from_sibling { TcVerdict::TrySiblings } else { TcVerdict::Pass };
    }
    let outcome = cut(s, p, roce);
    let is_known = outcome != Stat::RpCnpUnknownFlow;
    if is_known || !is_from_sibling {
        s.env().count(outcome);
        if outcome != Stat::RpCnpHandled {
            s.env().count(Stat::RpCnpIgnored);
        }
    }
    match outcome {
        Stat::RpCnpUnknownFlow => TcVerdict::TrySiblings,
        // A CNP that this host only forwards is for the sender behind it.
        Stat::RpCnpHandled | Stat::RpCnpTooSoon
            if p.hot.is_on(Switch::CnpConsume) && !s.is_for_other_host(roce) =>
        {
            TcVerdict::Drop
        }
        _ => TcVerdict::Pass,
    }
}

#[inline(always)]
fn cut<'p, H: Host<'p>>(h: &mut H, p: &Params, roce: &Roce) -> Stat {
    let Some(cnp) = peek_cnp(h, roce) else {
        return Stat::RpCnpInvalid;
    };
    let Some((peer, own)) = roce.addresses(h) else {
        return Stat::RpCnpInvalid;
    };
    let vlan = roce.vlan;
    let mut is_other_vlan = false;
    let qpn = if cnp.hint == cnp::NO_HINT {
        h.env().pair(&QpId { addr: own, qpn: cnp.dest_qpn, vlan }).map(|pair| pair.qpn)
    } else {
        Some(cnp.hint)
    };
    let Some(qpn) = qpn else {
        return Stat::RpCnpUnknownFlow;
    };
    let mut id = FlowId { src: own, receiver: QpId { addr: peer, qpn, vlan } };
    let untagged = id.untagged_fingerprint(&p.port.hash_keys);
    let mut fingerprint = p.port.hash_keys.in_vlan(untagged, vlan);
    let now_ns = h.env().now_ns();
    let rp = &p.rp;
    let index = set_index(flow::hash(untagged), p.port.rp_set_mask);
    let Some(set) = h.env().rp_set(index) else {
        return Stat::RpCnpUnknownFlow;
    };
    let mut way = set.way_of(fingerprint);
    if way == WAYS {
        // A CNP may return with another VLAN tag: search for a unique flow with the same addresses and QPN.
        let lookup_key = h.env().lookup_key();
        *lookup_key = id;
        match flow::in_any_vlan(set, lookup_key) {
            // Hidden and bounded: otherwise the compiler indexes with a copy whose bounds Linux 6.1 has lost.
            Some(found) => way = h.env().opaque(found as u32) as usize % WAYS,
            None => return Stat::RpCnpUnknownFlow,
        }
        // The fingerprint of the name that was searched for: if another CPU has reused the slot, no flow is found.
        id.receiver.vlan = set.vlan(way);
        fingerprint = p.port.hash_keys.in_vlan(untagged, id.receiver.vlan);
        is_other_vlan = true;
    }
    // After the lookup: the ICRC costs more than everything else, and a CNP for another interface's flow
    // does not need it.
    if !has_icrc(h, roce) {
        return Stat::RpCnpInvalid;
    }
    let way = h.env().opaque(way as u32) as usize % WAYS;
    let debt = h.env().debt();
    let guard = match set.find_at(way, fingerprint) {
        Some(seen) => set.lock_flow(way, fingerprint, seen),
        None => Err(LookupError::Evicted),
    };
    let outcome = guard.map(|mut flow| {
        if p.hot.is_on(Switch::WirePaces) {
            flow.pace_from(rp, now_ns);
        }
        flow.on_cnp(rp, now_ns, debt).then(|| flow.rates())
    });
    match outcome {
        Ok(Some(rates)) => {
            if is_other_vlan {
                h.env().count(Stat::RpCnpOtherVlan);
            }
            // The daemon sets the rates of HTB classes; fq needs no notification.
            if p.hot.is_on(Switch::PacerHtb) {
                h.env().announce(Cut { set: index, way: way as u32 });
            }
            record(h, p, EventKind::RateCut, id.receiver, rates);
            Stat::RpCnpHandled
        }
        Ok(None) => Stat::RpCnpTooSoon,
        Err(error) => {
            if error == LookupError::Contended {
                h.env().count(Stat::TableBusy);
            }
            Stat::RpCnpUnknownFlow
        }
    }
}

/// The CNP, if all of it but the ICRC is valid.
#[inline(always)]
fn peek_cnp<F: Frame>(frame: &mut F, roce: &Roce) -> Option<Cnp> {
    frame.pull(roce.l3 + if roce.v6 { cnp::V6_LEN } else { cnp::V4_LEN });
    if roce.v6 { cnp::peek_v6(frame.header(roce.l3)?) } else { cnp::peek_v4(frame.header(roce.l3)?) }
}

/// Whether the ICRC of a CNP is correct.
#[inline(always)]
fn has_icrc<F: Frame>(frame: &F, roce: &Roce) -> bool {
    if roce.v6 {
        frame.header(roce.l3).is_some_and(cnp::has_icrc_v6)
    } else {
        frame.header(roce.l3).is_some_and(cnp::has_icrc_v4)
    }
}

/// Departure of a packet according to the RP table.
#[derive(Clone, Copy)]
struct Schedule {
    /// Earliest departure time.
    departure_ns: u64,
    /// The departure is beyond the pacing horizon.
    is_beyond: bool,
}

/// Charges a data packet to its flow's rate machine and delays it to the flow's rate.
///
/// Packets without data are delayed only as long as earlier packets of their sequence.
#[inline(always)]
pub(super) fn pace<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce, class: DscpClass) -> TcVerdict {
    let rp = &p.rp;
    if rp.line_rate_bps == 0 {
        return TcVerdict::Pass;
    }
    // Sent by a user-space UDP socket: it belongs to no QP, whatever its BTH contains.
    if s.is_from_process() {
        count_packets(s, Stat::RpFromProcess, roce);
        return TcVerdict::Pass;
    }
    let Some(untagged) = roce.untagged_fingerprint(s, &p.port.hash_keys) else { return TcVerdict::Pass };
    let fingerprint = p.port.hash_keys.in_vlan(untagged, roce.vlan);
    let hash = flow::hash(fingerprint);
    let index = set_index(flow::hash(untagged), p.port.rp_set_mask);
    let Some(set) = s.env().rp_set(index) else { return TcVerdict::Pass };
    if passes_unpaced(s, p, roce, class, set, fingerprint) {
        return TcVerdict::Pass;
    }
    set.fetch_home(hash);
    let now_ns = s.env().now_ns();
    learn_pair(s, p, roce);
    let congests = roce.congests();
    let Some(paused_until_ns) = pfc::paused_until(s, p, roce, class, now_ns) else {
        count_packets(s, Stat::PfcWatchdogDrop, roce);
        return TcVerdict::Drop;
    };
    let Some((way, guard)) = lock_flow(s, p, roce, set, fingerprint) else { return TcVerdict::Pass };
    let Schedule { departure_ns, is_beyond } = match guard {
        Ok(flow) => schedule(s, p, roce, flow, paused_until_ns),
        // Evicted by another CPU between lookup and lock: the slot was idle, so the flow has no packets
        // queued.
        Err(LookupError::Evicted) => {
            s.env().count(Stat::TableBusy);
            return TcVerdict::Pass;
        }
        Err(LookupError::Contended) => {
            // Another CPU, perhaps a descheduled vCPU, holds the flow. Without a delay the packet would
            // overtake queued packets of its flow, which would be retransmitted with all that follow.
            s.env().count(Stat::TableBusy);
            let FlowPeek { last_ns, next_ns, .. } = set.peek(way);
            // Ignores PFC pauses: the delay could not be recorded, and packets sent after an early XON
            // would overtake it.
            let earliest_ns = if congests { next_ns } else { last_ns[roce.class.stream() as usize] };
            // `next_ns` is beyond the horizon after a large packet at a low rate, and fq drops beyond its own horizon.
            let departure_ns = earliest_ns.max(now_ns).min(now_ns.wrapping_add(p.hot.pacing_horizon_ns));
            Schedule { departure_ns, is_beyond: false }
        }
    };
    if paused_until_ns != 0 {
        count_packets(s, Stat::RpPfcHeld, roce);
    }
    if is_beyond {
        return beyond_horizon(s, p, roce, hash, departure_ns);
    }
    let delayed = if congests { Stat::RpPaced } else { Stat::RpInOrder };
    if p.hot.is_on(Switch::PacerFq) {
        let must_wait = departure_ns > now_ns;
        hand_to_fq(s, roce, hash, departure_ns, must_wait);
        if must_wait {
            count_packets(s, delayed, roce);
        }
    } else if p.hot.is_on(Switch::PacerHtb) && set.peek(way).active {
        // A flow that was cut has its own class. All its packets use it, which keeps them in order.
        match htb_minor(index, way) {
            Some(minor) => {
                s.set_priority((p.port.htb_major << 16) | minor);
                count_packets(s, delayed, roce);
            }
            None => count_packets(s, Stat::RpUnpaced, roce),
        }
    }
    TcVerdict::Pass
}

/// Learns the pair of a datagram's QPs: a datagram carries both QPNs, its CNP only the sender's.
///
/// Several local QPs may send to one remote QP.
#[inline(always)]
fn learn_pair<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce) {
    if let Some(qpn) = roce.source_qpn(s)
        && let Some(id) = roce.flow(s)
    {
        let own = QpId { addr: id.src, qpn, vlan: id.receiver.vlan };
        if s.env().pair(&own).is_none() {
            let QpId { addr, qpn, .. } = id.receiver;
            pairing::enter(s, p, &own, Pair { qpn, source: PairSource::Datagram as u32, addr });
        }
    }
}

/// Finds or enters a packet's flow, and locks it. `None` if the set has no slot for it.
#[inline(always)]
fn lock_flow<'p, S: Skb<'p>>(
    s: &mut S,
    p: &Params,
    roce: &Roce,
    set: Shared,
    fingerprint: u64,
) -> Option<(usize, Result<FlowGuard, LookupError>)> {
    let mut way = home_way(flow::hash(fingerprint));
    let mut seen = set.find_at(way, fingerprint);
    if seen.is_none() {
        // On a collision, try the neighbouring way before searching the set.
        way = s.env().opaque(way as u32 ^ 1) as usize % WAYS;
        seen = set.find_at(way, fingerprint);
    }
    if seen.is_none() {
        let entered = enter(s, p, roce, set, fingerprint)?;
        way = s.env().opaque(entered as u32) as usize % WAYS;
        seen = set.find_at(way, fingerprint);
    }
    let guard = match seen {
        Some(seen) => set.lock_flow(way, fingerprint, seen),
        None => Err(LookupError::Evicted),
    };
    Some((way, guard))
}

/// Sets a packet's flow for fq, and its departure time if it `must_wait` or has another.
#[inline(always)]
fn hand_to_fq<'p, S: Skb<'p>>(s: &mut S, roce: &Roce, hash: u32, departure_ns: u64, must_wait: bool) {
    // To fq all packets of soft-RoCE are one flow, or share a few, and would wait for each other's
    // departures. A QP's two sequences are independent of each other too.
    s.set_hash(hash ^ roce.class.stream() as u32);
    // Soft-RoCE (Linux 6.12+) timestamps packets on creation; fq would let those overtake earlier, delayed ones.
    if must_wait || s.departure() != 0 {
        s.set_departure(departure_ns);
    }
}

/// Handles a packet that departs beyond the pacing horizon: at the horizon, or not at all.
#[inline(always)]
fn beyond_horizon<'p, S: Skb<'p>>(
    s: &mut S,
    p: &Params,
    roce: &Roce,
    hash: u32,
    horizon_ns: u64,
) -> TcVerdict {
    if p.hot.is_on(Switch::HorizonDrop) {
        count_packets(s, Stat::RpHorizonDrop, roce);
        if let Some(receiver) = roce.receiver(s) {
            record(s, p, EventKind::HorizonDrop, receiver, [s.frame_len().into(), 0]);
        }
        return TcVerdict::Drop;
    }
    hand_to_fq(s, roce, hash, horizon_ns, true);
    count_packets(s, Stat::RpHorizonPass, roce);
    TcVerdict::Pass
}

/// Passes a packet that nothing delays, without reading the clock: neither its flow's rate, if the wire is as
/// fast as the line rate, nor earlier packets, nor a pause.
#[inline(always)]
fn passes_unpaced<'p, S: Skb<'p>>(
    s: &mut S,
    p: &Params,
    roce: &Roce,
    class: DscpClass,
    set: Shared,
    fingerprint: u64,
) -> bool {
    if !p.hot.is_on(Switch::WirePaces) || class.may_be_paused() || roce.source_qpn(s).is_some() {
        return false;
    }
    let Segments { packets, header_bytes } = roce.segments();
    let stream = roce.class.stream();
    let data = roce.congests().then(|| (stream, packets, s.frame_len() as u64 + header_bytes));
    let now_ns = s.env().coarse_ns();
    let hash = flow::hash(fingerprint);
    if !set.pass_unpaced(home_way(hash), fingerprint, &p.rp, now_ns, data) {
        return false;
    }
    if p.hot.is_on(Switch::PacerFq) {
        hand_to_fq(s, roce, hash, 0, false);
    }
    true
}

/// Departure of a packet within its flow; `paused_until_ns` is the end of PFC pauses of its class.
#[inline(always)]
fn schedule<'p, S: Skb<'p>>(
    s: &mut S,
    p: &Params,
    roce: &Roce,
    mut flow: FlowGuard,
    paused_until_ns: u64,
) -> Schedule {
    let Segments { packets, header_bytes } = roce.segments();
    let (now_ns, frame_bytes) = (s.env().now_ns(), s.frame_len() as u64 + header_bytes);
    let stream = roce.class.stream();
    let debt = s.env().debt();
    let (departure_ns, is_beyond) = if roce.congests() {
        // Select the stream last: otherwise the verifier explores the rate machine once per stream.
        match flow.on_send_many(p, now_ns, packets, frame_bytes, debt) {
            Departure::At(departure_ns) => {
                let departure_ns = flow.hold_until(departure_ns, paused_until_ns);
                flow.set_departure(stream, departure_ns);
                (departure_ns, false)
            }
            Departure::BeyondHorizon => {
                let horizon_ns = now_ns.wrapping_add(p.hot.pacing_horizon_ns);
                if !p.hot.is_on(Switch::HorizonDrop) {
                    flow.set_departure(stream, horizon_ns);
                }
                (horizon_ns, true)
            }
        }
    } else {
        let departure_ns = flow.in_order(now_ns.max(paused_until_ns), stream);
        if paused_until_ns != 0 {
            flow.delay_until(departure_ns);
            flow.set_departure(stream, departure_ns);
        }
        (departure_ns, false)
    };
    Schedule { departure_ns, is_beyond }
}

/// Way of a flow that is in neither its primary nor its neighbouring way.
///
/// Returns its existing slot or, for a data packet, an idle one. `None` if there is no slot.
#[inline(always)]
fn enter<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce, set: Shared, fingerprint: u64) -> Option<usize> {
    let (now_ns, congests) = (s.env().now_ns(), roce.congests());
    let id = roce.flow(s)?;
    // In a map, because the BPF stack is only 512 bytes.
    let lookup_key = s.env().lookup_key();
    *lookup_key = id;
    // Flows with queued packets or a reduced rate are not evicted.
    match flow::enter(set, lookup_key, fingerprint, &p.rp, if congests { now_ns } else { 0 }) {
        Ok(Slot { way, silent_since_ns }) => {
            if let Some(silent_since_ns) = silent_since_ns {
                s.env().count(Stat::RpFlowNew);
                if silent_since_ns != 0 {
                    s.env().count(Stat::RpFlowEvicted);
                    let silent_ns = now_ns.saturating_sub(silent_since_ns);
                    record(s, p, EventKind::TableFull, id.receiver, [silent_ns, Table::Rp as u64]);
                }
            }
            Some(way)
        }
        Err(LookupError::Contended) => {
            s.env().count(Stat::TableBusy);
            None
        }
        Err(LookupError::Evicted) => {
            if congests {
                count_packets(s, Stat::RpTableFull, roce);
            }
            None
        }
    }
}
