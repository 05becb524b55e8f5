//! Opcodes: their names, and the headers that follow.

use crate::wire::ext;

/// The transport service an opcode belongs to: its top three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram.
    Rd = 2,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification.
    Cnp = 4,
    /// Extended reliable connection.
    Xrc = 5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode(pub u8);

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Self = Self($code);)*
        }
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00,
    RC_SEND_MIDDLE = 0x01,
    RC_SEND_ONLY = 0x04,
    RC_RDMA_WRITE_FIRST = 0x06,
    RC_RDMA_WRITE_MIDDLE = 0x07,
    RC_RDMA_WRITE_LAST = 0x08,
    RC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09,
    RC_RDMA_WRITE_ONLY = 0x0a,
    RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0b,
    RC_RDMA_READ_REQUEST = 0x0c,
    RC_RDMA_READ_RESPONSE_FIRST = 0x0d,
    RC_RDMA_READ_RESPONSE_MIDDLE = 0x0e,
    RC_RDMA_READ_RESPONSE_LAST = 0x0f,
    RC_RDMA_READ_RESPONSE_ONLY = 0x10,
    RC_ACKNOWLEDGE = 0x11,
    RC_ATOMIC_ACKNOWLEDGE = 0x12,
    RC_COMPARE_SWAP = 0x13,
    RC_FETCH_ADD = 0x14,
    RC_SEND_LAST_WITH_INVALIDATE = 0x16,
    RC_SEND_ONLY_WITH_INVALIDATE = 0x17,
    RC_FLUSH = 0x1c,
    RC_ATOMIC_WRITE = 0x1d,
    UC_SEND_ONLY = 0x24,
    UC_RDMA_WRITE_LAST = 0x28,
    RD_SEND_ONLY = 0x44,
    RD_RDMA_READ_RESPONSE_MIDDLE = 0x4e,
    RD_ACKNOWLEDGE = 0x51,
    UD_SEND_ONLY = 0x64,
    UD_SEND_ONLY_WITH_IMMEDIATE = 0x65,
    XRC_RDMA_WRITE_ONLY = 0xaa,
    XRC_ACKNOWLEDGE = 0xb1,
    /// RoCEv2 congestion notification packet (IBTA Annex A17).
    CNP = 0x81,
}

/// Indexed by transport: bit `n` is set if operation `n` is assigned.
const KNOWN: [u32; 8] = [0x30df_ffff, 0x0fff, 0x103f_ffff, 0x30, 0b11, 0x00df_ffff, 0, 0];

/// Names of a transport's operations by their low five bits; [`KNOWN`] has those that it assigns.
macro_rules! names {
    ($prefix:literal) => {
        names!($prefix: "SEND_FIRST" "SEND_MIDDLE" "SEND_LAST" "SEND_LAST_WITH_IMMEDIATE" "SEND_ONLY"
            "SEND_ONLY_WITH_IMMEDIATE" "RDMA_WRITE_FIRST" "RDMA_WRITE_MIDDLE" "RDMA_WRITE_LAST"
            "RDMA_WRITE_LAST_WITH_IMMEDIATE" "RDMA_WRITE_ONLY" "RDMA_WRITE_ONLY_WITH_IMMEDIATE" "RDMA_READ_REQUEST"
            "RDMA_READ_RESPONSE_FIRST" "RDMA_READ_RESPONSE_MIDDLE" "RDMA_READ_RESPONSE_LAST"
            "RDMA_READ_RESPONSE_ONLY" "ACKNOWLEDGE" "ATOMIC_ACKNOWLEDGE" "COMPARE_SWAP" "FETCH_ADD" "RESYNC"
            "SEND_LAST_WITH_INVALIDATE" "SEND_ONLY_WITH_INVALIDATE" "" "" "" "" "FLUSH" "ATOMIC_WRITE" "" "")
    };
    ($prefix:literal: $($operation:literal)*) => { [$(concat!($prefix, $operation)),*] };
}

