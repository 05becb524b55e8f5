//! The engine: one loop over everything that happens, in order of time.
//!
//! What waits for the end of a constant delay (a link, the way back) stands in a queue of its own; only what has a time of
//! its own (departures, timers) is in the heap. So the cost of an event depends on the number of senders, and memory on the
//! number of packets in flight.
//!
//! DCQCN itself is not here: marking, the CNP interval, the rate machine and pacing are those of `dcqcn-common`.

mod agenda;
mod collect;
mod depth;
mod lane;
mod packet;
mod port;
mod qp;
mod random;
mod sender;
mod setup;
mod tcp;
/// Who limits a flow's CNPs.
fn limiter<'a>(nps: &'a mut [NpFlow], qp: &'a mut Qp, cnp_limit: u64) -> &'a mut NpFlow {
    let index = match cnp_limit {
        CNP_LIMIT_PEER => Some(qp.sender as usize),
        CNP_LIMIT_PORT => Some(0),
        _ => None,
    };
    match index.and_then(|index| nps.get_mut(index)) {
        Some(np) => np,
        None => &mut qp.np,
    }
}

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use dcqcn_common::layout::NpFlow;
use dcqcn_common::params::{CNP_LIMIT_PEER, CNP_LIMIT_PORT, NP_WINDOW_BOTH, Params};

use self::agenda::{Agenda, Event, PfcFrame};
use self::collect::Collector;
use self::lane::Lane;
use self::packet::{Packet, Reply, ReplyKind};
use self::port::{PauseChange, Port};
use self::qp::{Qp, Turn};
use self::random::Random;
use self::sender::Sender;
use self::tcp::Tcp;
use super::{Counters, Outcome, RoceGroup, Scenario, SimError, Work};

/// Events between two reports of progress: some ten milliseconds.
const REPORT_EVERY: u64 = 1 << 16;

/// Runs `scenario`. `progress` is told the simulated time now and then, and may stop the run.
///
/// The outcome depends on nothing but the scenario.
///
/// # Errors
/// The scenario is invalid, or `progress` stopped the run.
pub fn run(
    scenario: &Scenario,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Outcome, SimError> {
    scenario.validate()?;
    let mut simulation = Simulation::new(scenario)?;
    while let Some(reached_ns) = simulation.some_events() {
        if progress(reached_ns).is_break() {
            return Err(SimError::Stopped { now_ns: reached_ns });
        }
    }
    Ok(simulation.finish())
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// An event of the agenda.
    Agenda,
    /// The port has sent a packet.
    PortDone,
    /// A packet reaches the receiver.
    Delivery,
    /// A packet of the senders with this delay reaches the switch.
    Arrival(usize),
    /// An answer reaches one of the senders with this delay.
    Reply(usize),
}

struct Simulation<'s> {
    scenario: &'s Scenario,
    now_ns: u64,
    over: bool,
    agenda: Agenda,
    random: Random,
    /// One per RoCE group: they differ in their pacing credit.
    params: Vec<Params>,
    overhead_bytes: u64,
    /// RoCE flows come first in the numbering of flows.
    qps: Vec<Qp>,
    tcps: Vec<Tcp>,
    senders: Vec<Sender>,
    /// NP state where CNPs are not limited per QP: per sender, or one for all.
    nps: Vec<NpFlow>,
    port: Port,
    /// Sender to switch, per distinct delay.
    up: Vec<Lane<Packet>>,
    /// Switch to receiver.
    down: Lane<Packet>,
    /// Receiver to sender, per distinct delay.
    back: Vec<Lane<Reply>>,
    counters: Counters,
    collector: Collector,
}

