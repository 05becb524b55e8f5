//! Extension transport headers between BTH and payload (IBTA vol. 1, 9.3).
//!
//! [`Opcode`](super::bth::Opcode) determines which of them follow.

use super::{be24, be32, be64, header, put24, put32, put64};

/// Length of an RDETH (end-to-end context of a reliable datagram), bytes.
pub(crate) const RDETH_LEN: usize = 4;
/// Length of an XRCETH (shared receive queue of the destination), bytes.
pub(crate) const XRCETH_LEN: usize = 4;
/// Length of an AtomicETH (address, key, two operands), bytes.
pub(crate) const ATOMIC_ETH_LEN: usize = 28;
/// Length of an AtomicAckETH (the value before the operation), bytes.
pub(crate) const ATOMIC_ACK_ETH_LEN: usize = 8;
/// Length of immediate data, bytes.
pub(crate) const IMMDT_LEN: usize = 4;
/// Length of an IETH (key to invalidate), bytes.
pub(crate) const IETH_LEN: usize = 4;
/// Length of a FETH (IBTA Annex A19, memory placement extensions), bytes.
pub(crate) const FETH_LEN: usize = 4;

/// The Q_Key of QP1, the general services interface; CM datagrams carry it.
pub const GSI_Q_KEY: u32 = 0x8001_0000;

header! {
    /// Datagram extended transport header.
    Deth, 8, DethRepr: pub fn parse {
        [pub const] q_key: u32 = |bytes| be32::<0, _>(bytes);
        /// The sender's QPN, 24 bits.
        [pub const] src_qpn: u32 = |bytes| be24::<5, _>(bytes);
    }
}

impl DethRepr {
    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; Deth::LEN]) {
        let Self { q_key, src_qpn } = *self;
        put32::<0, _>(out, q_key);
        out[4] = 0;
        put24::<5, _>(out, src_qpn);
    }
}

header! {
    /// RDMA extended transport header.
    Reth, 16, RethRepr: pub fn parse {
        /// Virtual address at the responder.
        [pub(crate) const] virtual_addr: u64 = |bytes| be64::<0, _>(bytes);
        [pub(crate) const] r_key: u32 = |bytes| be32::<8, _>(bytes);
        /// Length of the whole message, bytes.
        [pub const] dma_len: u32 = |bytes| be32::<12, _>(bytes);
    }
}

impl RethRepr {
    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; Reth::LEN]) {
        let Self { virtual_addr, r_key, dma_len } = *self;
        put64::<0, _>(out, virtual_addr);
        put32::<8, _>(out, r_key);
        put32::<12, _>(out, dma_len);
    }
}

/// Syndrome of an acknowledgement (IBTA vol. 1, 9.7.5, "AETH Syndrome Field").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Everything up to the PSN has arrived.
    Ack {
        /// End-to-end flow control credits, encoded, 5 bits; 31 means they are not used.
        credits: u8,
    },
    /// The receiver had no receive request posted: retry later.
    RnrNak {
        /// Time to wait, encoded, 5 bits (IBTA vol. 1, 9.7.5, "RNR NAK Timer Field").
        timer: u8,
    },
    /// The packet was rejected.
    Nak(NakCode),
    /// An unassigned kind.
    Reserved {
        /// The low 5 bits.
        value: u8,
    },
}

impl Syndrome {
    /// An acknowledgement that does not use end-to-end credits.
    pub const ACK: Self = Self::Ack { credits: 31 };
    /// Bits of the kind.
    pub(crate) const KIND: u8 = 0x60;
    /// Bits of the value: credits, timer or NAK code.
    pub(crate) const VALUE: u8 = 0x1f;

    /// Decodes the octet; its top bit is reserved and ignored.
    #[inline(always)]
    pub(crate) const fn from_bits(bits: u8) -> Self {
        let value = bits & Self::VALUE;
        match (bits & Self::KIND) >> 5 {
            0b00 => Self::Ack { credits: value },
            0b01 => Self::RnrNak { timer: value },
            0b11 => Self::Nak(NakCode(value)),
            _ => Self::Reserved { value },
        }
    }

    #[inline(always)]
    pub const fn bits(self) -> u8 {
        let (kind, value) = match self {
            Self::Ack { credits } => (0b00, credits),
            Self::RnrNak { timer } => (0b01, timer),
            Self::Reserved { value } => (0b10, value),
            Self::Nak(NakCode(code)) => (0b11, code),
        };
        (kind << 5) | (value & Self::VALUE)
    }
}

/// Reason of a NAK, 5 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NakCode(pub u8);

impl NakCode {
    /// A packet is missing: go back to the PSN of the NAK.
    pub const PSN_SEQUENCE_ERROR: Self = Self(0);
}

header! {
    /// ACK extended transport header.
    Aeth, 4, AethRepr: pub fn parse {
        /// ACK, NAK or RNR NAK.
        [pub const] syndrome: Syndrome = |bytes| Syndrome::from_bits(bytes[0]);
        /// Message sequence number, 24 bits: messages completed.
        [pub(crate) const] msn: u32 = |bytes| be24::<1, _>(bytes);
    }
}

impl AethRepr {
    #[inline(always)]
    pub const fn emit(&self, out: &mut [u8; Aeth::LEN]) {
        let Self { syndrome, msn } = *self;
        out[0] = syndrome.bits();
        put24::<1, _>(out, msn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_match_the_wire() {
        for (bits, syndrome) in [
            (0x1f, Syndrome::ACK),
            (0x00, Syndrome::Ack { credits: 0 }),
            (0x2e, Syndrome::RnrNak { timer: 14 }),
            (0x45, Syndrome::Reserved { value: 5 }),
            (0x60, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR)),
            (0x63, Syndrome::Nak(NakCode(3))),
        ] {
            assert_eq!(Syndrome::from_bits(bits), syndrome);
            assert_eq!(Syndrome::from_bits(bits | 0x80), syndrome);
            assert_eq!(syndrome.bits(), bits);
        }
    }
}
