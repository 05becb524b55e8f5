//! RP, the reaction point: what a CNP does to the rate of its flow, and when a packet leaves.

use super::{Env, Host, Skb, TcVerdict, XdpVerdict, class_of, htb_minor, pairing, pfc, record};
use crate::classify::{Frame, Roce};
use crate::events::{EventKind, Table};
use crate::flow::{FlowId, Glance, QpId, RpFlow, set_index};
use crate::layout::{Cut, Pair, PairSource, WAYS};
use crate::pacing::Departure;
use crate::params::{PACER_FQ, PACER_HTB, Params};
use crate::stats::Stat;
use crate::wire::cnp::{self, Cnp};

/// RP: what a CNP for one of this host's QPs does to its rate. A QP's CNPs need not come back by the interface that its data
/// leaves by: one for a flow that is not known here is handed on. It is counted as unknown where it came in, and as handled where
/// its flow is.
#[inline(always)]
pub(super) fn on_cnp<'p, H: Host<'p>>(h: &mut H, p: &Params, roce: &Roce, is_handed_on: bool) -> XdpVerdict {
    if p.config.scalars.rp_enable == 0 {
        return if is_handed_on { XdpVerdict::HandOn } else { XdpVerdict::Pass };
    }
    let outcome = cut(h, p, roce);
    let is_known = outcome != Stat::RpCnpUnknownFlow;
    if is_known || !is_handed_on {
        h.env().count(outcome);
        if outcome != Stat::RpCnpHandled {
            h.env().count(Stat::RpCnpIgnored);
        }
    }
    match outcome {
        Stat::RpCnpUnknownFlow => XdpVerdict::HandOn,
        Stat::RpCnpHandled | Stat::RpCnpTooSoon if p.config.scalars.cnp_consume != 0 => XdpVerdict::Drop,
        _ => XdpVerdict::Pass,
    }
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
pub(super) fn pace<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce) -> TcVerdict {
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
    let held_ns = pfc::held_until(s, p, class_of(p, roce.dscp()), now_ns);
    if held_ns == pfc::DROPPED {
        s.env().count(Stat::PfcWatchdogDrop);
        return TcVerdict::Drop;
    }
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
                        let departure_ns = flow.held(departure_ns, held_ns);
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
                let departure_ns = flow.in_order(now_ns.max(held_ns), roce.class.stream());
                if held_ns != 0 {
                    flow.waits(departure_ns);
                    flow.leaves(roce.class.stream(), departure_ns);
                }
                (departure_ns, 0)
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
                Turn {
                    departure_ns: turn_ns.max(now_ns).max(held_ns),
                    standing: way as u32 | cut,
                    silent_since_ns: 0,
                }
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
    if held_ns != 0 {
        s.env().count(Stat::RpPfcHeld);
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
