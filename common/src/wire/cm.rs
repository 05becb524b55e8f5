//! Connection management (CM) datagrams (IBTA vol. 1, 12.6), with which two QPs exchange their numbers.
//!
//! CM datagrams are UD SEND only packets between QP1s: BTH, DETH with the GSI Q_Key, then these 256 bytes. A
//! network element that sees REQ and REP learns both QPs of a connection; RTU marks its start, DREQ and
//! DREP its end. "Local" and "remote" refer to the message's sender. Other fields are not read.

use super::{be16, be24, be32, view};

pub const BASE_VERSION: u8 = 1;
pub const CLASS_COMMUNICATION_MANAGEMENT: u8 = 0x07;
pub const CLASS_VERSION: u8 = 2;
pub const METHOD_SEND: u8 = 0x03;

/// Length of the MAD header; field offsets of messages in the standard count from here.
const HEADER: usize = 24;

/// Message type: the attribute identifier of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute(pub u16);

impl Attribute {
    /// Request for a connection.
    pub const REQ: Self = Self(0x10);
    /// Message receipt acknowledgement.
    pub const MRA: Self = Self(0x11);
    /// Reject.
    pub const REJ: Self = Self(0x12);
    /// Reply to a request.
    pub const REP: Self = Self(0x13);
    /// Ready to use.
    pub const RTU: Self = Self(0x14);
    /// Disconnect request.
    pub const DREQ: Self = Self(0x15);
    /// Disconnect reply.
    pub const DREP: Self = Self(0x16);
}

view! {
    /// A management datagram: its header and the message.
    Mad, 256
}

// Each getter of a QPN, and `CommIds::parse`, expect a datagram of their message, as checked by `Mad::is_cm` and
// `Mad::attribute`; for any other they return the bytes at the same offsets.

impl Mad<'_> {
    /// Whether this is a connection management message, of any type.
    #[inline(always)]
    pub(crate) const fn is_cm(&self) -> bool {
        self.0[0] == BASE_VERSION
            && self.0[1] == CLASS_COMMUNICATION_MANAGEMENT
            && self.0[2] == CLASS_VERSION
            && self.0[3] == METHOD_SEND
    }

    /// Message type, of connection management.
    #[inline(always)]
    pub const fn attribute(&self) -> Attribute {
        Attribute(be16::<16, _>(self.0))
    }

    /// QPN of a REQ's sender.
    #[inline(always)]
    pub const fn req_qpn(&self) -> u32 {
        be24::<{ HEADER + 32 }, _>(self.0)
    }

    /// QPN of a REP's sender.
    #[inline(always)]
    pub const fn rep_qpn(&self) -> u32 {
        be24::<{ HEADER + 12 }, _>(self.0)
    }

    /// QPN of a DREQ's receiver.
    #[inline(always)]
    pub const fn dreq_qpn(&self) -> u32 {
        be24::<{ HEADER + 8 }, _>(self.0)
    }
}

/// Both ends' identifiers of a connection being set up; each is unique per host only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommIds {
    /// Identifier of the message's sender.
    pub local: u32,
    /// Identifier of the message's receiver.
    pub remote: u32,
}

impl CommIds {
    /// Reads the identifiers of a message of any kind. A REQ has no remote one yet.
    #[inline(always)]
    pub const fn parse(mad: Mad<'_>) -> Self {
        Self { local: be32::<{ HEADER }, _>(mad.0), remote: be32::<{ HEADER + 4 }, _>(mad.0) }
    }
}
