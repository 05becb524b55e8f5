//! Packet reception at a host: replies to data, and CNPs.

use dcqcn_common::wire::cnp::RESERVED_LEN;

use super::receive::{Answer, ReceiveQp};
use super::send::SendPhase;
use super::{AETH_BYTES, Host, NO_SLOT, QpEntry, flow_id, store};
use crate::network::agenda::Event;
use crate::network::packet::{Address, Kind, Packet};
use crate::network::scenario::Control;
use crate::network::wire::Outbox;
use crate::network::workload::{Pair, Wait};

/// State of admission between a sender and a receiver.
const MESSAGE_BYTES: u16 = 16;

impl Host {
    #[inline]
    pub(super) fn on_arrival(&mut self, now_ns: u64, packet: Packet, out: &mut Outbox) {
        if !self.wire.up {
            return;
        }
        match packet.kind {
            Kind::Pfc => {
                self.wire.on_pfc(now_ns, packet);
                self.pump(now_ns, out);
            }
            Kind::Data => {
                self.hops += 1;
                self.on_data(now_ns, &packet, out);
                self.reply(now_ns, out);
            }
            Kind::Request => {
                self.hops += 1;
                self.on_request(now_ns, &packet, out);
            }
            Kind::Ack | Kind::Nak | Kind::Cnp | Kind::Grant => {
                self.hops += 1;
                self.on_answer(now_ns, &packet, out);
            }
        }
    }

    /// A packet that this host receives.
    #[inline]
    pub(super) fn on_data(&mut self, now_ns: u64, packet: &Packet, out: &mut Outbox) {
        let QpEntry { pair: number, slot, left } = self.receives[packet.qp as usize];
        if left == 0 {
            // All flows of this QP have arrived: the last acknowledgement was lost.
            self.answer(self.sender_of(packet, number), Answer::ack(u32::MAX, packet));
            self.pump(now_ns, out);
            return;
        }
        let slot = if slot == NO_SLOT { self.receiver(packet, number) } else { slot };
        let qp = &mut self.receivers[slot as usize];
        let sender = qp.sender;
        let transport = &self.rules.transports[usize::from(sender.transport)];
        qp.marked += u64::from(packet.is(Packet::CE));
        if transport.tcp.is_some() {
            // Each segment is acknowledged, with its mark.
            self.answer(sender, Answer::ack(0, packet));
            self.pump(now_ns, out);
            return;
        }
        let mut delivered = Vec::new();
        let before_psn = qp.expected_psn();
        let mut answer = qp.on_data(packet, transport.recovery, &mut delivered);
        let arrived = qp.expected_psn() - before_psn;
        if arrived != 0 {
            qp.bytes += u64::from(packet.frame_bytes).saturating_sub(transport.header_bytes.into());
        }
        self.counters.delivered_packets += 1;
        if self.rules.control == Control::Dcqcn {
            self.window_ends_by_packet(now_ns, slot, packet.is(Packet::CE));
        }
        if packet.is(Packet::CE) {
            self.counters.marked += 1;
            match self.rules.control {
                Control::Dcqcn => self.on_ce(now_ns, slot),
                // A mark is reported immediately.
                Control::Nscc(_) => answer = answer.or(self.receivers[slot as usize].acknowledge(packet)),
                Control::Off => {}
            }
        }
        if let Some(answer) = answer {
            self.answer(sender, answer);
        }
        self.arrived(arrived);
        if !delivered.is_empty() {
            for &flow in &delivered {
                self.complete(now_ns, flow, Wait::Delivered, out);
            }
            let entry = &mut self.receives[packet.qp as usize];
            entry.left -= if self.rules.reply_ns.is_empty() { delivered.len() as u32 } else { 0 };
            if entry.left == 0 {
                entry.slot = NO_SLOT;
                self.free_receivers.push(slot);
                self.on_last_packet(slot);
            }
        }
        self.pump(now_ns, out);
    }

    /// The sender of a packet of QP `number`, as the destination of replies.
    fn sender_of(&self, packet: &Packet, number: u32) -> Address {
        let Pair { src, class, transport, .. } = self.rules.workload.pairs()[number as usize];
        let (at_src, _) = self.rules.locals[number as usize];
        Address { dst: src, at_dst: at_src, class, transport, entropy: packet.entropy }
    }

    /// Index of the receiving end of a QP.
    pub(super) fn receiver(&mut self, packet: &Packet, number: u32) -> u32 {
        let (_, local) = self.rules.locals[number as usize];
        let id = flow_id(self.rules.workload.pairs()[number as usize], number);
        let qp = ReceiveQp::new(self.sender_of(packet, number), id);
        if let Some(&slot) = self.free_receivers.last() {
            self.on_slot_reused(slot);
        }
        let slot = store(&mut self.receivers, &mut self.free_receivers, qp);
        self.receives[local as usize].slot = slot;
        slot
    }

