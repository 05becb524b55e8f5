//! The sending end of a queue pair.
//!
//! The NIC asks the QP's rate machine and pacer at the moment a packet leaves. Lost packets are recovered as
//! [`Recovery`] says.

mod answers;

use std::collections::VecDeque;

use dcqcn_common::flow::{FlowId, RpFlow};
use dcqcn_common::pacing::Departure;
use dcqcn_common::params::Params;
use dcqcn_common::rate::Debt;

use super::flight::Flight;
use super::repair::{Known, Repair};
use crate::network::pace::look_again_ns;
use crate::network::packet::{Kind, Packet};
use crate::network::scenario::{Recovery, Transport};
use crate::network::workload::Flow;

/// A flow that is not acknowledged yet.
#[derive(Clone, Copy, Debug)]
struct Message {
    flow: u32,
    bytes: u64,
    end_psn: u32,
    posted_ns: u64,
}

/// A flow that has been acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    pub(crate) flow: u32,
    pub(crate) posted_ns: u64,
}

/// Where a QP stands at its NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It has nothing to send.
    Idle,
    /// Its next packet may not leave yet; an event will tell.
    Waiting,
    /// It stands in line.
    Ready,
}

/// Where its packets go, and what they look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// The receiver, and the QP's number among those that it receives on.
    pub(crate) dst: u32,
    pub(crate) at_dst: u32,
    pub(crate) class: u8,
    pub(crate) entropy: u32,
}

/// The sending end of a QP.
#[derive(Debug)]
pub(crate) struct SendQp {
    pub(crate) address: Address,
    pub(crate) turn: Turn,
    /// When the event of its retransmission timer comes; 0: there is none.
    timer_ns: u64,
    /// Reaction point.
    pub(crate) rp: RpFlow,
    /// Where it reckons.
    pub(crate) debt: Debt,
    next_psn: u32,
    unacknowledged_psn: u32,
    /// Behind the last packet posted, behind the last that may be sent, and behind the last ever sent.
    end_psn: u32,
    granted_psn: u32,
    sent_psn: u32,
    /// The receiver is to be asked whether more may be sent.
    asks: bool,
    messages: VecDeque<Message>,
    since_ack_request: u32,
    ack_requested_ns: u64,
    /// When the receiver was last heard of, or the first packet left that is not acknowledged.
    progress_ns: u64,
    repair: Repair,
    /// NSCC: what is under way, and the window. It takes the place of the rate.
    flight: Option<Box<Flight>>,
    pub(crate) retransmitted: u64,
    pub(crate) timeouts: u64,
}

impl SendQp {
    /// A new one, which may send up to `granted_psn` without being told so.
    pub(crate) fn new(
        address: Address,
        id: FlowId,
        params: &Params,
        granted_psn: u32,
        flight: Option<Box<Flight>>,
    ) -> Self {
        Self {
            address,
            turn: Turn::Idle,
            timer_ns: 0,
            rp: RpFlow::new(id, &params.rp),
            debt: Debt::NONE,
            next_psn: 0,
            unacknowledged_psn: 0,
            end_psn: 0,
            granted_psn,
            sent_psn: 0,
            asks: false,
            messages: VecDeque::new(),
            since_ack_request: 0,
            ack_requested_ns: 0,
            progress_ns: 0,
            repair: Repair::default(),
            flight,
            retransmitted: 0,
            timeouts: 0,
        }
    }

    /// A flow is to be sent.
    pub(crate) fn post(&mut self, now_ns: u64, number: u32, flow: &Flow, transport: &Transport) {
        let packets = flow.bytes.div_ceil(transport.payload_bytes.into());
        if self.sent_psn == self.unacknowledged_psn {
            self.progress_ns = now_ns;
        }
        self.end_psn += packets as u32;
        self.asks = self.end_psn > self.granted_psn;
        self.messages.push_back(Message {
            flow: number,
            bytes: flow.bytes,
            end_psn: self.end_psn,
            posted_ns: now_ns,
        });
    }

