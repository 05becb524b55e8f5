//! A host: a NIC with one link, the queue pairs it sends on and those it receives on.

mod receive;
mod send;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dcqcn_common::flow::{FlowId, QpId};
use dcqcn_common::layout::{CLASSES, NpFlow};
use dcqcn_common::params::{CNP_LIMIT_PEER, CNP_LIMIT_PORT, NP_WINDOW_BOTH, Params};
use dcqcn_common::wire::cnp::RESERVED_LEN;

use self::receive::{Answer, ReceiveQp};
use self::send::{Address, SendQp, Turn};
use crate::agenda::{Agenda, Event};
use crate::change::{Change, What};
use crate::packet::{Kind, Packet};
use crate::pool::Pool;
use crate::scenario::Transport;
use crate::scheduler::Scheduler;
use crate::topology::PortSpec;
use crate::wire::{Delivery, Inbound, Message, Outbox, Wire};
use crate::workload::{Edge, Pair, Wait, Workload};

/// AETH, which an ACK or NAK has in place of a payload.
const AETH_BYTES: u16 = 4;
/// [`Place::slot`]: the QP has no state yet, or none any more.
const NO_SLOT: u32 = u32::MAX;

/// What all hosts have in common.
#[derive(Debug)]
pub(crate) struct HostRules {
    pub(crate) transport: Transport,
    pub(crate) control: bool,
    pub(crate) scheduler: Scheduler,
    pub(crate) cnp_class: u8,
    pub(crate) overhead_bytes: u64,
    pub(crate) workload: Workload,
    /// By queue pair: its number at the host that sends, and at the one that receives.
    pub(crate) locals: Vec<(u32, u32)>,
    /// By flow: its number at the host that sends it.
    pub(crate) local_flows: Vec<u32>,
    /// Who waits for whom, ordered by the flow waited for.
    pub(crate) edges: Vec<Edge>,
    /// Time until another host learns that a flow of its own need not wait any longer.
    pub(crate) notice_ns: u64,
    pub(crate) changes: Arc<[Change]>,
    pub(crate) hash_seed: u32,
}

/// A queue pair of this host.
#[derive(Clone, Copy, Debug)]
struct Place {
    pair: u32,
    slot: u32,
    /// Flows that are not complete.
    left: u32,
}

/// A flow of this host.
#[derive(Clone, Copy, Debug)]
struct Own {
    flow: u32,
    /// Flows that it waits for.
    waiting: u32,
}

/// One class of the NIC.
#[derive(Debug, Default)]
struct Line {
    /// Answers.
    answers: VecDeque<Packet>,
    /// QPs that have something to send.
    ready: VecDeque<u32>,
}

/// A completed flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) flow: u32,
    /// When it could start.
    pub(crate) posted_ns: u64,
    /// When its last byte was acknowledged.
    pub(crate) done_ns: u64,
}

/// What a host did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostCounters {
    pub(crate) data_packets: u64,
    pub(crate) delivered_packets: u64,
    pub(crate) marked: u64,
    pub(crate) cnps_sent: u64,
    pub(crate) cnps_handled: u64,
    pub(crate) naks: u64,
    pub(crate) retransmitted: u64,
    pub(crate) timeouts: u64,
}

/// A host.
#[derive(Debug)]
pub(crate) struct Host {
    number: u32,
    rules: Arc<HostRules>,
    params: Arc<Params>,
    wire: Wire,
    inbound: Inbound,
    pool: Pool,
    scheduler: Scheduler,
    lines: [Line; CLASSES],
    /// Bit per class with something to send.
    waiting: u8,
    sends: Vec<Place>,
    receives: Vec<Place>,
    senders: Vec<SendQp>,
    free_senders: Vec<u32>,
    receivers: Vec<ReceiveQp>,
    free_receivers: Vec<u32>,
    own: Vec<Own>,
    /// Flows that wait for none, by start time, and how many of them have started.
    starts: Vec<u32>,
    started: usize,
    /// NP state where CNPs are not limited per QP: by sender, or of all.
    nps: HashMap<u32, NpFlow>,
    /// Classes that this host pauses for good.
    storm: u8,
    pub(crate) agenda: Agenda,
    pub(crate) counters: HostCounters,
    pub(crate) records: Vec<Record>,
    pub(crate) hops: u64,
}

