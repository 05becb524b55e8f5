//! Loss recovery: follows the requests and responses that this host sends and receives; see [`crate::recovery`].

use super::{Env, Skb, np};
use crate::classify::Roce;
use crate::flow::{FlowId, QpId};
use crate::params::{Params, Switch};
use crate::recovery::responder::{Answer, Arrival, OWN_NAK};
use crate::recovery::{Request, Response, TRIMMED, UNVERIFIED, VERIFIED};
use crate::stats::Stat;
use crate::wire::bth::{Bth, Class, Opcode};
use crate::wire::eth::{EtherType, Ethernet};
use crate::wire::ext::{Aeth, Reth};
use crate::wire::icrc;
use crate::wire::udp::Udp;

/// Whether the parameters enable probes.
#[inline(always)]
fn probes(p: &Params) -> bool {
    p.hot.is_on(Switch::Probe)
}

/// Whether the parameters enable NAKs for trimmed requests.
#[inline(always)]
fn answers_trims(p: &Params) -> bool {
    p.hot.is_on(Switch::TrimNak)
}

/// Whether the parameters enable either.
#[inline(always)]
pub(super) fn is_enabled(p: &Params) -> bool {
    probes(p) || answers_trims(p)
}

/// Follows a packet of this host's RC queue pairs.
#[inline(always)]
pub(super) fn on_egress<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce) {
    let is_request = roce.class == Class::Data || roce.class == Class::Request;
    let is_answer = roce.class == Class::Acknowledge || roce.class == Class::ReadResponse;
    let is_followed = is_request && probes(p) || is_answer && answers_trims(p);
    // A forwarded packet has an ingress interface; a datagram socket's packet belongs to no QP.
    if !is_followed
        || !roce.opcode.is_rc()
        || roce.packets != 1
        || s.ingress_ifindex() != 0
        || s.is_from_process()
    {
        return;
    }
    // One value, because two would double the paths that the verifier walks.
    let found = if is_answer { syndrome(s, p, roce) } else { request_bytes(s, roce) };
    let Some(syndrome_or_bytes) = found else { return };
    let Some(bth) = s.header(roce.bth()).map(Bth::new) else { return };
    let (opcode, psn, ack_request) = (roce.opcode, bth.psn(), bth.ack_request());
    let tag = s.stripped_tpid();
    let Some(eth) = s.header(0).map(Ethernet::new) else { return };
    let (mac, ethertype) = (eth.src(), if tag == EtherType(0) { eth.ethertype() } else { tag });
    let Some(id) = roce.flow(s) else { return };
    *s.env().lookup_key() = id;
    let now_ns = s.env().now_ns();
    match s.env().requester(
        true,
        #[inline(always)]
        |requester| {
            let announces = if is_answer {
                requester.follow_answer(&Answer { opcode, psn, syndrome: syndrome_or_bytes }, now_ns)
            } else {
                let bytes = syndrome_or_bytes;
                requester.follow_request(&Request { opcode, psn, ack_request, bytes }, now_ns)
            };
            if announces {
                // Known from the QP's first packet on.
                requester.set_mac(mac, ethertype);
            }
            announces
        },
    ) {
        Some(true) => {
            if !s.env().announce_requester() {
                s.env().requester(
                    false,
                    #[inline(always)]
                    |requester| requester.on_announcement_lost(),
                );
            }
        }
        Some(false) => {}
        None => s.env().count(Stat::RequestersFull),
    }
}

/// [`Answer::syndrome`] of a response.
#[inline(always)]
fn syndrome<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce) -> Option<u32> {
    if roce.opcode != Opcode::RC_ACKNOWLEDGE {
        return Some(0);
    }
    let at = roce.bth() + Bth::LEN;
    s.pull(at + Aeth::LEN);
    let &[syndrome] = s.header(at)?;
    if s.mark() == p.port.cnp_mark {
        s.set_mark(0);
        return Some(OWN_NAK);
    }
    Some(syndrome.into())
}

#[inline(always)]
fn request_bytes<'p, S: Skb<'p>>(s: &mut S, roce: &Roce) -> Option<u32> {
    let end = roce.bth() + Bth::LEN;
    let headers = match roce.opcode {
        Opcode::RC_RDMA_READ_REQUEST => {
            s.pull(end + Reth::LEN);
            return Some(Reth::new(s.header(end)?).dma_len());
        }
        Opcode::RC_RDMA_WRITE_FIRST => Reth::LEN,
        Opcode::RC_SEND_FIRST | Opcode::RC_SEND_MIDDLE | Opcode::RC_RDMA_WRITE_MIDDLE => 0,
        _ => return Some(0),
    };
    Some(roce.end.saturating_sub(end + headers + icrc::LEN) as u32)
}

