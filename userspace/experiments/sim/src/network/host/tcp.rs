//! TCP-like background flows: the window laws of CUBIC (RFC 9438) and DCTCP (RFC 8257) over a simple sender.
//!
//! Every segment is acknowledged individually and immediately, with its mark. The path keeps packets in order, so a
//! transmission is lost when three later ones have arrived (the threshold of RFC 5681 and RFC 6675); it is then
//! retransmitted and no longer counted as in flight. Slow start without HyStart++, initial window of 10 segments (RFC
//! 6928), no pacing, timeouts of RFC 6298 with the scenario's minimum.

use std::collections::VecDeque;

use super::FlowCounters;
use crate::network::packet::{Address, Packet};
use crate::network::scenario::{TcpLaw, Transport};

/// CUBIC: C, in segments per s³.
const CUBIC_C: f64 = 0.4;
const CUBIC_BETA: f64 = 0.7;
const DCTCP_GAIN: f64 = 1.0 / 16.0;
/// Later arrivals after which a transmission counts as lost.
const REORDERING: u64 = 3;
/// The receiver's window.
const MAX_WINDOW_BYTES: u32 = 6_000_000;
const MIN_WINDOW: f64 = 2.0;
/// Largest backoff of the timeout: 2^6.
const MAX_BACKOFF: u32 = 6;

#[derive(Debug, Default)]
pub(super) struct Tcp {
    law: TcpLaw,
    active: bool,
    timer_is_set: bool,
    payload_bytes: u16,
    frame_bytes: u16,

    /// Window, in segments.
    window: f64,
    slow_start_threshold: f64,
    max_window: f64,
    /// Number of the oldest transmission in `in_flight`.
    first: u64,
    /// Departure time of each transmission; `None`: it has arrived.
    in_flight: VecDeque<Option<u64>>,
    unacknowledged: u64,
    to_retransmit: u64,
    /// Whether the window limited the last transmission; it grows only then.
    full_until: u64,
    /// No second reduction before a transmission from this number on has arrived.
    reduced_until: u64,

    cubic: Cubic,
    dctcp: Dctcp,

    smoothed_rtt_ns: f64,
    rtt_variation_ns: f64,
    min_rto_ns: u64,
    backoff: u32,
    progress_ns: u64,

    pub(super) counters: FlowCounters,
}

/// Growth between two reductions of CUBIC.
#[derive(Clone, Copy, Debug, Default)]
struct Cubic {
    epoch_ns: Option<u64>,
    max_window: f64,
    prior_window: f64,
    k_s: f64,
    reno_window: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Dctcp {
    alpha: f64,
    acked: u64,
    marked: u64,
    window_end: u64,
}

impl Tcp {
    /// A flow that has not started.
    pub(super) fn new(law: TcpLaw, transport: &Transport) -> Self {
        Self {
            law,
            // Together a frame of at most 9216 bytes.
            payload_bytes: transport.payload_bytes as u16,
            frame_bytes: transport.frame_bytes() as u16,
            window: 10.0,
            max_window: f64::from((MAX_WINDOW_BYTES / transport.payload_bytes).max(1)),
            slow_start_threshold: f64::INFINITY,
            // Alpha starts at 1, as in Linux.
            dctcp: Dctcp { alpha: 1.0, ..Dctcp::default() },
            min_rto_ns: transport.timeout_ns,
            ..Self::default()
        }
    }

    /// Starts or stops sending new data.
    pub(super) const fn set_active(&mut self, active: bool) {
        self.active = active;
    }

    /// Whether the window allows a segment, and there is one.
    #[inline]
    pub(super) fn can_send(&self) -> bool {
        (self.active || self.to_retransmit != 0) && self.has_room()
    }

    #[inline]
    fn has_room(&self) -> bool {
        (self.unacknowledged as f64) < self.window.min(self.max_window).floor()
    }