/// Sets of operations: bit `n` stands for the operation with low five bits `n`, in every transport alike.
mod ops {
    pub(super) const SEND: u32 = 0x3f | WITH_INVALIDATE;
    pub(super) const WITH_INVALIDATE: u32 = 1 << 0x16 | 1 << 0x17;
    pub(super) const WRITE: u32 = 0x3f << 0x06;
    pub(super) const WITH_IMMEDIATE: u32 = 1 << 0x03 | 1 << 0x05 | 1 << 0x09 | 1 << 0x0b;
    pub(super) const WRITE_START: u32 = 1 << 0x06 | 1 << 0x0a | 1 << 0x0b;
    pub(super) const READ_REQUEST: u32 = 1 << 0x0c;
    pub(super) const READ_RESPONSE: u32 = 0x0f << 0x0d;
    pub(super) const READ_RESPONSE_MIDDLE: u32 = 1 << 0x0e;
    pub(super) const ACKNOWLEDGE: u32 = 1 << 0x11;
    pub(super) const ATOMIC_ACKNOWLEDGE: u32 = 1 << 0x12;
    pub(super) const ATOMIC: u32 = 1 << 0x13 | 1 << 0x14;
    pub(super) const FLUSH: u32 = 1 << 0x1c;
    pub(super) const ATOMIC_WRITE: u32 = 1 << 0x1d;

    /// All operations that start a message of a requester.
    pub(super) const START: u32 = 1 << 0x00
        | 1 << 0x04
        | 1 << 0x05
        | 1 << 0x17
        | WRITE_START
        | READ_REQUEST
        | ATOMIC
        | FLUSH
        | ATOMIC_WRITE;
    /// All operations of a responder.
    pub(super) const RESPONSE: u32 = READ_RESPONSE | ACKNOWLEDGE | ATOMIC_ACKNOWLEDGE;
    /// All operations that carry a message's payload.
    pub(super) const DATA: u32 = SEND | WRITE | READ_RESPONSE;
}

impl Opcode {
    pub const FIRST_OF_MANUFACTURERS: u8 = 0xc0;

