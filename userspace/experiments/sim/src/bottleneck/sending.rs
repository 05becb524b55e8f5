//! The senders: who is in line, and what leaves next.

use crate::network::pace::look_again_ns;

use super::Simulation;
use super::agenda::Event;
use super::qp::Turn;
use crate::Work;

impl Simulation<'_> {
    pub(super) fn on_start(&mut self, flow: u32) {
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
    pub(super) fn wake(&mut self, flow: u32) {
        match self.tcp_index(flow) {
            None => {
                let qp = &self.qps[flow as usize];
                if qp.turn == Turn::Idle && qp.has_data() {
                    self.wake_idle(flow);
                }
            }
            Some(i) => {
                let tcp = &mut self.tcps[i];
                if !tcp.queued && tcp.can_send() {
                    tcp.queued = true;
                    let sender = tcp.sender;
                    self.stand_in_line(sender, flow);
                }
            }
        }
    }

    /// A QP that has something to send, and that no event wakes, is in line if its next packet may leave, or will be woken.
    fn wake_idle(&mut self, flow: u32) {
        let qp = &mut self.qps[flow as usize];
        let rp = &self.params[qp.group as usize].rp;
        if let Some(due_ns) = look_again_ns(&mut qp.rp.hot, rp, self.now_ns, &mut qp.debt) {
            qp.turn = Turn::Waiting;
            self.agenda.at(due_ns, Event::Due(flow));
            return;
        }
        qp.turn = Turn::Ready;
        let sender = qp.sender;
        self.stand_in_line(sender, flow);
    }

    #[inline]
    fn stand_in_line(&mut self, sender: u32, flow: u32) {
        let nic = &mut self.senders[sender as usize];
        if nic.sending.is_none() && nic.ready.is_empty() {
            // There is no line.
            self.send(sender, flow);
        } else {
            nic.ready.push_back(flow);
            self.pump(sender);
        }
    }

    /// Begins a sender's next packet if its link is free.
    #[inline]
    pub(super) fn pump(&mut self, sender: u32) {
        while self.senders[sender as usize].sending.is_none()
            && let Some(flow) = self.senders[sender as usize].ready.pop_front()
        {
            self.send(sender, flow);
        }
    }

    /// Begins the next packet of a flow, whose turn it is on a link that is free, if it has one and its class is not paused.
    #[inline]
    fn send(&mut self, sender: u32, flow: u32) {
        let now_ns = self.now_ns;
        let tcp_index = self.tcp_index(flow);
        let class = tcp_index.map_or_else(|| self.qps[flow as usize].class, |i| self.tcps[i].class);
        if self.senders[sender as usize].park(flow, class) {
            return;
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
        match self.tcp_index(packet.flow) {
            None => self.qps[packet.flow as usize].turn = Turn::Idle,
            Some(i) => self.tcps[i].queued = false,
        }
        self.wake(packet.flow);
        self.pump(sender);
    }
}
