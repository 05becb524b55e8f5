//! A host: a NIC with one link, and its sending and receiving QPs.

mod receive;
mod send;
mod tcp;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dcqcn_common::flow::{FlowId, HashKeys, NpFlow, QpId};
use dcqcn_common::layout::CLASSES;
use dcqcn_common::params::Params;
use serde::Serialize;

use self::receive::{Admitted, ReceiveQp, WindowEnds};
use self::send::SendPhase;
pub(crate) use self::send::SendQp;
use crate::network::agenda::{Agenda, Event};
use crate::network::nscc::{Flight, Law};
use crate::network::packet::{Address, Packet};
use crate::network::random::Random;
use crate::network::scenario::{Change, ChangeKind, Control, Transport, WindowEnd};
use crate::network::scheduler::Scheduler;
use crate::network::topology::PortSpec;
use crate::network::wire::{Delivery, Inbound, Message, Outbox, Wire};
use crate::network::workload::{Edge, Pair, Source, Wait, Work, Workload};

/// AETH of an ACK or NAK, in place of a payload.
const AETH_BYTES: u16 = 4;
/// Port of replies that are not queued.
const REPLIES: u16 = 1;
/// [`QpEntry::slot`]: the QP has no state, not yet or not any more.
const NO_SLOT: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct HostRules {
    pub(crate) transports: Vec<Transport>,
    /// Single bottleneck: delay of a reply, by its destination; empty: replies are queued like data.
    pub(crate) reply_ns: Vec<u64>,
    pub(crate) frame_bytes: u32,
    pub(crate) seed: u64,
    pub(crate) control: Control,
    pub(crate) window_end: WindowEnd,
    pub(crate) scheduler: Scheduler,
    pub(crate) cnp_class: u8,
    pub(crate) overhead_bytes: u64,
    pub(crate) workload: Workload,
    /// By QP: its number at the sending and at the receiving host.
    pub(crate) locals: Vec<(u32, u32)>,
    /// By flow: its number at the sending host.
    pub(crate) local_flows: Vec<u32>,
    /// Dependencies, ordered by the flow waited for.
    pub(crate) edges: Vec<Edge>,
    /// Delay until another host may start a dependent flow.
    pub(crate) notice_ns: u64,
    pub(crate) changes: Arc<[Change]>,
    pub(crate) hash_keys: HashKeys,
    pub(crate) sample_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) flow: u32,
    /// Length, which differs between messages of a source.
    pub(crate) bytes: u64,
    /// When it could start.
    pub(crate) posted_ns: u64,
    /// When its last byte was acknowledged.
    pub(crate) done_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowCounters {
    /// Payload delivered.
    pub bytes: u64,
    /// Packets sent, retransmissions included.
    pub sent_packets: u64,
    pub retransmitted_packets: u64,
    pub dropped_packets: u64,
    pub marked_packets: u64,
    /// CNPs that reached the sender.
    pub cnps: u64,
    /// NAKs that reached the sender.
    pub naks: u64,
    pub timeouts: u64,
    pub messages: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostCounters {
    pub(crate) data_packets: u64,
    pub(crate) delivered_packets: u64,
    pub(crate) marked: u64,
    pub(crate) cnps_sent: u64,
    pub(crate) cnps_handled: u64,
    /// Marks that were pending when the last packet of their flow had arrived.
    pub(crate) marks_unanswered: u64,
    pub(crate) naks: u64,
    pub(crate) retransmitted: u64,
    pub(crate) timeouts: u64,
    pub(crate) probes: u64,
}

#[derive(Clone, Copy, Debug)]
struct QpEntry {
    pair: u32,
    slot: u32,
    /// Incomplete flows.
    left: u32,
}

#[derive(Clone, Copy, Debug)]
struct OwnFlow {
    flow: u32,
    /// Number of flows that must complete before it starts.
    waiting: u32,
}

/// One class of the NIC.
#[derive(Debug, Default)]
struct Line {
    /// Replies.
    answers: VecDeque<Packet>,
    /// QPs with data to send.
    ready: VecDeque<u32>,
}

/// A host. The fields that every packet needs come first: of a thousand hosts, each cache line counts.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Host {
    pub(crate) agenda: Agenda,
    wire: Wire,
    /// Completed flows, without messages of sources.
    pub(crate) done: u64,
    /// Bit per class with data to send.
    waiting: u8,
    senders: Vec<SendQp>,
    rules: Arc<HostRules>,
    /// By transport.
    params: Arc<[Params]>,
    pub(crate) counters: HostCounters,
    /// From its link, and replies that are not queued.
    inbound: [Inbound; 2],
    pub(crate) hops: u64,
    sends: Vec<QpEntry>,
    law: Option<Law>,
    number: u32,
    scheduler: Scheduler,
    lines: [Line; CLASSES],
    receives: Vec<QpEntry>,
    free_senders: Vec<u32>,
    receivers: Vec<ReceiveQp>,
    free_receivers: Vec<u32>,
    own: Vec<OwnFlow>,
    /// Flows without dependencies, by start time, and how many of them have started.
    starts: Vec<u32>,
    started: usize,
    /// NP state if CNPs are not limited per QP: by sender, or for all.
    nps: HashMap<u32, NpFlow>,
    window_ends: WindowEnds,
    admitted: Admitted,
    /// Classes that this host pauses permanently.
    storm: u8,
    pub(crate) records: Vec<Record>,
    /// Replies that are not queued.
    replies: Vec<Packet>,
    /// Lengths and times of messages.
    random: Random,
    /// Pause time of its link between two samples, and up to the last one.
    pub(crate) samples: Vec<u32>,
    sampled_ns: u64,
}