impl Host {
    pub(crate) fn new(number: u32, spec: &PortSpec, rules: &Arc<HostRules>, params: Arc<Params>) -> Self {
        Self {
            number,
            wire: Wire::new(spec, rules.overhead_bytes),
            inbound: Inbound::default(),
            pool: Pool::default(),
            scheduler: rules.scheduler.clone(),
            rules: Arc::clone(rules),
            params,
            lines: std::array::from_fn(|_| Line::default()),
            waiting: 0,
            sends: Vec::new(),
            receives: Vec::new(),
            senders: Vec::new(),
            free_senders: Vec::new(),
            receivers: Vec::new(),
            free_receivers: Vec::new(),
            own: Vec::new(),
            starts: Vec::new(),
            started: 0,
            nps: HashMap::new(),
            storm: 0,
            agenda: Agenda::default(),
            counters: HostCounters::default(),
            records: Vec::new(),
            hops: 0,
        }
    }

    /// It sends, or receives, on `pair`, and will do so for `flows` flows.
    pub(crate) fn add_pair(&mut self, pair: u32, sends: bool) {
        let places = if sends { &mut self.sends } else { &mut self.receives };
        places.push(Place { pair, slot: NO_SLOT, left: 0 });
    }

    /// A flow that it sends on its QP `local`, or receives.
    pub(crate) fn add_flow(&mut self, local: u32, sends: bool) {
        let places = if sends { &mut self.sends } else { &mut self.receives };
        if let Some(place) = places.get_mut(local as usize) {
            place.left += 1;
        }
    }

    /// A flow of its own, which waits for so many others.
    pub(crate) fn add_own(&mut self, flow: u32, waiting: u32) {
        self.own.push(Own { flow, waiting });
    }

    /// All flows are known: enters the first starts.
    pub(crate) fn ready(&mut self) {
        let flows = self.rules.workload.flows();
        let mut starts: Vec<u32> =
            (0..).zip(&self.own).filter(|(_, own)| own.waiting == 0).map(|(index, _)| index).collect();
        let start_ns = |index: u32| {
            let flow = &flows[self.own[index as usize].flow as usize];
            flow.start_ns.saturating_add(flow.delay_ns)
        };
        starts.sort_by_key(|&index| start_ns(index));
        if let Some(&first) = starts.first() {
            self.agenda.at(start_ns(first), Event::Start, 0);
        }
        self.starts = starts;
    }

    /// Something will arrive.
    #[inline]
    pub(crate) fn enter(&mut self, at_ns: u64, what: Delivery) {
        match what {
            Delivery::Packet(port, packet) => {
                self.inbound.enter(&mut self.pool, &mut self.agenda, port, at_ns, packet)
            }
            Delivery::Notice(own) => self.agenda.at(at_ns, Event::Notice, own),
        }
    }

    /// Everything that happens before `end_ns`.
    pub(crate) fn run(&mut self, end_ns: u64, out: &mut Outbox) {
        loop {
            let (inbound, pool) = (&self.inbound, &self.pool);
            let again = |_, event, _| if event == Event::Arrival { inbound.second_ns(pool) } else { None };
            let Some((now_ns, event, index)) = self.agenda.take(end_ns, again) else { return };
            match event {
                Event::Arrival => {
                    if let Some(place) = self.inbound.take(&self.pool) {
                        let packet = *self.pool.packet(place);
                        self.pool.give(place);
                        self.on_arrival(now_ns, packet, out);
                    }
                }
                Event::Done => {
                    self.wire.woken();
                    self.pump(now_ns, out);
                }
                Event::Due => {
                    if let Some(qp) =
                        self.senders.get_mut(index as usize).filter(|qp| qp.turn == Turn::Waiting)
                    {
                        qp.turn = Turn::Idle;
                        self.wake(now_ns, index, out);
                    }
                }
                Event::Timer => self.on_timer(now_ns, index, out),
                Event::Window => self.on_window(now_ns, index, out),
                Event::Start => self.on_start(now_ns, out),
                Event::Notice => self.on_notice(now_ns, index),
                Event::Post => self.post(now_ns, index, out),
                Event::Fault => self.on_change(now_ns, index as usize, out),
                Event::Watchdog | Event::Sample => {}
            }
        }
    }

