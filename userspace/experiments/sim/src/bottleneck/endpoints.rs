//! Flows and their endpoints: the senders' NICs, the shared port, and the receiver.
//!
//! Both ends of a QP are those of [`crate::network`].

use std::collections::VecDeque;

use dcqcn_common::flow::{FlowId, NpFlow, QpId};
use dcqcn_common::params::{NP_WINDOW_BOTH, Params};

use super::Simulation;
use super::agenda::{Event, PfcFrame};
use super::port::{Dropped, PauseChange};
use crate::network::{
    Address, Answer, Packet, PacketKind, ReceiveQp, Recovery, SendPhase, SendQp, Transmitter, Transport,
    limiter,
};
use crate::{FlowCounters, RoceGroup, Work};

/// A reply of the receiver in transit to a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) flow: u32,
    pub(super) answer: Answer,
}

/// A RoCE flow: both ends of a QP.
#[derive(Debug)]
pub(super) struct Qp {
    /// Index of its group.
    pub(super) group: u32,
    /// Index of its sender.
    pub(super) sender: u32,
    pub(super) send: SendQp,
    pub(super) receive: ReceiveQp,
    /// Whether the flow has started.
    pub(super) started: bool,
    /// Statistics since their start, without those of `send`.
    pub(super) counters: FlowCounters,
    /// Payload delivered in order, over the whole time.
    pub(super) delivered_bytes: u64,
    /// When its last message was acknowledged.
    pub(super) completed_ns: Option<u64>,
}

impl Qp {
    /// Flow `number` of the simulation, which belongs to `group`.
    pub(super) fn new(number: u32, group: u32, sender: u32, class: u8, params: &Params) -> Self {
        let receiver = QpId { addr: [0; 4], qpn: number, vlan: 0 };
        let id = FlowId { src: [0, 0, 0, sender.wrapping_add(1)], receiver };
        let address = Address { dst: 0, at_dst: number, class, entropy: 0 };
        Self {
            group,
            sender,
            send: SendQp::new(address, id, params, false, None),
            receive: ReceiveQp::new(sender, number, class, 0, id),
            started: false,
            counters: FlowCounters::default(),
            delivered_bytes: 0,
            completed_ns: None,
        }
    }

    /// Statistics since their start.
    pub(super) const fn counters(&self) -> FlowCounters {
        FlowCounters {
            retransmitted_packets: self.send.retransmitted,
            timeouts: self.send.timeouts,
            ..self.counters
        }
    }

    /// Starts the statistics.
    pub(super) fn reset(&mut self) {
        self.counters = FlowCounters::default();
        (self.send.retransmitted, self.send.timeouts) = (0, 0);
    }

    /// A packet reaches the receiver. Returns the reply, if any.
    #[inline]
    fn on_data(&mut self, packet: &Packet, transport: &Transport) -> Option<Answer> {
        let before_psn = self.receive.expected_psn();
        let answer = self.receive.on_data(packet, Recovery::GoBackN, |_| {});
        if self.receive.expected_psn() != before_psn {
            let payload_bytes = u64::from(u32::from(packet.frame_bytes) - transport.header_bytes);
            self.delivered_bytes += payload_bytes;
            self.counters.bytes += payload_bytes;
        }
        answer
    }
}

/// The go-back-N transport of a group.
pub(super) fn transport(group: &RoceGroup) -> Transport {
    Transport {
        payload_bytes: group.payload_bytes,
        header_bytes: group.header_bytes,
        ack_every: group.ack_every,
        timeout_ns: group.retransmit_timeout_ns,
        ..Transport::default()
    }
}

/// A sender's NIC: one link, shared by its flows in round robin.
#[derive(Debug)]
pub(super) struct Sender {
    link: Transmitter,
    sending: Option<Packet>,
    /// Flows whose packet may depart, in order.
    ready: VecDeque<u32>,
    /// Flows whose class is paused.
    parked: Vec<u32>,
    /// Bit per paused class.
    paused: u8,
    /// Index of its delay.
    delay: u8,
}

