//! The tail-loss probe of a sending QP: the requester of `common`, which `dcqcn run` checks on hosts.

use dcqcn_common::params::Params;
use dcqcn_common::rc::Psn;
use dcqcn_common::recovery::{Action, Request, Requester, Response, Sent, Settings, SharedRequester};
use dcqcn_common::wire::bth::Opcode;

/// Syndromes of an ACK and of a NAK for a PSN sequence error (IBTA vol. 1, 9.7.5.2).
const ACK: u32 = 0;
const NAK: u32 = 0x60;
/// A host has one requester per QP, so its number does not matter.
const OWN_QPN: u32 = 1;

/// State of the probe.
#[derive(Debug)]
pub(super) struct Probe {
    requester: Requester,
    settings: Settings,
    /// The requester's last progress, and the probes since.
    progress: (u32, u32),
    sent: Sent,
}

impl Probe {
    pub(super) const fn new(params: &Params) -> Self {
        let scalars = &params.config.scalars;
        let (floor_ns, limit) = (scalars.tail_loss_probe_floor_ns, scalars.tail_loss_probe_limit as u32);
        let sent = Sent { probes: 0, at_ns: 0 };
        let settings = Settings { floor_ns, limit, takes_naks_in_reads: true };
        Self { requester: Requester::NEW, settings, progress: (0, 0), sent }
    }

    /// A data packet leaves.
    pub(super) fn on_send(&mut self, now_ns: u64, psn: u64, ack_request: bool, bytes: u32) {
        let (opcode, psn) = (Opcode::RC_RDMA_WRITE_MIDDLE, Psn::new(psn as u32).get());
        SharedRequester::new(&mut self.requester)
            .on_request(&Request { opcode, psn, ack_request, bytes }, now_ns);
    }

    /// All packets before `end` have arrived, and a NAK reports that `end` has not.
    pub(super) fn on_reply(&mut self, now_ns: u64, end: u64, is_nak: bool) {
        let end = Psn::new(end as u32);
        let (psn, syndrome) = if is_nak { (end, NAK) } else { (end.previous(), ACK) };
        let opcode = Opcode::RC_ACKNOWLEDGE;
        let response = Response { opcode, psn: psn.get(), syndrome, own_qpn: OWN_QPN, udp_sport: 0 };
        SharedRequester::new(&mut self.requester).on_response(&response, now_ns);
        if self.requester.progress() != self.progress {
            (self.progress, self.sent.probes) = (self.requester.progress(), 0);
        }
    }

    /// When to check again; `None`: the retransmission timer acts.
    pub(super) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        match self.requester.action(self.settings, now_ns, self.sent, 0) {
            Action::Idle => None,
            Action::At(due_ns) => Some(due_ns),
            Action::Nak(_) | Action::RnrNak(_) => Some(now_ns),
        }
    }

    /// The packet that a probe names, if one is due; `near` is a packet in flight.
    pub(super) fn fire(&mut self, now_ns: u64, near: u64) -> Option<u64> {
        let (Action::Nak(psn) | Action::RnrNak(psn)) =
            self.requester.action(self.settings, now_ns, self.sent, 0)
        else {
            return None;
        };
        self.sent = Sent { probes: self.sent.probes.saturating_add(1), at_ns: now_ns };
        Psn::new(psn).packet_near(Psn::new(0), near)
    }
}