    #[inline]
    pub(super) fn next_packet(&mut self, address: &Address, now_ns: u64) -> Option<Packet> {
        if !self.can_send() {
            return None;
        }
        if self.unacknowledged == 0 {
            self.progress_ns = now_ns;
        }
        let sequence = self.next_sequence();
        self.in_flight.push_back(Some(now_ns));
        self.unacknowledged += 1;
        if !self.has_room() {
            self.full_until = self.next_sequence();
        }
        self.counters.sent_packets += 1;
        if self.to_retransmit != 0 {
            self.to_retransmit -= 1;
            self.counters.retransmitted_packets += 1;
        }
        Some(Packet {
            dst: address.dst,
            qp: address.at_dst,
            psn: sequence as u32,
            entropy: address.entropy,
            frame_bytes: self.frame_bytes,
            class: address.class,
            flags: if self.law == TcpLaw::Dctcp { Packet::ECT } else { 0 },
            ..Packet::default()
        })
    }

    fn next_sequence(&self) -> u64 {
        self.first + self.in_flight.len() as u64
    }

    /// Transmission `sequence` has arrived, `marked` or not.
    #[inline]
    pub(super) fn on_ack(&mut self, now_ns: u64, sequence: u64, marked: bool) {
        let Some(index) = sequence.checked_sub(self.first) else {
            // Counted as lost by a timeout; its retransmission is used.
            return;
        };
        let Some(sent_ns) = self.in_flight.get_mut(index as usize).and_then(Option::take) else { return };
        self.unacknowledged -= 1;
        self.progress_ns = now_ns;
        self.backoff = 0;
        self.counters.bytes += u64::from(self.payload_bytes);
        self.measure((now_ns - sent_ns) as f64);

        let mut lost = 0;
        while let Some(&oldest) = self.in_flight.front() {
            if oldest.is_some() {
                if sequence < self.first + REORDERING {
                    break;
                }
                lost += 1;
            }
            self.in_flight.pop_front();
            self.first += 1;
        }
        self.unacknowledged -= lost;
        self.to_retransmit += lost;

        if self.law == TcpLaw::Dctcp {
            self.estimate(sequence, marked);
        }
        if (lost != 0 || marked) && sequence >= self.reduced_until {
            self.reduced_until = self.next_sequence();
            self.reduce(lost != 0);
        } else if !marked && sequence < self.full_until && sequence >= self.reduced_until {
            self.grow(now_ns);
        }
    }

    fn measure(&mut self, rtt_ns: f64) {
        if self.smoothed_rtt_ns == 0.0 {
            self.smoothed_rtt_ns = rtt_ns;
            self.rtt_variation_ns = rtt_ns / 2.0;
        } else {
            let error_ns = (self.smoothed_rtt_ns - rtt_ns).abs();
            self.rtt_variation_ns += (error_ns - self.rtt_variation_ns) / 4.0;
            self.smoothed_rtt_ns += (rtt_ns - self.smoothed_rtt_ns) / 8.0;
        }
    }

    /// DCTCP, RFC 8257 §3.3: once per window, alpha moves towards the fraction of marked segments.
    fn estimate(&mut self, sequence: u64, marked: bool) {
        let next = self.next_sequence();
        let dctcp = &mut self.dctcp;
        dctcp.acked += 1;
        dctcp.marked += u64::from(marked);
        if sequence >= dctcp.window_end {
            let share = dctcp.marked as f64 / dctcp.acked as f64;
            dctcp.alpha += DCTCP_GAIN * (share - dctcp.alpha);
            *dctcp = Dctcp { alpha: dctcp.alpha, acked: 0, marked: 0, window_end: next };
        }
    }

    fn reduce(&mut self, by_loss: bool) {
        let window = self.window;
        let factor = match self.law {
            TcpLaw::Cubic => CUBIC_BETA,
            TcpLaw::Dctcp if by_loss => 0.5,
            TcpLaw::Dctcp => 1.0 - self.dctcp.alpha / 2.0,
        };
        self.window = (window * factor).max(MIN_WINDOW);
        self.slow_start_threshold = self.window;
        self.cubic.lose(window);
    }

