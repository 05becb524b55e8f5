//! Links: the pace of a flow, the time a frame takes, the sending half of a link, packets in flight.

use std::collections::VecDeque;

use dcqcn_common::flow::RpHot;
use dcqcn_common::layout::CLASSES;
use dcqcn_common::rate::{Debt, RpParams};

use crate::network::agenda::{Agenda, Event};
use crate::network::packet::{Kind, Packet};
use crate::network::topology::PortSpec;

/// When to check whether the next packet of `flow` may depart; `None`: it may now.
///
/// The result is the end of the gap behind the last packet at the current rate, or the next increase if earlier, as the
/// gap follows the rate. A CNP postpones it, so an early check is repeated.
#[inline]
pub(crate) fn recheck_ns(flow: &mut RpHot, rp: &RpParams, now_ns: u64, debt: &mut Debt) -> Option<u64> {
    if flow.machine.active == 0 {
        return (flow.next_ns > now_ns).then_some(flow.next_ns);
    }
    flow.advance(rp, now_ns, debt);
    let next_ns = flow.next_ns;
    (next_ns > now_ns).then(|| next_ns.min(flow.machine.next_increase_ns).max(now_ns + 1))
}

/// A transmitter: one frame after the other at the link's rate.
///
/// Times are whole nanoseconds, but consecutive frames lose nothing to rounding: the remainder of a division is carried
/// over exactly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmitter {
    rate_bps: u64,
    free_ns: u64,
    /// The last frame ends this much after `free_ns`, in 1 ns / rate.
    carry: u64,
}

impl Transmitter {
    pub(crate) const fn new(rate_bps: u64) -> Self {
        Self { rate_bps, free_ns: 0, carry: 0 }
    }

    /// When the last frame ends.
    #[inline]
    pub(crate) const fn free_ns(&self) -> u64 {
        self.free_ns
    }

    /// Starts a frame of `wire_bytes` (below 2^20) after the last one has ended, and returns when it ends.
    #[inline]
    pub(crate) fn send(&mut self, now_ns: u64, wire_bytes: u64) -> u64 {
        if now_ns > self.free_ns {
            self.carry = 0;
        }
        let length = wire_bytes * 8_000_000_000 + self.carry;
        self.free_ns = now_ns + length / self.rate_bps;
        self.carry = length % self.rate_bps;
        self.free_ns
    }

    pub(crate) const fn time_ns(rate_bps: u64, bytes: u64) -> u64 {
        (bytes * 8_000_000_000).div_ceil(rate_bps)
    }
}

/// Length of a PFC frame: the minimum of Ethernet.
const PFC_BYTES: u16 = 64;

/// A packet on its way to another node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) at_ns: u64,
    pub(crate) node: u32,
    pub(crate) what: Delivery,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Delivery {
    Packet(u16, Packet),
    /// Notification that a flow which this flow of the host waits for is complete.
    Notice(u32),
}

/// Packets that nodes send each other within a time window.
pub(crate) type Outbox = Vec<Message>;

/// Packets in transit to one port, with their arrival: of one link, so in order.
#[derive(Debug, Default)]
pub(crate) struct Inbound(VecDeque<(u64, Packet)>);

impl Inbound {
    #[inline]
    pub(crate) fn enter(&mut self, agenda: &mut Agenda, port: u16, at_ns: u64, packet: Packet) {
        if self.0.is_empty() {
            agenda.at(at_ns, Event::Arrival, port.into());
        }
        self.0.push_back((at_ns, packet));
    }

    /// Number of packets.
    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    #[inline]
    pub(crate) fn take(&mut self, agenda: &mut Agenda, port: u16) -> Option<Packet> {
        let (_, packet) = self.0.pop_front()?;
        if let Some(&(next_ns, _)) = self.0.front() {
            agenda.at(next_ns, Event::Arrival, port.into());
        }
        Some(packet)
    }
}

#[derive(Debug, Default)]
struct Pauses {
    since_ns: [u64; CLASSES],
    /// Total up to the end of the last pause.
    total_ns: [u64; CLASSES],
}

/// The sending half of a link.
#[derive(Debug)]
pub(crate) struct Wire {
    peer: u32,
    peer_port: u16,
    pub(crate) link: u32,
    delay_ns: u64,
    overhead_bytes: u64,
    pub(crate) transmitter: Transmitter,
    pub(crate) up: bool,
    pub(crate) paused: u8,
    pauses: Box<Pauses>,
    /// Whether an event is scheduled for the end of the current frame.
    wakes: bool,
    /// Classes for which the peer must be paused, and resumed.
    pfc: [u8; 2],
    pub(crate) tx_bytes: u64,
}

impl Wire {
    pub(crate) fn new(spec: &PortSpec, overhead_bytes: u64) -> Self {
        Self {
            peer: spec.peer,
            peer_port: spec.peer_port,
            link: spec.link,
            delay_ns: spec.delay_ns,
            overhead_bytes,
            transmitter: Transmitter::new(spec.rate_bps),
            up: true,
            paused: 0,
            pauses: Box::default(),
            wakes: false,
            pfc: [0; 2],
            tx_bytes: 0,
        }
    }

    #[inline]
    pub(crate) const fn is_free(&self, now_ns: u64) -> bool {
        self.transmitter.free_ns() <= now_ns
    }

    #[inline]
    pub(crate) const fn is_ready(&self, now_ns: u64, class: u8) -> bool {
        self.is_free(now_ns) && self.up && self.paused >> class & 1 == 0 && !self.has_pfc()
    }

    /// Schedules an event for the end of the current frame.
    #[inline]
    pub(crate) fn wake(&mut self, agenda: &mut Agenda, port: u16) {
        if !self.wakes {
            self.wakes = true;
            agenda.at(self.transmitter.free_ns(), Event::Done, port.into());
        }
    }

