//! The receiving side of an RC QP.

use dcqcn_common::rc::{Arrival, ReceiveWindow};

use super::{Psn, RemoteRegion, Segment};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The expected one: its payload belongs at `offset_bytes` of the current message.
    Delivered {
        offset_bytes: u32,
    },
    Duplicate,
    /// Ahead of the expected one: dropped by go-back-N.
    Gap,
    /// In order, but invalid at this position (IBTA vol. 1, 9.7.4.1): dropped.
    Invalid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    /// Everything up to and including the PSN arrived.
    Ack,
    /// PSN sequence error: the PSN is the expected one.
    NakSequence,
}

/// An answer: BTH PSN and AETH of an ACK packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub kind: ReplyKind,
    pub psn: Psn,
    /// Messages completed, modulo 2^24 (AETH MSN).
    pub msn: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponderStats {
    pub packets_delivered: u64,
    /// Payload bytes delivered in order: the goodput.
    pub bytes_delivered: u64,
    pub messages_completed: u64,
    /// Invalid packets in order, dropped.
    pub invalid: u64,
    /// ACKs requested and sent.
    pub acks_sent: u64,
}

/// Accepts WRITEs in PSN order.
#[derive(Clone, Debug)]
pub(crate) struct Responder {
    mtu_bytes: u32,
    first_psn: Psn,
    window: ReceiveWindow,
    /// Received bytes of the current message, and its length.
    in_progress: Option<(u32, u32)>,
    stats: ResponderStats,
}

impl Responder {
    pub(crate) fn new(first_psn: Psn, mtu_bytes: u32) -> Self {
        Self {
            mtu_bytes,
            first_psn,
            window: ReceiveWindow::default(),
            in_progress: None,
            stats: ResponderStats::default(),
        }
    }

    pub(crate) const fn stats(&self) -> ResponderStats {
        self.stats
    }

    /// Processes one WRITE packet; returns its classification and the answer.
    pub(crate) fn on_packet(
        &mut self,
        segment: Segment,
        psn: Psn,
        ack_request: bool,
        region: Option<RemoteRegion>,
        payload_bytes: u32,
    ) -> (Verdict, Option<Reply>) {
        let index = psn.packet_near(self.first_psn, self.window.expected());
        match index.map_or(Arrival::Duplicate, |index| self.window.on_packet(index)) {
            Arrival::InOrder => {}
            Arrival::Duplicate => return (Verdict::Duplicate, ack_request.then(|| self.ack())),
            Arrival::Gap { nak } => return (Verdict::Gap, nak.then(|| self.nak())),
        }
        let Some((offset_bytes, length_bytes)) = self.payload_range(segment, region, payload_bytes) else {
            self.stats.invalid += 1;
            return (Verdict::Invalid, None);
        };
        self.window.accept();
        self.stats.packets_delivered += 1;
        self.stats.bytes_delivered += u64::from(payload_bytes);
        if segment.ends_message() {
            self.in_progress = None;
            self.stats.messages_completed += 1;
        } else {
            self.in_progress = Some((offset_bytes + payload_bytes, length_bytes));
        }
        (Verdict::Delivered { offset_bytes }, ack_request.then(|| self.ack()))
    }

    /// Offset of the payload in its message and that message's length, if the packet is valid now: full packets up to
    /// the last, which ends the message exactly.
    fn payload_range(
        &self,
        segment: Segment,
        region: Option<RemoteRegion>,
        payload_bytes: u32,
    ) -> Option<(u32, u32)> {
        let (offset_bytes, length_bytes) = match (segment.starts_message(), self.in_progress) {
            (true, None) => (0, region?.length_bytes),
            (false, Some(in_progress)) => in_progress,
            (true, Some(_)) | (false, None) => return None,
        };
        let left_bytes = length_bytes.checked_sub(offset_bytes)?;
        let fits = if segment.ends_message() {
            payload_bytes == left_bytes && payload_bytes <= self.mtu_bytes
        } else {
            payload_bytes == self.mtu_bytes && payload_bytes < left_bytes
        };
        fits.then_some((offset_bytes, length_bytes))
    }

    const fn expected(&self) -> Psn {
        self.first_psn.plus(self.window.expected())
    }

    fn ack(&mut self) -> Reply {
        self.stats.acks_sent += 1;
        Reply { kind: ReplyKind::Ack, psn: self.expected().previous(), msn: self.msn() }
    }

    const fn nak(&self) -> Reply {
        Reply { kind: ReplyKind::NakSequence, psn: self.expected(), msn: self.msn() }
    }

    const fn msn(&self) -> u32 {
        (self.stats.messages_completed & 0x00ff_ffff) as u32
    }
}