    /// Name, such as `RC_RDMA_WRITE_FIRST`; `UNKNOWN` if the opcode is not assigned.
    pub const fn name(self) -> &'static str {
        const NAMES: [[&str; 32]; 6] =
            [names!("RC_"), names!("UC_"), names!("RD_"), names!("UD_"), [""; 32], names!("XRC_")];
        match self.0 {
            // InfiniBand's congestion notification, Linux's `IB_OPCODE_CNP`.
            0x80 => "IB_CNP",
            0x81 => "CNP",
            code if self.is_known() => NAMES[(code >> 5) as usize][(code & 0x1f) as usize],
            _ => "UNKNOWN",
        }
    }

    #[inline(always)]
    pub const fn is_known(self) -> bool {
        KNOWN[(self.0 >> 5) as usize] & self.op() != 0
    }

    #[inline(always)]
    pub(crate) const fn is_rc(self) -> bool {
        self.is_of(Transport::Rc)
    }

    /// Whether the opcode is reserved for manufacturers (IBTA vol. 1, 9.2.1: its two highest bits are set).
    #[inline(always)]
    pub(crate) const fn is_vendor(self) -> bool {
        self.0 >= Self::FIRST_OF_MANUFACTURERS
    }

    #[inline(always)]
    pub const fn is_cnp(self) -> bool {
        self.0 == Self::CNP.0
    }

    /// Whether the packet carries a message's payload: SEND, WRITE or READ response, of any transport.
    ///
    /// These packets trigger CNPs and are rate limited. Atomic requests are excluded, because they are a fixed 28 bytes
    /// that never build a queue, and READ requests, because their payload flows the other way. (Excluded packets keep
    /// their order all the same: [`Class::is_sequenced`](super::Class::is_sequenced).)
    #[inline(always)]
    pub const fn is_data(self) -> bool {
        self.is_transport_op(ops::DATA)
    }

    /// Whether the packet is the first or only one of a request.
    #[inline(always)]
    pub(crate) const fn starts_request(self) -> bool {
        self.is_transport_op(ops::START)
    }

    /// Whether the packet is the end of a SEND with invalidate, of RC.
    #[inline(always)]
    pub(crate) const fn invalidates(self) -> bool {
        matches!(self, Self::RC_SEND_LAST_WITH_INVALIDATE | Self::RC_SEND_ONLY_WITH_INVALIDATE)
    }

    /// Whether the packet goes from responder to requester.
    #[inline(always)]
    pub const fn is_response(self) -> bool {
        self.is_transport_op(ops::RESPONSE)
    }

    /// Whether the packet is a READ response: the only data that flows from responder to requester.
    #[inline(always)]
    pub const fn is_read_response(self) -> bool {
        self.is_transport_op(ops::READ_RESPONSE)
    }

    /// Whether an RDETH follows the BTH: every reliable datagram.
    #[inline(always)]
    pub const fn has_rdeth(self) -> bool {
        self.is_of(Transport::Rd) && self.is_known()
    }

    /// Whether a DETH follows: every unreliable datagram, and requests over reliable datagram.
    #[inline(always)]
    pub const fn has_deth(self) -> bool {
        (self.is_of(Transport::Ud) || (self.is_of(Transport::Rd) && !self.is_response())) && self.is_known()
    }

    /// Whether an XRCETH follows: requests over extended reliable connection.
    #[inline(always)]
    pub(crate) const fn has_xrceth(self) -> bool {
        self.is_of(Transport::Xrc) && !self.is_response() && self.is_known()
    }

    /// Whether a RETH follows: the start of a WRITE, a READ request, FLUSH and ATOMIC WRITE.
    #[inline(always)]
    pub(crate) const fn has_reth(self) -> bool {
        self.is_transport_op(ops::WRITE_START | ops::READ_REQUEST | ops::FLUSH | ops::ATOMIC_WRITE)
    }

    /// Whether an AtomicETH follows: CmpSwap and FetchAdd requests.
    #[inline(always)]
    pub(crate) const fn has_atomic_eth(self) -> bool {
        self.is_transport_op(ops::ATOMIC)
    }

    /// Whether an AETH follows: acknowledgements and all READ responses but the middle ones.
    #[inline(always)]
    pub const fn has_aeth(self) -> bool {
        self.is_transport_op(ops::RESPONSE & !ops::READ_RESPONSE_MIDDLE)
    }

    #[inline(always)]
    pub(crate) const fn has_atomic_ack_eth(self) -> bool {
        self.is_transport_op(ops::ATOMIC_ACKNOWLEDGE)
    }

    /// Whether immediate data follows.
    #[inline(always)]
    pub(crate) const fn has_immdt(self) -> bool {
        self.is_transport_op(ops::WITH_IMMEDIATE)
    }

    /// Whether an IETH, a key to invalidate, follows.
    #[inline(always)]
    pub(crate) const fn has_ieth(self) -> bool {
        self.is_transport_op(ops::WITH_INVALIDATE)
    }

    /// Whether a FETH follows: FLUSH.
    #[inline(always)]
    pub(crate) const fn has_feth(self) -> bool {
        self.is_transport_op(ops::FLUSH)
    }

    /// Length of all extension headers between BTH and payload, bytes. The reserved bytes of a CNP are payload.
    #[inline(always)]
    pub const fn ext_len(self) -> usize {
        let lengths = [
            (self.has_rdeth(), ext::RDETH_LEN),
            (self.has_deth(), ext::Deth::LEN),
            (self.has_xrceth(), ext::XRCETH_LEN),
            (self.has_feth(), ext::FETH_LEN),
            (self.has_reth(), ext::Reth::LEN),
            (self.has_atomic_eth(), ext::ATOMIC_ETH_LEN),
            (self.has_aeth(), ext::Aeth::LEN),
            (self.has_atomic_ack_eth(), ext::ATOMIC_ACK_ETH_LEN),
            (self.has_immdt(), ext::IMMDT_LEN),
            (self.has_ieth(), ext::IETH_LEN),
        ];
        let mut total = 0;
        let mut i = 0;
        while i < lengths.len() {
            if lengths[i].0 {
                total += lengths[i].1;
            }
            i += 1;
        }
        total
    }

    /// The operation as a set of one, to test against [`ops`].
    #[inline(always)]
    const fn op(self) -> u32 {
        1 << (self.0 & 0x1f)
    }

    #[inline(always)]
    pub const fn is_of(self, transport: Transport) -> bool {
        self.0 >> 5 == transport as u8
    }

    /// Whether this is one of `ops` and assigned in its transport. CNP opcodes are not operations.
    #[inline(always)]
    const fn is_transport_op(self, ops: u32) -> bool {
        KNOWN[(self.0 >> 5) as usize] & self.op() & ops != 0 && !self.is_of(Transport::Cnp)
    }
}