    /// Processes that event.
    #[inline]
    pub(crate) fn woken(&mut self) {
        self.wakes = false;
    }

    /// Sends a packet, which is lost if the link is down.
    #[inline]
    pub(crate) fn send(&mut self, now_ns: u64, packet: Packet, out: &mut Outbox) {
        let wire_bytes = u64::from(packet.frame_bytes) + self.overhead_bytes;
        let end_ns = self.transmitter.send(now_ns, wire_bytes);
        self.tx_bytes += u64::from(packet.frame_bytes);
        if self.up {
            let what = Delivery::Packet(self.peer_port, packet);
            out.push(Message { at_ns: end_ns + self.delay_ns, node: self.peer, what });
        }
    }

    pub(crate) const fn request_pause(&mut self, bits: u8, pause: bool) {
        let [off, on] = self.pfc;
        self.pfc = if pause { [off | bits, on & !bits] } else { [off & !bits, on | bits] };
    }

    /// Whether a pause or resume frame is pending.
    #[inline]
    pub(crate) const fn has_pfc(&self) -> bool {
        self.pfc[0] | self.pfc[1] != 0
    }

    /// Sends it, before all other frames.
    pub(crate) fn send_pfc(&mut self, now_ns: u64, out: &mut Outbox) {
        let [off, on] = std::mem::take(&mut self.pfc);
        for (bits, pause) in [(off, 1), (on, 0)] {
            if bits != 0 {
                let (extra, frame_bytes) = (bits.into(), PFC_BYTES);
                let packet = Packet { psn: pause, extra, frame_bytes, kind: Kind::Pfc, ..Packet::default() };
                // The second of two frames starts when the first ends.
                let begin_ns = now_ns.max(self.transmitter.free_ns());
                self.send(begin_ns, packet, out);
            }
        }
    }

    /// The peer pauses or resumes classes.
    pub(crate) fn on_pfc(&mut self, now_ns: u64, packet: Packet) {
        let bits = packet.extra as u8;
        for class in 0..CLASSES {
            let bit = 1 << class;
            if bits & bit == 0 {
                continue;
            }
            let was_paused = self.paused & bit != 0;
            if packet.psn == 1 && !was_paused {
                self.paused |= bit;
                self.pauses.since_ns[class] = now_ns;
            } else if packet.psn == 0 && was_paused {
                self.paused &= !bit;
                self.pauses.total_ns[class] += now_ns - self.pauses.since_ns[class];
            }
        }
    }

    pub(crate) fn paused_ns(&self, class: usize, now_ns: u64) -> u64 {
        let lasting = if self.paused >> class & 1 == 1 { now_ns - self.pauses.since_ns[class] } else { 0 };
        self.pauses.total_ns[class] + lasting
    }

    /// The link fails or recovers: both clear all pauses.
    pub(crate) fn set_up(&mut self, now_ns: u64, up: bool) {
        for class in 0..CLASSES {
            self.pauses.total_ns[class] = self.paused_ns(class, now_ns);
        }
        self.paused = 0;
        self.pfc = [0; 2];
        self.up = up;
    }
}

#[cfg(test)]
mod tests {
    use dcqcn_common::flow::{FlowId, RpFlow};
    use dcqcn_common::params::{Config, PACER_FQ, Params, Port};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gap_shortens_as_rate_rises() {
        let mut config = Config::DEFAULT;
        let scalars = &mut config.scalars;
        (scalars.link_rate_bps, scalars.pacer, scalars.rpg_min_rate_bps) =
            (100_000_000_000, PACER_FQ, 10_000_000);
        scalars.rate_reduce_monitor_period_ns = 0;
        scalars.pacing_credit_ns = 0;
        let params = Params::new(&config, Port::new(1, 1, 1)).unwrap();
        let mut flow = RpFlow::new(FlowId::NONE, &params.rp);
        let mut debt = Debt::NONE;
        for cnp in 0..40 {
            flow.on_cnp(&params.rp, cnp * 1_000, &mut debt);
        }
        let now_ns = 40_000;
        let _ = flow.hot.on_send(&params, now_ns, 4_096, &mut debt);
        let frozen_ns = flow.hot.next_ns;
        assert!(frozen_ns > now_ns + 3_000_000, "4 KB at the floor of 10 Mbit/s");
        let mut polls = 0;
        let mut at_ns = now_ns;
        while let Some(later_ns) = recheck_ns(&mut flow.hot, &params.rp, at_ns, &mut debt) {
            assert!(later_ns > at_ns);
            at_ns = later_ns;
            polls += 1;
        }
        assert!(at_ns < now_ns + 1_500_000 && polls > 2, "{at_ns} after {polls} polls");
    }

    #[test]
    fn idle_gap_discards_the_fraction() {
        let mut link = Transmitter::new(3_000_000_000);
        assert_eq!([link.send(0, 1), link.send(2, 1), link.send(5, 1)], [2, 5, 8]);
        assert_eq!([link.send(9, 1), link.send(11, 1)], [11, 14]);
        assert_eq!((link.free_ns(), Transmitter::time_ns(3_000_000_000, 1)), (14, 3));
    }

    proptest! {
        #[test]
        fn back_to_back_frames_have_no_gap(
            rate_bps in 100_000u64..=800_000_000_000, lengths in proptest::collection::vec(64u64..9_300, 1..50),
        ) {
            let mut link = Transmitter::new(rate_bps);
            let mut now_ns = 5;
            for &bytes in &lengths {
                now_ns = link.send(now_ns, bytes);
            }
            let total: u64 = lengths.iter().sum();
            prop_assert_eq!(now_ns - 5, total * 8_000_000_000 / rate_bps);
        }
    }
}