    /// Whether a packet may be sent as far as the receiver is concerned.
    #[inline]
    pub(crate) fn has_data(&mut self, transport: &Transport) -> bool {
        match self.missing() {
            Some(psn) => self.has_room(psn, transport),
            None => self.may_send_new(transport),
        }
    }

    #[inline]
    fn may_send_new(&self, transport: &Transport) -> bool {
        let under_way =
            u64::from(self.next_psn - self.unacknowledged_psn) * u64::from(transport.payload_bytes);
        self.next_psn < self.end_psn.min(self.granted_psn)
            && (transport.window_bytes == 0 || under_way < transport.window_bytes)
            && self.has_room(self.next_psn, transport)
    }

    /// Whether NSCC lets it send a packet.
    #[inline]
    fn has_room(&self, psn: u32, transport: &Transport) -> bool {
        self.flight.as_ref().is_none_or(|flight| {
            flight.has_room((psn - self.unacknowledged_psn) as usize, transport.frame_bytes().into())
        })
    }

    /// The next packet to send again, by selective repeat.
    #[inline]
    fn missing(&mut self) -> Option<u32> {
        let (repair, first_psn) = (&mut self.repair, self.unacknowledged_psn);
        while let Some(&psn) = repair.trimmed.front() {
            let index = psn.checked_sub(first_psn);
            if index.is_some_and(|index| repair.known.get(index as usize) != Some(&Known::Arrived)) {
                return Some(psn);
            }
            repair.trimmed.pop_front();
        }
        repair.next_psn = repair.next_psn.max(first_psn);
        while repair.next_psn < repair.until_psn {
            let index = (repair.next_psn - first_psn) as usize;
            if repair.known.get(index).is_none_or(|known| *known == Known::Nothing) {
                return Some(repair.next_psn);
            }
            repair.next_psn += 1;
        }
        None
    }

    /// The packet of [`SendQp::missing`] is sent.
    fn send_again(&mut self, psn: u32) {
        if self.repair.trimmed.front() == Some(&psn) {
            self.repair.trimmed.pop_front();
            self.repair.set((psn - self.unacknowledged_psn) as usize, Known::SentAgain);
        } else {
            self.repair.next_psn = psn + 1;
        }
    }

    /// The next packet, which leaves now; `None`: there is none.
    #[inline]
    pub(crate) fn next_packet(
        &mut self,
        params: &Params,
        transport: &Transport,
        now_ns: u64,
    ) -> Option<Packet> {
        let missing = self.missing();
        let psn = match missing {
            Some(psn) if self.has_room(psn, transport) => psn,
            None if self.may_send_new(transport) => self.next_psn,
            _ => return None,
        };
        let (payload_bytes, ends) = self.payload(psn, transport);
        let frame_bytes = payload_bytes + transport.header_bytes;
        if let Some(flight) = &mut self.flight {
            flight.on_send(now_ns, (psn - self.unacknowledged_psn) as usize, frame_bytes);
        } else if let Departure::BeyondHorizon =
            self.rp.hot.on_send(params, now_ns, frame_bytes.into(), &mut self.debt)
        {
            return None;
        }
        self.since_ack_request += 1;
        // Slow flows ask more often: the timer must not expire for want of a question.
        let asks = ends.is_some()
            || missing.is_some()
            || psn + 1 == self.granted_psn
            || self.since_ack_request >= transport.ack_every
            || now_ns - self.ack_requested_ns >= transport.timeout_ns / 4
            || (transport.window_bytes != 0 && !self.may_send_after(psn, transport))
            || self.flight.as_ref().is_some_and(|flight| flight.is_full(transport.frame_bytes().into()));
        if asks {
            self.since_ack_request = 0;
            self.ack_requested_ns = now_ns;
        }
        if self.unacknowledged_psn == psn {
            self.progress_ns = now_ns;
        }
        if missing.is_some() {
            self.send_again(psn);
        } else {
            self.next_psn = psn + 1;
        }
        if psn < self.sent_psn {
            self.retransmitted += 1;
        } else {
            self.sent_psn = psn + 1;
        }
        let Address { dst, at_dst, class, entropy, .. } = self.address;
        let flags = Packet::ECT
            | if asks { Packet::ACK_REQUEST } else { 0 }
            | if ends.is_some() { Packet::LAST } else { 0 };
        Some(Packet {
            dst,
            qp: at_dst,
            psn,
            extra: ends.unwrap_or(0),
            entropy,
            frame_bytes: frame_bytes as u16,
            ingress: 0,
            class,
            kind: Kind::Data,
            flags,
        })
    }

