//! The receivers: what arrives is counted, acknowledged, and answered with CNPs.

use dcqcn_common::flow::NpFlow;
use dcqcn_common::params::{CNP_LIMIT_PEER, CNP_LIMIT_PORT, NP_WINDOW_BOTH};

use super::Simulation;
use super::agenda::Event;
use super::packet::{Packet, Reply, ReplyKind};
use super::qp::Qp;

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

impl Simulation<'_> {
    /// A packet reaches the receiver.
    #[inline]
    pub(super) fn on_delivery(&mut self, packet: Packet) {
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
    pub(super) fn on_window(&mut self, flow: u32) {
        let qp = &mut self.qps[flow as usize];
        let (sender, group) = (qp.sender as usize, qp.group as usize);
        let scalars = &self.params[group].config.scalars;
        let np = limiter(&mut self.nps, qp, scalars.cnp_limit);
        if np.on_window_end(self.now_ns, scalars.min_time_between_cnps_ns) {
            self.reply(sender, Reply { sequence: 0, flow, kind: ReplyKind::Cnp });
        }
    }

    #[inline]
    pub(super) fn reply(&mut self, sender: usize, reply: Reply) {
        let delay = usize::from(self.senders[sender].delay);
        self.back.enter(self.now_ns, delay, reply);
    }
}