impl Host {
    pub(crate) fn new(number: u32, spec: &PortSpec, rules: &Arc<HostRules>, params: Arc<[Params]>) -> Self {
        let law = match rules.control {
            Control::Nscc(nscc) => Some(Law::new(nscc, spec.rate_bps, &rules.transports[0])),
            Control::Off | Control::Dcqcn => None,
        };
        Self {
            number,
            law,
            wire: Wire::new(spec, rules.overhead_bytes),
            inbound: Default::default(),
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
            window_ends: WindowEnds::default(),
            admitted: Admitted::default(),
            storm: 0,
            agenda: Agenda::default(),
            counters: HostCounters::default(),
            records: Vec::new(),
            done: 0,
            replies: Vec::new(),
            random: Random::new(rules.seed.wrapping_add(u64::from(number) << 32)),
            hops: 0,
            samples: Vec::new(),
            sampled_ns: 0,
        }
    }

    pub(crate) fn add_pair(&mut self, pair: u32, sends: bool) {
        let entries = if sends { &mut self.sends } else { &mut self.receives };
        entries.push(QpEntry { pair, slot: NO_SLOT, left: 0 });
    }

    pub(crate) fn add_flow(&mut self, local: u32, sends: bool) {
        let entries = if sends { &mut self.sends } else { &mut self.receives };
        if let Some(entry) = entries.get_mut(local as usize) {
            entry.left += 1;
        }
    }

    pub(crate) fn add_own(&mut self, flow: u32, waiting: u32) {
        self.own.push(OwnFlow { flow, waiting });
    }

    /// Schedules the first starts, after all flows were added.
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

    /// Schedules an arrival.
    #[inline]
    pub(crate) fn enter(&mut self, at_ns: u64, what: Delivery) {
        match what {
            Delivery::Packet(port, packet) => {
                self.inbound[usize::from(port)].enter(&mut self.agenda, port, at_ns, packet);
            }
            Delivery::Notice(own) => self.agenda.at(at_ns, Event::Notice, own),
        }
    }

