//! What the hooks ask of an opcode: does it congest, has it a place that it must keep, and in which sequence?

use super::opcode::{Opcode, Transport};

/// What the hooks ask of an opcode, in one look-up.
///
/// Each question is a comparison of the whole number, in this order, because the verifier learns from those: of single bits
/// it would believe in every combination, and follow each.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A message's payload in an unreliable datagram: a DETH names the sender.
    Datagram,
    /// A message's payload, from the requester: SEND, WRITE.
    Data,
    /// A message's payload, from the responder: READ response.
    ReadResponse,
    /// Whatever else a responder sends: ACK, NAK, atomic ACK.
    Acknowledge,
    /// Whatever else a requester sends: READ request, atomics, FLUSH, ATOMIC WRITE, RESYNC.
    Request,
    /// Assigned, and none of the others: InfiniBand's own CNP.
    Other,
    /// A RoCEv2 congestion notification.
    Cnp,
    /// Not assigned.
    Unknown,
}

/// Who sends a packet, and so which sequence of packets it has its place in.
///
/// A queue pair has two (IBTA vol. 1, 9.7.2): what it asks counts in its own PSNs, what it answers in the other end's. The
/// receiver takes each in order, and has everything after a gap sent again.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Of the requester: SEND, WRITE, READ requests, atomics, FLUSH, ATOMIC WRITE.
    Requests = 0,
    /// Of the responder: READ responses, ACKs, atomic ACKs.
    Responses = 1,
}

impl Class {
    /// By opcode.
    const OF: [Self; 256] = {
        let mut all = [Self::Unknown; 256];
        let mut code = 0;
        while code < all.len() {
            let opcode = Opcode(code as u8);
            all[code] = if !opcode.is_known() {
                Self::Unknown
            } else if opcode.is_cnp() {
                Self::Cnp
            } else if opcode.is_of(Transport::Cnp) {
                Self::Other
            } else if opcode.has_deth() && !opcode.has_rdeth() {
                Self::Datagram
            } else if opcode.is_read_response() {
                Self::ReadResponse
            } else if opcode.is_data() {
                Self::Data
            } else if opcode.is_response() {
                Self::Acknowledge
            } else {
                Self::Request
            };
            code += 1;
        }
        all
    };

    /// Whether it carries a message's payload: that congests, is answered by CNPs, and is what a flow's rate is for.
    #[inline(always)]
    #[must_use]
    pub const fn congests(self) -> bool {
        self as u8 <= Self::ReadResponse as u8
    }

    /// Whether it has a place among the packets of its queue pair, which it must keep.
    #[inline(always)]
    #[must_use]
    pub const fn is_sequenced(self) -> bool {
        self as u8 <= Self::Request as u8
    }

    /// Whose sequence it is in, if it is in one.
    #[inline(always)]
    #[must_use]
    pub const fn stream(self) -> Stream {
        if self as u8 == Self::ReadResponse as u8 || self as u8 == Self::Acknowledge as u8 {
            Stream::Responses
        } else {
            Stream::Requests
        }
    }
}

impl Opcode {
    /// What the hooks ask.
    #[inline(always)]
    pub const fn class(self) -> Class {
        Class::OF[self.0 as usize]
    }
}
