//! A RoCE flow: both ends of a reliable connection's queue pair.
//!
//! The sender is a NIC with hardware pacing: it asks the flow's rate machine and pacer at the moment a packet leaves, and
//! times the gap after that packet anew whenever the rate changes. Lost packets are recovered by going back to the first one
//! missing, as the InfiniBand Architecture Specification has it (vol. 1, §9.7, reliable service): the receiver says NAK once
//! per gap and is silent then until the missing packet arrives, so the loss of a retransmission costs a timeout.

use std::collections::VecDeque;

use dcqcn_common::flow::{FlowId, NpFlow, QpId, RpFlow};
use dcqcn_common::pacing::Departure;
use dcqcn_common::params::Params;
use dcqcn_common::rate::{Debt, RpParams};

use super::packet::{Packet, Reply, ReplyKind};
use crate::{FlowCounters, RoceGroup, Work};

/// A message that is not acknowledged yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    bytes: u64,
    end_psn: u64,
    posted_ns: u64,
    size: u32,
}

/// A message that has been acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completed {
    /// When it was posted.
    pub(super) posted_ns: u64,
    /// Which of the group's sizes it has.
    pub(super) size: u32,
}

/// What the sender's NIC knows of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has nothing to send.
    Idle,
    /// Its next packet may not leave yet; an event will tell.
    Waiting,
    /// It waits for the link.
    Ready,
    /// Its packet is on the link.
    Sending,
}

/// A RoCE flow.
#[derive(Debug)]
pub(super) struct Qp {
    /// Index of its group.
    pub(super) group: u32,
    /// Index of its sender.
    pub(super) sender: u32,
    /// Where it stands at its sender.
    pub(super) turn: Turn,
    /// Class.
    pub(super) class: u8,
    payload_bytes: u16,
    header_bytes: u16,
    bulk: bool,
    /// It has started.
    pub(super) started: bool,
    timer_is_set: bool,
    /// Reaction point.
    pub(super) rp: RpFlow,
    /// Where it reckons.
    pub(super) debt: Debt,

    next_psn: u64,
    unacknowledged_psn: u64,
    /// Behind the last packet posted.
    end_psn: u64,
    /// Behind the last packet ever sent.
    sent_psn: u64,
    messages: VecDeque<Message>,
    /// The message `next_psn` belongs to.
    cursor: usize,
    ack_every: u32,
    /// Packets since the last that asked for an acknowledgement, and when that was.
    since_ack_request: u32,
    ack_requested_ns: u64,
    /// When the receiver was last heard of, or the first packet left that is not acknowledged.
    progress_ns: u64,
    timeout_ns: u64,

    /// The receiver: what it waits for.
    expected_psn: u64,
    nak_sent: bool,
    /// Notification point, if CNPs are limited per QP.
    pub(super) np: NpFlow,

    /// Statistics since they began.
    pub(super) counters: FlowCounters,
    /// Payload delivered in order, over the whole time.
    pub(super) delivered_bytes: u64,
    /// When its last message was acknowledged.
    pub(super) completed_ns: Option<u64>,
}

impl Qp {
    /// Flow `number` of the simulation, which belongs to `group`.
    pub(super) fn new(number: u32, group: u32, sender: u32, spec: &RoceGroup, rp: &RpParams) -> Self {
        let receiver = QpId { addr: [0; 4], qpn: number, vlan: 0 };
        let id = FlowId { src: [0, 0, 0, sender.wrapping_add(1)], receiver };
        Self {
            group,
            sender,
            turn: Turn::Idle,
            class: spec.class,
            // Payload and header together are a frame of at most 9216 bytes.
            payload_bytes: spec.payload_bytes as u16,
            header_bytes: spec.header_bytes as u16,
            bulk: spec.work == Work::Bulk,
            started: false,
            timer_is_set: false,
            rp: RpFlow::new(id, rp),
            debt: Debt::NONE,
            next_psn: 0,
            unacknowledged_psn: 0,
            end_psn: 0,
            sent_psn: 0,
            messages: VecDeque::new(),
            cursor: 0,
            ack_every: spec.ack_every,
            since_ack_request: 0,
            ack_requested_ns: 0,
            progress_ns: 0,
            timeout_ns: spec.retransmit_timeout_ns,
            expected_psn: 0,
            nak_sent: false,
            np: NpFlow::new(id),
            counters: FlowCounters::default(),
            delivered_bytes: 0,
            completed_ns: None,
        }
    }