impl Sender {
    /// An idle NIC.
    pub(super) const fn new(rate_bps: u64, delay: u8) -> Self {
        Self {
            link: Transmitter::new(rate_bps),
            sending: None,
            ready: VecDeque::new(),
            parked: Vec::new(),
            paused: 0,
            delay,
        }
    }

    /// Suspends a flow if its class is paused.
    #[inline]
    fn park(&mut self, flow: u32, class: u8) -> bool {
        let parks = self.paused >> class & 1 == 1;
        if parks {
            self.parked.push(flow);
        }
        parks
    }

    /// PFC pauses or resumes a class; on resume, suspended flows are queued again.
    fn pause(&mut self, class: u8, pause: bool) {
        if pause {
            self.paused |= 1 << class;
        } else {
            self.paused &= !(1 << class);
            self.ready.extend(self.parked.drain(..));
        }
    }
}

/// The senders.
impl Simulation<'_> {
    pub(super) fn on_start(&mut self, flow: u32) {
        let now_ns = self.now_ns;
        match self.tcp_index(flow) {
            Some(i) => self.tcps[i].set_active(true),
            None => {
                let qp = &mut self.qps[flow as usize];
                let transport = &self.transports[qp.group as usize];
                qp.started = true;
                match self.scenario.roce[qp.group as usize].work {
                    Work::Bulk => qp.send.post_endless(),
                    Work::Once { bytes } => qp.send.post(now_ns, 0, bytes, transport),
                    Work::Blocks { bytes, outstanding } => {
                        for _ in 0..outstanding {
                            qp.send.post(now_ns, 0, bytes, transport);
                        }
                    }
                    Work::Messages { mean_gap_ns, .. } => {
                        let at_ns = now_ns + self.random.exponential(mean_gap_ns);
                        self.agenda.at(at_ns, Event::Post(flow));
                    }
                }
            }
        }
        self.wake(flow);
    }

    pub(super) fn on_stop(&mut self, flow: u32) {
        match self.tcp_index(flow) {
            Some(i) => self.tcps[i].set_active(false),
            None => {
                let qp = &mut self.qps[flow as usize];
                if qp.started && self.scenario.roce[qp.group as usize].work == Work::Bulk {
                    qp.send.stop();
                }
            }
        }
    }

    /// A message of an open-loop flow arrives; schedules the next.
    pub(super) fn on_post(&mut self, flow: u32) {
        let now_ns = self.now_ns;
        let qp = &mut self.qps[flow as usize];
        let spec = &self.scenario.roce[qp.group as usize];
        if spec.stop_ns.is_some_and(|stop_ns| now_ns >= stop_ns) {
            return;
        }
        let Work::Messages { sizes, mean_gap_ns } = &spec.work else { return };
        let weights: u64 = sizes.iter().map(|size| size.weight).sum();
        let mut drawn = self.random.up_to(weights.saturating_sub(1));
        for (i, size) in (0..).zip(sizes) {
            if drawn < size.weight {
                qp.send.post(now_ns, i, size.bytes, &self.transports[qp.group as usize]);
                break;
            }
            drawn -= size.weight;
        }
        let at_ns = now_ns + self.random.exponential(*mean_gap_ns);
        self.agenda.at(at_ns, Event::Post(flow));
        self.wake(flow);
    }

    pub(super) fn on_timer(&mut self, flow: u32) {
        let again_ns = match self.tcp_index(flow) {
            Some(i) => self.tcps[i].on_timer(self.now_ns),
            None => {
                let qp = &mut self.qps[flow as usize];
                qp.send.on_timer(self.now_ns, &self.transports[qp.group as usize])
            }
        };
        if let Some(again_ns) = again_ns {
            self.agenda.at(again_ns, Event::Timer(flow));
        }
        self.wake(flow);
    }

    /// Queues a flow with data to send, unless it is queued.
    #[inline]
    pub(super) fn wake(&mut self, flow: u32) {
        match self.tcp_index(flow) {
            None => {
                let qp = &mut self.qps[flow as usize];
                if qp.send.phase == SendPhase::Idle && qp.send.has_data(&self.transports[qp.group as usize]) {
                    self.wake_idle(flow);
                }
            }
            Some(i) => {
                let tcp = &mut self.tcps[i];
                if !tcp.queued && tcp.can_send() {
                    tcp.queued = true;
                    let sender = tcp.sender;
                    self.enqueue(sender, flow);
                }
            }
        }
    }

    /// Queues a QP whose next packet may depart, or schedules the time when it may.
    fn wake_idle(&mut self, flow: u32) {
        let qp = &mut self.qps[flow as usize];
        if let Some(due_ns) = qp.send.due_ns(&self.params[qp.group as usize], self.now_ns) {
            qp.send.phase = SendPhase::Waiting;
            self.agenda.at(due_ns, Event::Due(flow));
            return;
        }
        qp.send.phase = SendPhase::Ready;
        let sender = qp.sender;
        self.enqueue(sender, flow);
    }

    #[inline]
    fn enqueue(&mut self, sender: u32, flow: u32) {
        let nic = &mut self.senders[sender as usize];
        if nic.sending.is_none() && nic.ready.is_empty() {
            self.send(sender, flow);
        } else {
            nic.ready.push_back(flow);
            self.pump(sender);
        }
    }

    /// Starts a sender's next packet if its link is free.
    #[inline]
    fn pump(&mut self, sender: u32) {
        while self.senders[sender as usize].sending.is_none()
            && let Some(flow) = self.senders[sender as usize].ready.pop_front()
        {
            self.send(sender, flow);
        }
    }

    /// Starts the next packet of a flow on a free link, if it has one and its class is not paused.
    #[inline]
    fn send(&mut self, sender: u32, flow: u32) {
        let now_ns = self.now_ns;
        let tcp_index = self.tcp_index(flow);
        let class =
            tcp_index.map_or_else(|| self.qps[flow as usize].send.address.class, |i| self.tcps[i].class);
        if self.senders[sender as usize].park(flow, class) {
            return;
        }
        let (packet, timer_ns) = match tcp_index {
            None => {
                let qp = &mut self.qps[flow as usize];
                let (group, send) = (qp.group as usize, &mut qp.send);
                let packet = send.next_packet(&self.params[group], &self.transports[group], now_ns);
                send.phase = if packet.is_some() { SendPhase::Sending } else { SendPhase::Idle };
                qp.counters.sent_packets += u64::from(packet.is_some());
                (packet, packet.and_then(|_| send.set_timer(now_ns, &self.transports[group])))
            }
            Some(i) => {
                let tcp = &mut self.tcps[i];
                let packet = tcp.next_packet(flow, now_ns);
                tcp.queued = packet.is_some();
                (packet, packet.and_then(|_| tcp.set_timer(now_ns)))
            }
        };
        if let Some(timer_ns) = timer_ns {
            self.agenda.at(timer_ns, Event::Timer(flow));
        }
        if let Some(packet) = packet {
            let nic = &mut self.senders[sender as usize];
            let wire_bytes = u64::from(packet.frame_bytes) + self.overhead_bytes;
            let free_ns = nic.link.send(now_ns, wire_bytes);
            nic.sending = Some(packet);
            self.agenda.at(free_ns, Event::LinkFree(sender));
        }
    }

    /// A packet has left its sender.
    #[inline]
    pub(super) fn on_link_free(&mut self, sender: u32) {
        let nic = &mut self.senders[sender as usize];
        let Some(packet) = nic.sending.take() else { return };
        self.up.enter(self.now_ns, usize::from(nic.delay), packet);
        self.counters.sent_packets += 1;
        match self.tcp_index(packet.qp) {
            None => self.qps[packet.qp as usize].send.phase = SendPhase::Idle,
            Some(i) => self.tcps[i].queued = false,
        }
        self.wake(packet.qp);
        self.pump(sender);
    }

    pub(super) fn on_pfc(&mut self, PfcFrame { delay, class, pause }: PfcFrame) {
        for sender in 0..self.senders.len() as u32 {
            let nic = &mut self.senders[sender as usize];
            if nic.delay == delay {
                nic.pause(class, pause);
                self.pump(sender);
            }
        }
    }
}

