//! The receiving side: the end of a QP, replies to data, CNPs at the end of a window, and admission of senders.

use std::collections::{BTreeSet, HashMap, VecDeque};

use dcqcn_common::flow::{FlowId, NpFlow};
use dcqcn_common::params::{CNP_LIMIT_PEER, CNP_LIMIT_PORT, CNP_LIMIT_QP, NP_WINDOW_BOTH};
use dcqcn_common::rc::ReceiveWindow;
use dcqcn_common::wire::cnp::RESERVED_LEN;

use super::send::SendPhase;
use super::{AETH_BYTES, Host, NO_SLOT, QpEntry, flow_id, store};
use crate::network::agenda::Event;
use crate::network::packet::{Address, Kind, Packet};
use crate::network::scenario::{Control, Recovery, WindowEnd};
use crate::network::wire::Outbox;
use crate::network::workload::{Pair, Wait};

/// [`ReceiveQp::later`]: this packet has not arrived.
const MISSING: u64 = u64::MAX;
/// [`ReceiveQp::later`]: it has arrived, and ends no flow.
const ARRIVED: u64 = u64::MAX - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    /// The packet expected next.
    pub(crate) psn: u32,
    /// The packet that arrived.
    pub(crate) named_psn: u32,
    /// [`Packet::TRIMMED`] and [`Packet::ECHO`].
    pub(crate) flags: u8,
}

impl Answer {
    /// Everything before `psn` has arrived, and so has `packet`.
    pub(crate) const fn ack(psn: u32, packet: &Packet) -> Self {
        Self { kind: Kind::Ack, psn, named_psn: packet.psn, flags: packet.echo() }
    }

