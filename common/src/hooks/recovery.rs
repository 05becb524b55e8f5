//! Tail-loss probe: follows the requests that this host sends and the responses it receives; see [`crate::recovery`].

use super::{Env, Skb};
use crate::classify::{Frame, Roce};
use crate::flow::{FlowId, QpId};
use crate::params::{Params, TAIL_LOSS_PROBE_OFF};
use crate::recovery::{Request, Response, UNVERIFIED};
use crate::stats::Stat;
use crate::wire::bth::{Bth, Class, Opcode};
use crate::wire::ext::Reth;
use crate::wire::icrc;
use crate::wire::udp::Udp;

/// Whether the parameters enable probes.
#[inline(always)]
pub(super) fn is_enabled(p: &Params) -> bool {
    p.config.scalars.tail_loss_probe != TAIL_LOSS_PROBE_OFF
}

/// Follows a request packet of this host's RC queue pairs.
#[inline(always)]
pub(super) fn on_egress<'p, S: Skb<'p>>(s: &mut S, roce: &Roce) {
    let is_request = roce.opcode.is_rc() && (roce.class == Class::Data || roce.class == Class::Request);
    // A forwarded packet has an ingress interface; a datagram socket's packet belongs to no QP.
    if !is_request || roce.packets != 1 || s.ingress_ifindex() != 0 || s.is_from_process() {
        return;
    }
    let Some(request) = request(s, roce) else {
        return;
    };
    let Some(id) = roce.flow(s) else {
        return;
    };
    *s.env().lookup_key() = id;
    let now_ns = s.env().now_ns();
    match s.env().requester(
        true,
        #[inline(always)]
        |requester| requester.follow_request(&request, now_ns),
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

#[inline(always)]
fn request<F: Frame>(frame: &mut F, roce: &Roce) -> Option<Request> {
    let is_read = roce.opcode == Opcode::RC_RDMA_READ_REQUEST;
    let end = roce.bth() + Bth::LEN;
    if is_read {
        frame.pull(end + Reth::LEN);
    }
    let bth = Bth::new(frame.header(roce.bth())?);
    let (psn, ack_request) = (bth.psn(), bth.ack_request());
    let bytes = if is_read {
        Reth::new(frame.header(end)?).dma_len()
    } else {
        let headers = match roce.opcode {
            Opcode::RC_RDMA_WRITE_FIRST => Reth::LEN,
            Opcode::RC_SEND_FIRST | Opcode::RC_SEND_MIDDLE | Opcode::RC_RDMA_WRITE_MIDDLE => 0,
            _ => roce.end,
        };
        roce.end.saturating_sub(end + headers + icrc::LEN) as u32
    };
    Some(Request { opcode: roce.opcode, psn, ack_request, bytes })
}

/// Follows a response to this host's RC queue pairs.
#[inline(always)]
pub(super) fn on_ingress<'p, S: Skb<'p>>(s: &mut S, roce: &Roce) {
    let is_response =
        roce.opcode.is_rc() && (roce.class == Class::Acknowledge || roce.class == Class::ReadResponse);
    if !is_response || roce.packets != 1 {
        return;
    }
    let Some((peer, own)) = roce.addresses(s) else {
        return;
    };
    let vlan = roce.vlan;
    let Some(pair) = s.env().pair(&QpId { addr: own, qpn: roce.dest_qpn, vlan }) else {
        return;
    };
    *s.env().lookup_key() = FlowId { src: own, receiver: QpId { addr: peer, qpn: pair.qpn, vlan } };
    let Some(response) = response(s, roce) else {
        return;
    };
    let now_ns = s.env().now_ns();
    s.env().requester(
        false,
        #[inline(always)]
        |requester| requester.follow_response(&response, now_ns),
    );
}

/// The response; `None` if it is an ACK or NAK with a wrong ICRC.
#[inline(always)]
fn response<'p, S: Skb<'p>>(s: &mut S, roce: &Roce) -> Option<Response> {
    let is_ack = roce.opcode == Opcode::RC_ACKNOWLEDGE;
    let mut syndrome = UNVERIFIED;
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
    let udp_sport = Udp::new(s.header(roce.udp())?).src_port();
    Some(Response { opcode: roce.opcode, psn, syndrome, own_qpn: roce.dest_qpn, udp_sport })
}
