//! The port that all flows share, and PFC.

use super::Simulation;
use super::agenda::{Event, PfcFrame};
use super::packet::Packet;
use super::port::{Dropped, PauseChange};

impl Simulation<'_> {
    /// A packet reaches the switch.
    #[inline]
    pub(super) fn on_arrival(&mut self, packet: Packet) {
        self.counters.hops += 1;
        match self.port.arrive(self.now_ns, packet, &mut self.random) {
            Ok(change) => self.signal(packet.class, change),
            Err(Dropped) => {
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
    pub(super) fn begin_port(&mut self) {
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

    /// Tells all senders of PFC.
    #[inline]
    pub(super) fn signal(&mut self, class: u8, change: PauseChange) {
        let Some(pause) = change else { return };
        for (delay, delay_ns) in (0..).zip(self.up.delays_ns()) {
            let frame = PfcFrame { delay, class, pause };
            self.agenda.at(self.now_ns + delay_ns, Event::Pfc(frame));
        }
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