    fn grow(&mut self, now_ns: u64) {
        if self.window < self.slow_start_threshold {
            self.window += 1.0;
        } else {
            self.window = match self.law {
                TcpLaw::Cubic => self.cubic.grow(now_ns, self.window, self.smoothed_rtt_ns),
                TcpLaw::Dctcp => self.window + 1.0 / self.window,
            };
        }
        self.window = self.window.min(self.max_window);
    }

    fn timeout_ns(&self) -> u64 {
        let rto_ns = (self.smoothed_rtt_ns + 4.0 * self.rtt_variation_ns) as u64;
        rto_ns.max(self.min_rto_ns) << self.backoff
    }

    /// When to check the retransmission timer, unless scheduled; a segment has just been sent.
    #[inline]
    pub(super) fn set_timer(&mut self, now_ns: u64) -> Option<u64> {
        if self.timer_is_set {
            return None;
        }
        self.timer_is_set = true;
        Some(now_ns + self.timeout_ns())
    }

    /// The timer's event; returns when to check again, if at all.
    pub(super) fn on_timer(&mut self, now_ns: u64) -> Option<u64> {
        self.timer_is_set = false;
        if self.unacknowledged == 0 {
            return None;
        }
        if now_ns >= self.progress_ns + self.timeout_ns() {
            self.counters.timeouts += 1;
            self.first = self.next_sequence();
            self.in_flight.clear();
            self.to_retransmit += self.unacknowledged;
            self.unacknowledged = 0;
            self.reduced_until = self.first;
            self.reduce(true);
            self.window = 1.0;
            self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
            return None;
        }
        self.timer_is_set = true;
        Some(self.progress_ns + self.timeout_ns())
    }

    /// Window over smoothed round-trip time; 0 before the first acknowledgement.
    pub(super) fn rate_bps(&self) -> u64 {
        if self.smoothed_rtt_ns == 0.0 {
            return 0;
        }
        let window = self.window.min(self.max_window).floor();
        (window * f64::from(self.frame_bytes) * 8e9 / self.smoothed_rtt_ns) as u64
    }
}

impl Cubic {
    /// RFC 9438 §4.6 and §4.7: a reduction from `window`, with fast convergence.
    fn lose(&mut self, window: f64) {
        self.max_window = if window < self.max_window { window * (1.0 + CUBIC_BETA) / 2.0 } else { window };
        self.prior_window = window;
        self.epoch_ns = None;
    }

    /// RFC 9438 §4.2 to §4.5: the window after one more acknowledged segment in congestion avoidance.
    fn grow(&mut self, now_ns: u64, window: f64, rtt_ns: f64) -> f64 {
        let epoch_ns = match self.epoch_ns {
            Some(epoch_ns) => epoch_ns,
            None => {
                self.epoch_ns = Some(now_ns);
                self.max_window = self.max_window.max(window);
                self.k_s = ((self.max_window - window) / CUBIC_C).cbrt();
                self.reno_window = window;
                now_ns
            }
        };
        let elapsed_s = (now_ns - epoch_ns) as f64 / 1e9;
        let curve = |t_s: f64| CUBIC_C * (t_s - self.k_s).powi(3) + self.max_window;
        // α_cubic, which makes the Reno-friendly window as aggressive as Reno's until it has recovered the loss.
        let alpha = if self.reno_window < self.prior_window {
            3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA)
        } else {
            1.0
        };
        let reno_window = self.reno_window + alpha / window;
        let target = curve(elapsed_s + rtt_ns / 1e9).clamp(window, 1.5 * window);
        let next = if curve(elapsed_s) < reno_window {
            reno_window.max(window)
        } else {
            window + (target - window) / window
        };
        self.reno_window = reno_window;
        next
    }
}

#[cfg(test)]
mod tests;
