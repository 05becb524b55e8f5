//! Receiver-driven admission: requests, grants, and their order.

use std::collections::VecDeque;

use super::receive::Answer;
use super::{Host, NO_SLOT, QpEntry};
use crate::network::agenda::Event;
use crate::network::packet::{Kind, Packet};
use crate::network::wire::Outbox;

/// Admission state of one receiver.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// QPs that wait for a grant, by index among receiving ones.
    waiting: VecDeque<u32>,
    /// Granted packets in flight.
    packets: u64,
}

impl Host {
    /// Sends the receiver of the QP in `slot` a request, if needed.
    pub(super) fn request_grant(&mut self, now_ns: u64, slot: u32) {
        let transport = &self.rules.transports[0];
        if transport.admission.is_none() {
            return;
        }
        let qp = &mut self.senders[slot as usize];
        let Some((end_psn, granted_psn)) = qp.request() else { return };
        let address = qp.address;
        if let Some(timer_ns) = qp.set_timer(now_ns, transport) {
            self.agenda.at(timer_ns, Event::Timer, slot);
        }
        self.answer(address, Answer::of(Kind::Request, end_psn, granted_psn));
    }

    /// A sender's request.
    pub(super) fn on_request(&mut self, now_ns: u64, packet: &Packet, out: &mut Outbox) {
        let QpEntry { pair: number, slot, left } = self.receives[packet.qp as usize];
        if left == 0 {
            // All of this QP has arrived: an outdated request.
            return;
        }
        let slot = if slot == NO_SLOT { self.receiver(packet, number) } else { slot };
        let qp = &mut self.receivers[slot as usize];
        let waits = qp.requested_psn > qp.granted_psn;
        qp.requested_psn = qp.requested_psn.max(packet.psn);
        if !waits && qp.requested_psn > qp.granted_psn {
            self.admitted.waiting.push_back(slot);
        }
        if packet.extra < self.receivers[slot as usize].granted_psn {
            // The grant was lost, or not sent yet.
            self.send_grant(slot);
        }
        self.admit();
        self.pump(now_ns, out);
    }

    /// Granted packets have arrived.
    pub(super) fn arrived(&mut self, packets: u32) {
        if self.rules.transports[0].admission.is_some() {
            self.admitted.packets = self.admitted.packets.saturating_sub(packets.into());
            self.admit();
        }
    }

    /// Sends grants while there is room.
    fn admit(&mut self) {
        let transport = &self.rules.transports[0];
        let Some(admission) = transport.admission else { return };
        let packets = |bytes: u64| (bytes / u64::from(transport.payload_bytes)).max(1);
        let (most, chunk) = (packets(admission.bytes), packets(admission.chunk_bytes));
        while let Some(&slot) = self.admitted.waiting.front() {
            let qp = &mut self.receivers[slot as usize];
            let turn = chunk.min((qp.requested_psn - qp.granted_psn).into());
            if self.admitted.packets + turn > most {
                return;
            }
            self.admitted.waiting.pop_front();
            self.admitted.packets += turn;
            qp.granted_psn += turn as u32;
            if qp.requested_psn > qp.granted_psn {
                self.admitted.waiting.push_back(slot);
            }
            self.send_grant(slot);
        }
    }

    /// Sends the current grant to the sender of a QP.
    fn send_grant(&mut self, slot: u32) {
        let qp = &self.receivers[slot as usize];
        let (sender, grant) = (qp.sender, Answer::of(Kind::Grant, qp.granted_psn, 0));
        self.answer(sender, grant);
    }
}