impl Simulation<'_> {
    /// Handles some events; says how far it got, or `None` if time is up.
    fn some_events(&mut self) -> Option<u64> {
        for _ in 0..REPORT_EVERY {
            if self.over {
                return None;
            }
            self.step();
        }
        Some(self.now_ns)
    }

    #[inline]
    fn step(&mut self) {
        let mut at_ns = self.agenda.next_ns();
        let mut next = Next::Agenda;
        let mut consider = |candidate_ns: u64, candidate: Next| {
            if candidate_ns < at_ns {
                at_ns = candidate_ns;
                next = candidate;
            }
        };
        consider(self.port.done_ns, Next::PortDone);
        consider(self.down.next_ns(), Next::Delivery);
        for (i, lane) in self.up.iter().enumerate() {
            consider(lane.next_ns(), Next::Arrival(i));
        }
        for (i, lane) in self.back.iter().enumerate() {
            consider(lane.next_ns(), Next::Reply(i));
        }
        self.now_ns = at_ns;
        self.counters.events += 1;
        match next {
            Next::Agenda => {
                if let Some(event) = self.agenda.take() {
                    self.on_event(event);
                }
            }
            Next::PortDone => self.on_port_done(),
            Next::Delivery => {
                if let Some(packet) = self.down.take() {
                    self.on_delivery(packet);
                }
            }
            Next::Arrival(i) => {
                if let Some(packet) = self.up[i].take() {
                    self.on_arrival(packet);
                }
            }
            Next::Reply(i) => {
                if let Some(reply) = self.back[i].take() {
                    self.on_reply(reply);
                }
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        let now_ns = self.now_ns;
        match event {
            Event::Due(flow) => {
                self.qps[flow as usize].turn = Turn::Idle;
                self.wake(flow);
            }
            Event::Window(flow) => self.on_window(flow),
            Event::LinkFree(sender) => self.on_link_free(sender),
            Event::Timer(flow) => {
                let again_ns = match self.tcp_index(flow) {
                    None => self.qps[flow as usize].on_timer(now_ns),
                    Some(i) => self.tcps[i].on_timer(now_ns),
                };
                if let Some(again_ns) = again_ns {
                    self.agenda.at(again_ns, event);
                }
                self.wake(flow);
            }
            Event::Start(flow) => self.on_start(flow),
            Event::Stop(flow) => match self.tcp_index(flow) {
                None => self.qps[flow as usize].stop(),
                Some(i) => self.tcps[i].set_active(false),
            },
            Event::Post(flow) => self.on_post(flow),
            Event::Pfc(frame) => self.on_pfc(frame),
            Event::StatsFrom => self.reset_statistics(),
            Event::Sample => {
                self.sample();
                if let Some(at_ns) = self.collector.next_sample_ns() {
                    self.agenda.at(at_ns, Event::Sample);
                }
            }
            Event::FairWindow => {
                self.collector.end_window(now_ns, &self.qps);
                if let Some(at_ns) = self.collector.next_window_ns() {
                    self.agenda.at(at_ns, Event::FairWindow);
                }
            }
            Event::End => {
                // Entered long before the sample of the same time.
                if self.collector.next_sample_ns() == Some(now_ns) {
                    self.sample();
                }
                self.over = true;
            }
        }
    }

    fn sample(&mut self) {
        self.collector.sample(self.now_ns, &self.params, &self.qps, &self.tcps, &mut self.port);
    }

    /// The index of a TCP flow in `tcps`; `None`: it is a RoCE flow.
    #[inline]
    fn tcp_index(&self, flow: u32) -> Option<usize> {
        (flow as usize).checked_sub(self.qps.len())
    }

    fn on_start(&mut self, flow: u32) {
        let now_ns = self.now_ns;
        match self.tcp_index(flow) {
            Some(i) => self.tcps[i].set_active(true),
            None => {
                let qp = &mut self.qps[flow as usize];
                qp.started = true;
                match self.scenario.roce[qp.group as usize].work {
                    Work::Bulk => qp.post_bulk(),
                    Work::Once { bytes } => qp.post(now_ns, bytes, 0),
                    Work::Blocks { bytes, outstanding } => {
                        for _ in 0..outstanding {
                            qp.post(now_ns, bytes, 0);
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

    /// A message of an open-loop flow, and the time of its next.
    fn on_post(&mut self, flow: u32) {
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
                qp.post(now_ns, size.bytes, i);
                break;
            }
            drawn -= size.weight;
        }
        let at_ns = now_ns + self.random.exponential(*mean_gap_ns);
        self.agenda.at(at_ns, Event::Post(flow));
        self.wake(flow);
    }

    /// Puts a flow that has something to send in line, if it is not there.
    #[inline]
    fn wake(&mut self, flow: u32) {
        let sender = match self.tcp_index(flow) {
            None => {
                let qp = &mut self.qps[flow as usize];
                if qp.turn != Turn::Idle || !qp.has_data() {
                    return;
                }
                let rp = &self.params[qp.group as usize].rp;
                if let Some(due_ns) = qp.not_before(rp, self.now_ns) {
                    qp.turn = Turn::Waiting;
                    self.agenda.at(due_ns, Event::Due(flow));
                    return;
                }
                qp.turn = Turn::Ready;
                qp.sender
            }
            Some(i) => {
                let tcp = &mut self.tcps[i];
                if tcp.queued || !tcp.can_send() {
                    return;
                }
                tcp.queued = true;
                tcp.sender
            }
        };
        self.senders[sender as usize].ready.push_back(flow);
        self.pump(sender);
    }

    /// Begins a sender's next packet if its link is free.
    #[inline]
    fn pump(&mut self, sender: u32) {
        let now_ns = self.now_ns;
        let number = sender as usize;
        if self.senders[number].sending.is_some() {
            return;
        }
        while let Some(flow) = self.senders[number].ready.pop_front() {
            let tcp_index = self.tcp_index(flow);
            let class = tcp_index.map_or_else(|| self.qps[flow as usize].class, |i| self.tcps[i].class);
            if self.senders[number].park(flow, class) {
                continue;
            }
            let (packet, timer_ns) = match tcp_index {
                None => {
                    let qp = &mut self.qps[flow as usize];
                    let packet = qp.next_packet(flow, &self.params[qp.group as usize], now_ns);
                    qp.turn = if packet.is_some() { Turn::Sending } else { Turn::Idle };
                    (packet, packet.and_then(|_| qp.set_timer(now_ns)))
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
                let nic = &mut self.senders[number];
                let wire_bytes = u64::from(packet.frame_bytes) + self.overhead_bytes;
                let free_ns = nic.link.send(now_ns, wire_bytes);
                nic.sending = Some(packet);
                self.agenda.at(free_ns, Event::LinkFree(sender));
                return;
            }
        }
    }

    /// A packet has left its sender.
    #[inline]
    fn on_link_free(&mut self, sender: u32) {
        let nic = &mut self.senders[sender as usize];
        let Some(packet) = nic.sending.take() else { return };
        self.up[usize::from(nic.delay)].enter(self.now_ns, packet);
        self.counters.sent_packets += 1;
        match self.tcp_index(packet.flow) {
            None => self.qps[packet.flow as usize].turn = Turn::Idle,
            Some(i) => self.tcps[i].queued = false,
        }
        self.wake(packet.flow);
        self.pump(sender);
    }

    /// A packet reaches the switch.
    #[inline]
    fn on_arrival(&mut self, packet: Packet) {
        self.counters.hops += 1;
        match self.port.arrive(self.now_ns, packet, &mut self.random) {
            Ok(change) => self.signal(packet.class, change),
            Err(port::Dropped) => {
                self.counters.dropped_packets += 1;
                match self.tcp_index(packet.flow) {
                    None => self.qps[packet.flow as usize].counters.dropped_packets += 1,
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
    fn on_port_done(&mut self) {
        if let Some(packet) = self.port.finish() {
            self.down.enter(self.now_ns, packet);
        }
        self.begin_port();
    }

    /// Tells all senders of PFC.
    #[inline]
    fn signal(&mut self, class: u8, change: PauseChange) {
        let Some(pause) = change else { return };
        for (delay, lane) in (0..).zip(&self.up) {
            let frame = PfcFrame { delay, class, pause };
            self.agenda.at(self.now_ns + lane.delay_ns(), Event::Pfc(frame));
        }
    }

    fn on_pfc(&mut self, PfcFrame { delay, class, pause }: PfcFrame) {
        for sender in 0..self.senders.len() as u32 {
            let nic = &mut self.senders[sender as usize];
            if nic.delay == delay {
                nic.pause(class, pause);
                self.pump(sender);
            }
        }
    }

    /// A packet reaches the receiver.
    #[inline]
    fn on_delivery(&mut self, packet: Packet) {
        self.counters.hops += 1;
        self.counters.received_packets += 1;
        let flow = packet.flow;
        match self.tcp_index(flow) {
            None => {
                let qp = &mut self.qps[flow as usize];
                let sender = qp.sender as usize;
                let answer = qp.on_data(packet);
                if packet.is_ce() {
                    qp.counters.marked_packets += 1;
                    let scalars = &self.params[qp.group as usize].config.scalars;
                    if self.scenario.control && scalars.np_enable != 0 {
                        let interval_ns = scalars.min_time_between_cnps_ns;
                        let at_window_end = scalars.np_window == NP_WINDOW_BOTH;
                        let np = limiter(&mut self.nps, qp, scalars.cnp_limit);
                        let was_pending = np.pending != 0;
                        if np.on_ecn_marked(self.now_ns, interval_ns) {
                            self.reply(sender, Reply { sequence: 0, flow, kind: ReplyKind::Cnp });
                        } else if at_window_end && !was_pending {
                            self.agenda.at(np.last_cnp_ns + interval_ns, Event::Window(flow));
                        }
                    }
                }
                if let Some(answer) = answer {
                    self.reply(sender, answer);
                }
            }
            Some(i) => {
                let tcp = &mut self.tcps[i];
                tcp.counters.marked_packets += u64::from(packet.is_ce());
                let kind = if packet.is_ce() { ReplyKind::AckCe } else { ReplyKind::Ack };
                let sender = tcp.sender as usize;
                self.reply(sender, Reply { sequence: packet.sequence, flow, kind });
            }
        }
    }

    /// The window of a CNP is over: marks within it are answered, unless a later one was since.
    fn on_window(&mut self, flow: u32) {
        let qp = &mut self.qps[flow as usize];
        let (sender, group) = (qp.sender as usize, qp.group as usize);
        let scalars = &self.params[group].config.scalars;
        let np = limiter(&mut self.nps, qp, scalars.cnp_limit);
        if np.on_window_end(self.now_ns, scalars.min_time_between_cnps_ns) {
            self.reply(sender, Reply { sequence: 0, flow, kind: ReplyKind::Cnp });
        }
    }

    #[inline]
    fn reply(&mut self, sender: usize, reply: Reply) {
        let delay = usize::from(self.senders[sender].delay);
        self.back[delay].enter(self.now_ns, reply);
    }

    /// An answer reaches its sender.
    #[inline]
    fn on_reply(&mut self, Reply { sequence, flow, kind }: Reply) {
        let now_ns = self.now_ns;
        if let Some(i) = self.tcp_index(flow) {
            self.tcps[i].on_ack(now_ns, sequence, kind == ReplyKind::AckCe);
            self.wake(flow);
            return;
        }
        let qp = &mut self.qps[flow as usize];
        let group = qp.group;
        match kind {
            ReplyKind::Cnp => {
                let params = &self.params[group as usize];
                qp.counters.cnps += 1;
                if params.config.scalars.rp_enable != 0 {
                    qp.rp.on_cnp(&params.rp, now_ns, &mut qp.debt);
                }
                return;
            }
            ReplyKind::Ack | ReplyKind::AckCe => {}
            ReplyKind::Nak => qp.on_nak(now_ns, sequence),
        }
        let mut completed = 0;
        qp.on_ack(now_ns, sequence, |message| {
            completed += 1;
            self.collector.complete(group, now_ns, message);
        });
        let spec: &RoceGroup = &self.scenario.roce[group as usize];
        if let Work::Blocks { bytes, .. } = spec.work
            && spec.stop_ns.is_none_or(|stop_ns| now_ns < stop_ns)
        {
            for _ in 0..completed {
                qp.post(now_ns, bytes, 0);
            }
        }
        self.wake(flow);
    }

    fn reset_statistics(&mut self) {
        self.port.reset(self.now_ns);
        self.collector.reset();
        for qp in &mut self.qps {
            qp.counters = Default::default();
        }
        for tcp in &mut self.tcps {
            tcp.counters = Default::default();
        }
    }

    fn finish(mut self) -> Outcome {
        self.port.end(self.now_ns);
        let on_links = self.up.iter().map(Lane::len).sum::<usize>() + self.down.len();
        self.counters.in_flight_packets = (on_links + self.port.packets()) as u64;
        self.collector.outcome(
            self.scenario,
            self.now_ns,
            &self.params,
            &self.qps,
            &self.tcps,
            &mut self.port,
            self.counters,
        )
    }
}