    /// Data without an end, until [`Qp::stop`].
    pub(super) const fn post_bulk(&mut self) {
        self.end_psn = u64::MAX;
    }

    /// A message of `bytes` is to be sent; `size` is its index among the group's sizes.
    pub(super) fn post(&mut self, now_ns: u64, bytes: u64, size: u32) {
        self.end_psn += bytes.div_ceil(u64::from(self.payload_bytes));
        self.messages.push_back(Message { bytes, end_psn: self.end_psn, posted_ns: now_ns, size });
    }

    /// Nothing new is sent any more; bulk data ends after the last packet sent.
    pub(super) const fn stop(&mut self) {
        if self.bulk && self.started {
            self.end_psn = self.sent_psn;
        }
    }

    /// Whether there is a packet to send.
    #[inline]
    pub(super) const fn has_data(&self) -> bool {
        self.next_psn < self.end_psn
    }

    /// The next packet, which leaves now; `None`: there is none.
    #[inline]
    pub(super) fn next_packet(&mut self, number: u32, params: &Params, now_ns: u64) -> Option<Packet> {
        if !self.has_data() {
            return None;
        }
        let psn = self.next_psn;
        let (payload_bytes, ends_message) = self.payload(psn);
        let frame_bytes = payload_bytes + self.header_bytes;
        if let Departure::BeyondHorizon =
            self.rp.hot.on_send(params, now_ns, u64::from(frame_bytes), &mut self.debt)
        {
            return None;
        }
        self.since_ack_request += 1;
        // Slow flows ask more often: the timer must not expire for want of a question.
        let asks = ends_message
            || self.since_ack_request >= self.ack_every
            || now_ns - self.ack_requested_ns >= self.timeout_ns / 4;
        if asks {
            self.since_ack_request = 0;
            self.ack_requested_ns = now_ns;
        }
        self.cursor += usize::from(ends_message);
        if self.unacknowledged_psn == psn {
            self.progress_ns = now_ns;
        }
        self.next_psn += 1;
        self.counters.sent_packets += 1;
        if psn < self.sent_psn {
            self.counters.retransmitted_packets += 1;
        } else {
            self.sent_psn = self.next_psn;
        }
        Some(Packet::new(number, psn, frame_bytes, self.class, true, asks))
    }

    /// Payload of the packet at the cursor, and whether it ends its message.
    #[inline]
    fn payload(&self, psn: u64) -> (u16, bool) {
        match self.messages.get(self.cursor) {
            Some(message) if psn + 1 == message.end_psn => {
                let rest = message.bytes % u64::from(self.payload_bytes);
                (if rest == 0 { self.payload_bytes } else { rest as u16 }, true)
            }
            _ => (self.payload_bytes, false),
        }
    }

    /// Everything before `psn` has arrived. Calls `completed` for every message that has.
    #[inline]
    pub(super) fn on_ack(&mut self, now_ns: u64, psn: u64, mut completed: impl FnMut(Completed)) {
        if psn <= self.unacknowledged_psn {
            return;
        }
        self.unacknowledged_psn = psn;
        self.progress_ns = now_ns;
        while let Some(&Message { end_psn, posted_ns, size, .. }) = self.messages.front()
            && end_psn <= psn
        {
            self.messages.pop_front();
            self.cursor = self.cursor.saturating_sub(1);
            self.counters.messages += 1;
            self.completed_ns = Some(now_ns);
            completed(Completed { posted_ns, size });
        }
        if self.next_psn < psn {
            self.go_to(psn);
        }
    }

    /// `psn` is missing: everything from there on is sent again.
    pub(super) fn on_nak(&mut self, now_ns: u64, psn: u64) {
        self.counters.naks += 1;
        if psn >= self.unacknowledged_psn && psn < self.next_psn {
            self.progress_ns = now_ns;
            self.go_to(psn);
        }
    }

    fn go_to(&mut self, psn: u64) {
        self.next_psn = psn;
        self.cursor = self.messages.partition_point(|message| message.end_psn <= psn);
    }

