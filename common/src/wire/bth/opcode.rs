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
    /// Not assigned.
    Reserved = 6,
    /// Reserved for manufacturers.
    Manufacturer = 7,
}

/// The opcode of a BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode(pub u8);

/// Defines the named opcodes, their names, and per transport the set of operations that exist.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        #[expect(missing_docs, reason = "the name is the documentation: transport and operation")]
        impl Opcode {
            $($(#[$doc])* pub const $name: Self = Self($code);)*
        }

        impl Opcode {
            /// Name, such as `RC_RDMA_WRITE_FIRST`; `UNKNOWN` if the opcode is not assigned.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($code => stringify!($name),)*
                    _ => "UNKNOWN",
                }
            }
        }

        /// Indexed by transport: bit `n` is set if operation `n` is assigned.
        const KNOWN: [u32; 8] = {
            let mut known = [0; 8];
            $(known[$code >> 5] |= 1 << ($code & 0x1f);)*
            known
        };
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00,
    RC_SEND_MIDDLE = 0x01,
    RC_SEND_LAST = 0x02,
    RC_SEND_LAST_WITH_IMMEDIATE = 0x03,
    RC_SEND_ONLY = 0x04,
    RC_SEND_ONLY_WITH_IMMEDIATE = 0x05,
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

    UC_SEND_FIRST = 0x20,
    UC_SEND_MIDDLE = 0x21,
    UC_SEND_LAST = 0x22,
    UC_SEND_LAST_WITH_IMMEDIATE = 0x23,
    UC_SEND_ONLY = 0x24,
    UC_SEND_ONLY_WITH_IMMEDIATE = 0x25,
    UC_RDMA_WRITE_FIRST = 0x26,
    UC_RDMA_WRITE_MIDDLE = 0x27,
    UC_RDMA_WRITE_LAST = 0x28,
    UC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x29,
    UC_RDMA_WRITE_ONLY = 0x2a,
    UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x2b,

    RD_SEND_FIRST = 0x40,
    RD_SEND_MIDDLE = 0x41,
    RD_SEND_LAST = 0x42,
    RD_SEND_LAST_WITH_IMMEDIATE = 0x43,
    RD_SEND_ONLY = 0x44,
    RD_SEND_ONLY_WITH_IMMEDIATE = 0x45,
    RD_RDMA_WRITE_FIRST = 0x46,
    RD_RDMA_WRITE_MIDDLE = 0x47,
    RD_RDMA_WRITE_LAST = 0x48,
    RD_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x49,
    RD_RDMA_WRITE_ONLY = 0x4a,
    RD_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x4b,
    RD_RDMA_READ_REQUEST = 0x4c,
    RD_RDMA_READ_RESPONSE_FIRST = 0x4d,
    RD_RDMA_READ_RESPONSE_MIDDLE = 0x4e,
    RD_RDMA_READ_RESPONSE_LAST = 0x4f,
    RD_RDMA_READ_RESPONSE_ONLY = 0x50,
    RD_ACKNOWLEDGE = 0x51,
    RD_ATOMIC_ACKNOWLEDGE = 0x52,
    RD_COMPARE_SWAP = 0x53,
    RD_FETCH_ADD = 0x54,
    RD_RESYNC = 0x55,
    RD_FLUSH = 0x5c,

    UD_SEND_ONLY = 0x64,
    UD_SEND_ONLY_WITH_IMMEDIATE = 0x65,

    /// InfiniBand's congestion notification, Linux's `IB_OPCODE_CNP`. Not RoCEv2's: that is [`Opcode::CNP`].
    IB_CNP = 0x80,
    /// RoCEv2 congestion notification packet (IBTA Annex A17).
    CNP = 0x81,

    XRC_SEND_FIRST = 0xa0,
    XRC_SEND_MIDDLE = 0xa1,
    XRC_SEND_LAST = 0xa2,
    XRC_SEND_LAST_WITH_IMMEDIATE = 0xa3,
    XRC_SEND_ONLY = 0xa4,
    XRC_SEND_ONLY_WITH_IMMEDIATE = 0xa5,
    XRC_RDMA_WRITE_FIRST = 0xa6,
    XRC_RDMA_WRITE_MIDDLE = 0xa7,
    XRC_RDMA_WRITE_LAST = 0xa8,
    XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0xa9,
    XRC_RDMA_WRITE_ONLY = 0xaa,
    XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0xab,
    XRC_RDMA_READ_REQUEST = 0xac,
    XRC_RDMA_READ_RESPONSE_FIRST = 0xad,
    XRC_RDMA_READ_RESPONSE_MIDDLE = 0xae,
    XRC_RDMA_READ_RESPONSE_LAST = 0xaf,
    XRC_RDMA_READ_RESPONSE_ONLY = 0xb0,
    XRC_ACKNOWLEDGE = 0xb1,
    XRC_ATOMIC_ACKNOWLEDGE = 0xb2,
    XRC_COMPARE_SWAP = 0xb3,
    XRC_FETCH_ADD = 0xb4,
    XRC_SEND_LAST_WITH_INVALIDATE = 0xb6,
    XRC_SEND_ONLY_WITH_INVALIDATE = 0xb7,
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
    /// The first opcode reserved for manufacturers.
    pub const FIRST_OF_MANUFACTURERS: u8 = 0xc0;

    /// Transport service.
    #[inline(always)]
    pub const fn transport(self) -> Transport {
        match self.0 >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            2 => Transport::Rd,
            3 => Transport::Ud,
            4 => Transport::Cnp,
            5 => Transport::Xrc,
            6 => Transport::Reserved,
            _ => Transport::Manufacturer,
        }
    }

    /// Whether the opcode is assigned.
    #[inline(always)]
    pub const fn is_known(self) -> bool {
        KNOWN[(self.0 >> 5) as usize] & self.op() != 0
    }

    /// Whether the opcode is of the RC transport.
    #[inline(always)]
    pub(crate) const fn is_rc(self) -> bool {
        self.is_of(Transport::Rc)
    }

    /// Whether the opcode is reserved for manufacturers (IBTA vol. 1, 9.2.1: its two highest bits are set).
    #[inline(always)]
    pub(crate) const fn is_manufacturers(self) -> bool {
        self.0 >= Self::FIRST_OF_MANUFACTURERS
    }

    /// Whether this is a RoCEv2 congestion notification.
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

    /// Whether an AtomicAckETH follows.
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
    pub(super) const fn is_of(self, transport: Transport) -> bool {
        self.0 >> 5 == transport as u8
    }

    /// Whether this is one of `ops` and assigned in its transport. CNP opcodes are not operations.
    #[inline(always)]
    const fn is_transport_op(self, ops: u32) -> bool {
        KNOWN[(self.0 >> 5) as usize] & self.op() & ops != 0 && !self.is_of(Transport::Cnp)
    }
}