    pub(crate) fn run(&mut self, end_ns: u64, out: &mut Outbox) {
        while let Some((now_ns, event, index)) = self.agenda.take(end_ns) {
            match event {
                Event::Arrival => {
                    let port = index as u16;
                    if let Some(packet) = self.inbound[usize::from(port)].take(&mut self.agenda, port) {
                        self.on_arrival(now_ns, packet, out);
                    }
                }
                Event::Done => {
                    self.wire.woken();
                    self.pump(now_ns, out);
                }
                Event::Due => {
                    if let Some(qp) =
                        self.senders.get_mut(index as usize).filter(|qp| qp.phase == SendPhase::Waiting)
                    {
                        qp.phase = SendPhase::Idle;
                        self.wake(now_ns, index, out);
                    }
                }
                Event::Timer => self.on_timer(now_ns, index, out),
                Event::Window => {
                    self.on_window(now_ns, index, out);
                    self.reply(now_ns, out);
                }
                Event::Start => self.on_start(now_ns, out),
                Event::Notice => self.on_notice(now_ns, index),
                Event::Post => self.post(now_ns, index, out),
                Event::Message => self.on_message(now_ns, index, out),
                Event::Stop => self.on_stop(index),
                Event::Fault => self.on_change(now_ns, index as usize, out),
                Event::Sample => self.on_sample(now_ns),
                Event::Watchdog => {}
            }
        }
    }

    fn on_change(&mut self, now_ns: u64, index: usize, out: &mut Outbox) {
        match self.rules.changes.get(index).map(|change| change.what) {
            Some(ChangeKind::Link { up, .. }) => {
                self.wire.set_up(now_ns, up);
                self.wire.request_pause(self.storm, true);
            }
            Some(ChangeKind::Storm { classes: 0, .. }) => {
                self.wire.request_pause(std::mem::take(&mut self.storm), false)
            }
            Some(ChangeKind::Storm { classes, .. }) => {
                self.storm |= classes;
                self.wire.request_pause(classes, true);
            }
            Some(ChangeKind::Routes { .. }) | None => {}
        }
        self.pump(now_ns, out);
    }

    /// Queues a QP with data to send, unless it is queued.
    #[inline]
    fn wake(&mut self, now_ns: u64, slot: u32, out: &mut Outbox) {
        let qp = &mut self.senders[slot as usize];
        let Address { class, transport, .. } = qp.address;
        let (params, transport) =
            (&self.params[usize::from(transport)], &self.rules.transports[usize::from(transport)]);
        if qp.phase != SendPhase::Idle || !qp.has_data(transport) {
            return;
        }
        if let Some(due_ns) = qp.due_ns(params, now_ns) {
            qp.phase = SendPhase::Waiting;
            self.agenda.at(due_ns, Event::Due, slot);
            return;
        }
        if self.waiting == 0 && self.wire.is_ready(now_ns, class) {
            // The usual case of a slow flow: nothing else to send.
            if let Some(packet) = qp.next_packet(params, transport, now_ns) {
                self.wire.send(now_ns, packet, out);
                self.on_transmitted(now_ns, class.into(), slot);
                if self.waiting != 0 {
                    self.wire.wake(&mut self.agenda, 0);
                }
            }
            return;
        }
        qp.phase = SendPhase::Ready;
        self.lines[usize::from(class)].ready.push_back(slot);
        self.waiting |= 1 << class;
        self.pump(now_ns, out);
    }

