//! The reliable-connection (RC) transport as a pure state machine.
//!
//! It implements RDMA WRITE as a RoCEv2 NIC does. A [`Requester`] segments messages by the path MTU, keeps a window of
//! unacknowledged packets and goes back N on a NAK or a timeout. A [`Responder`] accepts packets in PSN order only,
//! acknowledges cumulatively on request, and sends one NAK per gap (IBTA vol. 1, 9.7). Both use the windows of
//! [`dcqcn_common::rc`], as the simulator does. Neither reads a clock nor touches a socket: time is an argument,
//! packets are values, payload is a [`bytes::Bytes`] slice of the message, so tests can run both ends through a pipe
//! that loses, repeats and reorders.

mod requester;
mod responder;
#[cfg(test)]
mod tests;

pub(crate) use dcqcn_common::rc::Psn;
pub(crate) use requester::{Requester, RequesterConfig, RequesterStats, WritePacket};
#[cfg(test)]
use responder::Verdict;
pub(crate) use responder::{Reply, ReplyKind, Responder};

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
    /// Length of the whole message, bytes.
    pub length_bytes: u32,
}
