//! What travels over links.

/// A frame. Everything a switch or a host looks at, and nothing it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// The host it is for.
    pub(crate) dst: u32,
    /// Which of that host's queue pairs: the data a QP receives and the answers to what a QP sent are numbered apart.
    pub(crate) qp: u32,
    /// Data: its packet sequence number, which does not wrap here. ACK and NAK: the one expected next.
    pub(crate) psn: u32,
    /// Data that ends a message: the flow's number. ACK and NAK: the PSN that arrived. PFC: bits of classes.
    pub(crate) extra: u32,
    /// What ECMP looks at: one value per QP, as the UDP source port is.
    pub(crate) entropy: u32,
    /// Length, layer 2.
    pub(crate) frame_bytes: u16,
    /// The port it came in by, at the switch where it is.
    pub(crate) ingress: u16,
    /// Class.
    pub(crate) class: u8,
    /// What it is.
    pub(crate) kind: Kind,
    /// Bits: see the constants.
    pub(crate) flags: u8,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of a message.
    Data,
    /// Everything before `psn` has arrived.
    Ack,
    /// `psn` is missing.
    Nak,
    /// Congestion.
    Cnp,
    /// A sender asks whether it may send up to `psn`; it may already up to `extra`.
    Request,
    /// It may send up to `psn`.
    Grant,
    /// PFC of the classes in `extra`: `psn` 1 pauses, 0 lets go on.
    Pfc,
}

impl Packet {
    /// It may be marked.
    pub(crate) const ECT: u8 = 1;
    /// It is marked.
    pub(crate) const CE: u8 = 2;
    /// Its sender wants an acknowledgement (AckReq of the BTH).
    pub(crate) const ACK_REQUEST: u8 = 4;
    /// It ends a message.
    pub(crate) const LAST: u8 = 8;
    /// A switch cut its payload off.
    pub(crate) const TRIMMED: u8 = 16;
    /// ACK and NAK: the packet that arrived was marked.
    pub(crate) const ECHO: u8 = 32;

    #[inline]
    pub(crate) const fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}
