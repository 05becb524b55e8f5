//! The receiving end of a queue pair.

use std::collections::VecDeque;

use dcqcn_common::flow::{FlowId, NpFlow};

use crate::packet::{Kind, Packet};
use crate::scenario::Recovery;

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
    /// NAK: the packet that came instead.
    pub(crate) named_psn: u32,
    /// Without its payload.
    pub(crate) trimmed: bool,
}

/// The receiving end of a QP.
#[derive(Debug)]
pub(crate) struct ReceiveQp {
    /// The sender, and the QP's number there.
    pub(crate) src: u32,
    pub(crate) at_src: u32,
    pub(crate) class: u8,
    pub(crate) entropy: u32,
    expected_psn: u32,
    /// The sender asked to send up to the first, and may up to the second.
    pub(super) requested_psn: u32,
    pub(super) granted_psn: u32,
    nak_sent: bool,
    /// Go-back-N: a packet that came without its payload, ahead of others and while nothing was to be said.
    trimmed_psn: Option<u32>,
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
            expected_psn: 0,
            requested_psn: 0,
            granted_psn: 0,
            nak_sent: false,
            trimmed_psn: None,
            later: VecDeque::new(),
            np: NpFlow::new(id),
        }
    }

    /// Packets that have arrived, with none missing before them.
    #[inline]
    pub(super) const fn expected_psn(&self) -> u32 {
        self.expected_psn
    }

    /// A packet arrives; `delivered` is told of every flow that is complete with it.
    #[inline]
    pub(crate) fn on_data(
        &mut self,
        packet: &Packet,
        recovery: Recovery,
        mut delivered: impl FnMut(u32),
    ) -> Option<Answer> {
        let expected = self.expected_psn;
        if packet.is(Packet::TRIMMED) {
            // The sender learns at once; go-back-N has it start again at the first packet missing.
            return match recovery {
                _ if packet.psn < expected => self.acknowledge(),
                // The packet expected itself may be trimmed again and again.
                Recovery::GoBackN if self.nak_sent && packet.psn != expected => {
                    self.trimmed_psn = Some(self.trimmed_psn.map_or(packet.psn, |psn| psn.min(packet.psn)));
                    None
                }
                Recovery::GoBackN => {
                    self.nak_sent = true;
                    Some(self.nak(packet))
                }
                Recovery::Selective { .. } => Some(self.nak(packet)),
            };
        }
        if packet.psn > expected {
            return self.on_gap(packet, recovery);
        }
        if packet.psn < expected {
            // A duplicate.
            return if packet.is(Packet::ACK_REQUEST) { self.acknowledge() } else { None };
        }
        self.expected_psn += 1;
        self.nak_sent = false;
        if packet.is(Packet::LAST) {
            delivered(packet.extra);
        }
        if let Some(psn) = self.trimmed_psn.take_if(|psn| *psn <= self.expected_psn)
            && psn == self.expected_psn
        {
            self.nak_sent = true;
            return Some(Answer { kind: Kind::Nak, psn, named_psn: psn, trimmed: true });
        }
        let fills_gap = !self.later.is_empty();
        self.later.pop_front();
        while let Some(&next) = self.later.front().filter(|next| **next != MISSING) {
            self.later.pop_front();
            self.expected_psn += 1;
            if next != ARRIVED {
                delivered(next as u32);
            }
        }
        if packet.is(Packet::ACK_REQUEST) || fills_gap { self.acknowledge() } else { None }
    }

    fn on_gap(&mut self, packet: &Packet, recovery: Recovery) -> Option<Answer> {
        let nak = self.nak(packet);
        match recovery {
            // One NAK per gap, and silence until it is filled.
            Recovery::GoBackN => (!std::mem::replace(&mut self.nak_sent, true)).then_some(nak),
            Recovery::Selective { .. } => {
                let index = (packet.psn - self.expected_psn) as usize;
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
        Answer { kind: Kind::Nak, psn: self.expected_psn, named_psn: packet.psn, trimmed }
    }

    const fn acknowledge(&self) -> Option<Answer> {
        Some(Answer { kind: Kind::Ack, psn: self.expected_psn, named_psn: 0, trimmed: false })
    }
}