    pub(super) fn send_cnp(&mut self, slot: u32) {
        self.counters.cnps_sent += 1;
        self.answer(self.receivers[slot as usize].sender, Answer::of(Kind::Cnp, 0, 0));
    }

    /// Queues a reply, or a request. ACKs and NAKs are in the class of the data unless they have their own.
    pub(super) fn answer(&mut self, to: Address, answer: Answer) {
        let transport = &self.rules.transports[usize::from(to.transport)];
        let (class, bytes) = match answer.kind {
            Kind::Cnp => (None, RESERVED_LEN as u16),
            // A SEND of some bytes.
            Kind::Request | Kind::Grant => (transport.admission.and_then(|own| own.class), MESSAGE_BYTES),
            _ => (Some(transport.ack_class.unwrap_or(to.class)), AETH_BYTES),
        };
        let class = class.unwrap_or(self.rules.cnp_class);
        let packet = Packet {
            dst: to.dst,
            qp: to.at_dst,
            psn: answer.psn,
            extra: answer.named_psn,
            entropy: to.entropy,
            frame_bytes: transport.header_bytes as u16 + bytes,
            class,
            kind: answer.kind,
            flags: answer.flags,
            ..Packet::default()
        };
        if self.rules.reply_ns.is_empty() {
            self.lines[usize::from(class)].answers.push_back(packet);
            self.waiting |= 1 << class;
        } else {
            self.replies.push(packet);
        }
    }

    /// A reply to data of this host.
    #[inline]
    pub(super) fn on_answer(&mut self, now_ns: u64, packet: &Packet, out: &mut Outbox) {
        let slot = self.sends[packet.qp as usize].slot;
        if slot == NO_SLOT {
            return;
        }
        let qp = &mut self.senders[slot as usize];
        if qp.on_segment(now_ns, packet) {
            self.wake(now_ns, slot, out);
            return;
        }
        if let Some(law) = self.law.as_ref().filter(|_| matches!(packet.kind, Kind::Ack | Kind::Nak)) {
            qp.on_reply(law, now_ns, packet);
        }
        match packet.kind {
            Kind::Cnp => {
                self.counters.cnps_handled += 1;
                qp.cnps += 1;
                let params = &self.params[usize::from(qp.address.transport)];
                if params.config.scalars.rp_enable != 0 {
                    qp.rp.on_cnp(&params.rp, now_ns, &mut qp.debt);
                }
                return;
            }
            Kind::Nak => {
                self.counters.naks += 1;
                qp.naks += 1;
                let transport = &self.rules.transports[usize::from(qp.address.transport)];
                let trimmed = packet.is(Packet::TRIMMED);
                qp.on_nak(now_ns, packet.psn, packet.extra, trimmed, transport);
            }
            Kind::Grant => {
                qp.on_grant(now_ns, packet.psn);
                self.wake(now_ns, slot, out);
                return;
            }
            Kind::Ack | Kind::Data | Kind::Pfc | Kind::Request => {}
        }
        if let Some(timer_ns) = qp.on_probed_reply(now_ns, packet) {
            self.agenda.at(timer_ns, Event::Timer, slot);
        }
        let first = self.records.len();
        qp.on_ack(now_ns, packet.psn, &mut self.records);
        if self.records.len() > first {
            self.on_acknowledged(now_ns, packet.qp, slot, first, out);
        }
        if self.sends[packet.qp as usize].slot == slot {
            self.wake(now_ns, slot, out);
        }
    }

    /// Handles the acknowledgement of all flows with records from `first` on.
    pub(super) fn on_acknowledged(
        &mut self,
        now_ns: u64,
        qp: u32,
        slot: u32,
        first: usize,
        out: &mut Outbox,
    ) {
        let count = (self.records.len() - first) as u32;
        for index in first..first + count as usize {
            let record = self.records[index];
            self.complete(now_ns, record.flow, Wait::Acknowledged, out);
            self.on_completed(now_ns, slot, record);
        }
        if !self.rules.reply_ns.is_empty() {
            return;
        }
        let entry = &mut self.sends[qp as usize];
        entry.left -= count.min(entry.left);
        let sender = &mut self.senders[slot as usize];
        if entry.left == 0 && sender.is_done() && sender.phase == SendPhase::Idle {
            entry.slot = NO_SLOT;
            self.counters.retransmitted += sender.retransmitted;
            sender.timeouts = 0;
            self.free_senders.push(slot);
        }
    }
}