    fn on_change(&mut self, now_ns: u64, index: usize, out: &mut Outbox) {
        match self.rules.changes.get(index).map(|change| change.what) {
            Some(What::Link { up, .. }) => {
                self.wire.set_up(now_ns, up);
                self.wire.ask(self.storm, true);
            }
            Some(What::Storm { classes: 0, .. }) => self.wire.ask(std::mem::take(&mut self.storm), false),
            Some(What::Storm { classes, .. }) => {
                self.storm |= classes;
                self.wire.ask(classes, true);
            }
            Some(What::Routes { .. }) | None => {}
        }
        self.pump(now_ns, out);
    }

    /// The flows of the list that start now, and the event of the next.
    fn on_start(&mut self, now_ns: u64, out: &mut Outbox) {
        while let Some(&index) = self.starts.get(self.started) {
            let flow = &self.rules.workload.flows()[self.own[index as usize].flow as usize];
            let start_ns = flow.start_ns.saturating_add(flow.delay_ns);
            if start_ns > now_ns {
                self.agenda.at(start_ns, Event::Start, 0);
                return;
            }
            self.started += 1;
            self.post(now_ns, index, out);
        }
    }

    /// One of the flows that an own flow waits for is over.
    fn on_notice(&mut self, now_ns: u64, index: u32) {
        let own = &mut self.own[index as usize];
        own.waiting = own.waiting.saturating_sub(1);
        if own.waiting == 0 {
            let flow = &self.rules.workload.flows()[own.flow as usize];
            self.agenda.at(now_ns.max(flow.start_ns).saturating_add(flow.delay_ns), Event::Post, index);
        }
    }

    /// An own flow starts.
    fn post(&mut self, now_ns: u64, index: u32, out: &mut Outbox) {
        let number = self.own[index as usize].flow;
        let rules = Arc::clone(&self.rules);
        let flow = &rules.workload.flows()[number as usize];
        let pair = rules.workload.pairs()[flow.qp as usize];
        if pair.src == pair.dst {
            // A computation, which has had its time.
            self.complete(now_ns, number, Wait::Delivered, out);
            self.complete(now_ns, number, Wait::Acknowledged, out);
            self.records.push(Record { flow: number, posted_ns: now_ns, done_ns: now_ns });
            return;
        }
        let slot = self.sender(flow.qp, pair);
        self.senders[slot as usize].post(now_ns, number, flow, &rules.transport);
        self.wake(now_ns, slot, out);
    }

    /// The place of the sending end of a pair.
    fn sender(&mut self, number: u32, pair: Pair) -> u32 {
        let (local, at_dst) = self.rules.locals[number as usize];
        let slot = self.sends[local as usize].slot;
        if slot != NO_SLOT {
            return slot;
        }
        let id = flow_id(pair, number);
        let entropy = id.hash(self.rules.hash_seed);
        let address = Address { dst: pair.dst, at_dst, class: pair.class, entropy };
        let qp = SendQp::new(address, id, &self.params);
        let slot = place(&mut self.senders, &mut self.free_senders, qp);
        self.sends[local as usize].slot = slot;
        slot
    }

    /// A flow is delivered here or acknowledged to this host: those that wait for it may go on.
    fn complete(&mut self, now_ns: u64, flow: u32, wait: Wait, out: &mut Outbox) {
        let rules = Arc::clone(&self.rules);
        let first = rules.edges.partition_point(|edge| edge.from < flow);
        for edge in rules.edges[first..].iter().take_while(|edge| edge.from == flow) {
            if edge.wait != wait {
                continue;
            }
            let index = rules.local_flows[edge.to as usize];
            let pair = rules.workload.pairs()[rules.workload.flows()[edge.to as usize].qp as usize];
            if pair.src == self.number {
                self.on_notice(now_ns, index);
            } else {
                let at_ns = now_ns + rules.notice_ns;
                out.push(Message { at_ns, node: pair.src, what: Delivery::Notice(index) });
            }
        }
    }

    /// Puts a QP that has something to send in line, if it is not there.
    #[inline]
    fn wake(&mut self, now_ns: u64, slot: u32, out: &mut Outbox) {
        let qp = &mut self.senders[slot as usize];
        if qp.turn != Turn::Idle || !qp.has_data(&self.rules.transport) {
            return;
        }
        if let Some(due_ns) = qp.due_ns(&self.params, now_ns) {
            qp.turn = Turn::Waiting;
            self.agenda.at(due_ns, Event::Due, slot);
            return;
        }
        qp.turn = Turn::Ready;
        let class = qp.address.class;
        self.lines[usize::from(class)].ready.push_back(slot);
        self.waiting |= 1 << class;
        self.pump(now_ns, out);
    }

