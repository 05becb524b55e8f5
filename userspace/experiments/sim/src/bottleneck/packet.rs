//! What travels.

/// A data packet, RoCE or TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// RoCE: packet sequence number, which does not wrap here. TCP: number of the transmission.
    pub(super) sequence: u64,
    /// Flow.
    pub(super) flow: u32,
    /// Length, layer 2.
    pub(super) frame_bytes: u16,
    /// Class.
    pub(super) class: u8,
    flags: u8,
}

const ECT: u8 = 1;
const CE: u8 = 2;
const ACK_REQUEST: u8 = 4;

impl Packet {
    /// A packet that is not marked yet.
    pub(super) const fn new(
        flow: u32,
        sequence: u64,
        frame_bytes: u16,
        class: u8,
        ect: bool,
        ack_request: bool,
    ) -> Self {
        let flags = if ect { ECT } else { 0 } | if ack_request { ACK_REQUEST } else { 0 };
        Self { sequence, flow, frame_bytes, class, flags }
    }

    /// Whether it may be marked.
    pub(super) const fn is_ect(self) -> bool {
        self.flags & ECT != 0
    }

    /// Marks it.
    pub(super) const fn mark(&mut self) {
        self.flags |= CE;
    }

    /// Whether it is marked.
    pub(super) const fn is_ce(self) -> bool {
        self.flags & CE != 0
    }

    /// Whether its sender wants an acknowledgement (AckReq of the BTH).
    pub(super) const fn asks_for_ack(self) -> bool {
        self.flags & ACK_REQUEST != 0
    }
}

/// What a receiver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// RoCE: the PSN expected next. TCP: number of the transmission that arrived.
    pub(super) sequence: u64,
    /// Flow.
    pub(super) flow: u32,
    /// What it says.
    pub(super) kind: ReplyKind,
}

/// Kinds of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    /// Everything before `sequence` has arrived (RoCE); this transmission has arrived, without a mark (TCP).
    Ack,
    /// This transmission has arrived with a mark (TCP).
    AckCe,
    /// `sequence` is missing (RoCE).
    Nak,
    /// Congestion (RoCE).
    Cnp,
}