    /// When to look at the retransmission timer, if that is not settled yet; a packet has just been sent.
    #[inline]
    pub(super) const fn set_timer(&mut self, now_ns: u64) -> Option<u64> {
        if self.timer_is_set {
            return None;
        }
        self.timer_is_set = true;
        Some(now_ns + self.timeout_ns)
    }

    /// The timer's event: when to look again, if at all.
    pub(super) fn on_timer(&mut self, now_ns: u64) -> Option<u64> {
        self.timer_is_set = false;
        if self.next_psn == self.unacknowledged_psn {
            return None;
        }
        if now_ns >= self.progress_ns + self.timeout_ns {
            self.counters.timeouts += 1;
            self.progress_ns = now_ns;
            self.go_to(self.unacknowledged_psn);
        }
        self.timer_is_set = true;
        Some(self.progress_ns + self.timeout_ns)
    }

    /// The receiver gets a packet: what it answers, if anything.
    #[inline]
    pub(super) fn on_data(&mut self, packet: Packet) -> Option<Reply> {
        let reply = |sequence, kind| Some(Reply { sequence, flow: packet.flow, kind });
        if packet.sequence > self.expected_psn {
            if self.nak_sent {
                return None;
            }
            self.nak_sent = true;
            return reply(self.expected_psn, ReplyKind::Nak);
        }
        if packet.sequence == self.expected_psn {
            self.expected_psn += 1;
            self.nak_sent = false;
            let payload_bytes = u64::from(packet.frame_bytes - self.header_bytes);
            self.delivered_bytes += payload_bytes;
            self.counters.bytes += payload_bytes;
        }
        // A duplicate is acknowledged as well.
        if packet.asks_for_ack() { reply(self.expected_psn, ReplyKind::Ack) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::params::{Config, Port};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the network loses: every message arrives, once and in order.
        #[test]
        fn messages_survive_any_losses(
            sizes in proptest::collection::vec(1u64..9_000, 1..20), lost in proptest::collection::vec(any::<bool>(), 0..200),
        ) {
            let mut config = Config::DEFAULT;
            config.scalars.link_rate_bps = 10_000_000_000;
            let params = Params::new(&config, Port::new(1, 1, 1)).unwrap();
            let mut qp = Qp::new(0, 0, 0, &RoceGroup::bulk("", 1), &params.rp);
            for (i, &bytes) in (0..).zip(&sizes) {
                qp.post(u64::from(i), bytes, i);
            }
            let mut lost = lost.into_iter();
            let mut completed = Vec::new();
            // Answers are some packets under way.
            let mut answers = VecDeque::new();
            let mut now_ns = 1_000;
            for _ in 0..100_000 {
                now_ns += 1_000;
                let packet = qp.next_packet(0, &params, now_ns);
                if let Some(packet) = packet {
                    qp.set_timer(now_ns);
                    let arrives = !lost.next().unwrap_or(false);
                    answers.push_back(if arrives { qp.on_data(packet) } else { None });
                }
                if answers.len() > 5 || packet.is_none() {
                    match answers.pop_front() {
                        Some(Some(Reply { sequence, kind, .. })) => {
                            if kind == ReplyKind::Nak {
                                qp.on_nak(now_ns, sequence);
                            }
                            qp.on_ack(now_ns, sequence, |message| completed.push(message));
                        }
                        Some(None) => {}
                        None if completed.len() == sizes.len() => break,
                        None => {
                            now_ns += qp.timeout_ns;
                            qp.on_timer(now_ns);
                        }
                    }
                }
            }
            let expected: Vec<_> =
                (0..).zip(&sizes).map(|(i, _)| Completed { posted_ns: u64::from(i), size: i }).collect();
            prop_assert_eq!(completed, expected);
            prop_assert_eq!(qp.delivered_bytes, sizes.iter().sum::<u64>());
            let distinct: u64 = sizes.iter().map(|bytes| bytes.div_ceil(1_024)).sum();
            prop_assert_eq!(qp.counters.sent_packets, distinct + qp.counters.retransmitted_packets);
            prop_assert!(!qp.has_data() && qp.messages.is_empty());
        }
    }
}
