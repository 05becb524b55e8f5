//! NSCC: a sender's congestion window, controlled by marks and round trips.
//!
//! Network-signaled congestion control of Ultra Ethernet 1.0. Rules and constants follow public descriptions
//! and htsim, as the specification was not available.
//!
//! Every acknowledgement reports whether its packet was marked, and its round trip gives the queueing delay. Both are
//! combined:
//!
//! | | short queue | long queue |
//! |---|---|---|
//! | not marked | grows with the distance to the target; fast if the queue is empty | grows slowly: other paths are congested |
//! | marked | unchanged: the queue is shrinking | shrinks with the excess of the average over the target |
//!
//! If far fewer bytes arrive in a round trip than the window allows, it shrinks to them (quick adapt).
//!
//! [`Flight`] has departure and arrival of each packet in flight.
//!
//! Pure: times are arguments. Windows are real numbers, because steps are fractions of a packet; sums and products are
//! the same on every machine.

use std::collections::VecDeque;
use std::ops::Range;

use crate::network::packet::Packet;
use crate::network::scenario::{Nscc, Transport};

/// The network for which the constants are defined: 100 Gbit/s and 12 us.
const REFERENCE_BITS: f64 = 100e9 * 12e-6;
const REFERENCE_RTT_NS: f64 = 12_000.0;
/// Queueing delay below which a queue counts as empty.
const EMPTY_NS: u64 = 1_000;
/// Increases are accumulated over this many packets, or a round trip.
const ADJUST_PACKETS: f64 = 8.0;
/// Weight of a sample in the average delay: 1/80.
const AVERAGE_WEIGHT: f64 = 0.0125;
const SMALLEST_DECREASE_FACTOR: f64 = 0.5;
/// Decrease as a share of the excess over the target.
const DECREASE_GAIN: f64 = 0.8;
/// Quick adapt: arrivals below this share of the largest window.
const QUICK_SHARE: f64 = 1.0 / 8.0;
/// Quick adapt: a queue of this multiple of the target counts as a loss.
const QUICK_TARGETS: u64 = 4;

/// The parameters and derived values for one link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Law {
    nscc: Nscc,
    bytes_per_ns: f64,
    frame_bytes: f64,
    /// Growth of a window per round trip: with congestion elsewhere, without any queue, and unconditional.
    fair_bytes: f64,
    proportional_bytes: f64,
    unconditional_bytes: f64,
    /// Growth of a window per byte that arrives through an empty network.
    fast_share: f64,
}

impl Law {
    pub(crate) fn new(nscc: Nscc, rate_bps: u64, transport: &Transport) -> Self {
        let payload_bytes = f64::from(transport.payload_bytes);
        let scale = rate_bps as f64 * nscc.base_rtt_ns as f64 / 1e9 / REFERENCE_BITS;
        let target_scale = nscc.target_delay_ns as f64 / REFERENCE_RTT_NS;
        Self {
            nscc,
            bytes_per_ns: rate_bps as f64 / 8e9,
            frame_bytes: transport.frame_bytes().into(),
            fair_bytes: 5.0 * payload_bytes * scale,
            proportional_bytes: 4.0 * payload_bytes * scale * target_scale,
            unconditional_bytes: 0.15 * payload_bytes * scale,
            fast_share: 0.25 * scale,
        }
    }
}

/// Content of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Feedback {
    new_bytes: u64,
    /// Round trip of its packet; `None`: ambiguous after a retransmission.
    rtt_ns: Option<u64>,
    marked: bool,
    in_flight_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Window {
    bytes: f64,
    /// The shortest round trip seen, at most the base round trip.
    base_rtt_ns: u64,
    average_delay_ns: f64,
    /// Accumulated increases: bytes times bytes, to be divided by the window.
    pending_growth: f64,
    /// Bytes that have arrived since they were applied.
    bytes_since_growth: u64,
    /// When the window last grew unconditionally, and last shrank.
    grew_ns: u64,
    shrank_ns: u64,
    /// Consecutive bytes that arrived through an empty network.
    empty_bytes: u64,
    is_fast: bool,
    /// End of the current round trip of quick adapt; 0: none yet.
    round_ends_ns: u64,
    round_bytes: u64,
    /// Bytes whose marks precede the last quick adapt.
    stale_bytes: u64,
    has_lost: bool,
}

impl Window {
    fn new(law: &Law) -> Self {
        let mut window = Self { base_rtt_ns: law.nscc.base_rtt_ns, ..Self::default() };
        window.bytes = window.largest_bytes(law);
        window
    }

    /// Whether `frame_bytes` more may be sent. With nothing in flight a packet always may.
    #[inline]
    fn has_room(&self, in_flight_bytes: u64, frame_bytes: u64) -> bool {
        in_flight_bytes == 0 || self.bytes >= (in_flight_bytes + frame_bytes) as f64
    }

    /// One and a half times the bytes in flight when the link is just full.
    fn largest_bytes(&self, law: &Law) -> f64 {
        (1.5 * self.base_rtt_ns as f64 * law.bytes_per_ns).max(law.frame_bytes)
    }

