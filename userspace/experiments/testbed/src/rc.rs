//! The reliable-connection (RC) transport as a pure state machine.
//!
//! It implements RDMA WRITE as a RoCEv2 NIC does. A [`Requester`] segments messages by the path MTU, keeps a window of
//! unacknowledged packets and goes back N on a NAK or a timeout. A [`Responder`] accepts packets in PSN order only,
//! acknowledges cumulatively on request, and sends one NAK per gap (IBTA vol. 1, 9.7). Both use the windows of
//! [`dcqcn_common::rc`], as the simulator does. Neither reads a clock nor touches a socket: time is an argument,
//! packets are values, payload is a [`bytes::Bytes`] slice of the message, so tests can run both ends through a pipe
//! that loses, repeats and reorders.

#[cfg(test)]
mod tests;

use bytes::Bytes;
pub(crate) use dcqcn_common::rc::Psn;
use dcqcn_common::rc::{Arrival, ReceiveWindow, SendWindow};

/// Position of a packet in its message: the four forms of every RC operation (IBTA vol. 1, 9.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    First,
    /// Neither first nor last.
    Middle,
    Last,
    /// The whole message in one packet. Carries the RETH.
    Only,
}

impl Segment {
    /// Starts a message, and therefore carries a RETH.
    pub(crate) const fn starts_message(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    pub(crate) const fn ends_message(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Contents of a RETH: destination in the peer's memory, and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteRegion {
    /// Virtual address of the first byte in the peer's memory.
    pub virtual_address: u64,
    /// Key that grants access to it.
    pub rkey: u32,
    pub length_bytes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequesterConfig {
    /// Path MTU: payload bytes of a full packet. At least 1; InfiniBand has 256, 512, 1024, 2048 and 4096.
    pub mtu_bytes: u32,
    /// Maximum unacknowledged packets. 1 to 2^23 - 1: beyond that old and new PSNs are ambiguous.
    pub window_packets: u32,
    /// Maximum packets per requested acknowledgement, in addition to the end of each message. Limited to half the
    /// window, which could otherwise close without a request.
    pub ack_every_packets: u32,
    /// Retransmission timeout after the last packet that requested an answer, in ns.
    pub timeout_ns: u64,
    pub first_psn: Psn,
    /// Destination in the peer's memory; its length is that of the message.
    pub remote_address: u64,
    /// Key of that memory.
    pub rkey: u32,
    /// Number of messages to send; `None`: endless.
    pub messages: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WritePacket {
    pub segment: Segment,
    pub psn: Psn,
    /// The A bit: an acknowledgement is requested.
    pub ack_request: bool,
    /// Present on the first packet of a message.
    pub region: Option<RemoteRegion>,
    pub payload: Bytes,
    pub retransmission: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequesterStats {
    /// Data packets sent, retransmissions included.
    pub packets_sent: u64,
    pub packets_retransmitted: u64,
    pub timeouts: u64,
    /// NAKs (PSN sequence error) that caused a retransmission.
    pub naks: u64,
    pub bytes_acknowledged: u64,
    /// Messages acknowledged to their last packet.
    pub messages_completed: u64,
}

/// Sends one message repeatedly, as RDMA WRITEs.
///
/// Packets are counted from 0 in 64 bits. All messages have one length, so the index determines message and offset:
/// going back is a subtraction, and no queue is needed.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    config: RequesterConfig,
    message: Bytes,
    packets_per_message: u64,
    window: SendWindow,
    deadline_ns: Option<u64>,
    stats: RequesterStats,
}

impl Requester {
    /// A requester that has sent nothing. `message` is the payload of every WRITE.
    ///
    /// With an empty message, or a zero MTU or window, it never sends.
    pub(crate) fn new(config: RequesterConfig, message: Bytes) -> Self {
        let packets_per_message = (message.len() as u64).div_ceil(u64::from(config.mtu_bytes.max(1)));
        Self {
            config,
            message,
            packets_per_message,
            window: SendWindow::default(),
            deadline_ns: None,
            stats: RequesterStats::default(),
        }
    }

    pub(crate) const fn stats(&self) -> RequesterStats {
        self.stats
    }

    pub(crate) const fn in_flight_packets(&self) -> u64 {
        self.window.in_flight()
    }

    /// Whether all messages are acknowledged. Never true for endless data.
    #[cfg(test)]
    pub(crate) fn is_complete(&self) -> bool {
        self.end() == Some(self.window.acknowledged())
    }

    /// When [`on_timer`](Self::on_timer) must be called next, on the clock of the `now_ns` arguments.
    pub(crate) const fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// The packet to send now, if the window and the remaining messages allow one. The same packet is returned until
    /// `on_sent` confirms it, so a full socket costs nothing.
    pub(crate) fn next_packet(&self) -> Option<WritePacket> {
        let next = self.window.next();
        let exhausted = self.end().is_some_and(|end| next >= end);
        let window_closed = self.in_flight_packets() >= u64::from(self.config.window_packets);
        if exhausted || window_closed {
            return None;
        }
        let packet = next.checked_rem(self.packets_per_message)?;
        let mtu = self.config.mtu_bytes as usize;
        // Below the message's length, which is a usize.
        let start = packet as usize * mtu;
        let payload = self.message.slice(start..self.message.len().min(start + mtu));
        let segment = match (packet == 0, packet + 1 == self.packets_per_message) {
            (true, true) => Segment::Only,
            (true, false) => Segment::First,
            (false, true) => Segment::Last,
            (false, false) => Segment::Middle,
        };
        let retransmission = next < self.window.sent_end();
        let region = segment.starts_message().then(|| RemoteRegion {
            virtual_address: self.config.remote_address,
            rkey: self.config.rkey,
            length_bytes: self.message.len() as u32,
        });
        Some(WritePacket {
            segment,
            psn: self.config.first_psn.plus(next),
            // The first packet after going back requests an acknowledgement, which may cover the rest.
            ack_request: segment.ends_message()
                || (next + 1).is_multiple_of(self.ack_interval())
                || (retransmission && next == self.window.acknowledged()),
            region,
            payload,
            retransmission,
        })
    }

    /// The packet of the last [`next_packet`](Self::next_packet) left at `now_ns`. Only its fields for the timer are
    /// used.
    pub(crate) const fn on_sent(&mut self, packet: &WritePacket, now_ns: u64) {
        self.stats.packets_sent += 1;
        if self.window.on_sent() {
            self.stats.packets_retransmitted += 1;
        }
        if packet.ack_request || self.deadline_ns.is_none() {
            self.arm(now_ns);
        }
    }

    /// A positive acknowledgement of everything up to and including `psn`.
    pub(crate) fn on_ack(&mut self, psn: Psn, now_ns: u64) {
        if let Some(index) = self.index_of(psn)
            && index < self.window.sent_end()
        {
            self.acknowledge_below(index + 1, now_ns);
        }
    }

    /// A NAK (PSN sequence error): everything before `psn` arrived, `psn` is what the responder waits for.
    pub(crate) fn on_nak_sequence(&mut self, psn: Psn, now_ns: u64) {
        if let Some(index) = self.index_of(psn)
            && index < self.window.sent_end()
        {
            self.stats.naks += 1;
            self.acknowledge_below(index, now_ns);
            self.window.on_nak(index);
        }
    }

    /// Called at or after [`deadline_ns`](Self::deadline_ns): goes back to the oldest unacknowledged packet. Does
    /// nothing before the deadline.
    pub(crate) fn on_timer(&mut self, now_ns: u64) {
        if self.deadline_ns.is_some_and(|deadline| now_ns >= deadline) {
            self.stats.timeouts += 1;
            self.window.on_timeout();
            // The first packet sent restarts it.
            self.deadline_ns = None;
        }
    }

    /// Index one past the last packet to send.
    fn end(&self) -> Option<u64> {
        self.config.messages.map(|messages| messages.saturating_mul(self.packets_per_message))
    }

    fn ack_interval(&self) -> u64 {
        u64::from(self.config.ack_every_packets.min(self.config.window_packets / 2).max(1))
    }

    /// The index of `psn`, unless it is older than the oldest unacknowledged packet.
    fn index_of(&self, psn: Psn) -> Option<u64> {
        let oldest = self.window.acknowledged();
        psn.packet_near(self.config.first_psn, oldest).filter(|index| *index >= oldest)
    }

    fn acknowledge_below(&mut self, end: u64, now_ns: u64) {
        let before = self.window.acknowledged();
        if self.window.on_ack(end) == 0 {
            return;
        }
        self.stats.bytes_acknowledged += self.bytes_below(end) - self.bytes_below(before);
        self.stats.messages_completed += end / self.packets_per_message - before / self.packets_per_message;
        if self.window.is_idle() {
            self.deadline_ns = None;
        } else {
            self.arm(now_ns);
        }
    }

    /// Payload bytes of all packets below `index`. The indices are of sent packets, so a message is not empty.
    fn bytes_below(&self, index: u64) -> u64 {
        let messages = index / self.packets_per_message;
        let rest = index % self.packets_per_message;
        messages * self.message.len() as u64 + rest * u64::from(self.config.mtu_bytes)
    }

    const fn arm(&mut self, now_ns: u64) {
        self.deadline_ns = Some(now_ns.saturating_add(self.config.timeout_ns));
    }
}

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
