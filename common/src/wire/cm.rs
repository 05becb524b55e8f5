//! Connection management (CM) datagrams (IBTA vol. 1, 12.6), with which two QPs exchange their numbers.
//!
//! CM datagrams are UD SEND only packets between QP1s: BTH, DETH with the GSI Q_Key, then these 256 bytes. A
//! network element that sees REQ and REP learns both QPs of a connection; RTU marks its start, DREQ and
//! DREP its end. "Local" and "remote" refer to the message's sender. Only tests write these messages.

use super::{be16, be24, be32, be64, ipv6::Ipv6Addr, sub, view};

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
}

/// Both ends' identifiers of a connection being set up; each is unique per host only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommIds {
    /// Identifier of the message's sender.
    pub local: u32,
    /// Identifier of the message's receiver.
    pub remote: u32,
}

/// Request for a connection. Fields that this project does not use are omitted, as in the messages below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The requester's identifier of the connection.
    pub local_comm_id: u32,
    /// Service requested; rdma_cm encodes port space and port here.
    pub service_id: u64,
    /// The requester's QPN, 24 bits.
    pub local_qpn: u32,
    /// First PSN the requester will send, 24 bits.
    pub starting_psn: u32,
    pub p_key: u16,
    /// Path MTU, encoded, 4 bits: 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// The requester's GID; over IPv4, the mapped address.
    pub local_gid: Ipv6Addr,
    /// The responder's GID; over IPv4, the mapped address.
    pub remote_gid: Ipv6Addr,
    /// Traffic class of the connection's packets.
    pub traffic_class: u8,
}

/// Reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    pub comm_ids: CommIds,
    /// The responder's QPN, 24 bits.
    pub local_qpn: u32,
    /// First PSN the responder will send, 24 bits.
    pub starting_psn: u32,
}

/// Disconnect request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    pub comm_ids: CommIds,
    /// The message receiver's QPN, 24 bits.
    pub remote_qpn: u32,
}

// Each `parse` below expects a datagram of its message, as checked by `Mad::is_cm` and `Mad::attribute`; for any other
// it returns the bytes at the same offsets.

impl CommIds {
    /// Reads the identifiers of a message of any kind but REQ, which has no remote one yet.
    #[inline(always)]
    pub const fn parse(mad: Mad<'_>) -> Self {
        Self { local: be32::<{ HEADER }, _>(mad.0), remote: be32::<{ HEADER + 4 }, _>(mad.0) }
    }
}

impl Rep {
    #[inline(always)]
    pub const fn parse(mad: Mad<'_>) -> Self {
        Self {
            comm_ids: CommIds::parse(mad),
            local_qpn: be24::<{ HEADER + 12 }, _>(mad.0),
            starting_psn: be24::<{ HEADER + 20 }, _>(mad.0),
        }
    }
}

impl Dreq {
    #[inline(always)]
    pub const fn parse(mad: Mad<'_>) -> Self {
        Self { comm_ids: CommIds::parse(mad), remote_qpn: be24::<{ HEADER + 8 }, _>(mad.0) }
    }
}

impl Req {
    #[inline(always)]
    pub const fn parse(mad: Mad<'_>) -> Self {
        Self {
            local_comm_id: be32::<{ HEADER }, _>(mad.0),
            service_id: be64::<{ HEADER + 8 }, _>(mad.0),
            local_qpn: be24::<{ HEADER + 32 }, _>(mad.0),
            starting_psn: be24::<{ HEADER + 44 }, _>(mad.0),
            p_key: be16::<{ HEADER + 48 }, _>(mad.0),
            path_mtu: mad.0[HEADER + 50] >> 4,
            local_gid: *sub::<{ HEADER + 56 }, 16, _>(mad.0),
            remote_gid: *sub::<{ HEADER + 72 }, 16, _>(mad.0),
            traffic_class: mad.0[HEADER + 92],
        }
    }
}