    fn clamp_window(&mut self, law: &Law) {
        self.bytes = self.bytes.clamp(law.frame_bytes, self.largest_bytes(law));
    }

    /// An acknowledgement arrives.
    fn on_ack(&mut self, law: &Law, now_ns: u64, feedback: &Feedback) {
        let Feedback { new_bytes, rtt_ns, marked, in_flight_bytes } = *feedback;
        self.round_bytes += new_bytes;
        self.bytes_since_growth += new_bytes;
        self.stale_bytes = self.stale_bytes.saturating_sub(new_bytes);
        let delay_ns = match rtt_ns {
            Some(rtt_ns) => self.measure(law, rtt_ns, marked),
            None => self.average_delay_ns as u64,
        };
        let is_congested = delay_ns > QUICK_TARGETS * law.nscc.target_delay_ns;
        if self.quick_adapt(law, now_ns, marked, is_congested, in_flight_bytes) {
            return;
        }
        let is_long = delay_ns >= law.nscc.target_delay_ns;
        match (marked, is_long) {
            (false, true) => self.pending_growth += law.fair_bytes * new_bytes as f64,
            (false, false) => self.grow(law, new_bytes, delay_ns),
            (true, true) => self.shrink(law, now_ns),
            (true, false) => {}
        }
        self.clamp_window(law);
        self.apply_growth(law, now_ns);
        self.clamp_window(law);
    }

    /// A switch trimmed a packet of `bytes`: the rest of it had the round trip `rtt_ns`.
    fn on_trimmed(&mut self, law: &Law, now_ns: u64, rtt_ns: Option<u64>, bytes: u64, in_flight_bytes: u64) {
        self.base_rtt_ns = self.base_rtt_ns.min(rtt_ns.unwrap_or(u64::MAX));
        self.stale_bytes = self.stale_bytes.saturating_sub(bytes);
        // Its queue was full, but its delay is unknown: assume a round trip.
        self.average(law.nscc.base_rtt_ns as f64);
        self.has_lost = true;
        if !self.quick_adapt(law, now_ns, true, true, in_flight_bytes) {
            self.bytes -= bytes as f64;
            self.clamp_window(law);
        }
    }

    /// Packets of `bytes` in total were not acknowledged in time.
    fn on_timeout(&mut self, law: &Law, bytes: u64) {
        self.bytes -= bytes as f64;
        self.clamp_window(law);
    }

    /// The queueing delay in a round trip.
    fn measure(&mut self, law: &Law, rtt_ns: u64, marked: bool) -> u64 {
        self.base_rtt_ns = self.base_rtt_ns.min(rtt_ns);
        let delay_ns = rtt_ns - self.base_rtt_ns;
        // A long queue without marks is on one path and shrinking: let the average fall.
        let is_draining = !marked && delay_ns > law.nscc.target_delay_ns;
        self.average(if is_draining { self.base_rtt_ns as f64 / 4.0 } else { delay_ns as f64 });
        delay_ns
    }

    fn average(&mut self, delay_ns: f64) {
        self.average_delay_ns += AVERAGE_WEIGHT * (delay_ns - self.average_delay_ns);
    }

    /// At the end of a round trip with losses or long delays, sets the window to the bytes that arrived, if
    /// they are few.
    ///
    /// Returns whether this acknowledgement has no further effect, also for marks of packets sent before.
    fn quick_adapt(
        &mut self,
        law: &Law,
        now_ns: u64,
        marked: bool,
        is_congested: bool,
        in_flight_bytes: u64,
    ) -> bool {
        let mut is_stale = self.stale_bytes != 0 && marked;
        if !is_stale && now_ns > self.round_ends_ns {
            let is_complete = self.round_ends_ns != 0;
            let arrived = self.round_bytes as f64;
            if is_complete
                && (is_congested || self.has_lost)
                && arrived < self.largest_bytes(law) * QUICK_SHARE
            {
                self.bytes = arrived.max(law.frame_bytes);
                self.stale_bytes = in_flight_bytes;
                self.has_lost = false;
                is_stale = true;
            }
            self.round_bytes = 0;
            self.round_ends_ns = now_ns + self.base_rtt_ns + law.nscc.target_delay_ns;
        }
        if is_stale {
            self.pending_growth = 0.0;
            self.bytes_since_growth = 0;
        }
        is_stale
    }

    /// No mark and a short queue.
    fn grow(&mut self, law: &Law, new_bytes: u64, delay_ns: u64) {
        if delay_ns < EMPTY_NS {
            self.empty_bytes += new_bytes;
            if self.is_fast || self.empty_bytes as f64 > self.bytes {
                // A whole window has found the network empty.
                self.is_fast = true;
                self.bytes += new_bytes as f64 * law.fast_share;
                return;
            }
        } else {
            self.empty_bytes = 0;
        }
        self.is_fast = false;
        let target_ns = law.nscc.target_delay_ns;
        let left = (target_ns - delay_ns) as f64 / target_ns as f64;
        self.pending_growth += law.proportional_bytes * left * new_bytes as f64;
    }

