//! Fast NAK of an RC responder for trimmed requests.
//!
//! A trimmed SEND or WRITE shows a loss before the responder can: its stack ignores the packet, and sends a NAK only if
//! a later one arrives intact. `dcqcn run` sends that NAK (PSN sequence error, IBTA vol. 1, 9.7.5.2) once the responder
//! has been silent for a part of a round trip, because trimmed packets overtake the data before them.
//!
//! # Safety of a NAK
//!
//! A NAK acknowledges every PSN before the one it names. Trimmed packets have no valid ICRC, so none of their fields is
//! named. The NAK names the first PSN that this host's own responder has not acknowledged, according to its packets at
//! egress, so it acknowledges nothing that they have not acknowledged before.
//!
//! An earlier QP may have had the same numbers. A request for another QPN, or with a PSN before the
//! acknowledged ones, therefore invalidates that PSN until the responder's next packet. It also expires after
//! a second without such a packet.
//!
//! # Bound
//!
//! A NAK makes the sender retransmit what is outstanding. NAKs for trimmed packets follow the last NAK of the QP,
//! whether the responder's or `dcqcn run`'s, by a round trip and `tail_loss_probe_floor` at least.
//!
//! Soft-RoCE ignores a NAK after a NAK until an ACK or a READ response ([`super`]), so it would wait for its
//! timer if the retransmission is trimmed too. Where retries are unlimited, an RNR NAK follows instead: after
//! four round trips without such a packet, doubled each time, for a second.

use core::cell::Cell;

use super::{ACK, Action, KIND, MAX_IN_FLIGHT, NAK, RNR, distance, end_of, get, hold_until, plus, set};
use crate::wire::bth::Opcode;
use crate::wire::eth::MacAddr;
use crate::wire::nak::Macs;

/// A response of this host: ACK, NAK, READ response or atomic acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Opcode, of the RC transport.
    pub opcode: Opcode,
    /// PSN, 24 bits.
    pub psn: u32,
    /// AETH syndrome of an ACK or NAK, or `OWN_NAK`; else 0.
    pub syndrome: u32,
}

/// `syndrome` of a NAK by `dcqcn run`, which shows nothing about the responder. Not a syndrome, which has 8 bits.
pub(crate) const OWN_NAK: u32 = 256;

/// Time after the responder's last packet during which trimmed requests are answered.
const FRESH_NS: u64 = 1_000_000_000;

/// A packet that starts a request to this host, ends a SEND with invalidate, or is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Opcode, of the RC transport.
    pub opcode: Opcode,
    /// PSN, 24 bits.
    pub psn: u32,
    /// Whether a switch has cut it to its headers.
    pub is_trimmed: bool,
    /// Destination QPN, of this host.
    pub own_qpn: u32,
    pub udp_sport: u16,
}

/// State of a responder, shared by the programs like that of the [`Requester`](super::Requester).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Responder {
    // Written at egress.
    /// Last packet of the responder; 0 = none.
    answered_ns: u64,
    /// Last NAK, those of `dcqcn run` included; 0 = none.
    nak_ns: u64,
    /// No NAK before this time: the responder has requested a delay, or has ended the QP.
    hold_ns: u64,
    /// First PSN that the responder has not acknowledged; valid if `answered_ns` is after `doubted_ns`.
    acknowledged: u32,
    /// UDP source port of the last trimmed request. Written at ingress, as all that follows.
    udp_sport: u32,
    /// Last request that contradicted `acknowledged`.
    doubted_ns: u64,
    /// First trimmed request since the last NAK; 0 = none.
    trimmed_ns: u64,
    /// PSN of that request.
    trimmed_psn: u32,
    /// This host's QPN, according to the last request.
    own_qpn: u32,
    /// MAC addresses of the last trimmed request, destination first.
    pub(super) macs: [u8; 12],
    /// NAKs since the last ACK or READ response, those of `dcqcn run` included. Written at egress.
    naks: u32,
}

/// A responder that other CPUs may be changing, as [`SharedRequester`](super::SharedRequester).
#[derive(Clone, Copy)]
pub(super) struct SharedResponder<'a>(pub(super) &'a Cell<Responder>);