/// Follows a packet to this host's RC queue pairs. Returns whether to drop it: it is trimmed and belongs to a
/// known QP, whose sender gets a NAK or retransmits without one, or it is a stale ACK.
#[inline(always)]
pub(super) fn on_ingress<'p, S: Skb<'p>>(s: &mut S, p: &Params, roce: &Roce) -> bool {
    let is_response = roce.class == Class::Acknowledge || roce.class == Class::ReadResponse;
    let is_request = roce.is_trimmed || roce.opcode.starts_request();
    // Implied by the rest, but without the first condition Linux 6.1 refuses the program (E2BIG).
    let invalidates = !roce.is_trimmed && roce.opcode.invalidates();
    let is_followed =
        if is_response || invalidates && probes(p) { probes(p) } else { is_request && answers_trims(p) };
    if !is_followed || !roce.opcode.is_rc() || roce.packets != 1 {
        return false;
    }
    let Some((peer, own)) = roce.addresses(s) else { return false };
    let vlan = roce.vlan;
    let Some(pair) = s.env().pair(&QpId { addr: own, qpn: roce.dest_qpn, vlan }) else { return false };
    *s.env().lookup_key() = FlowId { src: own, receiver: QpId { addr: peer, qpn: pair.qpn, vlan } };
    let Some(Response { opcode, psn, syndrome, own_qpn, udp_sport }) = response(s, roce) else {
        return false;
    };
    let is_trimmed = roce.is_trimmed;
    // Its answer swaps the addresses.
    let Some(macs) = s.header(0).copied().filter(|_| !is_trimmed || np::is_between_hosts(s, roce)) else {
        return false;
    };
    let now_ns = s.env().now_ns();
    let drops_stale_acks = s.env().drops_stale_acks();
    let mut is_stale = false;
    let announces = s.env().requester(
        false,
        #[inline(always)]
        |requester| {
            if is_response {
                let response = Response { opcode, psn, syndrome, own_qpn, udp_sport };
                let announces = requester.follow_response(&response, now_ns);
                is_stale = drops_stale_acks && requester.drops(&response, now_ns);
                return announces;
            }
            if is_trimmed {
                requester.set_macs(&macs);
            }
            requester.follow_arrival(&Arrival { opcode, psn, is_trimmed, own_qpn, udp_sport }, now_ns)
        },
    );
    if announces == Some(true) {
        // If the ring is full, the next packet at egress announces it.
        s.env().announce_requester();
    }
    if is_stale {
        s.env().count(Stat::AckStale);
    }
    is_stale || is_trimmed && announces.is_some()
}

/// The response; `None` if its ICRC is wrong. That of a READ response is verified if it matters to the requester in
/// [`lookup_key`](Env::lookup_key).
#[inline(always)]
fn response<'p, S: Skb<'p>>(s: &mut S, roce: &Roce) -> Option<Response> {
    let is_ack = roce.opcode == Opcode::RC_ACKNOWLEDGE;
    let mut syndrome = if roce.is_trimmed { TRIMMED } else { UNVERIFIED };
    if is_ack {
        s.pull(roce.l3 + if roce.v6 { icrc::V6_ACK_LEN } else { icrc::V4_ACK_LEN });
        let verified = if roce.v6 {
            s.header(roce.l3).and_then(icrc::syndrome_v6)
        } else {
            s.header(roce.l3).and_then(icrc::syndrome_v4)
        };
        match verified {
            Some(bits) => syndrome = bits.into(),
            None => {
                s.env().count(Stat::AckInvalid);
                return None;
            }
        }
    }
    let psn = Bth::new(s.header(roce.bth())?).psn();
    let opcode = roce.opcode;
    if syndrome == UNVERIFIED && matches!(roce.class, Class::Acknowledge | Class::ReadResponse) {
        let takes_naks_in_reads = s.env().takes_naks_in_reads();
        let if_correct = s.env().requester(
            false,
            #[inline(always)]
            |requester| requester.syndrome_if_correct(opcode, psn, takes_naks_in_reads),
        );
        syndrome = if_correct.unwrap_or(UNVERIFIED);
        if syndrome >= VERIFIED && !s.has_correct_icrc(roce) {
            s.env().count(Stat::AckInvalid);
            return None;
        }
    }
    let udp_sport = Udp::new(s.header(roce.udp())?).src_port();
    // One path for the verifier instead of one for each case above.
    let syndrome = s.env().opaque(syndrome);
    Some(Response { opcode, psn, syndrome, own_qpn: roce.dest_qpn, udp_sport })
}