    /// A CNP, or an admission message with its range.
    pub(crate) const fn of(kind: Kind, psn: u32, named_psn: u32) -> Self {
        Self { kind, psn, named_psn, flags: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct ReceiveQp {
    pub(crate) sender: Address,
    window: ReceiveWindow,
    /// The sender's requested and granted limit.
    pub(super) requested_psn: u32,
    pub(super) granted_psn: u32,
    /// Go-back-N: the sender has restarted after the NAK, as this trimmed packet was sent after it.
    restarted: bool,
    /// Go-back-N: the first trimmed packet that arrived ahead of previous ones.
    trimmed_psn: Option<u32>,
    /// Go-back-N: the last packet that was trimmed, or arrived after a gap.
    last_psn: u32,
    /// Selective repeat: arrivals after a gap, from the expected packet on; a flow's number where it ends one.
    later: VecDeque<u64>,
    /// Notification point, if CNPs are limited per QP.
    pub(crate) np: NpFlow,
    /// Payload delivered in order (go-back-N).
    pub(crate) bytes: u64,
    pub(crate) marked: u64,
}

impl ReceiveQp {
    pub(crate) fn new(sender: Address, id: FlowId) -> Self {
        Self {
            sender,
            window: ReceiveWindow::default(),
            requested_psn: 0,
            granted_psn: 0,
            restarted: false,
            trimmed_psn: None,
            last_psn: 0,
            later: VecDeque::new(),
            np: NpFlow::new(id),
            bytes: 0,
            marked: 0,
        }
    }

    /// Packets that have arrived without a gap.
    #[inline]
    pub(crate) const fn expected_psn(&self) -> u32 {
        self.window.expected() as u32
    }

    /// A packet arrives; adds the flows that this completes to `delivered`.
    #[inline]
    pub(crate) fn on_data(
        &mut self,
        packet: &Packet,
        recovery: Recovery,
        delivered: &mut Vec<u32>,
    ) -> Option<Answer> {
        let expected = self.expected_psn();
        if packet.is(Packet::TRIMMED) {
            return match recovery {
                _ if packet.psn < expected => self.acknowledge(packet),
                Recovery::GoBackN | Recovery::Probe => self.on_trimmed(packet),
                Recovery::Selective => Some(self.nak(packet)),
            };
        }
        if packet.psn > expected {
            return self.on_gap(packet, recovery);
        }
        if packet.psn < expected {
            // A duplicate.
            return if packet.is(Packet::ACK_REQUEST) { self.acknowledge(packet) } else { None };
        }
        self.window.accept();
        self.restarted = false;
        if packet.is(Packet::LAST) {
            delivered.push(packet.extra);
        }
        if self.trimmed_psn == Some(self.expected_psn()) {
            self.on_nak_sent();
            let psn = self.expected_psn();
            return Some(Answer { flags: Packet::TRIMMED, ..Answer::of(Kind::Nak, psn, psn) });
        }
        let fills_gap = !self.later.is_empty();
        if fills_gap {
            self.later.pop_front();
            while let Some(&next) = self.later.front().filter(|next| **next != MISSING) {
                self.later.pop_front();
                self.window.accept();
                if next != ARRIVED {
                    delivered.push(next as u32);
                }
            }
        }
        if packet.is(Packet::ACK_REQUEST) || fills_gap { self.acknowledge(packet) } else { None }
    }

    /// Go-back-N: a trimmed packet.
    ///
    /// A trimmed packet overtakes untrimmed packets sent before it. An immediate NAK for the expected packet
    /// would restart the sender at packets that are in flight: they arrive twice, fill the queue, and cause
    /// more trimming. So the NAK is sent when all previous packets have arrived.
    fn on_trimmed(&mut self, packet: &Packet) -> Option<Answer> {
        let goes_back = packet.psn <= self.last_psn;
        self.last_psn = packet.psn;
        if packet.psn == self.expected_psn() {
            self.on_nak_sent();
            return Some(self.nak(packet));
        }
        self.restarted |= goes_back && self.window.nak_sent();
        if self.restarted || !self.window.nak_sent() {
            self.trimmed_psn = Some(self.trimmed_psn.map_or(packet.psn, |psn| psn.min(packet.psn)));
        }
        None
    }

    /// A NAK is sent; the sender restarts at the expected packet, so later trimmed packets do not matter.
    const fn on_nak_sent(&mut self) {
        self.window.on_missing();
        self.restarted = false;
        self.trimmed_psn = None;
    }

    fn on_gap(&mut self, packet: &Packet, recovery: Recovery) -> Option<Answer> {
        let nak = self.nak(packet);
        match recovery {
            // One NAK per gap, and none until it is filled.
            Recovery::GoBackN | Recovery::Probe if self.window.on_missing() => {
                self.on_nak_sent();
                Some(nak)
            }
            Recovery::GoBackN | Recovery::Probe => {
                self.last_psn = self.last_psn.max(packet.psn);
                None
            }
            Recovery::Selective => {
                let index = (packet.psn - self.expected_psn()) as usize;
                if self.later.len() <= index {
                    self.later.resize(index + 1, MISSING);
                }
                self.later[index] = if packet.is(Packet::LAST) { packet.extra.into() } else { ARRIVED };
                Some(nak)
            }
        }
    }

    const fn nak(&self, packet: &Packet) -> Answer {
        let flags = packet.flags & Packet::TRIMMED | packet.echo();
        Answer { flags, ..Answer::of(Kind::Nak, self.expected_psn(), packet.psn) }
    }

    /// Everything before the expected packet has arrived, and so has `packet`.
    pub(super) const fn acknowledge(&self, packet: &Packet) -> Option<Answer> {
        Some(Answer::ack(self.expected_psn(), packet))
    }
}

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

#[derive(Debug, Default)]
pub(super) struct WindowEnds {
    /// [`WindowEnd::NextOfPort`]: their times, and the indices of their QPs.
    pending: BTreeSet<(u64, u32)>,
    /// Delay of each CNP after its window's end.
    late_ns: Vec<u64>,
}

/// The state that limits the CNPs of a QP: its own, its peer's, or the port's.
fn limiter<'a>(nps: &'a mut HashMap<u32, NpFlow>, qp: &'a mut ReceiveQp, cnp_limit: u64) -> &'a mut NpFlow {
    match cnp_limit {
        CNP_LIMIT_PEER => nps.entry(qp.sender.dst).or_insert(NpFlow::new(FlowId::NONE)),
        CNP_LIMIT_PORT => nps.entry(u32::MAX).or_insert(NpFlow::new(FlowId::NONE)),
        _ => &mut qp.np,
    }
}

/// The notification point: marks are answered immediately or at the end of a window, depending on the trigger.
impl Host {
    /// A marked packet arrived.
    pub(super) fn on_ce(&mut self, now_ns: u64, slot: u32) {
        let scalars = &self.params[0].config.scalars;
        if scalars.np_enable == 0 {
            return;
        }
        let interval_ns = scalars.min_time_between_cnps_ns;
        let at_window_end = scalars.np_window == NP_WINDOW_BOTH;
        let np = limiter(&mut self.nps, &mut self.receivers[slot as usize], scalars.cnp_limit);
        let was_pending = np.pending != 0;
        let end_ns = np.last_cnp_ns + interval_ns;
        if np.on_ecn_marked(now_ns, interval_ns) {
            if was_pending && at_window_end {
                self.window_ends.late_ns.push(now_ns - end_ns);
            }
            self.send_cnp(slot);
        } else if at_window_end && !was_pending {
            match self.rules.window_end {
                WindowEnd::Timer => self.agenda.at(end_ns, Event::Window, slot),
                WindowEnd::NextOfFlow => {}
                WindowEnd::NextOfPort => {
                    self.window_ends.pending.insert((end_ns, slot));
                }
            }
        }
    }

    pub(super) fn on_window(&mut self, now_ns: u64, slot: u32, out: &mut Outbox) {
        if (slot as usize) < self.receivers.len() {
            self.end_window(now_ns, slot);
            self.pump(now_ns, out);
        }
    }

    /// A packet of the QP in `slot` arrived, which triggers CNPs for windows that have ended. If it is marked itself,
    /// its flow is answered anyway.
    #[inline]
    pub(super) fn window_ends_by_packet(&mut self, now_ns: u64, slot: u32, marked: bool) {
        match self.rules.window_end {
            WindowEnd::Timer => {}
            WindowEnd::NextOfFlow => {
                if !marked && self.params[0].config.scalars.np_window == NP_WINDOW_BOTH {
                    self.end_window(now_ns, slot);
                }
            }
            WindowEnd::NextOfPort => {
                while let Some(&(end_ns, of)) = self.window_ends.pending.first().filter(|end| end.0 <= now_ns)
                {
                    self.window_ends.pending.remove(&(end_ns, of));
                    self.end_window(now_ns, of);
                }
            }
        }
    }

    /// Answers pending marks whose window has ended, unless a later CNP was sent.
    fn end_window(&mut self, now_ns: u64, slot: u32) {
        let scalars = &self.params[0].config.scalars;
        let interval_ns = scalars.min_time_between_cnps_ns;
        let np = limiter(&mut self.nps, &mut self.receivers[slot as usize], scalars.cnp_limit);
        let end_ns = np.last_cnp_ns + interval_ns;
        if np.on_window_end(now_ns, interval_ns) {
            self.window_ends.late_ns.push(now_ns - end_ns);
            self.send_cnp(slot);
        }
    }

    pub(super) fn on_last_packet(&mut self, slot: u32) {
        if self.rules.window_end == WindowEnd::NextOfFlow && self.is_pending(slot) {
            self.counters.marks_unanswered += 1;
        }
    }

    /// A new QP reuses the slot of a removed one, whose pending marks are dropped.
    pub(super) fn on_slot_reused(&mut self, slot: u32) {
        if self.rules.window_end != WindowEnd::NextOfFlow && self.is_pending(slot) {
            self.counters.marks_unanswered += 1;
            let interval_ns = self.params[0].config.scalars.min_time_between_cnps_ns;
            let end_ns = self.receivers[slot as usize].np.last_cnp_ns + interval_ns;
            self.window_ends.pending.remove(&(end_ns, slot));
        }
    }

    /// Whether marks of the QP in this slot wait for a separate answer.
    fn is_pending(&self, slot: u32) -> bool {
        let scalars = &self.params[0].config.scalars;
        let of_qp = scalars.np_window == NP_WINDOW_BOTH && scalars.cnp_limit == CNP_LIMIT_QP;
        of_qp && self.rules.control == Control::Dcqcn && self.receivers[slot as usize].np.pending != 0
    }

    /// Marks that were never answered: their QP was removed, or no further packet arrived.
    pub(crate) fn unanswered(&self) -> u64 {
        self.counters.marks_unanswered + self.window_ends.pending.len() as u64
    }

    /// Delay of each CNP after its window's end.
    pub(crate) fn late_ns(&self) -> &[u64] {
        &self.window_ends.late_ns
    }
}

#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// QPs that wait for a grant, by index among receiving ones.
    waiting: VecDeque<u32>,
    /// Granted packets in flight.
    packets: u64,
}

/// Receiver-driven admission: requests, grants, and their order.
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
