//! Connection management (CM) datagrams (IBTA vol. 1, 12.6), with which two QPs exchange their numbers.
//!
//! CM datagrams are UD SEND only packets between QP1s: BTH, DETH with the GSI Q_Key, then these 256 bytes. A
//! network element that sees REQ and REP learns both QPs of a connection; RTU marks its start, DREQ and
//! DREP its end. "Local" and "remote" in the messages refer to the message's sender.

use super::{be16, be24, be32, be64, ipv6::Ipv6Addr, put16, put24, put32, put64, sub, sub_mut, view};

/// QPN of the general services interface, which sends and receives these datagrams.
pub const GSI_QPN: u32 = 1;

/// Version of the MAD header.
pub const BASE_VERSION: u8 = 1;
/// The class of these datagrams.
pub const CLASS_COMMUNICATION_MANAGEMENT: u8 = 0x07;
/// Version of the class.
pub const CLASS_VERSION: u8 = 2;
/// The one method of the class.
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

    /// Transaction identifier.
    #[inline(always)]
    pub const fn transaction_id(&self) -> u64 {
        be64::<8, _>(self.0)
    }

    /// Message type, if [`Mad::is_cm`].
    #[inline(always)]
    pub(crate) const fn attribute(&self) -> Attribute {
        Attribute(be16::<16, _>(self.0))
    }
}

/// A connection management message. Fields that this project does not use are omitted.
///
/// Not for BPF programs: the variants' fields share registers that not every variant initialises, which the verifier
/// rejects. There, match on `Mad::attribute` and parse that message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmMessage {
    /// Request for a connection.
    Req(Req),
    /// Message receipt acknowledgement: the reply will take longer.
    Mra(Mra),
    /// Reject.
    Rej(Rej),
    /// Reply to a request.
    Rep(Rep),
    /// Ready to use.
    Rtu(CommIds),
    /// Disconnect request.
    Dreq(Dreq),
    /// Disconnect reply.
    Drep(CommIds),
}

/// Both ends' identifiers of a connection being set up; each is unique per host only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommIds {
    /// Identifier of the message's sender.
    pub local: u32,
    /// Identifier of the message's receiver.
    pub remote: u32,
}

/// Request for a connection.
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
    /// Partition key.
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

/// Message receipt acknowledgement: the reply will take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// Identifiers of the connection.
    pub comm_ids: CommIds,
    /// Acknowledged message, 2 bits: 0 REQ, 1 REP, 2 LAP.
    pub message: u8,
    /// Time until the reply, encoded, 5 bits: 4.096 us times two to this power.
    pub service_timeout: u8,
}

/// Reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// Identifiers of the connection; the local one is 0 if none was assigned yet.
    pub comm_ids: CommIds,
    /// Rejected message, 2 bits: 0 REQ, 1 REP, 2 neither.
    pub message: u8,
    /// Reason code (IBTA vol. 1, 12.6.7.2).
    pub reason: u16,
}

/// Reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// Identifiers of the connection.
    pub comm_ids: CommIds,
    /// The responder's QPN, 24 bits.
    pub local_qpn: u32,
    /// First PSN the responder will send, 24 bits.
    pub starting_psn: u32,
}

/// Disconnect request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// Identifiers of the connection.
    pub comm_ids: CommIds,
    /// The message receiver's QPN, 24 bits.
    pub remote_qpn: u32,
}

impl CmMessage {
    /// Reads a message; `None` for another class or version, or an attribute not listed here.
    pub const fn parse(mad: Mad<'_>) -> Option<Self> {
        if !mad.is_cm() {
            return None;
        }
        let message = match mad.attribute() {
            Attribute::REQ => Self::Req(Req::parse(mad)),
            Attribute::MRA => Self::Mra(Mra::parse(mad)),
            Attribute::REJ => Self::Rej(Rej::parse(mad)),
            Attribute::REP => Self::Rep(Rep::parse(mad)),
            Attribute::RTU => Self::Rtu(CommIds::parse(mad)),
            Attribute::DREQ => Self::Dreq(Dreq::parse(mad)),
            Attribute::DREP => Self::Drep(CommIds::parse(mad)),
            _ => return None,
        };
        Some(message)
    }

    /// Writes the whole datagram; omitted fields are zero.
    pub const fn emit(&self, transaction_id: u64, out: &mut [u8; Mad::LEN]) {
        *out = [0; Mad::LEN];
        out[0] = BASE_VERSION;
        out[1] = CLASS_COMMUNICATION_MANAGEMENT;
        out[2] = CLASS_VERSION;
        out[3] = METHOD_SEND;
        put64::<8, _>(out, transaction_id);
        let attribute = match *self {
            Self::Req(req) => {
                req.emit(out);
                Attribute::REQ
            }
            Self::Mra(Mra { comm_ids, message, service_timeout }) => {
                comm_ids.emit(out);
                out[HEADER + 8] = message << 6;
                out[HEADER + 9] = service_timeout << 3;
                Attribute::MRA
            }
            Self::Rej(Rej { comm_ids, message, reason }) => {
                comm_ids.emit(out);
                out[HEADER + 8] = message << 6;
                put16::<{ HEADER + 10 }, _>(out, reason);
                Attribute::REJ
            }
            Self::Rep(Rep { comm_ids, local_qpn, starting_psn }) => {
                comm_ids.emit(out);
                put24::<{ HEADER + 12 }, _>(out, local_qpn);
                put24::<{ HEADER + 20 }, _>(out, starting_psn);
                Attribute::REP
            }
            Self::Rtu(comm_ids) => {
                comm_ids.emit(out);
                Attribute::RTU
            }
            Self::Dreq(Dreq { comm_ids, remote_qpn }) => {
                comm_ids.emit(out);
                put24::<{ HEADER + 8 }, _>(out, remote_qpn);
                Attribute::DREQ
            }
            Self::Drep(comm_ids) => {
                comm_ids.emit(out);
                Attribute::DREP
            }
        };
        put16::<16, _>(out, attribute.0);
    }
}

