//! The receiving end of a QP.

use std::collections::VecDeque;

use dcqcn_common::flow::{FlowId, NpFlow};
use dcqcn_common::rc::ReceiveWindow;

use crate::network::packet::{Address, Kind, Packet};
use crate::network::scenario::Recovery;

/// [`ReceiveQp::later`]: this packet has not arrived.
const MISSING: u64 = u64::MAX;
/// [`ReceiveQp::later`]: it has arrived, and ends no flow.
const ARRIVED: u64 = u64::MAX - 1;

/// Reply of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    /// The packet expected next.
    pub(crate) psn: u32,
    /// The packet that arrived.
    pub(crate) named_psn: u32,
    /// [`Packet::TRIMMED`] and [`Packet::ECHO`].
    pub(crate) flags: u8,
}

impl Answer {
    /// Everything before `psn` has arrived, and so has `packet`.
    pub(crate) const fn ack(psn: u32, packet: &Packet) -> Self {
        Self { kind: Kind::Ack, psn, named_psn: packet.psn, flags: packet.echo() }
    }

    /// A CNP, or an admission message with its range.
    pub(crate) const fn of(kind: Kind, psn: u32, named_psn: u32) -> Self {
        Self { kind, psn, named_psn, flags: 0 }
    }
}

/// The receiving end of a QP.
#[derive(Debug)]
pub(crate) struct ReceiveQp {
    /// The sender, as the destination of replies.
    pub(crate) sender: Address,
    window: ReceiveWindow,
    /// The sender's requested and granted limit.
    pub(super) requested_psn: u32,
    pub(super) granted_psn: u32,
    /// Go-back-N: the sender has restarted after the NAK, as this trimmed packet was sent after it.
    restarted: bool,
    /// Go-back-N: the first trimmed packet that arrived ahead of previous ones.
    trimmed_psn: Option<u32>,
    /// Go-back-N: the last packet that was trimmed, or arrived after a gap.
    last_psn: u32,
    /// Selective repeat: arrivals after a gap, from the expected packet on; a flow's number where it ends one.
    later: VecDeque<u64>,
    /// Notification point, if CNPs are limited per QP.
    pub(crate) np: NpFlow,
    /// Payload delivered in order (go-back-N).
    pub(crate) bytes: u64,
    /// Packets that arrived with a mark.
    pub(crate) marked: u64,
}

impl ReceiveQp {
    pub(crate) fn new(sender: Address, id: FlowId) -> Self {
        Self {
            sender,
            window: ReceiveWindow::default(),
            requested_psn: 0,
            granted_psn: 0,
            restarted: false,
            trimmed_psn: None,
            last_psn: 0,
            later: VecDeque::new(),
            np: NpFlow::new(id),
            bytes: 0,
            marked: 0,
        }
    }

    /// Packets that have arrived without a gap.
    #[inline]
    pub(crate) const fn expected_psn(&self) -> u32 {
        self.window.expected() as u32
    }

    /// A packet arrives; adds the flows that this completes to `delivered`.
    #[inline]
    pub(crate) fn on_data(
        &mut self,
        packet: &Packet,
        recovery: Recovery,
        delivered: &mut Vec<u32>,
    ) -> Option<Answer> {
        let expected = self.expected_psn();
        if packet.is(Packet::TRIMMED) {
            return match recovery {
                _ if packet.psn < expected => self.acknowledge(packet),
                Recovery::GoBackN | Recovery::Probe => self.on_trimmed(packet),
                Recovery::Selective => Some(self.nak(packet)),
            };
        }
        if packet.psn > expected {
            return self.on_gap(packet, recovery);
        }
        if packet.psn < expected {
            // A duplicate.
            return if packet.is(Packet::ACK_REQUEST) { self.acknowledge(packet) } else { None };
        }
        self.window.accept();
        self.restarted = false;
        if packet.is(Packet::LAST) {
            delivered.push(packet.extra);
        }
        if self.trimmed_psn == Some(self.expected_psn()) {
            self.on_nak_sent();
            let psn = self.expected_psn();
            return Some(Answer { flags: Packet::TRIMMED, ..Answer::of(Kind::Nak, psn, psn) });
        }
        let fills_gap = !self.later.is_empty();
        if fills_gap {
            self.later.pop_front();
            while let Some(&next) = self.later.front().filter(|next| **next != MISSING) {
                self.later.pop_front();
                self.window.accept();
                if next != ARRIVED {
                    delivered.push(next as u32);
                }
            }
        }
        if packet.is(Packet::ACK_REQUEST) || fills_gap { self.acknowledge(packet) } else { None }
    }

    /// Go-back-N: a trimmed packet.
    ///
    /// A trimmed packet overtakes untrimmed packets sent before it. An immediate NAK for the expected packet would restart the sender
    /// at packets that are in flight: they arrive twice, fill the queue, and cause more trimming. So the NAK is sent
    /// when all previous packets have arrived.
    fn on_trimmed(&mut self, packet: &Packet) -> Option<Answer> {
        let goes_back = packet.psn <= self.last_psn;
        self.last_psn = packet.psn;
        if packet.psn == self.expected_psn() {
            self.on_nak_sent();
            return Some(self.nak(packet));
        }
        self.restarted |= goes_back && self.window.nak_sent();
        if self.restarted || !self.window.nak_sent() {
            self.trimmed_psn = Some(self.trimmed_psn.map_or(packet.psn, |psn| psn.min(packet.psn)));
        }
        None
    }

    /// A NAK is sent; the sender restarts at the expected packet, so later trimmed packets do not matter.
    const fn on_nak_sent(&mut self) {
        self.window.on_missing();
        self.restarted = false;
        self.trimmed_psn = None;
    }

    fn on_gap(&mut self, packet: &Packet, recovery: Recovery) -> Option<Answer> {
        let nak = self.nak(packet);
        match recovery {
            // One NAK per gap, and none until it is filled.
            Recovery::GoBackN | Recovery::Probe if self.window.on_missing() => {
                self.on_nak_sent();
                Some(nak)
            }
            Recovery::GoBackN | Recovery::Probe => {
                self.last_psn = self.last_psn.max(packet.psn);
                None
            }
            Recovery::Selective => {
                let index = (packet.psn - self.expected_psn()) as usize;
                if self.later.len() <= index {
                    self.later.resize(index + 1, MISSING);
                }
                self.later[index] = if packet.is(Packet::LAST) { packet.extra.into() } else { ARRIVED };
                Some(nak)
            }
        }
    }

    const fn nak(&self, packet: &Packet) -> Answer {
        let flags = packet.flags & Packet::TRIMMED | packet.echo();
        Answer { flags, ..Answer::of(Kind::Nak, self.expected_psn(), packet.psn) }
    }

    /// Everything before the expected packet has arrived, and so has `packet`.
    pub(super) const fn acknowledge(&self, packet: &Packet) -> Option<Answer> {
        Some(Answer::ack(self.expected_psn(), packet))
    }
}
