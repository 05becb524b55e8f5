//! The receiving end of a queue pair.

use std::collections::VecDeque;

use dcqcn_common::flow::{FlowId, NpFlow};
use dcqcn_common::rc::ReceiveWindow;

use crate::network::packet::{Kind, Packet};
use crate::network::scenario::Recovery;

/// [`ReceiveQp::later`]: this packet has not arrived.
const MISSING: u64 = u64::MAX;
/// [`ReceiveQp::later`]: it has, and ends no flow.
const ARRIVED: u64 = u64::MAX - 1;

/// What the receiver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    /// The packet expected next.
    pub(crate) psn: u32,
    /// The packet that came.
    pub(crate) named_psn: u32,
    /// Without its payload.
    pub(crate) trimmed: bool,
    /// With a mark.
    pub(crate) marked: bool,
}

impl Answer {
    /// Everything before `psn` is here, and `packet` has come.
    pub(crate) const fn ack(psn: u32, packet: &Packet) -> Self {
        let marked = packet.is(Packet::CE);
        Self { kind: Kind::Ack, psn, named_psn: packet.psn, trimmed: false, marked }
    }

    /// What is no acknowledgement, and says up to where, and where from.
    pub(crate) const fn of(kind: Kind, psn: u32, named_psn: u32) -> Self {
        Self { kind, psn, named_psn, trimmed: false, marked: false }
    }
}

/// The receiving end of a QP.
#[derive(Debug)]
pub(crate) struct ReceiveQp {
    /// The sender, and the QP's number there.
    pub(crate) src: u32,
    pub(crate) at_src: u32,
    pub(crate) class: u8,
    pub(crate) entropy: u32,
    window: ReceiveWindow,
    /// The sender asked to send up to the first, and may up to the second.
    pub(super) requested_psn: u32,
    pub(super) granted_psn: u32,
    /// Go-back-N: after the NAK the sender has begun again. Trimmed packets do not overtake each other, and one went back.
    heard: bool,
    /// Go-back-N: the first packet that came without its payload, ahead of those before it.
    trimmed_psn: Option<u32>,
    /// Go-back-N: the last packet that was trimmed, or came after a gap.
    last_psn: u32,
    /// Selective repeat: what came after a gap, from the packet expected on; a flow's number where it ends one.
    later: VecDeque<u64>,
    /// Notification point, if CNPs are limited per QP.
    pub(crate) np: NpFlow,
}

impl ReceiveQp {
    pub(crate) fn new(src: u32, at_src: u32, class: u8, entropy: u32, id: FlowId) -> Self {
        Self {
            src,
            at_src,
            class,
            entropy,
            window: ReceiveWindow::default(),
            requested_psn: 0,
            granted_psn: 0,
            heard: false,
            trimmed_psn: None,
            last_psn: 0,
            later: VecDeque::new(),
            np: NpFlow::new(id),
        }
    }

    /// Packets that have arrived, with none missing before them.
    #[inline]
    pub(crate) const fn expected_psn(&self) -> u32 {
        self.window.expected() as u32
    }

    /// A packet arrives; `delivered` is told of every flow that is complete with it.
    #[inline]
    pub(crate) fn on_data(
        &mut self,
        packet: &Packet,
        recovery: Recovery,
        mut delivered: impl FnMut(u32),
    ) -> Option<Answer> {
        let expected = self.expected_psn();
        if packet.is(Packet::TRIMMED) {
            return match recovery {
                _ if packet.psn < expected => self.acknowledge(packet),
                Recovery::GoBackN => self.on_trimmed(packet),
                Recovery::Selective { .. } => Some(self.nak(packet)),
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
        self.heard = false;
        if packet.is(Packet::LAST) {
            delivered(packet.extra);
        }
        if self.trimmed_psn == Some(self.expected_psn()) {
            self.begin_again();
            let psn = self.expected_psn();
            return Some(Answer { kind: Kind::Nak, psn, named_psn: psn, trimmed: true, marked: false });
        }
        let fills_gap = !self.later.is_empty();
        if fills_gap {
            self.later.pop_front();
            while let Some(&next) = self.later.front().filter(|next| **next != MISSING) {
                self.later.pop_front();
                self.window.accept();
                if next != ARRIVED {
                    delivered(next as u32);
                }
            }
        }
        if packet.is(Packet::ACK_REQUEST) || fills_gap { self.acknowledge(packet) } else { None }
    }

    /// Go-back-N: a packet without its payload.
    ///
    /// It overtakes those with payload that were sent before it. To ask at once for the packet expected would have the sender begin
    /// again with what is on its way: that comes twice, fills the queue, and has more trimmed. So it is requested when all before it
    /// is here.
    fn on_trimmed(&mut self, packet: &Packet) -> Option<Answer> {
        let goes_back = packet.psn <= self.last_psn;
        self.last_psn = packet.psn;
        if packet.psn == self.expected_psn() {
            self.begin_again();
            return Some(self.nak(packet));
        }
        self.heard |= goes_back && self.window.nak_sent();
        if self.heard || !self.window.nak_sent() {
            self.trimmed_psn = Some(self.trimmed_psn.map_or(packet.psn, |psn| psn.min(packet.psn)));
        }
        None
    }

    /// A NAK is sent, after which the sender begins again at the packet expected: what was trimmed behind that is of no account.
    const fn begin_again(&mut self) {
        self.window.on_missing();
        self.heard = false;
        self.trimmed_psn = None;
    }

    fn on_gap(&mut self, packet: &Packet, recovery: Recovery) -> Option<Answer> {
        let nak = self.nak(packet);
        match recovery {
            // One NAK per gap, and silence until it is filled.
            Recovery::GoBackN if self.window.on_missing() => {
                self.begin_again();
                Some(nak)
            }
            Recovery::GoBackN => {
                self.last_psn = self.last_psn.max(packet.psn);
                None
            }
            Recovery::Selective { .. } => {
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
        let trimmed = packet.is(Packet::TRIMMED);
        let marked = packet.is(Packet::CE);
        Answer { kind: Kind::Nak, psn: self.expected_psn(), named_psn: packet.psn, trimmed, marked }
    }

    /// Everything before the packet expected is here, and `packet` has come.
    pub(super) const fn acknowledge(&self, packet: &Packet) -> Option<Answer> {
        Some(Answer::ack(self.expected_psn(), packet))
    }
}