    /// Whether the window leaves room for a packet after `psn`: if not, the receiver has to be asked.
    fn may_send_after(&self, psn: u32, transport: &Transport) -> bool {
        let under_way = u64::from(psn + 1 - self.unacknowledged_psn) * u64::from(transport.payload_bytes);
        under_way < transport.window_bytes
    }

    /// Payload of a packet, and the flow that it ends.
    #[inline]
    fn payload(&self, psn: u32, transport: &Transport) -> (u32, Option<u32>) {
        let index = match self.messages.front() {
            Some(first) if psn < first.end_psn => 0,
            _ => self.messages.partition_point(|message| message.end_psn <= psn),
        };
        match self.messages.get(index) {
            Some(message) if psn + 1 == message.end_psn => {
                let rest = (message.bytes % u64::from(transport.payload_bytes)) as u32;
                (if rest == 0 { transport.payload_bytes } else { rest }, Some(message.flow))
            }
            _ => (transport.payload_bytes, None),
        }
    }

    /// What it has to ask the receiver, if anything: whether it may send up to the first when it may up to the second.
    pub(crate) fn question(&mut self) -> Option<(u32, u32)> {
        std::mem::take(&mut self.asks).then_some((self.end_psn, self.granted_psn))
    }

    /// The receiver lets it send up to `psn`.
    pub(crate) fn on_grant(&mut self, now_ns: u64, psn: u32) {
        if psn > self.granted_psn {
            self.granted_psn = psn;
            self.progress_ns = now_ns;
        }
    }

    /// When to look at the retransmission timer, if that is not settled yet; a packet or a question has just been sent.
    #[inline]
    pub(crate) const fn set_timer(&mut self, now_ns: u64, transport: &Transport) -> Option<u64> {
        if self.timer_ns != 0 {
            return None;
        }
        self.timer_ns = now_ns + transport.timeout_ns;
        Some(self.timer_ns)
    }

    /// The timer's event: when to look again, if at all. One that was set for another QP in the same place means nothing.
    pub(crate) fn on_timer(&mut self, now_ns: u64, transport: &Transport) -> Option<u64> {
        if self.timer_ns != now_ns {
            return None;
        }
        self.timer_ns = 0;
        let idle = self.sent_psn == self.unacknowledged_psn;
        if idle && self.granted_psn >= self.end_psn {
            return None;
        }
        if idle && now_ns >= self.progress_ns + transport.timeout_ns {
            // A question or its answer was lost.
            self.asks = true;
            self.progress_ns = now_ns;
        } else if now_ns >= self.progress_ns + transport.timeout_ns {
            self.timeouts += 1;
            self.progress_ns = now_ns;
            match transport.recovery {
                Recovery::GoBackN => self.next_psn = self.unacknowledged_psn,
                Recovery::Selective { .. } => {
                    self.repair.forget();
                    self.repair.recover_psn = self.sent_psn;
                    self.repair.next_psn = self.unacknowledged_psn;
                    self.repair.until_psn = self.repair.until_psn.max(self.unacknowledged_psn + 1);
                }
            }
        }
        self.timer_ns = self.progress_ns + transport.timeout_ns;
        Some(self.timer_ns)
    }

    /// When to look whether its next packet may leave; `None`: it may.
    #[inline]
    pub(crate) fn due_ns(&mut self, params: &Params, now_ns: u64) -> Option<u64> {
        if self.flight.is_some() {
            return None;
        }
        look_again_ns(&mut self.rp.hot, &params.rp, now_ns, &mut self.debt)
    }

    /// Whether it has nothing under way and nothing to send.
    pub(crate) fn is_done(&self) -> bool {
        self.messages.is_empty()
    }
}
