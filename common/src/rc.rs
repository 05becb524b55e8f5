//! Go-back-N of a reliable connection: sequence numbers, the requester's window, the responder's verdict.
//!
//! IBTA vol. 1, 9.7. Packets are counted from 0 in 64 bits, which do not wrap; [`Psn`] is their 24-bit form
//! on the wire. The test transport and the simulator share this module; the eBPF programs use [`Psn`] only.

use core::fmt;

/// Number of distinct PSNs: the BTH field has 24 bits (IBTA vol. 1, 9.2.8).
const MODULUS: u32 = 1 << 24;

/// A 24-bit packet sequence number with the wrap-around arithmetic of the IBTA specification (vol. 1, 9.2.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `value`.
    #[inline(always)]
    pub const fn new(value: u32) -> Self {
        Self(value & (MODULUS - 1))
    }

    /// The number, `0..2^24`.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `packets` after this one.
    #[inline(always)]
    pub const fn plus(self, packets: u64) -> Self {
        // Only the low 24 bits of the count matter, and they survive the cut to 32 bits.
        Self::new(self.0.wrapping_add(packets as u32))
    }

    pub const fn previous(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// The packet that this PSN denotes, counted from the packet with PSN `first`: of all candidates the
    /// nearest to packet `near`.
    ///
    /// `None` for one before the first packet.
    pub const fn packet_near(self, first: Self, near: u64) -> Option<u64> {
        near.checked_add_signed(self.distance_from(first.plus(near)) as i64)
    }

    /// Signed distance in packets from `other` to this one, the shorter way round: `-2^23..2^23`.
    #[inline(always)]
    pub const fn distance_from(self, other: Self) -> i32 {
        // The 24 bits in the upper part of a word: its sign is that of the distance.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The requester's window: which packets are acknowledged, which were sent, which is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendWindow {
    acknowledged: u64,
    next: u64,
    sent_end: u64,
}

impl SendWindow {
    #[inline]
    pub const fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The next packet to send; one that was sent before after going back.
    #[inline]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// One past the last packet ever sent.
    #[inline]
    pub const fn sent_end(&self) -> u64 {
        self.sent_end
    }

    /// Packets from the first unacknowledged one to the next.
    #[inline]
    pub const fn in_flight(&self) -> u64 {
        self.next - self.acknowledged
    }

    #[inline]
    pub const fn is_idle(&self) -> bool {
        self.sent_end == self.acknowledged
    }

    /// The next packet was sent. Returns whether it was a retransmission.
    #[inline]
    pub const fn on_sent(&mut self) -> bool {
        let again = self.next < self.sent_end;
        self.next += 1;
        if !again {
            self.sent_end = self.next;
        }
        again
    }

    /// All packets before `end` have arrived; packets never sent are ignored. Returns how many are newly acknowledged.
    #[inline]
    pub fn on_ack(&mut self, end: u64) -> u64 {
        let newly = end.min(self.sent_end).saturating_sub(self.acknowledged);
        self.acknowledged += newly;
        self.next = self.next.max(self.acknowledged);
        newly
    }

    /// The responder expects `missing`: go back to it. Returns `false`, having changed nothing, for a packet that is
    /// acknowledged or not yet sent.
    #[inline]
    pub const fn on_nak(&mut self, missing: u64) -> bool {
        let goes_back = missing >= self.acknowledged && missing < self.next;
        if goes_back {
            self.next = missing;
        }
        goes_back
    }

    /// The retransmission timer expired: go back to the first unacknowledged packet.
    #[inline]
    pub const fn on_timeout(&mut self) {
        self.next = self.acknowledged;
    }
}

/// Classification of a packet by the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    InOrder,
    /// A packet that has arrived before.
    Duplicate,
    /// A packet ahead of the expected one, to be dropped.
    Gap {
        /// A packet after a new gap: send a NAK. One per gap, as a second would make the requester send the window
        /// twice (9.7.5.1.1).
        nak: bool,
    },
}

