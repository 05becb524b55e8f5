//! The base transport header (IBTA vol. 1, 9.2) and its opcodes (ibid.; Linux `include/rdma/ib_pack.h`).

use super::{be16, be24, ext, put16, put24, view};

/// The partition key every RoCE packet carries unless partitions are configured: default partition, full member.
pub const DEFAULT_P_KEY: u16 = 0xffff;

/// Queue pair numbers and packet sequence numbers have 24 bits; this is the mask, and the largest of either.
pub const MASK_24: u32 = 0x00ff_ffff;

const FECN: u8 = 0x80;
const BECN: u8 = 0x40;

view! {
    /// Base transport header.
    Bth, 12
}

impl Bth<'_> {
    /// Operation and transport.
    #[inline(always)]
    pub const fn opcode(&self) -> Opcode {
        Opcode(self.0[0])
    }

    /// SE: the receiver wants an event.
    #[inline(always)]
    pub const fn solicited(&self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// M: path migration state.
    #[inline(always)]
    pub const fn migrated(&self) -> bool {
        self.0[1] & 0x40 != 0
    }

    /// Bytes of padding after the payload, 0 to 3.
    #[inline(always)]
    pub const fn pad_count(&self) -> u8 {
        (self.0[1] >> 4) & 0b11
    }

    /// TVer: transport header version, 0 to 15; only 0 is defined.
    #[inline(always)]
    pub const fn tver(&self) -> u8 {
        self.0[1] & 0x0f
    }

    /// Partition key.
    #[inline(always)]
    pub const fn p_key(&self) -> u16 {
        be16::<2, _>(self.0)
    }

    /// FECN: congestion met on the way (InfiniBand's own mark; RoCEv2 uses ECN of IP instead).
    #[inline(always)]
    pub const fn fecn(&self) -> bool {
        self.0[4] & FECN != 0
    }

    /// BECN: congestion reported back; set in CNPs.
    #[inline(always)]
    pub const fn becn(&self) -> bool {
        self.0[4] & BECN != 0
    }

    /// Queue pair the packet is for, 24 bits: the receiver's.
    #[inline(always)]
    pub const fn dest_qpn(&self) -> u32 {
        be24::<5, _>(self.0)
    }

    /// A: the sender asks for an acknowledgement.
    #[inline(always)]
    pub const fn ack_request(&self) -> bool {
        self.0[8] & 0x80 != 0
    }

    /// Packet sequence number, 24 bits.
    #[inline(always)]
    pub const fn psn(&self) -> u32 {
        be24::<9, _>(self.0)
    }
}

/// A [`Bth`] as values. Fields that few packets use are last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BthRepr {
    /// Operation and transport.
    pub opcode: Opcode,
    /// Queue pair the packet is for, 24 bits.
    pub dest_qpn: u32,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
    /// A: ask for an acknowledgement.
    pub ack_request: bool,
    /// Bytes of padding after the payload, 0 to 3.
    pub pad_count: u8,
    /// BECN.
    pub becn: bool,
    /// FECN.
    pub fecn: bool,
    /// Partition key, [`DEFAULT_P_KEY`] as a rule.
    pub p_key: u16,
    /// SE: ask for an event.
    pub solicited: bool,
    /// M: path migration state.
    pub migrated: bool,
    /// TVer: transport header version, 0 to 15; only 0 is defined.
    pub tver: u8,
}

impl BthRepr {
    /// A header with everything beyond these three at its usual value.
    #[inline(always)]
    pub const fn new(opcode: Opcode, dest_qpn: u32, psn: u32) -> Self {
        Self {
            opcode,
            dest_qpn,
            psn,
            ack_request: false,
            pad_count: 0,
            becn: false,
            fecn: false,
            p_key: DEFAULT_P_KEY,
            solicited: false,
            migrated: false,
            tver: 0,
        }
    }

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(bth: Bth<'_>) -> Self {
        Self {
            opcode: bth.opcode(),
            dest_qpn: bth.dest_qpn(),
            psn: bth.psn(),
            ack_request: bth.ack_request(),
            pad_count: bth.pad_count(),
            becn: bth.becn(),
            fecn: bth.fecn(),
            p_key: bth.p_key(),
            solicited: bth.solicited(),
            migrated: bth.migrated(),
            tver: bth.tver(),
        }
    }