    /// Begins the next frame if the link is free.
    #[inline]
    fn pump(&mut self, now_ns: u64, out: &mut Outbox) {
        while self.wire.up && self.wire.is_free(now_ns) {
            if self.wire.has_pfc() {
                self.wire.send_pfc(now_ns, out);
                break;
            }
            let full_bytes = self.rules.transport.payload_bytes + self.rules.transport.header_bytes;
            let lines = &self.lines;
            let head = |class: usize| match lines[class].answers.front() {
                Some(answer) => answer.frame_bytes.into(),
                None => full_bytes,
            };
            let Some(class) = self.scheduler.next(self.waiting & !self.wire.paused, head) else { return };
            let Some((packet, slot)) = self.next_packet(now_ns, class) else { continue };
            let line = &self.lines[class];
            let empty = line.answers.is_empty() && line.ready.is_empty();
            self.scheduler.charge(class, packet.frame_bytes.into(), empty);
            self.wire.send(now_ns, packet, out);
            if let Some(slot) = slot {
                self.sent(now_ns, class, slot);
            }
        }
        if self.wire.up && (self.waiting & !self.wire.paused != 0 || self.wire.has_pfc()) {
            self.wire.wake(&mut self.agenda, 0);
        }
    }

    /// The next packet of a class and the QP it is of, if it is no answer.
    #[inline]
    fn next_packet(&mut self, now_ns: u64, class: usize) -> Option<(Packet, Option<u32>)> {
        let line = &mut self.lines[class];
        let found = match line.answers.pop_front() {
            Some(answer) => Some((answer, None)),
            None => line.ready.pop_front().and_then(|slot| {
                let qp = &mut self.senders[slot as usize];
                if let Some(due_ns) = qp.due_ns(&self.params, now_ns) {
                    // A cut since it stood in line.
                    qp.turn = Turn::Waiting;
                    self.agenda.at(due_ns, Event::Due, slot);
                    return None;
                }
                let packet = qp.next_packet(&self.params, &self.rules.transport, now_ns);
                qp.turn = Turn::Idle;
                Some((packet?, Some(slot)))
            }),
        };
        if line.answers.is_empty() && line.ready.is_empty() {
            self.waiting &= !(1 << class);
        }
        found
    }

    /// A QP's packet is on the link: its timer, and its next turn.
    #[inline]
    fn sent(&mut self, now_ns: u64, class: usize, slot: u32) {
        self.counters.data_packets += 1;
        let qp = &mut self.senders[slot as usize];
        if let Some(timer_ns) = qp.set_timer(now_ns, &self.rules.transport) {
            self.agenda.at(timer_ns, Event::Timer, slot);
        }
        if !qp.has_data(&self.rules.transport) {
            return;
        }
        let free_ns = self.wire.transmitter.free_ns();
        if let Some(due_ns) = qp.due_ns(&self.params, now_ns).filter(|due_ns| *due_ns > free_ns) {
            qp.turn = Turn::Waiting;
            self.agenda.at(due_ns, Event::Due, slot);
        } else {
            // It is due when the link is free again.
            qp.turn = Turn::Ready;
            self.lines[class].ready.push_back(slot);
            self.waiting |= 1 << class;
        }
    }

    fn on_timer(&mut self, now_ns: u64, slot: u32, out: &mut Outbox) {
        let Some(qp) = self.senders.get_mut(slot as usize) else { return };
        let before = qp.timeouts;
        let again_ns = qp.on_timer(now_ns, &self.rules.transport);
        self.counters.timeouts += qp.timeouts - before;
        if let Some(again_ns) = again_ns {
            self.agenda.at(again_ns, Event::Timer, slot);
            self.wake(now_ns, slot, out);
        }
    }