impl SharedResponder<'_> {
    /// Follows a response of this host.
    #[inline(always)]
    pub(super) fn on_answer(self, packet: &Answer, now_ns: u64) {
        let Answer { opcode, psn, syndrome } = *packet;
        if syndrome == OWN_NAK {
            set!(self.nak_ns = now_ns);
            set!(self.naks = get!(self.naks).saturating_add(1));
            return;
        }
        set!(self.naks = if syndrome & KIND == ACK { 0 } else { get!(self.naks).saturating_add(1) });
        if matches!(opcode, Opcode::RC_ACKNOWLEDGE) {
            let Some(end) = end_of(syndrome, psn) else { return };
            set!(self.acknowledged = end);
            set!(self.hold_ns = hold_until(syndrome, now_ns));
            if matches!(syndrome & KIND, RNR | NAK) {
                set!(self.nak_ns = now_ns);
            }
        } else if matches!(opcode, Opcode::RC_RDMA_READ_RESPONSE_FIRST | Opcode::RC_RDMA_READ_RESPONSE_MIDDLE)
        {
            // A NAK must not name a response that follows: Linux 6.1 ends the QP ([`super`]).
            if !self.is_known() {
                return;
            }
        } else if !self.is_known() || distance(get!(self.acknowledged), psn) >= 0 {
            // Not a READ response that is repeated.
            set!(self.acknowledged = plus(psn, 1));
        }
        set!(self.answered_ns = now_ns);
    }

    /// Follows a request to this host. Returns whether it awaits a NAK.
    #[inline(always)]
    pub(super) fn on_arrival(self, packet: &Arrival, now_ns: u64) -> bool {
        let Arrival { psn, is_trimmed, own_qpn, udp_sport, .. } = *packet;
        // Far beyond `acknowledged`, it is of another QP too, in which that PSN may look like a later one.
        let ahead = distance(get!(self.acknowledged), psn);
        if get!(self.own_qpn) != own_qpn || !(0..MAX_IN_FLIGHT).contains(&ahead) {
            set!(self.own_qpn = own_qpn);
            set!(self.doubted_ns = now_ns);
            return false;
        }
        let is_fresh = now_ns.saturating_sub(get!(self.answered_ns)) <= FRESH_NS;
        if !is_trimmed || !is_fresh || !self.is_known() || self.awaits_nak() {
            return false;
        }
        set!(self.trimmed_ns = now_ns);
        set!(self.trimmed_psn = psn);
        set!(self.udp_sport = udp_sport as u32);
        true
    }

    /// Stores the first bytes of a trimmed request's frame, its MAC addresses.
    #[inline(always)]
    pub(super) fn set_macs(self, macs: &[u8; 12]) {
        set!(self.macs = *macs);
    }

    /// Whether `acknowledged` is valid.
    #[inline(always)]
    fn is_known(self) -> bool {
        get!(self.answered_ns) > get!(self.doubted_ns)
    }

    /// Whether a trimmed request has been neither answered nor accepted since.
    #[inline(always)]
    fn awaits_nak(self) -> bool {
        self.is_known()
            && get!(self.trimmed_ns) > get!(self.nak_ns)
            && distance(get!(self.acknowledged), get!(self.trimmed_psn)) >= 0
    }
}

impl Responder {
    pub(super) const NEW: Self = Self {
        answered_ns: 0,
        nak_ns: 0,
        hold_ns: 0,
        acknowledged: 0,
        udp_sport: 0,
        doubted_ns: 0,
        trimmed_ns: 0,
        trimmed_psn: 0,
        own_qpn: 0,
        macs: [0; 12],
        naks: 0,
    };

    fn is_known(&self) -> bool {
        SharedResponder(&Cell::new(*self)).is_known()
    }

    fn awaits_nak(&self) -> bool {
        SharedResponder(&Cell::new(*self)).awaits_nak()
    }

    /// Whether a NAK has not made the sender retransmit a trimmed request.
    fn awaits_restart(&self, now_ns: u64) -> bool {
        self.naks != 0
            && self.is_known()
            && self.trimmed_ns != 0
            && distance(self.acknowledged, self.trimmed_psn) >= 0
            && now_ns.saturating_sub(self.answered_ns) <= FRESH_NS
    }

    /// See [`Requester::answer`](super::Requester::answer). NAKs are at least `rtt_ns` apart. `restarts`: retries are
    /// unlimited.
    pub(super) fn action(
        &self,
        restarts: bool,
        rtt_ns: u64,
        reordering_ns: u64,
        now_ns: u64,
        sent_ns: u64,
    ) -> Action {
        if restarts && self.awaits_restart(now_ns) {
            let silence_ns = (4 * rtt_ns) << (self.naks - 1).min(4);
            let due_ns = self.nak_ns.max(sent_ns).saturating_add(silence_ns).max(self.hold_ns);
            return if now_ns < due_ns { Action::At(due_ns) } else { Action::RnrNak(self.acknowledged) };
        }
        if !self.awaits_nak() {
            return Action::Idle;
        }
        let mut due_ns = self.trimmed_ns.max(self.answered_ns) + reordering_ns;
        let nak_ns = self.nak_ns.max(sent_ns);
        if nak_ns != 0 {
            due_ns = due_ns.max(nak_ns.saturating_add(rtt_ns));
        }
        let due_ns = due_ns.max(self.hold_ns);
        if now_ns < due_ns { Action::At(due_ns) } else { Action::Nak(self.acknowledged) }
    }

    /// Last packet of the responder; 0 = none.
    pub(crate) const fn answered_ns(&self) -> u64 {
        self.answered_ns
    }

    pub const fn udp_sport(&self) -> u16 {
        self.udp_sport as u16
    }

    /// MAC addresses of a packet to the sender of the last trimmed request.
    pub const fn macs(&self) -> Macs {
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = self.macs;
        let (dst, src): (MacAddr, MacAddr) = ([s0, s1, s2, s3, s4, s5], [d0, d1, d2, d3, d4, d5]);
        Macs { dst, src }
    }
}

#[cfg(test)]
mod tests;