    /// Starts the next frame if the link is free.
    #[inline]
    fn pump(&mut self, now_ns: u64, out: &mut Outbox) {
        while self.wire.up && self.wire.is_free(now_ns) {
            if self.wire.has_pfc() {
                self.wire.send_pfc(now_ns, out);
                break;
            }
            let full_bytes = self.rules.frame_bytes;
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
                self.on_transmitted(now_ns, class, slot);
            }
        }
        if self.wire.up && (self.waiting & !self.wire.paused != 0 || self.wire.has_pfc()) {
            self.wire.wake(&mut self.agenda, 0);
        }
    }

    /// The next packet of a class, and its QP unless it is a reply.
    #[inline]
    fn next_packet(&mut self, now_ns: u64, class: usize) -> Option<(Packet, Option<u32>)> {
        let line = &mut self.lines[class];
        let found = match line.answers.pop_front() {
            Some(answer) => Some((answer, None)),
            None => line.ready.pop_front().and_then(|slot| {
                let qp = &mut self.senders[slot as usize];
                let group = usize::from(qp.address.transport);
                if let Some(due_ns) = qp.due_ns(&self.params[group], now_ns) {
                    // Its rate was cut while it was queued.
                    qp.phase = SendPhase::Waiting;
                    self.agenda.at(due_ns, Event::Due, slot);
                    return None;
                }
                let packet = qp.next_packet(&self.params[group], &self.rules.transports[group], now_ns);
                qp.phase = SendPhase::Idle;
                Some((packet?, Some(slot)))
            }),
        };
        if line.answers.is_empty() && line.ready.is_empty() {
            self.waiting &= !(1 << class);
        }
        found
    }

    /// A QP's packet is on the link: schedules its timer and its next packet.
    #[inline]
    fn on_transmitted(&mut self, now_ns: u64, class: usize, slot: u32) {
        self.counters.data_packets += 1;
        let qp = &mut self.senders[slot as usize];
        let group = usize::from(qp.address.transport);
        let transport = &self.rules.transports[group];
        if let Some(timer_ns) = qp.set_timer(now_ns, transport) {
            self.agenda.at(timer_ns, Event::Timer, slot);
        }
        if !qp.has_data(transport) {
            return;
        }
        let free_ns = self.wire.transmitter.free_ns();
        if let Some(due_ns) = qp.due_ns(&self.params[group], now_ns).filter(|due_ns| *due_ns > free_ns) {
            qp.phase = SendPhase::Waiting;
            self.agenda.at(due_ns, Event::Due, slot);
        } else if self.waiting == 0 && !self.rules.reply_ns.is_empty() {
            // Nothing else is queued: an event is cheaper than the queue, and comes after what is queued until then.
            qp.phase = SendPhase::Waiting;
            self.agenda.at(free_ns, Event::Due, slot);
        } else {
            // The next packet is due when the link is free again.
            qp.phase = SendPhase::Ready;
            self.lines[class].ready.push_back(slot);
            self.waiting |= 1 << class;
        }
    }

    fn on_timer(&mut self, now_ns: u64, slot: u32, out: &mut Outbox) {
        let Some(qp) = self.senders.get_mut(slot as usize) else { return };
        let (before, probes) = (qp.timeouts, qp.probes);
        let is_tcp = qp.is_tcp();
        let again_ns = qp.on_timer(now_ns, &self.rules.transports[usize::from(qp.address.transport)]);
        if let Some(law) = self.law.as_ref().filter(|_| qp.timeouts != before) {
            qp.on_timeout(law);
        }
        self.counters.timeouts += qp.timeouts - before;
        self.counters.probes += qp.probes - probes;
        if let Some(again_ns) = again_ns {
            self.agenda.at(again_ns, Event::Timer, slot);
            self.request_grant(now_ns, slot);
            self.wake(now_ns, slot, out);
            self.pump(now_ns, out);
        } else if is_tcp {
            // It has retransmissions, and no timer until one is sent.
            self.wake(now_ns, slot, out);
        }
    }

    fn on_sample(&mut self, now_ns: u64) {
        let until_ns = self.paused_ns(now_ns).iter().sum();
        let paused_ns = until_ns - std::mem::replace(&mut self.sampled_ns, until_ns);
        self.samples.push(u32::try_from(paused_ns).unwrap_or(u32::MAX));
        if let Some(sample_ns) = self.rules.sample_ns {
            self.agenda.at(now_ns + sample_ns, Event::Sample, 0);
        }
    }

    fn live(&self) -> impl Iterator<Item = &SendQp> {
        let live = self.sends.iter().filter(|entry| entry.slot != NO_SLOT);
        live.map(|entry| &self.senders[entry.slot as usize])
    }

    /// Started flows that are not acknowledged, with their start.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (u32, u64)> {
        self.live().flat_map(SendQp::pending)
    }

    /// Retransmissions of all QPs.
    pub(crate) fn retransmitted(&self) -> u64 {
        self.live().map(|qp| qp.retransmitted).sum::<u64>() + self.counters.retransmitted
    }

    pub(crate) fn paused_ns(&self, now_ns: u64) -> [u64; CLASSES] {
        std::array::from_fn(|class| self.wire.paused_ns(class, now_ns))
    }
}