    #[inline]
    fn on_arrival(&mut self, now_ns: u64, packet: Packet, out: &mut Outbox) {
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
            }
            Kind::Ack | Kind::Nak | Kind::Cnp => {
                self.hops += 1;
                self.on_answer(now_ns, &packet, out);
            }
        }
    }

    /// A packet that this host receives.
    #[inline]
    fn on_data(&mut self, now_ns: u64, packet: &Packet, out: &mut Outbox) {
        let Place { pair: number, slot, left } = self.receives[packet.qp as usize];
        let pair = self.rules.workload.pairs()[number as usize];
        if left == 0 {
            // Every flow of this QP is here: the last acknowledgement was lost.
            let at_src = self.rules.locals[number as usize].0;
            let ack = Answer { kind: Kind::Ack, psn: u32::MAX, named_psn: 0, trimmed: false };
            self.answer(pair.src, at_src, pair.class, packet.entropy, ack);
            self.pump(now_ns, out);
            return;
        }
        let slot = if slot == NO_SLOT { self.receiver(packet, number, pair) } else { slot };
        let qp = &mut self.receivers[slot as usize];
        let (src, at_src, class, entropy) = (qp.src, qp.at_src, qp.class, qp.entropy);
        let mut delivered = [0_u32; 1];
        let mut more = Vec::new();
        let mut count = 0;
        let answer = qp.on_data(packet, self.rules.transport.recovery, |flow| {
            if count == 0 {
                delivered[0] = flow;
            } else {
                more.push(flow);
            }
            count += 1;
        });
        self.counters.delivered_packets += 1;
        if packet.is(Packet::CE) {
            self.counters.marked += 1;
            self.on_ce(now_ns, slot);
        }
        if let Some(answer) = answer {
            self.answer(src, at_src, class, entropy, answer);
        }
        if count != 0 {
            for flow in delivered.into_iter().chain(more) {
                self.complete(now_ns, flow, Wait::Delivered, out);
            }
            let place = &mut self.receives[packet.qp as usize];
            place.left -= count;
            if place.left == 0 {
                place.slot = NO_SLOT;
                self.free_receivers.push(slot);
            }
        }
        self.pump(now_ns, out);
    }

    /// The place of the receiving end of a pair.
    fn receiver(&mut self, packet: &Packet, number: u32, pair: Pair) -> u32 {
        let (at_src, local) = self.rules.locals[number as usize];
        let qp = ReceiveQp::new(pair.src, at_src, pair.class, packet.entropy, flow_id(pair, number));
        let slot = place(&mut self.receivers, &mut self.free_receivers, qp);
        self.receives[local as usize].slot = slot;
        slot
    }

    /// The notification point: a marked packet came.
    fn on_ce(&mut self, now_ns: u64, slot: u32) {
        let scalars = &self.params.config.scalars;
        if !self.rules.control || scalars.np_enable == 0 {
            return;
        }
        let interval_ns = scalars.min_time_between_cnps_ns;
        let at_window_end = scalars.np_window == NP_WINDOW_BOTH;
        let np = limiter(&mut self.nps, &mut self.receivers[slot as usize], scalars.cnp_limit);
        let was_pending = np.pending != 0;
        if np.on_ecn_marked(now_ns, interval_ns) {
            self.send_cnp(slot);
        } else if at_window_end && !was_pending {
            self.agenda.at(np.last_cnp_ns + interval_ns, Event::Window, slot);
        }
    }

    /// The window of a CNP is over: marks within it are answered, unless a later one was since.
    fn on_window(&mut self, now_ns: u64, slot: u32, out: &mut Outbox) {
        let scalars = &self.params.config.scalars;
        let Some(qp) = self.receivers.get_mut(slot as usize) else { return };
        let np = limiter(&mut self.nps, qp, scalars.cnp_limit);
        if np.on_window_end(now_ns, scalars.min_time_between_cnps_ns) {
            self.send_cnp(slot);
            self.pump(now_ns, out);
        }
    }

    fn send_cnp(&mut self, slot: u32) {
        let qp = &self.receivers[slot as usize];
        let (src, at_src, entropy) = (qp.src, qp.at_src, qp.entropy);
        self.counters.cnps_sent += 1;
        let cnp = Answer { kind: Kind::Cnp, psn: 0, named_psn: 0, trimmed: false };
        self.answer(src, at_src, self.rules.cnp_class, entropy, cnp);
    }

    /// Puts an answer in line. Those to data of `class` are in that class unless they have one of their own.
    fn answer(&mut self, dst: u32, qp: u32, class: u8, entropy: u32, answer: Answer) {
        let transport = &self.rules.transport;
        let header_bytes = transport.header_bytes as u16;
        let (class, bytes) = match answer.kind {
            Kind::Cnp => (class, header_bytes + RESERVED_LEN as u16),
            _ => (transport.ack_class.unwrap_or(class), header_bytes + AETH_BYTES),
        };
        let packet = Packet {
            dst,
            qp,
            psn: answer.psn,
            extra: answer.named_psn,
            entropy,
            frame_bytes: bytes,
            ingress: 0,
            class,
            kind: answer.kind,
            flags: if answer.trimmed { Packet::TRIMMED } else { 0 },
        };
        self.lines[usize::from(class)].answers.push_back(packet);
        self.waiting |= 1 << class;
    }

    /// An answer to what this host sends.
    #[inline]
    fn on_answer(&mut self, now_ns: u64, packet: &Packet, out: &mut Outbox) {
        let slot = self.sends[packet.qp as usize].slot;
        if slot == NO_SLOT {
            return;
        }
        let recovery = self.rules.transport.recovery;
        let qp = &mut self.senders[slot as usize];
        match packet.kind {
            Kind::Cnp => {
                self.counters.cnps_handled += 1;
                if self.params.config.scalars.rp_enable != 0 {
                    qp.rp.on_cnp(&self.params.rp, now_ns, &mut qp.debt);
                }
                return;
            }
            Kind::Nak => {
                self.counters.naks += 1;
                let trimmed = packet.is(Packet::TRIMMED);
                qp.on_nak(now_ns, packet.psn, packet.extra, trimmed, recovery);
            }
            Kind::Ack | Kind::Data | Kind::Pfc => {}
        }
        let first = self.records.len();
        let records = &mut self.records;
        qp.on_ack(now_ns, packet.psn, |done| {
            records.push(Record { flow: done.flow, posted_ns: done.posted_ns, done_ns: now_ns });
        });
        if self.records.len() > first {
            self.on_acknowledged(now_ns, packet.qp, slot, first, out);
        }
        if self.sends[packet.qp as usize].slot == slot {
            self.wake(now_ns, slot, out);
        }
    }

    /// The flows of the records from `first` on are acknowledged.
    fn on_acknowledged(&mut self, now_ns: u64, qp: u32, slot: u32, first: usize, out: &mut Outbox) {
        let count = (self.records.len() - first) as u32;
        for index in first..first + count as usize {
            let flow = self.records[index].flow;
            self.complete(now_ns, flow, Wait::Acknowledged, out);
        }
        let place = &mut self.sends[qp as usize];
        place.left -= count.min(place.left);
        let sender = &mut self.senders[slot as usize];
        if place.left == 0 && sender.is_done() && sender.turn == Turn::Idle {
            place.slot = NO_SLOT;
            self.counters.retransmitted += sender.retransmitted;
            sender.timeouts = 0;
            self.free_senders.push(slot);
        }
    }

    /// What QPs that are not complete have sent again.
    pub(crate) fn retransmitted(&self) -> u64 {
        let live = self.sends.iter().filter(|place| place.slot != NO_SLOT);
        live.map(|place| self.senders[place.slot as usize].retransmitted).sum::<u64>()
            + self.counters.retransmitted
    }

    /// How long its link was paused, by class.
    pub(crate) fn paused_ns(&self, now_ns: u64) -> [u64; CLASSES] {
        std::array::from_fn(|class| self.wire.paused_ns(class, now_ns))
    }
}

/// Who limits the CNPs of a QP.
fn limiter<'a>(nps: &'a mut HashMap<u32, NpFlow>, qp: &'a mut ReceiveQp, cnp_limit: u64) -> &'a mut NpFlow {
    match cnp_limit {
        CNP_LIMIT_PEER => nps.entry(qp.src).or_insert(NpFlow::new(FlowId::NONE)),
        CNP_LIMIT_PORT => nps.entry(u32::MAX).or_insert(NpFlow::new(FlowId::NONE)),
        _ => &mut qp.np,
    }
}

/// The flow of queue pair `number`, between hosts with addresses of their numbers.
const fn flow_id(pair: Pair, number: u32) -> FlowId {
    FlowId { src: [0, 0, 0, pair.src], receiver: QpId { addr: [0, 0, 0, pair.dst], qpn: number } }
}

/// Puts `item` in a free place, or a new one.
fn place<T>(items: &mut Vec<T>, free: &mut Vec<u32>, item: T) -> u32 {
    match free.pop() {
        Some(slot) => {
            items[slot as usize] = item;
            slot
        }
        None => {
            items.push(item);
            items.len() as u32 - 1
        }
    }
}