/// The responder's window: the expected packet, and whether its loss was reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveWindow {
    expected: u64,
    nak_sent: bool,
}

impl ReceiveWindow {
    /// The packet expected next; all before it have arrived.
    #[inline]
    pub const fn expected(&self) -> u64 {
        self.expected
    }

    #[inline]
    pub const fn nak_sent(&self) -> bool {
        self.nak_sent
    }

    /// Classifies a packet. One in order must be confirmed by [`accept`](Self::accept).
    #[inline]
    pub const fn on_packet(&mut self, packet: u64) -> Arrival {
        if packet < self.expected {
            Arrival::Duplicate
        } else if packet > self.expected {
            Arrival::Gap { nak: self.on_missing() }
        } else {
            Arrival::InOrder
        }
    }

    /// The expected packet is missing. Returns whether to send a NAK.
    #[inline]
    pub const fn on_missing(&mut self) -> bool {
        !core::mem::replace(&mut self.nak_sent, true)
    }

    #[inline]
    pub const fn accept(&mut self) {
        self.expected += 1;
        self.nak_sent = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn psn_wraps_at_24_bits() {
        assert_eq!(Psn::new(0x00ff_ffff).plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), Psn::new(0x00ff_ffff));
        assert_eq!(Psn::new(0).distance_from(Psn::new(0x00ff_ffff)), 1);
        assert_eq!(Psn::new(0x00ff_ffff).distance_from(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -0x80_0000);
    }

    #[test]
    fn psn_before_first_packet_is_none() {
        let first = Psn::new(0x00ff_fffe);
        assert_eq!(Psn::new(1).packet_near(first, 0), Some(3));
        assert_eq!(Psn::new(0x00ff_fffd).packet_near(first, 0), None);
        assert_eq!(Psn::new(0x00ff_fffd).packet_near(first, 1 << 24), Some((1 << 24) - 1));
    }

    proptest! {
        #[test]
        fn packet_near_inverts_plus(first in any::<u32>(), near in 0x80_0000u64..1 << 40, ahead in -0x80_0000i64..0x80_0000) {
            let (first, packet) = (Psn::new(first), near.checked_add_signed(ahead).unwrap());
            prop_assert_eq!(first.plus(packet).packet_near(first, near), Some(packet));
        }

        /// Both windows over a link with losses in both directions, some packets long.
        #[test]
        fn every_packet_arrives_under_loss(
            packets in 1u64..200, lost in proptest::collection::vec(any::<bool>(), 0..300), length in 1usize..12,
        ) {
            let (mut send, mut receive) = (SendWindow::default(), ReceiveWindow::default());
            let mut lost = lost.into_iter();
            let (mut link, mut sent, mut again) = (VecDeque::new(), 0, 0);
            for _ in 0..100_000 {
                if send.next() < packets {
                    let packet = send.next();
                    sent += 1;
                    again += u64::from(send.on_sent());
                    let arrives = !lost.next().unwrap_or(false);
                    let arrival = arrives.then(|| receive.on_packet(packet));
                    if arrival == Some(Arrival::InOrder) {
                        receive.accept();
                    }
                    let answers = !lost.next().unwrap_or(false);
                    link.push_back(arrival.filter(|_| answers).map(|arrival| (arrival, receive.expected())));
                }
                if link.len() > length || send.next() == packets {
                    match link.pop_front() {
                        Some(Some((Arrival::Gap { nak: true }, expected))) => {
                            send.on_ack(expected);
                            send.on_nak(expected);
                        }
                        Some(Some((Arrival::Gap { nak: false }, _)) | None) => {}
                        Some(Some((_, expected))) => {
                            send.on_ack(expected);
                        }
                        None if send.is_idle() => break,
                        None => send.on_timeout(),
                    }
                }
                prop_assert!(send.acknowledged() <= receive.expected() && receive.expected() <= send.sent_end());
            }
            prop_assert_eq!((send.acknowledged(), receive.expected(), send.in_flight()), (packets, packets, 0));
            prop_assert_eq!(sent, packets + again);
        }
    }
}