/// Flows of a host: starts, and dependencies.
impl Host {
    /// Starts the listed flows that are due, and schedules the next.
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

    /// A flow that an own flow waits for is complete.
    fn on_notice(&mut self, now_ns: u64, index: u32) {
        let own = &mut self.own[index as usize];
        let was_waiting = own.waiting;
        own.waiting = was_waiting.saturating_sub(1);
        // If it was 0, the flow has started after others.
        if was_waiting == 1 {
            let flow = &self.rules.workload.flows()[own.flow as usize];
            self.agenda.at(now_ns.max(flow.start_ns).saturating_add(flow.delay_ns), Event::Post, index);
        }
    }

    /// Starts an own flow.
    fn post(&mut self, now_ns: u64, index: u32, out: &mut Outbox) {
        let number = self.own[index as usize].flow;
        let rules = Arc::clone(&self.rules);
        let flow = &rules.workload.flows()[number as usize];
        let pair = rules.workload.pairs()[flow.qp as usize];
        if pair.src == pair.dst {
            // A computation, whose time has passed.
            self.complete(now_ns, number, Wait::Delivered, out);
            self.complete(now_ns, number, Wait::Acknowledged, out);
            self.records.push(Record { flow: number, bytes: flow.bytes, posted_ns: now_ns, done_ns: now_ns });
            self.done += 1;
            return;
        }
        let slot = self.sender(flow.qp, pair);
        let transport = &rules.transports[usize::from(pair.transport)];
        let qp = &mut self.senders[slot as usize];
        match rules.workload.source(number) {
            None => qp.post(now_ns, number, flow.bytes, transport),
            Some(source) => self.start_source(now_ns, index, slot, source),
        }
        if transport.admission.is_some() {
            self.request_grant(now_ns, slot);
            self.pump(now_ns, out);
        }
        self.wake(now_ns, slot, out);
    }

    fn sender(&mut self, number: u32, pair: Pair) -> u32 {
        let (local, at_dst) = self.rules.locals[number as usize];
        let slot = self.sends[local as usize].slot;
        if slot != NO_SLOT {
            return slot;
        }
        let id = flow_id(pair, number);
        let entropy = id.hash(&self.rules.hash_keys);
        let address =
            Address { dst: pair.dst, at_dst, class: pair.class, transport: pair.transport, entropy };
        let flight = self.law.as_ref().map(Flight::new);
        let group = usize::from(pair.transport);
        let qp = SendQp::new(address, id, &self.params[group], &self.rules.transports[group], flight);
        let slot = store(&mut self.senders, &mut self.free_senders, qp);
        self.sends[local as usize].slot = slot;
        slot
    }

    /// A flow is delivered here or acknowledged to this host: dependent flows may start.
    pub(super) fn complete(&mut self, now_ns: u64, flow: u32, wait: Wait, out: &mut Outbox) {
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
}

/// Sources, and readings of a single bottleneck.
impl Host {
    fn start_source(&mut self, now_ns: u64, index: u32, slot: u32, source: &Source) {
        let flow = self.own[index as usize].flow;
        let qp = &mut self.senders[slot as usize];
        match *source.work {
            Work::Bulk => qp.post_endless(),
            Work::Once { bytes } => self.post_messages(now_ns, flow, slot, bytes, 1),
            Work::Blocks { bytes, outstanding } => self.post_messages(now_ns, flow, slot, bytes, outstanding),
            Work::Messages { mean_gap_ns, .. } => {
                self.agenda.at(now_ns + self.random.exponential(mean_gap_ns), Event::Message, index);
            }
        }
        if let (Work::Bulk, Some(stop_ns)) = (&*source.work, source.stop_ns) {
            self.agenda.at(stop_ns.max(now_ns), Event::Stop, index);
        }
    }

