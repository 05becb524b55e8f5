//! Classes of opcodes for the hooks: congesting or not, sequenced or not, and in which sequence.

use super::opcode::{Opcode, Transport};

/// Class of an opcode, found by one table lookup.
///
/// Each query compares the whole number, in this order, because the verifier learns ranges from comparisons; with
/// single bits it would explore every combination.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A message's payload in an unreliable datagram: a DETH names the sender.
    Datagram,
    /// A message's payload, from the requester: SEND, WRITE.
    Data,
    /// A message's payload, from the responder: READ response.
    ReadResponse,
    /// Other packets of a responder: ACK, NAK, atomic ACK.
    Acknowledge,
    /// Other packets of a requester: READ request, atomics, FLUSH, ATOMIC WRITE, RESYNC.
    Request,
    /// Any other assigned opcode: InfiniBand's own CNP.
    Other,
    /// A RoCEv2 congestion notification.
    Cnp,
    Unknown,
}

/// Origin of a packet, which determines its sequence.
///
/// A QP has two sequences (IBTA vol. 1, 9.7.2): its requests use its own PSNs, its responses the other end's. The
/// receiver accepts each in order, and after a gap requires retransmission.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Requester: SEND, WRITE, READ requests, atomics, FLUSH, ATOMIC WRITE.
    Requests = 0,
    /// Responder: READ responses, ACKs, atomic ACKs.
    Responses = 1,
}

impl Class {
    /// Class by opcode.
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

    /// Whether packets of the class carry payload, which causes congestion, triggers CNPs and is rate limited.
    #[inline(always)]
    pub const fn congests(self) -> bool {
        self as u8 <= Self::ReadResponse as u8
    }

    /// Whether packets of the class belong to their QP's sequence and must not be reordered.
    #[inline(always)]
    pub const fn is_sequenced(self) -> bool {
        self as u8 <= Self::Request as u8
    }

    /// The sequence it belongs to, if it is sequenced.
    #[inline(always)]
    pub const fn stream(self) -> Stream {
        if self as u8 == Self::ReadResponse as u8 || self as u8 == Self::Acknowledge as u8 {
            Stream::Responses
        } else {
            Stream::Requests
        }
    }
}

/// [`Opcode::ext_len`] by opcode.
const EXT_LEN: [u8; 256] = {
    let mut all = [0; 256];
    let mut code = 0;
    while code < all.len() {
        all[code] = Opcode(code as u8).ext_len() as u8;
        code += 1;
    }
    all
};

impl Opcode {
    /// [`Self::ext_len`], by one table lookup.
    #[inline(always)]
    pub(crate) const fn ext_len_from_table(self) -> usize {
        EXT_LEN[self.0 as usize] as usize
    }

    #[inline(always)]
    pub const fn class(self) -> Class {
        Class::OF[self.0 as usize]
    }
}
