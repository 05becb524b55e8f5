//! Packets on links.

/// Maximum number of packets of a QP: packet numbers have 32 bits and do not wrap.
pub(crate) const MAX_PACKETS: u64 = u32::MAX as u64;

/// A frame, reduced to the fields that switches and hosts use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Destination host.
    pub(crate) dst: u32,
    /// QP number at the destination: the receiving and the sending ends of QPs are numbered separately.
    pub(crate) qp: u32,
    /// Data: PSN, which does not wrap here. ACK and NAK: the next expected PSN.
    pub(crate) psn: u32,
    /// Data that ends a message: the flow's number. ACK and NAK: the PSN that arrived. PFC: classes as bits.
    pub(crate) extra: u32,
    /// Input of ECMP: one value per QP, like the UDP source port.
    pub(crate) entropy: u32,
    /// Length, layer 2.
    pub(crate) frame_bytes: u16,
    /// Ingress port at the current switch.
    pub(crate) ingress: u16,
    pub(crate) class: u8,
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
}

/// Destination and format of a QP's packets, or of the replies to them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// The host, and the QP's number among those that it receives on, or for replies among those that it sends on.
    pub(crate) dst: u32,
    pub(crate) at_dst: u32,
    pub(crate) class: u8,
    pub(crate) transport: u16,
    pub(crate) entropy: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of a message.
    #[default]
    Data,
    /// Everything before `psn` has arrived.
    Ack,
    /// `psn` is missing.
    Nak,
    /// Congestion.
    Cnp,
    /// A sender requests admission up to `psn`; it has been granted up to `extra`.
    Request,
    /// A grant up to `psn`.
    Grant,
    /// PFC of the classes in `extra`: `psn` 1 pauses, 0 resumes.
    Pfc,
}

impl Packet {
    pub(crate) const ECT: u8 = 1;
    pub(crate) const CE: u8 = 2;
    /// An acknowledgement is requested (AckReq of the BTH).
    pub(crate) const ACK_REQUEST: u8 = 4;
    pub(crate) const LAST: u8 = 8;
    pub(crate) const TRIMMED: u8 = 16;
    /// ACK and NAK: the packet that arrived was marked.
    pub(crate) const ECHO: u8 = 32;

    #[inline]
    pub(crate) const fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// [`Self::ECHO`] if it is marked.
    #[inline]
    pub(crate) const fn echo(&self) -> u8 {
        if self.is(Self::CE) { Self::ECHO } else { 0 }
    }
}