    fn post_messages(&mut self, now_ns: u64, flow: u32, slot: u32, bytes: u64, count: u32) {
        let qp = &mut self.senders[slot as usize];
        let transport = &self.rules.transports[usize::from(qp.address.transport)];
        (0..count).for_each(|_| qp.post(now_ns, flow, bytes, transport));
    }

    fn source<'a>(&self, rules: &'a HostRules, index: u32) -> Option<(u32, u32, &'a Source)> {
        let flow = self.own[index as usize].flow;
        let (local, _) = rules.locals[rules.workload.flows()[flow as usize].qp as usize];
        Some((flow, self.sends[local as usize].slot, rules.workload.source(flow)?))
    }

    /// A message of an open loop arrives; schedules the next.
    fn on_message(&mut self, now_ns: u64, index: u32, out: &mut Outbox) {
        let rules = Arc::clone(&self.rules);
        let Some((flow, slot, source)) = self.source(&rules, index) else { return };
        let Work::Messages { sizes, mean_gap_ns } = &*source.work else { return };
        if source.stop_ns.is_some_and(|stop_ns| now_ns >= stop_ns) {
            return;
        }
        let weights: u64 = sizes.iter().map(|size| size.weight).sum();
        let mut drawn = self.random.up_to(weights.saturating_sub(1));
        for size in sizes {
            if drawn < size.weight {
                self.post_messages(now_ns, flow, slot, size.bytes, 1);
                break;
            }
            drawn -= size.weight;
        }
        self.agenda.at(now_ns + self.random.exponential(*mean_gap_ns), Event::Message, index);
        self.wake(now_ns, slot, out);
    }

    /// Sends replies that are not queued.
    fn reply(&mut self, now_ns: u64, out: &mut Outbox) {
        for packet in self.replies.drain(..) {
            let at_ns = now_ns + self.rules.reply_ns[packet.dst as usize];
            out.push(Message { at_ns, node: packet.dst, what: Delivery::Packet(REPLIES, packet) });
        }
    }

    fn on_stop(&mut self, index: u32) {
        let rules = Arc::clone(&self.rules);
        if let Some((_, slot, _)) = self.source(&rules, index) {
            self.senders[slot as usize].stop();
        }
    }

    /// Messages of a source are complete: a closed loop posts the same number again.
    fn on_completed(&mut self, now_ns: u64, slot: u32, record: Record) {
        let Some(source) = self.rules.workload.source(record.flow) else {
            self.done += 1;
            return;
        };
        if let Work::Blocks { bytes, .. } = *source.work
            && source.stop_ns.is_none_or(|stop_ns| now_ns < stop_ns)
        {
            self.post_messages(now_ns, record.flow, slot, bytes, 1);
        }
    }

    /// Sending end of its QP `local`; `None`: it has not started.
    pub(crate) fn sending(&self, local: u32) -> Option<(&SendQp, &Params)> {
        let qp = self.senders.get(self.sends.get(local as usize)?.slot as usize)?;
        Some((qp, &self.params[usize::from(qp.address.transport)]))
    }

    /// Payload and marked packets that have arrived on its QP `local`.
    pub(crate) fn received(&self, local: u32) -> (u64, u64) {
        let entry = self.receives.get(local as usize);
        let qp = entry.and_then(|entry| self.receivers.get(entry.slot as usize));
        qp.map_or((0, 0), |qp| (qp.bytes, qp.marked))
    }

    /// Packets on its link towards it.
    pub(crate) fn arriving(&self) -> u64 {
        self.inbound[0].count()
    }
}

/// The flow of queue pair `number`, between hosts with addresses of their numbers.
const fn flow_id(pair: Pair, number: u32) -> FlowId {
    FlowId { src: [0, 0, 0, pair.src], receiver: QpId { addr: [0, 0, 0, pair.dst], qpn: number, vlan: 0 } }
}

fn store<T>(items: &mut Vec<T>, free: &mut Vec<u32>, item: T) -> u32 {
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