// Each `parse` below expects a datagram of its message, as checked by `Mad::is_cm` and `Mad::attribute`; for any other
// it returns the bytes at the same offsets.

impl CommIds {
    /// Reads the identifiers of a message of any kind but REQ, which has no remote one yet.
    #[inline(always)]
    pub const fn parse(mad: Mad<'_>) -> Self {
        Self { local: be32::<{ HEADER }, _>(mad.0), remote: be32::<{ HEADER + 4 }, _>(mad.0) }
    }

    const fn emit(self, out: &mut [u8; Mad::LEN]) {
        put32::<{ HEADER }, _>(out, self.local);
        put32::<{ HEADER + 4 }, _>(out, self.remote);
    }
}

impl Mra {
    /// Reads the fields of an MRA.
    #[inline(always)]
    pub const fn parse(mad: Mad<'_>) -> Self {
        Self {
            comm_ids: CommIds::parse(mad),
            message: mad.0[HEADER + 8] >> 6,
            service_timeout: mad.0[HEADER + 9] >> 3,
        }
    }
}

impl Rej {
    /// Reads the fields of a REJ.
    #[inline(always)]
    pub const fn parse(mad: Mad<'_>) -> Self {
        Self {
            comm_ids: CommIds::parse(mad),
            message: mad.0[HEADER + 8] >> 6,
            reason: be16::<{ HEADER + 10 }, _>(mad.0),
        }
    }
}

impl Rep {
    /// Reads the fields of a REP.
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
    /// Reads the fields of a DREQ.
    #[inline(always)]
    pub const fn parse(mad: Mad<'_>) -> Self {
        Self { comm_ids: CommIds::parse(mad), remote_qpn: be24::<{ HEADER + 8 }, _>(mad.0) }
    }
}

impl Req {
    /// Reads the fields of a REQ.
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

    const fn emit(self, out: &mut [u8; Mad::LEN]) {
        let Self {
            local_comm_id,
            service_id,
            local_qpn,
            starting_psn,
            p_key,
            path_mtu,
            local_gid,
            remote_gid,
            traffic_class,
        } = self;
        put32::<{ HEADER }, _>(out, local_comm_id);
        put64::<{ HEADER + 8 }, _>(out, service_id);
        put24::<{ HEADER + 32 }, _>(out, local_qpn);
        put24::<{ HEADER + 44 }, _>(out, starting_psn);
        put16::<{ HEADER + 48 }, _>(out, p_key);
        out[HEADER + 50] = path_mtu << 4;
        *sub_mut::<{ HEADER + 56 }, 16, _>(out) = local_gid;
        *sub_mut::<{ HEADER + 72 }, 16, _>(out) = remote_gid;
        out[HEADER + 92] = traffic_class;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // REQ, REP, RTU, DREQ and DREP are tested with a capture, which lacks these two.

    #[test]
    fn rej_fields_at_standard_offsets() {
        let comm_ids = CommIds { local: 0x0102_0304, remote: 0x0506_0708 };
        let message = CmMessage::Rej(Rej { comm_ids, message: 1, reason: 28 });
        let mut mad = [0; Mad::LEN];
        message.emit(0x1122_3344_5566_7788, &mut mad);
        assert_eq!(mad[..8], [1, 7, 2, 3, 0, 0, 0, 0]);
        assert_eq!(mad[8..16], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(mad[16..24], [0, 0x12, 0, 0, 0, 0, 0, 0]);
        assert_eq!(mad[24..36], [1, 2, 3, 4, 5, 6, 7, 8, 0x40, 0, 0, 28]);
        assert_eq!(mad[36..], [0; 220]);
    }

    #[test]
    fn mra_fields_at_standard_offsets() {
        let comm_ids = CommIds { local: 0x0102_0304, remote: 0x0506_0708 };
        let message = CmMessage::Mra(Mra { comm_ids, message: 1, service_timeout: 21 });
        let mut mad = [0; Mad::LEN];
        message.emit(0, &mut mad);
        assert_eq!(mad[16..24], [0, 0x11, 0, 0, 0, 0, 0, 0]);
        assert_eq!(mad[24..36], [1, 2, 3, 4, 5, 6, 7, 8, 0x40, 0xa8, 0, 0]);
    }

    #[test]
    fn other_cm_messages_ignored() {
        let mut mad = [0; Mad::LEN];
        CmMessage::Rtu(CommIds { local: 1, remote: 2 }).emit(0, &mut mad);
        // LAP, an alternate path: 0x19.
        mad[17] = 0x19;
        assert_eq!(CmMessage::parse(Mad::new(&mad)), None);
    }
}