/// The port.
impl Simulation<'_> {
    /// A packet reaches the switch.
    #[inline]
    pub(super) fn on_arrival(&mut self, packet: Packet) {
        self.counters.hops += 1;
        match self.port.arrive(self.now_ns, packet, &mut self.random) {
            Ok(change) => self.signal(packet.class, change),
            Err(Dropped) => {
                self.counters.dropped_packets += 1;
                match self.tcp_index(packet.qp) {
                    None => self.qps[packet.qp as usize].counters.dropped_packets += 1,
                    Some(i) => self.tcps[i].counters.dropped_packets += 1,
                }
            }
        }
        self.begin_port();
    }

    #[inline]
    fn begin_port(&mut self) {
        if let Some((class, change)) = self.port.begin(self.now_ns, &mut self.random) {
            self.signal(class, change);
        }
    }

    /// The port has sent a packet.
    #[inline]
    pub(super) fn on_port_done(&mut self) {
        if let Some(packet) = self.port.finish() {
            self.down.enter(self.now_ns, 0, packet);
        }
        self.begin_port();
    }

    /// Sends PFC frames to all senders.
    #[inline]
    fn signal(&mut self, class: u8, change: PauseChange) {
        let Some(pause) = change else { return };
        for (delay, delay_ns) in (0..).zip(self.up.delays_ns()) {
            let frame = PfcFrame { delay, class, pause };
            self.agenda.at(self.now_ns + delay_ns, Event::Pfc(frame));
        }
    }
}

