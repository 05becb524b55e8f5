//! Connection management messages.

use dcqcn_common::wire::bth::DEFAULT_P_KEY;
use dcqcn_common::wire::cm::{
    Attribute, BASE_VERSION, CLASS_COMMUNICATION_MANAGEMENT, CLASS_VERSION, CommIds, METHOD_SEND, Mad,
};

/// Length of the MAD header; field offsets of messages in the standard count from here.
const HEADER: usize = 24;

/// Request for a connection with a path MTU of 1,024 bytes in the default partition.
#[derive(Clone, Copy, Debug)]
pub struct Req {
    pub local_comm_id: u32,
    pub service_id: u64,
    pub local_qpn: u32,
    pub starting_psn: u32,
}

/// Reply to a request.
#[derive(Clone, Copy, Debug)]
pub struct Rep {
    pub comm_ids: CommIds,
    pub local_qpn: u32,
    pub starting_psn: u32,
}

/// Disconnect request.
#[derive(Clone, Copy, Debug)]
pub struct Dreq {
    pub comm_ids: CommIds,
    pub remote_qpn: u32,
}

#[derive(Clone, Copy, Debug)]
pub enum CmMessage {
    Req(Req),
    /// A receipt: the reply will take longer.
    Mra {
        comm_ids: CommIds,
        /// Acknowledged message, 2 bits: 0 REQ, 1 REP, 2 LAP.
        message: u8,
        /// Time until the reply, 5 bits: 4.096 us times two to this power.
        service_timeout: u8,
    },
    Rej {
        comm_ids: CommIds,
        /// Rejected message, 2 bits: 0 REQ, 1 REP, 2 neither.
        message: u8,
        /// Reason code (IBTA vol. 1, 12.6.7.2).
        reason: u16,
    },
    Rep(Rep),
    Rtu(CommIds),
    Dreq(Dreq),
    Drep(CommIds),
}

impl CmMessage {
    /// The whole datagram; omitted fields are zero.
    pub fn datagram(&self, transaction_id: u64) -> Vec<u8> {
        let mut message = [0; Mad::LEN - HEADER];
        let mut put = |at: usize, field: &[u8]| message[at..][..field.len()].copy_from_slice(field);
        // A reserved byte follows each field of 24 bits.
        let be24 = |value: u32| (value << 8).to_be_bytes();
        let (attribute, comm_ids) = match *self {
            Self::Req(req) => {
                put(8, &req.service_id.to_be_bytes());
                put(32, &be24(req.local_qpn));
                put(44, &be24(req.starting_psn));
                put(48, &DEFAULT_P_KEY.to_be_bytes());
                put(50, &[3 << 4]);
                (Attribute::REQ, CommIds { local: req.local_comm_id, remote: 0 })
            }
            Self::Mra { comm_ids, message, service_timeout } => {
                put(8, &[message << 6, service_timeout << 3]);
                (Attribute::MRA, comm_ids)
            }
            Self::Rej { comm_ids, message, reason } => {
                put(8, &[message << 6]);
                put(10, &reason.to_be_bytes());
                (Attribute::REJ, comm_ids)
            }
            Self::Rep(rep) => {
                put(12, &be24(rep.local_qpn));
                put(20, &be24(rep.starting_psn));
                (Attribute::REP, rep.comm_ids)
            }
            Self::Rtu(comm_ids) => (Attribute::RTU, comm_ids),
            Self::Dreq(dreq) => {
                put(8, &be24(dreq.remote_qpn));
                (Attribute::DREQ, dreq.comm_ids)
            }
            Self::Drep(comm_ids) => (Attribute::DREP, comm_ids),
        };
        put(0, &comm_ids.local.to_be_bytes());
        put(4, &comm_ids.remote.to_be_bytes());
        let mut out =
            vec![BASE_VERSION, CLASS_COMMUNICATION_MANAGEMENT, CLASS_VERSION, METHOD_SEND, 0, 0, 0, 0];
        out.extend(transaction_id.to_be_bytes());
        out.extend(attribute.0.to_be_bytes());
        out.extend([0; 6]);
        out.extend(message);
        out
    }
}