    /// A mark and a long queue: once per round trip, by the average.
    fn shrink(&mut self, law: &Law, now_ns: u64) {
        self.is_fast = false;
        self.empty_bytes = 0;
        let excess_ns = self.average_delay_ns - law.nscc.target_delay_ns as f64;
        if excess_ns > 0.0 && now_ns - self.shrank_ns > self.base_rtt_ns {
            let factor = 1.0 - DECREASE_GAIN * excess_ns / self.average_delay_ns;
            self.bytes *= factor.max(SMALLEST_DECREASE_FACTOR);
            self.shrank_ns = now_ns;
        }
    }

    /// Applies accumulated increases, after some packets or a round trip.
    fn apply_growth(&mut self, law: &Law, now_ns: u64) {
        let since_ns = now_ns - self.grew_ns;
        let is_due = self.bytes_since_growth as f64 > ADJUST_PACKETS * law.frame_bytes;
        if !is_due && since_ns <= law.nscc.base_rtt_ns {
            return;
        }
        self.bytes += self.pending_growth / self.bytes;
        if since_ns >= law.nscc.base_rtt_ns {
            self.bytes += law.unconditional_bytes;
            self.grew_ns = now_ns;
        }
        self.pending_growth = 0.0;
        self.bytes_since_growth = 0;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentState {
    InFlight,
    /// Trimmed by a switch: it does not arrive intact.
    Trimmed,
    /// Not acknowledged in time, but may still arrive.
    Late,
    Arrived,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Departure time; `None`: ambiguous after a retransmission.
    at_ns: Option<u64>,
    bytes: u32,
    state: SentState,
}

#[derive(Debug)]
pub(crate) struct Flight {
    window: Window,
    /// From the first unacknowledged packet on.
    sent: VecDeque<Sent>,
    in_flight_bytes: u64,
}

impl Flight {
    pub(crate) fn new(law: &Law) -> Box<Self> {
        Box::new(Self { window: Window::new(law), sent: VecDeque::new(), in_flight_bytes: 0 })
    }

    /// Whether the packet at `index` may be sent or retransmitted. One already counted as in flight needs no more room.
    pub(crate) fn has_room(&self, index: usize, frame_bytes: u64) -> bool {
        let is_counted = self.sent.get(index).is_some_and(|sent| sent.state == SentState::InFlight);
        is_counted || self.window.has_room(self.in_flight_bytes, frame_bytes)
    }

    /// Whether another packet may not be sent, so that a probe is needed.
    pub(crate) fn is_full(&self, frame_bytes: u64) -> bool {
        !self.window.has_room(self.in_flight_bytes, frame_bytes)
    }

    pub(crate) fn on_send(&mut self, now_ns: u64, index: usize, bytes: u32) {
        match self.sent.get_mut(index) {
            Some(sent) => {
                sent.at_ns = (sent.state == SentState::Trimmed).then_some(now_ns);
                if sent.state != SentState::InFlight {
                    sent.state = SentState::InFlight;
                    self.in_flight_bytes += u64::from(bytes);
                }
            }
            None => {
                self.sent.push_back(Sent { at_ns: Some(now_ns), bytes, state: SentState::InFlight });
                self.in_flight_bytes += u64::from(bytes);
            }
        }
    }

    /// An acknowledgement arrives; `psns` are the sent and unacknowledged packets.
    pub(crate) fn on_ack(&mut self, law: &Law, now_ns: u64, packet: &Packet, psns: Range<u32>) {
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
                self.window.on_trimmed(law, now_ns, rtt_ns, lost_bytes, self.in_flight_bytes);
            }
            if new_bytes == 0 {
                return;
            }
        }
        let rtt_ns = named.filter(|_| !is_trimmed).and_then(|sent| sent.at_ns).map(|at_ns| now_ns - at_ns);
        let marked = packet.is(Packet::ECHO);
        let in_flight_bytes = self.in_flight_bytes;
        self.window.on_ack(law, now_ns, &Feedback { new_bytes, rtt_ns, marked, in_flight_bytes });
    }

    /// Time-out: packets in flight count as lost.
    pub(crate) fn on_timeout(&mut self, law: &Law) {
        let bytes = (0..self.sent.len()).map(|index| self.lose(index, SentState::Late)).sum();
        self.window.on_timeout(law, bytes);
    }

    /// A packet has arrived: returns its bytes, unless known.
    fn arrive(&mut self, index: usize) -> u64 {
        let Some(sent) = self.sent.get_mut(index).filter(|sent| sent.state != SentState::Arrived) else {
            return 0;
        };
        if sent.state == SentState::InFlight {
            self.in_flight_bytes -= u64::from(sent.bytes);
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
        self.in_flight_bytes -= u64::from(sent.bytes);
        sent.bytes.into()
    }
}

#[cfg(test)]
mod tests;
