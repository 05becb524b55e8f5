//! Packets in flight at a sender, for NSCC: departure and arrival of each.

use std::collections::VecDeque;
use std::ops::Range;

use crate::network::nscc::{Feedback, Law, Window};
use crate::network::packet::Packet;

/// State of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentState {
    InFlight,
    /// Trimmed by a switch: it does not arrive intact.
    Trimmed,
    /// Not acknowledged in time, but may still arrive.
    Late,
    Arrived,
}

/// A packet that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Departure time; `None`: ambiguous after a retransmission.
    at_ns: Option<u64>,
    bytes: u32,
    state: SentState,
}

/// Packets in flight at a sender.
#[derive(Debug)]
pub(crate) struct Flight {
    window: Window,
    /// From the first unacknowledged packet on.
    sent: VecDeque<Sent>,
    under_way_bytes: u64,
}

impl Flight {
    pub(super) fn new(law: &Law) -> Box<Self> {
        Box::new(Self { window: Window::new(law), sent: VecDeque::new(), under_way_bytes: 0 })
    }

    /// Whether the packet at `index` may be sent or retransmitted. One already counted as in flight needs no more room.
    pub(super) fn has_room(&self, index: usize, frame_bytes: u64) -> bool {
        let is_counted = self.sent.get(index).is_some_and(|sent| sent.state == SentState::InFlight);
        is_counted || self.window.has_room(self.under_way_bytes, frame_bytes)
    }

    /// Whether another packet may not be sent, so that a probe is needed.
    pub(super) fn is_full(&self, frame_bytes: u64) -> bool {
        !self.window.has_room(self.under_way_bytes, frame_bytes)
    }

    /// The packet at `index` departs.
    pub(super) fn on_send(&mut self, now_ns: u64, index: usize, bytes: u32) {
        match self.sent.get_mut(index) {
            Some(sent) => {
                sent.at_ns = (sent.state == SentState::Trimmed).then_some(now_ns);
                if sent.state != SentState::InFlight {
                    sent.state = SentState::InFlight;
                    self.under_way_bytes += u64::from(bytes);
                }
            }
            None => {
                self.sent.push_back(Sent { at_ns: Some(now_ns), bytes, state: SentState::InFlight });
                self.under_way_bytes += u64::from(bytes);
            }
        }
    }

    /// An acknowledgement arrives; `psns` are the sent and unacknowledged packets.
    pub(super) fn on_ack(&mut self, law: &Law, now_ns: u64, packet: &Packet, psns: Range<u32>) {
        let index = packet.extra.checked_sub(psns.start).map(|index| index as usize);
        let named = index.and_then(|index| self.sent.get(index)).copied();
        let is_trimmed = packet.is(Packet::TRIMMED);
        let mut new_bytes = 0;
        if let Some(index) = index.filter(|_| named.is_some() && !is_trimmed) {
            new_bytes += self.arrive(index);
        }
        for _ in psns.start..packet.psn.min(psns.end) {
            new_bytes += self.arrive(0);
            self.sent.pop_front();
        }
        if is_trimmed {
            let lost_bytes = packet.extra.checked_sub(psns.start.max(packet.psn.min(psns.end)));
            let lost_bytes = lost_bytes.map_or(0, |index| self.lose(index as usize, SentState::Trimmed));
            if lost_bytes != 0 {
                let rtt_ns = named.and_then(|sent| sent.at_ns).map(|at_ns| now_ns - at_ns);
                self.window.on_trimmed(law, now_ns, rtt_ns, lost_bytes, self.under_way_bytes);
            }
            if new_bytes == 0 {
                return;
            }
        }
        let rtt_ns = named.filter(|_| !is_trimmed).and_then(|sent| sent.at_ns).map(|at_ns| now_ns - at_ns);
        let marked = packet.is(Packet::ECHO);
        let under_way_bytes = self.under_way_bytes;
        self.window.on_ack(law, now_ns, &Feedback { new_bytes, rtt_ns, marked, under_way_bytes });
    }

    /// Time-out: packets in flight count as lost.
    pub(super) fn on_timeout(&mut self, law: &Law) {
        let bytes = (0..self.sent.len()).map(|index| self.lose(index, SentState::Late)).sum();
        self.window.on_timeout(law, bytes);
    }

    /// A packet has arrived: returns its bytes, unless known.
    fn arrive(&mut self, index: usize) -> u64 {
        let Some(sent) = self.sent.get_mut(index).filter(|sent| sent.state != SentState::Arrived) else {
            return 0;
        };
        if sent.state == SentState::InFlight {
            self.under_way_bytes -= u64::from(sent.bytes);
        }
        sent.state = SentState::Arrived;
        sent.bytes.into()
    }

    /// A packet is lost: returns its bytes, unless known or arrived.
    fn lose(&mut self, index: usize, state: SentState) -> u64 {
        let Some(sent) = self.sent.get_mut(index).filter(|sent| sent.state == SentState::InFlight) else {
            return 0;
        };
        sent.state = state;
        self.under_way_bytes -= u64::from(sent.bytes);
        sent.bytes.into()
    }
}