/// The receiver.
impl Simulation<'_> {
    /// A packet reaches the receiver.
    #[inline]
    pub(super) fn on_delivery(&mut self, packet: Packet) {
        self.counters.hops += 1;
        self.counters.received_packets += 1;
        let flow = packet.qp;
        let is_marked = packet.is(Packet::CE);
        match self.tcp_index(flow) {
            None => {
                let qp = &mut self.qps[flow as usize];
                let answer = qp.on_data(&packet, &self.transports[qp.group as usize]);
                if is_marked {
                    self.on_ce(flow);
                }
                if let Some(answer) = answer {
                    self.reply(flow, answer);
                }
            }
            Some(i) => {
                self.tcps[i].counters.marked_packets += u64::from(is_marked);
                self.reply(flow, Answer::ack(0, &packet));
            }
        }
    }

    /// The notification point: a marked packet of a RoCE flow.
    fn on_ce(&mut self, flow: u32) {
        let qp = &mut self.qps[flow as usize];
        qp.counters.marked_packets += 1;
        let scalars = &self.params[qp.group as usize].config.scalars;
        if !self.scenario.control || scalars.np_enable == 0 {
            return;
        }
        let interval_ns = scalars.min_time_between_cnps_ns;
        let np = limiter(&mut self.nps, &mut qp.receive, scalars.cnp_limit);
        let was_pending = np.pending != 0;
        if np.on_ecn_marked(self.now_ns, interval_ns) {
            self.reply(flow, Answer::of(PacketKind::Cnp, 0, 0));
        } else if scalars.np_window == NP_WINDOW_BOTH && !was_pending {
            self.agenda.at(np.last_cnp_ns + interval_ns, Event::Window(flow));
        }
    }

    /// The window of a CNP is over: marks within it are answered, unless a CNP was sent since.
    pub(super) fn on_window(&mut self, flow: u32) {
        let qp = &mut self.qps[flow as usize];
        let scalars = &self.params[qp.group as usize].config.scalars;
        let np: &mut NpFlow = limiter(&mut self.nps, &mut qp.receive, scalars.cnp_limit);
        if np.on_window_end(self.now_ns, scalars.min_time_between_cnps_ns) {
            self.reply(flow, Answer::of(PacketKind::Cnp, 0, 0));
        }
    }

    #[inline]
    fn reply(&mut self, flow: u32, answer: Answer) {
        let sender = match self.tcp_index(flow) {
            None => self.qps[flow as usize].sender,
            Some(i) => self.tcps[i].sender,
        };
        let delay = usize::from(self.senders[sender as usize].delay);
        self.back.enter(self.now_ns, delay, Reply { flow, answer });
    }
}