    /// Writes the header.
    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; Bth::LEN]) {
        let Self {
            opcode,
            dest_qpn,
            psn,
            ack_request,
            pad_count,
            becn,
            fecn,
            p_key,
            solicited,
            migrated,
            tver,
        } = *self;
        out[0] = opcode.0;
        out[1] =
            ((solicited as u8) << 7) | ((migrated as u8) << 6) | ((pad_count & 0b11) << 4) | (tver & 0x0f);
        put16::<2, _>(out, p_key);
        out[4] = ((fecn as u8) << 7) | ((becn as u8) << 6);
        put24::<5, _>(out, dest_qpn);
        out[8] = (ack_request as u8) << 7;
        put24::<9, _>(out, psn);
    }
}

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
    /// Left to manufacturers.
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

    /// Everything a responder sends.
    pub(super) const RESPONSE: u32 = READ_RESPONSE | ACKNOWLEDGE | ATOMIC_ACKNOWLEDGE;
    /// Everything that carries a message's payload.
    pub(super) const DATA: u32 = SEND | WRITE | READ_RESPONSE;
}

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

    /// Whether this is a RoCEv2 congestion notification.
    #[inline(always)]
    pub const fn is_cnp(self) -> bool {
        self.0 == Self::CNP.0
    }

    /// Whether the packet carries a message's payload: SEND, WRITE or READ response, of any transport.
    ///
    /// These are the packets that cause CNPs and whose rate is limited. Requests for atomics are not counted among them:
    /// they are a fixed 28 bytes that never build a queue. Neither are READ requests, whose payload flows the other way.
    /// (What is not counted keeps its place all the same: [`Class::is_sequenced`].)
    #[inline(always)]
    pub const fn is_data(self) -> bool {
        self.is_transport_op(ops::DATA)
    }

    /// Whether the packet goes from responder to requester.
    #[inline(always)]
    pub const fn is_response(self) -> bool {
        self.is_transport_op(ops::RESPONSE)
    }

    /// Whether the packet is a READ response: the one kind of data that flows from responder to requester.
    #[inline(always)]
    pub const fn is_read_response(self) -> bool {
        self.is_transport_op(ops::READ_RESPONSE)
    }

    /// Whether the packet is an acknowledgement; its AETH tells ACK from NAK.
    #[inline(always)]
    pub const fn is_acknowledge(self) -> bool {
        self.is_transport_op(ops::ACKNOWLEDGE)
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
    pub const fn has_xrceth(self) -> bool {
        self.is_of(Transport::Xrc) && !self.is_response() && self.is_known()
    }

    /// Whether a RETH follows: the start of a WRITE, a READ request, FLUSH and ATOMIC WRITE.
    #[inline(always)]
    pub const fn has_reth(self) -> bool {
        self.is_transport_op(ops::WRITE_START | ops::READ_REQUEST | ops::FLUSH | ops::ATOMIC_WRITE)
    }

    /// Whether an AtomicETH follows: CmpSwap and FetchAdd requests.
    #[inline(always)]
    pub const fn has_atomic_eth(self) -> bool {
        self.is_transport_op(ops::ATOMIC)
    }

    /// Whether an AETH follows: acknowledgements and all READ responses but the middle ones.
    #[inline(always)]
    pub const fn has_aeth(self) -> bool {
        self.is_transport_op(ops::RESPONSE & !ops::READ_RESPONSE_MIDDLE)
    }

    /// Whether an AtomicAckETH follows.
    #[inline(always)]
    pub const fn has_atomic_ack_eth(self) -> bool {
        self.is_transport_op(ops::ATOMIC_ACKNOWLEDGE)
    }

    /// Whether immediate data follows.
    #[inline(always)]
    pub const fn has_immdt(self) -> bool {
        self.is_transport_op(ops::WITH_IMMEDIATE)
    }

    /// Whether an IETH, a key to invalidate, follows.
    #[inline(always)]
    pub const fn has_ieth(self) -> bool {
        self.is_transport_op(ops::WITH_INVALIDATE)
    }

    /// Whether a FETH follows: FLUSH.
    #[inline(always)]
    pub const fn has_feth(self) -> bool {
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
            (self.has_immdt(), ext::ImmDt::LEN),
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
    const fn is_of(self, transport: Transport) -> bool {
        self.0 >> 5 == transport as u8
    }

    /// Whether this is one of `ops` and assigned in its transport. CNP opcodes are not operations.
    #[inline(always)]
    const fn is_transport_op(self, ops: u32) -> bool {
        KNOWN[(self.0 >> 5) as usize] & self.op() & ops != 0 && !self.is_of(Transport::Cnp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_field_and_writes_it_back() {
        let bytes = [0x0a, 0xf0, 0x80, 0x01, 0xc0, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef];
        let repr = BthRepr::parse(Bth::new(&bytes));
        assert_eq!(
            repr,
            BthRepr {
                opcode: Opcode::RC_RDMA_WRITE_ONLY,
                dest_qpn: 0x0012_3456,
                psn: 0x00ab_cdef,
                ack_request: true,
                pad_count: 3,
                becn: true,
                fecn: true,
                p_key: 0x8001,
                solicited: true,
                migrated: true,
                tver: 0,
            }
        );
        let mut out = [0xff; 12];
        repr.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn names_say_transport_and_operation() {
        for (code, name) in [
            (0x06, "RC_RDMA_WRITE_FIRST"),
            (0x11, "RC_ACKNOWLEDGE"),
            (0x2b, "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE"),
            (0x55, "RD_RESYNC"),
            (0x64, "UD_SEND_ONLY"),
            (0x81, "CNP"),
            (0xb7, "XRC_SEND_ONLY_WITH_INVALIDATE"),
            (0x15, "UNKNOWN"),
            (0x60, "UNKNOWN"),
            (0xff, "UNKNOWN"),
        ] {
            assert_eq!(Opcode(code).name(), name);
        }
    }

    #[test]
    fn every_opcode_agrees_with_its_name() {
        let mut known = 0;
        for code in 0..=u8::MAX {
            let opcode = Opcode(code);
            let name = opcode.name();
            let has = |part| name.contains(part);
            if !opcode.is_known() {
                assert_eq!(name, "UNKNOWN");
                assert!(!opcode.is_data() && !opcode.is_response() && opcode.ext_len() == 0, "{code:#x}");
                continue;
            }
            known += 1;
            let prefix = match opcode.transport() {
                Transport::Rc => "RC_",
                Transport::Uc => "UC_",
                Transport::Rd => "RD_",
                Transport::Ud => "UD_",
                Transport::Xrc => "XRC_",
                Transport::Cnp => {
                    assert!(!opcode.is_data() && opcode.ext_len() == 0);
                    continue;
                }
                Transport::Reserved | Transport::Manufacturer => panic!("{name} is in an unassigned range"),
            };
            assert!(name.starts_with(prefix), "{name}");
            let data = has("_SEND_") || has("_RDMA_WRITE_") || has("_READ_RESPONSE_");
            assert_eq!(opcode.is_data(), data, "{name}");
            assert_eq!(opcode.is_read_response(), has("_READ_RESPONSE_"), "{name}");
            assert_eq!(opcode.is_acknowledge(), has("_ACKNOWLEDGE") && !has("_ATOMIC_"), "{name}");
            assert_eq!(opcode.is_response(), has("_READ_RESPONSE_") || has("_ACKNOWLEDGE"), "{name}");
            assert_eq!(opcode.has_immdt(), has("_WITH_IMMEDIATE"), "{name}");
            assert_eq!(opcode.has_ieth(), has("_WITH_INVALIDATE"), "{name}");
        }
        // RC 25, UC 12, RD 23, UD 2, XRC 23, and the two congestion notifications.
        assert_eq!(known, 25 + 12 + 23 + 2 + 23 + 2);
    }

    #[test]
    fn extension_headers_add_up() {
        for (opcode, len) in [
            (Opcode::RC_SEND_FIRST, 0),
            (Opcode::RC_SEND_LAST_WITH_INVALIDATE, 4),
            (Opcode::RC_RDMA_WRITE_FIRST, 16),
            (Opcode::RC_RDMA_WRITE_MIDDLE, 0),
            (Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, 4),
            (Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, 20),
            (Opcode::RC_RDMA_READ_REQUEST, 16),
            (Opcode::RC_RDMA_READ_RESPONSE_FIRST, 4),
            (Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 0),
            (Opcode::RC_ACKNOWLEDGE, 4),
            (Opcode::RC_ATOMIC_ACKNOWLEDGE, 12),
            (Opcode::RC_FETCH_ADD, 28),
            (Opcode::RC_FLUSH, 20),
            (Opcode::RC_ATOMIC_WRITE, 16),
            (Opcode::RD_SEND_ONLY, 12),
            (Opcode::RD_RDMA_READ_RESPONSE_MIDDLE, 4),
            (Opcode::RD_ACKNOWLEDGE, 8),
            (Opcode::UD_SEND_ONLY_WITH_IMMEDIATE, 12),
            (Opcode::CNP, 0),
            (Opcode::XRC_RDMA_WRITE_ONLY, 20),
            (Opcode::XRC_ACKNOWLEDGE, 4),
        ] {
            assert_eq!(opcode.ext_len(), len, "{}", opcode.name());
        }
    }

    #[test]
    fn only_the_roce_opcode_is_a_cnp() {
        for code in 0..=u8::MAX {
            assert_eq!(Opcode(code).is_cnp(), code == 0x81);
        }
    }
}
